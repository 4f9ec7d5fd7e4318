//! What is known of a machine. Fields are named as in NCCL's file; what is `None` is unknown.

use serde::Serialize;

use super::cpu_set::CpuSet;

/// A machine, or several where a file describes an NVLink domain.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Topology {
    pub(crate) cpus: Vec<Cpu>,
}

/// A NUMA node: its cores, and the devices whose PCI tree hangs on it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Cpu {
    /// The node's number; `None` for devices of which the system does not say where they are.
    pub(super) numa: Option<u32>,
    /// Tells machines apart, in files that describe several.
    pub(super) host: Option<String>,
    /// The hardware threads of the node.
    pub(super) affinity: Option<CpuSet>,
    /// As NCCL names it: `x86_64`, `arm64`, `ppc64`.
    pub(super) arch: Option<String>,
    /// As the processor names itself: `GenuineIntel`, or the implementer's number on Arm.
    pub(super) vendor: Option<String>,
    pub(super) family: Option<u32>,
    pub(super) model: Option<u32>,
    /// The name it is sold by.
    pub(super) name: Option<String>,
    /// Physical cores.
    pub(super) cores: Option<u32>,
    /// Bytes of memory.
    pub(super) memory: Option<u64>,
    pub(super) caches: Vec<Cache>,
    pub(super) pci: Vec<Pci>,
    /// Network interfaces that are no PCI device's.
    pub(super) nets: Vec<Net>,
}

/// Caches of one level and kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Cache {
    pub(super) level: u32,
    /// `Data`, `Instruction` or `Unified`.
    pub(super) kind: String,
    /// Bytes of one of them.
    pub(super) size: u64,
    /// How many the NUMA node has.
    pub(super) count: u32,
}

/// A PCI device: a switch, a GPU, a network card.
///
/// As in NCCL's files, a switch is one node, named by its upstream port; its downstream ports are left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Pci {
    pub(super) busid: String,
    /// `0x` and 6 digits, of which files may have only the first.
    pub(super) class: Option<String>,
    pub(super) vendor: Option<String>,
    pub(super) device: Option<String>,
    pub(super) subsystem_vendor: Option<String>,
    pub(super) subsystem_device: Option<String>,
    /// As the kernel writes it: `32.0 GT/s PCIe`. The most that both ends can do.
    pub(super) link_speed: Option<String>,
    /// Lanes, likewise.
    pub(super) link_width: Option<u32>,
    /// More than one only in files of jobs that shared a GPU.
    pub(super) gpus: Vec<Gpu>,
    /// `None` where it is no network card; empty where no interface of the card is known.
    pub(super) nic: Option<Vec<Net>>,
    pub(super) pci: Vec<Pci>,
}

/// A GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Gpu {
    /// Its index, in the order of bus addresses.
    pub(super) dev: Option<u32>,
    /// Ten times its compute capability.
    pub(super) sm: Option<u32>,
    /// The rank that drives it; where no job said, that of a job with one PE for each GPU.
    pub(super) rank: Option<u32>,
    /// Whether network cards reach its memory.
    pub(super) gdr: Option<bool>,
    /// The name it is sold by.
    pub(super) name: Option<String>,
    pub(super) nvlinks: Vec<NvLink>,
}

/// The NVLinks from a GPU to one other device.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct NvLink {
    /// The other end's bus address.
    pub(super) target: String,
    pub(super) count: u32,
    /// The other end's PCI class.
    pub(super) tclass: Option<String>,
}

/// A network interface: a port of an RDMA device, or a socket interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Net {
    pub(super) name: String,
    /// Its index among those of its transport that are up.
    pub(super) dev: Option<u32>,
    /// Mbit/s.
    pub(super) speed: Option<u32>,
    /// The port of an RDMA device.
    pub(super) port: Option<u32>,
    pub(super) guid: Option<String>,
    /// Whether it reaches the memory of GPUs.
    pub(super) gdr: Option<bool>,
    /// `verbs` or `socket`.
    pub(super) transport: Option<String>,
    /// `InfiniBand` or `Ethernet`.
    pub(super) link_layer: Option<String>,
    /// In the words of the kernel: `ACTIVE`, `up`.
    pub(super) state: Option<String>,
}

impl Pci {
    pub(super) fn has_class(&self, start: &str) -> bool {
        self.class.as_deref().is_some_and(|class| class.starts_with(start))
    }
}

impl Topology {
    /// Calls `visit` with every PCI device, parents first.
    pub(super) fn for_each_pci(&mut self, visit: &mut impl FnMut(&mut Pci)) {
        fn walk(devices: &mut [Pci], visit: &mut impl FnMut(&mut Pci)) {
            for device in devices {
                visit(device);
                walk(&mut device.pci, visit);
            }
        }
        for cpu in &mut self.cpus {
            walk(&mut cpu.pci, visit);
        }
    }
}
