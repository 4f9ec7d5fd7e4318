//! One place where all threads of the virtual driver wait for each other.
//!
//! Whoever changes something that another thread may wait for calls [`changed`] afterwards; whoever waits looks again
//! each time. Tests have few threads, so that one condition variable for all is fast enough, and no wake-up is lost
//! between two of them.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

static TURN: Mutex<()> = Mutex::new(());
static CHANGED: Condvar = Condvar::new();

/// Wakes all who wait. Never called with a lock held: those who wait take locks while they hold this one.
pub(crate) fn changed() {
    let _turn = lock(&TURN);
    CHANGED.notify_all();
}

/// Waits until `look` finds what it looks for. `look` may take locks, and must not wait.
pub(crate) fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let mut turn = lock(&TURN);
    loop {
        if let Some(found) = look() {
            return found;
        }
        turn = CHANGED.wait(turn).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Takes a lock, also after a thread panicked with it: every structure here is whole between any two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn who_waits_sees_the_change() {
        static BOX: Mutex<Option<u32>> = Mutex::new(None);
        let giver = thread::spawn(|| {
            *lock(&BOX) = Some(7);
            changed();
        });
        assert_eq!(until(|| lock(&BOX).take()), 7);
        giver.join().unwrap();
    }
}
