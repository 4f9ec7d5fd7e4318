//! Waiting for whichever of several signals comes first.

use congruent_heap::abi::NO_PE;
use congruent_heap::refuse;
use congruent_heap::{Awaited, Pe, Signal};

use crate::poll::reaches;
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
        let (mut found, mut failed) = (0, false);
        if group.leader() {
            let Some((first, value)) = (0..count).find_map(&each) else {
                refuse!("none of these signals is awaited");
            };
            let ready =
                |i: &usize| each(*i).is_some_and(|(awaited, value)| reaches(self.signal_value(awaited.word()), value));
            let arrived = || match (0..count).find(ready) {
                Some(i) => {
                    found = i;
                    true
                }
                None => false,
            };
            // A lane that sleeps does so on the first word only, and looks at all of them after its nap.
            let offset = first.word().elem(0).offset();
            failed = !self.poll(self.word(offset, self.pe()), self.abi().deadline_ns, arrived, |expiry| {
                self.timed_out(expiry, offset, first.from().map_or(NO_PE, Pe::raw), value);
            });
        }
        self.join(group, failed);
        group.broadcast(found as u64) as usize
    }
}
