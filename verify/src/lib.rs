//! Checks device code without a GPU: the PTX linter, and [litmus tests](litmus) of the PTX memory model.
//!
//! What rustc makes of correct Rust can still be wrong on a GPU, in ways that no test on the CPU sees: orders and scopes that
//! the code generator drops, barriers that it copies into divergent branches, loads that bypass coherence. The linter reads
//! the PTX itself and knows what congruent promises about it. Each [`Rule`] says what goes wrong and what to write instead.
//!
//! ```
//! use congruent_verify::{lint, ptx};
//!
//! let module = ptx::parse(".version 8.4 .target sm_90 .address_size 64 .entry k() { membar.gl; ret; }")?;
//! assert_eq!(lint(&module)[0].rule.id, "default-scope-fence");
//! # Ok::<(), ptx::ParseError>(())
//! ```
#![forbid(unsafe_code)]

mod allow;
mod flow;
pub mod lines;
pub mod litmus;
pub mod ptx;
mod report;
mod rules;

pub use report::{LintError, Report, lint_file};
pub use rules::{Finding, RULES, Rule, lint};
