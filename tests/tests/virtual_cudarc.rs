//! What a program has by cudarc, in launches of a world, and what a world has, in calls of cudarc: over the virtual driver, which both
//! load.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod processes;
mod virtual_support;

use std::ffi::CStr;
use std::process::Command;
use std::time::Duration;

use congruent::cudarc::driver::result::stream::wait_event;
use congruent::cudarc::driver::sys::{
    CUevent_flags, CUevent_wait_flags, CUgraphInstantiate_flags, CUstreamCaptureMode,
};
use congruent::cudarc::driver::{CudaContext, DevicePtrMut, result};
use congruent::device::Signal;
use congruent::{AllocError, Buffer, Chunked, CudaError, Error, Grid, LaunchError, MachineKind, Packed, World};
use congruent_test_kernels::buffers::{axpy, axpy_in_packs, number_rows, read_late, scatter, sums_of_chunks};
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
    let kernels = [
        entry_without_waits::<axpy>(),
        entry_without_waits::<scatter>(),
        entry_without_waits::<sums_of_chunks>(),
        entry_without_waits::<number_rows>(),
        entry_without_waits::<axpy_in_packs>(),
        entry::<read_late>(),
    ];
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

/// Slices in chunks, in rows and in packs, and views of them that every thread writes where it likes.
fn in_parts(world: &mut World) -> Result<(), Error> {
    let theirs = CudaContext::new(world.device().unwrap() as usize)?.new_stream()?;
    let (ours, told) = (world.stream()?, world.alloc::<u64>(1)?);
    let mut words = theirs.clone_htod(&[1_u64; 12])?;
    world.launch(&ours, sums_of_chunks, Grid::one(32), (Chunked::new(&mut words, 5),))?;
    // cudarc's own call waits for the launch, and the launch for that.
    assert_eq!(theirs.clone_dtoh(&words)?, [0, 1, 1, 1, 5, 1, 1, 1, 1, 5, 2, 2]);
    theirs.memset_zeros(&mut words)?;
    let rows = Chunked::new(words.slice_mut(2..8), 4);
    world.launch(&ours, number_rows, Grid::one(32), (rows, told.view()))?;
    assert_eq!(theirs.clone_dtoh(&words)?[1..9], [0, 0, 1, 2, 3, 1 << 32, 1 << 32 | 1, 0]);
    assert_eq!(told.to_vec()?, [2]);
    let refused = world.launch(&ours, sums_of_chunks, Grid::one(32), (Chunked::new(&mut words, 0),));
    assert!(matches!(refused, Err(LaunchError::EmptyParts { kernel: "sums_of_chunks" })), "{refused:?}");

    let numbers: Vec<f32> = (0..1000).map(|i| i as f32).collect();
    let (x, mut y) = (theirs.clone_htod(&numbers)?, theirs.clone_htod(&[1.0_f32; 1000])?);
    world.launch(&ours, axpy_in_packs, GRID, (2.0, Packed::new(&x), Packed::new(&mut y)))?;
    assert_eq!(theirs.clone_dtoh(&y)?, numbers.iter().map(|x| 1.0 + 2.0 * x).collect::<Vec<_>>());
    theirs.memset_zeros(&mut y)?;
    world.launch(&ours, axpy_in_packs, GRID, (3.0, Packed::new(x.slice(8..16)), Packed::new(y.slice_mut(4..12))))?;
    let found = theirs.clone_dtoh(&y)?;
    assert_eq!(found[3..13], [0.0, 24.0, 27.0, 30.0, 33.0, 36.0, 39.0, 42.0, 45.0, 0.0]);
    // No whole packs, and whole ones that begin at none.
    for some in [0..6, 1..5] {
        let len = some.len();
        let refused = world.launch(&ours, axpy_in_packs, GRID, (1.0, Packed::new(x.slice(some)), Packed::new(&mut y)));
        let Err(LaunchError::Packs { kernel: "axpy_in_packs", len: told, in_one: 4 }) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(told, len);
    }

    let (to, from) = (theirs.clone_htod(&[2_u32, 0, 1])?, theirs.clone_htod(&[7_u32, 8, 9])?);
    let mut into = theirs.alloc_zeros::<u32>(5)?;
    world.launch(&ours, scatter, GRID, (into.slice_mut(1..4), &to, &from))?;
    assert_eq!(theirs.clone_dtoh(&into)?, [0, 8, 9, 7, 0]);
    Ok(())
}

#[test]
fn slices_are_lent_in_parts_and_packs() {
    again("slices_are_lent_in_parts_and_packs", "engine=native", in_parts);
}

/// Slices are copied to and from all that can be, in the order of what uses them on either side.
fn copied(world: &mut World) -> Result<(), Error> {
    let context = CudaContext::new(world.device().unwrap() as usize)?;
    let numbers: Vec<u64> = (0..1000).collect();
    let (ours, tells, me) = (world.stream()?, world.stream()?, world.rank(0)?);
    let (symmetric, told) = (world.alloc::<u64>(1000)?, world.alloc::<u64>(1000)?);
    let (mut own, mut host) = (world.buffer::<u64>(1000)?, world.host_buffer::<u64>(1000)?);
    // Before and after cudarc orders calls by itself.
    for theirs in [context.default_stream(), context.new_stream()?] {
        let go = world.alloc::<Signal>(1)?;
        let (mut a, mut b) = (theirs.clone_htod(&numbers)?, theirs.alloc_zeros::<u64>(1000)?);
        world.copy(&ours, &mut own, &a)?;
        world.copy(&ours, &mut b, &own)?;
        assert_eq!(theirs.clone_dtoh(&b)?, numbers);
        world.copy(&ours, symmetric.view(), b.slice(..))?;
        world.copy(&ours, b.slice_mut(..10), symmetric.slice(990..)?)?;
        world.copy(&ours, &mut host, &b)?;
        assert_eq!(host.to_vec()?[..11], [990, 991, 992, 993, 994, 995, 996, 997, 998, 999, 10]);
        world.copy(&ours, b.slice_mut(10..12), &[5, 6][..])?;
        world.copy(&ours, a.slice_mut(..3), b.slice(9..12))?;
        world.copy(&ours, a.slice_mut(..0), b.slice(..0))?;
        assert_eq!(theirs.clone_dtoh(&a)?[..4], [999, 5, 6, 3]);
        // A slice that is dropped is there until what was to be copied is.
        world.launch(&ours, read_late, Grid::one(32), (told.view(), &own, go.view()))?;
        world.copy(&ours, &mut own, &a)?;
        drop(a);
        let others: Vec<_> = (0..8).map(|_| theirs.clone_htod(&vec![u64::MAX; 1000])).collect::<Result<_, _>>()?;
        assert!(!ours.is_idle(), "the kernel was not told to go on");
        world.notify(&tells, go.view().at(me).set(1))?;
        world.synchronize(&ours)?;
        drop(others);
        assert_eq!(own.to_vec()?[..4], [999, 5, 6, 3]);
    }

    let (there, slice) = (CudaContext::new(1)?, context.default_stream().alloc_zeros::<u64>(1000)?);
    // Not on the default stream: cudarc frees what is of it on that of the context that is current then, in no order with its memset.
    let elsewhere = there.new_stream()?.alloc_zeros::<u64>(1000)?;
    let refused = world.copy(&ours, &mut own, &elsewhere).unwrap_err();
    assert!(matches!(refused, LaunchError::Cuda(CudaError::LentOfDevice { theirs: 1, ours: 0 })), "{refused:?}");
    let refused = world.copy(&ours, &mut own, slice.slice(1..)).unwrap_err();
    assert!(matches!(refused, LaunchError::Lengths { dst: 1000, src: 999 }), "{refused:?}");
    let refused = world.capture(&ours, |ours| world.copy(ours, &mut own, &slice)).err();
    assert!(matches!(refused, Some(LaunchError::InCapture { call: "copy", .. })), "{refused:?}");
    Ok(())
}

#[test]
fn slices_are_copied() {
    again("slices_are_copied", "engine=native,devices=2", copied);
}

/// Memory of somebody else's is a buffer by its address: in launches, whole, in parts and relaxed, in copies and for the host.
fn at_addresses(world: &mut World) -> Result<(), Error> {
    let theirs = CudaContext::new(world.device().unwrap() as usize)?.new_stream()?;
    let (ours, other) = (world.stream()?, world.stream()?);
    let mut slice = theirs.clone_htod(&[1.0_f32; 1000])?;
    let address = slice.device_ptr_mut(&theirs).0;
    theirs.synchronize()?;
    // SAFETY: the slice has so many numbers, and cudarc does nothing with it until the buffer is dropped and no stream uses it.
    let mut lent: Buffer<f32> = unsafe { world.borrow_raw_buffer(address, 1000) }?;
    assert_eq!((lent.device_ptr(), lent.len()), (address, 1000));
    let mut own = world.buffer::<f32>(1000)?;
    own.fill(2.0)?;
    // On two streams in turn, which wait for each other by what both use.
    for stream in [&ours, &other] {
        world.launch(stream, axpy, GRID, (1.0, &own, &mut lent))?;
        world.launch(stream, axpy, GRID, (1.0, lent.slice(..10)?, own.slice_mut(..10)?))?;
    }
    assert_eq!((lent.to_vec()?[9], lent.to_vec()?[999]), (8.0, 5.0));
    world.copy(&ours, &mut lent, &own)?;
    lent.write(999, &[3.0])?;
    drop(lent);
    let found = theirs.clone_dtoh(&slice)?;
    assert_eq!((found[9], found[998], found[999]), (13.0, 2.0, 3.0));
    let mut words = theirs.clone_htod(&[1_u64; 12])?;
    let address = words.device_ptr_mut(&theirs).0;
    theirs.synchronize()?;
    // SAFETY: as above.
    let mut lent: Buffer<u64> = unsafe { world.borrow_raw_buffer(address, 12) }?;
    world.run(&ours, sums_of_chunks, Grid::one(32), (lent.chunks_mut(5),))?;
    assert_eq!(lent.to_vec()?, [0, 1, 1, 1, 5, 1, 1, 1, 1, 5, 2, 2]);
    // SAFETY: never used, as each is refused.
    let refused = |address, len| unsafe { world.borrow_raw_buffer::<u64>(address, len) }.unwrap_err();
    assert!(matches!(refused(address + 4, 1), AllocError::Cuda(CudaError::Misaligned { align: 8, .. })));
    assert!(matches!(refused(0, 1), AllocError::Null));
    assert!(matches!(refused(address, usize::MAX / 8), AllocError::TooLarge { .. }));
    let elsewhere = CudaContext::new(1)?.new_stream()?;
    let mut words = elsewhere.alloc_zeros::<u64>(12)?;
    let refused_of_device = refused(words.device_ptr_mut(&elsewhere).0, 12);
    assert!(matches!(refused_of_device, AllocError::Cuda(CudaError::LentOfDevice { theirs: 1, ours: 0 })));
    let of_host = refused([0_u64; 12].as_mut_ptr().expose_provenance() as u64, 12);
    assert!(matches!(of_host, AllocError::Cuda(CudaError::UnknownAddress { .. })), "{of_host}");
    assert!(of_host.to_string().contains("nor pinned memory of the host"), "{of_host}");
    let mut pinned = world.host_buffer::<u64>(12)?;
    pinned.fill(5)?;
    // SAFETY: the library's own memory, which nobody else uses meanwhile.
    let lent: Buffer<u64> = unsafe { world.borrow_raw_buffer(pinned.device_ptr(), 12) }?;
    assert_eq!(lent.to_vec()?, [5; 12]);
    Ok(())
}

#[test]
fn memory_at_an_address_is_a_buffer() {
    again("memory_at_an_address_is_a_buffer", "engine=native,devices=2", at_addresses);
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

/// Events of cudarc's hold streams of the world back, and the world's those of cudarc's.
fn events(world: &mut World) -> Result<(), Error> {
    let context = CudaContext::new(world.device().unwrap() as usize)?;
    let (theirs, timed) = (context.new_stream()?, Some(CUevent_flags::CU_EVENT_DEFAULT));
    let (ours, later, tells) = (world.stream()?, world.stream()?, world.stream()?);
    let (told, go, me) = (world.alloc::<u64>(1000)?, world.alloc::<Signal>(1)?, world.rank(0)?);
    let never = world.import_event(context.new_event(None)?)?;
    assert!(never.is_complete() && never.cu_event().is_some());
    let begun = world.import_event(theirs.record_event(timed)?)?;
    let borrowed = world.borrow_stream(&theirs)?;
    let mut numbers = world.buffer::<u64>(1000)?;
    numbers.fill(7)?;
    // Theirs waits for a kernel of ours, by our event, and ours for theirs, by theirs.
    world.launch(&ours, read_late, Grid::one(32), (told.view(), &numbers, go.view()))?;
    let read = ours.record_event()?;
    // SAFETY: both are of this context, and the event is there.
    unsafe { wait_event(theirs.cu_stream(), read.cu_event().unwrap(), CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT) }?;
    let after = world.import_event(theirs.record_event(timed)?)?;
    later.wait(&after)?;
    let mut copy = world.host_buffer::<u64>(1000)?;
    world.copy(&later, &mut copy, told.view())?;
    assert!(!after.is_complete() && !later.is_idle(), "the kernel was not told to go on");
    world.notify(&tells, go.view().at(me).set(1))?;
    assert_eq!(copy.to_vec()?, [7; 1000]);
    assert!(after.is_complete() && begun.elapsed(&after)? > Duration::ZERO);
    assert!(matches!(begun.elapsed(&never), Err(LaunchError::Cuda(CudaError::Call { .. }))), "it keeps no time");
    borrowed.wait(&read)?;
    world.synchronize(&borrowed)?;
    Ok(())
}

#[test]
fn events_go_both_ways() {
    again("events_go_both_ways", "engine=native", events);
}

/// What is of another device, or cannot be had, is refused with what to do.
fn refused(world: &mut World) -> Result<(), Error> {
    let (here, there) = (CudaContext::new(0)?, CudaContext::new(1)?);
    let (ours, mut own) = (world.stream()?, world.buffer::<f32>(10)?);
    // Of the default stream cudarc may free it before its memset.
    let slice = there.new_stream()?.alloc_zeros::<f32>(10)?;
    let refused = world.launch(&ours, axpy, GRID, (1.0, &slice, &mut own)).unwrap_err();
    assert!(matches!(refused, LaunchError::Cuda(CudaError::LentOfDevice { theirs: 1, ours: 0 })));
    assert!(refused.to_string().contains("Builder::devices"), "{refused}");
    for refused in [
        world.borrow_stream(&there.new_stream()?).err(),
        world.borrow_stream(&here.per_thread_stream()).err(),
        world.import_event(there.new_event(None)?).err(),
    ] {
        let refused = refused.unwrap();
        assert!(matches!(refused, LaunchError::Cuda(CudaError::ForeignContext { device: 0 })), "{refused:?}");
        assert!(refused.to_string().contains("not of the context on device 0"), "{refused}");
    }
    let full = world.buffer::<u8>(1 << 50);
    assert!(matches!(&full, Err(AllocError::Cuda(error)) if error.to_string().contains("were asked for")), "{full:?}");
    let theirs = here.new_stream()?;
    // Numbers from the second byte on.
    let bytes = theirs.alloc_zeros::<u8>(41)?;
    let view = bytes.slice(1..);
    // SAFETY: any bytes are numbers; it is not read.
    let odd = unsafe { view.transmute::<f32>(10) }.unwrap();
    let refused = world.launch(&ours, axpy, GRID, (1.0, &odd, &mut own)).unwrap_err();
    assert!(matches!(refused, LaunchError::Cuda(CudaError::Misaligned { align: 4, .. })), "{refused:?}");
    assert!(refused.to_string().contains("no multiple of 4"), "{refused}");
    world.synchronize(&ours)?;
    Ok(())
}

#[test]
fn what_cannot_be_lent_is_refused() {
    again("what_cannot_be_lent_is_refused", "engine=native,devices=2", refused);
}

/// What a graph would not keep is in none; and a stream that its owner captures is left alone, as are points in its graph.
fn captured(world: &mut World) -> Result<(), Error> {
    let context = CudaContext::new(0)?;
    let (theirs, ours) = (context.new_stream()?, world.stream()?);
    let (x, mut own) = (theirs.alloc_zeros::<f32>(10)?, world.buffer::<f32>(10)?);
    let refused = world.capture(&ours, |ours| world.launch(ours, axpy, GRID, (1.0, &x, &mut own)));
    assert!(matches!(refused.err(), Some(LaunchError::InCapture { call: "axpy", .. })));
    let (borrowed, words) = (world.borrow_stream(&theirs)?, world.alloc::<u64>(4)?);
    let me = world.rank(0)?;
    world.put(&borrowed, words.view().at(me), words.view())?;
    world.synchronize(&borrowed)?;
    let captured = |refused: LaunchError| matches!(refused, LaunchError::Cuda(CudaError::Captured));
    use CUstreamCaptureMode::{
        CU_STREAM_CAPTURE_MODE_RELAXED as RELAXED, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as LOCAL,
    };
    for mode in [LOCAL, RELAXED] {
        // An unfinished capture.
        theirs.begin_capture(mode)?;
        assert!(captured(world.put(&borrowed, words.view().at(me), words.view()).unwrap_err()));
        assert!(matches!(ours.join(&borrowed), Err(LaunchError::InCapture { call: "join", .. })));
        assert!(matches!(borrowed.record_event(), Err(LaunchError::InCapture { call: "record_event", .. })));
        let nested = world.capture(&borrowed, |_| Ok(()));
        assert!(matches!(nested.err(), Some(LaunchError::InCapture { call: "a capture", .. })));
        let refused = world.import_event(theirs.record_event(None)?).err().unwrap();
        assert!(refused.to_string().contains("record events outside"), "{refused}");
        assert!(captured(refused));
        // It has come to nothing, and the stream goes on.
        assert!(theirs.end_capture(CUgraphInstantiate_flags(0)).is_err());
        world.put(&borrowed, words.view().at(me), words.view())?;
        world.synchronize(&borrowed)?;
    }
    Ok(())
}

#[test]
fn captures_of_others_are_left_alone() {
    again("captures_of_others_are_left_alone", "engine=native", captured);
}

/// Worlds in contexts that the program made: of one PE, and of two that share one; what is of the primary context is refused there.
fn in_own_contexts() -> Result<(), Error> {
    let contexts = [CudaContext::new_non_primary(0, 0)?, CudaContext::new_non_primary(1, 0)?];
    for npes in 1..=3 {
        World::builder().contexts(contexts.clone()).heap(16 << 20).local(npes, |world| {
            let (pe, device) = (world.pe().index(), world.device().unwrap() as usize);
            assert_eq!(device, pe % 2);
            let theirs = contexts[device].new_stream()?;
            let ours = world.borrow_stream(&theirs)?;
            let (x, mut y) = (theirs.clone_htod(&[2.0_f32; 100])?, theirs.clone_htod(&[1.0_f32; 100])?);
            let copied = world.import_event(theirs.record_event(None)?)?;
            ours.wait(&copied)?;
            world.launch(&ours, axpy, GRID, (3.0, &x, &mut y))?;
            assert_eq!(theirs.clone_dtoh(&y)?, [7.0; 100]);
            let (told, next) = (world.alloc::<u64>(1)?, world.rank(((pe + 1) % npes) as u32)?);
            let mine = world.alloc::<u64>(1)?;
            mine.fill(pe as u64 + 1)?;
            world.put(&ours, told.view().at(next), mine.view())?;
            world.synchronize(&ours)?;
            world.barrier()?;
            assert_eq!(told.to_vec()?, [((pe + npes - 1) % npes) as u64 + 1]);
            let primary = CudaContext::new(device)?.new_stream()?;
            let slice = primary.clone_htod(&[2.0_f32; 100])?;
            let refused = world.launch(&ours, axpy, GRID, (3.0, &slice, &mut y)).unwrap_err();
            assert!(refused.to_string().contains("Builder::contexts"), "{refused}");
            let refused = world.borrow_stream(&primary).err().unwrap();
            assert!(refused.to_string().contains("Builder::contexts"), "{refused}");
            Ok::<_, Error>(())
        })?;
    }
    let refused = World::builder().machine(MachineKind::Virtual).contexts(contexts).local(1, |_| Ok::<_, Error>(()));
    assert!(refused.unwrap_err().to_string().contains("Builder::contexts"));
    Ok(())
}

#[test]
fn a_world_computes_in_contexts_that_the_program_made() {
    const TEST: &str = "a_world_computes_in_contexts_that_the_program_made";
    if is_pe() {
        in_own_contexts().unwrap();
        return say("it did");
    }
    again(TEST, "engine=native,devices=2", |_| Ok(()));
}

/// A world whose driver is not cudarc's, by what its kind is, beside cudarc's own first device.
fn beside(kind: MachineKind, check: fn(LaunchError) -> bool) -> Result<(), Error> {
    World::builder().machine(kind).devices([0]).heap(16 << 20).local(1, |world| {
        let (theirs, ours) = (CudaContext::new(0)?.new_stream()?, world.stream()?);
        let (mut slice, own) = (theirs.alloc_zeros::<f32>(10)?, world.buffer::<f32>(10)?);
        let launched = world.launch(&ours, axpy, GRID, (1.0, &slice, &mut world.buffer(10)?));
        assert!(check(launched.unwrap_err()));
        assert!(check(world.launch(&ours, axpy, GRID, (1.0, &own, &mut slice)).unwrap_err()));
        assert!(check(world.copy(&ours, &mut slice, &own).unwrap_err()));
        assert!(check(world.copy(&ours, &mut world.buffer(10)?, &slice).unwrap_err()));
        let [stream, event] =
            [world.borrow_stream(&theirs).err(), world.import_event(theirs.record_event(None)?).err()];
        let refused = |refused: Option<LaunchError>| {
            let foreign = LaunchError::Cuda(CudaError::ForeignContext { device: 0 });
            let expected = if kind == MachineKind::Cpu { LaunchError::NoStreamToBorrow } else { foreign };
            assert_eq!(refused.unwrap().to_string(), expected.to_string());
        };
        refused(stream);
        refused(event);
        Ok::<_, Error>(())
    })?;
    Ok(())
}

#[test]
fn slices_of_a_context_that_the_world_does_not_use_are_refused() {
    const TEST: &str = "slices_of_a_context_that_the_world_does_not_use_are_refused";
    if is_pe() {
        let of_context = |refused| matches!(refused, LaunchError::Cuda(CudaError::SliceOfContext { device: 0 }));
        beside(MachineKind::Virtual, of_context).unwrap();
        beside(MachineKind::Cpu, |refused| matches!(refused, LaunchError::NoSliceToLend)).unwrap();
        return say("it did");
    }
    again(TEST, "engine=native", |_| Ok(()));
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
