//! How long an algorithm takes, by a model: steps, and bytes that move between them.
//!
//! `T = base + hops α + posts o + moved β + reduced γ`, after Hockney (1994), with the γ of Thakur, Rabenseifner and Gropp
//! (2005): α is a step's latency by protocol, o the cost of one more message in a step, β and γ the times to move and to
//! combine a byte. For n members, S bytes, `p = ceil(log2 n)` and pipelines with chunks of C bytes:
//!
//! | collective | algorithm | hops | posts | moved | reduced | source |
//! |---|---|---|---|---|---|---|
//! | all-reduce | ring | 2(n-1) | | 2(n-1)/n S | (n-1)/n S | Patarasuk, Yuan 2009 |
//! | | tree | 2p | chunks | 2 S + 2(p-1) C | S | Sanders, Speck, Träff 2009 |
//! | | recursive | p, and 2 unless n is a power of 2 | | p S, and 2 S | p S, and S | Thakur and others 2005 |
//! | | one-shot | 1 | | (n-1) S | (n-1) S | every input to everybody |
//! | | direct | 2 | 2(n-2) | S, and 2(n-1)/n S over links | | one pass reads n shares of S/n and writes n |
//! | | multimem | 2 | 2(n-2) | S/e | | links reduce and replicate, at a part e of their rate |
//! | reduce-scatter | ring | n-1 | | (n-1)/n S | (n-1)/n S | half of the all-reduce |
//! | | recursive | p | | (n-1)/n S | (n-1)/n S | recursive halving, Thakur and others 2005 |
//! | | one-shot | 1 | | (n-1)/n S | (n-1)/n S | |
//! | | direct | 2 | 2(n-2) | (n-1)/n S | | every member reads its part of all |
//! | all-gather | ring | n-1 | | (n-1)/n S | | half of the all-reduce |
//! | | recursive | p | | (n-1)/n S | | recursive doubling, Thakur and others 2005 |
//! | | one-shot | 1 | | (n-1)/n S | | |
//! | | direct | 2 | 2(n-2) | (n-1)/n S | | |
//! | both of these | multimem | 2 | 2(n-2) | (n-1)/n S/e | | |
//! | broadcast, reduce | ring | n-1 | chunks | S + (n-2) C | S for reduce | a pipelined chain |
//! | | tree | p | chunks | 2 S + (p-1) C | 2 S for reduce | a pipelined binary tree: two children |
//! | broadcast | direct | 2 | 2(n-2) | (n-1)/n S | | each member copies one chunk to all |
//! | | multimem | 2 | n-2 | S/e | | |
//! | reduce | direct | 2 | 2(n-2) | (n-1)/n S | | each member combines one chunk while it reads |
//! | gather, scatter | direct | 2 | n-2 | (n-1)/n S | | the root's link |
//! | all-to-all | one-shot | 1 | | (n-1)/n S | | |
//! | | direct | 2 | 2(n-2) | (n-1)/n S | | |
//! | | bruck | p | | p S/2 + 2 S | | Bruck and others 1997, with the two rotations |
//! | all-to-all-v, all-gather-v | direct | 2 | 2(n-2) | (n-1)/n S | | as if all parts were alike |
//! | send-recv | direct | 2 | | S | | |
//! | barrier | direct | 1 | n-2 | | | |
//! | | recursive | p | | | | dissemination, Hensgen, Finkel, Manber 1988 |
//!
//! A team of one copies its S bytes.

use congruent_collectives::{Algorithm, Collective, Protocol};

use super::circumstances::Circumstances;
use super::parameters::Parameters;

/// Chunks that a block's slot of the scratch holds: what is in flight between two neighbours of a pipeline.
const CHUNKS_PER_SLOT: u64 = 8;

/// What a member does one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Work {
    hops: f64,
    posts: f64,
    moved: f64,
    reduced: f64,
}

/// The time of a call in nanoseconds, from the first member's entry to the last one's end, without the kernel's launch.
/// Meaningless for what `support` does not list.
pub fn nanoseconds(
    machine: &Parameters,
    collective: Collective,
    algorithm: Algorithm,
    protocol: Protocol,
    call: &Circumstances,
) -> f64 {
    let blocks = call.blocks.max(1);
    let load = machine.load(call.members, blocks);
    let cost = machine.protocol(algorithm, protocol);
    let work = work(machine, collective, algorithm, call);
    let hop = if collective == Collective::Barrier { machine.signal_ns } else { cost.hop_ns };
    let speedup = machine.speedup(2.0 * call.bytes as f64);
    let rate = |one_block: f64| (one_block * speedup * f64::from(blocks)).min(machine.link_rate) / load;
    cost.base_ns
        + work.hops * (hop + machine.switch_ns * (load - 1.0))
        + work.posts * machine.post_ns
        + work.moved / (rate(machine.copy_rate) * cost.efficiency)
        + work.reduced / rate(machine.reduce_rate)
}

fn work(machine: &Parameters, collective: Collective, algorithm: Algorithm, call: &Circumstances) -> Work {
    let bytes = call.bytes as f64;
    if call.members <= 1 {
        return Work { moved: if collective == Collective::Barrier { 0.0 } else { bytes }, ..Work::default() };
    }
    let n = call.members as f64;
    let p = f64::from(call.members.next_power_of_two().ilog2());
    match collective {
        Collective::Barrier if algorithm == Algorithm::Direct => Work { hops: 1.0, posts: n - 2.0, ..Work::default() },
        Collective::Barrier => Work { hops: p, ..Work::default() },
        Collective::AllReduce => all_reduce(machine, algorithm, call, n, p),
        Collective::Broadcast => rooted(machine, algorithm, call, n, p),
        Collective::Reduce if algorithm == Algorithm::Direct => {
            Work { hops: 2.0, posts: 2.0 * (n - 2.0), moved: (n - 1.0) / n * bytes, reduced: 0.0 }
        }
        Collective::Reduce => {
            let moved = rooted(machine, algorithm, call, n, p);
            Work { reduced: if algorithm == Algorithm::Tree { 2.0 * bytes } else { bytes }, ..moved }
        }
        Collective::Gather | Collective::Scatter => {
            Work { hops: 2.0, posts: n - 2.0, moved: (n - 1.0) / n * bytes, reduced: 0.0 }
        }
        Collective::SendRecv => Work { hops: 2.0, moved: bytes, ..Work::default() },
        Collective::ReduceScatter
        | Collective::AllGather
        | Collective::AllToAll
        | Collective::AllToAllV
        | Collective::AllGatherV => parts(machine, collective, algorithm, call, n, p),
    }
}

fn all_reduce(machine: &Parameters, algorithm: Algorithm, call: &Circumstances, n: f64, p: f64) -> Work {
    let bytes = call.bytes as f64;
    let others = (n - 1.0) / n * bytes;
    match algorithm {
        Algorithm::Ring => Work { hops: 2.0 * (n - 1.0), posts: 0.0, moved: 2.0 * others, reduced: others },
        Algorithm::Tree => {
            let (chunk, chunks) = pipeline(call);
            Work { hops: 2.0 * p, posts: chunks, moved: 2.0 * bytes + 2.0 * (p - 1.0) * chunk, reduced: bytes }
        }
        Algorithm::Recursive => {
            // The members above a power of two hand theirs to one below, and get the result in the end.
            let fold = if call.members.is_power_of_two() { 0.0 } else { 1.0 };
            let doublings = f64::from(call.members.ilog2());
            let steps = doublings + 2.0 * fold;
            Work { hops: steps, posts: 0.0, moved: steps * bytes, reduced: (doublings + fold) * bytes }
        }
        Algorithm::OneShot => {
            let all = (n - 1.0) * bytes;
            Work { hops: 1.0, posts: 0.0, moved: all, reduced: all }
        }
        Algorithm::Multimem => {
            Work { hops: 2.0, posts: 2.0 * (n - 2.0), moved: bytes / machine.multicast_efficiency, reduced: 0.0 }
        }
        Algorithm::Direct | Algorithm::Bruck => {
            // A link brings what its PE reads and what the others write to it; cores are busy with either once.
            let moved = if machine.link_rate.is_finite() { 2.0 * others } else { bytes };
            Work { hops: 2.0, posts: 2.0 * (n - 2.0), moved, reduced: 0.0 }
        }
    }
}

/// From one member to all, or the same way back.
fn rooted(machine: &Parameters, algorithm: Algorithm, call: &Circumstances, n: f64, p: f64) -> Work {
    let bytes = call.bytes as f64;
    let (chunk, chunks) = pipeline(call);
    let (hops, posts, moved) = match algorithm {
        Algorithm::Ring => (n - 1.0, chunks, bytes + (n - 2.0) * chunk),
        Algorithm::Tree => (p, chunks, 2.0 * bytes + (p - 1.0) * chunk),
        Algorithm::Multimem => (2.0, n - 2.0, bytes / machine.multicast_efficiency),
        _ => (2.0, 2.0 * (n - 2.0), (n - 1.0) / n * bytes),
    };
    Work { hops, posts, moved, reduced: 0.0 }
}

/// Every member has, or gets, a part of `S / n`.
fn parts(
    machine: &Parameters,
    collective: Collective,
    algorithm: Algorithm,
    call: &Circumstances,
    n: f64,
    p: f64,
) -> Work {
    let bytes = call.bytes as f64;
    let others = (n - 1.0) / n * bytes;
    let (hops, posts, moved) = match algorithm {
        Algorithm::Ring => (n - 1.0, 0.0, others),
        Algorithm::Recursive => (p, 0.0, others),
        Algorithm::OneShot => (1.0, 0.0, others),
        Algorithm::Bruck => (p, 0.0, p * bytes / 2.0 + 2.0 * bytes),
        Algorithm::Multimem => (2.0, 2.0 * (n - 2.0), others / machine.multicast_efficiency),
        Algorithm::Direct | Algorithm::Tree => (2.0, 2.0 * (n - 2.0), others),
    };
    // Who reads its part of all members' buffers combines while it reads, and so do links.
    let reads = matches!(algorithm, Algorithm::Direct | Algorithm::Multimem);
    let reduced = if collective == Collective::ReduceScatter && !reads { others } else { 0.0 };
    Work { hops, posts, moved, reduced }
}

/// Bytes of a pipeline's chunk, and how many there are.
fn pipeline(call: &Circumstances) -> (f64, f64) {
    let chunk = (call.buffer / CHUNKS_PER_SLOT).saturating_mul(call.blocks.max(1).into()).max(1).min(call.bytes.max(1));
    (chunk as f64, call.bytes.div_ceil(chunk) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Algorithm::{Bruck, Direct, OneShot, Recursive, Ring, Tree};
    use Collective::{AllReduce, AllToAll, Barrier, Broadcast};
    use Protocol::{Ll, Simple};

    fn cpu(collective: Collective, algorithm: Algorithm, protocol: Protocol, members: usize, bytes: u64) -> f64 {
        let call = Circumstances::plain(members, bytes);
        nanoseconds(&Parameters::cpu(1, 64, false), collective, algorithm, protocol, &call)
    }

    #[track_caller]
    fn assert_about(model: f64, measured: f64, within: f64) {
        assert!((model / measured - 1.0).abs() < within, "model {model} ns, measured {measured} ns");
    }

    #[test]
    fn two_pes_are_as_measured() {
        // benches/results/2026-11-21-cpu-2-cores.md
        let direct = [
            (4, 380.0),
            (1 << 10, 411.0),
            (16 << 10, 706.0),
            (64 << 10, 1_790.0),
            (256 << 10, 5_900.0),
            (1 << 20, 33_380.0),
            (4 << 20, 247_670.0),
            (64 << 20, 5_040_000.0),
        ];
        for (bytes, measured) in direct {
            assert_about(cpu(AllReduce, Direct, Simple, 2, bytes), measured, 0.15);
        }
        for (bytes, measured) in [(4, 657.0), (64 << 10, 5_030.0), (256 << 10, 17_830.0), (64 << 20, 11_790_000.0)] {
            assert_about(cpu(AllReduce, Ring, Simple, 2, bytes), measured, 0.15);
        }
        for (bytes, measured) in [(4, 316.0), (64, 347.7), (256, 438.0), (1 << 10, 739.4)] {
            assert_about(cpu(AllReduce, OneShot, Ll, 2, bytes), measured, 0.1);
        }
        assert_about(cpu(Barrier, Direct, Simple, 2, 0), 116.4, 0.05);
    }

    #[test]
    fn short_messages_want_few_steps_and_long_ones_few_bytes() {
        let best = |bytes| {
            let time = |(algorithm, protocol)| cpu(AllReduce, algorithm, protocol, 8, bytes);
            let ways = [(Ring, Simple), (Tree, Simple), (Recursive, Simple), (OneShot, Ll)];
            ways.into_iter().min_by(|a, b| time(*a).total_cmp(&time(*b))).unwrap().0
        };
        assert_eq!(best(8), OneShot);
        assert_eq!(best(4 << 10), Recursive);
        assert_eq!(best(16 << 20), Ring);
    }

    #[test]
    fn steps_grow_as_the_table_says() {
        let queued = Parameters::cpu(1, 64, false).queued;
        let hops = |algorithm, members| {
            ((cpu(AllReduce, algorithm, Simple, members, 0) - queued.base_ns) / queued.hop_ns).round()
        };
        assert_eq!([2, 3, 4, 8, 16].map(|n| hops(Ring, n)), [2.0, 4.0, 6.0, 14.0, 30.0]);
        assert_eq!([2, 3, 4, 5, 8, 16].map(|n| hops(Recursive, n)), [1.0, 3.0, 2.0, 4.0, 3.0, 4.0]);
        assert_eq!([2, 3, 4, 8, 9].map(|n| hops(Tree, n)), [2.0, 4.0, 4.0, 6.0, 8.0]);
        assert_eq!(hops(Ring, 1), 0.0);
    }

    #[test]
    fn bruck_pays_where_a_message_costs_more_than_its_bytes() {
        let time = |algorithm, bytes| {
            let machine = Parameters::cpu(1, 64, true);
            nanoseconds(&machine, AllToAll, algorithm, Simple, &Circumstances::plain(64, bytes))
        };
        assert!(time(Direct, 1 << 20) < time(Bruck, 1 << 20));
        let costly = Parameters { post_ns: 60_000.0, ..Parameters::cpu(1, 64, true) };
        let call = Circumstances::plain(64, 4 << 10);
        let of = |algorithm| nanoseconds(&costly, AllToAll, algorithm, Simple, &call);
        assert!(of(Bruck) < of(Direct));
    }

    #[test]
    fn a_chain_carries_a_long_broadcast_at_the_rate_of_one_copy() {
        let bytes = 256 << 20;
        let copy = bytes as f64 / (15.0 * Parameters::cpu(1, 64, false).queued.efficiency);
        assert_about(cpu(Broadcast, Ring, Simple, 8, bytes), copy, 0.02);
        assert_about(cpu(Broadcast, Tree, Simple, 8, bytes), 2.0 * copy, 0.02);
    }

    #[test]
    fn small_all_reduce_on_eight_gpus_is_as_nccls_model_has_it() {
        let time = nanoseconds(&Parameters::cuda_nvlink(), AllReduce, Ring, Ll, &Circumstances::plain(8, 8));
        assert_about(time, 15_000.0, 0.01);
    }

    #[test]
    fn two_pes_on_a_core_take_turns() {
        let of = |members| {
            let machine = Parameters::cpu(1, 2, false);
            nanoseconds(&machine, AllReduce, Direct, Simple, &Circumstances::plain(members, 64 << 20))
        };
        assert_about(of(4), 2.0 * of(2), 0.01);
    }

    #[test]
    fn everything_that_exists_has_a_time() {
        for row in super::super::support::SUPPORT {
            for (members, bytes) in [(1, 0), (1, 64), (2, 0), (3, 1), (64, u64::MAX)] {
                let time = cpu(row.collective, row.algorithm, row.protocols[0], members, bytes);
                assert!(time.is_finite() && time >= 10.0, "{} {}: {time}", row.collective, row.algorithm);
            }
        }
    }
}
