//! Launches: what is checked before one is put on a stream, and how its blocks are run.

use core::ffi::c_void;
use core::mem::offset_of;
use std::sync::Arc;

use congruent_heap::abi;
use congruent_verify::ptx;
use cudarc::driver::sys::CUresult;

use crate::context::Context;
use crate::device::{BLOCKS_PER_SM, GRID, SHARED_RESERVED, THREADS_PER_SM, WARP};
use crate::entry::Ptr;
use crate::errors::Outcome;
use crate::executor;
use crate::image;
use crate::module::Function;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// How many blocks of how many threads, and how.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    /// Bytes of dynamic shared memory of a block.
    pub(crate) shared: u32,
    /// Blocks of a cluster.
    pub(crate) cluster: u32,
    /// All blocks have to run at one time.
    pub(crate) cooperative: bool,
}

/// A kernel with all that it needs to run, any number of times.
pub(crate) struct Launch {
    pub(crate) function: Arc<Function>,
    pub(crate) shape: Shape,
    pub(crate) params: Params,
}

/// The values of a kernel's parameters, laid out as PTX says.
#[derive(Clone)]
pub(crate) struct Params(Vec<u128>);

impl Params {
    /// Copies what the caller's pointers point to, as much as the entry declares.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for a null pointer
    fn copy(entry: &ptx::Function, values: Ptr<*mut c_void>) -> Outcome<Self> {
        // An image whose kernels have more than a few thousand bytes was refused.
        let mut bytes = vec![0; (image::parameter_bytes(entry) as usize).next_multiple_of(size_of::<u128>())];
        for (index, (offset, size)) in places(entry).enumerate() {
            if values.is_null() {
                return Err(INVALID);
            }
            // SAFETY: the caller of the launch promised one good pointer for each parameter of the kernel.
            let value = unsafe { crate::entry::Argument::take(values.at(index).get()?.cast::<u8>()) };
            bytes[offset..offset + size].copy_from_slice(&Ptr::bytes(value, size)?);
        }
        let word = |chunk: &[u8]| chunk.iter().rev().fold(0, |word: u128, &byte| word << 8 | u128::from(byte));
        Ok(Self(bytes.chunks(16).map(word).collect()))
    }

    /// All of them, laid out.
    pub(crate) fn bytes(&self, entry: &ptx::Function) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.0.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(image::parameter_bytes(entry) as usize);
        bytes
    }

    /// The PE, of a kernel whose first parameter is the context of one.
    pub(crate) fn pe(&self, entry: &ptx::Function) -> Option<u32> {
        let context = entry.parameters.first()?.bytes.filter(|&bytes| bytes as usize == size_of::<abi::Context>());
        let bytes = context.map(|_| self.bytes(entry))?;
        let word = |at: usize| u32::from_le_bytes(core::array::from_fn(|byte| bytes[at + byte]));
        let is_ours = word(offset_of!(abi::Context, version)) == abi::VERSION;
        is_ours.then(|| word(offset_of!(abi::Context, pe)))
    }

    /// Where each parameter is.
    pub(crate) fn pointers(&self, entry: &ptx::Function) -> Vec<*const c_void> {
        let base = self.0.as_ptr().cast::<u8>();
        places(entry).map(|(offset, _)| base.wrapping_add(offset).cast()).collect()
    }
}

/// Where the parameters of a kernel are, and their bytes.
fn places(entry: &ptx::Function) -> impl Iterator<Item = (usize, usize)> {
    let bytes = entry.parameters.iter().map(|parameter| parameter.bytes.unwrap_or(0) as usize);
    entry.parameter_offsets().into_iter().map(|offset| offset as usize).zip(bytes)
}

/// The product of three dimensions.
pub(crate) fn count(shape: [u32; 3]) -> u32 {
    shape.iter().fold(1, |product: u32, &part| product.saturating_mul(part))
}

/// How many blocks of a kernel a multiprocessor holds at one time.
///
/// # Errors
/// `CUDA_ERROR_INVALID_DEVICE`
pub(crate) fn occupancy(function: &Function, threads: u32, shared: usize) -> Outcome<u32> {
    if threads > function.max_threads() {
        return Ok(0);
    }
    let warps = threads.div_ceil(WARP).max(1);
    let by_warps = (THREADS_PER_SM / WARP).min(function.warps()) / warps;
    if shared > function.max_shared() as usize {
        return Ok(0);
    }
    let by_shared = u64::from(function.device()?.shared_per_sm())
        / (shared as u64 + function.static_shared() + u64::from(SHARED_RESERVED));
    Ok(by_warps.min(by_shared as u32).min(BLOCKS_PER_SM))
}

impl Launch {
    /// Checks a launch and copies its parameters.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for no blocks or too many, no threads or too many, or too much shared memory,
    /// `CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE`, and those of [`Executor::check`](executor::Executor::check)
    pub(crate) fn new(function: Arc<Function>, shape: Shape, values: Ptr<*mut c_void>) -> Outcome<Self> {
        let fits = shape.grid.iter().zip(GRID).all(|(&blocks, most)| (1..=most).contains(&blocks));
        if !fits || shape.block.contains(&0) {
            return Err(INVALID);
        }
        let [blocks, threads] = [shape.grid, shape.block].map(count);
        if threads > function.max_threads() || shape.shared > function.max_shared() {
            return Err(INVALID);
        }
        if shape.cooperative {
            let of_one = occupancy(&function, threads, shape.shared as usize)?;
            let fit = function.device()?.sms.saturating_mul(of_one);
            if blocks > fit {
                return Err(CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
            }
        }
        let params = Params::copy(function.entry(), values)?;
        let launch = Self { function, shape, params };
        executor::executor().check(&launch)?;
        Ok(launch)
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// What the context is to fail with
    pub(crate) fn run(&self, context: &Arc<Context>) -> Outcome {
        executor::executor().run(self, context)
    }
}
