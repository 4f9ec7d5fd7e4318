//! PTX text as a tree: what the rules look at.
//!
//! The parser knows the dialect that LLVM prints and the instructions congruent writes by hand. It takes nothing else:
//! The module `forms` lists every instruction, and one that is not there is an error instead of an unchecked instruction.

mod body;
mod cursor;
mod error;
mod forms;
mod lexer;
mod parser;
mod span;
mod syntax;
mod variable;

pub use error::ParseError;
pub use forms::spellings;
pub use parser::{parse, parse_heads};
pub use span::Span;
pub use syntax::{
    Body, Function, Guard, InitialAddress, Instruction, LaunchBounds, Module, Operand, Register, RegisterId,
    SourceLine, Space, Variable,
};
