//! What the host puts on streams without a kernel, and graphs of it: in order with launches, again and again.

use std::time::{Duration, Instant};

use congruent::collectives::Op;
use congruent::device::abi::FaultKind;
use congruent::device::{Semaphore, Signal};
use congruent::{Error, Grid, LaunchError, Stream, World, WorldFailure};
use congruent_test_kernels::streams::raise;

use super::limit::times;
use super::pattern::neighbours;

/// Elements: several pages, and no round number.
const LEN: usize = 5003;
const GRID: Grid = Grid::one(64);
/// How long streams that wait in vain may take to end, less than the host is patient with kernels that do not.
const PATIENCE: Duration = Duration::from_secs(4);

/// How often a graph is launched; less often where many PEs share few cores.
fn replays(world: &World) -> u64 {
    times(if world.npes() <= 2 { 1000 } else { 100 })
}

/// Puts, gets and signals on streams, and graphs.
pub fn streams(world: &mut World) -> Result<(), Error> {
    in_order_with_launches(world)?;
    across_streams(world)?;
    graphs(world)?;
    copies_in_a_graph(world)?;
    groups_of_communicators(world)?;
    refusals(world)
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

/// Each round a kernel raises what is put to the next PE, whose kernel raises it again once the signal is there; the previous PE
/// gets that back.
fn in_order_with_launches(world: &mut World) -> Result<(), Error> {
    let (mine, theirs, back) = (world.alloc::<u64>(LEN)?, world.alloc::<u64>(LEN)?, world.alloc::<u64>(LEN)?);
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
    assert_eq!(mine.to_vec()?, [pe * 1000 + 20; LEN]);
    assert_eq!(theirs.to_vec()?, [prev as u64 * 1000 + 100_020; LEN]);
    assert_eq!(back.to_vec()?, [pe * 1000 + 1_100_020; LEN]);
    Ok(())
}

/// One stream waits for what another one of the same PE signals later, and a put of nothing still signals.
fn across_streams(world: &mut World) -> Result<(), Error> {
    let (words, copy, go) = (world.alloc::<u64>(LEN)?, world.alloc::<u64>(LEN)?, world.alloc::<Signal>(2)?);
    let (waiting, working) = (world.stream()?, world.stream()?);
    let me = world.rank(world.pe().raw())?;
    let [first, second] = [0, 1].map(|i| go.view().elem(i));
    world.wait_at_least(&waiting, first, 7)?;
    world.put(&waiting, copy.view().at(me), words.view())?;
    world.put_signal(&waiting, copy.view().slice(..0).at(me), words.view().slice(..0), second.at(me).set(3))?;
    world.launch(&working, raise, GRID, (words.view(), 5))?;
    world.synchronize(&working)?;
    assert!(!waiting.is_idle(), "it waits");
    assert_eq!(copy.to_vec()?, [0; LEN]);
    world.notify(&working, first.at(me).set(8))?;
    world.wait_at_least(&working, second, 3)?;
    world.launch(&working, raise, GRID, (words.view(), 5))?;
    for stream in [&working, &waiting] {
        world.synchronize(stream)?;
        assert!(stream.is_idle());
    }
    assert_eq!((copy.to_vec()?, words.to_vec()?), (vec![5; LEN], vec![10; LEN]));
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
    let (mine, theirs, back) = (world.alloc::<u64>(LEN)?, world.alloc::<u64>(LEN)?, world.alloc::<u64>(LEN)?);
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
    assert_eq!(theirs.to_vec()?, [prev as u64 * 1000 + 10; LEN]);
    assert_eq!(back.to_vec()?, [pe * 1000 + 10; LEN]);
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

/// What is refused changes nothing: the stream is as good as before.
fn refusals(world: &mut World) -> Result<(), Error> {
    let (comm, stream, other) = (world.comm(world.team())?, world.stream()?, world.stream()?);
    let (words, flag) = (world.alloc::<u64>(10)?, world.alloc::<Signal>(1)?);
    let turn = world.alloc::<Semaphore>(1)?;
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
    for adds in [flag.view().at(me).add(1), turn.view().at(me).post()] {
        let adds = world.notify(&stream, adds);
        assert!(matches!(adds, Err(LaunchError::NotifyAdds)), "{adds:?}");
    }
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
    captures("a send or receive", &|stream| {
        let me = comm.rank();
        comm.group(stream, |group| {
            comm.send(group, view.slice(..5), me)?;
            comm.recv(group, view.slice(5..), me)
        })
    });
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
