//! What may live on the symmetric heap and what may travel.

use bytemuck::Zeroable;

pub use bytemuck::Pod;
pub use half::{bf16, f16};

/// Anything that may live on the symmetric heap: plain data ([`Pod`]), and the words that PEs signal each other with
/// ([`Semaphore`](crate::Semaphore), [`Signal`](crate::Signal)) or network cards count with ([`NicWord`](crate::NicWord)), which are not
/// plain data so that no `put` can overwrite one.
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
// SAFETY: a NicWord is one u64.
unsafe impl Element for crate::NicWord {}

/// An 8-bit float of the OCP format E4M3: no infinities, NaN where all but the sign is ones, largest value 448. Here it is
/// bits alone; `congruent_device::SmallFloat` makes numbers of them and back.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Fp8E4M3(pub u8);

/// An 8-bit float of the OCP format E5M2: infinities and NaNs as in the larger formats, largest finite value 57344. Here
/// it is bits alone; `congruent_device::SmallFloat` makes numbers of them and back.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Fp8E5M2(pub u8);

/// A value and where it was found: what the operators that look for a minimum or a maximum and its place reduce.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ValueAt<T: Locatable> {
    /// The value.
    pub value: T,
    /// Its place: a rank, or whatever else the program numbers.
    pub at: T::Index,
}

/// A value that [`ValueAt`] can pair with an index of the same size, so that the pair has no padding.
pub trait Locatable: Pod + PartialOrd + sealed::Sealed {
    /// The index: `u32` or `u64`.
    type Index: Pod + Ord + core::fmt::Debug + Send + Sync;
}

mod sealed {
    /// Keeps [`Locatable`](super::Locatable) to the types whose pairs are known to be plain data.
    pub trait Sealed {}
}

macro_rules! locatable {
    ($($type:ty: $index:ty;)*) => {$(
        impl sealed::Sealed for $type {}
        impl Locatable for $type {
            type Index = $index;
        }
        const _: () = assert!(size_of::<ValueAt<$type>>() == size_of::<$type>() + size_of::<$index>());
        // SAFETY: two fields of plain data, for which zeroes are valid.
        unsafe impl Zeroable for ValueAt<$type> {}
        // SAFETY: repr(C), two fields of plain data, and by the assertion no padding between or after them.
        unsafe impl Pod for ValueAt<$type> {}
    )*};
}

locatable! {
    i32: u32;
    u32: u32;
    f32: u32;
    i64: u64;
    u64: u64;
    f64: u64;
}
