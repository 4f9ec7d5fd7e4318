//! What a plan says that a collective moves is what its kernels move, byte by byte, between every two members; and the trace
//! of a ring shows its steps.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use congruent::collectives::{Algorithm, Call, Collective, Descriptor, Layout, Op, Protocol};
use congruent::trace::{TraceEvent, read};
use congruent::{Comm, CommOptions, Error, Stream, SymVec, World};
use congruent_tests::conformance::few_shapes;

/// Calls of each collective: the first of a plan write whole places of their queues, which the plan does not count.
const WARM: usize = 8;

type Matrix = BTreeMap<(usize, usize), u64>;

/// Runs one collective of `bytes` bytes on buffers of `f32`.
fn enqueue(
    comm: &Comm,
    stream: &Stream,
    collective: Collective,
    (long, short): (&SymVec<f32>, &SymVec<f32>),
    bytes: usize,
    in_place: bool,
) -> Result<(), Error> {
    let count = bytes / 4;
    let (whole, other) = (long.view().slice(..count), short.view().slice(..count));
    let part = short.view().slice(..count / comm.size());
    match collective {
        Collective::AllReduce => comm.all_reduce(stream, other, whole, Op::Sum)?,
        Collective::Reduce => comm.reduce(stream, other, whole, Op::Sum, 1 % comm.size())?,
        Collective::Broadcast => {
            comm.broadcast(stream, if in_place { whole } else { other }, whole, 1 % comm.size())?
        }
        Collective::ReduceScatter => comm.reduce_scatter(stream, part, whole, Op::Sum)?,
        Collective::AllGather => comm.all_gather(stream, whole, part)?,
        Collective::Gather => comm.gather(stream, whole, part, 1 % comm.size())?,
        Collective::Scatter => comm.scatter(stream, part, whole, 1 % comm.size())?,
        Collective::AllToAll => comm.all_to_all(stream, other, whole)?,
        _ => {}
    }
    Ok(())
}

/// Compares declared with counted bytes for every way of every collective.
fn compare(world: &mut World) -> Result<(), Error> {
    let n = world.npes();
    // What members tell each other when they compare their calls is no part of a collective.
    let options = CommOptions { buffer: Some(64 << 10), check: Some(false), ..CommOptions::default() };
    let most = 3 * 40_000;
    let buffers = (world.alloc::<f32>(most * n)?, world.alloc::<f32>(most * n)?);
    let stream = world.stream()?;
    let mut compared = 0;
    for of in Descriptor::ALL {
        for &protocol in of.protocols {
            let (collective, algorithm) = (of.collective, of.algorithm);
            let mut comm = world.comm_with(world.team(), options)?;
            let layout: Layout = *comm.layout();
            for (bytes, in_place) in
                [(4 * n, false), (4 * 999 * n, false), (4 * 999 * n, true), (4 * 40_000 * n, false)]
            {
                if in_place && collective != Collective::Broadcast {
                    continue;
                }
                let call = Call { protocol, root: 1 % n, bytes, in_place, blocks: 1 };
                let mut declared = Matrix::new();
                if !layout.moves(of, &call, world.pe().index(), |m| {
                    *declared.entry((m.from, m.to)).or_default() += m.wire as u64
                }) {
                    continue;
                }
                comm.force(algorithm, protocol);
                let warm = (0..WARM)
                    .try_for_each(|_| enqueue(&comm, &stream, collective, (&buffers.0, &buffers.1), bytes, in_place));
                if warm.is_err() {
                    // What the machine does not have (multimem) or the plan is too small for; the same on every PE.
                    continue;
                }
                world.synchronize(&stream)?;
                let before = world.traffic().unwrap();
                enqueue(&comm, &stream, collective, (&buffers.0, &buffers.1), bytes, in_place)?;
                world.synchronize(&stream)?;
                let after = world.traffic().unwrap();
                let mut counted = Matrix::new();
                let me = world.pe().index();
                for pe in 0..n {
                    for (way, moved) in
                        [((me, pe), after.put[pe] - before.put[pe]), ((pe, me), after.got[pe] - before.got[pe])]
                    {
                        if moved > 0 {
                            *counted.entry(way).or_default() += moved;
                        }
                    }
                }
                assert_eq!(counted, declared, "{collective} {algorithm} {protocol} of {bytes} B on PE {me} of {n}");
                compared += 1;
            }
        }
    }
    assert!(compared > 60, "only {compared} ways were compared");
    Ok(())
}

#[test]
fn plans_declare_what_kernels_move() {
    for n in if few_shapes() { vec![3] } else { vec![2, 3, 4, 7] } {
        World::builder().heap(64 << 20).watch(true).ll128(true).local(n, compare).unwrap();
    }
}

#[test]
fn a_ring_sends_twice_n_minus_1_of_n_of_its_bytes() {
    let ring = |world: &mut World| {
        let (n, count) = (world.npes(), 4 * 5 * 7 * 1024);
        let buffer = world.alloc::<f32>(count)?;
        let unchecked = CommOptions { check: Some(false), ..CommOptions::default() };
        let (stream, mut comm) = (world.stream()?, world.comm_with(world.team(), unchecked)?);
        comm.force(Algorithm::RING, Protocol::Simple);
        comm.all_reduce(&stream, buffer.view(), buffer.view(), Op::Sum)?;
        world.synchronize(&stream)?;
        let traffic = world.traffic().unwrap();
        let (sent, read): (u64, u64) = (traffic.put.iter().sum(), traffic.got.iter().sum());
        assert_eq!((sent, read), (2 * (n as u64 - 1) * 4 * count as u64 / n as u64, 0));
        Ok::<_, Error>(())
    };
    for n in [2, 4, 5, 7] {
        World::builder().watch(true).local(n, ring).unwrap();
    }
}

/// Set for the process that writes the trace: it is chosen by the environment.
const TRACE: &str = "CONGRUENT_TRACE";

/// Runs every algorithm that tells its moves once, over its first protocol, and gives the names that it told of its steps.
fn run_each(world: &mut World) -> Result<Vec<(String, BTreeSet<&'static str>)>, Error> {
    let (n, bytes) = (world.npes(), 4 * 40_000 * world.npes());
    let buffers = (world.alloc::<f32>(bytes / 4)?, world.alloc::<f32>(bytes / 4)?);
    let options = CommOptions { buffer: Some(64 << 10), check: Some(false), ..CommOptions::default() };
    let (stream, mut comm) = (world.stream()?, world.comm_with(world.team(), options)?);
    let mut told = Vec::new();
    for of in Descriptor::ALL.iter().filter(|of| of.moves.is_some()) {
        let &&Descriptor { collective, algorithm, protocols, .. } = of;
        let call = Call { protocol: protocols[0], root: 1, bytes, in_place: false, blocks: 1 };
        let mut names = BTreeSet::new();
        (0..n).for_each(|member| {
            assert!(comm.layout().moves(of, &call, member, |one| {
                names.insert(one.name);
            }))
        });
        comm.force(algorithm, protocols[0]);
        enqueue(&comm, &stream, collective, (&buffers.0, &buffers.1), bytes, false)?;
        told.push((format!("{collective} {algorithm}"), names));
    }
    world.synchronize(&stream)?;
    Ok(told)
}

#[test]
fn traces_and_plans_name_steps_alike() {
    if std::env::var_os(TRACE).is_some() {
        let told = World::builder().heap(64 << 20).local(5, run_each).unwrap();
        return told[0]
            .iter()
            .for_each(|(call, names)| println!("told {call}: {}", Vec::from_iter(names.iter().copied()).join(", ")));
    }
    let file = std::env::temp_dir().join(format!("congruent-steps-{}.json", std::process::id()));
    let mut child = Command::new(std::env::current_exe().unwrap());
    let child = child.args(["--exact", "traces_and_plans_name_steps_alike", "--nocapture"]).env(TRACE, &file);
    let told = child.output().unwrap();
    let trace = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let (told, events) = (String::from_utf8(told.stdout).unwrap(), read(&trace).unwrap());
    // What a step is made of has these names in every kernel.
    let is_part = |event: &TraceEvent| ["put", "get", "wait"].contains(&event.name.as_str());
    let mut compared = 0;
    for (call, told) in told.lines().filter_map(|line| line.strip_prefix("told ")?.split_once(": ")) {
        let mut names = BTreeSet::new();
        for of in events.iter().filter(|event| event.name == call) {
            for step in events.iter().filter(|event| of.holds(event) && event.name != call && !is_part(event)) {
                // Behind the name stands which step it is, where there are several.
                let (name, number) = step.name.rsplit_once(' ').unwrap_or((&step.name, ""));
                names.insert(if number.contains('/') { name } else { &step.name });
            }
        }
        assert_eq!(Vec::from_iter(names).join(", "), told, "{call}");
        compared += 1;
    }
    assert!(compared > 20, "only {compared} algorithms were compared");
}
