//! PCI devices, and their places in the tree.

use std::path::Path;

use super::cpu;
use super::model::{Pci, Topology};
use super::sysfs::Sysfs;

/// Where each device has a folder.
pub(super) const DEVICES: &str = "sys/bus/pci/devices";

/// The bus addresses in the real path of a device, the topmost first: those of the ports above it, and its own.
pub(super) fn chain(path: &Path) -> Vec<String> {
    let names = path.components().filter_map(|component| component.as_os_str().to_str());
    names.filter(|name| is_address(name)).map(str::to_owned).collect()
}

/// A bus address as the kernel writes it, from one in capitals or with more zeros, as NVIDIA's library writes it.
pub(super) fn address(text: &str) -> String {
    let text = text.to_ascii_lowercase();
    match text.split_once(':') {
        Some((domain, rest)) => format!("{:0>4}:{rest}", domain.trim_start_matches('0')),
        None => text,
    }
}

/// Domain, bus, device and function: `0000:18:00.0`.
fn is_address(name: &str) -> bool {
    let is_hex = |part: &str, len: usize| part.len() >= len && part.bytes().all(|digit| digit.is_ascii_hexdigit());
    let parts: Vec<&str> = name.split([':', '.']).collect();
    let [domain, bus, device, function] = parts[..] else { return false };
    let lengths = is_hex(domain, 4) && is_hex(bus, 2) && is_hex(device, 2) && is_hex(function, 1);
    lengths && name.len() - domain.len() == ":18:00.0".len()
}

/// The device at the end of a chain, put into the tree if it is not there yet, and the switches above it with it.
pub(super) fn place<'t>(topology: &'t mut Topology, sysfs: &Sysfs, chain: &[String]) -> Option<&'t mut Pci> {
    // As in NCCL: a switch is its upstream port, which lies two steps above what is plugged into it.
    let mut nodes: Vec<&String> = chain.iter().rev().step_by(2).collect();
    let device = nodes.first().copied()?;
    nodes.reverse();
    let node = node(topology, sysfs, chain);
    let mut level = &mut topology.cpus[node].pci;
    for switch in &nodes[..nodes.len() - 1] {
        let at = find(level, sysfs, switch);
        level = &mut level[at].pci;
    }
    let at = find(level, sysfs, device);
    Some(&mut level[at])
}

/// The index of a device among its neighbours, which are kept in the order of their addresses.
fn find(level: &mut Vec<Pci>, sysfs: &Sysfs, busid: &String) -> usize {
    match level.binary_search_by(|pci| pci.busid.cmp(busid)) {
        Ok(at) => at,
        Err(at) => {
            level.insert(at, read(sysfs, busid));
            at
        }
    }
}

/// The index of the NUMA node whose tree the chain is in.
fn node(topology: &mut Topology, sysfs: &Sysfs, chain: &[String]) -> usize {
    let numa = |busid: &String| sysfs.number::<u32>(&format!("{DEVICES}/{busid}/numa_node"));
    // -1, where the system does not say, is no u32.
    let numa = chain.iter().find_map(numa);
    let cpus = &mut topology.cpus;
    match cpus.iter().position(|cpu| cpu.numa == numa) {
        Some(at) => at,
        // A machine with one node has all its devices there.
        None if numa.is_none() && cpus.len() == 1 => 0,
        None => {
            cpus.push(super::model::Cpu { numa, ..cpu::nowhere(sysfs) });
            cpus.len() - 1
        }
    }
}

/// What its folder says of a device.
fn read(sysfs: &Sysfs, busid: &str) -> Pci {
    let file = |name: &str| sysfs.text(&format!("{DEVICES}/{busid}/{name}"));
    // A link does no more than its slower end; the port above is the folder above.
    let speeds = [file("max_link_speed"), file("../max_link_speed")].into_iter().flatten();
    let speeds = speeds.filter_map(|text| Some((transfers(&text)?, text)));
    let widths = [file("max_link_width"), file("../max_link_width")].into_iter().flatten();
    Pci {
        busid: busid.to_owned(),
        class: file("class"),
        vendor: file("vendor"),
        device: file("device"),
        subsystem_vendor: file("subsystem_vendor"),
        subsystem_device: file("subsystem_device"),
        link_speed: speeds.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, text)| text),
        // Virtual machines say 0 or 255 for what they do not know.
        link_width: widths.filter_map(|text| text.parse().ok()).filter(|width| (1..=32).contains(width)).min(),
        ..Pci::default()
    }
}

/// The number in `32.0 GT/s PCIe`; virtual machines say `Unknown`.
fn transfers(speed: &str) -> Option<f64> {
    speed.split_once("GT/s")?.0.trim().parse().ok().filter(|&speed: &f64| speed > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::fake::Fake;

    #[test]
    fn addresses_are_told_from_other_names() {
        for name in ["0000:18:00.0", "10000:e1:00.0", "00ab:ff:1f.7"] {
            assert!(is_address(name), "{name}");
        }
        for name in ["pci0000:00", "0000:18:00", "0000:18:00.00", "000g:18:00.0", "virtio2", "00000018000", "::.", ""] {
            assert!(!is_address(name), "{name}");
        }
    }

    #[test]
    fn addresses_of_the_library_are_those_of_the_kernel() {
        assert_eq!(address("00000000:1A:00.0"), "0000:1a:00.0");
        assert_eq!(address("00010000:E1:00.0"), "10000:e1:00.0");
        assert_eq!(address("0000:18:00.0"), "0000:18:00.0");
        assert_eq!(address("nothing"), "nothing");
    }

    #[test]
    fn a_switch_is_its_upstream_port_and_a_link_as_fast_as_its_slower_end() {
        let fake = Fake::dgx();
        let sysfs = fake.sysfs();
        let path = sysfs.real(&format!("{DEVICES}/0000:18:00.0")).unwrap();
        let chain = chain(&path);
        assert_eq!(chain, ["0000:15:01.0", "0000:16:00.0", "0000:17:00.0", "0000:18:00.0"]);
        let mut topology = Topology { cpus: cpu::nodes(&sysfs) };
        let gpu = place(&mut topology, &sysfs, &chain).unwrap();
        assert_eq!((gpu.busid.as_str(), gpu.class.as_deref()), ("0000:18:00.0", Some("0x030200")));
        assert_eq!((gpu.link_speed.as_deref(), gpu.link_width), (Some("16.0 GT/s PCIe"), Some(16)));
        let switch = &topology.cpus[0].pci[0];
        assert_eq!((switch.busid.as_str(), switch.pci.len()), ("0000:16:00.0", 1));
        assert!(place(&mut topology, &sysfs, &[]).is_none());
    }

    #[test]
    fn devices_of_no_node_are_kept_apart_where_there_are_several() {
        let fake = Fake::dgx();
        let lost = "0000:ff:00.0".to_owned();
        fake.file(&format!("{DEVICES}/{lost}/numa_node"), "-1");
        fake.file(&format!("{DEVICES}/{lost}/max_link_speed"), "Unknown");
        fake.file(&format!("{DEVICES}/{lost}/max_link_width"), "255");
        let mut topology = Topology { cpus: cpu::nodes(&fake.sysfs()) };
        let pci = place(&mut topology, &fake.sysfs(), std::slice::from_ref(&lost)).unwrap();
        assert_eq!((&pci.link_speed, pci.link_width), (&None, None));
        assert_eq!((topology.cpus.len(), topology.cpus[2].numa), (3, None));

        let mut alone = Topology { cpus: vec![topology.cpus.remove(0)] };
        place(&mut alone, &fake.sysfs(), &[lost]).unwrap();
        assert_eq!((alone.cpus.len(), alone.cpus[0].pci.len()), (1, 1));
    }
}
