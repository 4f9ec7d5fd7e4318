//! Virtual memory management: what tests of symmetric heaps rest on.

mod common;

use core::ffi::c_void;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use common::{again, alone, begin, call, ending, is_child, ok, passes};
use congruent_virtual_driver::*;
use cudarc::driver::sys::{
    CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType,
    CUmemLocation, CUmemLocationType, CUmulticastObjectProp, CUresult,
};

const GRANULE: usize = 2 << 20;
const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const POSIX: u32 = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0;

fn location(device: i32) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

fn properties(device: i32) -> CUmemAllocationProp {
    // SAFETY: integers and a pointer, for which zeros are values; the enumerations are set right below.
    let mut properties: CUmemAllocationProp = unsafe { core::mem::zeroed() };
    properties.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location = location(device);
    properties
}

fn create(granules: usize) -> u64 {
    let mut handle = 0;
    ok!(cuMemCreate(&mut handle, granules * GRANULE, &properties(0), 0));
    handle
}

fn reserve(granules: usize) -> u64 {
    let mut at = 0;
    ok!(cuMemAddressReserve(&mut at, granules * GRANULE, 0, 0, 0));
    at
}

fn open(at: u64, granules: usize) -> CUresult {
    let access =
        CUmemAccessDesc { location: location(0), flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    call!(cuMemSetAccess(at, granules * GRANULE, &access, 1))
}

fn word(at: u64) -> *mut u64 {
    core::ptr::with_exposed_provenance_mut(at as usize)
}

fn read(at: u64) -> u64 {
    // SAFETY: tests read what they mapped with access.
    unsafe { word(at).read_volatile() }
}

fn write(at: u64, value: u64) {
    // SAFETY: tests write what they mapped with access.
    unsafe { word(at).write_volatile(value) };
}

fn free_bytes() -> usize {
    let (mut free, mut total) = (0, 0);
    ok!(cuMemGetInfo_v2(&mut free, &mut total));
    free
}

#[test]
fn one_memory_at_two_addresses() {
    alone("one_memory_at_two_addresses", "memory=8M", || {
        begin(0);
        let (memory, at) = (create(2), reserve(5));
        assert_eq!(at % GRANULE as u64, 0);
        assert_eq!(free_bytes(), 4 << 20);
        let second = at + 3 * GRANULE as u64;
        for at in [at, second] {
            ok!(cuMemMap(at, 2 * GRANULE, 0, memory, 0));
            assert_eq!(open(at, 2), CUresult::CUDA_SUCCESS);
        }
        write(at + 4096, 77);
        assert_eq!(read(second + 4096), 77);
        // Released, it stays as long as it is mapped, and can be had again.
        ok!(cuMemRelease(memory));
        let mut again = 0;
        ok!(cuMemRetainAllocationHandle(&mut again, word(second).cast::<c_void>()));
        ok!(cuMemRelease(again));
        ok!(cuMemUnmap(at, 2 * GRANULE));
        assert_eq!((read(second + 4096), free_bytes()), (77, 4 << 20));
        ok!(cuMemUnmap(second, 2 * GRANULE));
        assert_eq!(free_bytes(), 8 << 20);
        ok!(cuMemAddressFree(at, 5 * GRANULE));
    });
}

#[test]
fn a_wish_is_granted_if_it_is_free() {
    alone("a_wish_is_granted_if_it_is_free", "", || {
        ok!(cuInit(0));
        let wish = 0x2000_0000_0000;
        let (mut first, mut second) = (0, 0);
        ok!(cuMemAddressReserve(&mut first, 1 << 40, 0, wish, 0));
        ok!(cuMemAddressReserve(&mut second, GRANULE, 0, wish, 0));
        assert_eq!(first, wish);
        assert!(second != 0 && (second < wish || second >= wish + (1 << 40)));
    });
}

#[test]
fn misuse_is_refused() {
    alone("misuse_is_refused", "memory=8M", || {
        ok!(cuInit(0));
        let (memory, at) = (create(1), reserve(4));
        let second = at + GRANULE as u64;
        let mut out = 0;
        let refused = |code: CUresult, what: &str| assert_eq!(code, INVALID, "{what}");
        refused(call!(cuMemCreate(&mut out, 4096, &properties(0), 0)), "odd size");
        refused(call!(cuMemAddressReserve(&mut out, 0, 0, 0, 0)), "nothing reserved");
        refused(call!(cuMemAddressReserve(&mut out, GRANULE, 3, 0, 0)), "odd alignment");
        refused(call!(cuMemMap(at, 4096, 0, memory, 0)), "odd mapping");
        refused(call!(cuMemMap(at + 4096, GRANULE, 0, memory, 0)), "odd address");
        refused(call!(cuMemMap(at, 2 * GRANULE, 0, memory, 0)), "more than there is");
        refused(call!(cuMemMap(at + 4 * GRANULE as u64, GRANULE, 0, memory, 0)), "outside the reservation");
        refused(call!(cuMemMap(at, GRANULE, 0, memory + 1, 0)), "no such handle");
        refused(open(at, 1), "access to nothing");
        ok!(cuMemMap(at, GRANULE, 0, memory, 0));
        refused(call!(cuMemMap(at, GRANULE, 0, memory, 0)), "mapped twice");
        ok!(cuMemMap(second, GRANULE, 0, memory, 0));
        refused(call!(cuMemUnmap(at, 3 * GRANULE)), "a hole in what is unmapped");
        refused(call!(cuMemAddressFree(at, 4 * GRANULE)), "freed with mappings");
        ok!(cuMemUnmap(at, 2 * GRANULE));
        refused(call!(cuMemUnmap(at, GRANULE)), "unmapped twice");
        refused(call!(cuMemAddressFree(at, GRANULE)), "freed in part");
        ok!(cuMemAddressFree(at, 4 * GRANULE));
        refused(call!(cuMemAddressFree(at, 4 * GRANULE)), "freed twice");
        ok!(cuMemRelease(memory));
        refused(call!(cuMemRelease(memory)), "released twice");
        let bad_device = call!(cuMemCreate(&mut out, GRANULE, &properties(1), 0));
        assert_eq!(bad_device, CUresult::CUDA_ERROR_INVALID_DEVICE);
        let too_much = call!(cuMemCreate(&mut out, 5 * GRANULE, &properties(0), 0));
        assert_eq!(too_much, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    });
}

#[test]
fn network_devices_are_given_what_is_mapped() {
    const DMA_BUF: u32 = 1;
    let give = |at: u64, granules: usize, kind: u32| {
        let mut descriptor = -1;
        let code = call!(cuMemGetHandleForAddressRange((&raw mut descriptor).cast(), at, granules * GRANULE, kind, 0));
        // SAFETY: the driver gave the descriptor to us, to close.
        (code == CUresult::CUDA_SUCCESS).then(|| unsafe { OwnedFd::from_raw_fd(descriptor) }).ok_or(code)
    };
    alone("network_devices_are_given_what_is_mapped", "rdma=1", || {
        ok!(cuInit(0));
        let (memory, at) = (create(1), reserve(2));
        assert_eq!(give(at, 1, DMA_BUF).unwrap_err(), INVALID, "nothing is mapped");
        ok!(cuMemMap(at, GRANULE, 0, memory, 0));
        assert_eq!(give(at, 2, DMA_BUF).unwrap_err(), INVALID, "half of it is mapped");
        assert_eq!(give(at, 1, DMA_BUF + 1).unwrap_err(), CUresult::CUDA_ERROR_NOT_SUPPORTED);
        let file = std::fs::File::from(give(at, 1, DMA_BUF).unwrap());
        assert_eq!(file.metadata().unwrap().len(), GRANULE as u64);
    });
}

#[test]
fn touching_without_access_faults() {
    let ending = ending("touching_without_access_faults", "", || {
        ok!(cuInit(0));
        let (memory, at) = (create(1), reserve(1));
        ok!(cuMemMap(at, GRANULE, 0, memory, 0));
        write(at, 1);
    });
    if let Some(status) = ending {
        const SIGSEGV: i32 = 11;
        assert_eq!(status.signal(), Some(SIGSEGV), "{status}");
    }
}

#[test]
fn another_process_maps_the_same_memory() {
    if is_child() {
        ok!(cuInit(0));
        // The descriptor is this process's standard input.
        let mut memory = 0;
        ok!(cuMemImportFromShareableHandle(&mut memory, core::ptr::null_mut(), POSIX));
        let mut found = properties(0);
        ok!(cuMemGetAllocationPropertiesFromHandle(&mut found, memory));
        assert_eq!(found.location, location(0));
        let at = reserve(1);
        ok!(cuMemMap(at, GRANULE, 0, memory, 0));
        assert_eq!(open(at, 1), CUresult::CUDA_SUCCESS);
        assert_eq!(read(at), 41);
        write(at, 42);
        return;
    }
    ok!(cuInit(0));
    let (memory, at) = (create(1), reserve(1));
    ok!(cuMemMap(at, GRANULE, 0, memory, 0));
    assert_eq!(open(at, 1), CUresult::CUDA_SUCCESS);
    write(at, 41);
    let mut descriptor = -1;
    ok!(cuMemExportToShareableHandle((&raw mut descriptor).cast(), memory, POSIX, 0));
    // SAFETY: the driver gave the descriptor to us, to close.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    passes(again("another_process_maps_the_same_memory").stdin(Stdio::from(descriptor)));
    assert_eq!(read(at), 42);
}

#[test]
fn what_is_no_descriptor_of_ours_is_refused() {
    ok!(cuInit(0));
    let file = tempfile::tempfile().unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&file) as usize;
    for number in [number, 9999] {
        let mut memory = 0;
        let pointer = core::ptr::without_provenance_mut(number);
        assert_eq!(call!(cuMemImportFromShareableHandle(&mut memory, pointer, POSIX)), INVALID);
    }
}

#[test]
fn multicast_objects_are_kept_in_order() {
    alone("multicast_objects_are_kept_in_order", "devices=2,multicast=1", || {
        ok!(cuInit(0));
        let properties =
            CUmulticastObjectProp { numDevices: 2, size: 2 * GRANULE, handleTypes: u64::from(POSIX), flags: 0 };
        let (mut object, memory) = (0, create(1));
        ok!(cuMulticastCreate(&mut object, &properties));
        ok!(cuMulticastAddDevice(object, 0));
        assert_eq!(call!(cuMulticastAddDevice(object, 0)), INVALID, "added twice");
        ok!(cuMulticastAddDevice(object, 1));
        ok!(cuMulticastBindMem(object, GRANULE, memory, 0, GRANULE, 0));
        assert_eq!(call!(cuMulticastBindMem(object, GRANULE, memory, 0, GRANULE, 0)), INVALID, "bound twice");
        assert_eq!(call!(cuMulticastUnbind(object, 1, GRANULE, GRANULE)), INVALID, "the other device's");
        ok!(cuMulticastUnbind(object, 0, GRANULE, GRANULE));
        ok!(cuMulticastBindMem(object, 0, memory, 0, GRANULE, 0));
    });
}

#[test]
fn devices_without_multicast_say_so() {
    alone("devices_without_multicast_say_so", "", || {
        ok!(cuInit(0));
        let properties = CUmulticastObjectProp { numDevices: 1, size: GRANULE, handleTypes: 1, flags: 0 };
        let mut object = 0;
        let code = call!(cuMulticastCreate(&mut object, &properties));
        assert_eq!(code, CUresult::CUDA_ERROR_NOT_SUPPORTED);
    });
}
