//! What `perf` times: an operation with its buffers.

use serde::Serialize;

use super::ways::Way;
use crate::failure::Failure;
use congruent::{Stream, World};

/// A row's half: a size, out of place or in place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// Bytes of the message.
    pub(super) size: u64,
    /// Whether destination and source are one buffer.
    pub(super) in_place: bool,
    /// How it is done.
    pub(super) way: Way,
}

/// Launches, and the rounds of each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Work {
    /// Launches, one after the other.
    pub(super) launches: u64,
    /// Rounds of each.
    pub(super) rounds: u64,
}

impl Work {
    pub(super) fn total(self) -> u64 {
        self.launches * self.rounds
    }
}

/// How the columns name a case.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Labels {
    /// Bytes of one element of each part.
    #[serde(skip)]
    pub(super) unit: u64,
    /// The elements' type.
    #[serde(rename = "type")]
    pub(super) datatype: &'static str,
    /// The operator, `none` where nothing is combined.
    pub(super) redop: &'static str,
    /// The root, -1 where there is none.
    pub(super) root: i64,
    /// Whether there is an in-place half.
    #[serde(skip)]
    pub(super) in_place: bool,
}

impl Labels {
    /// One-sided operations on bytes.
    pub(super) const ONE_SIDED: Self = Self { unit: 1, datatype: "none", redop: "none", root: -1, in_place: false };
}

/// How a row's bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Path {
    /// The algorithm.
    pub(super) algorithm: &'static str,
    /// How data and signals travel.
    pub(super) protocol: &'static str,
    /// Whether a communicator's user gets this without asking.
    pub(super) chosen: bool,
    /// Bytes that the busiest PE moves, with flags.
    pub(super) wire_bytes: u64,
}

impl Path {
    /// Of a one-sided operation.
    pub(super) fn one_sided(world: &World, protocol: &'static str, wire_bytes: u64) -> Self {
        let algorithm = if world.is_proxied() { "proxy" } else { "direct" };
        Self { algorithm, protocol, chosen: true, wire_bytes }
    }
}

/// An operation with buffers for its longest message. All PEs make the same calls.
pub(super) trait Case {
    /// How the columns name it.
    fn labels(&self) -> Labels;

    /// The rows of a sweep, out of place.
    fn rows(&self, sizes: &[u64]) -> Result<Vec<Row>, Failure> {
        Ok(sizes.iter().map(|&size| Row { size, in_place: false, way: Way::ONLY }).collect())
    }

    /// What tuning tables call the machine, for what can be tuned.
    fn tuning_machine(&self) -> Option<String> {
        None
    }

    /// How a row's bytes travel.
    fn path(&self, world: &World, row: Row) -> Path;

    /// Fills this PE's buffers: the source with its pattern, the destination with zeros.
    fn prepare(&self, row: Row) -> Result<(), Failure>;

    /// Puts `rounds` rounds on the stream.
    fn launch(&self, world: &World, stream: &Stream, row: Row, rounds: u64) -> Result<(), Failure>;

    /// How many elements of this PE are not what `work` on prepared buffers gives; `None` where nothing is moved.
    fn wrong(&self, row: Row, work: Work) -> Result<Option<u64>, Failure>;

    /// Whether many rounds give the same as one.
    fn repeats(&self, row: Row) -> bool {
        !row.in_place
    }

    /// Messages that follow each other in a round: time and bandwidth are of one.
    fn messages(&self) -> u64 {
        1
    }

    /// What nccl-tests multiplies the bandwidth with, to compare it with the links'.
    fn bus_factor(&self) -> f64 {
        1.0
    }
}
