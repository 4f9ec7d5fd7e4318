//! Why a tuning table was refused.

use std::path::PathBuf;

use congruent_collectives::{Algorithm, Collective, Protocol};

use super::{COLUMNS, FORMAT};

/// Why a tuning table was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The file could not be read.
    #[error("cannot read the tuning table {}: {error}; set CONGRUENT_TUNING to a file that `congruent perf OP --tune FILE` wrote, or unset it", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The file could not be written.
    #[error("cannot write the tuning table {}: {error}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A line of the file, with what is wrong in it.
    #[error("{}:{line}: {problem}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What is wrong.
        problem: TableProblem,
    },
    /// Nothing in the file is about this machine.
    #[error("{} is about {found}, not about this machine, {machine}; measure here with `congruent perf OP --tune FILE`, or unset CONGRUENT_TUNING", path.display())]
    OtherMachine {
        /// The file.
        path: PathBuf,
        /// The machines in the file.
        found: String,
        /// This machine.
        machine: String,
    },
}

/// What is wrong in a line of a tuning table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableProblem {
    /// The first line is not that of a tuning table.
    #[error("this is no tuning table: the first line has to be `{expected}`")]
    NoTable {
        /// The line of this version.
        expected: String,
    },
    /// Another version wrote it.
    #[error("congruent {version} (format {format}) measured this, and this is {} (format {FORMAT}): measure again with `congruent perf OP --tune FILE`", env!("CARGO_PKG_VERSION"))]
    Version {
        /// The version that wrote it.
        version: String,
        /// Its format.
        format: String,
    },
    /// The columns are others.
    #[error("the columns have to be {}", COLUMNS.join(","))]
    Columns,
    /// The line has too few or too many fields.
    #[error("{found} fields; expected {}", COLUMNS.join(","))]
    Fields {
        /// How many there are.
        found: usize,
    },
    /// A field that cannot be read.
    #[error("{column} is `{value}`; expected {expected}")]
    Field {
        /// The column.
        column: &'static str,
        /// What stands there.
        value: String,
        /// What could.
        expected: String,
    },
    /// No such algorithm with that protocol for that collective.
    #[error("there is no {algorithm} {collective} with {protocol}")]
    NoSuchWay {
        /// The collective.
        collective: Collective,
        /// The algorithm.
        algorithm: Algorithm,
        /// The protocol.
        protocol: Protocol,
    },
    /// A row that an earlier line has already.
    #[error("an earlier line has a time for the same call already")]
    Twice,
}
