//! What programs get wrong: each mistake is refused with an error that says what and where, and the world works on.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::ops::RangeInclusive;

use congruent::bootstrap::{BootstrapError, MAX_PES};
use congruent::collectives::{Algorithm, Layout, Op, PlanView, Protocol};
use congruent::device::{Pod, Semaphore, Slice, Sym, kernel_arg, kernels, team_tag};
use congruent::tunables::TunableError;
use congruent::{
    AccessError, AllocError, BuildError, CollectiveError, Error, Grid, LaunchError, STREAMS, SplitError, Stream, World,
};

team_tag! {
    /// Some of the PEs.
    Few
}

kernel_arg! {
    /// A plan among other things.
    pub struct Held { plan: PlanView, number: u32 }
}

kernels! {
    /// Stores the PE's index, then meets the others.
    pub fn meet(block, ctx, numbers: Sym<u32>) {
        ctx.store(numbers, 0, ctx.pe().raw());
        ctx.barrier(block, &ctx.world());
    }

    /// Takes plans, one of them in a struct, and does nothing with them.
    pub fn plans(_block, _ctx, _plan: PlanView, _held: Held) {}

    /// Takes a buffer and does nothing with it.
    pub fn take(_block, _ctx, _numbers: Slice<u32>) {}

    /// Takes a semaphore and does nothing with it.
    pub fn ignore(_block, _ctx, _semaphore: Sym<Semaphore>) {}
}

fn local<R: Send>(npes: usize, program: impl Fn(&mut World) -> Result<R, Error> + Sync) -> Result<Vec<R>, Error> {
    World::builder().heap(32 << 20).local(npes, program)
}

/// Whether collective calls, kernels and barriers of this world work: what must hold after every refusal.
fn works(world: &mut World) -> Result<(), Error> {
    let numbers = world.alloc::<u32>(3)?;
    let stream = world.stream()?;
    world.run(&stream, meet, Grid::one(32), (numbers.view(),))?;
    assert_eq!(numbers.to_vec()?, [world.pe().raw(), 0, 0]);
    world.barrier()?;
    world.check()?;
    Ok(())
}

/// The error of what must have been refused.
fn refused<T, E: ToString>(result: Result<T, E>) -> E {
    match result {
        Ok(_) => panic!("not refused"),
        Err(error) => error,
    }
}

/// That an error is of a kind, and that its text has all of these words.
macro_rules! assert_refused {
    ($result:expr, $pattern:pat $(if $guard:expr)?, $($word:expr),+) => {{
        let error = refused($result);
        assert!(matches!(&error, $pattern $(if $guard)?), "{error:?}");
        let text = error.to_string();
        $(assert!(text.contains(&$word.to_string()), "no `{}` in: {text}", $word);)+
    }};
}

#[test]
fn no_pes_or_too_many() {
    let none = local(0, |_| Ok(()));
    assert_refused!(none, Error::Build(BuildError::Bootstrap(BootstrapError::Size { npes: 0 })), "0 PEs", MAX_PES);
    let many = local(MAX_PES as usize + 1, |_| Ok(()));
    assert_refused!(many, Error::Build(BuildError::Bootstrap(BootstrapError::Size { .. })), MAX_PES + 1);
    local(1, works).unwrap();
}

#[test]
fn settings_out_of_range() {
    let try_settings = |builder: congruent::Builder| builder.local(1, |_| Ok::<_, Error>(()));
    let cases: [(_, &str, RangeInclusive<u64>); 5] = [
        (World::builder().width(0), "CONGRUENT_CPU_WIDTH=0", 1..=32),
        (World::builder().width(33), "CONGRUENT_CPU_WIDTH=33", 1..=32),
        (World::builder().heap(0), "CONGRUENT_HEAP=0", 2 << 20..=1 << 44),
        (World::builder().heap(u64::MAX), "CONGRUENT_HEAP=18446744073709551615", 2 << 20..=1 << 44),
        (World::builder().max_blocks(0), "CONGRUENT_MAX_BLOCKS=0", 1..=1024),
    ];
    for (builder, text, range) in cases {
        assert_refused!(
            try_settings(builder),
            Error::Build(BuildError::Tunable(TunableError::OutOfRange { .. })),
            text,
            range.start(),
            range.end()
        );
    }
}

#[test]
fn teams_that_cannot_be() {
    local(3, |world| {
        let no = |result: Result<_, SplitError>, word: &str| {
            let result: Result<Option<congruent::Team<Few>>, _> = result;
            assert_refused!(result, SplitError::Members(_), word);
        };
        no(world.strided_team(0, 1, 4), "member 3 is outside");
        no(world.strided_team(2, u32::MAX, 2), "member 4294967297 is outside");
        no(world.strided_team(7, 1, 1), "members are 0..3");
        no(world.strided_team(0, 0, 2), "stride of 0");
        no(world.strided_team(0, 1, 0), "at least one member");
        no(world.listed_team(&[]), "at least one member");
        no(world.listed_team(&[2, 0, 3]), "member 3 is outside");
        no(world.listed_team(&[2, 0, 2]), "member 2 is listed twice");
        let pair = world.listed_team::<Few>(&[2, 0])?;
        assert_eq!(pair.map(|team| (team.me(), team.size())), [Some((1, 2)), None, Some((0, 2))][world.pe().index()]);
        works(world)
    })
    .unwrap();
}

#[test]
fn nobody_joins_a_team() {
    local(2, |world| {
        assert!(world.split::<Few>(None, 0)?.is_none());
        works(world)
    })
    .unwrap();
}

#[test]
fn objects_of_no_elements_or_too_many() {
    local(2, |world| {
        assert_refused!(world.alloc::<u32>(0), AllocError::Zero, "0 elements");
        assert_refused!(world.alloc::<u64>(usize::MAX), AllocError::TooLarge { size: 8, .. }, usize::MAX);
        works(world)
    })
    .unwrap();
}

#[test]
fn more_than_the_heap_has() {
    local(2, |world| {
        let before = world.heap_stats();
        let asked = 33 << 20;
        assert_refused!(world.alloc::<u8>(asked), AllocError::Heap(_), asked, before.largest_free, "CONGRUENT_HEAP");
        assert_refused!(world.alloc::<u8>(usize::MAX >> 1), AllocError::Heap(_), usize::MAX >> 1);
        assert_eq!(world.heap_stats(), before, "nothing was taken");
        // What is full has room again once everybody has dropped something; nobody has to say so.
        for round in 0..3 {
            let most = world.alloc::<u8>(20 << 20)?;
            most.fill(7)?;
            assert_refused!(world.alloc::<u8>(20 << 20), AllocError::Heap(_), "out of symmetric heap");
            drop(most);
            let again = world.alloc::<u8>(20 << 20)?;
            assert!(again.to_vec()?.iter().all(|&byte| byte == 0), "zeroed in round {round}");
        }
        works(world)
    })
    .unwrap();
}

#[test]
fn elements_out_of_bounds_on_the_host() {
    local(1, |world| {
        let numbers = world.alloc::<u32>(10)?;
        numbers.fill(5)?;
        let no = |result: Result<(), AccessError>, start, end| {
            assert_eq!(refused(result), AccessError::OutOfBounds { start, end, len: 10 });
        };
        no(numbers.slice(5..11).map(drop), 5, 11);
        no(numbers.slice(11..).map(drop), 11, 10);
        no(numbers.slice(..=usize::MAX).map(drop), 0, usize::MAX);
        no(numbers.slice(RangeInclusive::new(8, 2)).map(drop), 8, 3);
        let mut out = [9; 4];
        no(numbers.read(7, &mut out), 7, 11);
        no(numbers.read(usize::MAX, &mut out), usize::MAX, usize::MAX);
        assert_eq!(out, [9; 4], "nothing was read");
        no(numbers.write(7, &[1; 4]), 7, 11);
        assert_eq!(numbers.to_vec()?, [5; 10], "nothing was written");
        assert_eq!((numbers.slice(10..)?.len(), numbers.slice(..=9)?.len()), (0, 10));
        Ok(())
    })
    .unwrap();
}

/// Makes `call` on each of three PEs, where it differs from PE to PE; every PE must be told who differs and how.
fn differs(call: impl Fn(&mut World, u32) -> Result<(), Error> + Sync, mine: [&str; 3]) {
    local(3, |world| {
        let used = world.heap_stats();
        let me = world.pe().index();
        let error = refused(call(world, world.pe().raw()));
        let (Error::Collective(told) | Error::Alloc(AllocError::Collective(told))) = &error else {
            panic!("{error:?}")
        };
        let CollectiveError::Mismatch { mine: said, pe, theirs, .. } = told else { panic!("{error:?}") };
        assert_ne!(mine[*pe as usize], mine[me], "PE {me} is told of PE {pe}, which asked for the same");
        assert!(said.contains(mine[me]), "PE {me}: {error}");
        assert!(theirs.contains(mine[*pe as usize]), "PE {me}: {error}");
        assert_eq!(world.heap_stats(), used, "nothing was taken");
        works(world)
    })
    .unwrap();
}

fn alloc<T: Pod>(world: &mut World, len: usize) -> Result<(), Error> {
    world.alloc::<T>(len)?;
    Ok(())
}

#[test]
fn lengths_that_differ_between_pes() {
    differs(
        |world, pe| alloc::<u8>(world, if pe == 2 { 101 } else { 100 }),
        ["100 elements", "100 elements", "101 elements"],
    );
}

#[test]
fn types_that_differ_between_pes() {
    differs(|world, pe| if pe == 1 { alloc::<f32>(world, 8) } else { alloc::<u32>(world, 8) }, ["u32", "f32", "u32"]);
}

#[test]
fn calls_in_another_order() {
    differs(
        |world, pe| if pe == 0 { Ok(world.barrier()?) } else { alloc::<u8>(world, 8) },
        ["barrier", "8 elements", "8 elements"],
    );
    let team = |world: &mut World, pe| match world.strided_team::<Few>(0, 1, 1 + pe) {
        Err(SplitError::Collective(error)) => Err(error.into()),
        other => panic!("{other:?}"),
    };
    differs(team, ["team of 1", "team of 2", "team of 3"]);
}

#[test]
fn a_pe_that_leaves_before_the_others_are_done() {
    let told = local(2, |world| Ok(if world.pe().index() == 0 { Some(world.barrier()) } else { None })).unwrap();
    assert_refused!(told.into_iter().flatten().next().unwrap(), CollectiveError::Control(_), "PE 1 has left");
}

/// Runs `call` on one PE with a world and a stream, then sees that the stream still works.
fn on_stream(call: impl Fn(&mut World, &Stream) -> Result<(), Error> + Sync) {
    local(2, |world| {
        let stream = world.stream()?;
        call(world, &stream)?;
        let numbers = world.alloc::<u32>(1)?;
        world.run(&stream, meet, Grid::one(32), (numbers.view(),))?;
        works(world)
    })
    .unwrap();
}

#[test]
fn grids_that_cannot_run() {
    on_stream(|world, stream| {
        let semaphore = world.alloc::<Semaphore>(1)?;
        let launch = |world: &World, blocks, threads| {
            world.launch(stream, ignore, Grid::new(blocks, threads), (semaphore.view(),))
        };
        assert_refused!(launch(world, 0, 32), LaunchError::EmptyGrid { blocks: 0, threads: 32 }, "1 or more");
        assert_refused!(launch(world, 1, 0), LaunchError::EmptyGrid { blocks: 1, threads: 0 }, "1 or more");
        for asked in [65, u32::MAX] {
            assert_refused!(
                launch(world, asked, 32),
                LaunchError::NotCoresident { fits: 64, .. },
                asked,
                "CONGRUENT_MAX_BLOCKS"
            );
        }
        // As on a GPU, which has room for no more.
        for asked in [1025, u32::MAX] {
            assert_refused!(
                launch(world, 1, asked),
                LaunchError::TooManyThreads { kernel: "ignore", fits: 1024, .. },
                asked,
                "launch 1024 or fewer"
            );
        }
        launch(world, 1, 1024)?;
        Ok(launch(world, 64, 1)?)
    });
}

#[test]
fn more_blocks_than_a_plan_is_for() {
    on_stream(|world, stream| {
        let plan = world.plan(Layout::new(world.team(), 2))?.view();
        let launch = |world: &World, blocks, plan| {
            world.launch(stream, plans, Grid::new(blocks, 32), (plan, Held { plan, number: 1 }))
        };
        let refused = launch(world, 3, plan);
        assert_refused!(refused, LaunchError::PlanBlocks { asked: 3, fits: 2 }, "up to 2 blocks", "not 3");
        assert_refused!(launch(world, 2, plan.from_slot(1)), LaunchError::PlanBlocks { asked: 2, fits: 1 }, "1 blocks");
        launch(world, 2, plan)?;
        // Its blocks say in the kernel which slot they use.
        Ok(launch(world, 3, plan.alone(0))?)
    });
}

#[test]
fn arguments_of_collectives() {
    on_stream(|world, stream| {
        let (a, b) = (world.alloc::<f32>(8)?.view(), world.alloc::<f32>(9)?.view());
        let mut comm = world.comm(world.team())?;
        let lengths = |result: Result<(), LaunchError>| {
            assert_refused!(result, LaunchError::Lengths { .. }, 8, 9);
        };
        lengths(comm.all_reduce(stream, a, b, Op::Sum));
        lengths(comm.reduce(stream, a, b, Op::Sum, 0));
        lengths(comm.reduce_scatter(stream, a, b, Op::Sum));
        lengths(comm.broadcast(stream, a, b, 0));
        lengths(comm.gather(stream, a, b, 0));
        lengths(comm.scatter(stream, a, b, 0));
        lengths(comm.all_gather(stream, a, b));
        lengths(comm.all_to_all(stream, a, b));
        assert_refused!(comm.all_to_all(stream, b, b), LaunchError::Lengths { dst: 9, src: 4 }, "9 elements");
        for root in [2, usize::MAX] {
            let refused = |result| assert_refused!(result, LaunchError::Root { .. }, root, "0..2");
            refused(comm.broadcast(stream, a, a, root));
            refused(comm.reduce(stream, a, a, Op::Sum, root));
            refused(comm.gather(stream, a, a.slice(..4), root));
            refused(comm.scatter(stream, a.slice(..4), a, root));
        }
        for op in [Op::And, Op::Or, Op::Xor] {
            assert_refused!(comm.all_reduce(stream, a, a, op), LaunchError::Operator { .. }, op, "float", "integers");
        }
        comm.force(Algorithm::RING, Protocol::Simple);
        let gathered = comm.gather(stream, a, a.slice(..4), 0);
        assert_refused!(gathered, LaunchError::NoSuchKernel { .. }, "gather has no ring algorithm");
        Ok(())
    });
}

#[test]
fn more_streams_than_a_communicator_has_slots_for() {
    on_stream(|world, stream| {
        let comm = world.comm(world.team())?;
        let streams = (0..STREAMS).map(|_| world.stream()).collect::<Result<Vec<_>, _>>()?;
        for one in &streams {
            comm.barrier(one)?;
            let numbers = world.alloc::<u32>(1)?;
            comm.all_reduce(one, numbers.view(), numbers.view(), Op::Sum)?;
            world.synchronize(one)?;
        }
        let numbers = world.alloc::<u32>(1)?;
        let refused = comm.all_reduce(stream, numbers.view(), numbers.view(), Op::Sum);
        assert_refused!(refused, LaunchError::PlanStreams { fits: STREAMS }, "streams at most");
        Ok(())
    });
}

#[test]
fn a_stream_of_another_world() {
    on_stream(|world, stream| {
        let semaphore = world.alloc::<Semaphore>(1)?;
        let other = local(1, |other| {
            let theirs = other.stream()?;
            let launched = world.launch(&theirs, ignore, Grid::one(1), (semaphore.view(),));
            assert_refused!(launched, LaunchError::ForeignStream, "another world", "World::stream");
            let launched = other.launch(stream, ignore, Grid::one(1), (semaphore.view(),));
            assert_refused!(launched, LaunchError::ForeignStream, "another world");
            Ok(theirs)
        })?;
        // A stream outlives its world, but nothing can be put on it any more.
        for theirs in &other {
            let launched = world.launch(theirs, ignore, Grid::one(1), (semaphore.view(),));
            assert_refused!(launched, LaunchError::ForeignStream, "another world");
        }
        Ok(())
    });
}

#[test]
fn a_buffer_and_an_event_of_another_world() {
    on_stream(|world, stream| {
        let words = world.alloc::<u32>(8)?;
        local(1, |other| {
            let (theirs, event) = (other.buffer::<u32>(8)?, other.stream()?.record_event()?);
            let launched = world.launch(stream, take, Grid::one(1), (&theirs,));
            assert_refused!(launched, LaunchError::ForeignBuffer { kernel: "take" }, "take", "World::buffer");
            let copied = world.copy(stream, words.view(), &theirs);
            assert_refused!(copied, LaunchError::ForeignBuffer { kernel: "copy" }, "another world");
            let copied = other.copy(stream, words.view(), &theirs);
            assert_refused!(copied, LaunchError::ForeignStream, "another world");
            assert_refused!(stream.wait(&event), LaunchError::ForeignEvent, "another world", "Event::synchronize");
            Ok(())
        })?;
        let overlaps = world.copy(stream, words.slice(..7)?, words.slice(1..)?);
        assert_refused!(overlaps, LaunchError::Overlap { call: "copy", .. }, "overlap");
        Ok(())
    });
}

#[test]
fn a_buffer_that_no_process_has_room_for() {
    on_stream(|world, _| {
        let (huge, too_large) = (world.buffer::<u8>(1 << 60).map(drop), world.buffer::<u64>(usize::MAX / 4).map(drop));
        assert_refused!(huge, AllocError::NoMemory { bytes } if *bytes == 1 << 60, "no room");
        assert_refused!(too_large, AllocError::TooLarge { .. }, "do not fit");
        Ok(())
    });
}

#[test]
fn an_object_of_another_larger_world() {
    on_stream(|world, stream| {
        let theirs = World::builder().heap(64 << 20).local(1, |other| {
            let _rest = other.alloc::<u8>(32 << 20)?;
            Ok::<_, Error>(other.alloc::<Semaphore>(1)?.view())
        })?;
        let launched = world.launch(stream, ignore, Grid::one(1), (theirs[0],));
        assert_refused!(launched, LaunchError::ForeignArgument { kernel: "ignore" }, "kernel ignore", "another world");
        Ok(())
    });
}

#[test]
fn streams_and_objects_that_outlive_their_world() {
    let left = local(2, |world| {
        let stream = world.stream()?;
        let numbers = world.alloc::<u32>(3)?;
        world.launch(&stream, meet, Grid::one(32), (numbers.view(),))?;
        Ok((stream, numbers))
    });
    for ((stream, numbers), pe) in left.unwrap().into_iter().zip(0..) {
        assert_eq!(numbers.to_vec().unwrap(), [pe, 0, 0], "a world waits for its launches before it leaves");
        drop(stream);
    }
}
