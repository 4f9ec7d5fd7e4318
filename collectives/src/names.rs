//! The names of operations, algorithms and protocols, as they are printed, parsed and passed to kernels.

use congruent_device::LinkNumber;

macro_rules! names {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        congruent_device::kernel_arg! {
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
                let letters = |text: &'static str| text.bytes().filter(|&byte| byte != b'-');
                let given = || name.bytes().filter(|byte| !matches!(byte, b'-' | b'_')).map(|byte| byte.to_ascii_lowercase());
                Self::ALL.iter().copied().find(|one| letters(one.name()).eq(given()))
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}
pub(crate) use names;

names! {
    /// What a collective does.
    Collective {
        /// Everybody waits for everybody.
        Barrier = "barrier",
        /// One member's buffer to all.
        Broadcast = "broadcast",
        /// The combination of all members' buffers, at one.
        Reduce = "reduce",
        /// Every member's buffer, at one.
        Gather = "gather",
        /// Each member's part of one member's buffer.
        Scatter = "scatter",
        /// Every member's buffer, at all.
        AllGather = "all-gather",
        /// Each member's part of the combination of all buffers.
        ReduceScatter = "reduce-scatter",
        /// The combination of all members' buffers, at all.
        AllReduce = "all-reduce",
        /// Each member's part of each member's buffer.
        AllToAll = "all-to-all",
        /// The same, with parts of any length.
        AllToAllV = "all-to-all-v",
        /// All-gather, of buffers of any length.
        AllGatherV = "all-gather-v",
        /// Pairs of sends and receives, started together.
        SendRecv = "send-recv",
    }
}

names! {
    /// Along which paths a collective moves its data.
    Algorithm {
        /// From neighbour to neighbour.
        Ring = "ring",
        /// Along binary trees; two of them, each for half of the data, where all members reduce.
        Tree = "tree",
        /// Between partners at distances 1, 2, 4, ...: doubling, halving, dissemination.
        Recursive = "recursive",
        /// Everybody sends all to everybody, in one step.
        OneShot = "one-shot",
        /// Straight between the members that give and the members that get: for all-reduce, a direct reduce-scatter and a
        /// direct all-gather ("two-shot").
        Direct = "direct",
        /// Blocks that travel `log n` hops together (Bruck and others, 1997).
        Bruck = "bruck",
        /// Through multicast addresses that the links themselves reduce and replicate.
        Multimem = "multimem",
    }
}

names! {
    /// How data and signals travel.
    Protocol {
        /// Data, then a signal.
        Simple = "simple",
        /// 8-byte words of which half is a flag.
        Ll = "ll",
        /// Lines of which the last word is a flag.
        Ll128 = "ll128",
    }
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

    /// What links know it as, where they combine it.
    pub(crate) const fn linked(self) -> Option<LinkNumber> {
        Some(match self {
            Self::I32 => LinkNumber::I32,
            Self::U32 => LinkNumber::U32,
            Self::I64 => LinkNumber::I64,
            Self::U64 => LinkNumber::U64,
            Self::F16 => LinkNumber::F16,
            Self::Bf16 => LinkNumber::Bf16,
            Self::F32 => LinkNumber::F32,
            Self::F64 => LinkNumber::F64,
            Self::I8 | Self::U8 | Self::I16 | Self::U16 | Self::F8E4M3 | Self::F8E5M2 => return None,
        })
    }

    /// Whether it is an integer: what and, or and xor need.
    pub const fn is_integer(self) -> bool {
        matches!(self, Self::I8 | Self::U8 | Self::I16 | Self::U16 | Self::I32 | Self::U32 | Self::I64 | Self::U64)
    }
}

names! {
    /// What a block does with a channel of a plan.
    #[allow(missing_docs, reason = "they are as they are named")]
    Operation {
        Barrier = "barrier",
        Agree = "agree",
        AllToAllBruck = "all-to-all bruck",
        AllReduceDirect = "all-reduce direct",
        ReduceScatterDirect = "reduce-scatter direct",
        ReduceDirect = "reduce direct",
        AllGatherDirect = "all-gather direct",
        BroadcastDirect = "broadcast direct",
        ScatterDirect = "scatter direct",
        GatherDirect = "gather direct",
        AllToAllDirect = "all-to-all direct",
        AllToAllVDirect = "all-to-all-v direct",
        AllGatherVDirect = "all-gather-v direct",
        AllReduceMultimem = "all-reduce multimem",
        ReduceScatterMultimem = "reduce-scatter multimem",
        AllGatherMultimem = "all-gather multimem",
        BroadcastMultimem = "broadcast multimem",
        AllReduceOneShot = "all-reduce one-shot",
        ReduceScatterOneShot = "reduce-scatter one-shot",
        AllGatherOneShot = "all-gather one-shot",
        AllToAllOneShot = "all-to-all one-shot",
        AllReduceRecursive = "all-reduce recursive",
        ReduceScatterRecursive = "reduce-scatter recursive",
        AllGatherRecursive = "all-gather recursive",
        AllReduceRing = "all-reduce ring",
        ReduceScatterRing = "reduce-scatter ring",
        AllGatherRing = "all-gather ring",
        BroadcastRing = "broadcast ring",
        ReduceRing = "reduce ring",
        SendRecvDirect = "send-recv direct",
        AllReduceTree = "all-reduce tree",
        ReduceTree = "reduce tree",
        BroadcastTree = "broadcast tree",
    }
}
