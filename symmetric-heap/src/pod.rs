//! What may live on the symmetric heap and what may travel.

use bytemuck::Zeroable;

pub use bytemuck::Pod;
pub use half::{bf16, f16};

/// Anything that may live on the symmetric heap: plain data ([`Pod`]), and the words that PEs signal each other with
/// ([`Semaphore`](crate::Semaphore), [`Signal`](crate::Signal)), which are not plain data so that no `put` can overwrite one.
///
/// # Safety
/// All-zero bytes are a valid value, any torn mix of bytes is a valid value, the type holds no padding, reference or
/// pointer that is followed, and dropping it does nothing.
pub unsafe trait Element: Copy + 'static {}

// SAFETY: bytemuck's contract for Pod (any bit pattern valid, no padding, no references) is this trait's.
unsafe impl<T: Pod> Element for T {}
// SAFETY: a Semaphore is integers and explicit zeroed padding; any bit pattern is a valid value.
unsafe impl Element for crate::Semaphore {}
// SAFETY: a Signal is one u64.
unsafe impl Element for crate::Signal {}

/// An 8-bit float of the E4M3 format (no infinities), as bytes: moved, never computed with, on its own.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Fp8E4M3(pub u8);

/// An 8-bit float of the E5M2 format, as bytes: moved, never computed with, on its own.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Fp8E5M2(pub u8);
