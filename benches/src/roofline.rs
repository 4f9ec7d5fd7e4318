//! What the memory allows at most.
//!
//! In an all-reduce of S bytes between two PEs, each PE reads its half of both sources and writes it to both destinations: S
//! bytes read and S bytes written. That is what a PE moves that copies a buffer of S bytes to the other one while the other
//! does the same, so the fastest such copy, ours or libc's, is the time that an all-reduce cannot be expected to beat. It may
//! still do so by a little, because it reads less that the other core has in its cache.
//!
//! Tokens that go to experts are stored once at each PE that has some of theirs, and a row comes back from each: all PEs copy as
//! many bytes at once, at the speed that copies of a mebibyte have.

use crate::sample::{Case, Summaries, Summary, Work};
use crate::tokens;

/// What the table calls it.
pub const ROOFLINE: &str = "copy of as many bytes";

/// Smaller buffers stay in a core's caches, and there an all-reduce is bound by how cores fetch each other's lines.
const SMALLEST: u64 = 4 << 20;

/// Bytes of the copy whose speed counts for tokens.
const COPY: u64 = 1 << 20;

/// The least time of an all-reduce of each size, and of an exchange of tokens, from what peers measured.
pub fn roofline<'a>(measured: impl IntoIterator<Item = &'a Summaries>) -> Summaries {
    let mut least = Summaries::new();
    for (case, summary) in measured.into_iter().flatten() {
        let mut limit = |work, bytes, summary: Summary| {
            let fastest = least.entry(Case { work, bytes, ..*case }).or_insert(summary);
            if summary.median < fastest.median {
                *fastest = summary;
            }
        };
        if case.work == Work::PutBoth && case.bytes >= SMALLEST {
            limit(Work::AllReduce, case.bytes, *summary);
        }
        if case.work == Work::PutBoth && case.bytes == COPY {
            let times = tokens::moved(case.pes as usize) as f64 / COPY as f64;
            let summary = Summary { min: times * summary.min, median: times * summary.median };
            limit(Work::Moe, tokens::BYTES, summary);
        }
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Summary;

    #[test]
    fn the_fastest_copy_of_large_buffers_counts() {
        let times = |ns: f64| {
            let both = |bytes| Case { pes: 2, work: Work::PutBoth, bytes };
            let summary = Summary { min: ns, median: ns };
            let put = Case { work: Work::Put, ..both(4 << 20) };
            Summaries::from([
                (both(4 << 20), summary),
                (both(1 << 10), summary),
                (put, Summary { min: 0.0, median: 0.0 }),
            ])
        };
        let least = roofline([&times(30.0), &times(20.0), &times(40.0)]);
        let all_reduce = Case { pes: 2, work: Work::AllReduce, bytes: 4 << 20 };
        assert_eq!(least, Summaries::from([(all_reduce, Summary { min: 20.0, median: 20.0 })]));
    }
}
