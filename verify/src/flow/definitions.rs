//! Where registers get their values, and where variables are.

use std::collections::HashMap;

use crate::ptx::{Body, Instruction, RegisterId, Space, Variable};

/// The instructions that write each register, and the spaces of the variables that can be named.
pub(crate) struct Definitions<'a> {
    body: &'a Body,
    writers: Vec<Vec<usize>>,
    globals: &'a HashMap<&'a str, Space>,
    locals: HashMap<&'a str, Space>,
}

/// The state spaces of variables by name; of several with one name the first counts.
pub(crate) fn spaces(variables: &[Variable]) -> HashMap<&str, Space> {
    variables.iter().rev().map(|variable| (variable.name.as_str(), variable.space)).collect()
}

impl<'a> Definitions<'a> {
    pub(crate) fn new(globals: &'a HashMap<&'a str, Space>, body: &'a Body) -> Self {
        let mut writers = vec![Vec::new(); body.registers.len()];
        for (index, instruction) in body.instructions.iter().enumerate() {
            for register in instruction.written() {
                writers[register.0].push(index);
            }
        }
        Self { body, writers, globals, locals: spaces(&body.variables) }
    }

    /// The state space of a variable.
    pub(crate) fn space(&self, name: &str) -> Option<Space> {
        self.locals.get(name).or_else(|| self.globals.get(name)).copied()
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
