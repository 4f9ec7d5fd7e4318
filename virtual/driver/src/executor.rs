//! What executes a launch.
//!
//! A GPU runs the PTX of a kernel. The virtual driver has it run by an [`Executor`]: natively, by functions that the process
//! registers under the names of entries, or by whatever else implements the trait, such as a machine that interprets
//! PTX.

use core::ffi::c_void;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use congruent_verify::ptx::Function;
use cudarc::driver::sys::CUresult;

use crate::context::Context;
use crate::errors::Outcome;
use crate::launch::Params;
use crate::monitor::lock;

/// The native body of a kernel: runs one block of a launch.
///
/// It is given pointers to the parameters, as many as the entry has, its block's index, how many blocks the launch has,
/// and how many threads it asked for in a block. It is a plain C function and never unwinds: what goes wrong in it is
/// reported by `congruentVirtualTrap`, after which it returns.
pub type NativeBody = Option<unsafe extern "C" fn(params: *const *const c_void, block: u32, blocks: u32, threads: u32)>;

/// One block of a launch. Its parameters are a copy of its own.
pub(crate) struct Block<'l> {
    pub(crate) entry: &'l Function,
    pub(crate) params: Params,
    pub(crate) block: u32,
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
}

/// What runs kernels.
pub(crate) trait Executor: Sync {
    /// Asked when a kernel is launched: whether it can be run.
    ///
    /// # Errors
    /// What the launch is to give
    fn check(&self, entry: &Function) -> Outcome;

    /// Runs a block to its end, on a thread that is this block's alone. All blocks of a launch run at one time.
    ///
    /// # Errors
    /// What the context is to fail with
    fn run(&self, block: Block<'_>) -> Outcome;
}

/// The executor of this process.
pub(crate) fn executor() -> &'static dyn Executor {
    &Native
}

/// Runs functions that the process registered.
struct Native;

type Body = unsafe extern "C" fn(*const *const c_void, u32, u32, u32);

static BODIES: Mutex<BTreeMap<String, Body>> = Mutex::new(BTreeMap::new());

thread_local! {
    /// The context of the block that this thread runs.
    static RUNNING: RefCell<Option<Arc<Context>>> = const { RefCell::new(None) };
}

/// Registers the body of a kernel in place of an earlier one; none takes it away.
pub(crate) fn register(name: String, body: NativeBody) {
    let mut bodies = lock(&BODIES);
    match body {
        Some(body) => bodies.insert(name, body),
        None => bodies.remove(&name),
    };
}

/// Marks this thread as one that runs a block of a context, while it does `run`.
pub(crate) fn in_block<T>(context: &Arc<Context>, run: impl FnOnce() -> T) -> T {
    RUNNING.set(Some(context.clone()));
    let result = run();
    RUNNING.set(None);
    result
}

/// Fails the context of the block that this thread runs, as a trap does.
///
/// # Errors
/// `CUDA_ERROR_INVALID_CONTEXT` if it runs none
pub(crate) fn trap() -> Outcome {
    let context = RUNNING.with_borrow(Clone::clone).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
    context.fail(CUresult::CUDA_ERROR_LAUNCH_FAILED);
    Ok(())
}

fn body(name: &str) -> Outcome<Body> {
    lock(&BODIES).get(name).copied().ok_or(CUresult::CUDA_ERROR_NOT_FOUND)
}

impl Executor for Native {
    fn check(&self, entry: &Function) -> Outcome {
        body(&entry.name).map(drop)
    }

    fn run(&self, block: Block<'_>) -> Outcome {
        let body = body(&block.entry.name)?;
        let pointers = block.params.pointers(block.entry);
        // SAFETY: who registered the body promised that it takes parameters as the PTX of that name declares them, which
        // is how they are laid out. They live until the body returns, which it does: it never unwinds.
        unsafe { body(pointers.as_ptr(), block.block, block.blocks, block.threads) };
        Ok(())
    }
}
