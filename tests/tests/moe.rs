//! Exchanges of tokens beyond the conformance suite: shapes by chance, what is refused, and PEs that do not come.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::time::Duration;

use congruent::collectives::moe::{Added, MoeConfig, MoeConfigError, Refusal, Tokens, Wrong};
use congruent::device::abi::FaultKind;
use congruent::device::{Sym, World as All};
use congruent::{
    Builder, CollectiveError, Error, Grid, LaunchError, Moe, MoeError, RowsByExpert, Stream, SymVec, Team, World,
    WorldFailure,
};
use congruent_test_kernels::moe::{self as kernels, Case};
use congruent_tests::conformance::{moe_exchanges, moe_gradients, moe_graphs, moe_rounds};
use proptest::prelude::*;

fn builder() -> Builder {
    World::builder().heap(32 << 20).deadline(Duration::from_secs(20))
}

fn case(pes: usize) -> Case {
    Case {
        seed: 1,
        pes: pes as u32,
        tokens: 6,
        ragged: 0,
        experts: 8,
        top_k: 3,
        hidden: 4,
        extra: 0,
        scales: 0,
        skew: kernels::SKEW_NONE,
        delay: 0,
        wrong_pe: 0,
        wrong: 0,
        added: kernels::ADD_NOTHING,
        keep: kernels::KEEP_NOTHING,
    }
}

fn config(case: &Case) -> MoeConfig {
    let config = MoeConfig::new(case.tokens, case.experts, case.top_k);
    config.payload(case.payload() as u32).scales(case.scales).output(2 * case.hidden)
}

/// Any shape of tokens, experts and launches that is allowed.
fn cases() -> impl Strategy<Value = (Case, u32, u64, Vec<Grid>)> {
    let shape = (1u32..=4, 1u32..40, 0u32..2, 1u32..12, 1u32..9, 1u32..10, 0u32..9, 0u32..20);
    let width = prop_oneof![Just(1u32), Just(4), Just(32)];
    let manner = (any::<u64>(), 0u32..4, 0u32..60, 0u32..3, width, 1u64..5, 0u32..3);
    let grids = proptest::collection::vec((1u32..=4, 1u32..=80), 1..3);
    (shape, manner, grids).prop_map(|(shape, manner, grids)| {
        let (pes, tokens, ragged, experts, top_k, quarter, extra, scales) = shape;
        let (seed, skew, delay, added, width, rounds, keep) = manner;
        let (top_k, hidden) = (top_k.min(experts), 4 * quarter);
        let case = Case {
            seed,
            pes,
            tokens,
            ragged,
            experts,
            top_k,
            hidden,
            extra,
            scales,
            skew,
            delay,
            wrong_pe: 0,
            wrong: 0,
            added,
            keep,
        };
        (case, width, rounds, grids.into_iter().map(|(blocks, threads)| Grid::new(blocks, threads)).collect())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// What is sent is received, byte for byte and where it must be, and summed bit for bit: whatever the shape, the pace and the launch.
    #[test]
    fn tokens_come_back_summed((case, width, rounds, grids) in cases(), proxied: bool) {
        let world = builder().width(width).proxied(proxied);
        let ends = world.local(case.pes as usize, |world| moe_rounds(world, case, rounds, &grids));
        prop_assert!(ends.is_ok(), "{:?}", ends.err());
    }

    /// What is sent by kept routes lies in memory in the bytes, all of them, that routing anew would have left there.
    #[test]
    fn kept_routes_give_the_same_bytes((case, width, rounds, grids) in cases(), keep in 1u32..3, proxied: bool) {
        let exchanges = |keep| {
            let case = Case { keep, ..case };
            let world = builder().width(width).proxied(proxied);
            world.local(case.pes as usize, |world| moe_exchanges(world, case, rounds, &grids))
        };
        let (kept, anew) = (exchanges(keep), exchanges(keep | kernels::ANEW));
        prop_assert!(kept.is_ok() && anew.is_ok(), "{:?} {:?}", kept.err(), anew.err());
        prop_assert!(kept.ok() == anew.ok(), "{:?}", case);
    }

    /// Gradients by kept routes are those that one PE computes alone.
    #[test]
    fn gradients_are_what_one_pe_computes(
        seed in 0u64..1000, pes in 1usize..=4, experts in 3usize..9, forward in 1u32..=4,
        backward in proptest::collection::vec((1u32..=4, 1u32..=64), 1..3),
        width in prop_oneof![Just(1u32), Just(32)], proxied: bool,
    ) {
        let grids: Vec<Grid> = backward.into_iter().map(|(blocks, threads)| Grid::new(blocks, threads)).collect();
        let world = builder().width(width).proxied(proxied);
        let ends = world.local(pes, |world| moe_gradients(world, seed, experts, Grid::new(forward, 32), &grids));
        prop_assert!(ends.is_ok(), "{:?}", ends.err());
    }
}

/// A graph is captured once, and tokens choose other experts at each launch.
#[test]
fn a_graph_is_launched_a_thousand_times() {
    builder().local(2, |world| moe_graphs(world, Case { scales: 4, ..case(2) }, 1000)).unwrap();
}

#[test]
fn a_configuration_that_differs_is_told_to_all() {
    let told = builder()
        .local(3, |world| {
            let tokens = if world.pe().index() == 2 { 7 } else { 6 };
            let config = MoeConfig::new(tokens, 8, 2).payload(16).output(8);
            Ok::<_, Error>(world.moe(world.team(), config).err())
        })
        .unwrap();
    for told in told {
        let Some(MoeError::Collective(CollectiveError::Mismatch { mine, theirs, .. })) = &told else {
            panic!("{told:?}");
        };
        assert!([mine, theirs].iter().all(|text| text.contains("MoeConfig { tokens: ")), "{mine}, {theirs}");
    }
}

#[test]
fn a_configuration_that_cannot_be_is_told_to_all() {
    let told = builder()
        .local(2, |world| {
            let used = world.heap_stats();
            let told = world.moe(world.team(), MoeConfig::new(8, 4, 5).payload(16).output(8)).err();
            assert_eq!(world.heap_stats(), used);
            Ok::<_, Error>(told)
        })
        .unwrap();
    let expected = MoeConfigError::TopK { asked: 5, most: 4 };
    assert!(told.iter().all(|told| matches!(told, Some(MoeError::Config(wrong)) if *wrong == expected)), "{told:?}");
    assert_eq!(expected.to_string(), "a token cannot have 5 experts; give 1 to 4");
}

/// A PE with too many tokens stores nothing on any other.
#[test]
fn what_is_refused_is_not_stored() {
    builder()
        .local(3, |world| {
            // In exchange 1.
            let case = Case { wrong_pe: 1, wrong: 1, ..case(3) };
            let (moe, stream) = (world.moe(world.team(), config(&case))?, world.stream()?);
            let region = moe.view().dispatch_region(0);
            let (mut bytes, each) = (world.buffer::<u8>(region.len())?, region.len() / 3);
            let room = world.alloc::<u8>(case.tokens as usize * case.payload())?;
            let (sums, wrong, told) = (world.alloc(room.len())?, world.alloc(1)?, world.alloc(1)?);
            bytes.fill(0x5a)?;
            world.copy(&stream, region, &bytes)?;
            world.synchronize(&stream)?;
            // Nobody has sent yet.
            world.barrier()?;
            let (more, never) = (Sym::empty(), world.alloc(4)?);
            let args =
                (moe.view(), case, 1, 1, room.view(), sums.view(), more, told.view(), wrong.view(), never.view());
            world.run(&stream, kernels::moe_rounds, Grid::new(2, 32), args)?;
            world.copy(&stream, &mut bytes, region)?;
            let found = bytes.to_vec()?;
            let sent: Vec<bool> = found.chunks(each).map(|part| part.iter().any(|&byte| byte != 0x5a)).collect();
            assert_eq!(sent, [true, false, true]);
            let refusal = moe.refusal(0)?.map(|refusal| refusal.to_string());
            let text = "the member of rank 1 gave more tokens than the exchange was made for; no tokens were exchanged";
            assert_eq!(refusal.as_deref(), Some(text));
            assert!(moe.refusal(1).is_err(), "there is no second micro-batch");
            Ok::<_, Error>(())
        })
        .unwrap();
}

/// What a kernel says that made this mistake, on the first PE that tells.
fn told(mistake: impl Fn(&mut World, &Stream, Case) -> Result<(), Error> + Sync) -> String {
    let ends = builder().local(2, |world| {
        let stream = world.stream()?;
        Ok::<_, Error>(
            mistake(world, &stream, case(2)).err().or_else(|| world.synchronize(&stream).err().map(Error::from)),
        )
    });
    let ends = ends.unwrap();
    let panicked = ends.iter().flatten().find_map(|end| match end.world_failure() {
        Some(WorldFailure::KernelPanicked { message, .. }) => Some(message.to_owned()),
        _ => None,
    });
    panicked.unwrap_or_else(|| panic!("{ends:?}"))
}

#[test]
fn a_micro_batch_is_not_sent_twice() {
    let message = told(|world, stream, case| {
        let moe = world.moe(world.team(), config(&case))?;
        let room = world.alloc::<u8>(case.tokens as usize * case.payload())?;
        let wrong = world.alloc(1)?;
        let args = (moe.view(), case, 0, room.view(), wrong.view());
        world.run(stream, kernels::moe_send, Grid::one(32), args)?;
        world.barrier()?;
        Ok(world.run(stream, kernels::moe_send, Grid::one(32), args)?)
    });
    assert!(message.contains("a micro-batch is at another step"), "{message}");
}

#[test]
fn a_micro_batch_that_is_taken_up_twice_is_refused() {
    let message = told(|world, stream, case| {
        let moe = world.moe(world.team(), config(&case))?;
        let room = world.alloc::<u8>(case.tokens as usize * case.payload())?;
        let wrong = world.alloc(1)?;
        let args = (moe.view(), case, 0, room.view(), wrong.view());
        Ok(world.run(stream, kernels::moe_send_two, Grid::new(2, 32), args)?)
    });
    assert!(message.contains("goes through each step once"), "{message}");
}

#[test]
fn a_micro_batch_of_another_exchange_is_refused() {
    let message = told(|world, stream, case| {
        let moe = world.moe(world.team(), config(&case))?;
        let other = world.moe(world.team(), config(&case))?;
        let room = world.alloc::<u8>(case.tokens as usize * case.payload())?;
        let wrong = world.alloc(1)?;
        let args = (moe.view(), other.view(), case, room.view(), wrong.view());
        Ok(world.run(stream, kernels::moe_send_of_other, Grid::new(2, 32), args)?)
    });
    assert!(message.contains("is of another exchange"), "{message}");
}

/// Who does not come is named by who waits, in each half of an exchange, before the others' patience ends.
#[test]
fn a_pe_that_does_not_come_is_named() {
    for (width, sends) in [(1, false), (32, false), (1, true)] {
        let deadline = Duration::from_millis(200);
        let ends = builder()
            .width(width)
            .deadline(deadline)
            .local(3, |world| {
                let case = case(3);
                let (moe, stream) = (world.moe(world.team(), config(&case))?.named("layer"), world.stream()?);
                let room = world.alloc::<u8>(case.tokens as usize * case.payload())?;
                let (wrong, sums, grid) = (world.alloc(1)?, world.alloc::<f32>(room.len())?, Grid::new(2, 32));
                let major = world.alloc::<u8>(case.by_expert())?;
                let absent = world.pe().index() == 1;
                let view = moe.view();
                world.barrier()?;
                if sends || !absent {
                    let _sent =
                        world.launch(&stream, kernels::moe_send, grid, (view, case, 0, room.view(), wrong.view()));
                    let _received =
                        world.launch(&stream, kernels::moe_receive, grid, (view, case, 0, major.view(), wrong.view()));
                }
                if !absent {
                    let _answered =
                        world.launch(&stream, kernels::moe_answer, grid, (view, case, major.view(), wrong.view()));
                    let args = (view, case, sums.view(), Sym::empty(), wrong.view());
                    let _summed = world.launch(&stream, kernels::moe_sum, grid, args);
                } else {
                    while world.check().is_ok() {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                }
                Ok::<_, Error>(world.synchronize(&stream).err())
            })
            .unwrap();
        let fault = ends.iter().flatten().find_map(|end| match end {
            WorldFailure::Fault(fault) => Some(fault),
            _ => None,
        });
        let fault = fault.unwrap_or_else(|| panic!("{ends:?}"));
        assert_eq!((fault.kind, fault.peer, fault.expected), (FaultKind::Timeout, Some(1), 1), "{fault}");
        assert!(fault.object.as_ref().is_some_and(|object| object.contains("`layer`")), "{fault}");
        let kernel = if sends { "moe_sum" } else { "moe_receive" };
        assert_eq!(fault.kernel, Some(kernel), "{fault}");
        assert!(ends.iter().all(Option::is_some), "{ends:?}");
    }
}

/// Memory for calls of the host, to experts that answer with what they are given.
struct Calls {
    config: MoeConfig,
    x: SymVec<f32>,
    experts: SymVec<i32>,
    weights: SymVec<f32>,
    rows: SymVec<f32>,
    starts: SymVec<u32>,
    y: SymVec<f32>,
}

/// Numbers of a token, tokens, experts and choices.
const HIDDEN: usize = 2;
const TOKENS: usize = 3;
const EXPERTS: usize = 5;
const TOP_K: usize = 2;

impl Calls {
    /// For a team of so many; with room for a token too many.
    fn new(world: &mut World, members: usize) -> Result<Self, Error> {
        let config = MoeConfig::new(TOKENS as u32, EXPERTS as u32, TOP_K as u32).payload(8).output(8);
        let rows = config.most_rows(members as u32, 1) as usize;
        let me = world.pe().index();
        let calls = Self {
            config,
            x: world.alloc((TOKENS + 1) * HIDDEN)?,
            experts: world.alloc((TOKENS + 1) * TOP_K)?,
            weights: world.alloc((TOKENS + 1) * TOP_K)?,
            rows: world.alloc(rows * HIDDEN)?,
            starts: world.alloc(EXPERTS + 1)?,
            y: world.alloc((TOKENS + 1) * HIDDEN)?,
        };
        calls.x.write(0, &(0..(TOKENS + 1) * HIDDEN).map(|i| (100 * me + i) as f32).collect::<Vec<_>>())?;
        calls.weights.fill(0.5)?;
        calls.route([[0, 1], [4, -1], [2, 3], [1, 4]])?;
        Ok(calls)
    }

    fn route(&self, experts: [[i32; TOP_K]; TOKENS + 1]) -> Result<(), Error> {
        Ok(self.experts.write(0, &experts.concat())?)
    }

    fn tokens(&self, count: usize) -> Tokens<Sym<i32>, Sym<f32>> {
        let (experts, weights) = (self.experts.view(), self.weights.view());
        Tokens { count, payload: self.x.view().cast(), scales: Sym::empty(), experts, weights }
    }

    fn by_expert(&self) -> RowsByExpert {
        RowsByExpert { payload: self.rows.view().cast(), scales: Sym::empty(), starts: self.starts.view(), align: 1 }
    }

    /// All four calls.
    fn exchange(&self, moe: &Moe, stream: &Stream, count: usize) -> Result<(), LaunchError> {
        let received =
            moe.idle(0)?.dispatch_send(stream, &self.tokens(count))?.dispatch_recv(stream, self.by_expert())?;
        received.combine_send(stream, self.rows.view())?.combine_recv(stream, self.y.view(), Added::Nothing).map(drop)
    }

    fn sums(&self) -> Result<Vec<f32>, Error> {
        let mut sums = self.y.to_vec()?;
        sums.truncate(TOKENS * HIDDEN);
        Ok(sums)
    }

    /// What comes of the tokens that [`new`](Self::new) routes: the second one's other choice is dropped.
    fn expected(&self) -> Result<Vec<f32>, Error> {
        let x = self.x.to_vec()?;
        Ok((0..TOKENS * HIDDEN).map(|i| if i / HIDDEN == 1 { 0.5 * x[i] } else { x[i] }).collect())
    }
}

/// Members of several teams exchange among themselves.
#[test]
fn calls_are_of_a_team() {
    builder()
        .local(4, |world| {
            let team: Team<All> = world.split(Some(world.pe().raw() % 2), 0)?.unwrap();
            let calls = Calls::new(world, 2)?;
            let (moe, stream) = (world.moe(team.view(), calls.config)?, world.stream()?);
            // Every member's tokens go to the same experts: the first three are the first member's.
            for _ in 0..3 {
                calls.y.fill(-1.0)?;
                calls.exchange(&moe, &stream, TOKENS)?;
                world.synchronize(&stream)?;
                assert_eq!(calls.sums()?, calls.expected()?);
                let starts = if team.view().me() == 0 { [0, 2, 4, 6] } else { [0, 2, 4, 0] };
                assert_eq!(calls.starts.to_vec()?[..4], starts);
            }
            Ok::<_, Error>(())
        })
        .unwrap();
}

/// What is wrong with one PE's tokens every PE is told, nothing is summed, there are no rows, and the next exchange takes place: with calls
/// and in a graph.
#[test]
fn calls_are_refused_on_all_pes_alike() {
    let good = [[0, 1], [4, -1], [2, 3], [1, 4]];
    let wrongs = [
        (TOKENS + 1, good, Wrong::TooManyTokens),
        (TOKENS, [[0, 5], [4, -1], [2, 3], [1, 4]], Wrong::NoSuchExpert),
        (TOKENS, [[0, -2], [4, -1], [2, 3], [1, 4]], Wrong::NoSuchExpert),
        (TOKENS, [[0, 1], [3, 3], [2, 3], [1, 4]], Wrong::SameExpert),
    ];
    builder()
        .local(3, |world| {
            let (me, calls) = (world.pe().index(), Calls::new(world, 3)?);
            let (moe, stream) = (world.moe(world.team(), calls.config)?, world.stream()?);
            for (count, experts, why) in wrongs {
                let count = if me == 1 { count } else { TOKENS };
                let layer = world.capture(&stream, |stream| calls.exchange(&moe, stream, count))?;
                for captured in [false, true] {
                    calls.route(if me == 1 { experts } else { good })?;
                    calls.y.fill(-1.0)?;
                    calls.starts.fill(9)?;
                    if captured {
                        layer.launch(&stream)?
                    } else {
                        calls.exchange(&moe, &stream, count)?
                    }
                    world.synchronize(&stream)?;
                    assert_eq!(moe.refusal(0)?, Some(Refusal { rank: 1, why }));
                    assert_eq!(calls.sums()?, [-1.0; TOKENS * HIDDEN]);
                    assert_eq!(calls.starts.to_vec()?[0], 0);
                    assert_eq!(calls.starts.to_vec()?[calls.config.experts_of(me as u32, 3).len()], 0);
                    calls.route(good)?;
                    calls.exchange(&moe, &stream, TOKENS)?;
                    world.synchronize(&stream)?;
                    assert_eq!((moe.refusal(0)?, calls.sums()?), (None, calls.expected()?));
                }
            }
            Ok::<_, Error>(())
        })
        .unwrap();
}

/// Payloads go by the routes of the exchange before, with weights and without; what has no routes to go by all PEs are told, and nothing is
/// summed.
#[test]
fn calls_send_again() {
    builder()
        .local(3, |world| {
            let (me, calls) = (world.pe().index(), Calls::new(world, 3)?);
            let (moe, stream) = (world.moe(world.team(), calls.config)?, world.stream()?);
            let again = |count: usize, weighted: bool| {
                let sent = moe.idle(0)?.dispatch_again(&stream, count, calls.x.view().cast(), Sym::empty())?;
                let (received, rows) = (sent.dispatch_recv(&stream, calls.by_expert())?, calls.rows.view());
                let combining = match weighted {
                    true => received.combine_send(&stream, rows)?,
                    false => received.combine_send_unweighted(&stream, rows)?,
                };
                let _idle = combining.combine_recv(&stream, calls.y.view(), Added::Nothing)?;
                world.synchronize(&stream)?;
                Ok::<_, Error>(moe.refusal(0)?)
            };
            let refused = |rank| Some(Refusal { rank, why: Wrong::NoRoutes });
            calls.y.fill(-1.0)?;
            assert_eq!(again(TOKENS, true)?, refused(0), "nothing was sent yet");
            assert_eq!(again(TOKENS, true)?, refused(0), "what was sent last was refused");
            assert_eq!(calls.sums()?, [-1.0; TOKENS * HIDDEN]);
            calls.exchange(&moe, &stream, TOKENS)?;
            for exchange in 0..3 {
                let x: Vec<f32> = (0..(TOKENS + 1) * HIDDEN).map(|i| (50 * me + 7 * i + exchange) as f32).collect();
                calls.x.write(0, &x)?;
                assert_eq!(again(TOKENS, true)?, None);
                assert_eq!(calls.sums()?, calls.expected()?);
                assert_eq!(again(TOKENS, false)?, None);
                let twice: Vec<f32> = calls.expected()?.iter().map(|sum| 2.0 * sum).collect();
                assert_eq!(calls.sums()?, twice);
            }
            let count = if me == 2 { TOKENS - 1 } else { TOKENS };
            assert_eq!(again(count, true)?, refused(2), "of another number of tokens");
            let text = "the member of rank 2 gave tokens to be sent again where no routes of so many are kept; no tokens were exchanged";
            assert_eq!(refused(2).map(|refusal| refusal.to_string()).as_deref(), Some(text));
            assert_eq!(again(TOKENS, true)?, refused(0));
            // Routes of an exchange that was refused are not there, on no PE.
            calls.exchange(&moe, &stream, if me == 1 { TOKENS + 1 } else { TOKENS })?;
            assert_eq!(again(TOKENS, true)?, refused(0));
            calls.exchange(&moe, &stream, TOKENS)?;
            assert_eq!(again(TOKENS, true)?, None);
            assert_eq!(calls.sums()?, calls.expected()?);
            Ok::<_, Error>(())
        })
        .unwrap();
}

/// Rows of an exchange may be smaller than it was made for, each time others.
#[test]
fn calls_have_rows_of_other_sizes() {
    builder()
        .local(3, |world| {
            let calls = Calls::new(world, 3)?;
            let (moe, stream) =
                (world.moe(world.team(), calls.config.payload(20).scales(4).output(24))?, world.stream()?);
            let most = [20, 4, 24];
            for asked in [[21, 0, 8], [8, 5, 8], [8, 0, 32], [0, 0, 8], [8, 0, 0], [8, 0, 12]] {
                let told = moe.idle(0)?.with_rows(asked[0], asked[1], asked[2]).err();
                let expected = LaunchError::RowsOfExchange { asked, most };
                assert_eq!(told.map(|told| told.to_string()), Some(expected.to_string()));
            }
            let (x, experts, weights) = (calls.x.view().cast(), calls.experts.view(), calls.weights.view());
            let tokens = Tokens { count: TOKENS, payload: x, scales: Sym::empty(), experts, weights };
            let sent = moe.idle(0)?.with_rows(8, 0, 8)?.dispatch_send(&stream, &tokens)?;
            let received = sent.dispatch_recv(&stream, calls.by_expert())?;
            let combining = received.combine_send(&stream, calls.rows.view())?;
            let idle = combining.combine_recv(&stream, calls.y.view(), Added::Nothing)?;
            world.synchronize(&stream)?;
            assert_eq!(calls.sums()?, calls.expected()?);
            // Half of each: numbers of 4 bytes, of which the experts answer two at a time.
            let sent = idle.with_rows(4, 0, 16)?.dispatch_again(&stream, TOKENS, x, Sym::empty())?;
            let answers = world.alloc::<f32>(4 * calls.rows.len())?;
            answers.fill(3.0)?;
            let received = sent.dispatch_recv(&stream, calls.by_expert())?;
            let y = world.alloc::<f32>(4 * TOKENS)?;
            let _idle = received.combine_send_unweighted(&stream, answers.view())?.combine_recv(
                &stream,
                y.view(),
                Added::Nothing,
            )?;
            world.synchronize(&stream)?;
            // Of the tokens' experts one is dropped.
            assert_eq!(y.to_vec()?, [[6.0; 4], [3.0; 4], [6.0; 4]].concat());
            let routes = [[0, 1], [4, -1], [2, 3]];
            let own = calls.config.experts_of(world.pe().raw(), 3);
            let rows: Vec<f32> = own
                .flat_map(|expert| (0..3 * TOKENS).filter(move |i| routes[i % TOKENS].contains(&(expert as i32))))
                .map(|i| (100 * (i / TOKENS) + i % TOKENS) as f32)
                .collect();
            assert_eq!(calls.rows.to_vec()?[..rows.len()], rows);
            Ok::<_, Error>(())
        })
        .unwrap();
}

/// Calls that cannot be are refused before anything is launched, and the exchange goes on.
#[test]
fn calls_that_cannot_be_launch_nothing() {
    builder()
        .local(2, |world| {
            let calls = Calls::new(world, 2)?;
            let (moe, stream) = (world.moe(world.team(), calls.config)?, world.stream()?);
            let told = |error: Option<LaunchError>| error.unwrap().to_string();
            let (tokens, rows) = (calls.tokens(TOKENS), calls.by_expert());
            assert_eq!(
                told(moe.idle(1).err()),
                "there is no micro-batch 1 in an exchange of 1; make it with more of them"
            );
            let short = |tokens| told(moe.idle(0).unwrap().dispatch_send(&stream, &tokens).err());
            let payload = tokens.payload.slice(..TOKENS * 8 - 1);
            let text = "the tokens' payload would be 24 elements and there are 23; give memory that is long enough";
            assert_eq!(short(Tokens { payload, ..tokens }), text);
            assert!(short(Tokens { experts: tokens.experts.slice(..5), ..tokens }).contains("the tokens' experts"));
            assert!(short(Tokens { weights: tokens.weights.slice(..5), ..tokens }).contains("the tokens' weights"));
            assert!(short(Tokens { count: usize::MAX, ..tokens }).contains("the tokens' payload"));
            // What goes on is sent by a launch each: of the calls that fail, none is.
            let sent = || moe.idle(0)?.dispatch_send(&stream, &tokens);
            let most = calls.config.most_rows(2, 1) as usize * 8;
            let captured =
                |record: &dyn Fn(&Stream) -> Result<(), LaunchError>| told(world.capture(&stream, record).err());
            let receive = |rows: RowsByExpert| captured(&|stream| sent()?.dispatch_recv(stream, rows).map(drop));
            assert!(
                receive(RowsByExpert { payload: rows.payload.slice(..most - 1), ..rows }).contains("room for payloads")
            );
            assert!(receive(RowsByExpert { align: 64, ..rows }).contains("room for payloads"));
            assert!(
                receive(RowsByExpert { starts: rows.starts.slice(..2), ..rows })
                    .contains("room for where experts begin")
            );
            let answer = |answers: Sym<f32>| {
                captured(&|stream| sent()?.dispatch_recv(stream, rows)?.combine_send(stream, answers).map(drop))
            };
            assert!(answer(calls.rows.view().slice(..most / 4 - 1)).contains("the answers"));
            let sum = |y: Sym<f32>, added| {
                captured(&|stream| {
                    let received = sent()?.dispatch_recv(stream, rows)?;
                    received.combine_send(stream, calls.rows.view())?.combine_recv(stream, y, added).map(drop)
                })
            };
            let y = calls.y.view();
            assert!(sum(y.slice(..TOKENS * HIDDEN - 1), Added::Nothing).contains("the sums"));
            assert!(sum(y, Added::Bias(y.slice(..1))).contains("the bias"));
            assert!(sum(y, Added::Residual(y.slice(..TOKENS * HIDDEN - 1))).contains("the residual"));
            let wide = world.moe(world.team(), calls.config.blocks(2))?.with_grid(Grid::new(3, 32));
            assert!(told(calls.exchange(&wide, &stream, TOKENS).err()).contains("up to 2 blocks, not 3"));
            calls.exchange(&moe, &stream, TOKENS)?;
            world.synchronize(&stream)?;
            assert_eq!(calls.sums()?, calls.expected()?);
            Ok::<_, Error>(())
        })
        .unwrap();
}

/// A micro-batch that was sent and not received, and one that a graph sends again: the kernel refuses them before it stores anything.
#[test]
fn calls_do_not_send_a_micro_batch_twice() {
    for captured in [false, true] {
        let message = told(|world, stream, _| {
            let calls = Calls::new(world, 2)?;
            let moe = world.moe(world.team(), calls.config)?;
            let send = |stream: &Stream| moe.idle(0)?.dispatch_send(stream, &calls.tokens(TOKENS)).map(drop);
            if captured {
                let graph = world.capture(stream, send)?;
                graph.launch(stream)?;
                graph.launch(stream)?;
            } else {
                send(stream)?;
                send(stream)?;
            }
            // The exchange stays until the launches have ended.
            Ok(world.synchronize(stream)?)
        });
        assert!(message.contains("a micro-batch is at another step"), "{message}");
    }
}
