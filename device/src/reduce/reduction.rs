//! Reductions whose type and operator the host chooses when it launches a kernel: one kernel serves them all.

use super::{Datatype, Number, Op, Reducer};
use crate::bulk::Fold;
use crate::exchange::Exchanged;
use crate::{Fp8E4M3, Fp8E5M2, Group, MultimemReduction, Operands, arch, bf16, f16, kernel_arg};

kernel_arg! {
    /// An operator on elements of some type, as a kernel argument. It reduces buffers of bytes.
    #[derive(Debug, PartialEq, Eq)]
    pub struct Reduction {
        /// Type and operator, in a byte each: two fields in all, which functions take in registers.
        names: u64,
        /// The scalar of a premul-sum, as the bytes of an element.
        scalar: u64,
    }
}

/// A Rust type that has a [`Datatype`].
pub trait HasDatatype: Number {
    /// Its name.
    const DATATYPE: Datatype;
}

impl Reduction {
    /// `op` on elements of `T`, `None` where it does not exist: and, or and xor need integers. A premul-sum multiplies by
    /// `scalar`, which the others ignore.
    pub fn new<T: HasDatatype>(op: Op, scalar: Option<T>) -> Option<Self> {
        let mut bytes = [0; 8];
        if let Some(scalar) = &scalar {
            bytes[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(scalar));
        }
        let names = T::DATATYPE as u64 | (op as u64) << 8;
        op.supports(T::DATATYPE).then_some(Self { names, scalar: u64::from_ne_bytes(bytes) })
    }

    /// The sum of `T`s, which every type has.
    pub const fn sum<T: HasDatatype>() -> Self {
        Self { names: T::DATATYPE as u64 | (Op::Sum as u64) << 8, scalar: 0 }
    }

    /// What combines partial results of this one: of a premul-sum, a sum.
    #[must_use]
    pub const fn of_partials(self) -> Self {
        if self.op() as u8 == Op::PreMulSum as u8 {
            return Self { names: self.datatype() as u64 | (Op::Sum as u64) << 8, scalar: 0 };
        }
        self
    }

    /// The elements' type.
    #[inline(always)]
    pub const fn datatype(&self) -> Datatype {
        Datatype::from_raw(self.names as u32 & 0xff)
    }

    /// The operator.
    #[inline(always)]
    pub const fn op(&self) -> Op {
        Op::from_raw((self.names >> 8) as u32 & 0xff)
    }

    /// The scalar of a premul-sum.
    #[inline(always)]
    pub(crate) fn scalar<T: Number>(&self) -> T {
        bytemuck::pod_read_unaligned(&self.scalar.to_ne_bytes()[..size_of::<T>()])
    }

    /// All that it is, in two words.
    #[inline(always)]
    pub(crate) fn to_words(self) -> [u64; 2] {
        [self.names, self.scalar]
    }

    /// What [`to_words`](Self::to_words) was called on.
    #[inline(always)]
    pub(crate) fn from_words([names, scalar]: [u64; 2]) -> Self {
        Self { names, scalar }
    }
}

impl Reducer<u8> for Reduction {
    #[inline(always)]
    fn multimem(self, members: usize) -> Option<MultimemReduction> {
        self.op().multimem(self.datatype(), members)
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn fold<B: Group, D: Operands, S: Operands>(self, fold: &Fold<'_, B, D, S>) -> bool {
        // SAFETY: the caller's contract.
        unsafe { arch::fold_reduction(fold, self) }
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn receive<B: Group>(self, exchanged: &Exchanged<'_, B>) -> bool {
        // SAFETY: the caller's contract.
        unsafe { arch::receive_reduction(exchanged, self) }
    }
}

/// What an expression is for the Rust type of a [`Datatype`], which is an integer or a float.
macro_rules! for_datatype {
    ($datatype:expr, $integer:ident => $of_integer:expr, $float:ident => $of_float:expr) => {
        $crate::reduce::for_datatype!($datatype, $integer => $of_integer, $float => $of_float;
            I8: i8, U8: u8, I16: i16, U16: u16, I32: i32, U32: u32, I64: i64, U64: u64;
            F16: $crate::f16, Bf16: $crate::bf16, F32: f32, F64: f64, F8E4M3: $crate::Fp8E4M3, F8E5M2: $crate::Fp8E5M2)
    };
    ($datatype:expr, $integer:ident => $of_integer:expr, $float:ident => $of_float:expr;
        $($i:ident: $int:ty),*; $($f:ident: $flt:ty),*) => {
        match $datatype {
            $($crate::Datatype::$i => {
                type $integer = $int;
                $of_integer
            })*
            $($crate::Datatype::$f => {
                type $float = $flt;
                $of_float
            })*
        }
    };
}
pub(crate) use for_datatype;

macro_rules! has_datatype {
    ($($type:ty: $name:ident;)*) => {$(
        impl HasDatatype for $type {
            const DATATYPE: Datatype = Datatype::$name;
        }
    )*};
}

has_datatype! {
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
