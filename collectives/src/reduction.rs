//! Reductions whose type and operator the host chooses when it launches a kernel: one kernel serves them all.

use congruent_device::{Ctx, Ends, FoldChoice, FoldJob, Fp8E4M3, Fp8E5M2, Group, KernelArg, bf16, f16};

use crate::reducer::{Reducer, Stage, Staged};
use crate::{Avg, BitAnd, BitOr, BitXor, Datatype, Integer, Max, Min, Number, Op, PreMulSum, Prod, ReduceOp, Sum};

/// An operator on elements of some type, as a kernel argument. It reduces buffers of bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduction {
    datatype: Datatype,
    op: Op,
    /// The scalar of a premul-sum, as the bytes of an element.
    scalar: u64,
}

impl KernelArg for Reduction {
    fn fits(&self, _heap_bytes: u64) -> bool {
        true
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
    fn fold(self, group: &impl Group, ctx: &Ctx<'_>, dst: impl Ends<u8>, src: impl Ends<u8>, stage: Stage) {
        ctx.fold_as(group, dst, src, Chosen { reduction: self, stage });
    }
}

/// A reduction at a stage.
struct Chosen {
    reduction: Reduction,
    stage: Stage,
}

impl FoldChoice for Chosen {
    #[inline(always)]
    fn run(self, job: impl FoldJob) -> bool {
        match self.reduction.datatype {
            Datatype::I8 => self.integers::<i8>(job),
            Datatype::U8 => self.integers::<u8>(job),
            Datatype::I16 => self.integers::<i16>(job),
            Datatype::U16 => self.integers::<u16>(job),
            Datatype::I32 => self.integers::<i32>(job),
            Datatype::U32 => self.integers::<u32>(job),
            Datatype::I64 => self.integers::<i64>(job),
            Datatype::U64 => self.integers::<u64>(job),
            Datatype::F16 => self.numbers::<f16>(job),
            Datatype::Bf16 => self.numbers::<bf16>(job),
            Datatype::F32 => self.numbers::<f32>(job),
            Datatype::F64 => self.numbers::<f64>(job),
            Datatype::F8E4M3 => self.numbers::<Fp8E4M3>(job),
            Datatype::F8E5M2 => self.numbers::<Fp8E5M2>(job),
        }
    }
}

impl Chosen {
    #[inline(always)]
    fn integers<T: Integer>(self, job: impl FoldJob) -> bool {
        match self.reduction.op {
            Op::And => self.with::<T>(job, BitAnd),
            Op::Or => self.with::<T>(job, BitOr),
            Op::Xor => self.with::<T>(job, BitXor),
            _ => self.numbers::<T>(job),
        }
    }

    #[inline(always)]
    fn numbers<T: Number>(self, job: impl FoldJob) -> bool {
        match self.reduction.op {
            Op::Prod => self.with::<T>(job, Prod),
            Op::Min => self.with::<T>(job, Min),
            Op::Max => self.with::<T>(job, Max),
            Op::Avg => self.with::<T>(job, Avg),
            Op::PreMulSum => {
                let scalar = self.reduction.scalar.to_ne_bytes();
                self.with::<T>(job, PreMulSum(bytemuck::pod_read_unaligned::<T>(&scalar[..size_of::<T>()])))
            }
            // `Reduction::new` lets bitwise operators only to integers, so what is left here is the sum.
            Op::Sum | Op::And | Op::Or | Op::Xor => self.with::<T>(job, Sum),
        }
    }

    #[inline(always)]
    fn with<T: Number>(self, job: impl FoldJob, op: impl ReduceOp<T>) -> bool {
        job.run(&Staged { op, stage: self.stage })
    }
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
