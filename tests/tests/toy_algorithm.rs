//! An algorithm of the program's own, all of it in this file, as docs/adding-an-algorithm.md shows it: a communicator chooses it,
//! prices it, launches it and refuses it as it does the library's.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod comm_support;

use std::collections::BTreeMap;

use congruent::collectives::{
    Algorithm, Call, Collective, Datatype, Descriptor, Op, PlanView, Protocol, Reduction, direct,
};
use congruent::device::{Mark, Sym, kernels};
use congruent::select::{Parameters, Selector, Source, nanoseconds};
use congruent::{BuildError, Comm, CommOptions, Error, FixedKernel, LaunchError, Tunables, World};

use comm_support::{CHILD, child};

// The algorithm: reduce to a root, then broadcast from it.

const ROOTED: Algorithm = Algorithm::new("rooted");

kernels! {
    /// All-reduce by a reduce and a broadcast.
    pub fn all_reduce_rooted(
        block, ctx, dst: Sym<u8>, src: Sym<u8>, op: Reduction, _root: u32, plan: PlanView, rounds: u32,
    ) {
        let mut coll = plan.enter(block, ctx);
        for _ in 0..rounds {
            let _call = ctx.span(Mark::new("all-reduce rooted"));
            direct::reduce(&mut coll, dst, src, op, 0);
            direct::broadcast(&mut coll, dst, dst, 0);
        }
    }
}

static ALL_REDUCE: Descriptor = Descriptor::new(Collective::AllReduce, ROOTED, &[Protocol::Simple], |call| {
    (direct::REDUCE.work)(call) + (direct::BROADCAST.work)(call)
})
.direct_only()
.scheduled(|schedule| {
    let call = Call { root: 0, in_place: true, ..*schedule.call() };
    schedule.all_of(&direct::REDUCE, call);
    schedule.all_of(&direct::BROADCAST, call);
});

static OWN: &[FixedKernel] = &[FixedKernel::reducing(&ALL_REDUCE, &all_reduce_rooted)];

// What a communicator makes of it.

const SUM: Option<(Op, Datatype)> = Some((Op::Sum, Datatype::F32));

/// Element `i` that a PE contributes: sums of these round, so their order shows.
fn element(pe: usize, i: usize) -> f32 {
    1.0 / (1 + pe + 3 * i) as f32
}

/// All-reduces of several lengths give the sum in rank order, bit by bit.
fn sums_are_right(world: &mut World, options: CommOptions) -> Result<(), Error> {
    let (mut comm, stream) = (world.comm_with(world.team(), options)?, world.stream()?);
    comm.force(ROOTED, Protocol::Simple);
    for count in [1, 7, 1000, 40_001] {
        let (dst, src) = (world.alloc::<f32>(count)?, world.alloc::<f32>(count)?);
        let mine: Vec<f32> = (0..count).map(|i| element(comm.rank(), i)).collect();
        src.write(0, &mine)?;
        comm.all_reduce(&stream, dst.view(), src.view(), Op::Sum)?;
        world.synchronize(&stream)?;
        let sum = |i| (1..comm.size()).fold(element(0, i), |sum, pe| sum + element(pe, i));
        let expected: Vec<u32> = (0..count).map(|i| sum(i).to_bits()).collect();
        let found: Vec<u32> = dst.to_vec()?.into_iter().map(f32::to_bits).collect();
        assert_eq!(found, expected, "{count} elements over {} members", comm.size());
    }
    Ok(())
}

#[test]
fn it_runs_and_its_sums_are_right() {
    for (members, width) in [(1, 1), (2, 1), (3, 4), (5, 1)] {
        let world = World::builder().algorithms(OWN).width(width);
        world.local(members, |world| sums_are_right(world, CommOptions::default())).unwrap();
        let blocks = CommOptions { blocks: 3.try_into().ok(), check: Some(true), ..CommOptions::default() };
        World::builder().algorithms(OWN).width(width).local(members, |world| sums_are_right(world, blocks)).unwrap();
    }
}

#[test]
fn it_is_a_candidate_with_a_price() {
    let program = |world: &mut World| {
        let mut comm = world.comm(world.team())?;
        let call = comm.circumstances(1 << 20, SUM);
        assert!(comm.selector().candidates(Collective::AllReduce, &call).contains(&(ROOTED, Protocol::Simple)));
        assert!(!comm.selector().candidates(Collective::Broadcast, &call).iter().any(|way| way.0 == ROOTED));
        // It does in two calls what the direct one does in one, so it is not chosen unless somebody says so.
        assert_ne!(comm.chosen(Collective::AllReduce, 1 << 20, SUM)?.algorithm, ROOTED);
        comm.force(ROOTED, Protocol::Simple);
        let choice = comm.chosen(Collective::AllReduce, 1 << 20, SUM)?;
        assert_eq!((choice.algorithm, choice.source), (ROOTED, Source::Forced));
        let machine = comm.selector().machine();
        let parts = [&direct::REDUCE, &direct::BROADCAST];
        let apart: f64 = parts.map(|of| nanoseconds(machine, of, Protocol::Simple, &call)).iter().sum();
        // Two calls begin twice.
        assert_eq!(choice.predicted_ns, apart - machine.protocol(false, Protocol::Simple).base_ns);
        Ok::<_, Error>(())
    };
    World::builder().algorithms(OWN).local(4, program).unwrap();
}

#[test]
fn the_environment_chooses_it() {
    if std::env::var_os(CHILD).is_none() {
        child("the_environment_chooses_it", &[("CONGRUENT_ALGO", "allreduce:Rooted")]);
        return;
    }
    let program = |world: &mut World| {
        let comm = world.comm(world.team())?;
        for bytes in [4, 4 << 20] {
            let choice = comm.chosen(Collective::AllReduce, bytes, SUM)?;
            assert_eq!((choice.algorithm, choice.source), (ROOTED, Source::Forced));
        }
        Ok::<_, Error>(())
    };
    World::builder().algorithms(OWN).local(3, program).unwrap();
    // A program that does not bring it is told which there are.
    let refused = World::builder().local(3, |_| Ok::<_, BuildError>(())).unwrap_err().to_string();
    assert_eq!(
        refused,
        "CONGRUENT_ALGO=allreduce:Rooted: Rooted is not known; \
         there are ring, tree, recursive, one-shot, direct, bruck, multimem, two-level"
    );
}

#[test]
fn it_moves_what_it_says() {
    let program = |world: &mut World| {
        let (n, me) = (world.npes(), world.pe().index());
        let unchecked = CommOptions { check: Some(false), ..CommOptions::default() };
        let (mut comm, stream) = (world.comm_with(world.team(), unchecked)?, world.stream()?);
        comm.force(ROOTED, Protocol::Simple);
        let (dst, src) = (world.alloc::<f32>(9999)?, world.alloc::<f32>(9999)?);
        comm.all_reduce(&stream, dst.view(), src.view(), Op::Sum)?;
        world.synchronize(&stream)?;
        let traffic = world.traffic().unwrap();
        let moved = (0..n).flat_map(|pe| [((me, pe), traffic.put[pe]), ((pe, me), traffic.got[pe])]);
        let counted: BTreeMap<_, _> = moved.filter(|(_, bytes)| *bytes > 0).collect();
        let mut declared = BTreeMap::new();
        let call = Call { protocol: Protocol::Simple, root: 0, bytes: 4 * 9999, in_place: false, blocks: 1 };
        assert!(comm.layout().moves(&ALL_REDUCE, &call, me, |one| {
            *declared.entry((one.from, one.to)).or_default() += one.wire as u64;
        }));
        assert_eq!(counted, declared, "PE {me} of {n}");
        Ok::<_, Error>(())
    };
    for members in [2, 3, 4] {
        World::builder().algorithms(OWN).watch(true).local(members, program).unwrap();
    }
}

#[test]
fn where_it_does_not_fit_it_is_refused_by_name() {
    let program = |world: &mut World| {
        let (mut comm, stream) = (world.comm(world.team())?, world.stream()?);
        let buffer = world.alloc::<f32>(16)?;
        let all_reduce = |comm: &Comm| comm.all_reduce(&stream, buffer.view(), buffer.view(), Op::Sum);
        comm.force(ROOTED, Protocol::Simple);
        let proxied = all_reduce(&comm).unwrap_err().to_string();
        assert!(proxied.starts_with("all-reduce was forced to rooted with simple: it loads and stores"), "{proxied}");
        comm.force(ROOTED, Protocol::Ll);
        let packets = all_reduce(&comm).unwrap_err().to_string();
        assert!(packets.contains("rooted all-reduce has no such protocol; it has simple"), "{packets}");
        comm.force(ROOTED, Protocol::Simple);
        let other = comm.broadcast(&stream, buffer.view(), buffer.view(), 0);
        assert!(matches!(other, Err(LaunchError::NoSuchKernel { algorithm: ROOTED, .. })), "{other:?}");
        Ok::<_, Error>(())
    };
    World::builder().algorithms(OWN).proxied(true).local(2, program).unwrap();
}

#[test]
fn its_name_is_its_own() {
    static TAKEN: Descriptor = Descriptor { algorithm: Algorithm::RING, ..ALL_REDUCE };
    static RING_TWICE: &[FixedKernel] = &[FixedKernel::reducing(&TAKEN, &all_reduce_rooted)];
    let machine = Parameters::cpu(1, 2, false);
    let refused = Selector::from_tunables(&Tunables::default(), machine, RING_TWICE).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "there are two algorithms ring of all-reduce; give the program's own a name of its own"
    );
}

#[test]
fn the_page_shows_this_file() {
    let read = |file: &str| std::fs::read_to_string(congruent_tests::repository().join(file)).unwrap();
    let (page, this) = (read("docs/adding-an-algorithm.md"), read("tests/tests/toy_algorithm.rs"));
    let shown: Vec<&str> = page.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(shown.len(), 3);
    for code in shown {
        assert!(this.contains(code), "not here: {code}");
    }
}

/// PEs compare this when they make a communicator.
#[test]
fn members_with_other_algorithms_would_choose_otherwise() {
    let with = |own| Selector::from_tunables(&Tunables::default(), Parameters::cpu(1, 2, false), own).unwrap();
    assert_ne!(with(OWN).digest(), with(&[]).digest());
}
