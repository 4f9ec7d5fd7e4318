//! Where registers get their values.

use crate::ptx::{Body, Instruction, RegisterId, Variable};

/// The instructions that write each register.
pub(crate) struct Definitions<'a> {
    body: &'a Body,
    writers: Vec<Vec<usize>>,
}

impl<'a> Definitions<'a> {
    pub(crate) fn new(body: &'a Body) -> Self {
        let mut writers = vec![Vec::new(); body.registers.len()];
        for (index, instruction) in body.instructions.iter().enumerate() {
            for register in instruction.written() {
                writers[register.0].push(index);
            }
        }
        Self { body, writers }
    }

    /// The variables of the function.
    pub(crate) fn body_variables(&self) -> &'a [Variable] {
        &self.body.variables
    }

    /// How many instructions write `register`.
    pub(crate) fn count(&self, register: RegisterId) -> usize {
        self.writers[register.0].len()
    }

    /// The one instruction that writes `register`, if it is one.
    pub(crate) fn only(&self, register: RegisterId) -> Option<&'a Instruction> {
        match self.writers[register.0].as_slice() {
            &[index] => self.body.instructions.get(index),
            _ => None,
        }
    }
}
