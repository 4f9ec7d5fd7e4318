//! How a kernel ends before its time: with a record of what went wrong, where its program waited or did what was wrong.
//!
//! A record has two parts. Whoever finds something wrong says what it is, wherever that is. All threads of its group then leave the
//! kernel, and there the one that found it adds the line of the program, which is a constant of that place: on the way no
//! register holds it.

use core::panic::Location;
use core::ptr::with_exposed_provenance_mut;

use congruent_heap::abi::{Abort, Cause, Control, FaultState, Said, Site};

use crate::{Ctx, Group, arch};

impl Ctx<'_> {
    /// Ends the kernel of the whole group if any thread failed.
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn join(&self, group: &impl Group, failed: bool) {
        self.end_unless(!group.any(failed));
    }

    /// Ends the kernel of this thread where it does not go on. The threads of a group end together.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn end_unless(&self, goes_on: bool) {
        if !goes_on {
            self.end();
        }
        #[cfg(not(target_arch = "nvptx64"))]
        self.pausing.set(crate::pause::NOT_PAUSING);
    }

    /// Ends the kernel of this thread, as a wait does where [`aborted`](Ctx::aborted) holds. The threads of a group end together.
    #[inline(always)]
    #[track_caller]
    pub fn end(&self) -> ! {
        let site = Location::caller();
        let (file, columns) = (site.file().as_bytes(), u64::from(site.column()) << 32);
        self.leave_from(file.as_ptr(), file.len(), columns | u64::from(site.line()))
    }

    /// Leaves a record, if it is the first one of this PE, and ends every wait of it. The thread goes on to
    /// [`end`](Ctx::end), which completes the record.
    #[cold]
    #[inline(always)]
    pub(crate) fn leave(&self, cause: Cause) {
        let (kind, [a, b, c, d, e]) = cause.encode();
        self.leave_words(kind as u32, a, b, c, d, e);
    }

    outlined! {
        /// [`leave`](Self::leave), as a function of few scalar arguments: kernels wait in many places.
        pub(crate) fn leave_words(&self, kind: u32, a: u64, b: u64, c: u64, d: u64, e: u64) {
            let (words, control) = ([a, b, c, d, e], self.control());
            // SAFETY: the control block is mapped, as `Ctx::new` was promised; the claim makes this thread the record's only writer, and
            // others read it only after they have seen that it is told.
            unsafe {
                if arch::claim(&raw mut (*control).fault_state, FaultState::Empty as u32, FaultState::Claimed as u32) {
                    let record = &raw mut (*control).fault;
                    (&raw mut (*record).kind).write(kind);
                    (&raw mut (*record).launch).write(self.abi().launch);
                    (&raw mut (*record).block).write(self.lane.block());
                    (&raw mut (*record).thread).write(self.lane.thread());
                    (&raw mut (*record).words).write(words);
                    arch::fence();
                    arch::store(&raw mut (*control).fault_state, FaultState::Told as u32);
                    arch::claim(&raw mut (*control).abort, 0, Abort::Fault as u32);
                }
            }
        }
    }

    /// Whether the record is this thread's, and has no site yet.
    #[inline(always)]
    fn has_told(&self) -> bool {
        let control = self.control();
        // SAFETY: the context vouches for the control block. The record does not change while it is told, but for its site.
        unsafe {
            let told = arch::load(&raw const (*control).fault_state) == FaultState::Told as u32;
            arch::fence();
            let record = &raw const (*control).fault;
            told && arch::load(&raw const (*record).launch) == self.abi().launch
                && arch::load(&raw const (*record).block) == self.lane.block()
                && arch::load(&raw const (*record).thread) == self.lane.thread()
        }
    }

    outlined! {
        /// Leaves a record of a panic, if it is the first fault of this PE, and ends every wait of it; and then this thread's kernel.
        ///
        /// The thread exits and does not trap: a trap would take the context with it, and with that every PE and library that shares
        /// the process. Barriers do not wait for threads that have exited (PTX ISA, `exit`), and every poll sees the abort word. But a
        /// group polls by its leader: where that is the one who has exited, the others go on past the group's waits, to their kernel's
        /// end. So what this launch stores from here on is worth nothing, on its peers too; all of them hear that the world has failed.
        pub(crate) fn panicked_at(&self, said: &str, at: Option<&Location<'_>>) -> ! {
            self.leave(Cause::Panicked);
            if self.has_told() {
                let bytes = said.len().min(Said::TEXT);
                // SAFETY: the context vouches for the control block, and this thread is its record's only writer. The text has so many
                // bytes.
                unsafe {
                    let record = &raw mut (*self.control()).fault.said;
                    keep_text(said.as_ptr(), (&raw mut (*record).text).cast(), bytes);
                    arch::store(&raw mut (*record).bytes, bytes as u64);
                }
            }
            let (file, line, column) = at.map_or(("", 0, 0), |at| (at.file(), at.line(), at.column()));
            self.leave_from(file.as_ptr(), file.len(), u64::from(column) << 32 | u64::from(line))
        }
    }

    /// Leaves the record of a panic of a kernel that ran natively, as it would have on a GPU. For machines.
    #[cfg(not(target_arch = "nvptx64"))]
    #[doc(hidden)]
    pub fn panicked(&self, said: &str) -> ! {
        self.panicked_at(said, None)
    }

    outlined! {
        /// Adds the site to this thread's record, if it has one, and leaves the kernel. One function for all places that kernels end
        /// at, with few scalar arguments: they are many.
        pub(crate) fn leave_from(&self, file: *const u8, bytes: usize, column_and_line: u64) -> ! {
            if self.has_told() {
                let (control, kept) = (self.control(), bytes.min(Site::FILE));
                // SAFETY: the context vouches for the control block, and this thread is its record's only writer. The file's path has so
                // many bytes, as many as are kept, from where they begin.
                unsafe {
                    let site = &raw mut (*control).fault.site;
                    keep_text(file.add(bytes - kept), (&raw mut (*site).file).cast(), kept);
                    arch::store(&raw mut (*site).bytes, kept as u64);
                    arch::store(&raw mut (*site).line, column_and_line as u32);
                    arch::store(&raw mut (*site).column, (column_and_line >> 32) as u32);
                    arch::fence();
                    arch::store(&raw mut (*control).fault_state, FaultState::Complete as u32);
                }
            }
            self.lane.exit()
        }
    }

    #[inline(always)]
    fn control(&self) -> *mut Control {
        with_exposed_provenance_mut(self.abi().control as usize)
    }
}

/// Copies a text to a record.
///
/// # Safety
/// `bytes` bytes can be read at `from`, and stored at `to`, which is in a control block.
#[cold]
#[inline(never)]
pub(crate) unsafe fn keep_text(from: *const u8, to: *mut u8, bytes: usize) {
    for i in 0..bytes {
        // SAFETY: the caller's contract.
        unsafe { arch::store(to.add(i), arch::load(from.add(i))) };
    }
}
