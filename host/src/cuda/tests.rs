//! The heap on a driver: a GPU's, or the virtual driver in `virtual/driver` by `LD_LIBRARY_PATH`. `cargo test -- --ignored cuda::`
//! runs these.

mod faults;
mod import;
mod streams;

use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;

use cudarc::driver::result::{memcpy_dtoh_sync, memcpy_htod_sync};

use super::device::Device;
use super::driver::Driver;
use super::error::CudaError;
use super::heap::CudaHeap;
use crate::bootstrap::{Bootstrap, Control, local};

const MIB: u64 = 1 << 20;

fn write(address: u64, value: u64) {
    // SAFETY: tests write in parts of their heap, from a thread that has a context.
    unsafe { memcpy_htod_sync(address, &[value]) }.unwrap();
}

fn read(address: u64) -> u64 {
    let mut value = [0];
    // SAFETY: as in `write`.
    unsafe { memcpy_dtoh_sync(&mut value, address) }.unwrap();
    value[0]
}

fn reserve(control: &Control, heap_bytes: u64, heap_max: u64) -> Result<(Device, CudaHeap), CudaError> {
    let device = Device::choose(Driver::get()?, control, &[], None)?;
    let heap = CudaHeap::reserve(&device, control, heap_bytes, heap_max, 1)?;
    Ok((device, heap))
}

fn grow(heap: &CudaHeap, device: &Device, control: &Control, to_bytes: u64) -> Result<(), CudaError> {
    heap.grow(device, control, to_bytes).map(|growth| growth.into_iter().for_each(|growth| heap.commit(growth)))
}

/// All see what each writes, at the same addresses, at the beginning and the end of what each part has.
fn see_each_other(control: &Control, heap: &CudaHeap, round: u64) {
    let pe = u64::from(control.pe());
    let ends = [0, heap.part_bytes() - 8];
    for end in ends {
        write(heap.own() + end, 100 * round + pe + end);
    }
    let bases = control.all_gather(&heap.base().to_le_bytes()).unwrap();
    assert!(bases.windows(2).all(|pair| pair[0] == pair[1]));
    for pe in 0..u64::from(control.npes()) {
        for end in ends {
            assert_eq!(read(heap.base() + pe * heap.stride() + end), 100 * round + pe + end);
        }
    }
    control.all_gather(&[]).unwrap();
}

/// What one PE does, however it was started.
fn exchange(control: &Control) {
    for round in 0..3 {
        let (device, heap) = reserve(control, 3 * MIB, 64 * MIB).unwrap();
        assert!(device.sharing() >= 1 && device.sharing() <= control.npes());
        assert_eq!(heap.part_bytes(), (3 * MIB).next_multiple_of(heap.granularity()));
        assert_eq!(heap.stride(), (64 * MIB).next_multiple_of(heap.granularity()));
        assert_eq!([read(heap.own()), read(heap.own() + heap.part_bytes() - 8)], [0, 0]);
        assert!(heap.bytes_used() < heap.granularity() + 8 * MIB, "{} bytes beyond the heap", heap.bytes_used());
        control.all_gather(&[]).unwrap();
        see_each_other(control, &heap, round);

        let (base, before) = (heap.base(), heap.part_bytes());
        grow(&heap, &device, control, 9 * MIB).unwrap();
        assert_eq!((heap.base(), heap.part_bytes()), (base, (9 * MIB).next_multiple_of(heap.granularity())));
        assert_eq!(read(heap.own()), 100 * round + u64::from(control.pe()));
        assert!(heap.part_bytes() == before || read(heap.own() + before) == 0);
        control.all_gather(&[]).unwrap();
        see_each_other(control, &heap, round);
        assert_eq!(heap.chunks().iter().map(|chunk| chunk.bytes as u64).sum::<u64>(), heap.part_bytes());

        let (limit, size) = (heap.stride(), heap.part_bytes());
        grow(&heap, &device, control, 1).unwrap();
        assert_eq!(
            grow(&heap, &device, control, limit + 1),
            Err(CudaError::GrowthLimit { to_bytes: limit + 1, limit })
        );
        assert_eq!(heap.part_bytes(), size);
        control.all_gather(&[]).unwrap();
    }
    control.depart();
}

/// A heap tells what it took of the device, so that no two are made at once.
static DEVICE: Mutex<()> = Mutex::new(());

fn each<T: Send>(npes: usize, body: impl Fn(&Control) -> T + Sync) -> Vec<T> {
    let _alone = DEVICE.lock().unwrap_or_else(PoisonError::into_inner);
    let controls = local(npes).unwrap();
    thread::scope(|scope| {
        let running: Vec<_> = controls.iter().map(|control| scope.spawn(|| body(control))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// This test again, as each PE of a job of processes.
fn processes(test: &str, npes: u32) {
    let _alone = DEVICE.lock().unwrap_or_else(PoisonError::into_inner);
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let start = |pe: u32| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--ignored"])
            .env("CONGRUENT_PE", pe.to_string())
            .env("CONGRUENT_NPES", npes.to_string())
            .env("CONGRUENT_RENDEZVOUS", format!("127.0.0.1:{port}"))
            .env("CONGRUENT_JOB_TOKEN", test)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let children: Vec<Child> = (0..npes).map(start).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
#[ignore = "needs a CUDA driver"]
fn threads_have_one_heap() {
    each(4, exchange);
}

#[test]
#[ignore = "needs a CUDA driver"]
fn one_pe_has_a_heap() {
    each(1, exchange);
}

#[test]
#[ignore = "needs a CUDA driver"]
fn processes_have_one_heap() {
    if std::env::var_os("CONGRUENT_PE").is_some() {
        return exchange(&Bootstrap::from_env().unwrap().connect().unwrap());
    }
    processes("cuda::tests::processes_have_one_heap", 3);
}

/// A heap outlives the PE that made it, as long as another PE of the process has it.
#[test]
#[ignore = "needs a CUDA driver"]
fn a_heap_of_threads_goes_with_the_last_of_them() {
    each(2, |control| {
        let (device, heap) = reserve(control, MIB, MIB).unwrap();
        let parts = [heap.base(), heap.base() + heap.stride()];
        let kept = (control.pe() == 1).then_some(heap);
        control.all_gather(&[]).unwrap();
        if kept.is_some() {
            device.bind().unwrap();
            for part in parts {
                write(part, 7);
                assert_eq!(read(part), 7);
            }
        }
        control.depart();
    });
}

/// Four times what the device has.
#[test]
#[ignore = "needs a CUDA driver"]
fn more_than_the_device_has_is_refused_by_all() {
    let failed = each(2, |control| {
        let device = Device::choose(Driver::get().unwrap(), control, &[0], None).unwrap();
        let (_, total) = device.free_memory().unwrap();
        let failed = CudaHeap::reserve(&device, control, 4 * total, 0, 1).err();
        // The device and the addresses are free again.
        let small = CudaHeap::reserve(&device, control, MIB, 0, 1).map(|heap| heap.part_bytes());
        assert!(small.is_ok_and(|bytes| bytes >= MIB));
        control.depart();
        failed.map(|error| (error, total))
    });
    let [Some((first, total)), Some((second, _))] = &failed[..] else { panic!("{failed:?}") };
    assert!(matches!(first, CudaError::OutOfMemory { asked, total: of, .. } if *asked >= 4 * total && of == total));
    assert!(matches!(second, CudaError::Peer { pe: 0, message } if message.contains("CONGRUENT_HEAP")), "{second:?}");
}

#[test]
#[ignore = "needs a CUDA driver"]
fn devices_and_sizes_that_are_wrong_are_refused_by_all() {
    let chosen = each(2, |control| {
        let failed = Device::choose(Driver::get().unwrap(), control, &[0, 1000], None).err();
        control.depart();
        failed
    });
    assert!(matches!(&chosen[0], Some(CudaError::Peer { pe: 1, message }) if message.contains("device 1000")));
    assert!(matches!(chosen[1], Some(CudaError::NoSuchDevice { ordinal: 1000, .. })));
    for heap_bytes in [0, u64::MAX, 1 << 50] {
        for failed in each(2, |control| reserve(control, heap_bytes, 0).err()) {
            assert_eq!(failed, Some(CudaError::Size { heap_bytes, heap_max: heap_bytes, npes: 2 }));
        }
    }
    for failed in each(2, |control| reserve(control, MIB * u64::from(1 + control.pe()), 8 * MIB).err()) {
        assert_eq!(failed, Some(CudaError::Mismatch { pe: 1, theirs: 2 * MIB, first: MIB }));
    }
}
