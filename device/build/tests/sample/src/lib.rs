//! A kernels crate as a user would write one: a plain library without profile or crate-type settings.
#![no_std]
#![feature(abi_ptx, link_llvm_intrinsics, abi_unadjusted)]
#![allow(internal_features)]

use core::panic::PanicInfo;

unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.barrier.cta.sync.aligned.all"]
    fn barrier_aligned(id: i32);
    #[link_name = "llvm.nvvm.read.ptx.sreg.tid.x"]
    fn thread_index() -> i32;
}

/// Writes `values[index]`, or its double where `condition` holds, behind a barrier that must stay single.
///
/// # Safety
/// `values` and `out` are valid for `len` elements and one element per thread.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn select(values: *const u32, len: usize, out: *mut u32, condition: bool) {
    // SAFETY: the intrinsic has no precondition.
    let thread = unsafe { thread_index() } as usize;
    // SAFETY: the caller passes a valid array.
    let values = unsafe { core::slice::from_raw_parts(values, len) };
    let mut value = values[thread];
    if condition {
        value *= 2;
    }
    // SAFETY: every thread of the block comes by here.
    unsafe { barrier_aligned(0) };
    if condition {
        value += 1;
    }
    // SAFETY: the caller gives one element per thread.
    unsafe { out.add(thread).write(value) };
}

#[panic_handler]
fn panic(_: &PanicInfo) -> ! {
    loop {}
}
