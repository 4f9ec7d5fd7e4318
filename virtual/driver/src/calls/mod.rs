//! The functions that the library exports, by the driver's names.
//!
//! Each takes its arguments apart, has the work done by the module whose subject it is, and gives the result out.

pub(crate) mod context;
pub(crate) mod copy;
pub(crate) mod driver;
pub(crate) mod event;
pub(crate) mod graph;
pub(crate) mod launch;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod own;
pub(crate) mod stream;
pub(crate) mod vmm;

/// Names of all functions of the driver API that there are, so that a test can make each of them fail, or be missing.
pub fn names() -> impl Iterator<Item = &'static str> {
    let files = [
        context::NAMES,
        copy::NAMES,
        driver::NAMES,
        event::NAMES,
        graph::NAMES,
        launch::NAMES,
        memory::NAMES,
        module::NAMES,
        stream::NAMES,
        vmm::NAMES,
    ];
    files.into_iter().flatten().copied()
}
