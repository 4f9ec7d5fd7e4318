//! Handles: numbers that stand for objects of the driver.
//!
//! A number is given once in the life of a process and for one kind of object, so that a handle used after its end, or
//! as another kind, is found out, where a real driver would read freed memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::CUresult;

use crate::errors::Outcome;
use crate::monitor::lock;

/// Numbers are spaced as pointers would be, and stay away from 0, 1 and 2, which are streams with a meaning.
fn next() -> u64 {
    static NEXT: Mutex<u64> = Mutex::new(0x1000);
    let mut next = lock(&NEXT);
    *next += 16;
    *next
}

/// The objects of one kind.
pub(crate) struct Table<T>(Mutex<BTreeMap<u64, Arc<T>>>);

impl<T> Table<T> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// Makes an object that knows its own handle.
    pub(crate) fn add(&self, make: impl FnOnce(u64) -> T) -> (u64, Arc<T>) {
        let handle = next();
        let object = Arc::new(make(handle));
        lock(&self.0).insert(handle, object.clone());
        (handle, object)
    }

    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE`
    pub(crate) fn get(&self, handle: u64) -> Outcome<Arc<T>> {
        lock(&self.0).get(&handle).cloned().ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    /// Takes an object out; who still holds it may go on using it.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE`
    pub(crate) fn remove(&self, handle: u64) -> Outcome<Arc<T>> {
        lock(&self.0).remove(&handle).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    /// The first object that `chosen` says, with its handle.
    pub(crate) fn find(&self, chosen: impl Fn(&T) -> bool) -> Option<(u64, Arc<T>)> {
        lock(&self.0).iter().find(|(_, object)| chosen(object)).map(|(&handle, object)| (handle, object.clone()))
    }

    /// Takes out all that `chosen` says, in order of their making.
    pub(crate) fn remove_all(&self, chosen: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut table = lock(&self.0);
        let (gone, kept) = core::mem::take(&mut *table).into_iter().partition(|(_, object)| chosen(object));
        *table = kept;
        BTreeMap::into_values(gone).collect()
    }

    /// All that `chosen` says, in order of their making.
    pub(crate) fn all(&self, chosen: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        lock(&self.0).values().filter(|object| chosen(object)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_ends_and_never_comes_back() {
        let (names, numbers) = (Table::new(), Table::new());
        let (first, _) = names.add(|_| "first");
        assert_eq!(names.get(first).as_deref(), Ok(&"first"));
        assert_eq!(numbers.get(first), Err::<Arc<u32>, _>(CUresult::CUDA_ERROR_INVALID_HANDLE));
        names.remove(first).unwrap();
        assert_eq!(names.remove(first), Err(CUresult::CUDA_ERROR_INVALID_HANDLE));
        let (second, _) = names.add(|_| "second");
        assert_ne!(first, second);
        assert_eq!(names.remove_all(|name| *name == "third").len(), 0);
        assert_eq!(names.remove_all(|name| *name == "second").len(), 1);
        assert!(names.all(|_| true).is_empty());
    }
}
