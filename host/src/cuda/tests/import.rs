//! Memory of somebody else's in the symmetric heap.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::CudaContext;
use cudarc::driver::result::{free_sync, malloc_sync};

use super::super::memory::{Allocation, Mapped, Range};
use super::*;
use crate::{AllocError, Error, ImportError, MachineKind, World};

const LEN: usize = 1000;

/// What another library has: a mapping of its own, on this PE's device, that can go to other processes. It goes before its range.
struct Theirs {
    _mapped: Mapped,
    range: Range,
}

impl Theirs {
    fn new(device: &Device, bytes: usize) -> Self {
        let range = Range::anywhere(device.keeper(), bytes, bytes).unwrap();
        let memory = Allocation::create(device, bytes).unwrap();
        let _mapped = Mapped::new(memory, &range, range.base(), bytes, &[device.ordinal()]).unwrap();
        Self { _mapped, range }
    }

    fn at(&self, offset: usize) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.range.base() as usize + offset)
    }
}

/// A PE's device, as another library would have it.
fn device(world: &World) -> Arc<Device> {
    let crate::machine::Machine::Cuda(pe) = world.shared().machine() else { panic!("this is for GPUs") };
    Arc::clone(&pe.device)
}

/// What each PE put into its own memory before, the others get; what comes to it, its owner has.
fn imports(world: &mut World) -> Result<(), Error> {
    let device = device(world);
    let (pe, npes) = (world.pe().raw(), world.npes() as u32);
    let theirs = Theirs::new(&device, 2 * MIB as usize);
    for i in 0..LEN as u64 {
        write(theirs.range.base() + 8 * i, 10 * u64::from(pe) + i);
    }
    let before = world.heap_stats();
    // SAFETY: nobody else accesses it, and numbers are valid whatever their bytes.
    let object = unsafe { world.import::<u64>(theirs.at(0), LEN) }?;
    assert_eq!(world.heap_stats().live, before.live + 1);
    assert!(world.heap_stats().free >= before.free);
    let (stream, next) = (world.stream()?, world.rank((pe + 1) % npes)?);
    let copy = world.alloc::<u64>(LEN)?;
    world.barrier()?;
    world.get(&stream, copy.view(), object.view().at(next))?;
    world.synchronize(&stream)?;
    let expected: Vec<_> = (0..LEN as u64).map(|i| 10 * u64::from((pe + 1) % npes) + i).collect();
    assert_eq!(copy.to_vec()?, expected);
    world.barrier()?;
    copy.fill(u64::from(pe) + 77)?;
    world.put(&stream, object.view().at(next), copy.view())?;
    world.synchronize(&stream)?;
    world.barrier()?;
    assert_eq!(read(theirs.range.base()), u64::from((pe + npes - 1) % npes) + 77);
    // Its owner gives it back, and the heap still has it.
    drop(theirs);
    assert_eq!(object.to_vec()?[LEN - 1], u64::from((pe + npes - 1) % npes) + 77);
    // Its room is not given out again, and the heap goes on.
    drop(object);
    world.reclaim()?;
    assert_eq!(world.heap_stats().live, before.live + 2);
    let more = world.alloc::<u8>(5 * MIB as usize)?;
    more.fill(1)?;
    Ok(world.barrier()?)
}

/// What is released its owner has alone, and it is free when they give it back; memory of the same size has its place afterwards.
fn releases(world: &mut World) -> Result<(), Error> {
    let device = device(world);
    let (pe, npes) = (world.pe().raw(), world.npes() as u32);
    let (stream, next) = (world.stream()?, world.rank((pe + 1) % npes)?);
    let copy = world.alloc::<u64>(LEN)?;
    let mut places = Vec::new();
    for round in 0..3 {
        world.barrier()?;
        let before = device.free_memory()?.0;
        world.barrier()?;
        let theirs = Theirs::new(&device, 2 * MIB as usize);
        write(theirs.range.base(), u64::from(pe) + 10 * round);
        // SAFETY: nobody else accesses it, and numbers are valid whatever their bytes.
        let object = unsafe { world.import::<u64>(theirs.at(0), LEN) }?;
        places.push(object.view().raw_offset());
        world.barrier()?;
        world.get(&stream, copy.view(), object.view().at(next))?;
        // SAFETY: nobody uses it any more, but for the copy, which is waited for.
        unsafe { world.release_imported(object) }?;
        let mut found = [0];
        copy.read(0, &mut found)?;
        assert_eq!(found, [u64::from((pe + 1) % npes) + 10 * round]);
        assert_eq!(read(theirs.range.base()), u64::from(pe) + 10 * round);
        drop(theirs);
        world.barrier()?;
        assert_eq!(device.free_memory()?.0, before, "it is free");
        // What is allocated meanwhile is not there.
        let more = world.alloc::<u8>(3 * MIB as usize)?;
        more.fill(1)?;
        drop(more);
        world.reclaim()?;
        world.reclaim()?;
    }
    assert_eq!(places, [places[0]; 3]);
    // SAFETY: nobody uses it.
    let refused = unsafe { world.release_imported(copy) };
    assert!(matches!(refused, Err(ImportError::NotImported)), "{refused:?}");
    Ok(world.barrier()?)
}

/// What is refused, by all PEs for the cause of one; afterwards all is as before.
fn refuses(world: &mut World) -> Result<(), Error> {
    let device = device(world);
    let first = world.pe().raw() == 0;
    let (good, small) = (Theirs::new(&device, 2 * MIB as usize), Theirs::new(&device, 4 * MIB as usize));
    // SAFETY: this thread has the context, and the memory is freed below.
    let plain = unsafe { malloc_sync(2 * MIB as usize) }.unwrap();
    let before = world.heap_stats();
    let mut refused = |memory: *mut c_void, len: usize, causes: [&str; 2]| {
        // SAFETY: nobody else accesses it, and numbers are valid whatever their bytes.
        let error = unsafe { world.import::<u64>(memory, len) }.unwrap_err();
        let said = error.to_string();
        assert!(said.contains(causes[usize::from(!first)]), "{said}");
        assert_eq!(world.heap_stats(), before, "{said}");
        error
    };
    let inside = if first { good.at(4096) } else { good.at(0) };
    refused(inside, LEN, ["4096 bytes behind the start", "PE 0: the memory at"]);
    let cannot = std::ptr::with_exposed_provenance_mut(plain as usize);
    refused(if first { good.at(0) } else { cannot }, LEN, ["PE 1: the memory at", "no allocation of its own"]);
    refused(std::ptr::null_mut(), LEN, ["no allocation of its own", "no allocation of its own"]);
    let needed = (2 * MIB as usize) / 8 + 1;
    refused(good.at(0), needed, ["2097152 bytes are mapped there", "2097152 bytes are mapped there"]);
    let other = if first { good.at(0) } else { small.at(0) };
    assert!(matches!(
        refused(other, LEN, ["asks for a heap of 4194304", "asks for a heap of 4194304"]),
        ImportError::Cuda(CudaError::Mismatch { pe: 1, .. })
    ));
    assert!(matches!(refused(good.at(0), 0, ["0 elements", "0 elements"]), ImportError::Alloc(AllocError::Zero)));
    let large = Theirs::new(&device, 64 * MIB as usize);
    refused(large.at(0), LEN, ["CONGRUENT_HEAP_MAX", "CONGRUENT_HEAP_MAX"]);
    // SAFETY: allocated above, and nobody has it.
    unsafe { free_sync(plain) }.unwrap();
    drop((large, small));
    // SAFETY: as above.
    let object = unsafe { world.import::<u64>(good.at(0), LEN) }?;
    object.fill(5)?;
    assert_eq!(read(good.range.base()), 5);
    Ok(world.barrier()?)
}

fn world(heap_max: u64, program: fn(&mut World) -> Result<(), Error>) {
    let _alone = DEVICE.lock().unwrap_or_else(PoisonError::into_inner);
    let _context = CudaContext::new(0).unwrap();
    World::builder().machine(MachineKind::Cuda).heap(4 * MIB).heap_max(heap_max).local(2, program).unwrap();
}

#[test]
#[ignore = "needs a CUDA driver"]
fn memory_of_others_becomes_symmetric() {
    world(64 * MIB, imports);
}

#[test]
#[ignore = "needs a CUDA driver"]
fn memory_that_cannot_is_refused_by_all() {
    world(16 * MIB, refuses);
}

#[test]
#[ignore = "needs a CUDA driver"]
fn imported_memory_is_released() {
    world(64 * MIB, releases);
}

#[test]
#[ignore = "needs a CUDA driver"]
fn processes_import() {
    if std::env::var_os("CONGRUENT_PE").is_some() {
        let builder = World::builder().machine(MachineKind::Cuda).heap(4 * MIB).heap_max(64 * MIB);
        builder.run(2, |world| imports(world).and_then(|()| releases(world))).unwrap();
        return;
    }
    processes("cuda::tests::import::processes_import", 2);
}
