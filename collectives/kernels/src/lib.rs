//! The fixed kernels that host collectives launch, and their PTX.
