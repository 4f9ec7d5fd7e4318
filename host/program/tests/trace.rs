//! The trace of `congruent perf`, as Perfetto would read it: the steps of a ring, and a kernel's own work beside it.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod support;

use congruent::collectives::{Algorithm, Op, Protocol};
use congruent::device::{Group, Mark, Signal, Sym, kernels};
use congruent::trace::{TraceEvent, by_pe_and_name, lost, read};
use congruent::{Error, Grid, World};
use support::{congruent, ended};

kernels! {
    /// Computes for a while, as one part of the work.
    fn compute(block, ctx, numbers: Sym<f32>, rounds: u64) {
        let _span = ctx.span(Mark::new("compute"));
        for _ in 0..rounds {
            for i in block.strided(numbers.len()) {
                ctx.store(numbers, i, ctx.load(numbers, i) * 0.5 + 1.0);
            }
        }
    }
}

kernels! {
    /// PE 0 puts numbers to the others a while after they have begun to wait for them.
    fn give(block, ctx, numbers: Sym<f32>, came: Sym<Signal>) {
        let world = ctx.world();
        let mut all = world.ranks();
        let first = all.next();
        if let Some(first) = first.filter(|first| first.pe() != ctx.pe()) {
            ctx.notify(block, came.at(first).add(1));
            return ctx.wait_at_least(block, came, 1);
        }
        ctx.wait_at_least(block, came, ctx.npes() as u64 - 1);
        for pe in all {
            for _turn in 0..1000 {
                ctx.pause();
            }
            ctx.put_signal(block, numbers.at(pe), numbers, came.at(pe).set(1));
        }
    }
}

fn given(world: &mut World) -> Result<(), Error> {
    let (numbers, came, stream) = (world.alloc::<f32>(100)?, world.alloc::<Signal>(1)?, world.stream()?);
    Ok(world.run(&stream, give, Grid::one(32), (numbers.view(), came.view()))?)
}

/// What the named test of this file leaves in a trace, in a process of its own, because the trace is chosen by the environment.
fn traced(test: &str, settings: &[(&str, &str)]) -> Vec<TraceEvent> {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test]).envs(settings.iter().copied()).env("CONGRUENT_TRACE", file.path());
    let ended = child.output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    read(&std::fs::read_to_string(file.path()).unwrap()).unwrap()
}

/// A user's kernel holds its puts and its waits, each with the PE that it is with.
#[test]
fn a_kernel_shows_its_puts_and_waits() {
    if std::env::var_os("CONGRUENT_TRACE").is_some() {
        return World::builder().local(3, given).map(drop).unwrap();
    }
    let events = traced("a_kernel_shows_its_puts_and_waits", &[("CONGRUENT_MACHINE", "cpu")]);
    let names = by_pe_and_name(&events);
    for (pe, name, peers) in [(0, "put", &[1, 2][..]), (1, "wait", &[]), (2, "wait", &[])] {
        let [kernel] = names[&(pe, "give")][..] else { panic!("{names:?}") };
        let inside: Vec<_> = names[&(pe, name)].iter().filter(|event| kernel.holds(event)).collect();
        let with: Vec<_> = inside.iter().filter_map(|event| event.number("peer")).collect();
        assert_eq!((inside.len(), &with[..]), (peers.len().max(1), peers), "{name} of PE {pe}: {names:?}");
    }
    assert!(names[&(0, "put")].iter().all(|put| put.number("bytes") == Some(400)));
}

/// A GPU's kernels are there as wholes, on the clock that all PEs have: they wait for each other, so they overlap. So are graphs.
#[test]
fn kernels_of_gpus_are_there_as_wholes() {
    if std::env::var_os("CONGRUENT_TRACE").is_some() {
        let reduced = |world: &mut World| {
            let (sums, comm, stream) = (world.alloc::<f32>(5000)?, world.comm(world.team())?, world.stream()?);
            let both = world.capture(&stream, |stream| {
                comm.all_reduce(stream, sums.view(), sums.view(), Op::Max)?;
                comm.all_reduce(stream, sums.view(), sums.view(), Op::Max)
            })?;
            comm.all_reduce(&stream, sums.view(), sums.view(), Op::Sum)?;
            both.launch(&stream)?;
            Ok::<_, Error>(world.synchronize(&stream)?)
        };
        return World::builder().local(2, reduced).map(drop).unwrap();
    }
    let settings = [("CONGRUENT_MACHINE", "virtual"), ("CONGRUENT_ALGO", "ring"), ("CONGRUENT_PROTO", "simple")];
    let events = traced("kernels_of_gpus_are_there_as_wholes", &settings);
    let names = by_pe_and_name(&events);
    let of = |pe, name| match names.get(&(pe, name)).map(Vec::as_slice) {
        Some(&[event]) => event,
        _ => panic!("{events:#?}"),
    };
    for pe in 0..2 {
        let (kernel, graph) = (of(pe, "all_reduce_ring_f32"), of(pe, "graph"));
        assert!(kernel.begin_ns < kernel.end_ns && kernel.end_ns <= graph.begin_ns + 1000, "{events:#?}");
        assert_eq!((kernel.track.as_str(), kernel.block), (graph.track.as_str(), None));
    }
    // As far as the GPUs' clocks are known on a busy machine.
    let [one, two] = [0, 1].map(|pe| of(pe, "all_reduce_ring_f32"));
    assert!(one.begin_ns.max(two.begin_ns) < one.end_ns.min(two.end_ns) + 20_000_000, "{events:#?}");
}

#[test]
fn a_ring_of_four_shows_its_steps() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let perf =
        ["perf", "all-reduce", "-p", "4", "-n", "4", "-b", "64K", "-e", "64K", "--algo", "ring", "--proto", "simple"];
    let ended = ended(congruent(&perf).env("CONGRUENT_TRACE", file.path()));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.contains("busbw"), "{}", ended.err);
    let text = std::fs::read_to_string(file.path()).unwrap();
    let events = read(&text).unwrap();
    assert_eq!(lost(&text).unwrap(), 0);
    let calls = |pe| events.iter().filter(move |event| event.pe == pe && event.name == "all-reduce ring");
    for pe in 0..4 {
        assert!(calls(pe).count() >= 8, "four rounds out of place and four in place");
        for call in calls(pe) {
            let steps: Vec<&TraceEvent> = events
                .iter()
                .filter(|event| event.pe == pe && !std::ptr::eq(*event, call) && call.holds(event))
                .filter(|event| event.name != "wait")
                .collect();
            let names: Vec<&str> = steps.iter().map(|event| event.name.as_str()).collect();
            let expected = ["scatter-reduce 1/3", "scatter-reduce 2/3", "scatter-reduce 3/3"];
            assert_eq!(names[..3], expected, "PE {pe}");
            assert_eq!(names[3..], ["all-gather 1/3", "all-gather 2/3", "all-gather 3/3"], "PE {pe}");
            for step in steps {
                assert_eq!(step.number("peer"), Some((u64::from(pe) + 1) % 4));
                assert_eq!(step.number("bytes"), Some(16 << 10));
            }
        }
    }
}

/// Each process writes a file of its own, and of these becomes one.
#[test]
fn traces_of_processes_become_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let perf = ["perf", "all-reduce", "-b", "4K", "-e", "4K", "--algo", "ring", "--proto", "simple", "-n", "2"];
    let mut job = congruent(&["run", "-n", "3", "--", env!("CARGO_BIN_EXE_congruent")]);
    let job = ended(job.args(perf).env("CONGRUENT_TRACE", path("trace.json")));
    assert_eq!(job.code, Some(0), "{job:?}");
    let files = ["trace.json", "trace.json.pe1", "trace.json.pe2"].map(path);
    let [one, two, three] = files.each_ref().map(String::as_str);
    let merged = ended(&mut congruent(&["trace", one, two, three, "--merge", &path("all.json")]));
    assert_eq!((merged.code, merged.err.as_str()), (Some(0), ""));
    let read_file = |path: &String| read(&std::fs::read_to_string(path).unwrap()).unwrap();
    let apart: Vec<TraceEvent> = files.iter().flat_map(read_file).collect();
    assert_eq!(read_file(&path("all.json")), apart, "files are in PE order, and so is what is read");
    let calls = apart.iter().filter(|event| event.name == "all-reduce ring").count();
    let row: Vec<Vec<&str>> = merged.out.lines().map(|line| line.split_whitespace().collect()).collect();
    let row = row.iter().find(|words| words.starts_with(&["all-reduce", "ring"]) && words.len() == 7).unwrap();
    assert_eq!(row[2..4], ["3", &calls.to_string()], "{}", merged.out);
}

#[test]
fn what_is_no_trace_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let refused = ended(&mut congruent(&["trace", path]));
    assert_eq!(refused.code, Some(1));
    assert!(refused.err.contains(path) && refused.err.contains("not a trace"), "{}", refused.err);
    let refused = ended(&mut congruent(&["trace", "/nowhere/trace.json"]));
    assert!(refused.err.contains("cannot read /nowhere/trace.json"), "{}", refused.err);
    assert_eq!(ended(&mut congruent(&["trace"])).code, Some(2));
}

#[test]
fn computing_beside_a_collective_overlaps_in_the_trace() {
    const WORLD: &str = "computing_beside_a_collective_overlaps_in_the_trace";
    if std::env::var_os("CONGRUENT_TRACE").is_some() {
        return World::builder().local(2, overlap).map(drop).unwrap();
    }
    let events = traced(WORLD, &[]);
    let names = by_pe_and_name(&events);
    for pe in 0..2 {
        let overlap: u64 = names[&(pe, "compute")]
            .iter()
            .flat_map(|own| names[&(pe, "all-reduce ring")].iter().map(|call| own.overlap_ns(call)))
            .sum();
        assert!(overlap > 0, "PE {pe}");
    }
}

fn overlap(world: &mut World) -> Result<(), Error> {
    let (numbers, sums) = (world.alloc::<f32>(10_000)?, world.alloc::<f32>(1 << 20)?);
    let (computing, reducing) = (world.stream()?, world.stream()?);
    let mut comm = world.comm(world.team())?;
    comm.force(Algorithm::RING, Protocol::Simple);
    world.launch(&computing, compute, Grid::one(32), (numbers.view(), 2_000))?;
    for _ in 0..20 {
        comm.all_reduce(&reducing, sums.view(), sums.view(), Op::Max)?;
    }
    world.synchronize(&computing)?;
    Ok(world.synchronize(&reducing)?)
}
