//! Sixteen bytes that one access moves.

use core::ops::{Deref, DerefMut};
use core::slice;

use bytemuck::Zeroable;
use congruent_heap::{Fp8E4M3, Fp8E5M2, Pod, bf16, f16};

/// Numbers of 16 bytes together, where 16 bytes begin: a GPU loads or stores them by one instruction, as it does CUDA's `float4`.
/// So memory of private buffers, settled parts of symmetric memory and arrays in shared memory are gone through in a quarter of
/// the accesses.
///
/// A pack is one access where it is copied as a whole, as by `let x = xs[i];`. Of `xs[i][0]` alone one number is loaded.
///
/// `N` numbers have 16 bytes: there are `Pack<f32, 4>`, `Pack<bf16, 8>`, `Pack<u64, 2>` and so on.
///
/// The host lends `Buffer<f32>` as packs by `Packed::new(&buffer)`; what a kernel reads it divides itself ([`Pack::split`]).
///
/// ```
/// use congruent_device::{Pack, Slice, SliceMut, kernels};
///
/// kernels! {
///     /// `y` becomes `a * x + y`.
///     pub fn axpy(block, ctx, a: f32, x: Slice<Pack<f32, 4>>, y: SliceMut<Pack<f32, 4>>) {
///         let x = &x[..y.len()];
///         for (i, y) in y.iter_mut(block) {
///             let (x, old) = (x[i], *y);
///             *y = Pack::from_fn(|j| a * x[j] + old[j]);
///         }
///     }
/// }
/// ```
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pack<T, const N: usize>(pub [T; N]);

impl<T, const N: usize> Pack<T, N> {
    /// What `number` gives for each index.
    #[inline(always)]
    pub fn from_fn(number: impl FnMut(usize) -> T) -> Self {
        Self(core::array::from_fn(number))
    }
}

impl<T: Pod, const N: usize> Pack<T, N>
where
    Self: Pod,
{
    /// A slice as packs, and the numbers behind the last whole one. Where its first number is at no multiple of 16 bytes there are no
    /// packs, and all are in the rest: buffers begin at one, and of their parts those that begin at a multiple of `N`.
    #[inline(always)]
    pub fn split(numbers: &[T]) -> (&[Self], &[T]) {
        let packs = Self::within(numbers);
        if packs == 0 {
            return (&[], numbers);
        }
        // SAFETY: the caller holds all of them, so many packs are inside and aligned, and any bytes are plain data.
        (unsafe { slice::from_raw_parts(numbers.as_ptr().cast(), packs) }, &numbers[packs * N..])
    }

    /// The same of a slice that is written.
    #[inline(always)]
    pub fn split_mut(numbers: &mut [T]) -> (&mut [Self], &mut [T]) {
        let packs = Self::within(numbers);
        if packs == 0 {
            return (&mut [], numbers);
        }
        let (whole, rest) = numbers.split_at_mut(packs * N);
        // SAFETY: as above, and these are borrowed exclusively.
        (unsafe { slice::from_raw_parts_mut(whole.as_mut_ptr().cast(), packs) }, rest)
    }

    /// How many packs there are.
    #[inline(always)]
    fn within(numbers: &[T]) -> usize {
        if numbers.as_ptr().addr().is_multiple_of(size_of::<Self>()) { numbers.len() / N } else { 0 }
    }
}

impl<T, const N: usize> Deref for Pack<T, N> {
    type Target = [T; N];
    #[inline(always)]
    fn deref(&self) -> &[T; N] {
        &self.0
    }
}

impl<T, const N: usize> DerefMut for Pack<T, N> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T; N] {
        &mut self.0
    }
}

macro_rules! packs {
    ($($type:ty: $n:literal;)*) => {$(
        const _: () = assert!(size_of::<$type>() * $n == 16);
        // SAFETY: plain data, for which zeroes are valid.
        unsafe impl Zeroable for Pack<$type, $n> {}
        // SAFETY: repr(C), an array of plain data, and by the assertion nothing behind it.
        unsafe impl Pod for Pack<$type, $n> {}
    )*};
}
packs! {
    f64: 2; f32: 4; f16: 8; bf16: 8; Fp8E4M3: 16; Fp8E5M2: 16;
    u64: 2; u32: 4; u16: 8; u8: 16;
    i64: 2; i32: 4; i16: 8; i8: 16;
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn whole_packs_and_what_is_behind_them() {
        let mut numbers = [Pack([0_u32, 1, 2, 3]), Pack([4, 5, 6, 7])];
        let numbers: &mut [u32] = bytemuck::cast_slice_mut(&mut numbers);
        for (end, packs) in [(8, 2), (7, 1), (4, 1), (3, 0), (0, 0)] {
            let (whole, rest) = Pack::<u32, 4>::split(&numbers[..end]);
            let all: Vec<_> = whole.iter().flat_map(|pack| pack.0).chain(rest.iter().copied()).collect();
            assert_eq!((whole.len(), all.as_slice()), (packs, &numbers[..end]));
        }
        let (whole, rest) = Pack::<u32, 4>::split(&numbers[1..]);
        assert_eq!((whole.len(), rest), (0, &numbers[1..]), "no pack begins at the second number");
        let (whole, rest) = Pack::<u32, 4>::split_mut(&mut numbers[..6]);
        whole[0][3] = 30;
        rest[1] = 50;
        assert_eq!(numbers, [0, 1, 2, 30, 4, 50, 6, 7]);
    }
}
