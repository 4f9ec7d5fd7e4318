//! Putting together what the system tells.

use super::model::Topology;
use super::pci::DEVICES;
use super::sysfs::Sysfs;
use super::{cpu, gpu, net, nvml, pci};

const NVIDIA: &str = "0x10de";
/// Classes of PCI devices, by how they begin.
const DISPLAY: &str = "0x03";
const NETWORK: &str = "0x02";

impl Topology {
    /// The running machine.
    pub(crate) fn here() -> Self {
        let sysfs = Sysfs::here();
        let mut topology = Self::detect(&sysfs);
        gpu::add(&mut topology, &sysfs, &nvml::gpus());
        topology
    }

    /// What files say, without the help of a driver's library. There is at least one CPU, if an unknown one.
    pub(crate) fn detect(sysfs: &Sysfs) -> Self {
        let mut topology = Self { cpus: cpu::nodes(sysfs) };
        for busid in sysfs.names(DEVICES) {
            let file = |name: &str| sysfs.text(&format!("{DEVICES}/{busid}/{name}")).unwrap_or_default();
            let class = file("class");
            let is_gpu = class.starts_with(DISPLAY) && file("vendor") == NVIDIA;
            // A card can show itself a hundred times over for virtual machines; of those, only the ones in use count.
            let is_nic = class.starts_with(NETWORK) && !sysfs.exists(&format!("{DEVICES}/{busid}/physfn"));
            if !is_gpu && !is_nic {
                continue;
            }
            let chain = sysfs.real(&format!("{DEVICES}/{busid}")).map_or(Vec::new(), |path| pci::chain(&path));
            let Some(device) = pci::place(&mut topology, sysfs, &chain) else { continue };
            match is_gpu {
                true => device.gpus.push(gpu::read(sysfs, &busid)),
                false => device.nic = Some(Vec::new()),
            }
        }
        for interface in net::interfaces(sysfs) {
            match pci::place(&mut topology, sysfs, &interface.chain) {
                Some(device) => device.nic.get_or_insert_default().push(interface.net),
                None => topology.cpus[0].nets.push(interface.net),
            }
        }
        gpu::number(&mut topology);
        topology
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::fake::Fake;

    #[test]
    fn devices_hang_on_their_switches_and_nodes() {
        let topology = Topology::detect(&Fake::dgx().sysfs());
        let [left, right] = &topology.cpus[..] else { panic!("{topology:#?}") };
        let shape = |pci: &crate::topology::model::Pci| (pci.busid.clone(), pci.gpus.len(), pci.nic.is_some());
        let under = |at: usize| topology.cpus[at].pci[0].pci.iter().map(shape).collect::<Vec<_>>();
        assert_eq!(left.pci.len(), 1, "the display of the board's controller is no GPU");
        assert_eq!((left.pci[0].busid.as_str(), right.pci[0].busid.as_str()), ("0000:16:00.0", "0000:86:00.0"));
        let row = |busid: &str, gpus, nic| (busid.to_owned(), gpus, nic);
        let expected = [row("0000:18:00.0", 1, false), row("0000:19:00.0", 1, false), row("0000:1a:00.0", 0, true)];
        assert_eq!(under(0), expected);
        assert_eq!(under(1).len(), 3);
        assert_eq!(right.pci[1].nic.as_ref().map(|nets| nets[0].name.as_str()), Some("eth0"));
        assert_eq!(right.pci[0].pci[2].nic.as_ref().map(Vec::len), Some(1));
    }

    #[test]
    fn a_machine_that_says_nothing_has_an_unknown_cpu() {
        let topology = Topology::detect(&Fake::empty().sysfs());
        assert_eq!(topology.cpus.len(), 1);
        assert!(topology.cpus[0].pci.is_empty() && topology.cpus[0].numa.is_none());
    }

    #[test]
    fn this_machine_has_a_cpu() {
        let topology = Topology::here();
        assert!(topology.cpus.iter().any(|cpu| cpu.arch.is_some()));
    }
}
