//! Slices of cudarc's that launches are lent, in the order that cudarc keeps for its own.
//!
//! cudarc remembers with events which streams use a slice, and its own calls and the slice's end wait for those. It does so by itself
//! where a program has several streams; where it has one, that one and ours wait for each other here.

use std::sync::Arc;

use congruent_device::{Pod, Relaxed, Slice, SliceMut};
use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice, DriverError};

use super::CudaError;
use crate::buffer::{Lend, Loan, Source, Target};
use crate::machine::Machine;
use crate::runner::Runner;
use crate::{Error, LaunchError, Stream};

/// A call that cudarc made.
impl From<DriverError> for CudaError {
    fn from(failed: DriverError) -> Self {
        Self::check("a call of cudarc", failed.0).err().unwrap_or(Self::NoDevice)
    }
}

impl From<DriverError> for Error {
    fn from(failed: DriverError) -> Self {
        Self::Cuda(failed.into())
    }
}

/// Our stream, as cudarc's calls take it, for a slice that is used on `theirs`.
fn ours(stream: &Stream, theirs: &CudaStream) -> Result<Arc<CudaStream>, LaunchError> {
    let Runner::Cuda(runner, shared) = stream.runner() else { return Err(LaunchError::NoSliceToLend) };
    let Machine::Cuda(pe) = shared.machine() else { return Err(LaunchError::NoSliceToLend) };
    let (context, device) = (theirs.context(), &pe.device);
    if context.cu_ctx() != device.context().raw() {
        let (theirs, ours) = (context.ordinal() as u32, device.properties.ordinal);
        return Err(if theirs == ours {
            CudaError::SliceOfContext { device: ours }.into()
        } else {
            CudaError::LentOfDevice { theirs, ours }.into()
        });
    }
    // SAFETY: the stream is of this context, and lives for as long as the call that this is made for.
    Ok(unsafe { context.wrap_borrowed_stream(runner.state().raw()) })
}

/// Has our stream wait for what uses the slice; gives its address. `pointer` has cudarc order it.
fn begin<T>(
    stream: &Stream,
    theirs: &CudaStream,
    pointer: impl FnOnce(&CudaStream) -> u64,
) -> Result<u64, LaunchError> {
    let ours = ours(stream, theirs)?;
    let address = pointer(&ours);
    let context = theirs.context();
    if !context.is_managing_stream_synchronization() {
        ours.join(theirs).map_err(CudaError::from)?;
    }
    context.check_err().map_err(CudaError::from)?;
    if !address.is_multiple_of(align_of::<T>() as u64) {
        return Err(CudaError::Misaligned { address, align: align_of::<T>() }.into());
    }
    Ok(address)
}

/// Has what uses the slice later wait for our stream. `record` has cudarc remember it.
fn end(stream: &Stream, theirs: &CudaStream, record: impl FnOnce(&CudaStream)) -> Result<(), LaunchError> {
    let ours = ours(stream, theirs)?;
    record(&ours);
    let context = theirs.context();
    let managed = context.is_managing_stream_synchronization();
    let ordered = if managed { Ok(()) } else { theirs.join(&ours) };
    ordered.and_then(|()| context.check_err()).map_err(|error| {
        // Nothing of theirs would wait for the launch, so this does.
        stream.wait_for(stream.submitted());
        CudaError::from(error).into()
    })
}

macro_rules! read {
    ($($slice:ty),*) => {$(
        impl<T: Pod> Lend<Slice<T>> for $slice {
            fn lend(&mut self, loan: &mut Loan<'_>) -> Result<Slice<T>, LaunchError> {
                let theirs = Arc::clone(self.stream());
                let address = begin::<T>(loan.outside(), &theirs, |ours| {
                    let (address, recorded) = self.device_ptr(ours);
                    // The launch is not there yet.
                    std::mem::forget(recorded);
                    address
                })?;
                // SAFETY: so many elements of device memory, aligned. Whatever writes or frees them by cudarc waits for the launch
                // (`end`), and the launch for whatever wrote them; `T` is valid whatever its bytes.
                Ok(unsafe { Slice::from_raw_parts(address, self.len()) })
            }

            fn lent(&mut self, stream: &Stream) -> Result<(), LaunchError> {
                let theirs = Arc::clone(self.stream());
                end(stream, &theirs, |ours| drop(self.device_ptr(ours)))
            }
        }
    )*};
}
read! { &CudaSlice<T>, &CudaView<'_, T>, CudaView<'_, T> }

macro_rules! write {
    ($($argument:ident: $slice:ty),*) => {$(
        impl<T: Pod> Lend<$argument<T>> for $slice {
            fn lend(&mut self, loan: &mut Loan<'_>) -> Result<$argument<T>, LaunchError> {
                let theirs = Arc::clone(self.stream());
                let address = begin::<T>(loan.outside(), &theirs, |ours| {
                    let (address, recorded) = self.device_ptr_mut(ours);
                    std::mem::forget(recorded);
                    address
                })?;
                // SAFETY: as of a slice that is read, and whatever reads them by cudarc waits as well; nothing else of this launch
                // uses them, as they are borrowed exclusively.
                Ok(unsafe { $argument::from_raw_parts(address, self.len()) })
            }

            fn lent(&mut self, stream: &Stream) -> Result<(), LaunchError> {
                let theirs = Arc::clone(self.stream());
                end(stream, &theirs, |ours| drop(self.device_ptr_mut(ours)))
            }
        }
    )*};
}
write! {
    SliceMut: &mut CudaSlice<T>, SliceMut: &mut CudaViewMut<'_, T>, SliceMut: CudaViewMut<'_, T>,
    Relaxed: &mut CudaSlice<T>, Relaxed: &mut CudaViewMut<'_, T>, Relaxed: CudaViewMut<'_, T>
}

impl<'c, T> From<&'c mut CudaSlice<T>> for Target<'c, T> {
    fn from(slice: &'c mut CudaSlice<T>) -> Self {
        Self::Slice(slice.as_view_mut())
    }
}

impl<'c, T> From<CudaViewMut<'c, T>> for Target<'c, T> {
    fn from(view: CudaViewMut<'c, T>) -> Self {
        Self::Slice(view)
    }
}

impl<'c, T> From<&'c CudaSlice<T>> for Source<'c, T> {
    fn from(slice: &'c CudaSlice<T>) -> Self {
        Self::Slice(slice.as_view())
    }
}

impl<'c, T> From<CudaView<'c, T>> for Source<'c, T> {
    fn from(view: CudaView<'c, T>) -> Self {
        Self::Slice(view)
    }
}
