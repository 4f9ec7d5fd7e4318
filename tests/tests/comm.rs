//! Communicators: what they move, how they are split and grouped, and what members who call different things are told.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::num::NonZeroU32;
use std::process::Command;
use std::sync::{Barrier, Mutex};
use std::time::Duration;

use congruent::collectives::exchange::Parts;
use congruent::collectives::{Algorithm, Collective, Layout, Listed, Op, PreMulSum, Protocol, View, send_recv};
use congruent::device::abi::FaultKind;
use congruent::device::{Sym, TeamView, kernels};
use congruent::select::Source;
use congruent::{Builder, Comm, CommError, CommOptions, Error, Grid, LaunchError, Stream, World, WorldFailure};

kernels! {
    /// Sends and receives what lists on the heap say.
    pub fn exchange(block, ctx, team: TeamView, dst: Sym<u32>, src: Sym<u32>, lists: Listed, plan: View) {
        send_recv(block, ctx, &ctx.team(team), dst, src, &lists, &plan);
    }
}

/// Machines that tests run on: one lane and four, by load and store and through the proxy.
const MACHINES: [(u32, bool); 3] = [(1, false), (4, false), (1, true)];

fn builder() -> Builder {
    World::builder().heap(96 << 20).deadline(Duration::from_secs(20))
}

fn local<R: Send>(npes: usize, program: impl Fn(&mut World) -> Result<R, Error> + Sync) -> Vec<R> {
    builder().local(npes, program).unwrap()
}

fn options(blocks: u32) -> CommOptions {
    CommOptions { blocks: NonZeroU32::new(blocks), buffer: Some(128 << 10), ..CommOptions::default() }
}

/// How many elements `from` sends `to`: any number, and none one time in four.
fn count(from: usize, to: usize, round: usize) -> usize {
    let mixed = (from * 7919 + to * 104_729 + round * 15_485_863) % 997;
    if mixed.is_multiple_of(4) { 0 } else { mixed }
}

/// Element `i` of what `from` sends `to`.
fn element(from: usize, to: usize, i: usize) -> u32 {
    (from * 1_000_000 + to * 10_000 + i) as u32
}

/// What a member sends all others, one after the other, and what it receives.
fn expected(me: usize, npes: usize, round: usize) -> (Vec<u32>, Vec<u32>) {
    let message = |from, to| (0..count(from, to, round)).map(move |i| element(from, to, i));
    let sent = (0..npes).flat_map(|peer| message(me, peer)).collect();
    (sent, (0..npes).flat_map(|peer| message(peer, me)).collect())
}

/// Counts and where each part begins, one after the other.
fn packed(counts: impl Iterator<Item = usize>) -> Vec<u64> {
    let counts: Vec<u64> = counts.map(|count| count as u64).collect();
    let starts = counts.iter().scan(0, |next, count| {
        let start = *next;
        *next += count;
        Some(start)
    });
    counts.iter().copied().chain(starts).collect()
}

#[test]
fn all_to_all_v_of_any_counts() {
    for (width, proxied) in MACHINES {
        for npes in [1, 2, 3, 5, 9] {
            let program = |world: &mut World| {
                let (comm, stream) = (world.comm_with(world.team(), options(2))?, world.stream()?);
                let (src, dst) = (world.alloc::<u32>(1000 * npes)?, world.alloc::<u32>(1000 * npes)?);
                let lists = world.alloc::<u64>(4 * npes)?;
                let list = |at: usize| lists.view().slice(at * npes..(at + 1) * npes);
                let me = comm.rank();
                for round in 0..4 {
                    let (sent, received) = expected(me, npes, round);
                    src.write(0, &sent)?;
                    dst.fill(u32::MAX);
                    lists.write(0, &packed((0..npes).map(|peer| count(me, peer, round))))?;
                    lists.write(2 * npes, &packed((0..npes).map(|peer| count(peer, me, round))))?;
                    world.barrier()?;
                    let (sends, receives) = (Parts::new(list(0), list(1)), Parts::new(list(2), list(3)));
                    comm.all_to_all_v(&stream, dst.view(), src.view(), receives, sends)?;
                    world.synchronize(&stream)?;
                    let got = dst.to_vec();
                    assert_eq!(got[..received.len()], received, "{npes} PEs, width {width}, round {round}, PE {me}");
                    assert!(got[received.len()..].iter().all(|&untouched| untouched == u32::MAX));
                }
                Ok::<_, Error>(())
            };
            builder().width(width).proxied(proxied).local(npes, program).unwrap();
        }
    }
}

#[test]
fn all_gather_v_in_place_and_apart() {
    for (width, proxied) in MACHINES {
        for npes in [1, 2, 4, 9] {
            let program = |world: &mut World| {
                let (comm, stream) = (world.comm_with(world.team(), options(2))?, world.stream()?);
                let (src, dst) = (world.alloc::<u32>(1000)?, world.alloc::<u32>(1000 * npes)?);
                let lists = world.alloc::<u64>(2 * npes)?;
                let me = comm.rank();
                for round in 0..4 {
                    // Parts lie in the reverse order of the ranks, two elements apart.
                    let counts: Vec<u64> = (0..npes).map(|peer| count(peer, 0, round) as u64).collect();
                    let start = |peer: usize| counts[peer + 1..].iter().map(|count| count + 2).sum::<u64>();
                    let starts: Vec<u64> = (0..npes).map(start).collect();
                    lists.write(0, &[counts.clone(), starts.clone()].concat())?;
                    let parts = Parts::new(lists.view().slice(..npes), lists.view().slice(npes..));
                    let (from, len) = (starts[me] as usize, counts[me] as usize);
                    let data: Vec<u32> = (0..len).map(|i| element(me, round, i)).collect();
                    dst.fill(u32::MAX);
                    let mine = if round % 2 == 0 {
                        src.write(0, &data)?;
                        src.view().slice(..len)
                    } else {
                        dst.write(from, &data)?;
                        dst.view().slice(from..from + len)
                    };
                    world.barrier()?;
                    comm.all_gather_v(&stream, dst.view(), mine, parts)?;
                    world.synchronize(&stream)?;
                    let mut model = vec![u32::MAX; dst.len()];
                    for peer in 0..npes {
                        for i in 0..counts[peer] as usize {
                            model[starts[peer] as usize + i] = element(peer, round, i);
                        }
                    }
                    assert_eq!(dst.to_vec(), model, "{npes} PEs, width {width}, round {round}, PE {me}");
                }
                Ok::<_, Error>(())
            };
            builder().width(width).proxied(proxied).local(npes, program).unwrap();
        }
    }
}

#[test]
fn groups_of_all_pairs_with_several_messages_each() {
    for (width, proxied) in MACHINES {
        for npes in [1, 2, 3, 5] {
            let program = |world: &mut World| {
                let (comm, stream) = (world.comm_with(world.team(), options(2))?, world.stream()?);
                let (src, dst) = (world.alloc::<u32>(1000 * npes)?, world.alloc::<u32>(1000 * npes)?);
                let me = comm.rank();
                for round in 0..4 {
                    let (sent, received) = expected(me, npes, round);
                    src.write(0, &sent)?;
                    dst.fill(u32::MAX);
                    world.barrier()?;
                    comm.group(&stream, |group| {
                        // In two parts each, the receives from the last member on.
                        let mut at = 0;
                        for peer in 0..npes {
                            let (middle, end) = (at + count(me, peer, round) / 2, at + count(me, peer, round));
                            comm.send(group, src.view().slice(at..middle), peer)?;
                            comm.send(group, src.view().slice(middle..end), peer)?;
                            at = end;
                        }
                        let mut end = received.len();
                        for peer in (0..npes).rev() {
                            let at = end - count(peer, me, round);
                            let middle = at + count(peer, me, round) / 2;
                            comm.recv(group, dst.view().slice(at..middle), peer)?;
                            comm.recv(group, dst.view().slice(middle..end), peer)?;
                            end = at;
                        }
                        Ok(())
                    })?;
                    world.synchronize(&stream)?;
                    let got = dst.to_vec();
                    assert_eq!(got[..received.len()], received, "{npes} PEs, width {width}, round {round}, PE {me}");
                    assert!(got[received.len()..].iter().all(|&untouched| untouched == u32::MAX));
                }
                Ok::<_, Error>(())
            };
            builder().width(width).proxied(proxied).local(npes, program).unwrap();
        }
    }
}

#[test]
fn a_group_of_collectives_and_a_ring() {
    local(4, |world| {
        let (comm, stream) = (world.comm(world.team())?, world.stream()?);
        let (a, b, c) = (world.alloc::<i64>(100)?, world.alloc::<i64>(100)?, world.alloc::<i64>(100)?);
        let me = comm.rank();
        a.fill(me as i64);
        b.fill(-1);
        world.barrier()?;
        for _ in 0..10 {
            comm.group(&stream, |group| {
                comm.all_reduce(group, c.view(), a.view(), Op::Sum)?;
                comm.all_reduce(group, c.view(), c.view(), PreMulSum(2))?;
                comm.send(group, a.view(), (me + 1) % 4)?;
                comm.recv(group, b.view(), (me + 3) % 4)
            })?;
        }
        world.synchronize(&stream)?;
        assert_eq!(b.to_vec(), [(me as i64 + 3) % 4; 100]);
        assert_eq!(c.to_vec(), [6 * 2 * 4; 100]);
        Ok(())
    });
}

#[test]
fn transfers_match_across_groups_and_start_in_no_order() {
    local(4, |world| {
        let (comm, stream) = (world.comm(world.team())?, world.stream()?);
        let (src, dst) = (world.alloc::<u32>(1000)?, world.alloc::<u32>(4000)?);
        let me = comm.rank() as u32;
        src.fill(me);
        world.barrier()?;
        let (out, into) = (src.view(), |i: usize| dst.view().slice(i * 1000..(i + 1) * 1000));
        // PE 1's first send waits for PE 2, which waits for PE 3, which waits for PE 1's second send.
        match me {
            0 => {
                // Two groups here are one at PE 1.
                comm.recv(&stream, into(0), 1)?;
                comm.recv(&stream, into(1), 1)?;
            }
            1 => comm.group(&stream, |group| {
                comm.send(group, out, 2)?;
                comm.send(group, out, 3)?;
                comm.send(group, out, 0)?;
                comm.send(group, out.slice(..1000), 0)
            })?,
            2 => {
                comm.recv(&stream, into(0), 3)?;
                comm.recv(&stream, into(1), 1)?;
            }
            _ => {
                comm.recv(&stream, into(0), 1)?;
                comm.send(&stream, out, 2)?;
            }
        }
        // All others have nothing to do.
        comm.group(&stream, |_| Ok(()))?;
        world.synchronize(&stream)?;
        let from = |i: usize| dst.to_vec()[i * 1000..(i + 1) * 1000].to_vec();
        match me {
            0 => assert_eq!((from(0), from(1)), (vec![1; 1000], vec![1; 1000])),
            2 => assert_eq!((from(0), from(1)), (vec![3; 1000], vec![1; 1000])),
            3 => assert_eq!(from(0), vec![1; 1000]),
            _ => assert_eq!(from(0), vec![0; 1000]),
        }
        Ok(())
    });
}

#[test]
fn lists_on_the_heap_exchange_the_edges_of_one_buffer() {
    for (width, proxied) in MACHINES {
        let program = |world: &mut World| {
            let (plan, stream) = (world.plan(Layout::new(world.team(), 2).buffer(64 << 10))?, world.stream()?);
            let cells = world.alloc::<u32>(500)?;
            let (sends, receives) = (world.alloc::<[u64; 3]>(2)?, world.alloc::<[u64; 3]>(2)?);
            let (me, npes) = (world.pe().index() as u64, world.npes() as u64);
            let (left, right) = ((me + npes - 1) % npes, (me + 1) % npes);
            cells.fill(me as u32);
            sends.write(0, &[[left, 100, 100], [right, 300, 100]])?;
            receives.write(0, &[[left, 0, 100], [right, 400, 100]])?;
            world.barrier()?;
            let lists = Listed { sends: sends.view(), receives: receives.view() };
            for _ in 0..3 {
                let args = (world.team(), cells.view(), cells.view(), lists, plan.view());
                world.run(&stream, exchange, Grid::new(2, 64), args)?;
            }
            let got = cells.to_vec();
            assert!(got[..100].iter().all(|&cell| u64::from(cell) == left));
            assert!(got[100..400].iter().all(|&cell| u64::from(cell) == me));
            assert!(got[400..].iter().all(|&cell| u64::from(cell) == right));
            Ok::<_, Error>(())
        };
        builder().width(width).proxied(proxied).local(3, program).unwrap();
    }
}

/// A call with a stream and a buffer of 120 elements of each type.
type Calls = fn(&mut Comm, &Stream, &Buffers) -> Result<(), LaunchError>;

struct Buffers {
    floats: Sym<f32>,
    ints: Sym<i32>,
    longs: Sym<u64>,
}

/// What every PE of three says when PE 2 makes `wrong` as its fourth call where the others make `right`.
fn told(right: Calls, wrong: Calls) -> Vec<(String, Option<FaultKind>)> {
    local(3, |world| {
        let mut comm = world.comm_with(world.team(), CommOptions { check: Some(true), ..CommOptions::default() })?;
        let (stream, me) = (world.stream()?, comm.rank());
        let (floats, ints, longs) = (world.alloc::<f32>(120)?, world.alloc::<i32>(120)?, world.alloc::<u64>(120)?);
        let buffers = Buffers { floats: floats.view(), ints: ints.view(), longs: longs.view() };
        comm.barrier(&stream)?;
        comm.all_reduce(&stream, floats.view(), floats.view(), Op::Sum)?;
        comm.broadcast(&stream, longs.view(), longs.view(), 1)?;
        world.synchronize(&stream)?;
        let mine = me as u8 + 1;
        floats.fill(mine.into());
        ints.fill(mine.into());
        longs.fill(mine.into());
        world.barrier()?;
        let call = if me == 2 { wrong } else { right };
        let ended = call(&mut comm, &stream, &buffers).and_then(|()| Ok(world.synchronize(&stream)?));
        // Nothing has moved.
        assert_eq!(floats.to_vec(), [f32::from(mine); 120]);
        assert_eq!((ints.to_vec(), longs.to_vec()), (vec![mine.into(); 120], vec![mine.into(); 120]));
        Ok(match ended.unwrap_err() {
            LaunchError::World(WorldFailure::Fault(fault)) => (fault.to_string(), Some(fault.kind)),
            other => (other.to_string(), None),
        })
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

#[test]
fn members_that_call_different_things_are_all_told_what_differs() {
    let all_reduce: Calls = |comm, stream, on| comm.all_reduce(stream, on.floats, on.floats, Op::Sum);
    let cases: [(Calls, Calls, &[&str]); 8] = [
        (
            all_reduce,
            |comm, stream, on| comm.broadcast(stream, on.floats, on.floats, 0),
            &["called broadcast", "called all-reduce"],
        ),
        (
            all_reduce,
            |comm, stream, on| comm.all_reduce(stream, on.floats.slice(..90), on.floats.slice(..90), Op::Sum),
            &["called all-reduce with count", "120", "90"],
        ),
        (
            all_reduce,
            |comm, stream, on| comm.all_reduce(stream, on.ints, on.ints, Op::Sum),
            &["called all-reduce with type", "float", "int32"],
        ),
        (
            all_reduce,
            |comm, stream, on| comm.all_reduce(stream, on.floats, on.floats, Op::Max),
            &["called all-reduce with operator", "sum", "max"],
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
                comm.force(Algorithm::Direct, Protocol::Simple);
                comm.all_reduce(stream, on.floats, on.floats, Op::Sum)
            },
            |comm, stream, on| {
                comm.force(Algorithm::Ring, Protocol::Simple);
                comm.all_reduce(stream, on.floats, on.floats, Op::Sum)
            },
            &["called all-reduce with algorithm", "ring", "direct"],
        ),
        (
            |comm, stream, on| {
                comm.force(Algorithm::Ring, Protocol::Simple);
                comm.all_reduce(stream, on.floats, on.floats, Op::Sum)
            },
            |comm, stream, on| {
                comm.force(Algorithm::Ring, Protocol::Ll);
                comm.all_reduce(stream, on.floats, on.floats, Op::Sum)
            },
            &["called all-reduce with protocol", "simple", "ll"],
        ),
    ];
    for (right, wrong, words) in cases {
        assert_told(&told(right, wrong), words);
    }
}

/// Calls that a stream has behind one that is given up find its channel taken, and end as it does.
#[test]
fn calls_behind_one_that_is_given_up_end_like_it() {
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
    src.fill(7);
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
    assert_eq!(dst.to_vec()[10..20], [0; 10], "PE 1 sends nothing, and nobody else sends to these elements of PE 2");
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
        let other = world.comm(world.team())?;
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
        refused(comm.group(&stream, |group| other.barrier(group)), &["of the communicator that it is of"]);
        // What stood in a group before the mistake is not enqueued.
        long.fill(1);
        let spoilt = comm.group(&stream, |group| {
            comm.all_reduce(group, buf, buf, Op::Sum)?;
            comm.broadcast(group, buf, buf, 7)
        });
        refused(spoilt, &["member 7 cannot be the root"]);
        world.synchronize(&stream)?;
        assert_eq!(long.to_vec(), [1; 100]);

        comm.force(Algorithm::Multimem, Protocol::Simple);
        refused(comm.all_reduce(&stream, buf, buf, Op::Sum), &["forced to multimem", "no multicast addresses"]);
        comm.force(Algorithm::Ring, Protocol::Ll128);
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
        assert_eq!(long.to_vec(), [2; 100]);
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

#[test]
fn two_streams_of_two_communicators_at_once() {
    local(3, |world| {
        let comms = [world.comm_with(world.team(), options(2))?, world.comm_with(world.team(), options(1))?];
        let streams = [world.stream()?, world.stream()?];
        let me = comms[0].rank() as u64;
        let mut buffers = Vec::new();
        for _ in 0..4 {
            buffers.push(world.alloc::<u64>(777)?);
        }
        for buffer in &buffers {
            buffer.fill(me + 1);
        }
        world.barrier()?;
        // Each communicator runs on both streams; nothing waits in between.
        let spare = (0..4).map(|_| world.alloc::<u64>(777)).collect::<Result<Vec<_>, _>>()?;
        for _ in 0..25 {
            for (i, (buffer, spare)) in buffers.iter().zip(&spare).enumerate() {
                let (comm, stream) = (&comms[i / 2], &streams[i % 2]);
                comm.all_reduce(stream, spare.view(), buffer.view(), Op::Max)?;
                comm.barrier(stream)?;
                comm.group(stream, |group| {
                    comm.send(group, buffer.view(), (comm.rank() + 1) % 3)?;
                    comm.recv(group, spare.view(), (comm.rank() + 2) % 3)
                })?;
                comm.all_reduce(stream, buffer.view(), spare.view(), Op::Sum)?;
                comm.all_reduce(stream, spare.view(), buffer.view(), PreMulSum(2))?;
                comm.all_reduce(stream, buffer.view(), buffer.view(), Op::Min)?;
            }
        }
        for stream in &streams {
            world.synchronize(stream)?;
        }
        // Every round sums three buffers, which are alike after the first: 6 * 3^24.
        let sum = 6 * 3u64.pow(24);
        for (buffer, spare) in buffers.iter().zip(&spare) {
            assert_eq!(buffer.to_vec(), [sum; 777]);
            assert_eq!(spare.to_vec(), [6 * sum; 777]);
        }
        Ok(())
    });
}

#[test]
fn splits_of_the_world_and_of_its_parts() {
    local(5, |world| {
        let me = world.pe().index();
        // Even PEs in reverse order, odd ones in order.
        let key = if me.is_multiple_of(2) { 10 - me as u32 } else { me as u32 };
        let half = world.comm_split(Some(me as u32 % 2), key)?.unwrap();
        let expected = if me.is_multiple_of(2) { (2 - me / 2, 3) } else { (me / 2, 2) };
        assert_eq!((half.rank(), half.size()), expected);
        // Rank 0 of each leaves; colours of different communicators are different ones.
        let rest = half.split(world, (half.rank() > 0).then_some(7), 0)?;
        let sizes = [Some(2), None, Some(2), Some(1), None];
        assert_eq!(rest.as_ref().map(Comm::size), sizes[me]);
        let (stream, sum) = (world.stream()?, world.alloc::<u32>(10)?);
        sum.fill(1 << me);
        world.barrier()?;
        half.all_reduce(&stream, sum.view(), sum.view(), Op::Sum)?;
        world.synchronize(&stream)?;
        assert_eq!(sum.to_vec(), [if me.is_multiple_of(2) { 0b10101 } else { 0b01010 }; 10]);
        if let Some(rest) = &rest {
            sum.fill(1 << me);
            rest.all_reduce(&stream, sum.view(), sum.view(), Op::Sum)?;
            world.synchronize(&stream)?;
            assert_eq!(sum.to_vec(), [if me == 3 { 0b01000 } else { 0b00101 }; 10]);
        }
        // Without a communicator one takes part in the splits of others.
        let none = match &rest {
            Some(rest) => rest.split(world, None, 0)?,
            None => world.comm_split(None, 0)?,
        };
        assert!(none.is_none());
        Ok(())
    });
}

#[test]
fn the_selector_chooses_and_says_what() {
    local(2, |world| {
        let mut comm = world.comm(world.team())?;
        let reduction = Some((Op::Sum, congruent::collectives::Datatype::F32));
        let small = comm.chosen(Collective::AllReduce, 64, reduction)?;
        assert_eq!((small.algorithm, small.protocol), (Algorithm::OneShot, Protocol::Ll));
        let large = comm.chosen(Collective::AllReduce, 64 << 20, reduction)?;
        assert_eq!((large.protocol, large.source), (Protocol::Simple, Source::Model));
        assert!(large.predicted_ns > 100.0 * small.predicted_ns);
        comm.force(Algorithm::Ring, Protocol::Ll);
        let forced = comm.chosen(Collective::AllReduce, 64, reduction)?;
        assert_eq!((forced.algorithm, forced.protocol, forced.source), (Algorithm::Ring, Protocol::Ll, Source::Forced));
        Ok(())
    });
}

/// Set for the process in which [`the_environments_choice_is_obeyed_or_refused`] looks at its effect.
const CHILD: &str = "CONGRUENT_TEST_FORCED";

#[test]
fn the_environments_choice_is_obeyed_or_refused() {
    if std::env::var_os(CHILD).is_none() {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_environments_choice_is_obeyed_or_refused", "--nocapture"])
            .env(CHILD, "1")
            .env("CONGRUENT_ALGO", "ring;broadcast:multimem")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stderr).into_owned() + &String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    local(2, |world| {
        let (comm, stream) = (world.comm(world.team())?, world.stream()?);
        let buffer = world.alloc::<f32>(16)?;
        let chosen = comm.chosen(Collective::AllReduce, 64, None)?;
        assert_eq!(chosen.algorithm, Algorithm::Ring);
        comm.all_reduce(&stream, buffer.view(), buffer.view(), Op::Sum)?;
        let refused = comm.broadcast(&stream, buffer.view(), buffer.view(), 0).unwrap_err().to_string();
        assert!(refused.contains("CONGRUENT_ALGO=ring;broadcast:multimem"), "{refused}");
        assert!(refused.contains("no multicast addresses"), "{refused}");
        // There is no ring all-to-all, and it does not fall back to another.
        let refused = comm.all_to_all(&stream, buffer.view(), buffer.view()).unwrap_err().to_string();
        assert!(refused.contains("CONGRUENT_ALGO=ring;broadcast:multimem leaves no way for all-to-all"), "{refused}");
        world.synchronize(&stream)?;
        Ok(())
    });
}
