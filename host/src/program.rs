//! What the program `congruent` needs of the inside. It is for that program alone and changes without notice.

pub use crate::cuda::connections::{VARIABLE as CONNECTIONS, advised as advised_connections, mps_listens};
pub use crate::cuda::{Driver, Functions, Properties};
