//! Nothing but a test.
