//! Streams that somebody else made, with launches, collectives and signals of ours on them.

use congruent_collectives::Op;
use congruent_device::Signal;
use cudarc::driver::result::{graph, stream as raw};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaStream};

use super::*;
use crate::{Error, LaunchError, MachineKind, World};

fn world(body: impl Fn(&mut World, &CudaStream) -> Result<(), Error> + Sync) {
    let _alone = DEVICE.lock().unwrap_or_else(PoisonError::into_inner);
    let program = |world: &mut World| {
        let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
        body(world, &stream)
    };
    World::builder().machine(MachineKind::Cuda).heap(16 << 20).local(1, program).unwrap();
}

#[test]
#[ignore = "needs a CUDA driver"]
fn borrowed_streams_are_ordered_with_their_owners_work() {
    world(|world, theirs| {
        // SAFETY: the stream is dropped after the world's.
        let ours = unsafe { world.borrow_raw_stream(theirs.cu_stream().cast()) }?;
        let (comm, words) = (world.comm(world.team())?, world.alloc::<u64>(100)?);
        let (sum, me) = (world.alloc::<u64>(100)?, world.rank(0)?);
        words.fill(3)?;
        world.put(&ours, sum.view().at(me), words.view())?;
        comm.all_reduce(&ours, sum.view(), sum.view(), Op::Sum)?;
        world.synchronize(&ours)?;
        assert_eq!(sum.to_vec()?, [3; 100]);
        // SAFETY: the stream lives.
        unsafe { raw::synchronize(theirs.cu_stream()) }.unwrap();
        assert!(ours.is_idle());
        Ok(())
    });
}

/// What is put on a stream while its owner captures is in the owner's graph, and neither counts nor disturbs the capture.
#[test]
#[ignore = "needs a CUDA driver"]
fn an_owner_may_capture() {
    world(|world, theirs| {
        let stream = theirs.cu_stream();
        // SAFETY: the stream is dropped after the world's.
        let ours = unsafe { world.borrow_raw_stream(stream.cast()) }?;
        let (words, copy) = (world.alloc::<u64>(100)?, world.alloc::<u64>(100)?);
        let (flag, me) = (world.alloc::<Signal>(1)?, world.rank(0)?);
        words.fill(7)?;
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives.
        unsafe { raw::begin_capture(stream, mode) }.unwrap();
        world.put(&ours, copy.view().at(me), words.view())?;
        assert!(ours.is_idle(), "nothing was launched, and nothing asked of the stream");
        world.synchronize(&ours)?;
        let refused = world.wait_at_least(&ours, flag.view(), 1);
        assert!(matches!(refused, Err(LaunchError::InCapture { call: "wait_at_least", .. })), "{refused:?}");
        // SAFETY: the stream captures, and what comes of it is used while it lives.
        unsafe {
            let captured = raw::end_capture(stream).unwrap();
            let executable = graph::instantiate(captured, CUgraphInstantiate_flags(0)).unwrap();
            assert_eq!(copy.to_vec()?, [0; 100]);
            graph::launch(executable, stream).unwrap();
            raw::synchronize(stream).unwrap();
            graph::exec_destroy(executable).unwrap();
            graph::destroy(captured).unwrap();
        }
        assert_eq!(copy.to_vec()?, [7; 100]);
        Ok(())
    });
}

/// The monitor, which looks after a wait meanwhile, asks what a capture for all threads forbids those that have not said otherwise.
#[test]
#[ignore = "needs a CUDA driver"]
fn a_capture_for_all_threads_goes_on_while_a_stream_waits() {
    world(|world, theirs| {
        let (waits, other) = (world.stream()?, world.stream()?);
        let (flag, me) = (world.alloc::<Signal>(1)?, world.rank(0)?);
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        // SAFETY: the stream lives.
        unsafe { raw::begin_capture(theirs.cu_stream(), mode) }.unwrap();
        world.wait_at_least(&waits, flag.view().from_rank(me), 1)?;
        // It looks every millisecond.
        thread::sleep(std::time::Duration::from_millis(50));
        // SAFETY: the stream captures, and what comes of it is used no more.
        unsafe { graph::destroy(raw::end_capture(theirs.cu_stream()).unwrap()) }.unwrap();
        world.notify(&other, flag.view().at(me).set(1))?;
        Ok(world.synchronize(&waits)?)
    });
}

#[test]
#[ignore = "needs a CUDA driver"]
fn the_default_stream_of_each_thread_is_refused() {
    world(|world, _| {
        // SAFETY: it lives as long as the process.
        let refused = unsafe { world.borrow_raw_stream(std::ptr::without_provenance_mut(2)) }.err();
        assert!(matches!(refused, Some(LaunchError::Cuda(CudaError::ForeignContext { .. }))), "{refused:?}");
        Ok(())
    });
}
