//! Modules, launches of native bodies, traps.
#![allow(clippy::unwrap_used, reason = "clippy takes only functions marked as tests for such")]
#![allow(clippy::disallowed_types, reason = "bodies of test kernels share words")]

mod common;

use core::ffi::{c_char, c_void};
use core::sync::atomic::{AtomicU64, Ordering};

use common::{alone, begin, call, ok, stream};
use congruent_virtual_driver::*;
use cudarc::driver::sys::{CUfunction, CUfunction_attribute, CUjit_option, CUmodule, CUresult};

const PTX: &core::ffi::CStr = c".version 8.4\n.target sm_80\n.address_size 64\n\
    .visible .global .align 4 .u32 answer = 42;\n\
    .visible .entry add(.param .u64 add_param_0, .param .align 4 .b8 add_param_1[12])\n.maxntid 256, 1, 1\n{ ret; }\n\
    .visible .entry meet(.param .u64 meet_param_0)\n.maxnreg 32\n{ ret; }\n\
    .visible .entry fall()\n{ ret; }\n\
    .visible .entry unknown()\n{ ret; }\n";

/// Adds block index and the last of three numbers to a word.
unsafe extern "C" fn add(params: *const *const c_void, block: u32, _blocks: u32, _threads: u32, _shared: u32) {
    // SAFETY: the entry has an address and twelve bytes, as the PTX above says; tests give the address of a word.
    let (word, numbers) = unsafe {
        let word = params.read().cast::<u64>().read();
        let numbers = params.add(1).read().cast::<[u32; 3]>().read();
        (AtomicU64::from_ptr(core::ptr::with_exposed_provenance_mut(word as usize)), numbers)
    };
    word.fetch_add(u64::from(block) + u64::from(numbers[2]), Ordering::Relaxed);
}

/// Waits until all blocks are there.
unsafe extern "C" fn meet(params: *const *const c_void, _block: u32, blocks: u32, _threads: u32, _shared: u32) {
    // SAFETY: the entry has one address, of a word.
    let word = unsafe {
        let word = params.read().cast::<u64>().read();
        AtomicU64::from_ptr(core::ptr::with_exposed_provenance_mut(word as usize))
    };
    word.fetch_add(1, Ordering::SeqCst);
    while word.load(Ordering::SeqCst) < u64::from(blocks) {
        std::thread::yield_now();
    }
}

unsafe extern "C" fn fall(_params: *const *const c_void, _block: u32, _blocks: u32, _threads: u32, _shared: u32) {
    assert_eq!(congruentVirtualTrap(), CUresult::CUDA_SUCCESS);
}

fn load() -> CUmodule {
    let mut module = core::ptr::null_mut();
    ok!(cuModuleLoadData(&mut module, PTX.as_ptr().cast()));
    for (name, body) in [(c"add", add as unsafe extern "C" fn(_, _, _, _, _)), (c"meet", meet), (c"fall", fall)] {
        ok!(congruentVirtualBody(name.as_ptr(), Some(body)));
    }
    module
}

fn function(module: CUmodule, name: &core::ffi::CStr) -> CUfunction {
    let mut function = core::ptr::null_mut();
    ok!(cuModuleGetFunction(&mut function, module, name.as_ptr()));
    function
}

fn word() -> u64 {
    let mut at = 0;
    ok!(cuMemAlloc_v2(&mut at, 8));
    at
}

fn value(at: u64) -> u64 {
    let mut value = 0_u64;
    ok!(cuMemcpyDtoH_v2((&raw mut value).cast(), at, 8));
    value
}

#[test]
fn parameters_are_copied_when_launched() {
    alone("parameters_are_copied_when_launched", "engine=native", || {
        begin(0);
        let (function, stream, mut at, mut numbers) = (function(load(), c"add"), stream(), word(), [0_u32, 0, 100]);
        let sum = at;
        let mut values = [(&raw mut at).cast::<c_void>(), (&raw mut numbers).cast()];
        let (mut gate, none) = (word(), core::ptr::null_mut());
        ok!(cuStreamWaitValue64_v2(stream, gate, 1, 0));
        ok!(cuLaunchKernel(function, 3, 1, 1, 32, 1, 1, 0, stream, values.as_mut_ptr(), none));
        (at, numbers) = (0, [0; 3]);
        assert_eq!((at, numbers[2]), (0, 0));
        // The kernel is behind a wait, so it has not run: launches do not wait for what they start.
        assert_eq!(call!(cuStreamQuery(stream)), CUresult::CUDA_ERROR_NOT_READY);
        assert_eq!(value(sum), 0);
        ok!(cuMemsetD32_v2(gate, 1, 1));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(value(sum), 1 + 2 + 3 * 100);
        gate = 0;
        assert_eq!(call!(cuMemsetD32_v2(gate, 1, 1)), CUresult::CUDA_ERROR_INVALID_VALUE);
    });
}

#[test]
fn blocks_run_at_one_time_as_far_as_they_fit() {
    alone("blocks_run_at_one_time_as_far_as_they_fit", "engine=native,sms=2", || {
        begin(0);
        let (function, mut at) = (function(load(), c"meet"), word());
        let mut values = [(&raw mut at).cast::<c_void>()];
        let mut fit = 0;
        ok!(cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut fit, function, 1024, 0));
        assert_eq!(fit, 2);
        // SAFETY: integers and pointers, for which zeros are values.
        let mut config: cudarc::driver::sys::CUlaunchConfig = unsafe { core::mem::zeroed() };
        (config.gridDimX, config.gridDimY, config.gridDimZ) = (4, 1, 1);
        (config.blockDimX, config.blockDimY, config.blockDimZ) = (1024, 1, 1);
        ok!(cuOccupancyMaxActiveClusters(&mut fit, function, &config));
        assert_eq!(fit, 4, "clusters of one block");
        let mut launch = |blocks| {
            let (values, stream) = (values.as_mut_ptr(), core::ptr::null_mut());
            call!(cuLaunchCooperativeKernel(function, blocks, 1, 1, 1024, 1, 1, 0, stream, values))
        };
        assert_eq!(launch(5), CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
        assert_eq!(launch(4), CUresult::CUDA_SUCCESS);
        ok!(cuCtxSynchronize());
        assert_eq!(value(at), 4);
    });
}

#[test]
fn what_cannot_be_launched_is_refused() {
    alone("what_cannot_be_launched_is_refused", "engine=native", || {
        begin(0);
        let module = load();
        let mut missing = core::ptr::null_mut();
        let code = call!(cuModuleGetFunction(&mut missing, module, c"nowhere".as_ptr()));
        assert_eq!(code, CUresult::CUDA_ERROR_NOT_FOUND);
        let none = core::ptr::null_mut();
        let launch = |name, blocks, threads| {
            let function = function(module, name);
            call!(cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, none, none.cast(), none.cast()))
        };
        assert_eq!(launch(c"unknown", 1, 1), CUresult::CUDA_ERROR_NOT_FOUND);
        assert_eq!(launch(c"fall", 0, 1), CUresult::CUDA_ERROR_INVALID_VALUE);
        assert_eq!(launch(c"fall", 1 << 31, 1), CUresult::CUDA_ERROR_INVALID_VALUE, "more than a grid has");
        let fall = function(module, c"fall");
        let deep = call!(cuLaunchKernel(fall, 1, 1, 65_536, 1, 1, 1, 0, none, none.cast(), none.cast()));
        assert_eq!(deep, CUresult::CUDA_ERROR_INVALID_VALUE, "more than a grid has in its last dimension");
        assert_eq!(launch(c"add", 1, 257), CUresult::CUDA_ERROR_INVALID_VALUE, "more than .maxntid");
        assert_eq!(launch(c"add", 1, 256), CUresult::CUDA_ERROR_INVALID_VALUE, "no parameters");
        assert_eq!(launch(c"fall", 1, 257), CUresult::CUDA_ERROR_INVALID_VALUE, "more than its registers allow");
    });
}

#[test]
fn a_kernel_that_says_nothing_may_take_all_registers() {
    alone("a_kernel_that_says_nothing_may_take_all_registers", "engine=native", || {
        begin(0);
        let module = load();
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK as u32;
        let mut found = 0;
        for (name, most) in [(c"fall", 256), (c"add", 256), (c"meet", 1024)] {
            ok!(cuFuncGetAttribute(&mut found, attribute, function(module, name)));
            assert_eq!(found, most, "threads of {name:?}");
        }
        for (name, threads, blocks) in [(c"fall", 257, 0), (c"fall", 256, 1), (c"fall", 32, 8), (c"meet", 256, 8)] {
            ok!(cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut found, function(module, name), threads, 0));
            assert_eq!(found, blocks, "blocks of {threads} threads of {name:?}");
        }
    });
}

#[test]
fn a_trap_ends_the_context() {
    alone("a_trap_ends_the_context", "engine=native,devices=2", || {
        begin(0);
        let (function, stream, none) = (function(load(), c"fall"), stream(), core::ptr::null_mut());
        assert_eq!(congruentVirtualTrap(), CUresult::CUDA_ERROR_INVALID_CONTEXT);
        ok!(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, none, none));
        let failed = CUresult::CUDA_ERROR_LAUNCH_FAILED;
        assert_eq!(call!(cuStreamSynchronize(stream)), failed);
        let mut at = 0;
        assert_eq!(call!(cuMemAlloc_v2(&mut at, 8)), failed);
        assert_eq!(call!(cuStreamQuery(stream)), failed);
        assert_eq!(call!(cuCtxSynchronize()), failed);
        // The other device's context is its own.
        begin(1);
        ok!(cuMemAlloc_v2(&mut at, 8));
        assert_eq!(call!(cuStreamSynchronize(stream)), failed);
        ok!(cuDevicePrimaryCtxRelease_v2(0));
    });
}

/// One block traps; the others never end.
unsafe extern "C" fn fall_and_hang(
    _params: *const *const c_void,
    block: u32,
    _blocks: u32,
    _threads: u32,
    _shared: u32,
) {
    if block == 0 {
        assert_eq!(congruentVirtualTrap(), CUresult::CUDA_SUCCESS);
        return;
    }
    loop {
        std::thread::park();
    }
}

#[test]
fn nobody_waits_for_blocks_that_hang_in_a_faulted_context() {
    alone("nobody_waits_for_blocks_that_hang_in_a_faulted_context", "engine=native", || {
        begin(0);
        let (function, stream, none) = (function(load(), c"fall"), stream(), core::ptr::null_mut());
        ok!(congruentVirtualBody(c"fall".as_ptr(), Some(fall_and_hang)));
        ok!(cuLaunchKernel(function, 3, 1, 1, 1, 1, 1, 0, stream, none, none));
        assert_eq!(call!(cuStreamSynchronize(stream)), CUresult::CUDA_ERROR_LAUNCH_FAILED);
        ok!(cuDevicePrimaryCtxRelease_v2(0));
    });
}

/// What loading gives, and what the compiler says.
fn refused(image: &core::ffi::CStr) -> (CUresult, String) {
    let mut log = [0_u8; 200];
    let mut options =
        [CUjit_option::CU_JIT_ERROR_LOG_BUFFER as u32, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES as u32];
    let mut values = [log.as_mut_ptr().cast::<c_void>(), core::ptr::without_provenance_mut(log.len())];
    let mut module = core::ptr::null_mut();
    let (options, values) = (options.as_mut_ptr(), values.as_mut_ptr());
    let code = call!(cuModuleLoadDataEx(&mut module, image.as_ptr().cast(), 2, options, values));
    let text = core::ffi::CStr::from_bytes_until_nul(&log).unwrap();
    (code, text.to_str().unwrap().to_owned())
}

#[test]
fn ptx_that_does_not_fit_is_refused_with_reasons() {
    alone("ptx_that_does_not_fit_is_refused_with_reasons", "capability=8.0,version=12040", || {
        begin(0);
        for (image, code, said) in [
            (c".target sm_80\n", CUresult::CUDA_ERROR_INVALID_PTX, "Missing .version"),
            (c".version 8.0\n.target sm_90\n", CUresult::CUDA_ERROR_INVALID_PTX, "line 2; error   : SM version"),
            (c".version 8.5\n.target sm_80\n", CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "version is '8.4'"),
            (c".version 8.0\n.target sm_70a\n", CUresult::CUDA_ERROR_INVALID_PTX, "another architecture"),
            (c"\x7fELF", CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU, ""),
        ] {
            let (given, log) = refused(image);
            assert_eq!(given, code, "{image:?}: {log}");
            assert!(log.contains(said), "{image:?}: {log}");
        }
        assert_eq!(refused(PTX), (CUresult::CUDA_SUCCESS, String::new()));
    });
}

#[test]
fn variables_begin_as_the_module_says() {
    alone("variables_begin_as_the_module_says", "", || {
        begin(0);
        let (module, mut at, mut bytes, mut found) = (load(), 0, 0, 0_u32);
        ok!(cuModuleGetGlobal_v2(&mut at, &mut bytes, module, c"answer".as_ptr()));
        ok!(cuMemcpyDtoH_v2((&raw mut found).cast(), at, bytes));
        assert_eq!((bytes, found), (4, 42));
        ok!(cuModuleUnload(module));
        assert_eq!(call!(cuModuleUnload(module)), CUresult::CUDA_ERROR_INVALID_HANDLE);
        let code = call!(cuMemcpyDtoH_v2((&raw mut found).cast(), at, bytes));
        assert_eq!(code, CUresult::CUDA_ERROR_INVALID_VALUE, "gone with its module");
    });
}

#[test]
fn names_of_codes_are_told() {
    let mut name: *const c_char = core::ptr::null();
    ok!(cuGetErrorName(700, &mut name));
    // SAFETY: the driver's texts live as long as the process.
    assert_eq!(unsafe { core::ffi::CStr::from_ptr(name) }, c"CUDA_ERROR_ILLEGAL_ADDRESS");
    assert_eq!(call!(cuGetErrorName(12345, &mut name)), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert!(name.is_null());
}
