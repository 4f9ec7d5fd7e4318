//! How control and values flow through a function.

mod address;
mod definitions;
mod divergence;
mod graph;
mod regions;
mod summaries;

pub(crate) use address::{Root, origin};
pub(crate) use definitions::{Definitions, spaces};
pub(crate) use divergence::Divergence;
pub(crate) use graph::Graph;
pub(crate) use summaries::Summaries;
