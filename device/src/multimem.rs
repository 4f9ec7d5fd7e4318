//! What `multimem` instructions combine in the switch: types, operators, and reductions of them.

/// A type of numbers that `multimem` instructions combine.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MultimemType {
    /// `i32`.
    I32,
    /// `u32`.
    U32,
    /// `i64`.
    I64,
    /// `u64`.
    U64,
    /// `f16`, summed in `f32`.
    F16,
    /// `bf16`, summed in `f32`.
    Bf16,
    /// `f32`.
    F32,
    /// `f64`.
    F64,
}

/// An operator of `multimem` instructions.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MultimemOp {
    /// The sum.
    Sum,
    /// The minimum.
    Min,
    /// The maximum.
    Max,
    /// The bits that all have.
    And,
    /// The bits that any has.
    Or,
    /// The bits that an odd number has.
    Xor,
}

/// A reduction by `multimem` instructions, and what is done with its result before it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MultimemReduction {
    number: MultimemType,
    op: MultimemOp,
    /// What a sum is divided by; 0 for nothing.
    divisor: u32,
}

impl MultimemType {
    /// Whether it is an integer.
    pub const fn is_integer(self) -> bool {
        matches!(self, Self::U32 | Self::I32 | Self::U64 | Self::I64)
    }

    /// Bytes of the words that the instructions work on: of a number, or of two of 16 bits.
    #[inline(always)]
    pub const fn word(self) -> usize {
        // No match: the compiler makes it a table in memory, which a GPU would load incoherently.
        const WIDE: u32 = 1 << MultimemType::I64 as u32 | 1 << MultimemType::U64 as u32 | 1 << MultimemType::F64 as u32;
        4 << (WIDE >> self as u32 & 1)
    }
}

impl MultimemReduction {
    /// `op` on these numbers; `None` where no instruction does it. Of floats there are sums only: the minimum of 16-bit floats,
    /// for which there is an instruction, is not said to give the number beside a NaN or to tell the zeroes apart.
    #[inline(always)]
    pub const fn new(number: MultimemType, op: MultimemOp) -> Option<Self> {
        if number.is_integer() || matches!(op, MultimemOp::Sum) { Some(Self { number, op, divisor: 0 }) } else { None }
    }

    /// The same, divided by a number of members; integers truncate toward zero. `None` for what is no sum, and for floats of
    /// 16 bits, whose sum is rounded before it could be divided.
    #[inline(always)]
    pub const fn over(self, members: usize) -> Option<Self> {
        match (self.op, self.number) {
            (_, MultimemType::F16 | MultimemType::Bf16) => None,
            (MultimemOp::Sum, _) if members > 0 => Some(Self { divisor: members as u32, ..self }),
            _ => None,
        }
    }

    /// The numbers.
    #[inline(always)]
    pub const fn number(self) -> MultimemType {
        self.number
    }

    /// The operator.
    #[inline(always)]
    pub const fn op(self) -> MultimemOp {
        self.op
    }

    /// What a sum is divided by; 0 for nothing.
    #[inline(always)]
    pub const fn divisor(self) -> u32 {
        self.divisor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_summed_and_nothing_else() {
        use MultimemOp::{And, Max, Min, Or, Sum, Xor};
        use MultimemType::{Bf16, F16, F32, F64, I32, I64, U32, U64};
        for number in [U32, I32, U64, I64, F16, Bf16, F32, F64] {
            assert!(MultimemReduction::new(number, Sum).is_some());
            for op in [Min, Max, And, Or, Xor] {
                assert_eq!(MultimemReduction::new(number, op).is_some(), number.is_integer(), "{op:?} of {number:?}");
            }
        }
    }

    #[test]
    fn words_are_numbers_or_two_halves() {
        use MultimemType::{Bf16, F16, F32, F64, I32, I64, U32, U64};
        assert_eq!([I32, U32, F16, Bf16, F32].map(MultimemType::word), [4; 5]);
        assert_eq!([I64, U64, F64].map(MultimemType::word), [8; 3]);
    }

    #[test]
    fn only_sums_that_are_not_rounded_yet_are_divided() {
        let over =
            |number, op| MultimemReduction::new(number, op).and_then(|one| one.over(3)).map(MultimemReduction::divisor);
        assert_eq!(over(MultimemType::F32, MultimemOp::Sum), Some(3));
        assert_eq!(over(MultimemType::I64, MultimemOp::Sum), Some(3));
        assert_eq!(over(MultimemType::Bf16, MultimemOp::Sum), None);
        assert_eq!(over(MultimemType::U32, MultimemOp::Max), None);
        assert_eq!(MultimemReduction::new(MultimemType::F32, MultimemOp::Sum).and_then(|one| one.over(0)), None);
    }
}
