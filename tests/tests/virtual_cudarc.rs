//! What a program has by cudarc, in launches of a world, and what a world has, in calls of cudarc: over the virtual driver, which both
//! load.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod processes;
mod virtual_support;

use std::ffi::CStr;
use std::process::Command;
use std::time::Duration;

use congruent::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use congruent::cudarc::driver::{CudaContext, result};
use congruent::device::Signal;
use congruent::{AllocError, Error, Grid, LaunchError, World};
use congruent_test_kernels::buffers::{axpy, read_late, scatter};
use congruent_virtual_library::VARIABLE;
use processes::{alone, is_pe, say};
use virtual_support::{declare, ends, entry, entry_without_waits, on_virtual};

const PATIENCE: Duration = Duration::from_secs(120);
const GRID: Grid = Grid::new(2, 64);

/// This test again, in a process of its own that has a virtual driver with two devices, whose engine these settings choose.
fn again(test: &str, settings: &str, program: fn(&mut World) -> Result<(), Error>) {
    if is_pe() {
        World::builder().devices([0]).heap(16 << 20).local(1, program).unwrap();
        say("it did");
        return;
    }
    let _alone = alone();
    let kernels = [entry_without_waits::<axpy>(), entry_without_waits::<scatter>(), entry::<read_late>()];
    let mut command = on_virtual(Command::new(std::env::current_exe().unwrap()), "");
    command.args(["--exact", test, "--nocapture"]).env("CONGRUENT_TEST_PE", "0").env(VARIABLE, settings);
    command.env("CONGRUENT_PTX", declare(test, &kernels));
    let end = ends(vec![command], PATIENCE).remove(0);
    assert!(end.succeeded && end.said.contains("it did"), "{end:?}");
}

/// Before and after a program has streams of its own: cudarc orders calls by itself only then.
fn lent(world: &mut World) -> Result<(), Error> {
    let context = CudaContext::new(world.device().unwrap() as usize)?;
    let ours = world.stream()?;
    for theirs in [context.default_stream(), context.new_stream()?] {
        let host: Vec<f32> = (0..1000).map(|i| i as f32).collect();
        let (x, mut y) = (theirs.clone_htod(&host)?, theirs.clone_htod(&vec![1.0_f32; 1000])?);
        for _ in 0..20 {
            world.launch(&ours, axpy, GRID, (1.0, &x, &mut y))?;
        }
        // cudarc's own call waits for the launches.
        let expected: Vec<f32> = host.iter().map(|x| 1.0 + 20.0 * x).collect();
        assert_eq!(theirs.clone_dtoh(&y)?, expected);
        // The launch waits for cudarc's own call.
        theirs.memset_zeros(&mut y)?;
        world.launch(&ours, axpy, GRID, (2.0, x.slice(1..11), y.slice_mut(5..15)))?;
        let mut own = world.buffer::<f32>(10)?;
        world.launch(&ours, axpy, GRID, (1.0, &y.slice(5..15), &mut own))?;
        assert_eq!(own.to_vec()?, (1..11).map(|i| 2.0 * i as f32).collect::<Vec<_>>());
        let (to, from) = (theirs.clone_htod(&[2_u32, 0, 1])?, theirs.clone_htod(&[7_u32, 8, 9])?);
        let mut into = theirs.alloc_zeros::<u32>(3)?;
        world.launch(&ours, scatter, GRID, (&mut into, &to, &from))?;
        assert_eq!(theirs.clone_dtoh(&into)?, [8, 9, 7]);
    }
    Ok(())
}

#[test]
fn slices_are_lent() {
    again("slices_are_lent", "engine=native", lent);
}

/// A slice that is dropped during a launch is there until it ends, and what would be given its room is elsewhere.
fn dropped(world: &mut World) -> Result<(), Error> {
    let context = CudaContext::new(world.device().unwrap() as usize)?;
    let (theirs, ours, tells) = (context.new_stream()?, world.stream()?, world.stream()?);
    let (copy, go, me) = (world.alloc::<u64>(5000)?, world.alloc::<Signal>(1)?, world.rank(0)?);
    let numbers: Vec<u64> = (0..5000).collect();
    let slice = theirs.clone_htod(&numbers)?;
    world.launch(&ours, read_late, Grid::one(32), (copy.view(), &slice, go.view()))?;
    drop(slice);
    let others: Vec<_> = (0..8).map(|_| theirs.clone_htod(&vec![u64::MAX; 5000])).collect::<Result<_, _>>()?;
    let own: Vec<_> = (0..8).map(|_| world.buffer::<u64>(5000)).collect::<Result<_, _>>()?;
    world.notify(&tells, go.view().at(me).set(1))?;
    world.synchronize(&ours)?;
    drop((others, own));
    assert_eq!(copy.to_vec()?, numbers);
    Ok(())
}

#[test]
fn slices_live_as_long_as_launches() {
    again("slices_live_as_long_as_launches", "engine=native", dropped);
}

/// What is of another device, or cannot be had, is refused with what to do.
fn refused(world: &mut World) -> Result<(), Error> {
    let (here, there) = (CudaContext::new(0)?, CudaContext::new(1)?);
    let (ours, mut own) = (world.stream()?, world.buffer::<f32>(10)?);
    let slice = there.default_stream().alloc_zeros::<f32>(10)?;
    let said = world.launch(&ours, axpy, GRID, (1.0, &slice, &mut own)).unwrap_err().to_string();
    assert!(said.contains("the slice is of device 1") && said.contains("Builder::devices"), "{said}");
    let said = world.borrow_stream(&there.new_stream()?).err().unwrap().to_string();
    assert!(said.contains("not of the primary context of device 0"), "{said}");
    assert!(world.borrow_stream(&here.per_thread_stream()).is_err());
    let full = world.buffer::<u8>(1 << 50);
    assert!(matches!(&full, Err(AllocError::Cuda(error)) if error.to_string().contains("were asked for")), "{full:?}");
    // Of this PE's own, but of a graph that would not keep them.
    let theirs = here.new_stream()?;
    let (x, borrowed) = (theirs.alloc_zeros::<f32>(10)?, world.borrow_stream(&theirs)?);
    let captured = world.capture(&ours, |ours| world.launch(ours, axpy, GRID, (1.0, &x, &mut own)));
    assert!(matches!(captured.err(), Some(LaunchError::InCapture { .. })));
    world.synchronize(&borrowed)?;
    theirs.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    let words = world.alloc::<u64>(4)?;
    let put = world.put(&borrowed, words.view().at(world.rank(0)?), words.view());
    assert!(put.is_err(), "the graph would not keep the world");
    drop(theirs.end_capture(CUgraphInstantiate_flags(0)));
    Ok(())
}

#[test]
fn what_cannot_be_lent_is_refused() {
    again("what_cannot_be_lent_is_refused", "engine=native,devices=2", refused);
}

/// A kernel that another compiler made, on addresses of the world's, in order with its launches by the stream that both use.
fn theirs_on_ours(world: &mut World) -> Result<(), Error> {
    const PTX: &CStr = c".version 8.0\n.target sm_80\n.address_size 64\n
        .visible .entry twice(.param .u64 at) { .reg .b64 %a<3>; .reg .b32 %r<3>; mov.u32 %r1, %tid.x; ld.param.u64 %a0, [at];
        mul.wide.u32 %a1, %r1, 8; add.u64 %a0, %a0, %a1; ld.global.u64 %a2, [%a0]; shl.b64 %a2, %a2, 1; st.global.u64 [%a0], %a2; ret; }";
    let context = CudaContext::new(world.device().unwrap() as usize)?;
    let theirs = context.new_stream()?;
    let ours = world.borrow_stream(&theirs)?;
    // SAFETY: this thread has the context, and the text ends with a zero; the module stays loaded.
    let twice = unsafe {
        let module = result::module::load_data(PTX.as_ptr().cast())?;
        result::module::get_function(module, c"twice".to_owned())?
    };
    let (symmetric, copy, me) = (world.alloc::<u64>(32)?, world.alloc::<u64>(32)?, world.rank(0)?);
    let mut own = world.buffer::<u64>(32)?;
    let numbers: Vec<u64> = (0..32).collect();
    symmetric.write(0, &numbers)?;
    own.write(0, &numbers)?;
    for mut address in [symmetric.device_ptr(), own.device_ptr()] {
        let stream = theirs.cu_stream();
        // SAFETY: 32 numbers, which nobody else accesses meanwhile, and the one parameter that the kernel has.
        unsafe { result::launch_kernel(twice, (1, 1, 1), (32, 1, 1), 0, stream, &mut [(&raw mut address).cast()]) }?;
    }
    world.put(&ours, copy.view().at(me), symmetric.view())?;
    drop(theirs);
    world.synchronize(&ours)?;
    // Its own library's kernel used the buffer behind the world's back, which the program waited for.
    let doubled: Vec<u64> = (0..32).map(|i| 2 * i).collect();
    assert_eq!((copy.to_vec()?, own.to_vec()?), (doubled.clone(), doubled));
    Ok(())
}

#[test]
fn kernels_of_others_run_on_addresses_of_ours() {
    again("kernels_of_others_run_on_addresses_of_ours", "", theirs_on_ours);
}
