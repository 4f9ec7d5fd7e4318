//! How control and values flow through a function.

mod address;
mod calls;
mod definitions;
mod divergence;
mod graph;
mod regions;

pub(crate) use address::{Root, origin};
pub(crate) use calls::Calls;
pub(crate) use definitions::{Definitions, spaces};
pub(crate) use divergence::Divergence;
pub(crate) use graph::Graph;
