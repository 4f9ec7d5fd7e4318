//! Tokens that travel to experts and back: what each carries, where it goes and what is answered are computed, on any PE and on the
//! host alike, from a seed and the number of the exchange.

use core::time::Duration;

use congruent_collectives::moe::{Added, Combining, Dispatched, Idle, MicroBatch, Moe, MoeView, Received, Row, Tokens};
use congruent_device::{Block, Ctx, Group, Number, Semaphore, Sym, bf16, kernel_arg, kernels};

kernel_arg! {
    /// What is exchanged.
    #[derive(Debug)]
    pub struct Case {
        /// What all of it is computed from.
        pub seed: u64,
        /// How many PEs.
        pub pes: u32,
        /// The most tokens of a PE.
        pub tokens: u32,
        /// Whether each PE has its own number of them in each exchange.
        pub ragged: u32,
        /// Experts.
        pub experts: u32,
        /// Experts of a token.
        pub top_k: u32,
        /// Numbers of a token, of two bytes.
        pub hidden: u32,
        /// Bytes of payload besides.
        pub extra: u32,
        /// Bytes of scales.
        pub scales: u32,
        /// How tokens choose: a `SKEW_`.
        pub skew: u32,
        /// The most microseconds that a PE idles before each step.
        pub delay: u32,
        /// Whose tokens are wrong in every third exchange.
        pub wrong_pe: u32,
        /// In what they are: 1 too many, 2 an expert that there is not, 3 an expert twice, 4 a weight; 0 for in nothing.
        pub wrong: u32,
        /// What is added: an `ADD_`.
        pub added: u32,
        /// Which exchanges keep the routes of the one before: a `KEEP_`, and whether these are sent [`ANEW`].
        pub keep: u32,
    }
}

/// Any experts, and one in eight choices is dropped.
pub const SKEW_NONE: u32 = 0;
/// All choose the same experts.
pub const SKEW_SAME: u32 = 1;
/// The first experts more often than others.
pub const SKEW_FIRST: u32 = 2;
/// As characters of a text, one behind the other, were routed by a router that was trained.
pub const SKEW_TRAINED: u32 = 3;

/// What the example `transformer` writes with `--pes 1 --tests 2 --routing FILE`: of each character the digits of at most four of eight
/// experts, and dashes where there are fewer.
static ROUTED: &[u8] = include_bytes!("moe/routed.txt");
/// Bytes of a line.
const LINE: usize = 5;

/// Nothing is added.
pub const ADD_NOTHING: u32 = 0;
/// A row, the same for all.
pub const ADD_BIAS: u32 = 1;
/// A row for each.
pub const ADD_RESIDUAL: u32 = 2;

/// None.
pub const KEEP_NOTHING: u32 = 0;
/// By chance, all PEs alike.
pub const KEEP_ALIKE: u32 = 1;
/// By chance, each PE for itself.
pub const KEEP_EACH: u32 = 2;
/// Routes that are kept are sent anew all the same.
pub const ANEW: u32 = 4;

/// Rows by expert begin at a multiple of so many.
pub const ALIGN: usize = 4;

/// Bits that look like chance (splitmix64).
#[inline(always)]
fn mix(seed: u64, a: u64, b: u64) -> u64 {
    let mut x = seed ^ a.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ b.wrapping_mul(0xd1b5_4a32_d192_ed03);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Case {
    #[inline(always)]
    fn of(&self, pe: usize, exchange: u64) -> u64 {
        mix(self.seed, pe as u64 + 1, exchange)
    }

    /// Bytes that payloads by expert take at most.
    pub fn by_expert(&self) -> usize {
        let most = self.experts.div_ceil(self.pes) as usize;
        most * ((self.pes * self.tokens) as usize).next_multiple_of(ALIGN) * self.payload()
    }

    /// Bytes of a payload.
    #[inline(always)]
    pub fn payload(&self) -> usize {
        (2 * self.hidden + self.extra) as usize
    }

    /// What is wrong with a PE's tokens.
    #[inline(always)]
    pub fn wrong_at(&self, pe: usize, exchange: u64) -> u32 {
        if pe == self.wrong_pe as usize && exchange % 3 == 1 { self.wrong } else { 0 }
    }

    /// Whether an exchange has the routes of the one before. Where tokens are wrong there are none to keep in two of three.
    #[inline(always)]
    pub fn keeps(&self, pe: usize, exchange: u64) -> bool {
        let by = match self.keep % ANEW {
            KEEP_NOTHING => return false,
            KEEP_ALIKE => 0,
            _ => pe as u64 + 1,
        };
        let may = exchange > 0 && (self.wrong == 0 || exchange.is_multiple_of(3));
        may && !mix(self.seed ^ 7, by, exchange).is_multiple_of(3)
    }

    /// The exchange that a PE has routed its tokens in.
    #[inline(always)]
    pub fn routed(&self, pe: usize, mut exchange: u64) -> u64 {
        while self.keeps(pe, exchange) {
            exchange -= 1;
        }
        exchange
    }

    /// How many tokens a PE has.
    #[inline(always)]
    pub fn count(&self, pe: usize, exchange: u64) -> usize {
        let exchange = self.routed(pe, exchange);
        match (self.wrong_at(pe, exchange), self.ragged) {
            (1, _) => self.tokens as usize + 1,
            // One at least of those that are wrong.
            (2.., _) | (_, 0) => self.tokens as usize,
            _ => (mix(self.of(pe, exchange), 1, 0) % (u64::from(self.tokens) + 1)) as usize,
        }
    }

    /// The expert of choice `i % top_k` of token `i / top_k`.
    #[inline(always)]
    pub fn expert(&self, pe: usize, exchange: u64, i: usize) -> i32 {
        let (token, k, exchange) = (i / self.top_k as usize, i % self.top_k as usize, self.routed(pe, exchange));
        match (self.wrong_at(pe, exchange), token + 1 == self.tokens as usize, k) {
            (2, true, 0) => return self.experts as i32,
            (3, true, _) => return 0,
            // The weight of a choice that is dropped would not be looked at.
            (4, true, _) => return k as i32,
            _ => {}
        }
        if self.skew == SKEW_TRAINED {
            return self.trained(self.of(pe, exchange) as usize % 1000 + token, k);
        }
        let chance = mix(self.of(pe, exchange), 2, token as u64);
        let first = match self.skew {
            SKEW_SAME => 0,
            SKEW_FIRST => (chance % u64::from(self.experts)).min((chance >> 16) % u64::from(self.experts)),
            _ => chance % u64::from(self.experts),
        };
        let dropped = self.skew == SKEW_NONE && (chance >> (32 + k % 8 * 3)) & 7 == 0;
        if dropped { -1 } else { ((first as u32 + k as u32) % self.experts) as i32 }
    }

    /// Choice `k` of a character. The eight experts are spread over those that there are; of fewer, the last ones are dropped.
    #[inline(always)]
    fn trained(&self, character: usize, k: usize) -> i32 {
        let byte = if k + 1 < LINE { ROUTED[character % (ROUTED.len() / LINE) * LINE + k] } else { b'-' };
        let expert = u32::from(byte.wrapping_sub(b'0')) * self.experts.max(8) / 8;
        if byte == b'-' || expert >= self.experts { -1 } else { expert as i32 }
    }

    /// The weight of the same choice.
    #[inline(always)]
    pub fn weight(&self, pe: usize, exchange: u64, i: usize) -> f32 {
        let exchange = self.routed(pe, exchange);
        if self.wrong_at(pe, exchange) == 4 && i + 1 == (self.tokens * self.top_k) as usize {
            return f32::NAN;
        }
        (mix(self.of(pe, exchange), 3, i as u64) % 1000) as f32 / 333.0
    }

    /// A byte of a token: behind the payload are the scales.
    #[inline(always)]
    pub fn byte(&self, pe: usize, exchange: u64, token: usize, i: usize) -> u8 {
        (mix(self.of(pe, exchange), 4 + token as u64, (i / 8) as u64) >> (8 * (i % 8))) as u8
    }

    /// What an expert answers to number `i` of a token.
    #[inline(always)]
    pub fn answer(&self, expert: i32, low: u8, high: u8) -> f32 {
        f32::from(u16::from_le_bytes([low, high])) / 4096.0 - expert as f32
    }

    /// Element `i` of what is added to token `token`.
    #[inline(always)]
    pub fn more(&self, token: usize, i: usize) -> f32 {
        (mix(self.seed, 5, (token * self.hidden as usize + i) as u64) % 1000) as f32 / 17.0
    }

    /// Which PE has an expert: those that are left over are on the first ones.
    #[inline(always)]
    pub fn owner(&self, expert: i32) -> usize {
        (0..self.pes)
            .find(|&pe| {
                let (each, over) = (self.experts / self.pes, self.experts % self.pes);
                (expert as u32) < (pe + 1) * each + over.min(pe + 1)
            })
            .unwrap_or(0) as usize
    }
}

impl Case {
    /// Whether a token has chosen an expert of a PE.
    #[inline(always)]
    pub fn goes_to(&self, pe: usize, exchange: u64, token: usize, to: usize) -> bool {
        let top_k = self.top_k as usize;
        (token * top_k..(token + 1) * top_k).any(|i| {
            let expert = self.expert(pe, exchange, i);
            expert >= 0 && self.owner(expert) == to
        })
    }
}

/// What all steps of a test have in common.
struct Run<'k> {
    block: &'k Block<'k>,
    ctx: &'k Ctx<'k>,
    case: Case,
    wrong: Sym<u64>,
}

impl Run<'_> {
    #[inline(always)]
    fn me(&self) -> usize {
        self.ctx.world().me().index()
    }

    /// Counts what is not as it should be.
    #[inline(always)]
    fn expect(&self, is: bool) {
        if !is {
            self.ctx.add(self.wrong.at(self.ctx.world().me()), 1);
        }
    }

    /// Idles for a while, each PE and each block for its own.
    #[inline(always)]
    fn idle(&self, never: Sym<Semaphore>, exchange: u64, step: u64) {
        if self.case.delay > 0 {
            let chance = mix(self.case.of(self.me(), exchange), 6 + step, self.block.index() as u64);
            let some = Duration::from_micros(chance % u64::from(self.case.delay));
            let _never = self.ctx.try_wait(self.block, never.elem(self.block.index()), 1, some);
        }
    }

    /// Writes the tokens of an exchange and sends them.
    #[inline(always)]
    fn send(&self, moe: &Moe<'_>, batch: MicroBatch<Idle>, exchange: u64, room: Sym<u8>) -> MicroBatch<Dispatched> {
        let Self { block, ctx, case, .. } = *self;
        let (me, count, payload, scales) =
            (self.me(), case.count(self.me(), exchange), case.payload(), case.scales as usize);
        let most = case.tokens as usize;
        let to_payload = room.slice(..most * payload);
        let to_scales = room.slice(most * payload..most * (payload + scales));
        let mut token = block.index();
        // A block writes what it sends. Who has too many tokens has room for as many as may be.
        while token < count.min(most) {
            for i in block.strided(payload + scales) {
                let byte = case.byte(me, exchange, token, i);
                match i.checked_sub(payload) {
                    None => ctx.store(to_payload, token * payload + i, byte),
                    Some(i) => ctx.store(to_scales, token * scales + i, byte),
                }
            }
            token += block.count();
        }
        block.sync();
        if case.keep < ANEW && case.keeps(me, exchange) {
            return moe.dispatch_again(batch, count, to_payload, to_scales);
        }
        let tokens = Tokens {
            count,
            payload: to_payload,
            scales: to_scales,
            experts: |i| case.expert(me, exchange, i),
            weights: |i| case.weight(me, exchange, i),
        };
        moe.dispatch_send(batch, &tokens)
    }

    /// Looks at every row that has come: all of them, each in its place, byte for byte.
    #[inline(always)]
    fn look(&self, moe: &Moe<'_>, batch: &MicroBatch<Received>, exchange: u64) {
        let Self { block, ctx, case, .. } = *self;
        let (me, payload, top_k) = (self.me(), case.payload(), case.top_k as usize);
        for source in 0..case.pes as usize {
            let mut slot = 0;
            for token in 0..case.count(source, exchange) {
                if !case.goes_to(source, exchange, token, me) {
                    continue;
                }
                if slot % block.count() == block.index() {
                    let row = moe.row(batch, source, slot);
                    if block.leader() {
                        self.expect(moe.token(&row) == token && row.source() == source && row.slot() == slot);
                    }
                    for i in block.strided(payload + case.scales as usize) {
                        let byte = match i.checked_sub(payload) {
                            None => ctx.load(row.payload(), i),
                            Some(i) => ctx.load(row.scales(), i),
                        };
                        self.expect(byte == case.byte(source, exchange, token, i));
                    }
                    for k in block.strided(top_k) {
                        let i = token * top_k + k;
                        self.expect(moe.expert(&row, k) == case.expert(source, exchange, i));
                        self.expect(moe.weight(&row, k).to_bits() == case.weight(source, exchange, i).to_bits());
                    }
                }
                slot += 1;
            }
            self.expect(moe.count(batch, source) == slot);
        }
        let experts = moe.experts();
        let mut expert = block.index() * block.size() + block.rank();
        while expert < experts.len() {
            self.look_at_list(moe, batch, exchange, expert, (experts.start + expert) as i32);
            expert += block.count() * block.size();
        }
    }

    /// Looks at the rows that an expert has: `own`, of this PE's.
    #[inline(always)]
    fn look_at_list(&self, moe: &Moe<'_>, batch: &MicroBatch<Received>, exchange: u64, own: usize, expert: i32) {
        let (case, top_k) = (self.case, self.case.top_k as usize);
        let mut listed = 0;
        for source in 0..case.pes as usize {
            for token in 0..case.count(source, exchange) {
                if (token * top_k..(token + 1) * top_k).any(|i| case.expert(source, exchange, i) == expert) {
                    if listed < moe.count_of(batch, own) {
                        let row = moe.row_of(batch, own, listed);
                        let k = (0..top_k).find(|&k| moe.expert(&row, k) == expert).unwrap_or(0);
                        self.expect(row.source() == source && moe.token(&row) == token && moe.place(&row, k) == listed);
                    }
                    listed += 1;
                }
            }
        }
        self.expect(moe.count_of(batch, own) == listed);
    }

    /// Answers what has come.
    #[inline(always)]
    fn answer<T: Number<Acc = f32>>(&self, moe: &Moe<'_>, batch: MicroBatch<Received>) -> MicroBatch<Combining> {
        self.answer_to::<T>(moe, batch, |row, _k| row.payload())
    }

    /// The same to payloads that lie elsewhere.
    #[inline(always)]
    fn answer_to<T: Number<Acc = f32>>(
        &self,
        moe: &Moe<'_>,
        batch: MicroBatch<Received>,
        payload: impl Fn(&Row, usize) -> Sym<u8>,
    ) -> MicroBatch<Combining> {
        let (ctx, case) = (self.ctx, self.case);
        moe.combine_send::<T, _>(batch, |row, k| {
            let (bytes, expert) = (payload(row, k), moe.expert(row, k));
            move |i| case.answer(expert, ctx.load(bytes, 2 * i), ctx.load(bytes, 2 * i + 1))
        })
    }

    /// Copies what has come by expert, and looks at the rows that are left over. Each expert's begin at a multiple of [`ALIGN`].
    #[inline(always)]
    fn by_expert(&self, moe: &Moe<'_>, batch: &MicroBatch<Received>, major: Sym<u8>) {
        let (block, payload) = (self.block, self.case.payload());
        let needed = moe.start_of(batch, moe.experts().len(), ALIGN);
        self.expect(
            moe.by_expert(batch, major.slice(..(needed * payload).saturating_sub(1)), ALIGN).is_err() || needed == 0,
        );
        self.expect(moe.by_expert(batch, major, ALIGN) == Ok(needed));
        for expert in 0..moe.experts().len() {
            let (start, end) = (moe.start_of(batch, expert, ALIGN), moe.start_of(batch, expert + 1, ALIGN));
            self.expect(start % ALIGN == 0);
            // Each block looks at what it has copied itself.
            for row in start + moe.count_of(batch, expert)..end {
                if row % block.count() == block.index() {
                    for i in block.strided(payload) {
                        self.expect(self.ctx.load(major, row * payload + i) == 0);
                    }
                }
            }
        }
    }

    /// What is added to sums.
    #[inline(always)]
    fn added<T: Number>(&self, more: Sym<T>) -> Added<T> {
        match self.case.added {
            ADD_NOTHING => Added::Nothing,
            ADD_BIAS => Added::Bias(more.slice(..self.case.hidden as usize)),
            _ => Added::Residual(more),
        }
    }

    /// One exchange, from its first step to its last; `look`s at what comes where that is asked for. Where tokens are wrong, the refusal
    /// goes to `told`.
    #[inline(always)]
    #[allow(clippy::too_many_arguments, reason = "a test's kernel has as many")]
    fn exchange(
        &self,
        moe: &Moe<'_>,
        batch: MicroBatch<Idle>,
        exchange: u64,
        room: Sym<u8>,
        sums: Sym<bf16>,
        more: Sym<bf16>,
        told: Sym<u64>,
        never: Sym<Semaphore>,
    ) -> MicroBatch<Idle> {
        self.idle(never, exchange, 0);
        let sent = self.send(moe, batch, exchange, room);
        self.idle(never, exchange, 1);
        match moe.dispatch_recv(sent) {
            Ok(received) => {
                self.look(moe, &received, exchange);
                self.idle(never, exchange, 2);
                let combining = self.answer::<bf16>(moe, received);
                self.idle(never, exchange, 3);
                moe.combine_recv(combining, sums, self.added(more))
            }
            Err(refused) => {
                if self.block.index() == 0 && self.block.leader() {
                    self.ctx.store(told, 0, refused.refusal.to_word());
                }
                refused.batch
            }
        }
    }
}

kernels! {
    /// So many exchanges from `first` on, one after the other. `sums` and `told` have a part for each; `room` is for one.
    pub fn moe_rounds(
        block, ctx, moe: MoeView, case: Case, first: u64, rounds: u64, room: Sym<u8>, sums: Sym<bf16>, more: Sym<bf16>,
        told: Sym<u64>, wrong: Sym<u64>, never: Sym<Semaphore>,
    ) {
        let run = Run { block, ctx, case, wrong };
        let moe = moe.enter(block, ctx);
        let mut batch = moe.idle(0);
        for round in 0..rounds as usize {
            let sums = sums.chunk(round, rounds as usize);
            batch = run.exchange(&moe, batch, first + round as u64, room, sums, more, told.elem(round), never);
        }
    }

    /// Two micro-batches in flight, of one exchange or of two. Odd PEs receive the second one first.
    pub fn moe_interleaved(
        block, ctx, one: MoeView, other: MoeView, index: u32, case: Case, rounds: u64, room: Sym<u8>, sums: Sym<bf16>,
        more: Sym<bf16>, wrong: Sym<u64>, never: Sym<Semaphore>,
    ) {
        let run = Run { block, ctx, case, wrong };
        let (one, other) = (one.enter(block, ctx), other.enter(block, ctx));
        let (mut a, mut b) = (one.idle(0), other.idle(index as usize));
        let parts = 2 * rounds as usize;
        for round in 0..rounds {
            let (x, y) = (2 * round, 2 * round + 1);
            let first = run.send(&one, a, x, room.chunk(0, 2));
            run.idle(never, x, 0);
            let second = run.send(&other, b, y, room.chunk(1, 2));
            let (first, second) = if run.me().is_multiple_of(2) {
                let first = one.dispatch_recv(first);
                run.idle(never, x, 1);
                (first, other.dispatch_recv(second))
            } else {
                let second = other.dispatch_recv(second);
                run.idle(never, y, 1);
                (one.dispatch_recv(first), second)
            };
            let (Ok(first), Ok(second)) = (first, second) else {
                return run.expect(false);
            };
            run.look(&one, &first, x);
            let first = run.answer::<bf16>(&one, first);
            run.look(&other, &second, y);
            let second = run.answer::<bf16>(&other, second);
            b = other.combine_recv(second, sums.chunk(y as usize, parts), run.added(more));
            run.idle(never, x, 2);
            a = one.combine_recv(first, sums.chunk(x as usize, parts), run.added(more));
        }
    }

    /// The first step, as a launch of its own.
    pub fn moe_send(block, ctx, moe: MoeView, case: Case, exchange: u64, room: Sym<u8>, wrong: Sym<u64>) {
        let moe = moe.enter(block, ctx);
        let _sent = Run { block, ctx, case, wrong }.send(&moe, moe.idle(0), exchange, room);
    }

    /// Two micro-batches of one that is idle, which is a mistake.
    pub fn moe_send_two(block, ctx, moe: MoeView, case: Case, exchange: u64, room: Sym<u8>, wrong: Sym<u64>) {
        let moe = moe.enter(block, ctx);
        let run = Run { block, ctx, case, wrong };
        let (one, same) = (moe.idle(0), moe.idle(0));
        let _sent = run.send(&moe, one, exchange, room);
        let _again = run.send(&moe, same, exchange, room);
    }

    /// A micro-batch of another exchange, which is a mistake.
    pub fn moe_send_of_other(block, ctx, moe: MoeView, other: MoeView, case: Case, room: Sym<u8>, wrong: Sym<u64>) {
        let moe = moe.enter(block, ctx);
        let _sent = Run { block, ctx, case, wrong }.send(&moe, other.enter(block, ctx).idle(0), 0, room);
    }

    /// The second.
    pub fn moe_receive(block, ctx, moe: MoeView, case: Case, exchange: u64, major: Sym<u8>, wrong: Sym<u64>) {
        let moe = moe.enter(block, ctx);
        let run = Run { block, ctx, case, wrong };
        let Ok(sent) = moe.resume(0) else { return run.expect(false) };
        // What is refused, the next steps are told.
        if let Ok(received) = moe.dispatch_recv(sent) {
            run.look(&moe, &received, exchange);
            run.by_expert(&moe, &received, major);
        }
    }

    /// The third, to tokens by expert.
    pub fn moe_answer(block, ctx, moe: MoeView, case: Case, major: Sym<u8>, wrong: Sym<u64>) {
        let moe = moe.enter(block, ctx);
        if let Ok(received) = moe.resume(0) {
            let payload = case.payload();
            let _answered = Run { block, ctx, case, wrong }.answer_to::<f32>(&moe, received, |row, k| {
                let row = moe.row_by_expert(row, k, ALIGN);
                major.slice(row * payload..(row + 1) * payload)
            });
        }
    }

    /// Between calls of the host: answers to tokens by expert.
    pub fn moe_experts(
        block, ctx, moe: MoeView, case: Case, major: Sym<u8>, starts: Sym<u32>, answers: Sym<f32>, wrong: Sym<u64>,
    ) {
        let (payload, hidden) = (case.payload(), case.hidden as usize);
        let (run, experts) = (Run { block, ctx, case, wrong }, moe.enter(block, ctx).experts());
        for expert in 0..experts.len() {
            let (start, end) = (ctx.load(starts, expert) as usize, ctx.load(starts, expert + 1) as usize);
            run.expect(start % ALIGN == 0 && start <= end);
            for i in block.strided((end - start) * hidden) {
                let (row, i) = (start + i / hidden, i % hidden);
                let [low, high] = [0, 1].map(|byte| ctx.load(major, row * payload + 2 * i + byte));
                ctx.store(answers, row * hidden + i, case.answer((experts.start + expert) as i32, low, high));
            }
        }
    }

    /// The last.
    pub fn moe_sum(block, ctx, moe: MoeView, case: Case, sums: Sym<f32>, more: Sym<f32>, wrong: Sym<u64>) {
        let moe = moe.enter(block, ctx);
        let added = Run { block, ctx, case, wrong }.added(more);
        if let Ok(combining) = moe.resume(0) {
            let _idle = moe.combine_recv(combining, sums, added);
        }
    }
}
