//! Tokens that go to experts of other PEs and come back: bit for bit what one PE alone would have summed, in the order that is said.

use congruent::collectives::moe::{Added, Dispatched, Idle, MoeConfig, Tokens};
use congruent::device::{Number, Semaphore, bf16};
use congruent::{Error, Grid, LaunchError, Moe, RowsByExpert, Stream, StreamBatch, SymVec, World};
use congruent_test_kernels::moe::{self as kernels, Case};

use super::gradients::moe_gradients;
use super::limit::{is_limited, times};

/// What neighbours of the exchange's memory hold before and after.
const CANARY: u8 = 0xa5;
/// What sums hold before: a number that no token sums to.
const POISON: f32 = -12345.0;
/// Launches of up to so many blocks.
const BLOCKS: u32 = 4;

/// Exchanges of tokens.
pub fn moe(world: &mut World) -> Result<(), Error> {
    let pes = world.npes() as u32;
    let usual = Case {
        seed: 1,
        pes,
        tokens: 5,
        ragged: 1,
        experts: 2 * pes + 1,
        top_k: 2.min(2 * pes + 1),
        hidden: 8,
        extra: 3,
        scales: 5,
        skew: kernels::SKEW_NONE,
        delay: 0,
        wrong_pe: 0,
        wrong: 0,
        added: kernels::ADD_NOTHING,
        keep: kernels::KEEP_NOTHING,
    };
    let (blocks, rounds) = (Grid::new(2, 64), times(64).max(4));
    // Back to back without a meeting of any kind, each PE at its own pace.
    moe_rounds(world, Case { delay: 50, ..usual }, rounds, &[blocks])?;
    // The same bits for every number of blocks and threads.
    let grids = [Grid::one(1), Grid::new(3, 48), Grid::new(BLOCKS, 32)];
    moe_rounds(world, Case { seed: 2, added: kernels::ADD_RESIDUAL, ..usual }, 3, &grids)?;
    // More choices than PEs, and fewer; more PEs than experts; no tokens anywhere, or one, or as many everywhere.
    let many = Case { seed: 3, experts: 7, top_k: 6, tokens: 3, added: kernels::ADD_BIAS, ..usual };
    moe_rounds(world, many, 3, &[blocks])?;
    moe_rounds(world, Case { seed: 4, experts: 1, top_k: 1, tokens: 1, scales: 0, extra: 0, ..usual }, 4, &[blocks])?;
    moe_rounds(world, Case { seed: 5, tokens: 4, ragged: 0, skew: kernels::SKEW_SAME, ..usual }, 3, &[blocks])?;
    let tokens = if is_limited() { 9 } else { 70 };
    moe_rounds(world, Case { seed: 6, tokens, skew: kernels::SKEW_FIRST, ..usual }, 2, &[blocks])?;
    let trained = Case { seed: 17, tokens, experts: 8, top_k: 4, skew: kernels::SKEW_TRAINED, ..usual };
    moe_rounds(world, trained, 3, &[blocks])?;
    in_flight(world, Case { seed: 7, delay: 20, ..usual }, blocks)?;
    in_launches(world, Case { seed: 8, added: kernels::ADD_BIAS, ..usual })?;
    in_launches(world, Case { seed: 9, wrong_pe: pes / 2, wrong: 2, ..usual })?;
    in_calls(world, Case { seed: 10, added: kernels::ADD_RESIDUAL, ..usual })?;
    // Routes that are kept: by all or by some, in one launch, in several and in calls, and behind exchanges that are refused.
    let grids = [blocks, Grid::one(32), Grid::new(BLOCKS, 32)];
    moe_rounds(world, Case { seed: 12, delay: 20, keep: kernels::KEEP_ALIKE, ..usual }, rounds.min(8), &grids)?;
    moe_rounds(world, Case { seed: 13, keep: kernels::KEEP_EACH, ..usual }, rounds.min(8), &[blocks])?;
    in_launches(world, Case { seed: 14, keep: kernels::KEEP_ALIKE, ..usual })?;
    in_launches(world, Case { seed: 15, keep: kernels::KEEP_EACH, wrong_pe: pes / 2, wrong: 2, ..usual })?;
    in_calls(world, Case { seed: 16, keep: kernels::KEEP_EACH, ..usual })?;
    moe_graphs(world, Case { seed: 11, ragged: 0, ..usual }, times(10).max(3))?;
    refused(world, usual)?;
    moe_gradients(world, 3, 2 * pes as usize + 1, blocks, &[blocks, Grid::new(3, 32), Grid::one(32)])?;
    numbers_wrap(world, usual)
}

/// An exchange with all that a test needs, between canaries.
struct Setup {
    before: SymVec<u8>,
    moe: Moe,
    after: SymVec<u8>,
    room: SymVec<u8>,
    told: SymVec<u64>,
    wrong: SymVec<u64>,
    never: SymVec<Semaphore>,
}

fn config(case: &Case, element: u32) -> MoeConfig {
    MoeConfig::new(case.tokens, case.experts, case.top_k)
        .payload(case.payload() as u32)
        .scales(case.scales)
        .output(case.hidden * element)
        .blocks(BLOCKS)
}

impl Setup {
    fn new(world: &mut World, case: &Case, rounds: u64, config: MoeConfig) -> Result<Self, Error> {
        let before = world.alloc::<u8>(4096)?;
        let moe = world.moe(world.team(), config)?.named("moe");
        let after = world.alloc::<u8>(4096)?;
        before.fill(CANARY)?;
        after.fill(CANARY)?;
        let room = 2 * case.tokens as usize * (case.payload() + case.scales as usize);
        Ok(Self {
            before,
            moe,
            after,
            room: world.alloc(room)?,
            told: world.alloc(rounds as usize)?,
            wrong: world.alloc(1)?,
            never: world.alloc(BLOCKS as usize)?,
        })
    }

    /// Nothing was wrong, and nothing was stored beside what is the exchange's.
    fn check(&self, case: &Case) -> Result<(), Error> {
        assert_eq!(self.wrong.to_vec()?, [0], "what came is not what was sent: {case:?}");
        for canary in [&self.before, &self.after] {
            assert!(canary.to_vec()?.iter().all(|&byte| byte == CANARY), "{case:?}");
        }
        Ok(())
    }
}

/// What is added, for each token.
fn more<T: Number<Acc = f32>>(world: &mut World, case: &Case) -> Result<SymVec<T>, Error> {
    let (tokens, hidden) = (case.tokens as usize, case.hidden as usize);
    let more = world.alloc(tokens * hidden)?;
    let values: Vec<T> =
        (0..tokens).flat_map(|token| (0..hidden).map(move |i| T::from_acc(case.more(token, i)))).collect();
    more.write(0, &values)?;
    Ok(more)
}

/// What a PE sums in an exchange: in the order of each token's choices, by PE, then what is added. Rows of no token keep their poison.
fn expected<T: Number<Acc = f32>>(case: &Case, pe: usize, exchange: u64) -> Vec<T> {
    let (tokens, hidden, top_k) = (case.tokens as usize, case.hidden as usize, case.top_k as usize);
    let mut sums = vec![T::from_acc(POISON); tokens * hidden];
    if (0..case.pes as usize).any(|pe| case.wrong_at(pe, exchange) != 0) {
        return sums;
    }
    for (token, sums) in sums.chunks_mut(hidden).enumerate().take(case.count(pe, exchange)) {
        let choices: Vec<(i32, f32)> = (token * top_k..(token + 1) * top_k)
            .map(|i| (case.expert(pe, exchange, i), case.weight(pe, exchange, i)))
            .filter(|(expert, _)| *expert >= 0)
            .collect();
        let mut owners: Vec<usize> = Vec::new();
        for (expert, _) in &choices {
            if !owners.contains(&case.owner(*expert)) {
                owners.push(case.owner(*expert));
            }
        }
        for (i, sum) in sums.iter_mut().enumerate() {
            let [low, high] = [2 * i, 2 * i + 1].map(|at| case.byte(pe, exchange, token, at));
            let of_owner = |owner: &usize| {
                let own = choices.iter().filter(|(expert, _)| case.owner(*expert) == *owner);
                T::from_acc(own.fold(0.0, |sum, (expert, weight)| sum + weight * case.answer(*expert, low, high)))
            };
            let more = match case.added {
                kernels::ADD_NOTHING => None,
                kernels::ADD_BIAS => Some(T::from_acc(case.more(0, i))),
                _ => Some(T::from_acc(case.more(token, i))),
            };
            let parts = owners.iter().map(of_owner).chain(more).map(T::into_acc);
            *sum = T::from_acc(parts.reduce(|sum, part| sum + part).unwrap_or(0.0));
        }
    }
    sums
}

/// Looks at the sums of these exchanges, bit by bit.
fn compare<T: Number<Acc = f32>>(
    world: &World,
    case: &Case,
    sums: &SymVec<T>,
    exchanges: impl Iterator<Item = u64>,
) -> Result<(), Error> {
    let (each, pe) = ((case.tokens * case.hidden) as usize, world.pe().index());
    for (part, exchange) in sums.to_vec()?.chunks(each).zip(exchanges) {
        let (found, expected) = (bytemuck::cast_slice::<T, u8>(part), expected::<T>(case, pe, exchange));
        assert_eq!(found, bytemuck::cast_slice::<T, u8>(&expected), "PE {pe}, exchange {exchange}: {case:?}");
    }
    Ok(())
}

/// Exchanges in one launch of each grid, one launch behind the other.
pub fn moe_rounds(world: &mut World, case: Case, rounds: u64, grids: &[Grid]) -> Result<(), Error> {
    let config = config(&case, 2);
    rounds_of(world, case, rounds, grids, config).map(drop)
}

/// The same; gives what of tokens lies in this PE's memory behind the last exchange.
pub fn moe_exchanges(world: &mut World, case: Case, rounds: u64, grids: &[Grid]) -> Result<Vec<u8>, Error> {
    let config = config(&case, 2);
    let setup = rounds_of(world, case, rounds, grids, config)?;
    let region = setup.moe.view().dispatch_region(0);
    let (mut bytes, stream) = (world.buffer::<u8>(region.len())?, world.stream()?);
    world.copy(&stream, &mut bytes, region)?;
    world.synchronize(&stream)?;
    Ok(bytes.to_vec()?)
}

fn rounds_of(world: &mut World, case: Case, rounds: u64, grids: &[Grid], config: MoeConfig) -> Result<Setup, Error> {
    let stream = world.stream()?;
    let setup = Setup::new(world, &case, rounds, config)?;
    let (more, each) = (more::<bf16>(world, &case)?, (case.tokens * case.hidden) as usize);
    let all: Vec<SymVec<bf16>> = grids.iter().map(|_| world.alloc(rounds as usize * each)).collect::<Result<_, _>>()?;
    for (sums, (grid, launch)) in all.iter().zip(grids.iter().zip(0..)) {
        sums.fill(bf16::from_f32(POISON))?;
        let args = (
            setup.moe.view(),
            case,
            launch * rounds,
            rounds,
            setup.room.view(),
            sums.view(),
            more.view(),
            setup.told.view(),
            setup.wrong.view(),
            setup.never.view(),
        );
        world.launch(&stream, kernels::moe_rounds, *grid, args)?;
    }
    world.synchronize(&stream)?;
    setup.check(&case)?;
    for (sums, launch) in all.iter().zip(0..) {
        compare(world, &case, sums, launch * rounds..(launch + 1) * rounds)?;
    }
    Ok(setup)
}

/// Two micro-batches in flight, of one exchange and of two.
fn in_flight(world: &mut World, case: Case, grid: Grid) -> Result<(), Error> {
    let (stream, rounds) = (world.stream()?, times(20).max(2));
    for together in [true, false] {
        let one = Setup::new(world, &case, rounds, config(&case, 2).micro_batches(1 + u32::from(together)))?;
        let other = world.moe(world.team(), config(&case, 2))?;
        let (view, index) = if together { (one.moe.view(), 1) } else { (other.view(), 0) };
        let more = more::<bf16>(world, &case)?;
        let sums = world.alloc::<bf16>(2 * rounds as usize * more.len())?;
        sums.fill(bf16::from_f32(POISON))?;
        let args = (
            one.moe.view(),
            view,
            index,
            case,
            rounds,
            one.room.view(),
            sums.view(),
            more.view(),
            one.wrong.view(),
            one.never.view(),
        );
        world.run(&stream, kernels::moe_interleaved, grid, args)?;
        one.check(&case)?;
        compare(world, &case, &sums, 0..2 * rounds)?;
    }
    Ok(())
}

/// Each step in a launch of its own, with as many blocks as it likes.
fn in_launches(world: &mut World, case: Case) -> Result<(), Error> {
    let (stream, rounds) = (world.stream()?, times(30).max(2));
    let setup = Setup::new(world, &case, rounds, config(&case, 4))?;
    let (more, moe, wrong) = (more::<f32>(world, &case)?, setup.moe.view(), setup.wrong.view());
    let sums = world.alloc::<f32>(rounds as usize * more.len())?;
    sums.fill(POISON)?;
    let (grid, by_expert) = (|blocks| Grid::new(blocks, 32), world.alloc::<u8>(case.by_expert())?);
    by_expert.fill(0x77)?;
    for exchange in 0..rounds {
        let part = sums.view().chunk(exchange as usize, rounds as usize);
        world.launch(&stream, kernels::moe_send, grid(2), (moe, case, exchange, setup.room.view(), wrong))?;
        world.launch(&stream, kernels::moe_receive, grid(1), (moe, case, exchange, by_expert.view(), wrong))?;
        world.launch(&stream, kernels::moe_answer, grid(BLOCKS), (moe, case, by_expert.view(), wrong))?;
        world.launch(&stream, kernels::moe_sum, grid(3), (moe, case, part, more.view(), wrong))?;
    }
    world.synchronize(&stream)?;
    setup.check(&case)?;
    compare(world, &case, &sums, 0..rounds)
}

/// What calls on a stream need for a micro-batch.
struct Calls {
    case: Case,
    payload: SymVec<u8>,
    scales: SymVec<u8>,
    experts: SymVec<i32>,
    weights: SymVec<f32>,
    rows: SymVec<u8>,
    scales_of_rows: SymVec<u8>,
    starts: SymVec<u32>,
    answers: SymVec<f32>,
    more: SymVec<f32>,
    sums: SymVec<f32>,
    wrong: SymVec<u64>,
}

impl Calls {
    fn new(world: &mut World, case: Case) -> Result<Self, Error> {
        let (pes, tokens, choices) = (world.npes() as u32, case.tokens as usize, (case.tokens * case.top_k) as usize);
        let rows = config(&case, 4).most_rows(pes, kernels::ALIGN as u32) as usize;
        Ok(Self {
            case,
            payload: world.alloc(tokens * case.payload())?,
            scales: world.alloc(tokens * case.scales as usize)?,
            experts: world.alloc(choices)?,
            weights: world.alloc(choices)?,
            rows: world.alloc(rows * case.payload())?,
            scales_of_rows: world.alloc(rows * case.scales as usize)?,
            starts: world.alloc(case.experts.div_ceil(pes) as usize + 1)?,
            answers: world.alloc(rows * case.hidden as usize)?,
            more: more(world, &case)?,
            sums: world.alloc(tokens * case.hidden as usize)?,
            wrong: world.alloc(1)?,
        })
    }

    /// Writes the tokens of an exchange, and poison where its sums will be.
    fn write(&self, pe: usize, exchange: u64) -> Result<(), Error> {
        let (case, count) = (&self.case, self.case.count(pe, exchange));
        for token in 0..count {
            let bytes = |range: std::ops::Range<usize>| range.map(|i| case.byte(pe, exchange, token, i)).collect();
            let (payload, scales) = (case.payload(), case.scales as usize);
            let (of_payload, of_scales): (Vec<u8>, Vec<u8>) = (bytes(0..payload), bytes(payload..payload + scales));
            self.payload.write(token * payload, &of_payload)?;
            self.scales.write(token * scales, &of_scales)?;
        }
        let choices = 0..count * case.top_k as usize;
        self.experts.write(0, &choices.clone().map(|i| case.expert(pe, exchange, i)).collect::<Vec<_>>())?;
        self.weights.write(0, &choices.map(|i| case.weight(pe, exchange, i)).collect::<Vec<_>>())?;
        Ok(self.sums.fill(POISON)?)
    }

    fn send<'m>(
        &self,
        stream: &Stream,
        batch: StreamBatch<'m, Idle>,
        count: usize,
        again: bool,
    ) -> Result<StreamBatch<'m, Dispatched>, LaunchError> {
        let (payload, scales) = (self.payload.view(), self.scales.view());
        if again {
            return batch.dispatch_again(stream, count, payload, scales);
        }
        let (experts, weights) = (self.experts.view(), self.weights.view());
        batch.dispatch_send(stream, &Tokens { count, payload, scales, experts, weights })
    }

    /// All steps behind the first one, with experts in between.
    fn answer<'m>(
        &self,
        world: &World,
        stream: &Stream,
        moe: &Moe,
        sent: StreamBatch<'m, Dispatched>,
    ) -> Result<StreamBatch<'m, Idle>, LaunchError> {
        let (rows, starts, answers) = (self.rows.view(), self.starts.view(), self.answers.view());
        let (scales, align) = (self.scales_of_rows.view(), kernels::ALIGN as u32);
        let received = sent.dispatch_recv(stream, RowsByExpert { payload: rows, scales, starts, align })?;
        let args = (moe.view(), self.case, rows, starts, answers, self.wrong.view());
        world.launch(stream, kernels::moe_experts, Grid::one(64), args)?;
        let combining = received.combine_send(stream, answers)?;
        let added = match self.case.added {
            kernels::ADD_NOTHING => Added::Nothing,
            kernels::ADD_BIAS => Added::Bias(self.more.view()),
            _ => Added::Residual(self.more.view()),
        };
        combining.combine_recv(stream, self.sums.view(), added)
    }

    /// Looks at the sums of an exchange, bit by bit.
    fn check(&self, world: &World, exchange: u64) -> Result<(), Error> {
        assert_eq!(self.wrong.to_vec()?, [0], "rows by expert do not begin where they should: {:?}", self.case);
        compare(world, &self.case, &self.sums, std::iter::once(exchange))
    }
}

/// Two micro-batches, of which both are sent before one is received.
fn two_calls(world: &mut World, case: Case) -> Result<(Moe, [Calls; 2]), Error> {
    let moe = world.moe(world.team(), config(&case, 4).micro_batches(2))?.named("moe");
    let other = Case { seed: case.seed + 1000, ..case };
    Ok((moe, [Calls::new(world, case)?, Calls::new(world, other)?]))
}

/// The host's calls, one behind the other, with any number of tokens.
fn in_calls(world: &mut World, case: Case) -> Result<(), Error> {
    let (stream, pe) = (world.stream()?, world.pe().index());
    let (moe, calls) = two_calls(world, case)?;
    let moe = moe.with_grid(Grid::new(2, 64));
    let [mut first, mut second] = [moe.idle(0)?, moe.idle(1)?];
    for exchange in 0..times(10).max(2) {
        let [one, other] = &calls;
        one.write(pe, exchange)?;
        other.write(pe, exchange)?;
        let send = |calls: &Calls, batch| {
            let (count, again) = (calls.case.count(pe, exchange), calls.case.keeps(pe, exchange));
            calls.send(&stream, batch, count, again)
        };
        let (sent, sent_too) = (send(one, first)?, send(other, second)?);
        first = one.answer(world, &stream, &moe, sent)?;
        second = other.answer(world, &stream, &moe, sent_too)?;
        world.synchronize(&stream)?;
        one.check(world, exchange)?;
        other.check(world, exchange)?;
    }
    Ok(())
}

/// The same calls, captured once and launched so often, with tokens that choose other experts each time.
pub fn moe_graphs(world: &mut World, case: Case, launches: u64) -> Result<(), Error> {
    let (stream, pe, count) = (world.stream()?, world.pe().index(), case.tokens as usize);
    let (moe, calls) = two_calls(world, case)?;
    let layer = world.capture(&stream, |stream| {
        let [one, other] = &calls;
        let sent = one.send(stream, moe.idle(0)?, count, false)?;
        let sent_too = other.send(stream, moe.idle(1)?, count, false)?;
        let _idle = one.answer(world, stream, &moe, sent)?;
        other.answer(world, stream, &moe, sent_too).map(drop)
    })?;
    for exchange in 0..launches {
        calls.iter().try_for_each(|calls| calls.write(pe, exchange))?;
        layer.launch(&stream)?;
        world.synchronize(&stream)?;
        calls.iter().try_for_each(|calls| calls.check(world, exchange))?;
    }
    Ok(())
}

/// What is wrong with one PE's tokens all PEs hear of, in that exchange; and the next one takes place.
fn refused(world: &mut World, usual: Case) -> Result<(), Error> {
    let wrong_pe = usual.pes - 1;
    for wrong in 1..=4 {
        // Exchanges 1 and 4 are refused.
        let case = Case { seed: 100 + u64::from(wrong), wrong_pe, wrong, delay: 20, ..usual };
        let setup = rounds_of(world, case, 5, &[Grid::new(2, 32)], config(&case, 2))?;
        let refusal = setup.moe.refusal(0)?.map(|refusal| (refusal.rank, refusal.why as u32));
        assert_eq!(refusal, Some((wrong_pe, wrong)), "{case:?}");
        let told: Vec<bool> = setup.told.to_vec()?.iter().map(|&word| word != 0).collect();
        assert_eq!(told, [false, true, false, false, true], "{case:?}");
    }
    Ok(())
}

/// Nothing is special about the numbers at which 32 bits begin again.
fn numbers_wrap(world: &mut World, usual: Case) -> Result<(), Error> {
    let case = Case { seed: 200, ..usual };
    let config = config(&case, 2).first_tag(u32::MAX - 3);
    rounds_of(world, case, 7, &[Grid::new(2, 32)], config).map(drop)
}
