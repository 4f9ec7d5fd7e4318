//! PEs that reach each other by libfabric, and lose one: the others say which, and do not wait longer than they may.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod processes;

use std::time::{Duration, Instant};

use congruent::device::{Semaphore, Sym, kernels};
use congruent::{Error, Grid, World};
use congruent_transports::Fabric;
use processes::{Pe, Port, alone, is_pe, myself, say, seat};

const NPES: u32 = 3;
/// The PE that is lost.
const LOST: u32 = 1;
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest wait of a kernel.
const DEADLINE: Duration = Duration::from_secs(5);

kernels! {
    /// Puts to the next PE and waits for what the one before puts here.
    pub fn pass(block, ctx, dst: Sym<u64>, src: Sym<u64>, arrived: Sym<Semaphore>) {
        let world = ctx.world();
        ctx.put_signal(block, dst.at(world.next()), src, arrived.at(world.next()).post());
        ctx.wait(block, arrived.from_rank(world.prev()), 1);
    }
}

fn program() -> Result<(), Error> {
    let mut world = World::builder().deadline(DEADLINE).build()?;
    let (dst, src) = (world.alloc::<u64>(5000)?, world.alloc::<u64>(5000)?);
    let (arrived, stream) = (world.alloc::<Semaphore>(1)?, world.stream()?);
    for round in 0u64.. {
        world.run(&stream, pass, Grid::one(32), (dst.view(), src.view(), arrived.view()))?;
        if round == 100 {
            say("UNDER WAY");
        }
    }
    Ok(())
}

#[test]
fn who_is_killed_is_named_by_the_others() {
    const TEST: &str = "who_is_killed_is_named_by_the_others";
    if is_pe() {
        let error = program().unwrap_err();
        return say(&format!("ENDED {}", error.to_string().replace('\n', " ")));
    }
    if let Err(error) = Fabric::find() {
        return congruent_tests::skip(TEST, &error.to_string());
    }
    let (_alone, port) = (alone(), Port::reserve());
    let start = |pe| {
        let mut command = seat(myself(TEST), &port, pe, NPES);
        command.env("CONGRUENT_MACHINE", "cpu").env("CONGRUENT_P2P_DISABLE", "1");
        Pe::start({
            command.env("CONGRUENT_TRANSPORT", "fabric").env("CONGRUENT_SOCKET_IFNAME", "lo");
            command
        })
    };
    let mut pes: Vec<_> = (0..NPES).map(start).collect();
    pes.iter_mut().for_each(|pe| drop(pe.hear("UNDER WAY", PATIENCE)));
    pes[LOST as usize].child.kill().unwrap();
    let killed = Instant::now();
    for (pe, process) in (0..).zip(&mut pes) {
        if pe != LOST {
            let said = process.hear("ENDED", PATIENCE);
            assert!(said.contains(&format!("PE {LOST}")), "PE {pe}: {said}");
        }
    }
    assert!(killed.elapsed() < 2 * DEADLINE, "{:?}", killed.elapsed());
}
