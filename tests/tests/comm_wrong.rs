//! Communicators that are called wrongly: members who call different things, calls behind one that is given up, and what is
//! refused.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod comm_support;
mod processes;

use std::num::NonZeroU32;
use std::sync::{Barrier, Mutex};
use std::time::Duration;

use congruent::collectives::exchange::Parts;
use congruent::collectives::{Algorithm, Op, PreMulSum, Protocol};
use congruent::device::Sym;
use congruent::device::abi::FaultKind;
use congruent::{Comm, CommError, CommOptions, Error, LaunchError, OwnPreMulSum, Stream, World, WorldFailure};

use comm_support::{CHILD, MACHINES, builder, child, local};
use processes::{Pe, Port, is_pe, myself, say, seat};

/// A call with a stream and a buffer of 120 elements of each type.
type Calls = fn(&mut Comm, &Stream, &Buffers) -> Result<(), LaunchError>;

struct Buffers {
    floats: Sym<f32>,
    ints: Sym<i32>,
    longs: Sym<u64>,
}

/// What this PE of three says when PE 2 makes `wrong` as its fourth call where the others make `right`.
fn says(world: &mut World, right: Calls, wrong: Calls) -> Result<(String, Option<FaultKind>), Error> {
    let mut comm = world.comm(world.team())?;
    let (stream, me) = (world.stream()?, comm.rank());
    let (floats, ints, longs) = (world.alloc::<f32>(120)?, world.alloc::<i32>(120)?, world.alloc::<u64>(120)?);
    let buffers = Buffers { floats: floats.view(), ints: ints.view(), longs: longs.view() };
    comm.barrier(&stream)?;
    comm.all_reduce(&stream, floats.view(), floats.view(), Op::Sum)?;
    comm.broadcast(&stream, longs.view(), longs.view(), 1)?;
    world.synchronize(&stream)?;
    let mine = me as u8 + 1;
    floats.fill(mine.into())?;
    ints.fill(mine.into())?;
    longs.fill(mine.into())?;
    world.barrier()?;
    let call = if me == 2 { wrong } else { right };
    let ended = call(&mut comm, &stream, &buffers).and_then(|()| Ok(world.synchronize(&stream)?));
    // Nothing has moved.
    assert_eq!(floats.to_vec()?, [f32::from(mine); 120]);
    assert_eq!((ints.to_vec()?, longs.to_vec()?), (vec![mine.into(); 120], vec![mine.into(); 120]));
    Ok(match ended.unwrap_err() {
        LaunchError::World(WorldFailure::Fault(fault)) => (fault.to_string(), Some(fault.kind)),
        other => (other.to_string(), None),
    })
}

/// Everybody is told that `field` differs between `mine` on PE 0 or 1 and `theirs` on PE 2.
#[track_caller]
fn assert_told(told: &[(String, Option<FaultKind>)], words: &[&str]) {
    for (message, kind) in told {
        assert!(message.contains("call 4 of this communicator") && message.contains("PE 2"), "{message}");
        assert!(words.iter().all(|word| message.contains(word)), "{message} lacks one of {words:?}");
        // A PE that heard of it from another before it saw it itself says whose words they are.
        assert!(*kind == Some(FaultKind::CallMismatch) || message.contains("gave up"), "{message}");
    }
    assert!(told.iter().any(|(_, kind)| *kind == Some(FaultKind::CallMismatch)));
}

const ALL_REDUCE: Calls = |comm, stream, on| comm.all_reduce(stream, on.floats, on.floats, Op::Sum);

/// Right calls and wrong ones, and what is said of them.
const CASES: [(Calls, Calls, &[&str]); 9] = [
    (
        ALL_REDUCE,
        |comm, stream, on| comm.broadcast(stream, on.floats, on.floats, 0),
        &["called broadcast", "called all-reduce"],
    ),
    (
        ALL_REDUCE,
        |comm, stream, on| comm.all_reduce(stream, on.floats.slice(..90), on.floats.slice(..90), Op::Sum),
        &["called all-reduce with count", "120", "90"],
    ),
    (
        ALL_REDUCE,
        |comm, stream, on| comm.all_reduce(stream, on.ints, on.ints, Op::Sum),
        &["called all-reduce with type", "float", "int32"],
    ),
    (
        ALL_REDUCE,
        |comm, stream, on| comm.all_reduce(stream, on.floats, on.floats, Op::Max),
        &["called all-reduce with operator", "sum", "max"],
    ),
    (
        |comm, stream, on| comm.all_reduce(stream, on.floats, on.floats, PreMulSum(2.0)),
        |comm, stream, on| comm.all_reduce(stream, on.floats, on.floats, OwnPreMulSum(2.0)),
        &["called all-reduce with scalars of the members' own", "yes", "no"],
    ),
    (
        |comm, stream, on| comm.broadcast(stream, on.floats, on.floats, 0),
        |comm, stream, on| comm.broadcast(stream, on.floats, on.floats, 1),
        &["called broadcast with root", "0", "1"],
    ),
    (
        |comm, stream, on| comm.broadcast(stream, on.floats, on.floats, 0),
        |comm, stream, on| comm.broadcast(stream, on.longs, on.longs, 0),
        &["called broadcast with bytes of an element", "4", "8"],
    ),
    (
        |comm, stream, on| {
            comm.force(Algorithm::DIRECT, Protocol::Simple);
            comm.all_reduce(stream, on.floats, on.floats, Op::Sum)
        },
        |comm, stream, on| {
            comm.force(Algorithm::RING, Protocol::Simple);
            comm.all_reduce(stream, on.floats, on.floats, Op::Sum)
        },
        &["called all-reduce with algorithm", "ring", "direct"],
    ),
    (
        |comm, stream, on| {
            comm.force(Algorithm::RING, Protocol::Simple);
            comm.all_reduce(stream, on.floats, on.floats, Op::Sum)
        },
        |comm, stream, on| {
            comm.force(Algorithm::RING, Protocol::Ll);
            comm.all_reduce(stream, on.floats, on.floats, Op::Sum)
        },
        &["called all-reduce with protocol", "simple", "ll"],
    ),
];

/// With communicators as they are made where nobody asks for anything.
#[test]
fn members_that_call_different_things_are_all_told_what_differs() {
    for (right, wrong, words) in CASES {
        assert_told(&local(3, |world| says(world, right, wrong)), words);
    }
}

#[test]
fn processes_that_call_different_things_are_all_told_what_differs() {
    const CASE: &str = "CONGRUENT_TEST_CASE";
    if is_pe() {
        let (right, wrong, _) = CASES[std::env::var(CASE).unwrap().parse::<usize>().unwrap()];
        let (message, kind) = says(&mut builder().build().unwrap(), right, wrong).unwrap();
        return say(&format!("TOLD {} {message}", kind == Some(FaultKind::CallMismatch)));
    }
    for (case, (_, _, words)) in CASES.iter().enumerate() {
        let port = Port::reserve();
        let job = [0, 1, 2].map(|pe| {
            let test = myself("processes_that_call_different_things_are_all_told_what_differs");
            let mut command = seat(test, &port, pe, 3);
            command.env(CASE, case.to_string());
            Pe::start(command)
        });
        let told = job.map(|mut pe| {
            let heard = pe.hear("TOLD ", Duration::from_secs(60));
            let (compared, message) = heard.split_once(' ').unwrap();
            (message.to_owned(), (compared == "true").then_some(FaultKind::CallMismatch))
        });
        assert_told(&told, words);
    }
}

/// By its option, or by the variable: then calls that differ are the caller's affair.
#[test]
fn the_comparison_can_be_turned_off() {
    let by_variable = std::env::var_os(CHILD).is_some();
    if !by_variable {
        child("the_comparison_can_be_turned_off", &[("CONGRUENT_CHECK", "0")]);
    }
    local(2, |world| {
        let options = CommOptions { check: (!by_variable).then_some(false), ..CommOptions::default() };
        let (comm, stream) = (world.comm_with(world.team(), options)?, world.stream()?);
        let floats = world.alloc::<f32>(1)?;
        let op = if comm.rank() == 0 { Op::Sum } else { Op::Max };
        comm.all_reduce(&stream, floats.view(), floats.view(), op)?;
        Ok(world.synchronize(&stream)?)
    });
}

/// Calls that a stream has behind one that is given up find its channel taken, and end as it does.
#[test]
fn calls_behind_one_that_is_given_up_end_like_it() {
    // A panic there would be hidden behind the failure that is told, so that this looks at what is complained of.
    if std::env::var_os(CHILD).is_none() {
        let said = child("calls_behind_one_that_is_given_up_end_like_it", &[]);
        assert!(!said.contains("panicked"), "{said}");
        return;
    }
    for (width, proxied) in MACHINES {
        let (told, queued) = (Mutex::new(String::new()), Barrier::new(2));
        let given_up = builder().width(width).proxied(proxied).local(2, |world| {
            let (comm, stream, floats) = (world.comm(world.team())?, world.stream()?, world.alloc::<f32>(120)?);
            if comm.rank() == 0 {
                queued.wait();
                floats.read(120, &mut [0.0])?;
            }
            for _ in 0..3 {
                comm.all_reduce(&stream, floats.view(), floats.view(), Op::Sum)?;
            }
            queued.wait();
            let ended = world.synchronize(&stream).unwrap_err();
            *told.lock().unwrap() = ended.to_string();
            Ok::<_, Error>(world.barrier()?)
        });
        assert!(given_up.is_err());
        let told = told.into_inner().unwrap();
        assert!(told.contains("gave up") && !told.contains("panicked"), "{told}");
    }
}

/// PE 1 sends PE 2 one element more than PE 2 expects.
fn mismatched_counts(world: &mut World, vector: bool) -> Result<(), Error> {
    let (comm, stream) = (world.comm(world.team())?, world.stream()?);
    let (src, dst, lists) = (world.alloc::<u32>(30)?, world.alloc::<u32>(30)?, world.alloc::<u64>(9)?);
    let me = comm.rank();
    src.fill(7)?;
    let (sent, received) = (if me == 1 { 9 } else { 10 }, if me == 2 { 8 } else { 10 });
    lists.write(0, &[10, 10, sent, 10, received, 10, 0, 10, 20])?;
    let list = |at: usize| lists.view().slice(3 * at..3 * at + 3);
    if vector {
        let (sends, receives) = (Parts::new(list(0), list(2)), Parts::new(list(1), list(2)));
        comm.all_to_all_v(&stream, dst.view(), src.view(), receives, sends)?;
    } else {
        comm.group(&stream, |group| match me {
            1 => comm.send(group, src.view().slice(..9), 2),
            2 => comm.recv(group, dst.view().slice(10..18), 1),
            _ => Ok(()),
        })?;
    }
    let ended = world.synchronize(&stream);
    assert_eq!(dst.to_vec()?[10..20], [0; 10], "PE 1 sends nothing, and nobody else sends to these elements of PE 2");
    ended?;
    // Who has nothing to do hears of it here.
    Ok(world.barrier()?)
}

#[test]
fn counts_that_differ_are_named_on_all_before_anything_is_sent() {
    for vector in [true, false] {
        let told = local(3, |world| Ok(mismatched_counts(world, vector).unwrap_err().to_string()));
        for message in told {
            assert!(message.contains("PE 1 sends 36 bytes to PE 2, which receives 32"), "{message}");
        }
    }
}

#[test]
fn what_is_refused_is_refused_before_anything_is_sent() {
    local(2, |world| {
        let (mut comm, stream) = (world.comm(world.team())?, world.stream()?);
        let (other, side) = (world.comm(world.team())?, world.stream()?);
        let (long, lists) = (world.alloc::<u32>(100)?, world.alloc::<u64>(3)?);
        let (buf, me) = (long.view(), comm.rank());
        let part = |range: std::ops::Range<usize>| buf.slice(range);
        let refused = |result: Result<(), LaunchError>, words: &[&str]| {
            let message = result.unwrap_err().to_string();
            assert!(words.iter().all(|word| message.contains(word)), "{message} lacks one of {words:?}");
        };
        let overlap = ["overlap", "or buffers apart"];
        refused(comm.all_reduce(&stream, part(0..50), part(1..51), Op::Sum), &overlap);
        refused(comm.reduce(&stream, part(0..50), part(49..99), Op::Sum, 0), &overlap);
        refused(comm.broadcast(&stream, part(0..50), part(1..51), 0), &overlap);
        refused(comm.all_to_all(&stream, part(0..50), part(1..51)), &overlap);
        let (mine, others) = (part(10 * me..10 * me + 10), part(10 - 10 * me..20 - 10 * me));
        refused(comm.all_gather(&stream, part(0..20), others), &["all-gather overlap", "part of the destination"]);
        refused(comm.reduce_scatter(&stream, others, part(0..20), Op::Sum), &["part of the source"]);
        refused(comm.gather(&stream, part(0..20), part(15..25), 0), &overlap);
        refused(comm.scatter(&stream, part(15..25), part(0..20), 0), &overlap);
        refused(comm.all_reduce(&stream, buf, buf, Op::PreMulSum), &["PreMulSum(scalar)"]);

        let list = |len: usize| lists.view().slice(..len);
        let (two, three) = (Parts::new(list(2), list(2)), Parts::new(list(3), list(2)));
        let (dst, src) = (part(0..10), part(10..20));
        refused(comm.all_to_all_v(&stream, dst, src, three, two), &["3 receive counts", "team of 2"]);
        let short = Parts::new(list(2), list(1));
        refused(comm.all_to_all_v(&stream, dst, src, two, short), &["1 send displacements", "team of 2"]);
        refused(comm.all_to_all_v(&stream, dst, part(9..19), two, two), &["all-to-all-v overlap"]);
        refused(comm.all_gather_v(&stream, dst, src, three), &["3 counts"]);

        refused(comm.send(&stream, buf, 2), &["no member 2", "0..2"]);
        refused(comm.recv(&stream, buf, usize::MAX), &["0..2"]);
        refused(comm.send(&stream, buf, me), &["1 times to itself and receives 0 times"]);
        let unequal = comm.group(&stream, |group| {
            comm.send(group, part(0..10), me)?;
            comm.recv(group, part(10..19), me)
        });
        refused(unequal, &["40 and 36 bytes"]);
        let overlapping = comm.group(&stream, |group| {
            comm.send(group, part(0..10), 1 - me)?;
            comm.recv(group, part(9..19), 1 - me)
        });
        refused(overlapping, &["a group overlap"]);
        let full = comm.group(&stream, |group| (0..200).try_for_each(|_| comm.send(group, buf, 1 - me)));
        refused(full, &["128 sends and receives"]);
        refused(comm.group(&stream, |group| other.barrier(group)), &["give it others of its world by CallGroup::with"]);
        let twice = comm.group(&stream, |group| {
            group.with(&comm, &stream)?;
            group.with(&comm, &side)
        });
        refused(twice, &["go to one stream"]);
        // Also where the two go to different streams.
        let overlapping = comm.group(&stream, |group| {
            group.with(&other, &side)?;
            comm.send(group, part(0..10), 1 - me)?;
            other.recv(group, part(9..19), 1 - me)
        });
        refused(overlapping, &["a group overlap"]);
        let elsewhere = comm.group(&stream, |group| {
            group.with(&other, &side)?;
            comm.send(group, part(0..10), me)?;
            other.recv(group, part(10..20), me)
        });
        refused(elsewhere, &["1 times to itself and receives 0 times"]);
        // What stood in a group before the mistake is not enqueued.
        long.fill(1)?;
        let spoilt = comm.group(&stream, |group| {
            group.with(&other, &side)?;
            comm.all_reduce(group, buf, buf, Op::Sum)?;
            other.broadcast(group, buf, buf, 7)
        });
        refused(spoilt, &["member 7 cannot be the root"]);
        world.synchronize(&stream)?;
        world.synchronize(&side)?;
        assert_eq!(long.to_vec()?, [1; 100]);

        comm.force(Algorithm::MULTIMEM, Protocol::Simple);
        refused(comm.all_reduce(&stream, buf, buf, Op::Sum), &["forced to multimem", "no multicast addresses"]);
        comm.force(Algorithm::RING, Protocol::Ll128);
        refused(comm.all_reduce(&stream, buf, buf, Op::Sum), &["forced to ring with ll128", "CONGRUENT_LL128_ENABLE"]);
        comm.unforce();
        let too_many = CommOptions { blocks: NonZeroU32::new(1000), ..CommOptions::default() };
        let blocks = world.comm_with(world.team(), too_many);
        assert!(matches!(blocks.map(drop), Err(CommError::Blocks { asked: 1000, fits: 64 })));
        let differ = CommOptions { check: Some(me == 0), ..CommOptions::default() };
        let options = world.comm_with(world.team(), differ);
        assert!(matches!(options.map(drop), Err(CommError::Options { pe: 0, other: 1 })));

        // After all that it works.
        comm.all_gather(&stream, part(0..20), mine)?;
        comm.all_reduce(&stream, buf, buf, Op::Sum)?;
        world.synchronize(&stream)?;
        assert_eq!(long.to_vec()?, [2; 100]);
        Ok(())
    });
}

#[test]
fn a_buffer_that_is_not_on_the_heap_is_refused() {
    local(1, |world| {
        let (comm, stream) = (world.comm(world.team())?, world.stream()?);
        let far = Sym::<u32>::from_raw(1 << 40, 8);
        let refused = comm.all_reduce(&stream, far, far, Op::Sum);
        assert!(matches!(refused, Err(LaunchError::ForeignArgument { kernel: "all-reduce" })));
        let sent = comm.group(&stream, |group| comm.send(group, far, 0));
        assert!(matches!(sent, Err(LaunchError::ForeignArgument { kernel: "send-recv" })));
        Ok(())
    });
}
