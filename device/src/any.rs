//! Waiting for several signals, each with a value of its own: for the first, for some, for all.

use congruent_heap::refuse;
use congruent_heap::{Awaited, Signal};

use crate::poll::reaches;
use crate::wait::sender;
use crate::{Ctx, Group};

impl Ctx<'_> {
    /// Waits until one of `count` signals has reached its value, and gives its number to every thread; of several, the first.
    /// `each` gives signal and value of number `i`, `None` for one that is not awaited now.
    ///
    /// # Ordering
    /// Acquire (MM-3), as [`wait_at_least`](Ctx::wait_at_least).
    ///
    /// # Panics
    /// Where none is awaited.
    #[inline(always)]
    #[track_caller]
    pub fn wait_first(
        &self,
        group: &impl Group,
        count: usize,
        each: impl Fn(usize) -> Option<(Awaited<Signal>, u64)>,
    ) -> usize {
        let mut found = 0;
        if group.leader() {
            let Some((first, value)) = (0..count).find_map(&each) else {
                refuse!("none of these signals is awaited");
            };
            let arrived = || match (0..count).find(|&i| self.has_reached(each(i))) {
                Some(i) => {
                    found = i;
                    true
                }
                None => false,
            };
            // A lane that sleeps does so on the first word only, and looks at all of them after its sleep.
            let offset = first.word().elem(0).offset();
            let came = self.poll(self.word(offset, self.pe()), None, self.abi().deadline_ns, arrived, |expiry| {
                self.timed_out(expiry, offset, sender(first), value);
            });
            found = if came { found } else { count };
        }
        let found = group.broadcast(found as u64) as usize;
        self.end_unless(found < count);
        found
    }

    /// Waits until some of `count` signals have reached their values, and gives the number of each that has to `reached`, on every
    /// thread, in order; then how many they are. `each` is as for [`wait_first`](Ctx::wait_first), and tells every thread the same.
    ///
    /// # Ordering
    /// Acquire (MM-3), as [`wait_at_least`](Ctx::wait_at_least).
    ///
    /// # Panics
    /// Where none is awaited.
    ///
    /// ```
    /// use congruent_device::{Group, Signal, Sym, kernels};
    ///
    /// kernels! {
    ///     /// Sums up what up to 64 PEs sent, each part as soon as it is here.
    ///     pub fn gather(block, ctx, parts: Sym<u64>, arrived: Sym<Signal>, round: u64, sum: Sym<u64>) {
    ///         let (n, mut done, mut all) = (arrived.len(), 0u64, 0);
    ///         while done.count_ones() < n as u32 {
    ///             let before = done;
    ///             let awaited = |i: usize| (before >> i & 1 == 0).then(|| (arrived.elem(i).into(), round));
    ///             ctx.wait_some(block, n, awaited, |i| {
    ///                 done |= 1 << i;
    ///                 all += ctx.load(parts, i);
    ///             });
    ///         }
    ///         if block.leader() { ctx.store(sum, 0, all); }
    ///     }
    /// }
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn wait_some(
        &self,
        group: &impl Group,
        count: usize,
        each: impl Fn(usize) -> Option<(Awaited<Signal>, u64)>,
        reached: impl FnMut(usize),
    ) -> usize {
        self.wait_first(group, count, &each);
        self.test_some(group, count, each, reached)
    }

    /// [`wait_some`](Ctx::wait_some) that does not wait: gives those that have reached their values now, which may be none.
    ///
    /// # Ordering
    /// Acquire, of those that it gives (MM-3).
    #[inline(always)]
    #[track_caller]
    pub fn test_some(
        &self,
        group: &impl Group,
        count: usize,
        each: impl Fn(usize) -> Option<(Awaited<Signal>, u64)>,
        mut reached: impl FnMut(usize),
    ) -> usize {
        let mut found = 0;
        for first in (0..count).step_by(64) {
            let mut these = 0;
            if group.leader() {
                for i in first..count.min(first + 64) {
                    these |= u64::from(self.has_reached(each(i))) << (i - first);
                }
            }
            // All threads have the leader's, who acquired them.
            let mut these = group.broadcast(these);
            found += these.count_ones() as usize;
            while these != 0 {
                reached(first + these.trailing_zeros() as usize);
                these &= these - 1;
            }
        }
        found
    }

    /// Waits until all of `count` signals have reached their values; the group shares the work. `each` is as for
    /// [`wait_first`](Ctx::wait_first).
    ///
    /// # Ordering
    /// Acquire (MM-3), as [`wait_at_least`](Ctx::wait_at_least).
    #[inline(always)]
    #[track_caller]
    pub fn wait_each(&self, group: &impl Group, count: usize, each: impl Fn(usize) -> Option<(Awaited<Signal>, u64)>) {
        let mut failed = false;
        for i in group.strided(count) {
            if let Some((awaited, value)) = each(i) {
                failed = failed || !self.reached(awaited.word().elem(0).offset(), sender(awaited), value);
            }
        }
        self.join(group, failed);
    }

    #[inline(always)]
    #[track_caller]
    fn has_reached(&self, awaited: Option<(Awaited<Signal>, u64)>) -> bool {
        awaited.is_some_and(|(awaited, value)| reaches(self.signal_value(awaited.word()), value))
    }
}
