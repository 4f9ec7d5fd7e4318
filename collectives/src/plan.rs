//! What an algorithm needs on the heap, told to the host before a kernel runs.

use congruent_device::{KernelArg, Semaphore, Sym};

/// How much an algorithm needs on every PE's heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Semaphores.
    pub semaphores: usize,
    /// Bytes of scratch.
    pub scratch: usize,
}

/// An algorithm for a team of a certain size: knows what it needs, and makes the kernel argument once that is allocated.
///
/// The host's `World::plan` turns a shape into a plan.
pub trait Shape {
    /// The plan as a kernel argument.
    type View: KernelArg;

    /// What it needs.
    fn needs(&self) -> Needs;

    /// The kernel argument, over semaphores and scratch of at least what it needs, zeroed when they were allocated.
    fn view(&self, semaphores: Sym<Semaphore>, scratch: Sym<u8>) -> Self::View;
}
