//! What PEs contribute to a reduction, and what it must give: whole numbers, so that the result is exact in whatever order
//! it is combined.

use congruent_collectives::Op;

use super::pattern::{Sample, number};

/// The scalar of a premul-sum.
pub(super) const SCALAR: u64 = 2;

/// The contributions to one reduction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Values {
    op: Op,
    npes: usize,
    /// All whole numbers up to this one are values of the type.
    exact: u64,
    /// So many factors of 2 make a product that is a value of the type.
    doublings: usize,
}

impl Values {
    /// For a type, where the result of so many PEs can be exact.
    pub(super) fn new<T: Sample>(op: Op, npes: usize) -> Option<Self> {
        let values = Self { op, npes, exact: T::EXACT, doublings: T::DOUBLINGS };
        (values.most() > 0).then_some(values)
    }

    /// The largest number that a PE contributes on average.
    fn most(&self) -> u64 {
        match self.op {
            Op::Sum | Op::Avg | Op::PreMulSum => self.exact / self.npes as u64,
            Op::Prod => 2,
            Op::Min | Op::Max | Op::And | Op::Or | Op::Xor => self.exact,
        }
    }

    /// Bits that every value has room for.
    fn bits(&self) -> u64 {
        u64::from((self.exact + 1).ilog2())
    }

    /// What PE `pe` contributes at `i`; never zero.
    pub(super) fn of(&self, pe: usize, i: usize) -> u64 {
        let most = self.most();
        match self.op {
            Op::Avg => self.around_the_mean(pe, i),
            Op::Prod if (pe + i) % self.npes >= self.doublings => 1,
            // All bits but one, which is never the lowest: so no result is zero.
            Op::And => ((1 << self.bits()) - 1) ^ (1 << number(pe, i, self.bits() - 1)),
            Op::Or => 1 << (number(pe, i, self.bits()) - 1),
            _ => number(pe, i, most),
        }
    }

    /// The mean is the same for all PEs; of a pair, one contributes as much more as the other contributes less.
    fn around_the_mean(&self, pe: usize, i: usize) -> u64 {
        let mean = self.mean(i);
        let aside = number(self.npes + pe / 2, i, mean) - 1;
        match pe % 2 {
            0 if pe + 1 == self.npes => mean,
            0 => mean + aside,
            _ => mean - aside,
        }
    }

    fn mean(&self, i: usize) -> u64 {
        number(2 * self.npes, i, self.most())
    }

    /// What all of them make of it; integers of the type take its low bits.
    pub(super) fn combined(&self, i: usize) -> u64 {
        let all = (0..self.npes).map(|pe| self.of(pe, i));
        let combine = match self.op {
            Op::Avg => return self.mean(i),
            Op::PreMulSum => return SCALAR * all.sum::<u64>(),
            Op::Sum => |a: u64, b: u64| a + b,
            Op::Prod => |a: u64, b: u64| a * b,
            Op::Min => |a: u64, b: u64| a.min(b),
            Op::Max => |a: u64, b: u64| a.max(b),
            Op::And => |a: u64, b: u64| a & b,
            Op::Or => |a: u64, b: u64| a | b,
            Op::Xor => |a: u64, b: u64| a ^ b,
        };
        all.reduce(combine).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use congruent_device::{Fp8E4M3, Fp8E5M2, SmallFloat, bf16, f16};

    fn exact<T: Sample>(widen: impl Fn(T) -> f64) {
        for npes in [1, 2, 3, 7, 16, 200] {
            for &op in Op::ALL.iter().filter(|op| !matches!(op, Op::And | Op::Or | Op::Xor)) {
                let Some(values) = Values::new::<T>(op, npes) else {
                    assert!(matches!(op, Op::Sum | Op::Avg | Op::PreMulSum) && npes as u64 > T::EXACT, "{op} {npes}");
                    continue;
                };
                for i in 0..2000 {
                    let expected = values.combined(i);
                    assert!(expected > 0);
                    assert_eq!(widen(T::sample(expected)), expected as f64, "{op} of {npes} PEs");
                    for pe in 0..npes {
                        let given = values.of(pe, i);
                        assert!(given > 0 && widen(T::sample(given)) == given as f64, "{op}: {given}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_result_is_exact_in_the_narrowest_types() {
        exact::<bf16>(bf16::to_f64);
        exact::<f16>(f16::to_f64);
        exact::<Fp8E4M3>(|value| f64::from(value.widen()));
        exact::<Fp8E5M2>(|value| f64::from(value.widen()));
    }

    #[test]
    fn the_mean_is_the_mean() {
        for npes in 1..9 {
            let values = Values::new::<f32>(Op::Avg, npes).unwrap();
            for i in 0..500 {
                let sum: u64 = (0..npes).map(|pe| values.of(pe, i)).sum();
                assert_eq!(sum, npes as u64 * values.combined(i));
            }
        }
    }

    #[test]
    fn a_pe_left_out_changes_the_result() {
        for &op in Op::ALL {
            let npes = 4;
            let values = Values::new::<i32>(op, npes).unwrap();
            for left_out in 0..npes {
                let differs = (0..1000).filter(|&i| {
                    let others = (0..npes).filter(|&pe| pe != left_out).map(|pe| values.of(pe, i));
                    let without = match op {
                        Op::Sum => others.sum(),
                        Op::Prod => others.product(),
                        Op::Min => others.min().unwrap(),
                        Op::Max => others.max().unwrap(),
                        Op::Avg => others.sum::<u64>() / npes as u64,
                        Op::PreMulSum => SCALAR * others.sum::<u64>(),
                        Op::And => others.reduce(|a, b| a & b).unwrap(),
                        Op::Or => others.reduce(|a, b| a | b).unwrap(),
                        Op::Xor => others.reduce(|a, b| a ^ b).unwrap(),
                    };
                    without != values.combined(i)
                });
                assert!(differs.count() > 150, "{op} without PE {left_out}");
            }
        }
    }
}
