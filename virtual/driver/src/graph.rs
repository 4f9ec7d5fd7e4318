//! Graphs: what a capture recorded, and what can be launched of it.

use std::sync::Arc;

use crate::errors::Outcome;
use crate::handles::Table;
use crate::operation::Operation;

/// Nodes, in an order that they can be done in.
type Nodes = Arc<[Operation]>;

static GRAPHS: Table<Nodes> = Table::new();
static EXECUTABLE: Table<Nodes> = Table::new();

/// A graph of nodes.
pub(crate) fn create(nodes: Nodes) -> u64 {
    GRAPHS.add(|_| nodes).0
}

/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE`
pub(crate) fn destroy(graph: u64) -> Outcome {
    GRAPHS.remove(graph).map(drop)
}

/// A form of a graph that can be launched. It does not need the graph any more.
///
/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE`
pub(crate) fn instantiate(graph: u64) -> Outcome<u64> {
    let nodes = GRAPHS.get(graph)?;
    Ok(EXECUTABLE.add(|_| Nodes::clone(&nodes)).0)
}

/// What an executable graph does.
///
/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE`
pub(crate) fn nodes(executable: u64) -> Outcome<Nodes> {
    EXECUTABLE.get(executable).map(|nodes| Nodes::clone(&nodes))
}

/// Launches under way go on.
///
/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE`
pub(crate) fn destroy_executable(executable: u64) -> Outcome {
    EXECUTABLE.remove(executable).map(drop)
}
