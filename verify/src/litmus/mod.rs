//! Litmus tests of the PTX memory model: what a few instructions on a few threads may see.
//!
//! The checker goes through every execution of a test, that is, through every choice of the write that each read reads, of the
//! order of the `fence.sc`, and of the coherence order of writes, and asks the axioms of the PTX ISA's chapter "Memory
//! Consistency Model" (8.1 to 8.10) whether it may happen. It decides; it does not sample, and it knows nothing of hardware.
//!
//! # Tests
//!
//! One thing a line; `#` begins a comment. A file holds any number of tests.
//!
//! ```text
//! test signal                     # its name
//! thread P0 gpu 0 cta 0           # a thread, where it is, and its instructions
//!     st.weak.u64 [x], 1;
//!     st.release.sys.u64 [flag], 1;
//! thread P1 gpu 1 cta 0
//!     ld.acquire.sys.u64 r0, [flag];
//!     assume r0 == 1              # only executions in which this is so: a loop that waits has ended
//!     ld.weak.u64 r1, [x];
//! exists r1 == 0                  # the outcome that is asked for
//! expect forbidden                # or allowed, or void
//! rules 8.8 8.10.6                # what decides
//!
//! variant relaxed                 # the test before it, changed; its name is signal/relaxed
//!     P0: st.release.sys.u64 [flag], 1 => st.relaxed.sys.u64 [flag], 1
//! expect allowed
//! rules 8.8
//! ```
//!
//! | line | meaning |
//! |---|---|
//! | `thread N gpu 0 cluster 0 cta 0 warp 0` | what is not said is 0; `thread N host` is a thread of the host program |
//! | `alias y x` | `y` is a second virtual address of `x` |
//! | `multimem m x y` | `m` is a multicast address of `x` and `y` |
//! | `pieces x 4` | accesses of `x` may tear into pieces of 4 bytes, where the model lets them |
//! | `promise P` | what hardware does beyond PTX: `ll128_128b_ordered`, `v4_16b_atomic` |
//! | `assume`, `exists` | comparisons of registers, and in `exists` of final values as in `[x+8] == 1`, joined by `&&`; in `exists` also by `\|\|` |
//! | `P: OLD => NEW` | in a variant: this instruction of P becomes `NEW`, which may be none or several; `P/2:` is the second of those that are alike |
//!
//! A variant may also give `thread` lines, which move a thread, an `exists` of its own, and promises. Instructions are PTX, with
//! names for addresses and registers; a register is filled once in a test. All memory holds 0 at first. Understood are `ld`, `st`,
//! `atom`, `red`, `fence`, `membar`, `bar`, `barrier`, `multimem`, and the bulk copies `cp.async.bulk` within memory, with their
//! waits. Values are unsigned integers, whatever type an instruction names.
//!
//! # Verdicts
//!
//! *Forbidden*: no execution has the outcome. *Allowed*: one has, and is shown. *Void*: an execution has a race of accesses that
//! overlap in part, and then the axioms say nothing about the program (8.7.2).
//!
//! What is not modelled: texture and surface accesses, `mbarrier`, scalars of more than 64 bits (which the model does not know
//! either), and loops.

mod error;
mod instructions;
mod model;
mod outcome;
mod parse;
mod program;
mod relation;
mod rule;
mod search;
mod values;

pub use error::Error;
pub use outcome::{Outcome, Placed, Test, Verdict, Witness, table};
pub use parse::parse;
pub use rule::Rule;
