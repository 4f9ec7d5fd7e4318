//! What kernels get wrong: a panic in a kernel names PE, kernel, block and mistake, the other PEs hear of it, and the
//! process lives on.
//!
//! PE 1 of two makes the mistake, at width 1 and where 4 or 32 lanes share the block, while PE 0 waits to hear of it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::time::{Duration, Instant};

use congruent::collectives::norm::{self, NormRows, Quantized};
use congruent::collectives::{Layout, PlanView, Sum, multimem, ring};
use congruent::device::matrix::A;
use congruent::device::{
    Fp8E4M3, Group, Kernel, Semaphore, Slice, SliceMut, Sym, TeamView, Thread, World as WorldTag, bf16, kernels,
    operands,
};
use congruent::{Arguments, Builder, Error, Grid, Plan, SymVec, World, WorldFailure};

const WIDTHS: [u32; 3] = [1, 4, 32];
/// Longer than any test may take: nothing here ends because a wait expires.
const DEADLINE: Duration = Duration::from_secs(60);
/// How soon a mistake is known everywhere, on a busy machine too.
const SOON: Duration = Duration::from_secs(10);

kernels! {
    /// Waits until the launch is ended from outside.
    pub fn until_ended(block, ctx, semaphore: Sym<Semaphore>) {
        ctx.wait(block, semaphore, 1);
    }

    /// The same, and says that it never waits.
    pub fn waits_all_the_same(block, ctx, semaphore: Sym<Semaphore>) blocks(independent) {
        ctx.wait(block, semaphore, 1);
    }

    /// A rank that the team lacks.
    pub fn rank_out_of_range(_block, ctx) {
        ctx.world().rank(ctx.npes());
    }

    /// A slice that is not inside.
    pub fn slice_out_of_bounds(_block, _ctx, numbers: Sym<f32>) {
        numbers.slice(90..101);
    }

    /// An element that a buffer lacks.
    pub fn index_out_of_bounds(block, _ctx, numbers: Slice<u32>, into: SliceMut<u32>) {
        for (i, into) in into.iter_mut(block) {
            *into = numbers[i + 1];
        }
    }

    /// An element that is not there.
    pub fn element_out_of_bounds(_block, ctx, numbers: Sym<f32>) {
        ctx.load(numbers, numbers.len());
    }

    /// A store where nothing is.
    pub fn store_out_of_bounds(_block, ctx, numbers: Sym<f32>) {
        ctx.store(numbers, usize::MAX, 1.0);
    }

    /// A chunk that is not there.
    pub fn chunk_out_of_bounds(_block, _ctx, numbers: Sym<f32>) {
        numbers.chunk(4, 4);
    }

    /// More elements than there is room for.
    pub fn put_of_another_length(block, ctx, numbers: Sym<f32>) {
        ctx.put(block, numbers.slice(..99).at(ctx.world().next()), numbers);
    }

    /// Four rows in 8 bits, in groups of half a row, with a scale too few.
    pub fn scales_too_few(block, ctx, numbers: Sym<f32>, plan: PlanView) {
        let (src, residual) = (numbers.slice(..32), numbers.slice(48..80));
        let dst = Quantized { numbers: numbers.slice(32..40).cast::<Fp8E4M3>(), scales: numbers.slice(40..47), group: 4 };
        let rows = NormRows { dst, src, residual, weights: &[1.0; 8], epsilon: 1.0 };
        norm::all_reduce(&mut plan.enter(block, ctx), rows);
    }

    /// A value for no element.
    pub fn put_value_nowhere(_block, ctx, numbers: Sym<f32>) {
        ctx.put_value(numbers.slice(..0).at(ctx.world().next()), 1.0);
    }

    /// Data for one PE, its signal for another.
    pub fn signal_for_another(block, ctx, numbers: Sym<f32>, semaphore: Sym<Semaphore>) {
        let world = ctx.world();
        ctx.put_signal(block, numbers.at(world.next()), numbers, semaphore.at(world.me()).post());
    }

    /// A stride that goes nowhere.
    pub fn stride_of_zero(block, ctx, numbers: Sym<f32>) {
        ctx.put_strided(block, numbers.at(ctx.world().next()), 0, numbers, 1, 2);
    }

    /// Packets where no access of 16 bytes can be.
    pub fn packets_out_of_line(block, ctx, numbers: Sym<f32>) {
        let me = ctx.world().me();
        let packets = ctx.packets(numbers.slice(2..).cast::<u8>().at(me), 8, 1);
        ctx.transfer(block, [packets], ctx.operand(numbers.slice(..2).at(me)));
    }

    /// A second destination that is shorter than the first.
    pub fn operand_of_another_length(block, ctx, numbers: Sym<f32>) {
        let me = ctx.world().me();
        let dst = |i| ctx.operand(numbers.slice(..8 - 4 * i).at(me));
        ctx.transfer(block, operands(2, dst), ctx.operand(numbers.slice(8..16).at(me)));
    }

    /// A place in a larger world.
    pub fn rank_of_another_world(block, ctx, numbers: Sym<f32>, team: TeamView<WorldTag>) {
        ctx.put(block, numbers.at(ctx.team(team).rank(3)), numbers);
    }

    /// A signal to a place in a larger world.
    pub fn notify_another_world(block, ctx, semaphore: Sym<Semaphore>, team: TeamView<WorldTag>) {
        ctx.notify(block, semaphore.at(ctx.team(team).rank(3)).post());
    }

    /// A fence for a PE of a larger world.
    pub fn fence_of_another_world(block, ctx, team: TeamView<WorldTag>) {
        ctx.fence(block, ctx.team(team).rank(3));
    }

    /// What went to a PE of a larger world.
    pub fn quiet_to_another_world(block, ctx, team: TeamView<WorldTag>) {
        ctx.quiet_to(block, ctx.team(team).rank(3));
    }

    /// The route to a PE of a larger world.
    pub fn route_to_another_world(_block, ctx, team: TeamView<WorldTag>) {
        ctx.reaches(ctx.team(team).rank(3));
    }

    /// Buffers of two lengths.
    pub fn all_reduce_of_two_lengths(block, ctx, numbers: Sym<f32>, plan: PlanView) {
        ring::all_reduce(&mut plan.enter(block, ctx), numbers, numbers.slice(1..), Sum);
    }

    /// A root that the team lacks.
    pub fn broadcast_from_nobody(block, ctx, numbers: Sym<f32>, plan: PlanView) {
        ring::broadcast(&mut plan.enter(block, ctx), numbers, numbers, ctx.npes());
    }

    /// A plan for one block, of which the second slot is asked for: only the kernel knows.
    pub fn plan_for_fewer_blocks(block, ctx, numbers: Sym<f32>, plan: PlanView) {
        ring::all_reduce(&mut plan.alone(1).enter(block, ctx), numbers, numbers, Sum);
    }

    /// Two sessions of a block at once.
    pub fn session_in_a_session(block, ctx, plan: PlanView) {
        let _session = plan.enter(block, ctx);
        let _another = plan.enter(block, ctx);
    }

    /// One session after the other, and a thread's beside a block's.
    pub fn sessions_in_turn(block, ctx, numbers: Sym<f32>, plan: PlanView) {
        drop(plan.enter(block, ctx));
        ring::all_reduce(&mut plan.enter(block, ctx), numbers, numbers, Sum);
        let _session = plan.enter(block, ctx);
        if block.leader() {
            let _threads = plan.alone(1).enter(&Thread, ctx);
        }
    }

    /// Multicast where there is none.
    pub fn multicast_that_is_not_there(block, ctx, numbers: Sym<f32>, plan: PlanView) {
        multimem::all_reduce(&mut plan.enter(block, ctx), numbers, numbers, Sum);
    }

    /// A team with a multicast window that the world lacks.
    pub fn window_of_nobody(block, ctx, team: TeamView<WorldTag>) {
        ctx.barrier(block, &ctx.team(team));
    }

    /// Matrices by a warp that lacks threads.
    pub fn matrices_of_a_partial_warp(block, _ctx) {
        // SAFETY: no matrix is loaded.
        unsafe { block.warp().whole() };
    }

    /// A matrix that begins between groups of eight.
    pub fn matrix_out_of_line(block, _ctx, at: u64; shared: ([bf16; 400],)) {
        let (tile,) = shared.sync(block);
        // SAFETY: all threads of a block go the same way.
        let warp = unsafe { block.warp().whole() };
        A::<_, 1>::load(&warp, &tile.all(), at as usize, 24);
    }

    /// A panic of the program's own, by every lane.
    pub fn says_so(_block, ctx) {
        panic!("number {} is out", ctx.pe().raw() + 6);
    }

    /// A panic of the last lane, while the others wait for what never comes.
    pub fn last_lane_panics(block, ctx, semaphore: Sym<Semaphore>) {
        if block.rank() == block.size() - 1 {
            panic!("the last lane is out");
        }
        ctx.wait(&block.warp(), semaphore, 1);
    }

    /// A panic of the first lane, while the others poll on their own.
    pub fn first_lane_panics(block, ctx, semaphore: Sym<Semaphore>) {
        if block.leader() {
            panic!("the first lane is out");
        }
        while ctx.available(semaphore) == 0 && !ctx.aborted() {
            block.warp().sync();
        }
    }
}

/// What the kernels are given.
struct Words {
    numbers: SymVec<f32>,
    semaphore: SymVec<Semaphore>,
    plan: Plan,
}

/// That `kernel` fails with `message` on PE 1, and everybody knows soon. By which thread at each width.
fn panics<K: Kernel>(kernel: K, args: impl Fn(&Words) -> K::Args + Sync, message: &str) -> [u32; 3]
where
    K::Args: Arguments<K::Args>,
{
    panics_where(false, kernel, args, message)
}

/// The same where peers may be `proxied`.
fn panics_where<K: Kernel>(proxied: bool, kernel: K, args: impl Fn(&Words) -> K::Args + Sync, message: &str) -> [u32; 3]
where
    K::Args: Arguments<K::Args>,
{
    WIDTHS.map(|width| {
        let program = |world: &mut World| {
            let started = Instant::now();
            let told = failure(run(world, kernel, &args).unwrap_err());
            assert!(started.elapsed() < SOON, "known only after {:?}", started.elapsed());
            assert_eq!(world.check().as_ref(), Err(&told), "and it stays that way");
            Ok::<_, Error>(told)
        };
        let told = builder(proxied).width(width).deadline(DEADLINE).local(2, program).unwrap();
        let WorldFailure::KernelPanicked { kernel, pe, block: at, thread, message: said } = &told[1] else {
            panic!("{} at width {width}: {:?}", K::NAME, told[1]);
        };
        assert_eq!((*kernel, *pe, *at), (K::NAME, 1, 0), "at width {width}");
        assert!(said.contains(message), "{}: {said}", K::NAME);
        let WorldFailure::Aborted { by: 1, reason, .. } = &told[0] else { panic!("{}: {:?}", K::NAME, told[0]) };
        assert_eq!(*reason, told[1].to_string());
        for part in [K::NAME, "PE 1", "block 0", &format!("thread {thread}:"), message] {
            assert!(reason.contains(part), "no `{part}` in: {reason}");
        }
        *thread
    })
}

fn builder(proxied: bool) -> Builder {
    World::builder().heap(8 << 20).proxied(proxied)
}

/// PE 1 runs the kernel and PE 0 waits for the end, which may come before it has begun to wait.
fn run<K: Kernel>(world: &mut World, kernel: K, args: impl Fn(&Words) -> K::Args) -> Result<(), Error>
where
    K::Args: Arguments<K::Args>,
{
    let words = Words {
        numbers: world.alloc(100)?,
        semaphore: world.alloc(1)?,
        plan: world.plan(Layout::new(world.team(), 1))?,
    };
    let stream = world.stream()?;
    match world.pe().raw() {
        0 => world.run(&stream, until_ended, Grid::one(32), (words.semaphore.view(),))?,
        _ => world.run(&stream, kernel, Grid::one(32), args(&words))?,
    }
    Ok(())
}

/// The world's failure, whichever call told it.
fn failure(error: Error) -> WorldFailure {
    error.world_failure().unwrap_or_else(|| panic!("not the world's failure: {error}")).clone()
}

#[test]
fn ranks_that_teams_lack() {
    panics(rank_out_of_range, |_| (), "rank out of range of its team");
    panics(broadcast_from_nobody, |words| (words.numbers.view(), words.plan.view()), "no such root in the team");
    let theirs = World::builder().heap(8 << 20).local(4, |larger| Ok::<_, Error>(larger.team())).unwrap();
    panics(rank_of_another_world, |words| (words.numbers.view(), theirs[1]), "is it of another world?");
}

#[test]
fn ranks_that_worlds_lack() {
    for proxied in [false, true] {
        let team = builder(proxied).local(4, |larger| Ok::<_, Error>(larger.team())).unwrap()[1];
        let other = "a rank names a PE that this world lacks: is it of another world?";
        panics_where(proxied, notify_another_world, |words| (words.semaphore.view(), team), other);
        panics_where(proxied, fence_of_another_world, |_| (team,), other);
        panics_where(proxied, quiet_to_another_world, |_| (team,), other);
        panics_where(proxied, route_to_another_world, |_| (team,), other);
    }
}

#[test]
fn elements_that_are_not_there() {
    panics(slice_out_of_bounds, |words| (words.numbers.view(),), "symmetric slice out of bounds");
    panics(element_out_of_bounds, |words| (words.numbers.view(),), "symmetric index out of bounds");
    panics(store_out_of_bounds, |words| (words.numbers.view(),), "symmetric index out of bounds");
    panics(chunk_out_of_bounds, |words| (words.numbers.view(),), "symmetric chunk out of bounds");
    panics(put_value_nowhere, |words| (words.numbers.view(),), "symmetric element out of bounds");
}

#[test]
fn lengths_and_strides_that_do_not_fit() {
    panics(put_of_another_length, |words| (words.numbers.view(),), "different lengths");
    panics(stride_of_zero, |words| (words.numbers.view(),), "at least 1 element");
    panics(packets_out_of_line, |words| (words.numbers.view(),), "packets start on a multiple of 16 bytes");
    panics(operand_of_another_length, |words| (words.numbers.view(),), "different lengths");
    panics(scales_too_few, |words| (words.numbers.view(), words.plan.view()), "a scale for each group of each row");
    panics(all_reduce_of_two_lengths, |words| (words.numbers.view(), words.plan.view()), "different lengths");
}

#[test]
fn a_signal_for_another_pe_than_its_data() {
    let args = |words: &Words| (words.numbers.view(), words.semaphore.view());
    panics(signal_for_another, args, "signals the PE that it puts to");
}

#[test]
fn a_wait_of_blocks_that_are_independent() {
    let message = "it waits, and says that its blocks are independent";
    panics(waits_all_the_same, |words| (words.semaphore.view(),), message);
}

#[test]
fn a_plan_for_fewer_blocks() {
    panics(plan_for_fewer_blocks, |words| (words.numbers.view(), words.plan.view()), "no slot for this block");
}

#[test]
fn multicast_where_there_is_none() {
    panics(multicast_that_is_not_there, |words| (words.numbers.view(), words.plan.view()), "no multicast");
    let alone = World::builder().heap(8 << 20).local(1, |world| Ok::<_, Error>(world.team().with_window(1))).unwrap();
    panics(window_of_nobody, |_| (alone[0],), "a multicast window that this world lacks");
}

#[test]
fn a_session_in_a_session() {
    panics(session_in_a_session, |words| (words.plan.view(),), "the block has a session already");
}

#[test]
fn sessions_in_turn_and_a_threads_beside_a_blocks() {
    for width in WIDTHS {
        let program = |world: &mut World| {
            let (plan, numbers) = (world.plan(Layout::new(world.team(), 2))?, world.alloc::<f32>(100)?);
            let stream = world.stream()?;
            Ok::<_, Error>(world.run(&stream, sessions_in_turn, Grid::one(32), (numbers.view(), plan.view()))?)
        };
        builder(false).width(width).local(2, program).unwrap();
    }
}

#[test]
fn matrices_that_are_not_all_there() {
    panics(matrix_out_of_line, |_| (4,), "begins at a multiple of 8 elements");
    panics(matrix_out_of_line, |_| (32,), "a matrix is not all inside");
    panics(matrix_out_of_line, |_| (u64::MAX - 7,), "a matrix is not all inside");
}

/// Where lanes are told apart, a warp of half a block's threads is not whole.
#[test]
fn matrices_of_a_warp_that_lacks_threads() {
    for width in [4, 32] {
        let program = |world: &mut World| {
            let stream = world.stream()?;
            let told = world.run(&stream, matrices_of_a_partial_warp, Grid::one(48), ()).unwrap_err();
            assert!(told.to_string().contains("matrices need whole warps"), "{told}");
            Ok::<_, Error>(())
        };
        builder(false).width(width).local(1, program).unwrap();
    }
}

#[test]
fn a_panic_of_the_programs_own() {
    panics(says_so, |_| (), "number 7 is out");
}

#[test]
fn a_panic_of_one_lane_while_the_others_wait() {
    let last = panics(last_lane_panics, |words| (words.semaphore.view(),), "the last lane is out");
    let first = panics(first_lane_panics, |words| (words.semaphore.view(),), "the first lane is out");
    assert_eq!((first, last), ([0; 3], WIDTHS.map(|width| width - 1)));
}

#[test]
fn the_world_after_a_failed_one_works() {
    panics(says_so, |_| (), "is out");
    let sums = World::builder().heap(8 << 20).width(4).local(2, |world| {
        let (numbers, plan, stream) =
            (world.alloc::<f32>(100)?, world.plan(Layout::new(world.team(), 1))?, world.stream()?);
        numbers.fill(1.5)?;
        world.run(&stream, sum, Grid::one(32), (numbers.view(), plan.view()))?;
        Ok::<_, Error>(numbers.to_vec()? == [3.0; 100])
    });
    assert_eq!(sums.unwrap(), [true; 2]);
}

kernels! {
    /// What is right.
    pub fn sum(block, ctx, numbers: Sym<f32>, plan: PlanView) {
        ring::all_reduce(&mut plan.enter(block, ctx), numbers, numbers, Sum);
    }
}

#[test]
fn an_element_that_a_buffer_lacks() {
    for width in WIDTHS {
        let program = |world: &mut World| {
            let (stream, numbers, mut into) = (world.stream()?, world.buffer::<u32>(10)?, world.buffer::<u32>(10)?);
            let told = world.run(&stream, index_out_of_bounds, Grid::one(32), (&numbers, &mut into)).unwrap_err();
            let text = told.to_string();
            assert!(
                text.contains("index_out_of_bounds") && text.contains("the len is 10 but the index is 10"),
                "{text}"
            );
            assert!(into.to_vec().is_err() && world.buffer::<u32>(1).is_err(), "the world has failed");
            Ok::<_, Error>(())
        };
        builder(false).width(width).local(1, program).unwrap();
    }
}
