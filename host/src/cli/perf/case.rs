//! What `perf` times: an operation with its buffers.

use serde::Serialize;

use super::measure::Work;
use crate::cli::failure::Failure;
use crate::{LaunchError, Stream, World};

/// A row's half: a size, out of place or in place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// Bytes of the message.
    pub(super) size: u64,
    /// Whether destination and source are one buffer.
    pub(super) in_place: bool,
}

/// How the columns name a case.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Labels {
    /// Bytes of one element.
    #[serde(skip)]
    pub(super) element: u64,
    /// The elements' type.
    #[serde(rename = "type")]
    pub(super) datatype: &'static str,
    /// The operator, `none` where nothing is combined.
    pub(super) redop: &'static str,
    /// The algorithm.
    pub(super) algorithm: &'static str,
    /// How data and signals travel.
    pub(super) protocol: &'static str,
    /// Whether there is an in-place half.
    #[serde(skip)]
    pub(super) in_place: bool,
    /// Whether all rounds run in one launch.
    pub(super) one_launch: bool,
}

impl Labels {
    /// One-sided operations on bytes, each in a kernel that repeats it.
    pub(super) fn one_sided(world: &World) -> Self {
        Self {
            element: 1,
            datatype: "none",
            redop: "none",
            algorithm: if is_proxied(world) { "proxy" } else { "direct" },
            protocol: "simple",
            in_place: false,
            one_launch: true,
        }
    }
}

/// Whether PEs reach each other through the proxy and not by load and store.
pub(super) fn is_proxied(world: &World) -> bool {
    world.shared().context().routes != 0
}

/// An operation with buffers for its longest message. All PEs make the same calls.
pub(super) trait Case {
    /// How the columns name it.
    fn labels(&self, world: &World) -> Labels;

    /// Fills this PE's buffers: the source with its pattern, the destination with zeros.
    fn prepare(&self, row: Row) -> Result<(), Failure>;

    /// Puts `rounds` rounds on the stream.
    fn launch(&self, world: &World, stream: &Stream, row: Row, rounds: u64) -> Result<(), LaunchError>;

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
