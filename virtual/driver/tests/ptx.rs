//! Kernels that run as their PTX says.
#![allow(clippy::unwrap_used, reason = "clippy takes only functions marked as tests for such")]

mod common;

use core::ffi::{CStr, c_void};

use common::{again, alone, begin, call, is_child, ok, stream};
use congruent_virtual_driver::*;
use cudarc::driver::sys::{CUdevice_attribute, CUfunction, CUmodule, CUresult, CUstream};

const PTX: &CStr = c".version 8.4\n.target sm_80\n.address_size 64\n\
    .visible .global .align 4 .u32 step = 3;\n\
    .visible .global .align 8 .u64 where = generic(step);\n\
    .visible .entry place(.param .u64 place_0)\n.maxntid 64, 1, 1\n{\n\
        .reg .b64 %rd<4>; .reg .b32 %r<12>;\n\
        ld.param.u64 %rd1, [place_0]; ld.global.u64 %rd2, [where]; ld.u32 %r11, [%rd2];\n\
        mov.u32 %r1, %ctaid.y; mov.u32 %r2, %nctaid.x; mov.u32 %r3, %ctaid.x; mad.lo.u32 %r4, %r1, %r2, %r3;\n\
        mov.u32 %r5, %tid.z; mov.u32 %r6, %ntid.x; mov.u32 %r7, %tid.x; mad.lo.u32 %r8, %r5, %r6, %r7;\n\
        mul.lo.u32 %r9, %r6, %ntid.z; mad.lo.u32 %r10, %r4, %r9, %r8;\n\
        mul.wide.u32 %rd3, %r10, 4; add.u64 %rd1, %rd1, %rd3; mul.lo.u32 %r10, %r10, %r11;\n\
        st.global.u32 [%rd1], %r10; ret;\n}\n\
    .visible .entry meet(.param .u64 meet_0)\n.maxntid 32, 1, 1\n{\n\
        .reg .b64 %rd<2>; .reg .b32 %r<4>; .reg .pred %p;\n\
        ld.param.u64 %rd1, [meet_0]; mov.u32 %r1, %nctaid.x;\n\
        atom.acq_rel.gpu.global.add.u32 %r2, [%rd1], 1;\n\
    wait: ld.acquire.gpu.global.u32 %r3, [%rd1]; setp.lt.u32 %p, %r3, %r1; @%p bra wait;\n\
        ret;\n}\n\
    .visible .entry store(.param .u64 store_0)\n{\n\
        .reg .b64 %rd<2>; ld.param.u64 %rd1, [store_0]; st.global.u64 [%rd1], 7; ret;\n}\n\
    .visible .entry spin()\n{ .reg .b32 %r; again: add.u32 %r, %r, 1; bra again; }\n\
    .visible .entry fall()\n{ trap; }\n";

fn load() -> CUmodule {
    let mut module = core::ptr::null_mut();
    ok!(cuModuleLoadData(&mut module, PTX.as_ptr().cast()));
    module
}

fn function(module: CUmodule, name: &CStr) -> CUfunction {
    let mut function = core::ptr::null_mut();
    ok!(cuModuleGetFunction(&mut function, module, name.as_ptr()));
    function
}

fn allocate(bytes: usize) -> u64 {
    let mut at = 0;
    ok!(cuMemAlloc_v2(&mut at, bytes));
    at
}

/// Launches a kernel with one address; what comes of it.
fn run(function: CUfunction, grid: [u32; 3], block: [u32; 3], stream: CUstream, mut at: u64) -> CUresult {
    let mut values = [(&raw mut at).cast::<c_void>()];
    let ([x, y, z], [a, b, c]) = (grid, block);
    ok!(cuLaunchKernel(function, x, y, z, a, b, c, 0, stream, values.as_mut_ptr(), core::ptr::null_mut()));
    call!(cuStreamSynchronize(stream))
}

fn words<const N: usize>(at: u64) -> [u32; N] {
    let mut words = [0; N];
    ok!(cuMemcpyDtoH_v2(words.as_mut_ptr().cast(), at, size_of_val(&words)));
    words
}

#[test]
fn every_thread_of_every_block_runs() {
    alone("every_thread_of_every_block_runs", "", || {
        begin(0);
        let at = allocate(4 * 96);
        assert_eq!(run(function(load(), c"place"), [2, 3, 1], [8, 1, 2], stream(), at), CUresult::CUDA_SUCCESS);
        let expected: [u32; 96] = core::array::from_fn(|index| 3 * index as u32);
        assert_eq!(words(at), expected);
    });
}

#[test]
fn streams_run_at_one_time_and_blocks_meet() {
    alone("streams_run_at_one_time_and_blocks_meet", "sms=2,schedule=random,seed=5", || {
        begin(0);
        let (function, at) = (function(load(), c"meet"), allocate(4));
        let streams = [stream(), stream()];
        for on in streams {
            let mut at = at;
            let mut values = [(&raw mut at).cast::<c_void>()];
            ok!(cuLaunchCooperativeKernel(function, 2, 1, 1, 1, 1, 1, 0, on, values.as_mut_ptr()));
        }
        streams.into_iter().for_each(|on| ok!(cuStreamSynchronize(on)));
        assert_eq!(words(at), [4]);
    });
}

/// A launch that faults, and that the context is lost with this code.
fn faults(kernel: &CStr, at: impl Fn() -> u64, code: CUresult) {
    begin(0);
    let (function, stream, at) = (function(load(), kernel), stream(), at());
    assert_eq!(run(function, [1; 3], [1; 3], stream, at), code);
    assert_eq!(call!(cuCtxSynchronize()), code);
}

/// Words that a kernel reads and nobody has written, among others that the host has.
#[test]
fn memory_that_nobody_wrote_is_read() {
    const TEST: &str = "memory_that_nobody_wrote_is_read";
    if is_child() {
        begin(0);
        let (function, stream, at) = (function(load(), c"meet"), stream(), allocate(64));
        ok!(cuMemsetD8_v2(at + 4, 0, 4));
        ok!(cuMemcpyHtoDAsync_v2(at + 8, [0_u32].as_ptr().cast(), 4, stream));
        ok!(cuStreamWriteValue32_v2(stream, at + 12, 0, 0));
        ok!(cuMemcpyDtoD_v2(at + 16, at + 12, 4));
        for word in 1..5 {
            assert_eq!(run(function, [1; 3], [1; 3], stream, at + 4 * word), CUresult::CUDA_SUCCESS, "{word}");
        }
        assert_eq!(run(function, [1; 3], [1; 3], stream, at + 20), CUresult::CUDA_ERROR_LAUNCH_FAILED);
        return;
    }
    let output = again(TEST).env(VARIABLE, "races=1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("4 bytes at 0x14 are read, and nobody has written them\n  in kernel meet"), "{said}");
    assert!(said.contains("line 22 of the PTX: atom.acq_rel.gpu.global.add.u32 %r2, [%rd1], 1;"), "{said}");
}

#[test]
fn an_address_of_nothing_is_illegal() {
    alone("an_address_of_nothing_is_illegal", "", || {
        faults(c"store", || 0x10, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    });
}

#[test]
fn memory_that_was_freed_is_illegal() {
    alone("memory_that_was_freed_is_illegal", "", || {
        let freed = || {
            let at = allocate(8);
            ok!(cuMemFree_v2(at));
            at
        };
        faults(c"store", freed, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    });
}

#[test]
fn a_device_that_stops_is_a_launch_that_takes_too_long() {
    let start = std::time::Instant::now();
    // An hour, of which nobody waits a minute.
    alone("a_device_that_stops_is_a_launch_that_takes_too_long", "halt=0:1,leap=0,patience=3600", || {
        faults(c"store", || allocate(8), CUresult::CUDA_ERROR_LAUNCH_TIMEOUT);
    });
    assert!(start.elapsed() < std::time::Duration::from_secs(300), "{:?}", start.elapsed());
}

#[test]
fn a_kernel_that_never_ends_is_a_launch_that_takes_too_long() {
    alone("a_kernel_that_never_ends_is_a_launch_that_takes_too_long", "budget=1000000", || {
        faults(c"spin", || 0, CUresult::CUDA_ERROR_LAUNCH_TIMEOUT);
    });
}

#[test]
fn an_odd_address_is_misaligned() {
    alone("an_odd_address_is_misaligned", "", || {
        faults(c"store", || allocate(16) + 4, CUresult::CUDA_ERROR_MISALIGNED_ADDRESS);
    });
}

#[test]
fn a_trap_fails_the_launch() {
    alone("a_trap_fails_the_launch", "", || faults(c"fall", || 0, CUresult::CUDA_ERROR_LAUNCH_FAILED));
}

#[test]
fn memory_of_a_peer_is_for_those_who_may_reach_it() {
    alone("memory_of_a_peer_is_for_those_who_may_reach_it", "devices=3", || {
        let peer = begin(1);
        let at = allocate(8);
        begin(0);
        ok!(cuCtxEnablePeerAccess(peer, 0));
        assert_eq!(run(function(load(), c"store"), [1; 3], [1; 3], stream(), at), CUresult::CUDA_SUCCESS);
        begin(2);
        let code = run(function(load(), c"store"), [1; 3], [1; 3], stream(), at);
        assert_eq!(code, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    });
}

#[test]
fn pinned_memory_is_reached_by_all() {
    alone("pinned_memory_is_reached_by_all", "devices=2", || {
        begin(0);
        let mut pinned = core::ptr::null_mut();
        ok!(cuMemHostAlloc(&mut pinned, 8, 3));
        begin(1);
        let code = run(function(load(), c"store"), [1; 3], [1; 3], stream(), pinned.expose_provenance() as u64);
        assert_eq!(code, CUresult::CUDA_SUCCESS);
        // SAFETY: allocated above, and the kernel is over.
        assert_eq!(unsafe { pinned.cast::<u64>().read() }, 7);
    });
}

#[test]
fn memory_of_the_program_cannot_be_registered() {
    alone("memory_of_the_program_cannot_be_registered", "", || {
        begin(0);
        let mut own = [0_u64; 3];
        let code = call!(cuMemHostRegister_v2((&raw mut own[1]).cast(), 8, 3));
        assert_eq!(code, CUresult::CUDA_ERROR_NOT_SUPPORTED);
        let (mut supported, attribute) = (1, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED);
        ok!(cuDeviceGetAttribute(&mut supported, attribute as u32, 0));
        assert_eq!(supported, 0);
    });
}
