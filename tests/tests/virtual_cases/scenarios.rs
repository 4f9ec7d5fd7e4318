//! Small programs that together make every call of the driver that congruent makes.

use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;
use std::{env, thread};

use congruent::collectives::Op;
use congruent::device::{Group, Signal, SliceMut, Sym, kernels, team_tag};
use congruent::{Error, Grid, LaunchError, SymVec, World};

use crate::processes::say;
use crate::virtual_support::{
    borrow_default, by_address, calls, declare, entry, entry_without_waits, foreign_memory, import, release,
};

/// A program of two PEs, and the machine that it needs.
#[derive(Clone, Copy)]
pub(crate) struct Scenario {
    /// Of the virtual driver.
    pub(crate) settings: &'static str,
    /// Of congruent.
    pub(crate) environment: &'static [(&'static str, &'static str)],
    /// Whether another library has memory before there is a world.
    foreign: bool,
    program: fn(&mut World) -> Result<(), Error>,
}

pub(crate) const NPES: u32 = 2;
const MIB: usize = 1 << 20;
/// How many numbers each PE gives.
const COUNT: usize = 1000;
/// How many of them one message has.
const PART: usize = 20;
/// Longer than it takes until somebody looks after a stream that waits.
const LATE: Duration = Duration::from_millis(20);

/// With room for a communicator's plan.
const ROOM: &[(&str, &str)] = &[("CONGRUENT_HEAP", "32M")];
const GROWS: [(&str, &str); 2] = [("CONGRUENT_HEAP", "8M"), ("CONGRUENT_HEAP_MAX", "24M")];

pub(crate) const EVERYTHING: Scenario =
    Scenario { settings: "", environment: ROOM, foreign: false, program: everything };
pub(crate) const GRAPHS: Scenario = Scenario { program: graphs, ..EVERYTHING };
/// Each PE has a device, because the default stream is one for all PEs of a process on a device.
pub(crate) const STREAMS: Scenario =
    Scenario { settings: "devices=2", environment: &GROWS, program: streams, ..EVERYTHING };
/// With streams for what is launched on one beside the other.
pub(crate) const BUFFERS: Scenario = Scenario { environment: &GROWS, program: buffers, ..EVERYTHING };
pub(crate) const GROWTH: Scenario = Scenario { environment: &GROWS, program: growth, ..EVERYTHING };
pub(crate) const IMPORT: Scenario = Scenario { foreign: true, program: imports, ..GROWTH };
pub(crate) const MULTICAST: Scenario = Scenario {
    settings: "devices=2,multicast=1",
    environment: &[GROWS[0], GROWS[1], ("CONGRUENT_NVLS_ENABLE", "1")],
    program: multicast,
    ..EVERYTHING
};
/// Every peer through its proxy.
pub(crate) const PROXIED: Scenario =
    Scenario { environment: &[ROOM[0], ("CONGRUENT_P2P_DISABLE", "1")], program: proxied, ..EVERYTHING };
pub(crate) const CHECKED: Scenario =
    Scenario { environment: &[ROOM[0], ("CONGRUENT_CHECK", "1")], program: checked, ..EVERYTHING };

/// Memory of another library's, a piece for each PE. Their numbers are addresses.
static FOREIGN: LazyLock<Vec<usize>> = LazyLock::new(|| foreign_memory(NPES));

kernels! {
    /// Of blocks that all have to run at once.
    pub fn meet(block, ctx) {
        ctx.barrier(block, &ctx.world());
    }

    /// Fills a PE's numbers.
    pub fn fill(block, ctx, numbers: Sym<f32>) {
        for i in Group::strided(block, numbers.len()) {
            ctx.store(numbers, i, 1.0);
        }
    }

    /// Adds one to each number of a PE's own, which the block keeps in shared memory.
    pub fn raise(block, ctx, numbers: SliceMut<u32>; shared: ([u32],)) {
        let (ones,) = shared.sync(block);
        ones.part(block).fill_with(|_| 1);
        let (ones,) = shared.sync(block);
        let ones = ones.all();
        for (i, number) in numbers.iter_mut(block) {
            *number += ones.get(i % ones.len());
        }
    }

    /// Waits until a signal is at least `value`.
    pub fn until(block, ctx, signal: Sym<Signal>, value: u64) {
        ctx.wait_at_least(block, signal, value);
    }

    /// Stores a word of the other PE's, adds to another one, and waits for both.
    pub fn tell(block, ctx, word: Sym<u32>, count: Sym<u64>) {
        let other = ctx.world().next();
        if block.leader() {
            ctx.put_value(word.at(other), 7);
            ctx.add(count.at(other), 1);
        }
        ctx.quiet(block);
    }

    /// PE 0 gives its numbers to all at once.
    pub fn give(block, ctx, numbers: Sym<f32>) {
        let world = ctx.world();
        if let (Some(all), 0) = (world.multicast(numbers), ctx.pe().raw()) {
            ctx.put_multicast(block, all, numbers);
        }
        ctx.barrier(block, &world);
    }
}

team_tag! {
    /// All PEs, again.
    Again
}

/// PTX for the kernels of the scenarios, written once by the process that starts the others.
pub(crate) static PTX: LazyLock<PathBuf> = LazyLock::new(|| {
    declare(
        "scenarios",
        &[
            entry::<meet>(),
            entry_without_waits::<fill>(),
            entry_without_waits::<raise>(),
            entry::<until>(),
            entry::<tell>(),
            entry::<give>(),
        ],
    )
});

/// Two streams use one buffer in turn, with events around.
fn buffers(world: &mut World) -> Result<(), Error> {
    // What fails on one PE from here on, the other hears of in here.
    world.barrier()?;
    let (first, second) = (world.stream()?, world.stream()?);
    let mut numbers = world.buffer::<u32>(COUNT)?;
    let begun = first.record_event()?;
    for stream in [&first, &second] {
        world.launch(stream, raise, Grid::one(32).with_shared(64), (&mut numbers,))?;
    }
    world.synchronize(&first)?;
    begun.elapsed(&second.record_event()?)?;
    assert_eq!(numbers.to_vec()?, [2; COUNT]);
    let mut host = world.host_buffer::<u32>(COUNT)?;
    world.copy(&first, &mut host, &numbers)?;
    assert_eq!(host.to_vec()?, [2; COUNT]);
    assert_eq!(by_address(world, &numbers)?.to_vec()?, [2; COUNT]);
    drop(numbers);
    Ok(world.barrier()?)
}

/// Runs a scenario as the environment says, as one PE or all, and says what came of it and which calls were made: `BEFORE` those that
/// made the world, and `CALLS` all.
pub(crate) fn run(scenario: Scenario) {
    // A process counts its own calls, whatever PE it is.
    let seated = env::var_os("CONGRUENT_PE").is_some();
    if scenario.foreign {
        LazyLock::force(&FOREIGN);
    }
    let program = |world: &mut World| {
        world.barrier()?;
        if world.pe().raw() == 0 || seated {
            tell_calls("BEFORE");
        }
        world.barrier()?;
        let ended = (scenario.program)(world);
        say(&format!("PE {} {}", world.pe().raw(), if ended.is_ok() { "WELL" } else { "FAILED" }));
        ended
    };
    match World::builder().run(NPES as usize, program) {
        Ok(_) => say("RIGHT"),
        Err(error) => say(&format!("REFUSED {}", error.to_string().replace('\n', " "))),
    }
    tell_calls("CALLS");
}

fn tell_calls(word: &str) {
    let lines: Vec<_> = calls().into_iter().map(|(name, count)| format!("{word} {name} {count}")).collect();
    say(&lines.join("\n"));
}

/// Memory, a kernel of the program's own, a collective, a group, and back.
pub(crate) fn everything(world: &mut World) -> Result<(), Error> {
    let (numbers, sums) = (world.alloc::<f32>(COUNT)?, world.alloc::<f32>(COUNT)?);
    let (comm, stream) = (world.comm(world.team())?, world.stream()?);
    world.run(&stream, fill, Grid::one(32), (numbers.view(),))?;
    numbers.write(0, &[2.0])?;
    world.barrier()?;
    comm.all_reduce(&stream, sums.view(), numbers.view(), Op::Sum)?;
    // Its list is longer than what one call of the driver writes.
    comm.group(&stream, |group| {
        (0..COUNT).step_by(PART).try_for_each(|at| {
            comm.send(group, sums.view().slice(at..at + PART), 1 - comm.rank())?;
            comm.recv(group, numbers.view().slice(at..at + PART), 1 - comm.rank())
        })
    })?;
    world.synchronize(&stream)?;
    for received in [&sums, &numbers] {
        let mut found = vec![0.0; COUNT];
        received.read(0, &mut found)?;
        assert_eq!((found[0], found[1], found[COUNT - 1]), (4.0, 2.0, 2.0));
    }
    // No PE leaves before all have read, or one whose reading fails would find nobody to tell.
    Ok(world.barrier()?)
}

/// Launches, collectives and copies that are captured and launched again; and a capture that comes to nothing.
fn graphs(world: &mut World) -> Result<(), Error> {
    let (numbers, sums, copies) = (world.alloc::<f32>(COUNT)?, world.alloc::<f32>(COUNT)?, world.alloc::<f32>(COUNT)?);
    let (comm, stream) = (world.comm(world.team())?, world.stream()?);
    let other = world.rank(1 - world.pe().raw())?;
    let graph = world.capture(&stream, |stream| {
        world.launch(stream, fill, Grid::one(32), (numbers.view(),))?;
        comm.all_reduce(stream, sums.view(), numbers.view(), Op::Sum)?;
        world.put(stream, copies.view().at(other), sums.view())?;
        comm.barrier(stream)
    })?;
    for _ in 0..3 {
        graph.launch(&stream)?;
        world.synchronize(&stream)?;
    }
    let refused = world.capture(&stream, |stream| {
        world.launch(stream, fill, Grid::one(32), (copies.view(),))?;
        graph.launch(stream)
    });
    match refused {
        Err(LaunchError::InCapture { .. }) => {}
        Err(error) => return Err(error.into()),
        Ok(_) => panic!("a graph was captured"),
    }
    graph.launch(&stream)?;
    drop(graph);
    world.synchronize(&stream)?;
    let mut found = vec![0.0; COUNT];
    copies.read(0, &mut found)?;
    assert_eq!(found, [2.0; COUNT]);
    // A stream is made where one has gone.
    drop(stream);
    world.capture(&world.stream()?, |_| Ok(()))?;
    Ok(world.barrier()?)
}

/// What the host puts on streams by itself: of its own, of which one waits for what comes late, and of somebody else's.
fn streams(world: &mut World) -> Result<(), Error> {
    let (mine, theirs, back) = (world.alloc::<u64>(COUNT)?, world.alloc::<u64>(COUNT)?, world.alloc::<u64>(COUNT)?);
    let arrived = world.alloc::<Signal>(1)?;
    let pe = world.pe().raw();
    let other = world.rank(1 - pe)?;
    mine.write(0, &[u64::from(pe) + 7; COUNT])?;
    let holds_theirs = |object: &SymVec<u64>| {
        let mut found = vec![0; COUNT];
        object.read(0, &mut found).map(|()| assert_eq!(found, [u64::from(1 - pe) + 7; COUNT]))
    };
    world.barrier()?;
    for round in 1..=4 {
        // One after the other, so that a stream is gone where the next is made.
        let stream = world.stream()?;
        if round % 2 == u64::from(pe) {
            world.wait_at_least(&stream, arrived.view().from_rank(other), round)?;
            world.get(&stream, back.view(), mine.view().at(other))?;
            world.synchronize(&stream)?;
            holds_theirs(&theirs)?;
            holds_theirs(&back)?;
        } else {
            thread::sleep(LATE);
            let arrives = arrived.view().at(other).set(round);
            world.put_signal(&stream, theirs.view().at(other), mine.view(), arrives)?;
            world.synchronize(&stream)?;
        }
        world.barrier()?;
    }
    let borrowed = borrow_default(world)?;
    world.put(&borrowed, back.view().at(other), mine.view())?;
    world.notify(&borrowed, arrived.view().at(other).set(5))?;
    world.wait_at_least(&borrowed, arrived.view().from_rank(other), 5)?;
    world.synchronize(&borrowed)?;
    holds_theirs(&back)?;
    Ok(world.barrier()?)
}

/// A heap that grows, and what it tells of itself.
fn growth(world: &mut World) -> Result<(), Error> {
    let before = world.memory();
    let small = world.alloc::<f32>(COUNT)?;
    let large = world.alloc::<f32>(3 * MIB)?;
    let after = world.memory();
    assert!(after.heap_bytes > before.heap_bytes && after.heap_max_bytes == 24 << 20, "{after:?}");
    let stream = world.stream()?;
    for object in [&small, &large] {
        world.run(&stream, fill, Grid::one(32), (object.view(),))?;
        let mut last = [0.0];
        object.read(object.len() - 1, &mut last)?;
        assert_eq!(last, [1.0]);
    }
    drop(large);
    // What is used again is zeroed.
    world.reclaim()?;
    world.reclaim()?;
    let again = world.alloc::<f32>(3 * MIB)?;
    let mut last = [1.0];
    again.read(again.len() - 1, &mut last)?;
    assert_eq!(last, [0.0]);
    Ok(world.barrier()?)
}

/// Memory of another library's on the heap.
fn imports(world: &mut World) -> Result<(), Error> {
    let pe = world.pe().raw();
    let (mine, other) = (world.alloc::<u64>(COUNT)?, world.rank(1 - pe)?);
    let theirs = import::<u64>(world, FOREIGN[pe as usize], COUNT)?;
    let stream = world.stream()?;
    mine.write(0, &[u64::from(pe) + 7; COUNT])?;
    world.put(&stream, theirs.view().at(other), mine.view())?;
    world.synchronize(&stream)?;
    world.barrier()?;
    let mut found = vec![0; COUNT];
    theirs.read(0, &mut found)?;
    assert_eq!(found, [u64::from(1 - pe) + 7; COUNT]);
    release(world, theirs)?;
    // In the same place.
    let again = import::<u64>(world, FOREIGN[pe as usize], COUNT)?;
    again.read(0, &mut found)?;
    assert_eq!(found, [u64::from(1 - pe) + 7; COUNT]);
    Ok(world.barrier()?)
}

/// Words, bytes and signals that proxies bring.
fn proxied(world: &mut World) -> Result<(), Error> {
    let (word, count, numbers) = (world.alloc::<u32>(1)?, world.alloc::<u64>(1)?, world.alloc::<u64>(2 * COUNT)?);
    let (arrived, stream, pe) = (world.alloc::<Signal>(1)?, world.stream()?, world.pe().raw());
    let other = world.rank(1 - pe)?;
    world.barrier()?;
    world.run(&stream, tell, Grid::one(32), (word.view(), count.view()))?;
    numbers.write(0, &[u64::from(pe) + 7; COUNT])?;
    let (mine, theirs) = (numbers.view().slice(..COUNT), numbers.view().slice(COUNT..));
    world.put_signal(&stream, theirs.at(other), mine, arrived.view().at(other).set(1))?;
    world.wait_at_least(&stream, arrived.view().from_rank(other), 1)?;
    world.synchronize(&stream)?;
    world.barrier()?;
    let mut found = vec![0; COUNT];
    numbers.read(COUNT, &mut found)?;
    assert_eq!(found, [u64::from(1 - pe) + 7; COUNT]);
    assert_eq!((word.to_vec()?[0], count.to_vec()?[0]), (7, 1));
    Ok(world.barrier()?)
}

/// Windows of the world and of a team, over a heap that grows.
fn multicast(world: &mut World) -> Result<(), Error> {
    assert_eq!(world.team().window(), 1);
    let team = world.strided_team::<Again>(0, 1, NPES)?;
    assert_eq!(team.as_ref().map(|team| team.view().window()), Some(2));
    let numbers = world.alloc::<f32>(3 * MIB)?;
    let (some, stream) = (numbers.slice(3 * MIB - COUNT..)?, world.stream()?);
    numbers.write(numbers.len() - 1, &[world.pe().raw() as f32 + 3.0])?;
    world.barrier()?;
    world.run(&stream, give, Grid::one(32), (some,))?;
    let mut last = [0.0];
    numbers.read(numbers.len() - 1, &mut last)?;
    assert_eq!(last, [3.0]);
    drop(team);
    world.reclaim()?;
    world.reclaim()?;
    Ok(world.barrier()?)
}

/// Graphs whose collectives are compared: one that is the same on all PEs, and then one that is not.
fn checked(world: &mut World) -> Result<(), Error> {
    let (numbers, sums) = (world.alloc::<u64>(COUNT)?, world.alloc::<u64>(COUNT)?);
    let (comm, stream) = (world.comm(world.team())?, world.stream()?);
    let pe = world.pe().raw();
    numbers.write(0, &[1; COUNT])?;
    let all_reduce = |count: usize| {
        let (sums, numbers) = (sums.view().slice(..count), numbers.view().slice(..count));
        world.capture(&stream, |stream| comm.all_reduce(stream, sums, numbers, Op::Sum))
    };
    let same = all_reduce(COUNT)?;
    for _ in 0..5 {
        same.launch(&stream)?;
        comm.all_reduce(&stream, sums.view(), sums.view(), Op::Max)?;
        same.launch(&stream)?;
    }
    world.synchronize(&stream)?;
    let mut found = vec![0; COUNT];
    sums.read(0, &mut found)?;
    assert_eq!(found, [u64::from(NPES); COUNT]);
    say(&format!("PE {pe} REPLAYED"));
    let other = all_reduce(COUNT - pe as usize)?;
    other.launch(&stream)?;
    let ended = world.synchronize(&stream);
    assert!(ended.is_err(), "nobody compared");
    Ok(ended?)
}
