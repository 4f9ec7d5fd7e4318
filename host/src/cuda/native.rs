//! Native bodies, for a driver that runs those: the virtual one, which has the one symbol that a real driver lacks.

use std::ffi::{c_char, c_void};
use std::num::NonZeroU32;
use std::sync::LazyLock;

use congruent_device::{Kernel, KernelArgs, abi};

use crate::cpu::{BlockEnd, CpuMachine, Site};

/// Runs one block of a kernel with the parameters at these places, of which the first is the context.
pub(super) type Body = unsafe extern "C" fn(*const *const c_void, u32, u32, u32, u32);

/// Tells the virtual driver which body a function has.
pub(super) type Register = unsafe extern "C" fn(*const c_char, Body);

/// The symbol of [`Register`].
pub(super) const REGISTER: &str = "congruentVirtualBody";

/// Blocks run as on the CPU machine at width 1, and share the cores of this host.
static MACHINE: LazyLock<CpuMachine> = LazyLock::new(|| CpuMachine::new(NonZeroU32::MIN, 1, 0, None));

/// The body of `K` as the virtual driver calls it.
pub(super) unsafe extern "C" fn body<K: Kernel>(
    params: *const *const c_void,
    block: u32,
    blocks: u32,
    threads: u32,
    shared: u32,
) {
    let mut at = 0;
    let mut next = || {
        // SAFETY: the virtual driver gives a place for each parameter of the entry: the context and the kernel's arguments.
        let place = unsafe { *params.add(at) };
        at += 1;
        place
    };
    // SAFETY: the first parameter of every kernel is its context (`kernels!`).
    let context = unsafe { next().cast::<abi::Context>().read() };
    // SAFETY: the others are the kernel's arguments, copied from where `KernelArgs::places` said they are.
    let args = unsafe { K::Args::at_places(next) };
    let site = Site {
        kernel: K::NAME,
        context,
        block,
        blocks,
        threads,
        warps: K::WARPS,
        independent: K::INDEPENDENT,
        shared: (K::SHARED.0 as u32, shared),
    };
    // SAFETY: the one lane of each block of the launch runs it once, with the launch's arguments.
    let end = MACHINE.run(site, &move |block, ctx| unsafe { K::run(block, ctx, args) });
    if let BlockEnd::Panicked { message, .. } | BlockEnd::StoodStill(message) = end {
        tracing::error!(kernel = K::NAME, block, "{message}");
        MACHINE.run(site, &move |_, ctx| ctx.panicked(&message));
    }
}
