//! What a world owes its program beyond single operations: several of them at once, streams that run concurrently, and
//! symmetric objects that are dropped in any order.

use congruent::bootstrap::Bootstrap;
use congruent::device::{Group, Semaphore, Sym, kernels};
use congruent::{AllocError, Error, Grid, LaunchError, World};

kernels! {
    /// Waits for one post.
    fn wait_for_post(block, ctx, bell: Sym<Semaphore>) {
        ctx.wait(block, bell, 1);
    }

    /// Posts to this PE itself.
    fn post_to_self(block, ctx, bell: Sym<Semaphore>) {
        ctx.notify(block, bell.at(ctx.world().me()).post());
    }

    /// Puts this PE's number to the next PE and waits for the other neighbour's.
    fn pass_on(block, ctx, numbers: Sym<u64>, bell: Sym<Semaphore>) {
        let world = ctx.world();
        if block.leader() {
            ctx.put_value(numbers.elem(world.me().index()).at(world.next()), 100 + world.me().index() as u64);
        }
        ctx.notify(block, bell.at(world.next()).post());
        ctx.wait(block, bell.from_rank(world.prev()), 1);
    }
}

#[test]
fn streams_run_concurrently() -> Result<(), Error> {
    congruent::local(2, |world| {
        let bell = world.alloc::<Semaphore>(1)?;
        let (waiting, posting) = (world.stream()?, world.stream()?);
        // The first launch can end only while the second runs.
        world.launch(&waiting, wait_for_post, Grid::one(32), (bell.view(),))?;
        world.launch(&posting, post_to_self, Grid::one(32), (bell.view(),))?;
        world.synchronize(&waiting)?;
        world.synchronize(&posting)?;
        assert!(waiting.is_idle() && posting.is_idle());
        Ok::<_, Error>(())
    })?;
    Ok(())
}

#[test]
fn launches_of_one_stream_keep_their_order() -> Result<(), Error> {
    congruent::local(1, |world| {
        let bell = world.alloc::<Semaphore>(1)?;
        let stream = world.stream()?;
        for _ in 0..100 {
            world.launch(&stream, post_to_self, Grid::one(32), (bell.view(),))?;
            world.launch(&stream, wait_for_post, Grid::one(32), (bell.view(),))?;
        }
        world.synchronize(&stream)?;
        Ok::<_, Error>(())
    })?;
    Ok(())
}

/// Every PE of two worlds of different sizes, all in this process, interleaved.
#[test]
fn worlds_of_one_process_do_not_meet() -> Result<(), Error> {
    let outer = congruent::local(3, |outer| {
        let inner = congruent::local(2, ring_of);
        let seen = ring_of(outer)?;
        assert_eq!(inner?, [101, 100]);
        Ok::<_, Error>(seen)
    })?;
    assert_eq!(outer, [102, 100, 101]);
    Ok(())
}

/// What the PE before this one puts here.
fn ring_of(world: &mut World) -> Result<u64, Error> {
    let numbers = world.alloc::<u64>(world.npes())?;
    let bell = world.alloc::<Semaphore>(1)?;
    let stream = world.stream()?;
    world.run(&stream, pass_on, Grid::one(32), (numbers.view(), bell.view()))?;
    let left = (world.pe().index() + world.npes() - 1) % world.npes();
    Ok(numbers.to_vec()?[left])
}

#[test]
fn a_stream_of_another_world_is_refused() -> Result<(), Error> {
    let mut one = World::builder().bootstrap(Bootstrap::single()).build()?;
    let two = World::builder().bootstrap(Bootstrap::single()).build()?;
    let bell = one.alloc::<Semaphore>(1)?;
    let foreign = two.stream()?;
    let refused = one.launch(&foreign, post_to_self, Grid::one(32), (bell.view(),));
    assert!(matches!(refused, Err(LaunchError::ForeignStream)), "{refused:?}");
    Ok(())
}

#[test]
fn objects_lie_at_the_same_offset_and_start_zeroed() -> Result<(), Error> {
    let offsets = congruent::local(4, |world| {
        let mut offsets = Vec::new();
        for (i, len) in [1usize, 1000, 7, 65_536].into_iter().enumerate() {
            let object = world.alloc::<u64>(len)?;
            assert!(object.to_vec()?.iter().all(|&value| value == 0), "object {i} is not zeroed");
            object.fill(u64::MAX)?;
            offsets.push(object.view().offset());
        }
        Ok::<_, Error>(offsets)
    })?;
    assert!(offsets.windows(2).all(|pair| pair[0] == pair[1]), "{offsets:?}");
    Ok(())
}

/// Memory is given out again only when every PE has dropped its handle, whatever the order, and then it is zeroed.
#[test]
fn dropping_retires_and_never_communicates() -> Result<(), Error> {
    congruent::local(3, |world| {
        let (kept, dropped) = (world.alloc::<u64>(100)?, world.alloc::<u64>(100)?);
        let (at_kept, at_dropped) = (kept.view().offset(), dropped.view().offset());
        dropped.fill(7)?;
        let mut kept = Some(kept);
        // PE 0 drops both, the others only one, and in no order among the PEs.
        if world.pe().index() == 0 {
            kept = None;
        }
        drop(dropped);
        world.reclaim()?;
        let again = world.alloc::<u64>(100)?;
        assert_eq!(again.view().offset(), at_dropped);
        assert!(again.to_vec()?.iter().all(|&value| value == 0));
        let other = world.alloc::<u64>(100)?;
        assert_ne!(other.view().offset(), at_kept, "two PEs still hold it");
        drop(kept);
        world.reclaim()?;
        assert_eq!(world.alloc::<u64>(100)?.view().offset(), at_kept);
        Ok::<_, Error>(())
    })?;
    Ok(())
}

/// What was dropped while the heap is full makes room by itself, with no reclaim of the program's.
#[test]
fn a_full_heap_takes_back_what_was_dropped() -> Result<(), Error> {
    World::builder().heap(4 << 20).local(2, |world| {
        for round in 0..10 {
            let large = world.alloc::<u8>(3 << 20)?;
            assert_eq!(large.len(), 3 << 20, "round {round}");
        }
        let held = world.alloc::<u8>(3 << 20)?;
        let refused = world.alloc::<u8>(3 << 20);
        assert!(matches!(refused, Err(AllocError::Heap(_))), "{refused:?}");
        assert_eq!(held.len(), 3 << 20);
        Ok::<_, Error>(())
    })?;
    Ok(())
}
