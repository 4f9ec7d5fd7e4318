//! The commands of the `congruent` program.

pub mod run;
