//! How long an algorithm takes, by a model: steps, and bytes that move between them.
//!
//! `T = base + hops α + posts o + moved β + reduced γ`, after Hockney (1994), with the γ of Thakur, Rabenseifner and Gropp
//! (2005): α is a step's latency by protocol, o the cost of one more message in a step, β and γ the times to move and to
//! combine a byte. What hops, posts and bytes there are an algorithm's [`Descriptor`] says.
//!
//! A team of one copies its bytes.

use congruent_collectives::{Collective, Descriptor, Layout, Protocol, Sizes, Work};

use super::circumstances::Circumstances;
use super::parameters::Parameters;

/// The time of a call in nanoseconds, from the first member's entry to the last one's end, without the kernel's launch.
/// Meaningless for a protocol that the algorithm does not have.
pub fn nanoseconds(machine: &Parameters, of: &Descriptor, protocol: Protocol, call: &Circumstances) -> f64 {
    let blocks = blocks(of, protocol, call);
    let call = &Circumstances { blocks, ..*call };
    let load = machine.load(call.members, blocks);
    let cost = machine.protocol(of.queued, protocol);
    let work = work(machine, of, protocol, call);
    let hop = if of.collective == Collective::Barrier { machine.signal_ns } else { cost.hop_ns };
    let speedup = machine.speedup(2.0 * call.bytes as f64);
    let rate = |one_block: f64| (one_block * speedup * f64::from(blocks)).min(machine.link_rate) / load;
    let efficiency = if of.multicast { machine.multicast_efficiency } else { 1.0 };
    // What goes one way in packets runs ahead by as many calls as a queue has slots: these share their changes of threads.
    let is_one_way = matches!(of.collective, Collective::Broadcast | Collective::Reduce);
    let calls = if is_one_way && of.queued && protocol != Protocol::Simple { Layout::DEPTH as f64 } else { 1.0 };
    cost.base_ns
        + work.hops * (hop + machine.switch_ns * (load - 1.0) / calls)
        + work.posts * machine.post_ns
        + work.moved / (rate(machine.copy_rate) * cost.efficiency * efficiency)
        + work.reduced / rate(machine.reduce_rate)
        + work.launches * machine.launch_ns
}

/// How many blocks a launch takes: so many that the threads of each have accesses enough to keep in flight, as NCCL chooses its
/// channels. What goes through a plan's queues needs blocks for the room that they have, too: a ring's step fills one at most.
pub fn blocks(of: &Descriptor, protocol: Protocol, call: &Circumstances) -> u32 {
    let &Circumstances { members, bytes, buffer, blocks, block_bytes, .. } = call;
    let each = match protocol {
        Protocol::Simple if of.queued => {
            block_bytes.min(members as u64 * Layout::DEPTH * Layout::chunk(buffer, members, protocol) as u64)
        }
        Protocol::Simple => block_bytes,
        // An access for each thread, and packets in one round.
        _ => (block_bytes / 4).min(Layout::shot_of(buffer, members, Protocol::Ll) as u64),
    };
    match each {
        0 => blocks.max(1),
        each => bytes.div_ceil(each).clamp(1, blocks.max(1).into()) as u32,
    }
}

/// How many threads of each block have something to do: an access of each in the largest step, and in a large team a thread for each
/// member. Those without anything would only make the block's barriers slower.
pub fn threads(of: &Descriptor, protocol: Protocol, call: &Circumstances) -> u32 {
    let &Circumstances { members, bytes, buffer, threads, fewest_threads, .. } = call;
    let share = bytes.div_ceil(blocks(of, protocol, call).into());
    let (step, each) = match protocol {
        Protocol::Simple if !of.queued => (share, 16),
        _ if of.queued => {
            (Layout::chunk(buffer, members, protocol) as u64, if protocol == Protocol::Ll { 8 } else { 16 })
        }
        Protocol::Ll => (Layout::shot_of(buffer, members, protocol) as u64, 8),
        _ => (Layout::shot_of(buffer, members, protocol) as u64, 16),
    };
    let busy = share.min(step).div_ceil(each).max(members as u64).next_multiple_of(32);
    busy.clamp(fewest_threads.into(), threads.into()) as u32
}

fn work(machine: &Parameters, of: &Descriptor, protocol: Protocol, call: &Circumstances) -> Work {
    let &Circumstances { members, bytes, buffer, blocks, .. } = call;
    if members <= 1 {
        let moved = if of.collective == Collective::Barrier { 0.0 } else { bytes as f64 };
        return Work { moved, ..Work::NONE };
    }
    let chunk = (Layout::chunk(buffer, members, protocol) as u64).saturating_mul(blocks.max(1).into());
    (of.work)(&Sizes::new(members, bytes, chunk, machine.link_rate.is_finite()).on(call.hosts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Collective::{AllReduce, AllToAll, Barrier, Broadcast};
    use Protocol::{Ll, Simple};
    use congruent_collectives::{Algorithm, direct, one_shot, ring, tree};

    fn of(collective: Collective, algorithm: Algorithm) -> &'static Descriptor {
        Descriptor::of(collective, algorithm).unwrap()
    }

    fn cpu(collective: Collective, algorithm: Algorithm, protocol: Protocol, members: usize, bytes: u64) -> f64 {
        let call = Circumstances::plain(members, bytes);
        nanoseconds(&Parameters::cpu(1, 64, false), of(collective, algorithm), protocol, &call)
    }

    #[track_caller]
    fn assert_about(model: f64, measured: f64, within: f64) {
        assert!((model / measured - 1.0).abs() < within, "model {model}, measured {measured}");
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
            assert_about(cpu(AllReduce, Algorithm::DIRECT, Simple, 2, bytes), measured, 0.15);
        }
        for (bytes, measured) in [(4, 657.0), (64 << 10, 5_030.0), (256 << 10, 17_830.0), (64 << 20, 11_790_000.0)] {
            assert_about(cpu(AllReduce, Algorithm::RING, Simple, 2, bytes), measured, 0.15);
        }
        // benches/results/2026-11-28-packets.md, beside a direct one's time.
        for (bytes, measured) in [(4, 0.42), (64, 0.46), (256, 0.58), (1 << 10, 0.84)] {
            let direct = cpu(AllReduce, Algorithm::DIRECT, Simple, 2, bytes);
            assert_about(cpu(AllReduce, Algorithm::ONE_SHOT, Ll, 2, bytes) / direct, measured, 0.12);
        }
        assert_about(cpu(Barrier, Algorithm::DIRECT, Simple, 2, 0), 116.4, 0.05);
    }

    #[test]
    fn short_messages_want_few_steps_and_long_ones_few_bytes() {
        let best = |bytes| {
            let time = |(algorithm, protocol)| cpu(AllReduce, algorithm, protocol, 8, bytes);
            let ways = [
                (Algorithm::RING, Simple),
                (Algorithm::TREE, Simple),
                (Algorithm::RECURSIVE, Simple),
                (Algorithm::ONE_SHOT, Ll),
            ];
            ways.into_iter().min_by(|a, b| time(*a).total_cmp(&time(*b))).unwrap().0
        };
        assert_eq!(best(8), Algorithm::ONE_SHOT);
        assert_eq!(best(4 << 10), Algorithm::RECURSIVE);
        assert_eq!(best(16 << 20), Algorithm::RING);
    }

    #[test]
    fn steps_grow_as_the_table_says() {
        let [queued, ..] = Parameters::cpu(1, 64, false).queued;
        let hops = |algorithm, members| {
            ((cpu(AllReduce, algorithm, Simple, members, 0) - queued.base_ns) / queued.hop_ns).round()
        };
        assert_eq!([2, 3, 4, 8, 16].map(|n| hops(Algorithm::RING, n)), [2.0, 4.0, 6.0, 14.0, 30.0]);
        assert_eq!([2, 3, 4, 5, 8, 16].map(|n| hops(Algorithm::RECURSIVE, n)), [1.0, 3.0, 2.0, 4.0, 3.0, 4.0]);
        assert_eq!([2, 3, 4, 8, 9].map(|n| hops(Algorithm::TREE, n)), [2.0, 4.0, 4.0, 6.0, 8.0]);
        assert_eq!(hops(Algorithm::RING, 1), 0.0);
    }

    #[test]
    fn bruck_pays_where_a_message_costs_more_than_its_bytes() {
        let time = |algorithm, bytes| {
            let machine = Parameters::cpu(1, 64, true);
            nanoseconds(&machine, of(AllToAll, algorithm), Simple, &Circumstances::plain(64, bytes))
        };
        assert!(time(Algorithm::DIRECT, 1 << 20) < time(Algorithm::BRUCK, 1 << 20));
        let costly = Parameters { post_ns: 60_000.0, ..Parameters::cpu(1, 64, true) };
        let call = Circumstances::plain(64, 4 << 10);
        let time = |algorithm| nanoseconds(&costly, of(AllToAll, algorithm), Simple, &call);
        assert!(time(Algorithm::BRUCK) < time(Algorithm::DIRECT));
    }

    #[test]
    fn a_chain_carries_a_long_broadcast_at_the_rate_of_one_copy() {
        let bytes = 256 << 20;
        let copy = bytes as f64 / (15.0 * Parameters::cpu(1, 64, false).queued[0].efficiency);
        assert_about(cpu(Broadcast, Algorithm::RING, Simple, 8, bytes), copy, 0.02);
        assert_about(cpu(Broadcast, Algorithm::TREE, Simple, 8, bytes), 2.0 * copy, 0.02);
    }

    #[test]
    fn packets_that_go_one_way_are_waited_for_less() {
        // benches/results/2026-11-28-packets.md: four PEs on two cores.
        let time = |algorithm, protocol| {
            let call = Circumstances::plain(4, 1 << 10);
            nanoseconds(&Parameters::cpu(1, 2, false), of(Broadcast, algorithm), protocol, &call)
        };
        assert!(1.5 * time(Algorithm::TREE, Ll) < time(Algorithm::DIRECT, Simple));
        assert!(time(Algorithm::TREE, Ll) < time(Algorithm::TREE, Simple));
    }

    #[test]
    fn small_all_reduce_on_eight_gpus_is_as_nccls_model_has_it() {
        let time = nanoseconds(&Parameters::cuda_nvlink(), &ring::ALL_REDUCE, Ll, &Circumstances::plain(8, 8));
        assert_about(time, 15_000.0, 0.01);
    }

    #[test]
    fn two_pes_on_a_core_take_turns() {
        let time = |members| {
            let machine = Parameters::cpu(1, 2, false);
            nanoseconds(&machine, &direct::ALL_REDUCE, Simple, &Circumstances::plain(members, 64 << 20))
        };
        assert_about(time(4), 2.0 * time(2), 0.01);
    }

    #[test]
    fn everything_that_exists_has_a_time() {
        for one in Descriptor::ALL {
            for (members, bytes) in [(1, 0), (1, 64), (2, 0), (3, 1), (64, u64::MAX)] {
                let time = cpu(one.collective, one.algorithm, one.protocols[0], members, bytes);
                assert!(time.is_finite() && time >= 10.0, "{} {}: {time}", one.collective, one.algorithm);
            }
        }
    }
    #[test]
    fn short_calls_take_few_blocks() {
        let call = |bytes| Circumstances { blocks: 32, block_bytes: 16 << 10, ..Circumstances::plain(8, bytes) };
        let taken = |of, bytes| [0, 1, bytes, 1 << 30].map(|bytes| blocks(of, Simple, &call(bytes)));
        assert_eq!(taken(&direct::ALL_REDUCE, 64 << 10), [1, 1, 4, 32]);
        assert_eq!(taken(&ring::ALL_REDUCE, 64 << 10), [1, 1, 4, 32]);
        let short_queues = Circumstances { buffer: 8 << 10, ..call(64 << 10) };
        assert_eq!(blocks(&ring::ALL_REDUCE, Simple, &short_queues), 8);
        let room = Layout::shot_of(32 << 10, 8, Ll) as u64;
        assert!(room < 4 << 10);
        let narrow = Circumstances { buffer: 32 << 10, ..call(3 * room) };
        assert_eq!(blocks(&one_shot::ALL_REDUCE, Ll, &narrow), 3);
        let given = Circumstances { block_bytes: 0, ..call(8) };
        assert_eq!(blocks(&ring::ALL_REDUCE, Simple, &given), 32);
    }

    #[test]
    fn short_steps_take_few_threads() {
        let call = |bytes, buffer| {
            let blocks = Circumstances { blocks: 32, block_bytes: 16 << 10, ..Circumstances::plain(8, bytes) };
            Circumstances { buffer, ..blocks }
        };
        let taken = |of, protocol, bytes, buffer| threads(of, protocol, &call(bytes, buffer));
        // A slot of 512 bytes has packets of 256.
        assert_eq!(Layout::chunk(32 << 10, 8, Ll), 256);
        assert_eq!(taken(&tree::ALL_REDUCE, Ll, 64 << 10, 32 << 10), 32);
        assert_eq!(taken(&tree::ALL_REDUCE, Ll, 64 << 10, 1 << 20), 256);
        assert_eq!(taken(&ring::ALL_REDUCE, Simple, 64 << 10, 32 << 10), 64);
        assert_eq!(taken(&one_shot::ALL_REDUCE, Ll, 8, 1 << 20), 32);
        assert_eq!(taken(&direct::ALL_REDUCE, Simple, 64 << 10, 1 << 20), 256);
        // Each member's signal has a thread.
        let many = Circumstances { members: 100, ..call(8, 1 << 20) };
        assert_eq!(threads(&direct::ALL_REDUCE, Simple, &many), 128);
        let given = Circumstances { threads: 192, fewest_threads: 192, ..call(8, 1 << 20) };
        assert_eq!(threads(&direct::ALL_REDUCE, Simple, &given), 192);
    }

    #[test]
    fn a_pipelines_chunk_is_what_the_plan_has_room_for() {
        let call = Circumstances { blocks: 2, ..Circumstances::plain(8, 1 << 20) };
        let work = work(&Parameters::cpu(1, 64, false), &tree::BROADCAST, Simple, &call);
        // 1 MiB for 8 members: queues of four slots each.
        assert_eq!(work.posts, f64::from((1 << 20) / (2 * (32 << 10))));
        let ll = super::work(&Parameters::cpu(1, 64, false), &tree::BROADCAST, Ll, &call);
        // A half of it is queues, and a half of a slot is data.
        assert_eq!(ll.posts, 4.0 * work.posts);
    }
}
