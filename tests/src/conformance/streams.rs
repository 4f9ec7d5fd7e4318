//! What the host puts on streams without a kernel, and graphs of it: in order with launches, again and again.

use std::time::{Duration, Instant};

use congruent::collectives::{Algorithm, Collective, Datatype, Listed, Op, Protocol, Transfer};
use congruent::device::abi::FaultKind;
use congruent::device::{Atomic, Semaphore, Signal, Sym, bf16, f16};
use congruent::select::Circumstances;
use congruent::{Error, Grid, LaunchError, OwnPreMulSum, Stream, World, WorldFailure};
use congruent_example_kernels::descend::descend;
use congruent_test_kernels::streams::{MODULUS, product, raise, sum_of_halves};

use super::limit::{is_limited, times};
use super::pattern::neighbours;

const GRID: Grid = Grid::one(64);
/// How long streams that wait in vain may take to end, less than the host is patient with kernels that do not.
const PATIENCE: Duration = Duration::from_secs(4);

/// Elements: several pages, and no round number.
fn len() -> usize {
    if is_limited() { 1003 } else { 5003 }
}

/// How often a graph is launched; less often where many PEs share few cores.
fn replays(world: &World) -> u64 {
    times(if world.npes() <= 2 { 1000 } else { 100 })
}

/// Puts, gets and signals on streams, and graphs.
pub fn streams(world: &mut World) -> Result<(), Error> {
    a_crates_first_kernel(world)?;
    in_order_with_launches(world)?;
    across_streams(world)?;
    sums(world)?;
    weighted_sums(world)?;
    graphs(world)?;
    copies_in_a_graph(world)?;
    signals_in_a_graph(world)?;
    transfers_in_graphs(world)?;
    listed_transfers(world)?;
    groups_of_communicators(world)?;
    own_kernels(world)?;
    refusals(world)
}

/// A PE launches the first kernel of a crate while others wait for it, maybe on the same GPU: that was loaded before.
fn a_crates_first_kernel(world: &mut World) -> Result<(), Error> {
    let (comm, stream) = (world.comm(world.team())?, world.stream()?);
    let (gradients, wait) = (world.alloc::<f32>(1)?, world.alloc::<Signal>(1)?);
    gradients.write(0, &[1.0])?;
    let mut weights = world.buffer::<f32>(1)?;
    let last = world.rank(world.npes() as u32 - 1)?;
    world.load(descend)?;
    world.barrier()?;
    if world.pe() == last.pe() {
        // Those before it are behind what told of them, or soon will be.
        world.wait_at_least(&stream, wait.view(), world.npes() as u64 - 1)?;
        world.synchronize(&stream)?;
        world.launch(&stream, descend, Grid::one(32), (&mut weights, gradients.view(), -1.0))?;
    } else {
        world.notify(&stream, wait.view().at(last).add(1))?;
    }
    comm.all_reduce(&stream, gradients.view(), gradients.view(), Op::Sum)?;
    world.synchronize(&stream)?;
    assert_eq!(gradients.to_vec()?, [world.npes() as f32]);
    assert_eq!(weights.to_vec()?, [if world.pe() == last.pe() { 1.0 } else { 0.0 }]);
    Ok(world.barrier()?)
}

/// Groups of sends and receives are enqueued while the stream still waits: the host waits for none of those before.
pub fn groups_in_flight(world: &mut World) -> Result<(), Error> {
    /// More than may have been in flight by any count of lists.
    const GROUPS: usize = 40;
    let (comm, stream, other) = (world.comm(world.team())?, world.stream()?, world.stream()?);
    let (next, prev) = neighbours(world);
    let (src, dst, go) = (world.alloc::<u32>(GROUPS)?, world.alloc::<u32>(GROUPS)?, world.alloc::<Signal>(1)?);
    let numbers: Vec<u32> = (0..GROUPS as u32).collect();
    src.write(0, &numbers)?;
    world.wait_at_least(&stream, go.view(), 1)?;
    for i in 0..GROUPS {
        comm.group(&stream, |group| {
            comm.send(group, src.view().slice(i..i + 1), next)?;
            comm.recv(group, dst.view().slice(i..i + 1), prev)
        })?;
    }
    assert!(!stream.is_idle());
    world.notify(&other, go.view().at(world.rank(world.pe().raw())?).set(1))?;
    world.synchronize(&stream)?;
    assert_eq!(dst.to_vec()?, numbers);
    Ok(())
}

/// Streams wait for signals that nobody sends: that ends at the deadline, with the world. To be run with a short one.
pub fn unanswered(world: &mut World) -> Result<(), Error> {
    let (flag, words, stream) = (world.alloc::<Signal>(1)?, world.alloc::<u64>(10)?, world.stream()?);
    let (next, _) = neighbours(world);
    let (pe, peer) = (world.pe().raw(), next as u32);
    world.launch(&stream, raise, GRID, (words.view(), 1))?;
    world.wait_at_least(&stream, flag.view().from_rank(world.rank(peer)?), 5)?;
    // The second is never come to.
    world.wait_at_least(&stream, flag.view(), 6)?;
    let from = Instant::now();
    match world.synchronize(&stream) {
        Err(WorldFailure::Fault(fault)) => {
            assert_eq!((fault.kind, fault.pe, fault.peer), (FaultKind::Timeout, pe, Some(peer)), "{fault}");
            assert_eq!((fault.expected, fault.seen), (5, 0), "{fault}");
        }
        Err(WorldFailure::Aborted { by, reason, .. }) => assert!(by != pe && reason.contains("waited"), "{reason}"),
        other => panic!("{other:?}"),
    }
    assert!(from.elapsed() < PATIENCE, "it took {:?}", from.elapsed());
    assert!(stream.is_idle(), "the stream goes on");
    let refused = world.put(&stream, words.view().at(world.rank(pe)?), words.view());
    assert!(matches!(refused, Err(LaunchError::World(_))), "{refused:?}");
    Ok(())
}

/// A stream waits for a post that nobody makes: that is a fault of the call. What another stream was seen to have done stays right; what
/// a third did may not be. To be run with a short deadline.
pub fn unposted(world: &mut World) -> Result<(), Error> {
    let (turn, stream) = (world.alloc::<Semaphore>(1)?, world.stream()?);
    let (done, unseen) = (world.stream()?, world.stream()?);
    let words = world.alloc::<u64>(10)?;
    world.launch(&done, raise, GRID, (words.view(), 1))?;
    world.synchronize(&done)?;
    let (next, _) = neighbours(world);
    let (pe, peer) = (world.pe().raw(), next as u32);
    world.notify(&stream, turn.view().at(world.rank(pe)?).post())?;
    for stream in [&done, &unseen, &stream] {
        stream.check()?;
    }
    world.launch(&unseen, raise, GRID, (words.view(), 1))?;
    world.barrier()?;
    let line = line!() + 1;
    world.wait(&stream, turn.view().from_rank(world.rank(peer)?), 2)?;
    // Nobody waits for it: it is told all the same.
    let from = Instant::now();
    while stream.check().is_ok() {
        assert!(from.elapsed() < Duration::from_secs(60), "nobody tells");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(done.check().is_ok() && unseen.check().is_err() && world.check().is_err());
    match world.synchronize(&stream) {
        Err(WorldFailure::Fault(fault)) => {
            assert_eq!((fault.kind, fault.pe, fault.peer), (FaultKind::Timeout, pe, Some(peer)), "{fault}");
            assert_eq!((fault.expected, fault.seen, fault.kernel), (2, 1, Some("wait")), "{fault}");
            assert!(fault.at.is_some_and(|at| at.contains(&format!("{}:{line}:", file!()))));
        }
        Err(WorldFailure::Aborted { by, reason, .. }) => assert!(by != pe && reason.contains("waited"), "{reason}"),
        other => panic!("{other:?}"),
    }
    Ok(())
}

/// Each round a kernel raises what is put to the next PE, whose kernel raises it again once the signal is there; the previous PE
/// gets that back.
fn in_order_with_launches(world: &mut World) -> Result<(), Error> {
    let (mine, theirs, back) = (world.alloc::<u64>(len())?, world.alloc::<u64>(len())?, world.alloc::<u64>(len())?);
    let (arrived, done, stream) = (world.alloc::<Signal>(1)?, world.alloc::<Signal>(1)?, world.stream()?);
    let (next, prev) = neighbours(world);
    let (from, to) = (world.rank(prev as u32)?, world.rank(next as u32)?);
    let pe = world.pe().index() as u64;
    mine.fill(pe * 1000)?;
    for round in 1..=20 {
        world.launch(&stream, raise, GRID, (mine.view(), 1))?;
        world.put_signal(&stream, theirs.view().at(to), mine.view(), arrived.view().at(to).set(round))?;
        world.wait_at_least(&stream, arrived.view().from_rank(from), round)?;
        world.launch(&stream, raise, GRID, (theirs.view(), 100_000))?;
        world.notify(&stream, done.view().at(from).set(round))?;
        world.wait_at_least(&stream, done.view().from_rank(to), round)?;
        world.get(&stream, back.view(), theirs.view().at(to))?;
        world.launch(&stream, raise, GRID, (back.view(), 1_000_000))?;
    }
    world.synchronize(&stream)?;
    assert_eq!(mine.to_vec()?, vec![pe * 1000 + 20; len()]);
    assert_eq!(theirs.to_vec()?, vec![prev as u64 * 1000 + 100_020; len()]);
    assert_eq!(back.to_vec()?, vec![pe * 1000 + 1_100_020; len()]);
    Ok(())
}

/// One stream waits for what another one of the same PE signals later, and a put of nothing still signals.
fn across_streams(world: &mut World) -> Result<(), Error> {
    let (words, copy, go) = (world.alloc::<u64>(len())?, world.alloc::<u64>(len())?, world.alloc::<Signal>(2)?);
    let (waiting, working) = (world.stream()?, world.stream()?);
    let me = world.rank(world.pe().raw())?;
    let [first, second] = [0, 1].map(|i| go.view().elem(i));
    world.wait_at_least(&waiting, first, 7)?;
    world.put(&waiting, copy.view().at(me), words.view())?;
    world.put_signal(&waiting, copy.view().slice(..0).at(me), words.view().slice(..0), second.at(me).set(3))?;
    world.launch(&working, raise, GRID, (words.view(), 5))?;
    world.synchronize(&working)?;
    assert!(!waiting.is_idle(), "it waits");
    assert_eq!(copy.to_vec()?, vec![0; len()]);
    world.notify(&working, first.at(me).set(8))?;
    world.wait_at_least(&working, second, 3)?;
    world.launch(&working, raise, GRID, (words.view(), 5))?;
    for stream in [&working, &waiting] {
        world.synchronize(stream)?;
        assert!(stream.is_idle());
    }
    assert_eq!((copy.to_vec()?, words.to_vec()?), (vec![5; len()], vec![10; len()]));
    Ok(())
}

/// Every PE's stream adds to every PE's numbers of all types; signals add, too, and a stream takes as many posts as there were.
fn sums(world: &mut World) -> Result<(), Error> {
    sum_of::<u32>(world, (u32::MAX - 1, 1), |n| (u32::MAX - 1).wrapping_add(n))?;
    sum_of::<i32>(world, (i32::MAX, 1), |n| i32::MAX.wrapping_add(n as i32))?;
    sum_of::<u64>(world, (u64::MAX, 1), |n| u64::from(n) - 1)?;
    sum_of::<i64>(world, (1, -1), |n| 1 - i64::from(n))?;
    sum_of::<f32>(world, (0.5, 1.0), |n| n as f32 + 0.5)?;
    sum_of::<f64>(world, (0.25, -0.5), |n| 0.25 - f64::from(n) / 2.0)?;
    sum_of::<f16>(world, (f16::ZERO, f16::ONE), |n| f16::from_f32(n as f32))?;
    sum_of::<bf16>(world, (bf16::ONE, bf16::ONE), |n| bf16::from_f32(n as f32 + 1.0))?;

    let (count, posts, stream) = (world.alloc::<Signal>(1)?, world.alloc::<Semaphore>(1)?, world.stream()?);
    let (words, copy) = (world.alloc::<u64>(world.npes())?, world.alloc::<u64>(world.npes())?);
    let (me, n) = (world.pe().index(), world.npes() as u64);
    for round in 1..=times(20).max(2) {
        world.launch(&stream, raise, GRID, (words.view().elem(me), 1))?;
        for pe in 0..n as u32 {
            let to = world.rank(pe)?;
            let mine = (copy.view().elem(me).at(to), words.view().elem(me));
            world.put_signal(&stream, mine.0, mine.1, count.view().at(to).add(2))?;
            world.notify(&stream, posts.view().at(to).post_n(3))?;
        }
        world.wait(&stream, posts.view(), 3 * n)?;
        world.synchronize(&stream)?;
        assert_eq!(copy.to_vec()?, vec![round; n as usize]);
        world.wait_at_least(&stream, count.view(), 2 * n * round)?;
        world.synchronize(&stream)?;
        world.barrier()?;
    }
    Ok(())
}

/// Every PE adds `more` to the second of three numbers of every PE, which begins as `first`; there are so many PEs.
fn sum_of<T: Atomic + PartialEq + std::fmt::Debug>(
    world: &mut World,
    (first, more): (T, T),
    sum: fn(u32) -> T,
) -> Result<(), Error> {
    let (numbers, stream) = (world.alloc::<T>(3)?, world.stream()?);
    numbers.fill(first)?;
    world.barrier()?;
    for pe in 0..world.npes() as u32 {
        world.add(&stream, numbers.view().elem(1).at(world.rank(pe)?), more)?;
    }
    world.synchronize(&stream)?;
    world.barrier()?;
    assert_eq!(numbers.to_vec()?, [first, sum(world.npes() as u32), first]);
    Ok(())
}

/// Each member multiplies by a scalar of its own, in every way that there is and in the one that is chosen.
fn weighted_sums(world: &mut World) -> Result<(), Error> {
    const LEN: usize = 301;
    let (mut comm, stream) = (world.comm(world.team())?, world.stream()?);
    let (n, me) = (comm.size(), comm.rank());
    let (src, dst) = (world.alloc::<i64>(LEN * n)?, world.alloc::<i64>(LEN * n)?);
    let value = |member: usize, i: usize| (i * 3 + member) as i64 - 100;
    let weight = |member: usize| OwnPreMulSum(2 * member as i64 - 3);
    let sum = |i: usize| (0..n).map(|member| weight(member).0 * value(member, i)).sum::<i64>();
    src.write(0, &(0..LEN * n).map(|i| value(me, i)).collect::<Vec<_>>())?;
    for collective in [Collective::AllReduce, Collective::Reduce, Collective::ReduceScatter] {
        let usual = comm.circumstances(8 * LEN as u64, Some((Op::PreMulSum, Datatype::I64)));
        let ways = comm.selector().candidates(collective, &Circumstances { own_scalars: true, ..usual });
        assert!(ways.contains(&(Algorithm::RING, Protocol::Simple)), "{collective}: {ways:?}");
        for way in ways.into_iter().map(Some).chain([None]) {
            match way {
                Some((algorithm, protocol)) => comm.force(algorithm, protocol),
                None => comm.unforce(),
            }
            dst.fill(0)?;
            world.barrier()?;
            let (all, part) = (src.view(), dst.view().slice(..LEN));
            let (first, has_it) = match collective {
                Collective::AllReduce => {
                    comm.all_reduce(&stream, part, all.slice(..LEN), weight(me))?;
                    (0, true)
                }
                Collective::Reduce => {
                    comm.reduce(&stream, part, all.slice(..LEN), weight(me), n - 1)?;
                    (0, me == n - 1)
                }
                _ => {
                    comm.reduce_scatter(&stream, part, all, weight(me))?;
                    (LEN * me, true)
                }
            };
            world.synchronize(&stream)?;
            if has_it {
                let expected: Vec<_> = (first..first + LEN).map(sum).collect();
                assert_eq!(dst.to_vec()?[..LEN], expected, "{collective} by {way:?}");
            }
            world.barrier()?;
        }
    }
    comm.force(Algorithm::DIRECT, Protocol::Simple);
    let refused = comm.all_reduce(&stream, dst.view(), src.view(), weight(me)).map_err(|error| error.to_string());
    assert!(refused.as_ref().is_err_and(|said| said.contains("a scalar of its own")), "{refused:?}");
    Ok(())
}

/// A collective and a kernel, launched again and again, with other launches between.
fn graphs(world: &mut World) -> Result<(), Error> {
    let (comm, stream) = (world.comm(world.team())?, world.stream()?);
    let (mine, sum) = (world.alloc::<u64>(100)?, world.alloc::<u64>(100)?);
    let (n, replays) = (world.npes() as u64, replays(world));
    world.launch(&stream, raise, GRID, (mine.view(), 1))?;
    let graph = world.capture(&stream, |stream| {
        comm.all_reduce(stream, sum.view(), mine.view(), Op::Sum)?;
        world.launch(stream, raise, GRID, (mine.view(), 1))?;
        // What came before can be waited for, and is all that has run.
        world.synchronize(stream)?;
        assert!(stream.is_idle());
        assert!(mine.to_vec().is_ok_and(|mine| mine == [1; 100]));
        Ok(())
    })?;
    world.synchronize(&stream)?;
    assert_eq!((mine.to_vec()?, sum.to_vec()?), (vec![1; 100], vec![0; 100]), "captured, not run");
    for _ in 0..replays {
        graph.launch(&stream)?;
    }
    world.synchronize(&stream)?;
    assert_eq!((mine.to_vec()?, sum.to_vec()?), (vec![replays + 1; 100], vec![n * replays; 100]));
    // Calls and launches of the graph take turns.
    for _ in 0..3 {
        comm.all_reduce(&stream, sum.view(), sum.view(), Op::Max)?;
        graph.launch(&stream)?;
    }
    world.synchronize(&stream)?;
    assert_eq!((mine.to_vec()?, sum.to_vec()?), (vec![replays + 4; 100], vec![n * (replays + 3); 100]));
    // It may go while it is under way.
    graph.launch(&stream)?;
    drop(graph);
    world.synchronize(&stream)?;
    assert_eq!(mine.to_vec()?, [replays + 5; 100]);
    Ok(())
}

fn copies_in_a_graph(world: &mut World) -> Result<(), Error> {
    let (comm, stream) = (world.comm(world.team())?, world.stream()?);
    let (mine, theirs, back) = (world.alloc::<u64>(len())?, world.alloc::<u64>(len())?, world.alloc::<u64>(len())?);
    let (next, prev) = neighbours(world);
    let to = world.rank(next as u32)?;
    let pe = world.pe().index() as u64;
    mine.fill(pe * 1000)?;
    let graph = world.capture(&stream, |stream| {
        world.launch(stream, raise, GRID, (mine.view(), 1))?;
        world.put(stream, theirs.view().at(to), mine.view())?;
        comm.barrier(stream)?;
        world.get(stream, back.view(), theirs.view().at(to))?;
        comm.barrier(stream)
    })?;
    for _ in 0..10 {
        graph.launch(&stream)?;
    }
    world.synchronize(&stream)?;
    assert_eq!(theirs.to_vec()?, vec![prev as u64 * 1000 + 10; len()]);
    assert_eq!(back.to_vec()?, vec![pe * 1000 + 10; len()]);
    Ok(())
}

/// Posts and waits for them, captured once: each launch waits for the next ones.
fn signals_in_a_graph(world: &mut World) -> Result<(), Error> {
    let (mine, theirs, back) = (world.alloc::<u64>(len())?, world.alloc::<u64>(len())?, world.alloc::<u64>(len())?);
    let (arrived, done, stream) = (world.alloc::<Semaphore>(1)?, world.alloc::<Semaphore>(1)?, world.stream()?);
    let total = world.alloc::<u64>(1)?;
    let (next, prev) = neighbours(world);
    let (from, to, first) = (world.rank(prev as u32)?, world.rank(next as u32)?, world.rank(0)?);
    let pe = world.pe().index() as u64;
    mine.fill(pe * 1_000_000)?;
    let graph = world.capture(&stream, |stream| {
        world.launch(stream, raise, GRID, (mine.view(), 1))?;
        world.put_signal(stream, theirs.view().at(to), mine.view(), arrived.view().at(to).post())?;
        world.wait(stream, arrived.view().from_rank(from), 1)?;
        world.launch(stream, raise, GRID, (theirs.view(), 1000))?;
        world.notify(stream, done.view().at(from).post())?;
        world.wait(stream, done.view().from_rank(to), 1)?;
        world.get(stream, back.view(), theirs.view().at(to))?;
        world.add(stream, total.view().at(first), 1)
    })?;
    assert_eq!(mine.to_vec()?, vec![pe * 1_000_000; len()], "captured, not run");
    let rounds = times(50).max(2);
    for round in 1..=rounds {
        graph.launch(&stream)?;
        if round % 7 == 1 {
            world.synchronize(&stream)?;
            let (raised, got) = (pe * 1_000_000 + round, back.to_vec()?);
            assert_eq!((mine.to_vec()?, got), (vec![raised; len()], vec![raised + 1000; len()]), "round {round}");
            world.barrier()?;
        }
    }
    world.synchronize(&stream)?;
    world.barrier()?;
    assert_eq!(theirs.to_vec()?, vec![prev as u64 * 1_000_000 + rounds + 1000; len()]);
    assert_eq!(total.to_vec()?, [if pe == 0 { rounds * world.npes() as u64 } else { 0 }]);
    Ok(())
}

/// Groups of sends and receives, captured in two graphs that take turns with each other and with groups that are in none.
fn transfers_in_graphs(world: &mut World) -> Result<(), Error> {
    const PART: usize = 40;
    let (comm, stream) = (world.comm(world.team())?, world.stream()?);
    let (src, dst) = (world.alloc::<u64>(3 * PART)?, world.alloc::<u64>(3 * PART)?);
    let (next, prev) = neighbours(world);
    let pe = world.pe().index() as u64;
    let numbers = |pe: u64| (0..3 * PART as u64).map(|i| pe * 1000 + i).collect::<Vec<_>>();
    src.write(0, &numbers(pe))?;
    let part = |i: usize| i * PART..(i + 1) * PART;
    // Of part `i` some launches sends the beginning, to where the same part of the peer is.
    let ring = |stream: &Stream, i: usize, len: usize| {
        comm.group(stream, |group| {
            comm.recv(group, dst.view().slice(part(i)).slice(..len), prev)?;
            comm.send(group, src.view().slice(part(i)).slice(..len), next)
        })
    };
    let whole = world.capture(&stream, |stream| ring(stream, 0, PART))?;
    let half = world.capture(&stream, |stream| {
        ring(stream, 1, PART / 2)?;
        world.launch(stream, raise, GRID, (src.view().slice(part(1)), 10_000))
    })?;
    let rounds = times(20).max(2);
    for _ in 0..rounds {
        whole.launch(&stream)?;
        half.launch(&stream)?;
        ring(&stream, 2, PART)?;
    }
    world.synchronize(&stream)?;
    let mut expected = numbers(prev as u64);
    expected[part(1)].iter_mut().for_each(|number| *number += (rounds - 1) * 10_000);
    expected[part(1)][PART / 2..].fill(0);
    assert_eq!(dst.to_vec()?, expected);
    Ok(())
}

/// Sends and receives whose lists kernels change: each launch of a graph moves the next number.
fn listed_transfers(world: &mut World) -> Result<(), Error> {
    const LEN: usize = 20;
    let (comm, stream) = (world.comm(world.team())?, world.stream()?);
    let (next, prev) = neighbours(world);
    let (numbers, lists) = (world.alloc::<u64>(2 * LEN)?, world.alloc::<[u64; 3]>(2)?);
    let numbers_of = |pe: usize| (0..LEN as u64).map(move |i| 100 * pe as u64 + i);
    numbers.write(0, &numbers_of(comm.rank()).collect::<Vec<_>>())?;
    // To the next member from the first half, from the one before to the second half; each launch goes on by a number.
    let words = [(next, 0), (prev, LEN)];
    let entry = |(peer, at): (usize, usize)| Transfer { peer: peer as u64, offset: 8 * at as u64, count: 8 }.words();
    lists.write(0, &words.map(entry))?;
    let offset = |i: usize| lists.view().cast::<u64>().slice(3 * i + 1..3 * i + 2);
    let transfers = Listed { sends: lists.view().slice(..1), receives: lists.view().slice(1..) };
    let graph = world.capture(&stream, |stream| {
        comm.send_recv(stream, numbers.view().cast(), transfers)?;
        world.launch(stream, raise, GRID, (offset(0), 8))?;
        world.launch(stream, raise, GRID, (offset(1), 8))
    })?;
    for _ in 0..LEN {
        graph.launch(&stream)?;
    }
    world.synchronize(&stream)?;
    assert_eq!(numbers.to_vec()?[LEN..], numbers_of(prev).collect::<Vec<_>>());
    Ok(())
}

/// Groups have calls of two communicators, on one stream or on two. PEs give these in different orders, and each is a ring: transfers of
/// one wait for those of the other unless all PEs launch them in one order.
fn groups_of_communicators(world: &mut World) -> Result<(), Error> {
    const LEN: usize = 33;
    let pe = world.pe().raw();
    let Some(half) = world.comm_split(Some(pe % 2), pe)? else { unreachable!("every PE gave a colour") };
    let (all, first, second) = (world.comm(world.team())?, world.stream()?, world.stream()?);
    let (mine, sum) = (world.alloc::<u32>(LEN)?, world.alloc::<u32>(LEN)?);
    let (from_all, from_half) = (world.alloc::<u32>(LEN)?, world.alloc::<u32>(LEN)?);
    let (next, prev) = neighbours(world);
    let (after, before) = ((half.rank() + 1) % half.size(), (half.rank() + half.size() - 1) % half.size());
    mine.fill(pe)?;
    // Both are used for the first time in the same order.
    for (comm, stream) in [(&all, &first), (&half, &first), (&half, &second)] {
        comm.group(stream, |_| Ok(()))?;
    }
    for other in [&first, &second] {
        for _ in 0..times(100).max(2) {
            let (one, another) =
                if pe < 2 { ((&all, &first), (&half, other)) } else { ((&half, other), (&all, &first)) };
            one.0.group(one.1, |group| {
                group.with(another.0, another.1)?;
                half.send(group, mine.view(), after)?;
                all.all_reduce(group, sum.view(), mine.view(), Op::Max)?;
                all.send(group, mine.view(), next)?;
                half.recv(group, from_half.view(), before)?;
                all.recv(group, from_all.view(), prev)
            })?;
        }
        world.synchronize(&first)?;
        world.synchronize(&second)?;
        let n = world.npes() as u32;
        let got = (sum.to_vec()?, from_all.to_vec()?, from_half.to_vec()?);
        let sent_in_half = 2 * before as u32 + pe % 2;
        assert_eq!(got, (vec![n - 1; LEN], vec![prev as u32; LEN], vec![sent_in_half; LEN]), "PE {pe}");
        for received in [&sum, &from_all, &from_half] {
            received.fill(u32::MAX)?;
        }
        world.barrier()?;
    }
    Ok(())
}

/// Kernels of a program's own on a communicator's plan, on two streams, between its calls and in a graph.
fn own_kernels(world: &mut World) -> Result<(), Error> {
    const LEN: usize = 70;
    let (comm, streams) = (world.comm(world.team())?, [world.stream()?, world.stream()?]);
    let (n, me, grid) = (world.npes() as u32, world.pe().raw(), comm.grid());
    let (mine, all, most) = (world.alloc::<u32>(LEN)?, world.alloc::<u32>(2 * LEN)?, world.alloc::<u32>(2 * LEN)?);
    let (halves, sums) = (world.alloc::<f16>(LEN)?, world.alloc::<f16>(LEN)?);
    mine.fill(me + 200)?;
    // A sum in 16 bits loses each 1; one in `f32` is rounded once.
    halves.fill(f16::from_f32(if me == 0 { 2048.0 } else { 1.0 }))?;
    let step = |stream: &Stream, i: usize| {
        let part = |of: Sym<u32>| of.slice(i * LEN..(i + 1) * LEN);
        comm.launch(world, stream, product, grid, |plan| (part(all.view()), mine.view(), plan))?;
        comm.all_reduce(stream, part(most.view()), part(all.view()), Op::Max)?;
        comm.launch(world, stream, product, grid, |plan| (part(all.view()), mine.view(), plan))
    };
    for (i, stream) in streams.iter().enumerate() {
        step(stream, i)?;
    }
    let again = world.capture(&streams[1], |stream| step(stream, 1))?;
    for _ in 0..3 {
        again.launch(&streams[1])?;
    }
    for stream in &streams {
        world.synchronize(stream)?;
    }
    let expected = (1..n).fold(200, |all, pe| all * (pe + 200) % MODULUS);
    assert_eq!((all.to_vec()?, most.to_vec()?), (vec![expected; 2 * LEN], vec![expected; 2 * LEN]));
    for in_halves in if world.is_proxied() { 0..0 } else { 0..2 } {
        let args = |plan| (sums.view(), halves.view(), in_halves, plan);
        comm.launch(world, &streams[0], sum_of_halves, grid, args)?;
        world.synchronize(&streams[0])?;
        let sum = f16::from_f32(if in_halves == 0 { 2047.0 + n as f32 } else { 2048.0 });
        assert_eq!(sums.to_vec()?, [sum; LEN], "in halves: {in_halves}");
    }
    let many = Grid { blocks: grid.blocks + 1, ..grid };
    let refused = comm.launch(world, &streams[0], sum_of_halves, many, |plan| (sums.view(), halves.view(), 0, plan));
    assert!(matches!(refused, Err(LaunchError::PlanBlocks { fits, .. }) if fits == grid.blocks), "{refused:?}");
    Ok(())
}

/// What is refused changes nothing: the stream is as good as before.
fn refusals(world: &mut World) -> Result<(), Error> {
    let (stream, other) = (world.stream()?, world.stream()?);
    let (words, flag) = (world.alloc::<u64>(10)?, world.alloc::<Signal>(1)?);
    let (view, me) = (words.view(), world.rank(world.pe().raw())?);
    let set = flag.view().at(me).set(1);

    let lengths = world.put(&stream, view.at(me), view.slice(..9));
    assert!(matches!(lengths, Err(LaunchError::Lengths { dst: 10, src: 9 })), "{lengths:?}");
    let npes = world.npes();
    for nobody in [npes, 99] {
        let refused = world.rank(nobody as u32);
        assert!(
            matches!(refused, Err(LaunchError::Peer { peer, size }) if (peer, size) == (nobody, npes)),
            "{refused:?}"
        );
    }
    let nothing = world.add(&stream, view.slice(..0).at(me), 1);
    assert!(matches!(nothing, Err(LaunchError::ForeignArgument { kernel: "add" })), "{nothing:?}");
    let nothing = world.wait(&stream, Sym::<Semaphore>::empty(), 1);
    assert!(matches!(nothing, Err(LaunchError::ForeignArgument { kernel: "wait" })), "{nothing:?}");
    let far = world.notify(&stream, Sym::<Signal>::from_raw(1 << 40, 1).at(me).add(1));
    assert!(matches!(far, Err(LaunchError::ForeignArgument { kernel: "notify" })), "{far:?}");
    if world.npes() > 1 {
        let (next, _) = neighbours(world);
        let apart = world.put_signal(&stream, view.at(world.rank(next as u32)?), view, set);
        assert!(matches!(apart, Err(LaunchError::SignalElsewhere { .. })), "{apart:?}");
    }

    let captures = |what: &str, record: &dyn Fn(&Stream) -> Result<(), LaunchError>| {
        let refused = world.capture(&stream, |stream| {
            world.launch(stream, raise, GRID, (view, 1))?;
            record(stream)
        });
        match refused {
            Err(LaunchError::InCapture { call, .. }) => assert_eq!(call, what),
            Err(error) => panic!("{what}: {error}"),
            Ok(_) => panic!("{what} was captured"),
        }
    };
    let graph = world.capture(&stream, |stream| world.launch(stream, raise, GRID, (view, 10)))?;
    captures("notify", &|stream| world.notify(stream, set));
    captures("put_signal", &|stream| world.put_signal(stream, view.at(me), view, set));
    captures("wait_at_least", &|stream| world.wait_at_least(stream, flag.view(), 1));
    captures("run", &|stream| world.run(stream, raise, GRID, (view, 1)));
    captures("a capture", &|stream| world.capture(stream, |_| Ok(())).map(drop));
    captures("a graph", &|stream| graph.launch(stream));
    let elsewhere = graph.launch(&other);
    assert!(matches!(elsewhere, Err(LaunchError::GraphStream)), "{elsewhere:?}");

    graph.launch(&stream)?;
    world.run(&stream, raise, GRID, (view, 1))?;
    assert_eq!(words.to_vec()?, [11; 10], "only what was launched has run");
    Ok(())
}
