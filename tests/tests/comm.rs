//! Communicators: what they move, how they are split and grouped, and what the selector chooses.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod comm_support;

use std::num::NonZeroU32;
use std::time::Duration;

use congruent::collectives::exchange::Parts;
use congruent::collectives::{Algorithm, Collective, Layout, Listed, Op, PlanView, PreMulSum, Protocol, send_recv};
use congruent::device::{Sym, kernels};
use congruent::select::Source;
use congruent::{Comm, CommOptions, Error, Grid, World};
use congruent_tests::conformance;

use comm_support::{CHILD, MACHINES, builder, child, local};

kernels! {
    /// Sends and receives what lists on the heap say.
    pub fn exchange(block, ctx, dst: Sym<u32>, src: Sym<u32>, lists: Listed, plan: PlanView) {
        send_recv(&mut plan.enter(block, ctx), dst, src, &lists);
    }
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
                    dst.fill(u32::MAX)?;
                    lists.write(0, &packed((0..npes).map(|peer| count(me, peer, round))))?;
                    lists.write(2 * npes, &packed((0..npes).map(|peer| count(peer, me, round))))?;
                    world.barrier()?;
                    let (sends, receives) = (Parts::new(list(0), list(1)), Parts::new(list(2), list(3)));
                    comm.all_to_all_v(&stream, dst.view(), src.view(), receives, sends)?;
                    world.synchronize(&stream)?;
                    let got = dst.to_vec()?;
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
                    dst.fill(u32::MAX)?;
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
                    assert_eq!(dst.to_vec()?, model, "{npes} PEs, width {width}, round {round}, PE {me}");
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
                    dst.fill(u32::MAX)?;
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
                    let got = dst.to_vec()?;
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
        a.fill(me as i64)?;
        b.fill(-1)?;
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
        assert_eq!(b.to_vec()?, [(me as i64 + 3) % 4; 100]);
        assert_eq!(c.to_vec()?, [6 * 2 * 4; 100]);
        Ok(())
    });
}

#[test]
fn transfers_match_across_groups_and_start_in_no_order() {
    local(4, |world| {
        let (comm, stream) = (world.comm(world.team())?, world.stream()?);
        let (src, dst) = (world.alloc::<u32>(1000)?, world.alloc::<u32>(4000)?);
        let me = comm.rank() as u32;
        src.fill(me)?;
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
        let from = |i: usize| dst.to_vec().unwrap()[i * 1000..(i + 1) * 1000].to_vec();
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
            cells.fill(me as u32)?;
            sends.write(0, &[[left, 100, 100], [right, 300, 100]])?;
            receives.write(0, &[[left, 0, 100], [right, 400, 100]])?;
            world.barrier()?;
            let lists = Listed { sends: sends.view(), receives: receives.view() };
            for _ in 0..3 {
                let args = (cells.view(), cells.view(), lists, plan.view());
                world.run(&stream, exchange, Grid::new(2, 64), args)?;
            }
            let got = cells.to_vec()?;
            assert!(got[..100].iter().all(|&cell| u64::from(cell) == left));
            assert!(got[100..400].iter().all(|&cell| u64::from(cell) == me));
            assert!(got[400..].iter().all(|&cell| u64::from(cell) == right));
            Ok::<_, Error>(())
        };
        builder().width(width).proxied(proxied).local(3, program).unwrap();
    }
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
            buffer.fill(me + 1)?;
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
            assert_eq!(buffer.to_vec()?, [sum; 777]);
            assert_eq!(spare.to_vec()?, [6 * sum; 777]);
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
        sum.fill(1 << me)?;
        world.barrier()?;
        half.all_reduce(&stream, sum.view(), sum.view(), Op::Sum)?;
        world.synchronize(&stream)?;
        assert_eq!(sum.to_vec()?, [if me.is_multiple_of(2) { 0b10101 } else { 0b01010 }; 10]);
        if let Some(rest) = &rest {
            sum.fill(1 << me)?;
            rest.all_reduce(&stream, sum.view(), sum.view(), Op::Sum)?;
            world.synchronize(&stream)?;
            assert_eq!(sum.to_vec()?, [if me == 3 { 0b01000 } else { 0b00101 }; 10]);
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
        assert_eq!((small.algorithm, small.protocol), (Algorithm::ONE_SHOT, Protocol::Ll));
        let large = comm.chosen(Collective::AllReduce, 64 << 20, reduction)?;
        assert_eq!((large.protocol, large.source), (Protocol::Simple, Source::Model));
        assert!(large.predicted_ns > 100.0 * small.predicted_ns);
        comm.force(Algorithm::RING, Protocol::Ll);
        let forced = comm.chosen(Collective::AllReduce, 64, reduction)?;
        assert_eq!((forced.algorithm, forced.protocol, forced.source), (Algorithm::RING, Protocol::Ll, Source::Forced));
        Ok(())
    });
}

#[test]
fn the_environments_choice_is_obeyed_or_refused() {
    if std::env::var_os(CHILD).is_none() {
        child("the_environments_choice_is_obeyed_or_refused", &[("CONGRUENT_ALGO", "ring;broadcast:multimem")]);
        return;
    }
    local(2, |world| {
        let (comm, stream) = (world.comm(world.team())?, world.stream()?);
        let buffer = world.alloc::<f32>(16)?;
        let chosen = comm.chosen(Collective::AllReduce, 64, None)?;
        assert_eq!(chosen.algorithm, Algorithm::RING);
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

#[test]
fn groups_are_enqueued_without_waiting_for_those_before() {
    World::builder().heap(64 << 20).deadline(Duration::from_secs(20)).local(3, conformance::groups_in_flight).unwrap();
}
