//! What the tests share: a process for each, since a configuration holds for a process, and calls that must succeed.
#![allow(dead_code, unused_imports, unused_macros, reason = "no test file uses all of it")]
#![allow(clippy::unwrap_used, reason = "clippy takes only functions marked as tests for such")]

use std::env;
use std::process::{Command, ExitStatus, Stdio};

use congruent_virtual_driver::{VARIABLE, cuCtxSetCurrent, cuDevicePrimaryCtxRetain, cuInit, cuStreamCreate};
use cudarc::driver::sys::{CUcontext, CUstream};

/// Says to a process which test it is to do.
const TEST: &str = "CONGRUENT_VIRTUAL_DRIVER_TEST";

/// Calls a function of the driver.
macro_rules! call {
    ($call:expr) => {{
        // SAFETY: what tests give as pointers is null, or good for the call.
        let code = unsafe { $call };
        code
    }};
}
pub(crate) use call;

/// Calls a function of the driver, which must succeed.
macro_rules! ok {
    ($call:expr) => {
        assert_eq!(crate::common::call!($call), cudarc::driver::sys::CUresult::CUDA_SUCCESS, "{}", stringify!($call))
    };
}
pub(crate) use ok;

/// Does a test in a process of its own, with a configuration.
pub(crate) fn alone(test: &str, config: &str, body: impl FnOnce()) {
    if is_child() {
        return body();
    }
    passes(again(test).env(VARIABLE, config));
}

/// Lets a process do its one test. A name that is no test would pass with none.
pub(crate) fn passes(child: &mut Command) {
    let output = child.stderr(Stdio::inherit()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{child:?}: {}\n{said}", output.status);
}

/// How a process ends that does a test with a configuration; its output is not shown. None in that process.
pub(crate) fn ending(test: &str, config: &str, body: impl FnOnce()) -> Option<ExitStatus> {
    if is_child() {
        body();
        return None;
    }
    Some(again(test).env(VARIABLE, config).output().unwrap().status)
}

/// Whether this is the process that does a test.
pub(crate) fn is_child() -> bool {
    env::var_os(TEST).is_some()
}

/// This program, to do one test.
pub(crate) fn again(test: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(TEST, test);
    command
}

/// Initialises the driver and works in the context of a device.
pub(crate) fn begin(device: i32) -> CUcontext {
    let mut context = core::ptr::null_mut();
    ok!(cuInit(0));
    ok!(cuDevicePrimaryCtxRetain(&mut context, device));
    ok!(cuCtxSetCurrent(context));
    context
}

/// A stream that takes no notice of the legacy one.
pub(crate) fn stream() -> CUstream {
    let mut stream = core::ptr::null_mut();
    ok!(cuStreamCreate(&mut stream, 1));
    stream
}
