//! How control and values flow through a function.

mod address;
mod definitions;
mod divergence;
mod graph;

pub(crate) use address::{Root, origin};
pub(crate) use definitions::Definitions;
pub(crate) use divergence::Divergence;
pub(crate) use graph::Graph;
