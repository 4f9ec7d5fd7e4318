//! What every machine must do, whatever it is: one suite, run on each.
//!
//! A family is a function over a world that launches the kernels of `congruent-test-kernels` and asserts what must come of
//! them. It knows nothing of the machine, so the same function runs with PEs as threads and as processes, at any width.
//! The binaries `conformance_*` in `tests/` name the families and the machines; a new machine is one more of these.

mod arithmetic;
mod atomics;
mod buffers;
mod bulk;
mod collectives;
mod direct;
mod expected;
mod faults;
mod flags;
mod gradients;
mod groups;
mod hosts;
mod in_kernel;
mod lanes;
mod levels;
mod limit;
mod machines;
mod matrix;
mod misuse;
mod mixed;
mod model;
mod moe;
mod multicast;
mod norm;
mod ordering;
mod orders;
mod pattern;
mod prints;
mod rma;
mod shared;
mod signals;
mod streams;
mod sweep;
mod teams;
mod vectors;
mod ways;

pub use arithmetic::arithmetic;
pub use atomics::{atomics, nic_words};
pub use buffers::buffers;
pub use bulk::bulk;
pub use collectives::collectives;
pub use direct::direct;
pub use faults::{dead, deadline};
pub use flags::{flags, protocols};
pub use gradients::moe_gradients;
pub use groups::groups;
pub use hosts::{cuda_hosts, fabric, fabric_by, hosts, verbs, verbs_gpus, verbs_hosts};
pub use in_kernel::in_kernel;
pub use lanes::lanes;
pub use levels::levels;
pub use limit::LIMIT;
pub use machines::{
    CONFORMS, MEASURED, Shape, all_shapes, cuda, cuda_processes, cuda_threads, faulty, few_shapes, is_child, processes,
    processes_with_multicast, proxied, threads, threads_with_multicast,
};
pub use matrix::matrix;
pub use misuse::{misuse, waits_in_vain};
pub use mixed::mixed;
pub use moe::{moe, moe_exchanges, moe_graphs, moe_rounds};
pub use multicast::multicast;
pub use norm::norm;
pub use ordering::ordering;
pub use prints::prints;
pub use rma::rma;
pub use shared::shared;
pub use signals::signals;
pub use streams::{groups_in_flight, streams, unanswered, unposted};
pub use teams::{large_teams, teams};
pub use ways::{Args, Site, Way};
