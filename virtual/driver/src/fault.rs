//! Counting calls, and making some of them fail as the configuration asks.

use std::collections::BTreeMap;
use std::sync::Mutex;

use cudarc::driver::sys::CUresult;

use crate::config::{self, Fault};
use crate::monitor::lock;

/// How often each function was called so far. Failed calls count too, so that a number found in one run names the same
/// call in the next.
static CALLS: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

/// Counts a call, and tells with what it has to fail, if it has to.
pub(crate) fn count(function: &'static str) -> Option<CUresult> {
    let call = {
        let mut calls = lock(&CALLS);
        let call = calls.entry(function).or_default();
        *call += 1;
        *call
    };
    injected(&config::get().ok()?.faults, function, call)
}

/// How often `function` was called.
pub(crate) fn calls(function: &str) -> u64 {
    lock(&CALLS).get(function).copied().unwrap_or(0)
}

fn injected(faults: &[Fault], function: &str, call: u64) -> Option<CUresult> {
    let hit = |fault: &&Fault| fault.function == function && fault.call.is_none_or(|asked| asked == call);
    faults.iter().find(hit).map(|fault| fault.code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_asked_call_fails() {
        let code = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        let faults = [
            Fault { function: "a".to_owned(), call: Some(2), code },
            Fault { function: "b".to_owned(), call: None, code: CUresult::CUDA_ERROR_UNKNOWN },
        ];
        assert_eq!([1, 2, 3].map(|call| injected(&faults, "a", call)), [None, Some(code), None]);
        assert_eq!(injected(&faults, "b", 7), Some(CUresult::CUDA_ERROR_UNKNOWN));
        assert_eq!(injected(&faults, "c", 2), None);
    }
}
