//! Virtual GPUs: kernels run as their PTX says.

use std::sync::Arc;

use cudarc::driver::sys::CUresult;

use crate::context::Context;
use crate::engine::{self, Kernel, Request};
use crate::errors::Outcome;
use crate::executor::Executor;
use crate::launch::Launch;
use crate::say::say;

/// Executes PTX.
pub(crate) struct Gpus;

impl Executor for Gpus {
    /// # Errors
    /// `CUDA_ERROR_NOT_SUPPORTED` for clusters
    fn check(&self, launch: &Launch) -> Outcome {
        if launch.shape.cluster > 1 { Err(CUresult::CUDA_ERROR_NOT_SUPPORTED) } else { Ok(()) }
    }

    /// Runs it, and tells on standard error what went wrong in it.
    fn run(&self, launch: &Launch, context: &Arc<Context>) -> Outcome {
        let function = &launch.function;
        let entry = function.entry();
        let kernel = Kernel {
            module: function.module,
            name: entry.name.clone(),
            pe: launch.params.pe(entry),
            device: context.ordinal.unsigned_abs(),
            blocks: launch.shape.grid,
            threads: launch.shape.block,
            shared: launch.shape.shared,
            registers: function.registers(),
            params: launch.params.bytes(entry),
        };
        engine::ask(Request::Launch(kernel), &[]).map(drop).map_err(|refusal| {
            if !refusal.log.is_empty() {
                say(&refusal.log);
            }
            refusal.code
        })
    }
}
