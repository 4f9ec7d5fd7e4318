//! What a peer measured.

use core::fmt;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What is timed; `compare/sample.h` says how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// One 8-byte value to the other PE.
    PutValue,
    /// A buffer to the other PE, which waits.
    Put,
    /// A buffer to the other PE, from both at once.
    PutBoth,
    /// One of a thousand buffers to places of the other PE that are apart, all of which are awaited together.
    Tokens,
    /// A buffer within one process.
    Copy,
    /// An 8-byte atomic on the other PE.
    FetchAdd,
    /// An update by chance of the tables of all PEs, by all of them at once.
    Gups,
    /// Half the round trip of a message.
    SendRecv,
    /// The same, which one of a hundred exceeds.
    SendRecvLate,
    /// All PEs meet.
    Barrier,
    /// The sum of f32 on all PEs.
    AllReduce,
    /// PE 0's buffer to all.
    Broadcast,
    /// Every PE's part to all.
    AllGather,
    /// The sum of f32, a part of it to each PE.
    ReduceScatter,
    /// A part from every PE to every PE.
    AllToAll,
    /// Tokens to their experts and back.
    Moe,
}

/// A work at one size, by so many PEs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case {
    /// PEs of the job.
    pub pes: u32,
    /// What was timed.
    pub work: Work,
    /// Bytes of the buffer or message; 0 where there is none.
    pub bytes: u64,
}

/// One repeat of a work.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// What was timed.
    pub work: Work,
    /// PEs of the job.
    pub pes: u32,
    /// Bytes of the buffer or message; 0 where there is none.
    pub bytes: u64,
    /// Nanoseconds for one, the mean over the repeat's loop.
    pub ns: f64,
}

/// All repeats of a work at one size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// The fastest repeat, in nanoseconds.
    pub min: f64,
    /// The middle repeat, in nanoseconds.
    pub median: f64,
}

/// The summary of each case.
pub type Summaries = BTreeMap<Case, Summary>;

/// Gathers repeats.
pub fn summarize(samples: &[Sample]) -> Summaries {
    let mut repeats: BTreeMap<_, Vec<f64>> = BTreeMap::new();
    for sample in samples {
        let case = Case { pes: sample.pes, work: sample.work, bytes: sample.bytes };
        repeats.entry(case).or_default().push(sample.ns);
    }
    repeats.into_iter().map(|(of, mut ns)| (of, summary(&mut ns))).collect()
}

/// Of each case the fastest summary.
pub fn fastest<'a>(measured: impl IntoIterator<Item = &'a Summaries>) -> Summaries {
    let mut fastest = Summaries::new();
    for (&case, &summary) in measured.into_iter().flatten() {
        let least = fastest.entry(case).or_insert(summary);
        if summary.median < least.median {
            *least = summary;
        }
    }
    fastest
}

/// The summary of at least one time.
pub(crate) fn summary(ns: &mut [f64]) -> Summary {
    ns.sort_by(f64::total_cmp);
    Summary { min: ns[0], median: (ns[(ns.len() - 1) / 2] + ns[ns.len() / 2]) / 2.0 }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PutValue => "put_value",
            Self::Put => "put",
            Self::PutBoth => "put_both",
            Self::Tokens => "tokens",
            Self::Copy => "copy",
            Self::FetchAdd => "fetch_add",
            Self::Gups => "gups",
            Self::SendRecv => "send_recv",
            Self::SendRecvLate => "send_recv_late",
            Self::Barrier => "barrier",
            Self::AllReduce => "all_reduce",
            Self::Broadcast => "broadcast",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllToAll => "all_to_all",
            Self::Moe => "moe",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_become_least_and_middle() {
        let sample = |bytes, ns| Sample { work: Work::Put, pes: 2, bytes, ns };
        let case = |bytes| Case { pes: 2, work: Work::Put, bytes };
        let summaries = summarize(&[sample(8, 3.0), sample(64, 9.0), sample(8, 1.0), sample(8, 2.0), sample(8, 10.0)]);
        assert_eq!(summaries[&case(8)], Summary { min: 1.0, median: 2.5 });
        assert_eq!(summaries[&case(64)], Summary { min: 9.0, median: 9.0 });
    }
}
