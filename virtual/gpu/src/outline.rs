//! What a host has to know of a program that is executed elsewhere.

use std::collections::BTreeMap;

use congruent_verify::ptx::{InitialAddress, Space, Variable};
use serde::{Deserialize, Serialize};

use crate::decode;
use crate::program::{LoadError, Report};

/// What a host has to know of a program: the variables that it makes room for, and what kernels need.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outline {
    /// The variables that a device has to have room for, in order.
    pub globals: Vec<Global>,
    /// The names of the functions, in the order of their addresses.
    pub(crate) functions: Vec<String>,
    /// Bytes of shared memory that a block of a kernel has beside what a launch asks for.
    pub static_shared: BTreeMap<String, u64>,
}

/// A variable in the memory of a device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Global {
    /// Its name.
    pub name: String,
    /// What its address is a multiple of.
    pub align: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// Whether kernels may not write it: `.const`.
    pub is_const: bool,
    /// What it holds at first; what is behind these bytes is zero.
    pub initial: Vec<u8>,
    pub(crate) addresses: Vec<InitialAddress>,
}

impl Outline {
    /// What a variable holds at first, once it is known where all are: `at` has an address for each of
    /// [`globals`](Self::globals).
    pub fn initial(&self, global: usize, at: &[u64]) -> Vec<u8> {
        let Global { initial, addresses, bytes, .. } = &self.globals[global];
        let mut value = initial.clone();
        value.resize(*bytes as usize, 0);
        for place in addresses {
            let base = match self.globals.iter().position(|global| global.name == place.symbol) {
                Some(index) => at[index],
                None => {
                    self.functions.iter().position(|name| *name == place.symbol).map_or(0, decode::function_address)
                }
            };
            let word = base.wrapping_add_signed(place.offset) >> place.shift;
            let from = place.at as usize;
            value[from..from + place.bytes as usize].copy_from_slice(&word.to_le_bytes()[..place.bytes as usize]);
        }
        value
    }
}

impl Global {
    pub(crate) fn new(variable: &Variable, error: Report<'_>) -> Result<Self, LoadError> {
        let Some(bytes) = variable.bytes.filter(|_| !variable.is_extern) else {
            return Err(error(variable.span, format!("the variable `{}` is not defined here", variable.name)));
        };
        Ok(Self {
            name: variable.name.clone(),
            align: variable.align,
            bytes,
            is_const: variable.space == Space::Const,
            initial: variable.initial.clone(),
            addresses: variable.addresses.clone(),
        })
    }
}
