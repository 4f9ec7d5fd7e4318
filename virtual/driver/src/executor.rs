//! What executes a launch: virtual GPUs, which run the kernel's PTX, or native functions that the process registers.

use std::sync::Arc;

use crate::config::{self, Engine};
use crate::context::Context;
use crate::errors::Outcome;
use crate::gpus::Gpus;
use crate::launch::Launch;
use crate::native::Native;

/// What runs kernels.
pub(crate) trait Executor {
    /// Asked when a kernel is launched: whether it can be run.
    ///
    /// # Errors
    /// What the launch is to give
    fn check(&self, launch: &Launch) -> Outcome;

    /// Runs a launch to its end.
    ///
    /// # Errors
    /// What the context is to fail with
    fn run(&self, launch: &Launch, context: &Arc<Context>) -> Outcome;
}

/// The executor of this process.
pub(crate) fn executor() -> &'static dyn Executor {
    match config::get().map(|config| config.engine) {
        Ok(Engine::Native) => &Native,
        Ok(Engine::Ptx) | Err(_) => &Gpus,
    }
}
