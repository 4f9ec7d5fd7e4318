//! Virtual GPUs: kernels run as their PTX says.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use congruent_virtual_gpu::{self as gpu, Cause, Machine, Settings};
use cudarc::driver::sys::CUresult;

use crate::context::Context;
use crate::driver;
use crate::errors::Outcome;
use crate::executor::Executor;
use crate::launch::Launch;

/// Executes PTX.
pub(crate) struct Gpus;

/// The GPUs of this process, once a kernel is launched.
static MACHINE: LazyLock<Outcome<Arc<Machine>>> = LazyLock::new(|| {
    let config = driver::get()?.config;
    let settings = Settings {
        devices: config.devices,
        multiprocessors: config.sms,
        schedule: config.schedule,
        seed: config.seed,
        races: config.races,
        weak: config.weak,
        patience: Duration::from_secs(config.patience.into()),
        ..Settings::default()
    };
    Machine::new(settings).map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)
});

impl Executor for Gpus {
    /// # Errors
    /// `CUDA_ERROR_NOT_SUPPORTED` for clusters
    fn check(&self, launch: &Launch) -> Outcome {
        if launch.shape.cluster > 1 { Err(CUresult::CUDA_ERROR_NOT_SUPPORTED) } else { Ok(()) }
    }

    /// Runs it, and tells on standard error what went wrong in it.
    fn run(&self, launch: &Launch, context: &Arc<Context>) -> Outcome {
        let machine = MACHINE.as_ref().map_err(|code| *code)?;
        let function = &launch.function;
        let entry = function.entry();
        let outcome = machine.launch(gpu::Launch {
            program: function.image.program.clone(),
            globals: function.globals.clone(),
            kernel: entry.name.clone(),
            space: driver::get()?.device(context.ordinal)?.space.clone(),
            blocks: launch.shape.grid,
            threads: launch.shape.block,
            shared: launch.shape.shared,
            registers: function.registers(),
            params: launch.params.bytes(entry),
        });
        outcome.map_err(|fault| {
            eprintln!("congruent virtual GPU: {fault}");
            code(&fault.cause)
        })
    }
}

/// What the driver says of a cause (CUDA driver API, `CUresult`).
fn code(cause: &Cause) -> CUresult {
    match cause {
        Cause::Unmapped { .. }
        | Cause::NoAccess { .. }
        | Cause::Shared { .. }
        | Cause::Local { .. }
        | Cause::Param { .. }
        | Cause::PlainMulticast { .. }
        | Cause::NoMulticast { .. } => CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
        Cause::Misaligned { .. } => CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
        Cause::NoTarget { .. } | Cause::NoFunction { .. } => CUresult::CUDA_ERROR_INVALID_PC,
        Cause::StackOverflow { .. } => CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR,
        Cause::StoodStill { .. } | Cause::NoRoom { .. } | Cause::Deadlock { .. } | Cause::Endless { .. } => {
            CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
        }
        _ => CUresult::CUDA_ERROR_LAUNCH_FAILED,
    }
}
