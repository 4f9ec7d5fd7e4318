//! What an execution's accesses read and write.

use super::model::Sources;
use super::program::{Access, Program, Register, Value, Written, mask};

/// The values of one execution.
#[derive(Clone, Debug, Default)]
pub(super) struct Values {
    /// What each access has read.
    pub(super) read: Vec<u64>,
    /// What each access has written; none if it is no write, such as a compare-and-swap that has failed.
    pub(super) written: Vec<Option<u64>>,
}

/// Why reads from these sources are no execution.
pub(super) struct OutOfThinAir;

#[derive(Clone, Copy)]
enum State {
    Unknown,
    /// Being computed: to need it is a cycle.
    Open,
    Known(Option<u64>),
}

struct Evaluation<'a> {
    program: &'a Program,
    sources: &'a Sources,
    written: Vec<State>,
}

/// Computes every value. A value that needs itself, through data or through a branch, comes out of thin air (PTX 8.10.4); so
/// does one from a write that does not happen.
pub(super) fn values(program: &Program, sources: &Sources) -> Result<Values, OutOfThinAir> {
    let mut evaluation = Evaluation { program, sources, written: vec![State::Unknown; program.events.len()] };
    let all = 0..program.events.len();
    let read = all.clone().map(|event| evaluation.read(event)).collect::<Result<_, _>>()?;
    let written = all.map(|event| evaluation.written(event)).collect::<Result<_, _>>()?;
    Ok(Values { read, written })
}

impl Values {
    pub(super) fn register(&self, register: &Register) -> u64 {
        let reads = register.reads.iter().map(|&read| self.read[read]);
        reads.reduce(|one, other| register.by.apply(one, other, 8)).unwrap_or(0)
    }
}

impl Evaluation<'_> {
    fn read(&mut self, event: usize) -> Result<u64, OutOfThinAir> {
        let Some(access) = self.program.events[event].access() else { return Ok(0) };
        let mut value = 0;
        for (index, &source) in self.sources[event].iter().enumerate() {
            let Some(source) = source else { continue };
            let cell = &self.program.cells[access.cells[index]].bytes;
            let (Some(from), Some(to)) = (self.first_byte(source), self.first_byte(event)) else { continue };
            let whole = self.written(source)?.ok_or(OutOfThinAir)?;
            value |= (whole >> (8 * (cell.start - from)) & mask(cell.end - cell.start)) << (8 * (cell.start - to));
        }
        Ok(value)
    }

    fn first_byte(&self, event: usize) -> Option<u32> {
        let cell = *self.program.events[event].access()?.cells.first()?;
        Some(self.program.cells[cell].bytes.start)
    }

    fn written(&mut self, event: usize) -> Result<Option<u64>, OutOfThinAir> {
        match self.written[event] {
            State::Known(value) => return Ok(value),
            State::Open => return Err(OutOfThinAir),
            State::Unknown => self.written[event] = State::Open,
        }
        let program = self.program;
        let value = match program.events[event].access() {
            Some(Access { writes: Some(written), size, .. }) => {
                for register in &program.events[event].depends {
                    self.register(register)?;
                }
                self.result(event, written, *size)?.map(|value| value & mask(*size))
            }
            _ => None,
        };
        self.written[event] = State::Known(value);
        Ok(value)
    }

    fn result(&mut self, event: usize, written: &Written, size: u32) -> Result<Option<u64>, OutOfThinAir> {
        match written {
            Written::Value(value) => self.value(value).map(Some),
            Written::Copy(read) => self.read(*read).map(Some),
            Written::Update(update, value) => {
                let old = if update.needs_old() { self.read(event)? } else { 0 };
                Ok(Some(update.apply(old, self.value(value)?, size)))
            }
            Written::Swap(compare, value) => {
                let is_equal = self.read(event)? == self.value(compare)? & mask(size);
                if is_equal { self.value(value).map(Some) } else { Ok(None) }
            }
        }
    }

    fn value(&mut self, value: &Value) -> Result<u64, OutOfThinAir> {
        match value {
            Value::Constant(value) => Ok(*value),
            Value::Register(register) => self.register(register),
        }
    }

    fn register(&mut self, register: &Register) -> Result<u64, OutOfThinAir> {
        let reads = register.reads.iter().map(|&read| self.read(read)).collect::<Result<Vec<_>, _>>()?;
        Ok(reads.into_iter().reduce(|one, other| register.by.apply(one, other, 8)).unwrap_or(0))
    }
}
