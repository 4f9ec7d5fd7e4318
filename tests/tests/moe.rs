//! Exchanges of tokens beyond the conformance suite: shapes by chance, what is refused, and PEs that do not come.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::time::Duration;

use congruent::collectives::moe::{MoeConfig, MoeConfigError};
use congruent::device::Sym;
use congruent::device::abi::FaultKind;
use congruent::{Builder, CollectiveError, Error, Grid, MoeError, Stream, World, WorldFailure};
use congruent_test_kernels::moe::{self as kernels, Case};
use congruent_tests::conformance::moe_rounds;
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
        unused: 0,
    }
}

fn config(case: &Case) -> MoeConfig {
    let config = MoeConfig::new(case.tokens, case.experts, case.top_k);
    config.payload(case.payload() as u32).scales(case.scales).output(2 * case.hidden)
}

/// Any shape of tokens, experts and launches that is allowed.
fn cases() -> impl Strategy<Value = (Case, u32, u64, Vec<Grid>)> {
    let shape = (1u32..=4, 1u32..40, 0u32..2, 1u32..12, 1u32..9, 1u32..10, 0u32..9, 0u32..20);
    let manner = (any::<u64>(), 0u32..3, 0u32..60, 0u32..3, prop_oneof![Just(1u32), Just(4), Just(32)], 1u64..4);
    let grids = proptest::collection::vec((1u32..=4, 1u32..=80), 1..3);
    (shape, manner, grids).prop_map(|(shape, manner, grids)| {
        let (pes, tokens, ragged, experts, top_k, quarter, extra, scales) = shape;
        let (seed, skew, delay, added, width, rounds) = manner;
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
            unused: 0,
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
