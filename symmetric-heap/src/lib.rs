//! PEs, teams, symmetric objects, the offset allocator, and the ABI that host, kernel and proxy agree on.
