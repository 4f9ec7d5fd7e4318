//! Loops that wait by themselves, for what lanes of their own block store, say.

#[cfg(not(target_arch = "nvptx64"))]
use congruent_heap::abi::Cause;

use crate::Ctx;

/// Instead of the time since when a lane pauses.
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) const NOT_PAUSING: u64 = u64::MAX;

impl Ctx<'_> {
    /// Passes the time in a loop that waits for something by loads of its own. Every turn of such a loop calls it: on the CPU
    /// machine lanes of a block take turns, and only here and where they wait or meet does the next one get its turn. It ends the
    /// kernel of this thread where the launch is ending, as a wait does.
    ///
    /// ```
    /// use congruent_device::{Group, Sym, kernels};
    ///
    /// kernels! {
    ///     /// The last lane of a block stores what the first waits for.
    ///     pub fn pass_on(block, ctx, word: Sym<u32>) {
    ///         if block.rank() == block.size() - 1 {
    ///             ctx.store(word, 0, 1);
    ///         }
    ///         if block.leader() {
    ///             while ctx.load(word, 0) == 0 {
    ///                 ctx.pause();
    ///             }
    ///         }
    ///     }
    /// }
    /// ```
    ///
    /// # Ordering
    /// None. What it waits for is seen when a relaxed load sees it.
    ///
    /// # Errors
    /// On the CPU machine pauses that no wait of the library's comes between meet the deadline together, as one wait does: a fault
    /// then names the line. A kernel that only ever waits so, and for longer than the deadline, needs a longer one. On a GPU pauses
    /// end when the host, or a wait elsewhere, ends the launch.
    #[inline(always)]
    #[track_caller]
    pub fn pause(&self) {
        self.lane.pass();
        if self.aborted() || self.paused_too_long() {
            self.end();
        }
    }

    #[cfg(target_arch = "nvptx64")]
    #[inline(always)]
    fn paused_too_long(&self) -> bool {
        false
    }

    #[cfg(not(target_arch = "nvptx64"))]
    fn paused_too_long(&self) -> bool {
        let now = self.lane.now_ns();
        if self.pausing.get() == NOT_PAUSING {
            self.pausing.set(now);
        }
        let waited_ns = now - self.pausing.get();
        let late = waited_ns >= self.abi().deadline_ns;
        if late {
            self.leave(Cause::Pause { waited_ns });
        }
        late
    }
}
