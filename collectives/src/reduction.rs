//! Reductions whose type and operator the host chooses when it launches a kernel: one kernel serves them all.

use congruent_device::{Ctx, Ends, FoldChoice, FoldJob, Fp8E4M3, Fp8E5M2, Group, LinkReduction, bf16, f16, kernel_arg};

use crate::reducer::{Reducer, Stage, Staged};
use crate::{
    AccumulateIn, Avg, BitAnd, BitOr, BitXor, Datatype, Integer, Max, Min, Number, Op, PreMulSum, Prod, ReduceOp, Sum,
};

kernel_arg! {
    /// An operator on elements of some type, as a kernel argument. It reduces buffers of bytes.
    #[derive(Debug, PartialEq, Eq)]
    pub struct Reduction {
        datatype: Datatype,
        op: Op,
        /// The scalar of a premul-sum, as the bytes of an element.
        scalar: u64,
    }
}

/// Which [`Datatype`] a Rust type is.
pub trait Typed: Number {
    /// Its name.
    const DATATYPE: Datatype;
}

impl Reduction {
    /// `op` on elements of `T`, `None` where it does not exist: and, or and xor need integers. A premul-sum multiplies by
    /// `scalar`, which the others ignore.
    pub fn new<T: Typed>(op: Op, scalar: Option<T>) -> Option<Self> {
        let mut bytes = [0; 8];
        if let Some(scalar) = &scalar {
            bytes[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(scalar));
        }
        op.supports(T::DATATYPE).then_some(Self { datatype: T::DATATYPE, op, scalar: u64::from_ne_bytes(bytes) })
    }

    /// The elements' type.
    pub const fn datatype(&self) -> Datatype {
        self.datatype
    }

    /// The operator.
    pub const fn op(&self) -> Op {
        self.op
    }
}

impl Reducer<u8> for Reduction {
    #[inline(always)]
    #[track_caller]
    fn fold(self, group: &impl Group, ctx: &Ctx<'_>, dst: impl Ends<u8>, src: impl Ends<u8>, stage: Stage) {
        ctx.fold_as(group, dst, src, Chosen { reduction: self, stage });
    }

    #[inline(always)]
    fn linked(self, members: usize) -> Option<LinkReduction> {
        self.op.linked(self.datatype, members)
    }
}

/// A reduction at a stage.
#[derive(Clone, Copy)]
struct Chosen {
    reduction: Reduction,
    stage: Stage,
}

impl FoldChoice for Chosen {
    #[inline(always)]
    fn run<J: FoldJob>(self, job: J) -> J::Output {
        match self.reduction.datatype {
            Datatype::I8 => self.integers::<i8, J>(job),
            Datatype::U8 => self.integers::<u8, J>(job),
            Datatype::I16 => self.integers::<i16, J>(job),
            Datatype::U16 => self.integers::<u16, J>(job),
            Datatype::I32 => self.integers::<i32, J>(job),
            Datatype::U32 => self.integers::<u32, J>(job),
            Datatype::I64 => self.integers::<i64, J>(job),
            Datatype::U64 => self.integers::<u64, J>(job),
            Datatype::F16 => self.floats::<f16, J>(job),
            Datatype::Bf16 => self.floats::<bf16, J>(job),
            Datatype::F32 => self.floats::<f32, J>(job),
            Datatype::F64 => self.floats::<f64, J>(job),
            Datatype::F8E4M3 => self.floats::<Fp8E4M3, J>(job),
            Datatype::F8E5M2 => self.floats::<Fp8E5M2, J>(job),
        }
    }

    #[inline(always)]
    fn encode(self) -> [u64; 3] {
        let Self { reduction, stage } = self;
        let first = reduction.datatype as u64
            | (reduction.op as u64) << OP
            | u64::from(stage.first_is_partial) << FIRST_IS_PARTIAL
            | u64::from(stage.rest_are_partial) << REST_ARE_PARTIAL;
        [first, reduction.scalar, u64::from(stage.finishes)]
    }

    #[inline(always)]
    fn decode([first, scalar, finishes]: [u64; 3]) -> Self {
        let stage = Stage {
            first_is_partial: first >> FIRST_IS_PARTIAL & 1 == 1,
            rest_are_partial: first >> REST_ARE_PARTIAL & 1 == 1,
            finishes: finishes as u32,
        };
        let datatype = Datatype::from_raw(first as u32 & 0xff);
        let op = Op::from_raw((first >> OP) as u32 & 0xff);
        Self { reduction: Reduction { datatype, op, scalar }, stage }
    }
}

/// Where the parts of a [`Chosen`] are in its first word.
const OP: u32 = 8;
const FIRST_IS_PARTIAL: u32 = 16;
const REST_ARE_PARTIAL: u32 = 17;

/// Whether a loop looks at the operator as it goes. A GPU gets such loops, one for each type: there they are as fast, as
/// memory decides, and one for each operator too would be ten times as much text as all kernels. A CPU gets one for each.
const ANY: bool = cfg!(target_arch = "nvptx64");

impl Chosen {
    #[inline(always)]
    fn integers<T: Integer, J: FoldJob>(self, job: J) -> J::Output {
        match self.reduction.op {
            op if ANY => self.with(job, AnyOfIntegers { op, scalar: self.scalar::<T>() }),
            Op::And => self.with::<T, J>(job, BitAnd),
            Op::Or => self.with::<T, J>(job, BitOr),
            Op::Xor => self.with::<T, J>(job, BitXor),
            _ => self.numbers::<T, J>(job),
        }
    }

    #[inline(always)]
    fn floats<T: Number, J: FoldJob>(self, job: J) -> J::Output {
        match self.reduction.op {
            op @ (Op::Min | Op::Max) if ANY => self.with::<T, J>(job, AnyExtreme { op }),
            op if ANY => self.with(job, AnyOfFloats { op, scalar: self.scalar::<T>() }),
            _ => self.numbers::<T, J>(job),
        }
    }

    #[inline(always)]
    fn numbers<T: Number, J: FoldJob>(self, job: J) -> J::Output {
        match self.reduction.op {
            Op::Prod => self.with::<T, J>(job, Prod),
            Op::Min => self.with::<T, J>(job, Min),
            Op::Max => self.with::<T, J>(job, Max),
            Op::Avg => self.with::<T, J>(job, Avg),
            Op::PreMulSum => self.with::<T, J>(job, PreMulSum(self.scalar::<T>())),
            // `Reduction::new` lets bitwise operators only to integers, so what is left here is the sum.
            Op::Sum | Op::And | Op::Or | Op::Xor => self.with::<T, J>(job, Sum),
        }
    }

    #[inline(always)]
    fn with<T: Number, J: FoldJob>(self, job: J, op: impl ReduceOp<T>) -> J::Output {
        job.run(&Staged { op, stage: self.stage })
    }

    /// The scalar of a premul-sum.
    #[inline(always)]
    fn scalar<T: Number>(self) -> T {
        bytemuck::pod_read_unaligned(&self.reduction.scalar.to_ne_bytes()[..size_of::<T>()])
    }
}

/// Any operator on integers, which are their own accumulators.
#[derive(Clone, Copy)]
struct AnyOfIntegers<T> {
    op: Op,
    scalar: T,
}

/// Sums and products of floats, and what is made of them.
#[derive(Clone, Copy)]
struct AnyOfFloats<T> {
    op: Op,
    scalar: T,
}

/// Minimum or maximum of floats, which is one of them.
#[derive(Clone, Copy)]
struct AnyExtreme {
    op: Op,
}

macro_rules! any_of {
    ($any:ident $(<$scalar:ident>)?, $bound:ident, $acc:ty, |$self:ident, $value:ident| $lift:expr, |$a:ident, $b:ident| $combine:expr,
        |$sum:ident, $members:ident| $finish:expr) => {
        impl<T: $bound> ReduceOp<T> for $any $(<$scalar>)? {
            type Acc = $acc;
            #[inline(always)]
            fn lift($self, value: T) -> $acc {
                let $value = AccumulateIn::<$acc>::into_acc(value);
                $lift
            }
            #[inline(always)]
            fn resume(self, partial: T) -> $acc {
                AccumulateIn::<$acc>::into_acc(partial)
            }
            #[inline(always)]
            fn combine($self, $a: $acc, $b: $acc) -> $acc {
                $combine
            }
            #[inline(always)]
            fn lower(self, acc: $acc) -> T {
                AccumulateIn::<$acc>::from_acc(acc)
            }
            #[inline(always)]
            fn finish($self, $sum: $acc, $members: usize) -> T {
                AccumulateIn::<$acc>::from_acc($finish)
            }
        }
    };
}

any_of! {
    AnyOfIntegers<T>, Integer, T,
    |self, value| if self.op == Op::PreMulSum { value.times(self.scalar) } else { value },
    |a, b| match self.op {
        Op::Prod => a.times(b),
        Op::Min => a.smaller(b),
        Op::Max => a.larger(b),
        Op::And => a.and(b),
        Op::Or => a.or(b),
        Op::Xor => a.xor(b),
        Op::Sum | Op::Avg | Op::PreMulSum => a.plus(b),
    },
    |sum, members| if self.op == Op::Avg { sum.over(members) } else { sum }
}

any_of! {
    AnyOfFloats<T>, Number, T::Acc,
    |self, value| if self.op == Op::PreMulSum { value.times(self.scalar.into_acc()) } else { value },
    |a, b| if self.op == Op::Prod { a.times(b) } else { a.plus(b) },
    |sum, members| if self.op == Op::Avg { sum.over(members) } else { sum }
}

any_of! {
    AnyExtreme, Number, T,
    |self, value| value,
    |a, b| if self.op == Op::Min { a.smaller(b) } else { a.larger(b) },
    |sum, _members| sum
}

macro_rules! typed {
    ($($type:ty: $name:ident;)*) => {$(
        impl Typed for $type {
            const DATATYPE: Datatype = Datatype::$name;
        }
    )*};
}

typed! {
    i8: I8;
    u8: U8;
    i16: I16;
    u16: U16;
    i32: I32;
    u32: U32;
    i64: I64;
    u64: U64;
    f16: F16;
    bf16: Bf16;
    f32: F32;
    f64: F64;
    Fp8E4M3: F8E4M3;
    Fp8E5M2: F8E5M2;
}
