//! How far devices are from each other, in NCCL's classes.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::model::{Cpu, NvLink, Pci, Topology};

/// What a path between two devices has to cross. The further, the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Class {
    /// Nothing: it is one device.
    Loc,
    /// NVLinks.
    Nvl,
    /// One PCI switch.
    Pix,
    /// Several PCI switches, but no CPU.
    Pxb,
    /// A CPU's host bridge.
    Phb,
    /// The links between NUMA nodes.
    Sys,
    /// The network: they are in different machines.
    Net,
}

impl Class {
    pub(crate) const ALL: [Self; 7] = [Self::Loc, Self::Nvl, Self::Pix, Self::Pxb, Self::Phb, Self::Sys, Self::Net];

    /// What it means, in a line.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Self::Loc => "the same device",
            Self::Nvl => "NVLink",
            Self::Pix => "one PCI switch",
            Self::Pxb => "several PCI switches",
            Self::Phb => "the CPU's PCI host bridge",
            Self::Sys => "the link between NUMA nodes",
            Self::Net => "the network",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Loc => "LOC",
            Self::Nvl => "NVL",
            Self::Pix => "PIX",
            Self::Pxb => "PXB",
            Self::Phb => "PHB",
            Self::Sys => "SYS",
            Self::Net => "NET",
        })
    }
}

/// The classes between all GPUs and network interfaces, GPUs first.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Paths {
    /// The devices' names, no two alike.
    pub(crate) devices: Vec<String>,
    /// How many of them are GPUs.
    pub(crate) gpus: usize,
    /// A row for each device.
    pub(crate) classes: Vec<Vec<Class>>,
}

impl Paths {
    /// Finds them in the tree.
    pub(crate) fn of(topology: &Topology) -> Self {
        let mut found = Found::default();
        for (node, cpu) in topology.cpus.iter().enumerate() {
            for pci in &cpu.pci {
                found.walk(pci, &mut Place { node, cpu, chain: Vec::new() });
            }
            let nets = cpu.nets.iter().map(|net| net.name.clone());
            found.nets.extend(nets.map(|name| Device { name, node, cpu, chain: Vec::new(), links: &[] }));
        }
        let gpus = found.gpus.len();
        found.gpus.append(&mut found.nets);
        let mut devices = found.gpus;
        tell_apart(&mut devices);
        let row = |a: usize| (0..devices.len()).map(|b| class(&devices, a, b)).collect();
        let classes = (0..devices.len()).map(row).collect();
        Self { devices: devices.into_iter().map(|device| device.name).collect(), gpus, classes }
    }
}

/// A GPU or an interface.
struct Device<'t> {
    name: String,
    /// The index of its NUMA node.
    node: usize,
    cpu: &'t Cpu,
    /// The bus addresses from the NUMA node to the device; none of an interface that is no PCI device's.
    chain: Vec<&'t str>,
    links: &'t [NvLink],
}

struct Place<'t> {
    node: usize,
    cpu: &'t Cpu,
    chain: Vec<&'t str>,
}

#[derive(Default)]
struct Found<'t> {
    gpus: Vec<Device<'t>>,
    nets: Vec<Device<'t>>,
}

impl<'t> Found<'t> {
    fn walk(&mut self, pci: &'t Pci, place: &mut Place<'t>) {
        place.chain.push(&pci.busid);
        let device = |name, links| Device { name, node: place.node, cpu: place.cpu, chain: place.chain.clone(), links };
        for gpu in &pci.gpus {
            let name = gpu.dev.map_or_else(|| format!("GPU@{}", pci.busid), |dev| format!("GPU{dev}"));
            self.gpus.push(device(name, &gpu.nvlinks[..]));
        }
        self.nets.extend(pci.nic.iter().flatten().map(|net| device(net.name.clone(), &[])));
        for below in &pci.pci {
            self.walk(below, place);
        }
        place.chain.pop();
    }
}

/// Adds a number to names that are not the only ones, as those of a card's ports.
fn tell_apart(devices: &mut [Device<'_>]) {
    let mut uses: BTreeMap<String, u32> = BTreeMap::new();
    for device in &*devices {
        *uses.entry(device.name.clone()).or_default() += 1;
    }
    uses.retain(|_, count| *count > 1);
    for device in devices.iter_mut().rev() {
        if let Some(number) = uses.get_mut(&device.name) {
            device.name = format!("{}:{number}", device.name);
            *number -= 1;
        }
    }
}

fn class(devices: &[Device<'_>], a: usize, b: usize) -> Class {
    let (one, other) = (&devices[a], &devices[b]);
    let same_device = one.node == other.node && one.chain == other.chain && !one.chain.is_empty();
    if a == b || same_device {
        return Class::Loc;
    }
    if joined(one, other) {
        return Class::Nvl;
    }
    if one.node != other.node {
        return if one.cpu.host == other.cpu.host { Class::Sys } else { Class::Net };
    }
    let common = one.chain.iter().zip(&other.chain).take_while(|(one, other)| one == other).count();
    if common == 0 {
        return Class::Phb;
    }
    // All that lies between, but for the two devices themselves and the switch where their ways meet.
    let others = |device: &Device<'_>| device.chain.len().saturating_sub(common + 1);
    if others(one) + others(other) == 0 { Class::Pix } else { Class::Pxb }
}

/// Whether NVLinks join two GPUs, directly or by switches, which all GPUs of an NVLink domain share.
fn joined(one: &Device<'_>, other: &Device<'_>) -> bool {
    let leads_to = |links: &[NvLink], chain: &[&str]| links.iter().any(|link| chain.last() == Some(&&*link.target));
    let switched = |links: &[NvLink]| links.iter().any(NvLink::leads_to_switch);
    let same_host = one.cpu.host == other.cpu.host;
    same_host && (leads_to(one.links, &other.chain) || leads_to(other.links, &one.chain))
        || switched(one.links) && switched(other.links)
}

impl NvLink {
    /// Whether the other end is an NVSwitch.
    pub(super) fn leads_to_switch(&self) -> bool {
        self.tclass.as_deref().is_some_and(|class| class.starts_with("0x068000"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::fake::Fake;
    use crate::topology::model::{Gpu, Net};

    fn gpu(dev: u32, links: &[(&str, &str)]) -> Pci {
        let link = |&(target, tclass): &(&str, &str)| NvLink {
            target: target.to_owned(),
            count: 1,
            tclass: Some(tclass.to_owned()),
        };
        let gpu = Gpu { dev: Some(dev), nvlinks: links.iter().map(link).collect(), ..Gpu::default() };
        Pci { busid: format!("0000:{dev:02x}:00.0"), gpus: vec![gpu], ..Pci::default() }
    }

    fn switch(busid: &str, pci: Vec<Pci>) -> Pci {
        Pci { busid: busid.to_owned(), pci, ..Pci::default() }
    }

    fn classes(cpus: Vec<Cpu>) -> Vec<String> {
        let paths = Paths::of(&Topology { cpus });
        paths.classes.iter().map(|row| row.iter().map(Class::to_string).collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn the_small_dgx_has_three_classes_without_nvlink() {
        let paths = Paths::of(&Topology::detect(&Fake::dgx().sysfs()));
        assert_eq!(paths.devices, ["GPU0", "GPU1", "GPU2", "GPU3", "mlx5_0", "mlx5_1", "eth0"]);
        assert_eq!(paths.gpus, 4);
        use Class::{Loc, Phb, Pix, Sys};
        assert_eq!(paths.classes[0], [Loc, Pix, Sys, Sys, Pix, Sys, Sys]);
        assert_eq!(paths.classes[3], [Sys, Sys, Pix, Loc, Sys, Pix, Phb]);
        for (a, row) in paths.classes.iter().enumerate() {
            for (b, &class) in row.iter().enumerate() {
                assert_eq!(class, paths.classes[b][a], "the way back is as long");
            }
        }
    }

    #[test]
    fn two_switches_are_further_than_one_and_a_bridge_further_still() {
        let inner = switch("0000:51:00.0", vec![gpu(0, &[]), gpu(1, &[])]);
        let outer = switch("0000:50:00.0", vec![inner, gpu(2, &[])]);
        let cpu = Cpu { numa: Some(0), pci: vec![outer, gpu(3, &[])], ..Cpu::default() };
        let expected = ["LOC PIX PXB PHB", "PIX LOC PXB PHB", "PXB PXB LOC PHB", "PHB PHB PHB LOC"];
        assert_eq!(classes(vec![cpu]), expected);
    }

    #[test]
    fn nvlink_is_nearer_than_pci_whether_direct_or_switched() {
        let node = |numa, pci| Cpu { numa: Some(numa), pci, ..Cpu::default() };
        let direct = gpu(0, &[("0000:01:00.0", "0x030200")]);
        assert_eq!(
            classes(vec![node(0, vec![direct]), node(1, vec![gpu(1, &[]), gpu(2, &[])])]),
            ["LOC NVL SYS", "NVL LOC PHB", "SYS PHB LOC"]
        );
        let switched = |dev| gpu(dev, &[("0000:c4:00.0", "0x068000")]);
        assert_eq!(classes(vec![node(0, vec![switched(0)]), node(1, vec![switched(1)])]), ["LOC NVL", "NVL LOC"]);
    }

    #[test]
    fn different_machines_are_joined_by_the_network_or_by_nvlink() {
        let node = |host: &str, pci| Cpu { numa: Some(0), host: Some(host.to_owned()), pci, ..Cpu::default() };
        assert_eq!(
            classes(vec![node("0xa", vec![gpu(0, &[])]), node("0xb", vec![gpu(1, &[])])]),
            ["LOC NET", "NET LOC"]
        );
    }

    #[test]
    fn ports_of_a_card_are_one_device_and_have_names_of_their_own() {
        let net = |port| Net { name: "mlx5_0".into(), port: Some(port), ..Net::default() };
        let card = Pci { busid: "0000:1a:00.0".into(), nic: Some(vec![net(1), net(2)]), ..Pci::default() };
        let inner = |name: &str| Net { name: name.into(), ..Net::default() };
        let cpu = Cpu { pci: vec![card], nets: vec![inner("eth0"), inner("eth1")], ..Cpu::default() };
        let paths = Paths::of(&Topology { cpus: vec![cpu] });
        assert_eq!(
            (&paths.devices[..2], paths.classes[0][1]),
            (&["mlx5_0:1".into(), "mlx5_0:2".into()][..], Class::Loc)
        );
        assert_eq!(paths.classes[2][3], Class::Phb, "interfaces that are no PCI device's are not one device");
    }

    #[test]
    fn classes_are_ordered_and_each_is_explained() {
        assert!(Class::ALL.is_sorted());
        let meanings: std::collections::BTreeSet<_> = Class::ALL.iter().map(|class| class.meaning()).collect();
        assert_eq!(meanings.len(), Class::ALL.len());
    }
}
