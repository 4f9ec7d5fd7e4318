//! Numbers that are lent sixteen bytes at a time.

use congruent_device::{Pack, Pod, Relaxed, Slice, SliceMut};

use super::lend::{Lend, Loan};
use crate::{LaunchError, Stream};

/// What is lent as [`Pack`]s: `Packed::new(&buffer)` for a kernel's `Slice<Pack<f32, 4>>`, and `Packed::new(&mut buffer)` for its
/// [`SliceMut`] and [`Relaxed`]; for [`RowsMut`](congruent_device::RowsMut) and [`ChunksMut`](congruent_device::ChunksMut) of packs
/// `Chunked::new(Packed::new(&mut buffer), size)`, whose size is in packs.
///
/// It is as many numbers as whole packs, from a multiple of 16 bytes on; otherwise the launch is refused.
///
/// ```
/// use congruent::device::{Pack, Slice, SliceMut, kernels};
/// use congruent::{Error, Grid, Packed};
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
///
/// congruent::local(1, |world| {
///     let (stream, x, mut y) = (world.stream()?, world.buffer::<f32>(1000)?, world.buffer::<f32>(1000)?);
///     y.fill(1.0)?;
///     world.run(&stream, axpy, Grid::new(4, 128), (2.0_f32, Packed::new(&x), Packed::new(&mut y)))?;
///     assert_eq!(y.to_vec()?, [1.0; 1000]);
///     Ok::<_, Error>(())
/// })?;
/// # Ok::<_, Error>(())
/// ```
#[derive(Debug)]
pub struct Packed<L>(L);

impl<L> Packed<L> {
    /// The same numbers, as packs.
    pub const fn new(numbers: L) -> Self {
        Self(numbers)
    }
}

macro_rules! packed {
    ($($argument:ident)*) => {$(
        impl<T: Pod, const N: usize, L: Lend<$argument<T>>> Lend<$argument<Pack<T, N>>> for Packed<L>
        where
            Pack<T, N>: Pod,
        {
            fn lend(&mut self, loan: &mut Loan<'_>) -> Result<$argument<Pack<T, N>>, LaunchError> {
                let (address, len) = self.0.lend(loan)?.into_raw_parts();
                let align = align_of::<Pack<T, N>>() as u64;
                // Where nothing is, anything that is aligned is right.
                let address = if len > 0 { address } else { align };
                if !len.is_multiple_of(N) || !address.is_multiple_of(align) {
                    return Err(LaunchError::Packs { kernel: loan.kernel(), len, in_one: N });
                }
                // SAFETY: the same elements, all of them in packs that are aligned.
                Ok(unsafe { $argument::from_raw_parts(address, len / N) })
            }

            fn lent(&mut self, stream: &Stream) -> Result<(), LaunchError> {
                self.0.lent(stream)
            }
        }
    )*};
}
packed! { Slice SliceMut Relaxed }
