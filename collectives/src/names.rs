//! The names of operations, algorithms and protocols, as they are printed, parsed and passed to kernels.

use congruent_device::names;

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
