//! The names of element types and operators, as they are printed, parsed and passed to kernels.

use crate::{MultimemOp, MultimemReduction, MultimemType};

/// Whether a text means what has this name: in any case, with or without its hyphens or with underscores in their place.
#[doc(hidden)]
pub fn is_named(name: &str, text: &str) -> bool {
    fn letters(text: &str) -> impl Iterator<Item = u8> {
        text.bytes().filter(|byte| !matches!(byte, b'-' | b'_')).map(|byte| byte.to_ascii_lowercase())
    }
    letters(name).eq(letters(text))
}

/// Declares an enum of kernel arguments that is printed and parsed by names.
#[doc(hidden)]
#[macro_export]
macro_rules! names {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $crate::kernel_arg! {
            $(#[$doc])*
            #[derive(Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
            pub enum $name {
                $($(#[$variant_doc])* $variant,)*
            }
        }

        impl $name {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The name, as it is printed and parsed.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }

            /// The one that `one as u32` is, the first where none is.
            #[inline(always)]
            pub const fn from_raw(raw: u32) -> Self {
                $(if raw == Self::$variant as u32 {
                    return Self::$variant;
                })*
                Self::ALL[0]
            }

            /// The one with this name, in any case, with or without its hyphens or with underscores in their place.
            pub fn named(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| $crate::is_named(one.name(), name))
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

names! {
    /// The type of the elements that a fixed kernel reduces.
    Datatype {
        /// `i8`.
        I8 = "int8",
        /// `u8`.
        U8 = "uint8",
        /// `i16`.
        I16 = "int16",
        /// `u16`.
        U16 = "uint16",
        /// `i32`.
        I32 = "int32",
        /// `u32`.
        U32 = "uint32",
        /// `i64`.
        I64 = "int64",
        /// `u64`.
        U64 = "uint64",
        /// `f16`.
        F16 = "half",
        /// `bf16`.
        Bf16 = "bfloat16",
        /// `f32`.
        F32 = "float",
        /// `f64`.
        F64 = "double",
        /// 8-bit float of four exponent bits.
        F8E4M3 = "f8e4m3",
        /// 8-bit float of five exponent bits.
        F8E5M2 = "f8e5m2",
    }
}

impl Datatype {
    /// Bytes of an element.
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::F8E4M3 | Self::F8E5M2 => 1,
            Self::I16 | Self::U16 | Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// Its type in `multimem` instructions, where they have it.
    const fn multimem(self) -> Option<MultimemType> {
        Some(match self {
            Self::I32 => MultimemType::I32,
            Self::U32 => MultimemType::U32,
            Self::I64 => MultimemType::I64,
            Self::U64 => MultimemType::U64,
            Self::F16 => MultimemType::F16,
            Self::Bf16 => MultimemType::Bf16,
            Self::F32 => MultimemType::F32,
            Self::F64 => MultimemType::F64,
            Self::I8 | Self::U8 | Self::I16 | Self::U16 | Self::F8E4M3 | Self::F8E5M2 => return None,
        })
    }

    /// Whether it is an integer: what and, or and xor need.
    pub const fn is_integer(self) -> bool {
        matches!(self, Self::I8 | Self::U8 | Self::I16 | Self::U16 | Self::I32 | Self::U32 | Self::I64 | Self::U64)
    }
}

names! {
    /// One of the named operators, chosen when the kernel runs: what the fixed kernels take.
    Op {
        /// [`Sum`](struct@crate::Sum).
        Sum = "sum",
        /// [`Prod`](struct@crate::Prod).
        Prod = "prod",
        /// [`Min`](struct@crate::Min).
        Min = "min",
        /// [`Max`](struct@crate::Max).
        Max = "max",
        /// [`Avg`](struct@crate::Avg).
        Avg = "avg",
        /// [`PreMulSum`](struct@crate::PreMulSum).
        PreMulSum = "premul-sum",
        /// [`BitAnd`](crate::BitAnd).
        And = "and",
        /// [`BitOr`](crate::BitOr).
        Or = "or",
        /// [`BitXor`](crate::BitXor).
        Xor = "xor",
    }
}

impl Op {
    /// Whether there is such an operator on elements of this type: the bitwise ones work on integers only.
    pub const fn supports(self, datatype: Datatype) -> bool {
        match self {
            Self::Sum | Self::Prod | Self::Min | Self::Max | Self::Avg | Self::PreMulSum => true,
            Self::And | Self::Or | Self::Xor => datatype.is_integer(),
        }
    }

    /// The same by `multimem` instructions, with the result of `members` contributions: what the algorithm multimem needs. `None`
    /// where there is none for it, or one whose result is not as the operator says.
    pub const fn multimem(self, datatype: Datatype, members: usize) -> Option<MultimemReduction> {
        match datatype.multimem() {
            Some(number) => self.multimem_of(number, members),
            None => None,
        }
    }

    #[inline(always)]
    pub(super) const fn multimem_of(self, number: MultimemType, members: usize) -> Option<MultimemReduction> {
        let op = match self {
            Self::Sum | Self::Avg => MultimemOp::Sum,
            Self::Min => MultimemOp::Min,
            Self::Max => MultimemOp::Max,
            Self::And => MultimemOp::And,
            Self::Or => MultimemOp::Or,
            Self::Xor => MultimemOp::Xor,
            Self::Prod | Self::PreMulSum => return None,
        };
        match MultimemReduction::new(number, op) {
            Some(sum) if matches!(self, Self::Avg) => sum.over(members),
            reduction => reduction,
        }
    }
}
