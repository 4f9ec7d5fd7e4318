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

use crate::config;

/// The address of a function of the driver API, for programs that this crate is part of: they have a machine of as many devices
/// as `CONGRUENT_VIRTUAL` says, or else of the most there can be.
pub fn function(name: &str) -> Option<*const ()> {
    config::in_program();
    let files = [
        context::find,
        copy::find,
        driver::find,
        event::find,
        graph::find,
        launch::find,
        memory::find,
        module::find,
        stream::find,
        vmm::find,
    ];
    files.iter().find_map(|find| find(name))
}

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
