//! What a machine's signals and copies cost.

use congruent_collectives::Protocol;

/// What signals and copies cost on a machine, over one kind of route between its PEs. Times are in nanoseconds, rates in
/// bytes per nanosecond, which is GB/s.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    /// The machine, as tuning tables name it: `cpu/2-cores/width-1/direct`. Without commas and line breaks.
    pub name: String,
    /// Where the figures come from.
    pub origin: Origin,
    /// By protocol, in the order of [`Protocol::ALL`].
    pub protocols: [ProtocolCost; 3],
    /// The same of algorithms that hand chunks on through the plan's queues, where others read and write members' buffers or inboxes
    /// themselves.
    pub queued: [ProtocolCost; 3],
    /// From a signal's sending to a waiter's going on, without any data: a step of a barrier.
    pub signal_ns: f64,
    /// Sending one more signal or message in the same step.
    pub post_ns: f64,
    /// What a block copies.
    pub copy_rate: f64,
    /// The inputs that a block combines.
    pub reduce_rate: f64,
    /// What all blocks of a PE copy at most: the link. Infinite where the cores are the limit.
    pub link_rate: f64,
    /// What a link that reduces and replicates reaches of its rate.
    pub multicast_efficiency: f64,
    /// A cache that makes small buffers faster.
    pub cache: Option<Cache>,
    /// Cores that blocks of all PEs share. `None` where every block has its own.
    pub cores: Option<u32>,
    /// Until a block that lost its core has it again, for each block that shares the core with it.
    pub switch_ns: f64,
    /// A launch behind another one of its stream.
    pub launch_ns: f64,
}

/// What a protocol costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProtocolCost {
    /// Beginning and ending a call.
    pub base_ns: f64,
    /// A step: from the first byte's sending to the receiver's going on.
    pub hop_ns: f64,
    /// Part of the copy rate that is data.
    pub efficiency: f64,
}

/// A cache that makes copies of small buffers faster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cache {
    /// Bytes that it holds, of a PE's source and destination together.
    pub bytes: f64,
    /// How many times as fast copies within it are.
    pub speedup: f64,
}

/// Where figures come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Measured by this project, on a machine of the kind.
    Measured,
    /// Taken from others' models; nobody has run this project there.
    Modelled,
}

const fn cost(base_ns: f64, hop_ns: f64, efficiency: f64) -> ProtocolCost {
    ProtocolCost { base_ns, hop_ns, efficiency }
}

impl Parameters {
    /// PEs on one host that share its memory.
    ///
    /// `cores` is the number that they share, the same on every PE: it decides when waiting costs a change of threads.
    /// `proxied` is for worlds where every peer is reached through the proxy. The width is in the name only: widths above
    /// 1 are for testing, and the model does not know how slow they are.
    ///
    /// Measured at two PEs on two cores (`benches/results/`): 105 ns from signal to signal, 380 ns for the two steps of a
    /// small direct all-reduce, 500 and 650 ns for one and two steps through queues; copies of 15 bytes per
    /// nanosecond from memory and three times that within the cache, of which queues leave two fifths. An exchange of packets takes two
    /// fifths of a direct all-reduce's time at a few bytes, and as long at some 1.2 KiB (`2026-11-28-packets.md`). A step through the
    /// proxy's thread took 60 µs, when the proxies had no cores of their own. Multicast is emulated for tests, element by element.
    pub fn cpu(width: u32, cores: u32, proxied: bool) -> Self {
        let route = if proxied { "proxied" } else { "direct" };
        let direct = Self {
            name: format!("cpu/{cores}-cores/width-{width}/{route}"),
            origin: Origin::Measured,
            protocols: [cost(10.0, 185.0, 1.0), cost(10.0, 150.0, 0.125), cost(10.0, 320.0, 0.05)],
            queued: [cost(350.0, 155.0, 0.42), cost(10.0, 300.0, 0.125), cost(10.0, 320.0, 0.05)],
            signal_ns: 105.0,
            post_ns: 10.0,
            copy_rate: 15.0,
            reduce_rate: 30.0,
            link_rate: f64::INFINITY,
            multicast_efficiency: 0.05,
            cache: Some(Cache { bytes: 1e6, speedup: 3.0 }),
            cores: Some(cores.max(1)),
            switch_ns: 2_000.0,
            launch_ns: 5_000.0,
        };
        if !proxied {
            return direct;
        }
        let simple = cost(10.0, 60_000.0, 1.0);
        Self {
            protocols: [simple; 3],
            queued: [simple; 3],
            signal_ns: 60_000.0,
            post_ns: 1_000.0,
            cache: None,
            ..direct
        }
    }

    /// GPUs that NVLink of the Hopper generation joins, 18 links each.
    ///
    /// Modelled: NCCL 2.30.7's constants of its ring (6.6, 14 and 8.4 µs a call, 0.6, 1.9 and 3.4 µs a hop for LL, LL128
    /// and Simple; LL of 141 GB/s at most), 20.6 GB/s a link, and 65 GiB/s a block as its symmetric kernels assume.
    pub fn cuda_nvlink() -> Self {
        let protocols = [cost(8_400.0, 3_400.0, 1.0), cost(6_600.0, 600.0, 0.38), cost(14_000.0, 1_900.0, 0.9375)];
        Self {
            name: "cuda/sm_90/nvlink".to_owned(),
            origin: Origin::Modelled,
            protocols,
            queued: protocols,
            signal_ns: 600.0,
            post_ns: 20.0,
            copy_rate: 70.0,
            reduce_rate: 70.0,
            link_rate: 370.0,
            multicast_efficiency: 0.85,
            cache: None,
            cores: None,
            switch_ns: 0.0,
            launch_ns: 2_500.0,
        }
    }

    /// One GPU of the Hopper generation that so many PEs share: its memory and its instructions are the limit, and no link.
    ///
    /// Measured at eight PEs on an H100 (`benches/results/2026-11-26-h100.md`): 10.5 µs for a small direct all-reduce, 6 for an
    /// exchange of packets, which carry some 60 GB/s where they are chosen, 5 for a step through queues; 19 GB/s a block, and
    /// 2.6 TB/s of all PEs together. LL128 was not measured: it has the figures of LL.
    pub fn cuda_one_gpu(pes: u32) -> Self {
        let packets = cost(4_000.0, 2_000.0, 0.2);
        Self {
            name: format!("cuda/sm_90/one-gpu/{pes}-pes"),
            origin: Origin::Measured,
            protocols: [cost(500.0, 5_000.0, 1.0), packets, packets],
            queued: [cost(1_000.0, 5_000.0, 0.105), packets, packets],
            signal_ns: 2_200.0,
            copy_rate: 19.3,
            link_rate: 2_640.0 / f64::from(pes.max(1)),
            ..Self::cuda_nvlink()
        }
    }

    /// GPUs of several hosts, whose proxies stage what they send through the host.
    ///
    /// Modelled: a launch and two copies of a stream for each step, some 10 µs each, and a network of 100 Gbit/s.
    pub fn cuda_proxied() -> Self {
        let simple = cost(10_000.0, 40_000.0, 1.0);
        Self {
            name: "cuda/sm_90/proxied".to_owned(),
            protocols: [simple; 3],
            queued: [simple; 3],
            signal_ns: 30_000.0,
            post_ns: 10_000.0,
            link_rate: 10.0,
            ..Self::cuda_nvlink()
        }
    }

    /// GPUs that reach each other over PCI Express of the third generation, 16 lanes.
    ///
    /// Modelled: NCCL 2.30.7's constants (1.0, 2.5 and 5.7 µs a hop, 12 GB/s).
    pub fn cuda_pcie() -> Self {
        let protocols = [cost(8_400.0, 5_700.0, 1.0), cost(6_600.0, 1_000.0, 0.5), cost(14_000.0, 2_500.0, 0.9375)];
        Self {
            name: "cuda/pcie".to_owned(),
            protocols,
            queued: protocols,
            signal_ns: 1_000.0,
            link_rate: 12.0,
            ..Self::cuda_nvlink()
        }
    }

    /// What a protocol costs an algorithm, which is `queued` or not.
    pub fn protocol(&self, queued: bool, protocol: Protocol) -> ProtocolCost {
        let costs = if queued { &self.queued } else { &self.protocols };
        costs[protocol as usize]
    }

    /// How many blocks share a core.
    pub(super) fn load(&self, members: usize, blocks: u32) -> f64 {
        self.cores.map_or(1.0, |cores| (members as f64 * f64::from(blocks) / f64::from(cores)).max(1.0))
    }

    /// How many times as fast copies are when a PE touches this many bytes.
    pub(super) fn speedup(&self, touched: f64) -> f64 {
        self.cache.map_or(1.0, |cache| {
            let within = if touched > cache.bytes { cache.bytes / touched } else { 1.0 };
            1.0 + (cache.speedup - 1.0) * within
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_stand_at_their_protocols() {
        let machine = Parameters::cpu(1, 2, false);
        assert_eq!(machine.protocol(false, Protocol::Simple).efficiency, 1.0);
        assert_eq!(machine.protocol(true, Protocol::Simple).efficiency, 0.42);
        assert_eq!(machine.protocol(true, Protocol::Ll).hop_ns, 300.0);
        assert_eq!(Parameters::cuda_nvlink().protocol(true, Protocol::Ll128).hop_ns, 1_900.0);
        for (place, protocol) in Protocol::ALL.iter().enumerate() {
            assert_eq!(*protocol as usize, place);
        }
    }

    #[test]
    fn machines_have_names_of_their_own() {
        let names = [
            Parameters::cpu(1, 2, false).name,
            Parameters::cpu(1, 4, false).name,
            Parameters::cpu(32, 2, false).name,
            Parameters::cpu(1, 2, true).name,
            Parameters::cuda_nvlink().name,
            Parameters::cuda_pcie().name,
            Parameters::cuda_one_gpu(2).name,
            Parameters::cuda_one_gpu(8).name,
        ];
        let unique: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len(), "{names:?}");
        assert_eq!(names[0], "cpu/2-cores/width-1/direct");
    }

    #[test]
    fn blocks_that_share_cores_share_their_time() {
        let machine = Parameters::cpu(1, 2, false);
        assert_eq!(machine.load(2, 1), 1.0);
        assert_eq!(machine.load(4, 2), 4.0);
        assert_eq!(Parameters::cuda_nvlink().load(8, 64), 1.0);
        assert_eq!(machine.speedup(1e5), 3.0);
        assert_eq!(machine.speedup(4e6), 1.5);
    }
}
