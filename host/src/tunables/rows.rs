//! The tunables that exist.

use congruent_collectives::{Algorithm, Protocol};

use super::verbosity::Verbosity;
use crate::machine::MachineKind;
use crate::route::TransportKind;
use crate::select::Filter;

/// A tunable that is a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Key {
    /// `CONGRUENT_HEAP`.
    Heap,
    /// `CONGRUENT_DEADLINE_MS`.
    DeadlineMs,
    /// `CONGRUENT_CPU_WIDTH`.
    CpuWidth,
    /// `CONGRUENT_MAX_BLOCKS`.
    MaxBlocks,
    /// `CONGRUENT_P2P_DISABLE`.
    P2pDisable,
    /// `CONGRUENT_BUFFSIZE`.
    BuffSize,
    /// `CONGRUENT_LL128_ENABLE`.
    Ll128Enable,
    /// `CONGRUENT_NVLS_ENABLE`.
    NvlsEnable,
    /// `CONGRUENT_LAZY_LOADING`.
    LazyLoading,
    /// `CONGRUENT_CHECK`.
    Check,
    /// `CONGRUENT_WATCH`.
    Watch,
    /// `CONGRUENT_HEAP_MAX`.
    HeapMax,
    /// `CONGRUENT_IB_DISABLE`.
    IbDisable,
    /// `CONGRUENT_GDR_DISABLE`.
    GdrDisable,
    /// `CONGRUENT_IB_TIMEOUT`.
    IbTimeout,
    /// `CONGRUENT_IB_RETRY_CNT`.
    IbRetryCnt,
}

/// A tunable that is text, and is unset unless someone sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum TextKey {
    /// `CONGRUENT_ALGO`.
    Algo,
    /// `CONGRUENT_PROTO`.
    Proto,
    /// `CONGRUENT_TUNING`.
    Tuning,
    /// `CONGRUENT_TRACE`.
    Trace,
    /// `CONGRUENT_DEBUG`.
    Debug,
    /// `CONGRUENT_DEBUG_SUBSYS`.
    DebugSubsys,
    /// `CONGRUENT_MACHINE`.
    Machine,
    /// `CONGRUENT_DEVICE`.
    Device,
    /// `CONGRUENT_PTX`.
    Ptx,
    /// `CONGRUENT_TRANSPORT`.
    Transport,
    /// `CONGRUENT_SOCKET_IFNAME`.
    SocketIfname,
    /// `CONGRUENT_LIBFABRIC_PROVIDER`.
    LibfabricProvider,
    /// `CONGRUENT_IB_HCA`.
    IbHca,
    /// `CONGRUENT_IB_GID_INDEX`.
    IbGidIndex,
}

/// A number's row in the table that `congruent info` prints.
#[derive(Debug)]
pub struct Tunable {
    /// Which.
    pub key: Key,
    /// The environment variable.
    pub name: &'static str,
    /// What it does, in a line.
    pub meaning: &'static str,
    /// The built-in value.
    pub default: u64,
    /// Smallest and largest value.
    pub range: (u64, u64),
    /// Whether `K`, `M` and `G` may follow the number.
    pub is_size: bool,
}

/// A text's row in the table that `congruent info` prints.
#[derive(Debug)]
pub struct TextTunable {
    /// Which.
    pub key: TextKey,
    /// The environment variable.
    pub name: &'static str,
    /// What it does, in a line.
    pub meaning: &'static str,
    /// What it may be, in a few words.
    pub form: &'static str,
    /// Whether a value can be read, and what is wrong if not.
    pub(super) check: fn(&str) -> Result<(), String>,
}

/// All tunables that are numbers.
pub const TABLE: [Tunable; 16] = [
    Tunable {
        key: Key::Heap,
        name: "CONGRUENT_HEAP",
        meaning: "bytes of the symmetric heap of each PE (K, M, G may follow)",
        default: 64 << 20,
        range: (2 << 20, 1 << 44),
        is_size: true,
    },
    Tunable {
        key: Key::DeadlineMs,
        name: "CONGRUENT_DEADLINE_MS",
        meaning: "longest that one wait may take, in milliseconds; 0 for no bound",
        default: 60_000,
        range: (0, 1 << 40),
        is_size: false,
    },
    Tunable {
        key: Key::CpuWidth,
        name: "CONGRUENT_CPU_WIDTH",
        meaning: "lanes of a warp on the CPU machine: 1 is fastest, 32 is most like a GPU",
        default: 1,
        range: (1, 32),
        is_size: false,
    },
    Tunable {
        key: Key::MaxBlocks,
        name: "CONGRUENT_MAX_BLOCKS",
        meaning: "most blocks of one launch; each gets a slot in every team's barrier",
        default: 64,
        range: (1, 1024),
        is_size: false,
    },
    Tunable {
        key: Key::P2pDisable,
        name: "CONGRUENT_P2P_DISABLE",
        meaning: "1: reach every peer through the proxy instead of by load and store",
        default: 0,
        range: (0, 1),
        is_size: false,
    },
    Tunable {
        key: Key::BuffSize,
        name: "CONGRUENT_BUFFSIZE",
        meaning: "bytes of scratch of a communicator's stream for each protocol, of which those with flags take 1M at most for each block (K, M, G may follow); where that is more, on GPUs a 128th of the heap, at most 8M, and on the CPU machine with proxied peers a 32nd, at most 4M",
        default: 1 << 20,
        range: (64 << 10, 1 << 30),
        is_size: true,
    },
    Tunable {
        key: Key::Ll128Enable,
        name: "CONGRUENT_LL128_ENABLE",
        meaning: "1: use the protocol LL128 where its self-test passes",
        default: 0,
        range: (0, 1),
        is_size: false,
    },
    Tunable {
        key: Key::NvlsEnable,
        name: "CONGRUENT_NVLS_ENABLE",
        meaning: "multicast, by which the NVLink switch reduces and replicates: 0 never, 1 required, 2 where the machine has it",
        default: 2,
        range: (0, 2),
        is_size: false,
    },
    Tunable {
        key: Key::LazyLoading,
        name: "CONGRUENT_LAZY_LOADING",
        meaning: "1: compile and load each of the library's kernels before its first launch on a GPU, which then may have to be idle, instead of all with the world",
        default: 0,
        range: (0, 1),
        is_size: false,
    },
    Tunable {
        key: Key::Check,
        name: "CONGRUENT_CHECK",
        meaning: "PEs compare every collective that the host calls: 0 never, 1 always, 2 on the CPU machine",
        default: 2,
        range: (0, 2),
        is_size: false,
    },
    Tunable {
        key: Key::Watch,
        name: "CONGRUENT_WATCH",
        meaning: "1: count the bytes that kernels move from PE to PE (World::traffic); kernels get slower",
        default: 0,
        range: (0, 1),
        is_size: false,
    },
    Tunable {
        key: Key::HeapMax,
        name: "CONGRUENT_HEAP_MAX",
        meaning: "bytes that the heap of each PE may grow to (K, M, G may follow); up to CONGRUENT_HEAP it does not grow",
        default: 0,
        range: (0, 1 << 44),
        is_size: true,
    },
    Tunable {
        key: Key::IbDisable,
        name: "CONGRUENT_IB_DISABLE",
        meaning: "1: PEs of several hosts take libfabric, though every one has an RDMA device",
        default: 0,
        range: (0, 1),
        is_size: false,
    },
    Tunable {
        key: Key::GdrDisable,
        name: "CONGRUENT_GDR_DISABLE",
        meaning: "1: RDMA devices do not get the memory of GPUs, and proxies stage it through the host",
        default: 0,
        range: (0, 1),
        is_size: false,
    },
    Tunable {
        key: Key::IbTimeout,
        name: "CONGRUENT_IB_TIMEOUT",
        meaning: "how long an RDMA request may be without answer before it is sent again: 4.096 us times two to the power of this",
        default: 17,
        range: (1, 31),
        is_size: false,
    },
    Tunable {
        key: Key::IbRetryCnt,
        name: "CONGRUENT_IB_RETRY_CNT",
        meaning: "how often it is sent again, before its connection is made anew",
        default: 6,
        range: (0, 7),
        is_size: false,
    },
];

/// All tunables that are text.
pub const TEXTS: [TextTunable; 14] = [
    TextTunable {
        key: TextKey::Algo,
        name: "CONGRUENT_ALGO",
        meaning: "algorithms to choose from, as in NCCL_ALGO; where none is possible the call is an error",
        form: "ring,tree;allreduce:^tree",
        check: |text| Filter::<Algorithm>::parse(text).map(drop).map_err(|error| error.to_string()),
    },
    TextTunable {
        key: TextKey::Proto,
        name: "CONGRUENT_PROTO",
        meaning: "protocols to choose from, as in NCCL_PROTO; where none is possible the call is an error",
        form: "simple,ll;broadcast:^ll",
        check: |text| {
            Filter::parse(text)
                .and_then(|filter| filter.over(Protocol::ALL))
                .map(drop)
                .map_err(|error| error.to_string())
        },
    },
    TextTunable {
        key: TextKey::Tuning,
        name: "CONGRUENT_TUNING",
        meaning: "table of measured times to choose by, written by `congruent perf --tune`",
        form: "a file",
        check: path,
    },
    TextTunable {
        key: TextKey::Trace,
        name: "CONGRUENT_TRACE",
        meaning: "where to write a trace of kernels and, on the CPU machine and of kernels built with congruent-device/trace, of their puts, waits and steps, for Perfetto",
        form: "a file",
        check: path,
    },
    TextTunable {
        key: TextKey::Debug,
        name: "CONGRUENT_DEBUG",
        meaning: "what the library tells of itself on standard error, each with what those before show",
        form: "version, warn, info, trace",
        check: |text| Verbosity::parse(Some(text), None).map(drop),
    },
    TextTunable {
        key: TextKey::DebugSubsys,
        name: "CONGRUENT_DEBUG_SUBSYS",
        meaning: "of these parts only; of all but these after ^",
        form: "init,coll or ^proxy",
        check: |text| Verbosity::parse(None, Some(text)).map(drop),
    },
    TextTunable {
        key: TextKey::Machine,
        name: "CONGRUENT_MACHINE",
        meaning: "what runs kernels; auto takes GPUs where every PE has one, and so does unset, which warns where one has none",
        form: "auto or cpu or cuda or virtual",
        check: |text| {
            MachineKind::parse(text).map(drop).ok_or_else(|| "expected auto, cpu, cuda or virtual".to_owned())
        },
    },
    TextTunable {
        key: TextKey::Device,
        name: "CONGRUENT_DEVICE",
        meaning: "the GPUs that PEs take in turn, of those that CUDA_VISIBLE_DEVICES leaves; unset, all",
        form: "0 or 0,2",
        check: |text| {
            let all = text.split(',').all(|ordinal| ordinal.parse::<u32>().is_ok());
            all.then_some(()).ok_or_else(|| "expected indices of GPUs, from 0 on, with commas between them".to_owned())
        },
    },
    TextTunable {
        key: TextKey::Ptx,
        name: "CONGRUENT_PTX",
        meaning: "PTX for kernels whose crates embed none, or in place of what the crate of a file's name embeds, as congruent-build writes it",
        form: "a file or two.ptx,files.ptx",
        check: path,
    },
    TextTunable {
        key: TextKey::Transport,
        name: "CONGRUENT_TRANSPORT",
        meaning: "how proxies reach peers: memory of one host, libfabric, or RDMA; unset, on several hosts verbs where every PE has a device, or else fabric",
        form: "local or fabric or verbs",
        check: |text| TransportKind::parse(text).map(drop).ok_or_else(|| "expected local, fabric or verbs".to_owned()),
    },
    TextTunable {
        key: TextKey::SocketIfname,
        name: "CONGRUENT_SOCKET_IFNAME",
        meaning: "the network interface of CONGRUENT_TRANSPORT=fabric; unset, the first that libfabric offers",
        form: "eth0",
        check: |text| {
            one_name(text).ok_or_else(|| "expected the whole name of one interface; see `ip link`".to_owned())
        },
    },
    TextTunable {
        key: TextKey::LibfabricProvider,
        name: "CONGRUENT_LIBFABRIC_PROVIDER",
        meaning: "the provider of CONGRUENT_TRANSPORT=fabric; unset, tcp;ofi_rxm",
        form: "efa or cxi",
        check: |text| one_name(text).ok_or_else(|| "expected the name of one provider; see `fi_info -l`".to_owned()),
    },
    TextTunable {
        key: TextKey::IbHca,
        name: "CONGRUENT_IB_HCA",
        meaning: "the RDMA devices that PEs of a host take in turn, with a port or without; unset, all that are active",
        form: "mlx5_0 or mlx5_0,mlx5_1:2",
        check: |text| {
            let is_one = |one: &str| {
                let (name, port) = one.split_once(':').unwrap_or((one, "1"));
                !name.is_empty() && !name.contains(['^', '=']) && port.parse::<u8>().is_ok_and(|port| port > 0)
            };
            let all = text.split(',').all(is_one);
            all.then_some(())
                .ok_or_else(|| "expected whole names of devices, with commas between them; see `rdma link`".to_owned())
        },
    },
    TextTunable {
        key: TextKey::IbGidIndex,
        name: "CONGRUENT_IB_GID_INDEX",
        meaning: "which of a RoCE port's addresses is used; unset, the first of RoCE v2 with an IPv4 address",
        form: "3",
        check: |text| text.parse::<u8>().map(drop).map_err(|_| "expected an index from 0 to 255".to_owned()),
    },
];

fn path(text: &str) -> Result<(), String> {
    if text.is_empty() { Err("expected the path of a file; unset it for none".to_owned()) } else { Ok(()) }
}

/// Of a text that names one thing, and neither a list of them nor all but some.
fn one_name(text: &str) -> Option<()> {
    (!text.is_empty() && !text.contains([',', '^', '='])).then_some(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn rows_stand_at_their_keys() {
        for (i, row) in TABLE.iter().enumerate() {
            assert_eq!(row.key as usize, i);
            assert!(row.default >= row.range.0 && row.default <= row.range.1, "{}", row.name);
        }
        for (i, row) in TEXTS.iter().enumerate() {
            assert_eq!(row.key as usize, i);
            assert!((row.check)("").is_err(), "{}", row.name);
        }
    }

    /// A row that nothing reads has no effect.
    #[test]
    fn every_row_is_read_by_the_product() {
        let (mut product, mut folders) = (String::new(), vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if !path.ends_with("tests.rs") {
                    // Tests stand at the ends of their files.
                    product += fs::read_to_string(path).unwrap().split("#[cfg(test)]\nmod tests {").next().unwrap();
                }
            }
        }
        for row in &TABLE {
            assert!(product.contains(&format!(".get(Key::{:?})", row.key)), "nobody reads {}", row.name);
        }
        for row in &TEXTS {
            assert!(product.contains(&format!(".text(TextKey::{:?})", row.key)), "nobody reads {}", row.name);
        }
    }

    #[test]
    fn the_forms_that_are_shown_are_accepted() {
        for row in TEXTS {
            let forms = match row.key {
                TextKey::Debug => row.form.split(", ").collect::<Vec<_>>(),
                _ => row.form.split(" or ").collect(),
            };
            for form in forms {
                assert_eq!((row.check)(form), Ok(()), "{}", row.name);
            }
        }
    }
}
