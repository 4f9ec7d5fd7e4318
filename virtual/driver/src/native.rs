//! Native bodies: functions that the process registers under the names of kernels.

use core::ffi::c_void;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::thread;

use cudarc::driver::sys::CUresult;

use crate::context::Context;
use crate::errors::Outcome;
use crate::executor::Executor;
use crate::launch::Launch;
use crate::monitor::{changed, lock, until};

/// The native body of a kernel: runs one block of a launch.
///
/// It is given pointers to the parameters, as many as the entry has, its block's index, how many blocks the launch has,
/// how many threads it asked for in a block, and how many bytes of dynamic shared memory. It is a plain C function and never unwinds: what goes wrong in it is
/// reported by `congruentVirtualTrap`, after which it returns.
pub type NativeBody =
    Option<unsafe extern "C" fn(params: *const *const c_void, block: u32, blocks: u32, threads: u32, shared: u32)>;

/// Runs functions that the process registered.
pub(crate) struct Native;

type Body = unsafe extern "C" fn(*const *const c_void, u32, u32, u32, u32);

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
fn in_block<T>(context: &Arc<Context>, run: impl FnOnce() -> T) -> T {
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
    /// # Errors
    /// `CUDA_ERROR_NOT_SUPPORTED` for grids of more than one dimension, of which bodies could not know, and
    /// `CUDA_ERROR_NOT_FOUND` without a body
    fn check(&self, launch: &Launch) -> Outcome {
        let [_, more_blocks @ ..] = launch.shape.grid;
        let [_, more_threads @ ..] = launch.shape.block;
        if more_blocks != [1, 1] || more_threads != [1, 1] {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        body(&launch.function.entry().name).map(drop)
    }

    /// Runs all blocks to their end, each on a thread of its own, all at one time. A GPU runs so many only if they fit;
    /// kernels whose blocks wait for each other are for cooperative launches, which are checked.
    ///
    /// # Errors
    /// `CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES` if there can be no more threads, and what a block ends with
    fn run(&self, launch: &Launch, context: &Arc<Context>) -> Outcome {
        // Blocks may wait for each other, so none begins before there are threads for all.
        let start: Mutex<Option<bool>> = Mutex::new(None);
        let open = |all_there: bool| {
            *lock(&start) = Some(all_there);
            changed();
        };
        let begin = |block| if until(|| *lock(&start)) { run_block(launch, context, block) } else { Ok(()) };
        thread::scope(|scope| {
            let spawn = |block| {
                let thread = thread::Builder::new().name(format!("block {block}"));
                thread.spawn_scoped(scope, move || begin(block))
            };
            match (1..launch.shape.grid[0]).map(spawn).collect::<Result<Vec<_>, _>>() {
                Ok(others) => {
                    open(true);
                    let first = run_block(launch, context, 0);
                    others.into_iter().fold(first, |outcome, other| {
                        outcome.and(other.join().unwrap_or(Err(CUresult::CUDA_ERROR_LAUNCH_FAILED)))
                    })
                }
                Err(_) => {
                    open(false);
                    Err(CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES)
                }
            }
        })
    }
}

/// Runs a block to its end, with a copy of the parameters that is its own.
fn run_block(launch: &Launch, context: &Arc<Context>, block: u32) -> Outcome {
    let entry = launch.function.entry();
    let (body, params) = (body(&entry.name)?, launch.params.clone());
    let pointers = params.pointers(entry);
    let shape = &launch.shape;
    in_block(context, || {
        // SAFETY: who registered the body promised that it takes parameters as the PTX of that name declares them, which
        // is how they are laid out. They live until the body returns, which it does: it never unwinds.
        unsafe { body(pointers.as_ptr(), block, shape.grid[0], shape.block[0], shape.shared) };
    });
    Ok(())
}
