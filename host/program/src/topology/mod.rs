//! What a machine is made of: NUMA nodes, GPUs and network cards, and the PCI tree that joins them.
//!
//! It is read from `/sys` and `/proc`, and for GPUs from the driver's library where there is one. Whatever cannot be read
//! is unknown, never an error: containers hide most of it. [`xml`] has the format that NCCL reads and writes, so that its
//! files can be looked at here and ours can be given to it; [`paths`] says how far devices are from each other.
//!
//! ```text
//! sysfs -> cpu, net, pci -> Topology <-> xml
//!          nvml -> gpu  ----^   |
//!                               +-> tree (text), paths (classes of pairs)
//! ```

mod cpu;
mod cpu_set;
mod detect;
#[cfg(test)]
mod fake;
mod gpu;
mod model;
mod net;
mod nvml;
pub(crate) mod paths;
mod pci;
mod sysfs;
mod tree;
pub(crate) mod xml;

pub(crate) use model::Topology;
