//! NUMA nodes, cores and caches.

use std::collections::{BTreeMap, BTreeSet};

use super::cpu_set::CpuSet;
use super::model::{Cache, Cpu};
use super::sysfs::Sysfs;

const NODES: &str = "sys/devices/system/node";
const CPUS: &str = "sys/devices/system/cpu";

/// The NUMA nodes that have cores or memory; one that is unknown where the system names none.
pub(super) fn nodes(sysfs: &Sysfs) -> Vec<Cpu> {
    let nodes: Vec<Cpu> = sysfs.numbered(NODES, "node").into_iter().map(|numa| node(sysfs, numa)).collect();
    if nodes.is_empty() { vec![unknown_node(sysfs)] } else { nodes }
}

/// A node without a number: that of a machine that names none, or of devices that belong to none.
pub(super) fn nowhere(sysfs: &Sysfs) -> Cpu {
    let text = sysfs.text("proc/cpuinfo").unwrap_or_default();
    let first = |names: &[&str]| {
        let mut fields = text.lines().take_while(|line| !line.is_empty()).filter_map(|line| line.split_once(':'));
        let found = fields.find(|(name, _)| names.contains(&name.trim()))?.1.trim().to_owned();
        (!found.is_empty()).then_some(found)
    };
    let number = |names| first(names).and_then(|value| number(&value));
    Cpu {
        arch: Some(arch().to_owned()),
        vendor: first(&["vendor_id", "CPU implementer"]),
        family: number(&["cpu family", "CPU architecture"]),
        model: number(&["model", "CPU part"]),
        name: first(&["model name"]),
        ..Cpu::default()
    }
}

fn unknown_node(sysfs: &Sysfs) -> Cpu {
    let affinity = sysfs.text(&format!("{CPUS}/online")).and_then(|list| CpuSet::from_list(&list));
    with_cores(sysfs, Cpu { affinity, ..nowhere(sysfs) })
}

fn node(sysfs: &Sysfs, numa: u32) -> Cpu {
    let file = |name: &str| sysfs.text(&format!("{NODES}/node{numa}/{name}"));
    let list = || file("cpulist").and_then(|list| CpuSet::from_list(&list));
    let affinity = file("cpumap").and_then(|mask| CpuSet::from_mask(&mask)).or_else(list);
    let memory = file("meminfo").and_then(|text| total_bytes(&text));
    with_cores(sysfs, Cpu { numa: Some(numa), affinity, memory, ..nowhere(sysfs) })
}

fn with_cores(sysfs: &Sysfs, cpu: Cpu) -> Cpu {
    let Some(affinity) = &cpu.affinity else { return cpu };
    let threads: Option<BTreeSet<(i64, i64)>> = affinity.iter().map(|thread| core(sysfs, thread)).collect();
    let cores = threads.map(|cores| cores.len() as u32).filter(|&cores| cores > 0);
    Cpu { cores, caches: caches(sysfs, affinity), ..cpu }
}

/// Package and core of a hardware thread.
fn core(sysfs: &Sysfs, thread: u32) -> Option<(i64, i64)> {
    let file = |name: &str| sysfs.number(&format!("{CPUS}/cpu{thread}/topology/{name}"));
    Some((file("physical_package_id")?, file("core_id")?))
}

/// What is shared by the same threads is one cache.
fn caches(sysfs: &Sysfs, affinity: &CpuSet) -> Vec<Cache> {
    let mut found: BTreeMap<(u32, String, u64), BTreeSet<String>> = BTreeMap::new();
    for thread in affinity.iter() {
        let folder = format!("{CPUS}/cpu{thread}/cache");
        for index in sysfs.numbered(&folder, "index") {
            let file = |name: &str| sysfs.text(&format!("{folder}/index{index}/{name}"));
            let level = file("level").and_then(|level| level.parse().ok());
            let size = file("size").and_then(|size| bytes(&size));
            let (Some(level), Some(kind), Some(size)) = (level, file("type"), size) else { continue };
            let users = file("shared_cpu_list").unwrap_or_else(|| thread.to_string());
            found.entry((level, kind, size)).or_default().insert(users);
        }
    }
    let cache = |((level, kind, size), users): (_, BTreeSet<_>)| Cache { level, kind, size, count: users.len() as u32 };
    found.into_iter().map(cache).collect()
}

/// As NCCL names architectures.
fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64",
        "powerpc64" => "ppc64",
        other => other,
    }
}

/// Decimal, or hexadecimal with `0x`, as Arm's numbers are.
fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// `Node 0 MemTotal:  15689940 kB`
fn total_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| Some(line.split_once("MemTotal:")?.1))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1 << 10)
}

/// `48K`
fn bytes(size: &str) -> Option<u64> {
    let unit = match size.chars().last()? {
        'K' => 1 << 10,
        'M' => 1 << 20,
        'G' => 1 << 30,
        _ => 1,
    };
    size.trim_end_matches(['K', 'M', 'G']).parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::fake::Fake;

    #[test]
    fn two_sockets_are_two_nodes_with_their_threads_cores_and_caches() {
        let nodes = nodes(&Fake::dgx().sysfs());
        assert_eq!(nodes.len(), 2);
        let node = &nodes[1];
        assert_eq!((node.numa, node.cores, node.memory), (Some(1), Some(2), Some(1 << 30)));
        assert_eq!(node.affinity.as_ref().map(CpuSet::to_string).as_deref(), Some("2-3,6-7"));
        assert_eq!((node.vendor.as_deref(), node.family, node.model), (Some("GenuineIntel"), Some(6), Some(143)));
        assert_eq!(node.name.as_deref(), Some("Xeon Platinum 8480C"));
        let caches: Vec<_> = node.caches.iter().map(|cache| (cache.level, cache.size, cache.count)).collect();
        assert_eq!(caches, [(1, 48 << 10, 2), (3, 105 << 20, 1)]);
    }

    #[test]
    fn of_a_machine_that_says_nothing_only_the_architecture_is_known() {
        let nodes = nodes(&Fake::empty().sysfs());
        assert_eq!(nodes, [Cpu { arch: Some(arch().to_owned()), ..Cpu::default() }]);
    }

    #[test]
    fn threads_are_known_where_nodes_are_not() {
        let fake = Fake::empty();
        fake.file("sys/devices/system/cpu/online", "0-2");
        let nodes = nodes(&fake.sysfs());
        assert_eq!((nodes.len(), nodes[0].numa, nodes[0].cores), (1, None, None));
        assert_eq!(nodes[0].affinity.as_ref().map(CpuSet::len), Some(3));
    }

    #[test]
    fn arm_processors_are_known_by_their_numbers() {
        let fake = Fake::empty();
        fake.file("proc/cpuinfo", "processor\t: 0\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd4f\n");
        let cpu = nowhere(&fake.sysfs());
        assert_eq!((cpu.vendor.as_deref(), cpu.family, cpu.model), (Some("0x41"), Some(8), Some(0xd4f)));
    }

    #[test]
    fn sizes_that_do_not_fit_are_unknown() {
        assert_eq!((bytes("48K"), bytes("2M"), bytes("64")), (Some(48 << 10), Some(2 << 20), Some(64)));
        assert_eq!((bytes("99999999999999999999K"), bytes("18446744073709551615K"), bytes("é")), (None, None, None));
        assert_eq!(total_bytes("Node 0 MemTotal: many kB"), None);
    }
}
