//! Folders that look like a machine's `/sys` and `/proc`.

use std::fs;
use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::pci::DEVICES;
use super::sysfs::Sysfs;

/// A machine made of files, gone when it is dropped.
pub(super) struct Fake(TempDir);

impl Fake {
    /// A machine of which nothing is known.
    pub(super) fn empty() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// A small DGX: two NUMA nodes, and on each a switch with two GPUs and a card for RDMA; a socket's card on the second.
    pub(super) fn dgx() -> Self {
        let fake = Self::empty();
        fake.cpus();
        for (numa, bus, rdma) in [(0, 0x15, "mlx5_0"), (1, 0x85, "mlx5_1")] {
            let at = |offset: u32, slot: u32| format!("0000:{:02x}:{slot:02x}.0", bus + offset);
            let upstream = [at(0, 1), at(1, 0)];
            fake.device(numa, bus, &upstream[..1], "0x060400", "0x8086");
            fake.device(numa, bus, &upstream, "0x060400", "0x1000");
            for slot in 0..3 {
                let port = [upstream[0].clone(), upstream[1].clone(), at(2, slot)];
                fake.device(numa, bus, &port, "0x060400", "0x1000");
                let device = [&port[..], &[at(3 + slot, 0)]].concat();
                let (class, vendor) = if slot < 2 { ("0x030200", "0x10de") } else { ("0x020700", "0x15b3") };
                let folder = fake.device(numa, bus, &device, class, vendor);
                // The slower end of its link is the switch's.
                fake.file(&format!("{folder}/max_link_speed"), "32.0 GT/s PCIe");
                if slot == 2 {
                    fake.rdma(rdma, &folder, numa == 0);
                }
            }
        }
        fake.device(0, 0, &["0000:00:02.0".into()], "0x030000", "0x1a03");
        let folder = fake.device(1, 0xa0, &["0000:a0:00.0".into()], "0x020000", "0x8086");
        fake.link("sys/class/net/eth0/device", &folder);
        for (name, text) in [("type", "1"), ("operstate", "up"), ("speed", "25000")] {
            fake.file(&format!("sys/class/net/eth0/{name}"), text);
        }
        fake.file("proc/driver/nvidia/gpus/0000:18:00.0/information", "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 16\n");
        fake.file("sys/module/nvidia_peermem/version", "550.54");
        fake
    }

    pub(super) fn sysfs(&self) -> Sysfs {
        Sysfs::at(self.0.path())
    }

    /// Writes a file, and the folders above it.
    pub(super) fn file(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    fn link(&self, path: &str, target: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(self.0.path().join(target), path).unwrap();
    }

    /// A PCI device below others, whose addresses come first; gives its folder.
    fn device(&self, numa: u32, bus: u32, chain: &[String], class: &str, vendor: &str) -> String {
        let folder = format!("sys/devices/pci0000:{bus:02x}/{}", chain.join("/"));
        let busid = &chain[chain.len() - 1];
        let files = [("class", class), ("vendor", vendor), ("device", "0x2330"), ("numa_node", &numa.to_string())];
        let link = [("max_link_speed", "16.0 GT/s PCIe"), ("max_link_width", "16")];
        for (name, text) in files.into_iter().chain(link) {
            self.file(&format!("{folder}/{name}"), text);
        }
        self.link(&format!("{DEVICES}/{busid}"), &folder);
        folder
    }

    fn rdma(&self, name: &str, device: &str, active: bool) {
        let folder = format!("sys/class/infiniband/{name}");
        self.link(&format!("{folder}/device"), device);
        self.file(&format!("{folder}/sys_image_guid"), "506b:4b03:00a1:0b2c");
        let (state, rate) = match active {
            true => ("4: ACTIVE", "400 Gb/sec (4X NDR)"),
            false => ("1: DOWN", "2.5 Gb/sec (1X SDR)"),
        };
        for (name, text) in [("state", state), ("rate", rate), ("link_layer", "InfiniBand")] {
            self.file(&format!("{folder}/ports/1/{name}"), text);
        }
    }

    /// Two sockets of two cores with two threads each.
    fn cpus(&self) {
        let info = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n\
                    model name\t: Xeon Platinum 8480C\n\nprocessor\t: 1\nmodel\t\t: 0\n";
        self.file("proc/cpuinfo", info);
        for (numa, mask) in [(0, "00000033"), (1, "000000cc")] {
            let folder = format!("sys/devices/system/node/node{numa}");
            self.file(&format!("{folder}/cpumap"), mask);
            self.file(&format!("{folder}/meminfo"), &format!("Node {numa} MemTotal:    1048576 kB"));
        }
        for thread in 0..8 {
            let (core, socket) = (thread % 4, thread % 4 / 2);
            let folder = format!("sys/devices/system/cpu/cpu{thread}");
            self.file(&format!("{folder}/topology/physical_package_id"), &socket.to_string());
            self.file(&format!("{folder}/topology/core_id"), &(core % 2).to_string());
            let siblings = format!("{core},{}", core + 4);
            let socket = format!("{}-{},{}-{}", socket * 2, socket * 2 + 1, socket * 2 + 4, socket * 2 + 5);
            let caches = [("1", "Data", "48K", siblings), ("3", "Unified", "105M", socket)];
            for ((level, kind, size, users), index) in caches.into_iter().zip(0..) {
                let folder = format!("{folder}/cache/index{index}");
                for (name, text) in [("level", level), ("type", kind), ("size", size), ("shared_cpu_list", &users)] {
                    self.file(&format!("{folder}/{name}"), text);
                }
            }
        }
    }
}
