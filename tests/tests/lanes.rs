//! Lanes of a block that wait for each other: by loops of their own, which pause, and at barriers that not all of them come to.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::time::Duration;

use congruent::device::abi::FaultKind;
use congruent::device::{Group, Kernel, Sym, kernels};
use congruent::{Error, Grid, World, WorldFailure};

const DEADLINE: Duration = Duration::from_millis(100);
const WIDTHS: [u32; 3] = [2, 4, 32];

kernels! {
    /// The first lane waits for what the last one stores, by loads.
    pub fn pass_on(block, ctx, word: Sym<u32>) {
        if block.leader() {
            while ctx.load(word, 0) == 0 {
                ctx.pause();
            }
            ctx.store(word, 1, 7);
        }
        if block.rank() == block.size() - 1 {
            ctx.store(word, 0, 1);
        }
    }

    /// Every lane waits for what nobody stores.
    pub fn in_vain(_block, ctx, word: Sym<u32>) {
        while ctx.load(word, 0) == 0 {
            ctx.pause();
        }
    }

    /// Pauses between waits that have come already, for longer than the deadline altogether.
    pub fn in_good_time(block, ctx, word: Sym<u32>) {
        for _ in 0..10 {
            ctx.pause();
            std::thread::sleep(DEADLINE / 5);
            ctx.wait_all(block, Sym::empty(), 1);
        }
        ctx.store(word, 1, 7);
    }

    /// The first lane waits for its warp, the others for the block.
    pub fn apart(block, _ctx, _word: Sym<u32>) {
        if block.rank() == 0 {
            block.warp().sync(); // one
        } else {
            block.sync(); // others
        }
    }

    /// Lanes of a warp meet as often as each other, and at different barriers.
    pub fn divided(block, _ctx, _word: Sym<u32>) {
        if block.rank().is_multiple_of(2) {
            block.sync(); // even
        } else {
            block.sync(); // odd
        }
    }

    /// The first lane leaves while the others meet.
    pub fn leaves(block, ctx, word: Sym<u32>) {
        if block.rank() > 0 {
            block.sync();
        }
        ctx.store(word, 1, 7);
    }
}

/// What came of a kernel: a failure, or what it stored.
fn run<K: Kernel<Args = (Sym<u32>,)>>(width: u32, kernel: K) -> Vec<Result<u32, WorldFailure>> {
    let settings = World::builder().width(width).deadline(DEADLINE).heap(8 << 20);
    let ends = settings.local(1, |world| {
        let (word, stream) = (world.alloc::<u32>(2)?, world.stream()?);
        world.barrier()?;
        world.launch(&stream, kernel, Grid::one(32), (word.view(),))?;
        let mut stored = [0];
        Ok::<_, Error>(match world.synchronize(&stream) {
            Ok(()) => word.read(1, &mut stored).map(|()| Ok(stored[0]))?,
            Err(failure) => Err(failure),
        })
    });
    ends.unwrap()
}

#[test]
fn a_loop_that_pauses_sees_what_another_lane_stores() {
    for width in WIDTHS {
        assert_eq!(run(width, pass_on), [Ok(7)], "{width}");
    }
}

#[test]
fn a_loop_that_pauses_in_vain_meets_the_deadline() {
    for width in [1, 2, 32] {
        let ends = run(width, in_vain);
        let fault = ends.iter().find_map(|end| match end {
            Err(WorldFailure::Fault(fault)) => Some(fault),
            _ => None,
        });
        let fault = fault.unwrap_or_else(|| panic!("{width}: {ends:?}"));
        assert_eq!((fault.kind, fault.kernel), (FaultKind::Pause, Some("in_vain")), "{fault}");
        assert!(Duration::from_millis(fault.waited_ms) >= DEADLINE, "{fault}");
        assert!(fault.at.as_deref().unwrap().starts_with("tests/tests/lanes.rs:"), "{fault}");
        assert!(ends.iter().all(Result::is_err), "{ends:?}");
    }
}

#[test]
fn pauses_with_waits_between_them_meet_no_deadline() {
    for width in [1, 4] {
        assert_eq!(run(width, in_good_time), [Ok(7)], "{width}");
    }
}

#[test]
fn a_barrier_that_only_some_lanes_reach_is_an_error_that_names_them() {
    for width in WIDTHS {
        let ends = run(width, apart);
        let stands = ends.iter().find_map(|end| match end {
            Err(WorldFailure::StoodStill { kernel: "apart", lanes, .. }) => Some(lanes),
            _ => None,
        });
        let lanes = stands.unwrap_or_else(|| panic!("{width}: {ends:?}"));
        let line = |text: &str| include_str!("lanes.rs").lines().position(|line| line.contains(text)).unwrap() + 1;
        let others = if width == 2 { "1".to_owned() } else { format!("1-{}", width - 1) };
        let one = format!("lanes 0 wait for their warp at tests/tests/lanes.rs:{}:", line("sync(); // one"));
        let rest =
            format!("lanes {others} wait for their block at tests/tests/lanes.rs:{}:", line("sync(); // others"));
        assert!(lanes.contains(&one) && lanes.contains(&rest), "{lanes}");
    }
}

#[test]
fn barriers_at_different_places_of_a_warp_are_an_error_that_names_them() {
    for width in WIDTHS {
        let ends = run(width, divided);
        let stands = ends.iter().find_map(|end| match end {
            Err(WorldFailure::StoodStill { kernel: "divided", lanes, .. }) => Some(lanes),
            _ => None,
        });
        let lanes = stands.unwrap_or_else(|| panic!("{width}: {ends:?}"));
        let line = |text: &str| include_str!("lanes.rs").lines().position(|line| line.contains(text)).unwrap() + 1;
        let even = format!("wait for their block at tests/tests/lanes.rs:{}:", line("sync(); // even"));
        let odd = format!("wait for their block at tests/tests/lanes.rs:{}:", line("sync(); // odd"));
        assert!(lanes.starts_with("lanes 0") && lanes.contains(&even) && lanes.contains(&odd), "{lanes}");
    }
}

#[test]
fn a_lane_that_has_left_is_not_waited_for() {
    for width in WIDTHS {
        assert_eq!(run(width, leaves), [Ok(7)], "{width}");
    }
}
