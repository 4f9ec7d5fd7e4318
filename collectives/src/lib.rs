//! In-kernel collective algorithms, free of unsafe code.
