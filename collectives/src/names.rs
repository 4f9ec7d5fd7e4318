//! The names of operations, algorithms and protocols, as they are printed, parsed and passed to kernels.

use congruent_device::{is_named, names};

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

/// Along which paths a collective moves its data: a name. These are the library's own; a program adds its own by
/// [`new`](Algorithm::new).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Algorithm(&'static str);

impl Algorithm {
    /// From neighbour to neighbour.
    pub const RING: Self = Self("ring");
    /// Along binary trees; two of them, each for half of the data, where all members reduce.
    pub const TREE: Self = Self("tree");
    /// Between partners at distances 1, 2, 4, ...: doubling, halving, dissemination.
    pub const RECURSIVE: Self = Self("recursive");
    /// Everybody sends all to everybody, in one step.
    pub const ONE_SHOT: Self = Self("one-shot");
    /// Straight between the members that give and the members that get: for all-reduce, a direct reduce-scatter and a
    /// direct all-gather ("two-shot").
    pub const DIRECT: Self = Self("direct");
    /// Blocks that travel `log n` hops together (Bruck and others, 1997).
    pub const BRUCK: Self = Self("bruck");
    /// Through multicast addresses that the links themselves reduce and replicate.
    pub const MULTIMEM: Self = Self("multimem");

    /// In each host, and between hosts.
    pub const TWO_LEVEL: Self = Self("two-level");

    /// The library's own.
    pub const ALL: &'static [Self] = &[
        Self::RING,
        Self::TREE,
        Self::RECURSIVE,
        Self::ONE_SHOT,
        Self::DIRECT,
        Self::BRUCK,
        Self::MULTIMEM,
        Self::TWO_LEVEL,
    ];

    /// One of a program's own: a name of small letters, digits and hyphens.
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }

    /// The name, as it is printed and parsed.
    pub const fn name(self) -> &'static str {
        self.0
    }

    /// The one of the library's own with this name, as [`Protocol::named`] reads names.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|one| is_named(one.0, name))
    }
}

impl core::fmt::Display for Algorithm {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.pad(self.0)
    }
}

impl Collective {
    /// Whether it combines values.
    pub const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce)
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
        NormOneShot = "all-reduce and norm one-shot",
        NormDirect = "all-reduce and norm direct",
        NormMultimem = "all-reduce and norm multimem",
    }
}
