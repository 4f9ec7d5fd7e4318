//! What kernel authors call: put, get, signals, atomics, waits and groups, on the CPU and as PTX.
