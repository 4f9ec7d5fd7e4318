//! What a stream does: copies, fills, kernels, waits.
//!
//! An operation holds all that it needs, so that it can be done later and, as a node of a graph, many times.
#![allow(clippy::disallowed_types, reason = "streams write and wait for words that kernels touch atomically")]

use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cudarc::driver::sys::CUresult;

use crate::context::Context;
use crate::errors::Outcome;
use crate::event::Event;
use crate::launch::Launch;
use crate::memory::{self, Side};
use crate::monitor::until;
use crate::pages;
use crate::stream::{self, Stream};

/// How long a wait for a value in memory sleeps before it looks again.
const POLL: Duration = Duration::from_micros(20);

/// A thing to do.
#[derive(Clone)]
pub(crate) enum Operation {
    /// Copies bytes; source and destination may overlap.
    Copy { to: Side, from: Side, bytes: usize },
    /// Copies bytes that were taken from their owner when the call was made.
    Staged { to: Side, bytes: Arc<[u8]> },
    /// Writes a pattern of 1 or 4 bytes over and over.
    Fill { at: u64, pattern: Arc<[u8]>, count: usize },
    /// Writes a word.
    Write { at: u64, word: Word },
    /// Waits for a word.
    Wait { at: u64, word: Word, until: Until },
    /// Runs a kernel.
    Launch(Arc<Launch>),
    /// Calls a function of the host.
    Host { run: unsafe extern "C" fn(*mut c_void), data: u64 },
    /// Completes an event, as recorded for the time given.
    Record(Arc<Event>, u64),
    /// Waits for an event, as recorded for the time given.
    Await(Arc<Event>, u64),
    /// Waits for the first operations of another stream.
    Follow(Arc<Stream>, u64),
    /// Frees memory that was allocated in stream order.
    Free(u64),
    /// Does the nodes of a graph in the order of their capture. On a GPU, nodes that do not depend on each other may run
    /// at one time; here they do not, so kernels of one graph must not wait for each other.
    Graph(Arc<[Operation]>),
}

/// A value in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Word {
    /// Of 4 bytes.
    Four(u32),
    /// Of 8 bytes.
    Eight(u64),
}

/// What a wait waits for, with the word in memory at the left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Until {
    /// At least the value, where half the numbers count as after it: a counter may wrap.
    AtLeast,
    Equal,
    /// A bit in common with the value.
    And,
    /// Some bit that neither has.
    Nor,
}

impl Operation {
    /// Does it.
    ///
    /// # Errors
    /// What the context is to fail with: `CUDA_ERROR_ILLEGAL_ADDRESS` for device memory that is not there any more, and
    /// what a kernel ends with
    pub(crate) fn run(&self, context: &Arc<Context>) -> Outcome {
        match self {
            Self::Copy { to, from, bytes } => {
                to.check(*bytes).and(from.check(*bytes)).map_err(|_| CUresult::CUDA_ERROR_ILLEGAL_ADDRESS)?;
                memory::host_writes(*to, *bytes)?;
                // SAFETY: device memory was just found mapped with access, and host memory is good until the copy ran,
                // which the driver API asks of the caller.
                unsafe { core::ptr::copy(from.pointer().cast_const(), to.pointer(), *bytes) };
            }
            Self::Staged { to, bytes } => {
                to.check(bytes.len()).map_err(|_| CUresult::CUDA_ERROR_ILLEGAL_ADDRESS)?;
                memory::host_writes(*to, bytes.len())?;
                // SAFETY: as for `Copy`; the source is ours.
                unsafe { core::ptr::copy(bytes.as_ptr(), to.pointer(), bytes.len()) };
            }
            Self::Fill { at, pattern, count } => fill(*at, pattern, *count)?,
            Self::Write { at, word } => word.store(*at)?,
            Self::Wait { at, word, until } => {
                while !until.holds(word.load(*at)?, *word) {
                    if context.fault().is_some() {
                        return Ok(());
                    }
                    thread::sleep(POLL);
                }
            }
            Self::Launch(launch) => return launch.run(context),
            Self::Host { run, data } => stream::as_host_function(|| {
                // SAFETY: the caller of `cuLaunchHostFunc` promised a function that may be called with this once the
                // stream gets here; it is a C function and does not unwind.
                unsafe { run(core::ptr::with_exposed_provenance_mut(*data as usize)) }
            }),
            Self::Record(event, time) => event.complete(*time),
            Self::Await(event, time) => {
                until(|| (event.has_completed(*time) || is_over(context, event.context())).then_some(()))
            }
            Self::Follow(stream, count) => {
                until(|| (stream.has_done(*count) || is_over(context, &stream.context)).then_some(()));
            }
            Self::Free(at) => memory::free(*at).map_err(|_| CUresult::CUDA_ERROR_ILLEGAL_ADDRESS)?,
            Self::Graph(nodes) => {
                for node in nodes.iter() {
                    if context.fault().is_some() {
                        return Ok(());
                    }
                    node.run(context)?;
                }
            }
        }
        Ok(())
    }
}

/// Whether a wait of one context for something of another is in vain.
fn is_over(one: &Context, other: &Context) -> bool {
    one.fault().is_some() || other.fault().is_some()
}

fn fill(at: u64, pattern: &[u8], count: usize) -> Outcome {
    let bytes = pattern.len().saturating_mul(count);
    let to = Side::Device(at);
    to.check(bytes).map_err(|_| CUresult::CUDA_ERROR_ILLEGAL_ADDRESS)?;
    memory::host_writes(to, bytes)?;
    // Whole heaps are zeroed.
    if pattern == [0] && pages::zero(at, bytes) {
        return Ok(());
    }
    // SAFETY: the range was just found mapped with access, and no reference to it exists: it is the program's, not ours.
    let target = unsafe { core::slice::from_raw_parts_mut(to.pointer(), bytes) };
    match pattern {
        [byte] => target.fill(*byte),
        _ => target.chunks_exact_mut(pattern.len()).for_each(|chunk| chunk.copy_from_slice(pattern)),
    }
    Ok(())
}

impl Word {
    fn bytes(self) -> usize {
        match self {
            Self::Four(_) => 4,
            Self::Eight(_) => 8,
        }
    }

    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for a place that is not aligned, or not device memory with access
    pub(crate) fn check(self, at: u64) -> Outcome {
        if !at.is_multiple_of(self.bytes() as u64) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        Side::Device(at).check(self.bytes())
    }

    /// Writes it after all that came before, as without `CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER`.
    fn store(self, at: u64) -> Outcome {
        self.check(at).map_err(|_| CUresult::CUDA_ERROR_ILLEGAL_ADDRESS)?;
        memory::host_writes(Side::Device(at), self.bytes())?;
        let place = Side::Device(at).pointer();
        match self {
            // SAFETY: just found aligned and mapped with access; kernels touch such words atomically.
            Self::Four(value) => unsafe { AtomicU32::from_ptr(place.cast()) }.store(value, Ordering::SeqCst),
            // SAFETY: as above.
            Self::Eight(value) => unsafe { AtomicU64::from_ptr(place.cast()) }.store(value, Ordering::SeqCst),
        }
        Ok(())
    }

    /// What is there, in as many bytes.
    fn load(self, at: u64) -> Outcome<Self> {
        self.check(at).map_err(|_| CUresult::CUDA_ERROR_ILLEGAL_ADDRESS)?;
        let place = Side::Device(at).pointer();
        Ok(match self {
            // SAFETY: just found aligned and mapped with access; kernels touch such words atomically.
            Self::Four(_) => Self::Four(unsafe { AtomicU32::from_ptr(place.cast()) }.load(Ordering::SeqCst)),
            // SAFETY: as above.
            Self::Eight(_) => Self::Eight(unsafe { AtomicU64::from_ptr(place.cast()) }.load(Ordering::SeqCst)),
        })
    }
}

impl Until {
    /// From the flags of `cuStreamWaitValue`.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for unknown flags
    pub(crate) fn from_flags(flags: u32) -> Outcome<Self> {
        match flags {
            0 => Ok(Self::AtLeast),
            1 => Ok(Self::Equal),
            2 => Ok(Self::And),
            3 => Ok(Self::Nor),
            _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }

    fn holds(self, found: Word, asked: Word) -> bool {
        let (found, asked, distance) = match (found, asked) {
            // Sign-extended, so that the same tests serve both widths.
            (Word::Four(found), Word::Four(asked)) => {
                (found as i32 as i64, asked as i32 as i64, i64::from(found.wrapping_sub(asked) as i32))
            }
            (Word::Eight(found), Word::Eight(asked)) => (found as i64, asked as i64, found.wrapping_sub(asked) as i64),
            (Word::Four(_), Word::Eight(_)) | (Word::Eight(_), Word::Four(_)) => return false,
        };
        match self {
            Self::AtLeast => distance >= 0,
            Self::Equal => found == asked,
            Self::And => found & asked != 0,
            Self::Nor => !(found | asked) != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_compare_as_documented() {
        use Word::{Eight, Four};
        let cases = [
            (Until::AtLeast, Four(5), Four(5), true),
            (Until::AtLeast, Four(4), Four(5), false),
            (Until::AtLeast, Four(1), Four(u32::MAX), true),
            (Until::AtLeast, Eight(u64::MAX), Eight(1), false),
            (Until::Equal, Eight(7), Eight(7), true),
            (Until::Equal, Eight(7 | 1 << 40), Eight(7), false),
            (Until::And, Four(6), Four(1), false),
            (Until::And, Four(6), Four(2), true),
            (Until::Nor, Four(0xffff_0000), Four(0xffff), false),
            (Until::Nor, Four(0xffff_0000), Four(0xfffe), true),
        ];
        for (until, found, asked, held) in cases {
            assert_eq!(until.holds(found, asked), held, "{until:?} {found:?} {asked:?}");
        }
        assert!(Until::from_flags(4).is_err());
    }
}
