//! PTX that is wrong, and kernels that are: each ends with the code that the driver has for it.
#![allow(clippy::unwrap_used, reason = "clippy takes only functions marked as tests for such")]

mod common;

use core::ffi::{CStr, c_void};
use std::ffi::CString;

use common::{alone, begin, call, ok, stream};
use congruent_virtual_driver::*;
use cudarc::driver::sys::{CUfunction, CUmodule, CUresult};

/// A module with one kernel that gets an address.
fn module(head: &str, body: &str) -> CString {
    let text = format!(
        "{head}\n.address_size 64\n.shared .align 4 .b8 pool[64];\n.visible .entry k(.param .u64 at) {{\n\
         .reg .b64 %rd<4>; .reg .b32 %r<8>; .reg .pred %p<4>;\nld.param.u64 %rd1, [at]; mov.u32 %r1, %tid.x;\n{body}\nret;\n}}"
    );
    CString::new(text).unwrap()
}

const HEAD: &str = ".version 8.4\n.target sm_80";

fn load(text: &CStr) -> (CUresult, CUmodule) {
    let mut module = core::ptr::null_mut();
    (call!(cuModuleLoadData(&mut module, text.as_ptr().cast())), module)
}

fn find(module: CUmodule, name: &CStr) -> (CUresult, CUfunction) {
    let mut function = core::ptr::null_mut();
    (call!(cuModuleGetFunction(&mut function, module, name.as_ptr())), function)
}

/// What becomes of 32 threads with this body and 64 bytes of memory.
fn outcome(body: &str) -> CUresult {
    begin(0);
    let (loaded, module) = load(&module(HEAD, body));
    assert_eq!(loaded, CUresult::CUDA_SUCCESS, "{body}");
    let (mut at, stream, null) = (0_u64, stream(), core::ptr::null_mut());
    ok!(cuMemAlloc_v2(&mut at, 64));
    ok!(cuMemsetD8_v2(at, 0, 64));
    let mut values = [(&raw mut at).cast::<c_void>()];
    ok!(cuLaunchKernel(find(module, c"k").1, 1, 1, 1, 32, 1, 1, 0, stream, values.as_mut_ptr(), null));
    let code = call!(cuStreamSynchronize(stream));
    // It stays so.
    assert_eq!(call!(cuCtxSynchronize()), code, "{body}");
    code
}

#[test]
fn text_that_is_wrong_is_refused_when_it_is_loaded() {
    alone("text_that_is_wrong_is_refused_when_it_is_loaded", "version=12040", || {
        begin(0);
        for (text, code) in [
            (module(HEAD, "mov.u32 %r2, ;"), CUresult::CUDA_ERROR_INVALID_PTX),
            (module(HEAD, "frobnicate.b32 %r2, %r1;"), CUresult::CUDA_ERROR_INVALID_PTX),
            (module(HEAD, "cp.async.bulk.commit_group;"), CUresult::CUDA_ERROR_INVALID_PTX),
            (module(".version 9.9\n.target sm_80", ""), CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION),
            (module(".version 8.4\n.target sm_100", ""), CUresult::CUDA_ERROR_INVALID_PTX),
            (module(HEAD, ""), CUresult::CUDA_SUCCESS),
        ] {
            assert_eq!(load(&text).0, code, "{text:?}");
        }
    });
}

#[test]
fn a_kernel_that_is_not_there_is_not_found() {
    alone("a_kernel_that_is_not_there_is_not_found", "", || {
        begin(0);
        let (_, module) = load(&module(HEAD, ""));
        assert_eq!(find(module, c"j").0, CUresult::CUDA_ERROR_NOT_FOUND);
        assert_eq!(find(module, c"k").0, CUresult::CUDA_SUCCESS);
    });
}

/// PTX leaves the result open, and nothing traps.
#[test]
fn a_division_by_zero_has_some_result() {
    alone("a_division_by_zero_has_some_result", "", || {
        let body = "mov.u32 %r2, 0; div.u32 %r3, %r1, %r2; rem.s32 %r4, %r1, %r2; st.global.u32 [%rd1], 7;";
        assert_eq!(outcome(body), CUresult::CUDA_SUCCESS);
    });
}

macro_rules! outcomes {
    ($($name:ident: $settings:literal, $body:literal => $code:ident;)*) => {$(
        #[test]
        fn $name() {
            alone(stringify!($name), $settings, || assert_eq!(outcome($body), CUresult::$code));
        }
    )*};
}

outcomes! {
    a_read_behind_the_memory: "", "ld.global.u32 %r2, [%rd1+0x40000000];" => CUDA_ERROR_ILLEGAL_ADDRESS;
    an_overrun_of_shared_memory: "", "mov.u32 %r2, pool; ld.shared.u32 %r3, [%r2+0x40000];" => CUDA_ERROR_ILLEGAL_ADDRESS;
    a_trap: "", "trap;" => CUDA_ERROR_LAUNCH_FAILED;
    a_deadlock: "patience=1",
        "wait: ld.acquire.gpu.global.u32 %r2, [%rd1]; setp.eq.u32 %p1, %r2, 0; @%p1 bra wait;" => CUDA_ERROR_LAUNCH_TIMEOUT;
    a_barrier_in_both_arms: "", "setp.lt.u32 %p1, %r1, 7; @%p1 bra one; bar.sync 0; ret; one: bar.sync 0;" => CUDA_ERROR_LAUNCH_FAILED;
    a_race: "races=1", "st.global.u32 [%rd1], %r1;" => CUDA_ERROR_LAUNCH_FAILED;
}
