//! Kernels that get something wrong: what is told of it, and that the device is as good as before for whoever else uses it.

use congruent::device::abi::FaultKind;
use congruent::device::{Kernel, Signal, Sym};
use congruent::{Error, Grid, LaunchError, World, WorldFailure};
use congruent_test_kernels::misuse as kernels;

/// A number that is out of everything here, and in no code.
const INDEX: u64 = 2;

/// That a kernel's fault says what is wrong. The world that it is launched in is over then; its memory is not. Which thread of which
/// block it was.
fn refused<K: Kernel<Args = (Sym<u64>, u64)>>(kernel: K, message: &str) -> Result<(u32, u32), Error> {
    let places = World::builder().heap(8 << 20).local(2, |world| {
        let (numbers, stream) = (world.alloc::<u64>(3)?, world.stream()?);
        numbers.fill(5)?;
        let met = world.barrier();
        // PE 0 may hear what became of the kernel before it has left the barrier.
        if world.pe().raw() == 1 {
            met?;
            let told = world.run(&stream, kernel, Grid::new(2, 32), (numbers.view(), INDEX)).map_err(Error::from);
            let told = told.err().and_then(|error| error.world_failure().cloned());
            let Some(WorldFailure::KernelPanicked { kernel, pe: 1, block, thread, message: said }) = &told else {
                panic!("{}: {told:?}", K::NAME);
            };
            assert!(*kernel == K::NAME && said.contains(message), "{}: {said}", K::NAME);
            assert_eq!(numbers.to_vec(), Ok(vec![5; 3]), "{}", K::NAME);
            return Ok::<_, Error>((*block, *thread));
        }
        Ok((0, 0))
    })?;
    Ok(places[1])
}

/// Each mistake is a fault that says which, and the device goes on for others: a world that is there before is there afterwards.
pub fn misuse(world: &mut World) -> Result<(), Error> {
    let (signals, stream) = (world.alloc::<Signal>(1)?, world.stream()?);
    refused(kernels::store_past_the_end, "symmetric index out of bounds")?;
    refused(kernels::slice_past_the_end, "symmetric slice out of bounds")?;
    refused(kernels::chunk_past_the_last, "symmetric chunk out of bounds")?;
    refused(kernels::object_of_another_world, "reaches past the heap: is it of another world?")?;
    refused(kernels::rank_past_the_last, "rank out of range of its team")?;
    refused(kernels::lengths_that_differ, "destination and source have different lengths")?;
    refused(kernels::stride_of_zero, "a stride is at least 1 element")?;
    refused(kernels::stride_past_the_end, "strided elements out of bounds")?;
    refused(kernels::atomic_past_the_end, "symmetric element out of bounds")?;
    refused(kernels::shared_past_the_end, "index of shared memory out of bounds")?;
    // What these say would have to be formatted: a GPU's fault has their line instead.
    refused(kernels::panic_of_its_own, "src/misuse.rs:")?;
    assert_eq!(refused(kernels::panic_of_one_thread, "src/misuse.rs:")?, (1, 5));
    refused(kernels::array_past_the_end, "src/misuse.rs:")?;
    refused(kernels::division_by_zero, "src/misuse.rs:")?;
    let args = (signals.view(), 0, 1);
    let waits = world.launch(&stream, kernels::waits_all_the_same, Grid::one(32), args);
    assert!(matches!(waits, Err(LaunchError::Waits { kernel: "waits_all_the_same" })), "{waits:?}");
    world.notify(&stream, signals.view().at(world.rank(world.pe().raw())?).set(1))?;
    Ok(world.run(&stream, kernels::waits, Grid::one(32), (signals.view(), 0, 1))?)
}

/// A wait in vain is named by its kernel, its line and its object. To be run with a short deadline.
pub fn waits_in_vain(world: &mut World) -> Result<(), Error> {
    let (signals, stream) = (world.alloc::<Signal>(2)?.named("halo"), world.stream()?);
    world.launch(&stream, kernels::waits, Grid::one(32), (signals.view(), 1, 7))?;
    let told = world.synchronize(&stream);
    let Err(WorldFailure::Fault(fault)) = &told else { panic!("{told:?}") };
    assert_eq!((fault.kind, fault.kernel), (FaultKind::Timeout, Some("waits")), "{fault}");
    let source = include_str!("../../kernels/src/misuse.rs");
    // Lines are counted from 1, and the wait is behind the kernel's head.
    let line = source.lines().position(|line| line.contains("pub fn waits(")).unwrap_or_default() + 2;
    let at = fault.at.as_deref().unwrap_or_default();
    assert!(at.contains(&format!("src/misuse.rs:{line}:")), "{at}");
    let launched = fault.launched_at.as_deref().unwrap_or_default();
    assert!(launched.contains("conformance/misuse.rs:"), "{launched}");
    let text = fault.to_string();
    assert!(text.contains("element 1 of `halo` (SymVec<Signal>, 2 elements"), "{text}");
    Ok(())
}
