//! The machine as people read it: a tree.

use std::fmt::Write;

use super::cpu_set::CpuSet;
use super::model::{Cache, Cpu, Gpu, Net, Pci, Topology};

impl Topology {
    /// A line for each node, device and interface, indented below what it hangs on.
    pub(crate) fn text(&self) -> String {
        let mut text = self.summary() + "\n";
        for cpu in &self.cpus {
            text += &(cpu_line(cpu) + "\n");
            let mut lines = Vec::new();
            lines.extend(caches(&cpu.caches).map(Branch::leaf));
            lines.extend(cpu.pci.iter().map(pci));
            lines.extend(cpu.nets.iter().map(|net| Branch::leaf(net_line(net))));
            hang(&mut text, "", &lines);
        }
        text
    }

    fn summary(&self) -> String {
        let (mut gpus, mut cards, mut interfaces) = (0, 0, 0);
        fn count(pci: &Pci, add: &mut impl FnMut(&Pci)) {
            add(pci);
            pci.pci.iter().for_each(|below| count(below, add));
        }
        for cpu in &self.cpus {
            interfaces += cpu.nets.len();
            for device in &cpu.pci {
                count(device, &mut |pci| {
                    gpus += pci.gpus.len();
                    cards += usize::from(pci.nic.is_some());
                    interfaces += pci.nic.as_ref().map_or(0, Vec::len);
                });
            }
        }
        let threads: usize = self.cpus.iter().filter_map(|cpu| Some(cpu.affinity.as_ref()?.len())).sum();
        let threads = if threads == 0 { "unknown".to_owned() } else { threads.to_string() };
        let nodes = self.cpus.len();
        format!(
            "NUMA nodes: {nodes}, hardware threads: {threads}, GPUs: {gpus}, \
             network cards: {cards}, interfaces: {interfaces}\n"
        )
    }
}

/// A line, and what hangs on it.
struct Branch {
    line: String,
    below: Vec<Branch>,
}

impl Branch {
    fn leaf(line: String) -> Self {
        Self { line, below: Vec::new() }
    }
}

fn hang(text: &mut String, margin: &str, branches: &[Branch]) {
    for (at, branch) in branches.iter().enumerate() {
        let (mark, further) = if at + 1 == branches.len() { ("`- ", "   ") } else { ("|- ", "|  ") };
        *text += &format!("{margin}{mark}{}\n", branch.line);
        hang(text, &format!("{margin}{further}"), &branch.below);
    }
}

fn cpu_line(cpu: &Cpu) -> String {
    let mut line = cpu.numa.map_or_else(|| "NUMA node unknown".to_owned(), |numa| format!("NUMA node {numa}"));
    if let Some(host) = &cpu.host {
        line += &format!(" of host {host}");
    }
    line += ": ";
    let threads = |set: &CpuSet| format!("threads {set} ({})", set.len());
    let numbers = |number: Option<u32>| number.map_or_else(|| "unknown".to_owned(), |number| number.to_string());
    let mut parts = vec![
        cpu.affinity.as_ref().map_or_else(|| "threads unknown".to_owned(), threads),
        cpu.cores.map_or_else(|| "cores unknown".to_owned(), |cores| format!("{cores} cores")),
        cpu.memory.map_or_else(|| "memory unknown".to_owned(), |memory| format!("{} memory", bytes(memory))),
    ];
    let (arch, vendor) = (cpu.arch.as_deref().unwrap_or("unknown"), cpu.vendor.as_deref().unwrap_or("vendor unknown"));
    parts.push(format!("{arch} {vendor} family {} model {}", numbers(cpu.family), numbers(cpu.model)));
    parts.extend(cpu.name.clone());
    line + &parts.join(", ")
}

fn caches(caches: &[Cache]) -> Option<String> {
    let kind = |cache: &Cache| match &*cache.kind {
        "Data" => "d",
        "Instruction" => "i",
        _ => "",
    };
    let one = |cache: &Cache| format!("L{}{} {} x{}", cache.level, kind(cache), bytes(cache.size), cache.count);
    (!caches.is_empty()).then(|| format!("caches: {}", caches.iter().map(one).collect::<Vec<_>>().join(", ")))
}

fn pci(device: &Pci) -> Branch {
    let nets = device.nic.as_deref();
    let what = match (device.gpus.is_empty(), nets) {
        (false, _) => "GPU",
        (true, Some(_)) => "network card",
        (true, None) if device.has_class("0x0604") => "PCI switch",
        (true, None) => "PCI device",
    };
    let mut line = format!("{what} {}", device.busid);
    let ids = [&device.vendor, &device.device].map(|id| id.as_deref().map(|id| id.trim_start_matches("0x")));
    if let [Some(vendor), Some(device)] = ids {
        line += &format!(" [{vendor}:{device}]");
    }
    line += &match (&device.link_speed, device.link_width) {
        (Some(speed), Some(width)) => format!(", {speed} x{width}"),
        (Some(speed), None) => format!(", {speed}, width unknown"),
        (None, Some(width)) => format!(", speed unknown, x{width}"),
        (None, None) => ", link unknown".to_owned(),
    };
    let mut below: Vec<Branch> = device.gpus.iter().map(|gpu| Branch::leaf(gpu_line(gpu))).collect();
    below.extend(nets.unwrap_or_default().iter().map(|net| Branch::leaf(net_line(net))));
    below.extend(device.pci.iter().map(pci));
    Branch { line, below }
}

fn gpu_line(gpu: &Gpu) -> String {
    let mut line = gpu.dev.map_or_else(|| "GPU without a number".to_owned(), |dev| format!("GPU{dev}"));
    line += &format!(": {}", gpu.name.as_deref().unwrap_or("name unknown"));
    line += &gpu.sm.map_or_else(|| ", sm unknown".to_owned(), |sm| format!(", sm_{sm}"));
    line += match gpu.gdr {
        Some(true) => ", GPUDirect RDMA",
        Some(false) => ", no GPUDirect RDMA",
        None => ", GPUDirect RDMA unknown",
    };
    let total: u64 = gpu.nvlinks.iter().map(|link| u64::from(link.count)).sum();
    if total > 0 {
        let to = |switches: bool| gpu.nvlinks.iter().filter(move |link| link.leads_to_switch() == switches);
        let mut ends: Vec<String> = to(false).map(|link| format!("{} to {}", link.count, link.target)).collect();
        let switched: u64 = to(true).map(|link| u64::from(link.count)).sum();
        ends.extend((switched > 0).then(|| format!("{switched} to NVSwitch")));
        line += &format!(", {total} NVLinks ({})", ends.join(", "));
    }
    line
}

fn net_line(net: &Net) -> String {
    let mut line = net.name.clone();
    let details = [
        net.port.map(|port| format!("port {port}")),
        net.transport.clone(),
        net.link_layer.clone(),
        Some(
            net.speed.map_or_else(|| "speed unknown".to_owned(), |speed| format!("{} Gbit/s", f64::from(speed) / 1e3)),
        ),
        net.state.clone(),
    ];
    for (at, detail) in details.into_iter().flatten().enumerate() {
        // Writing to a string cannot fail.
        let _written = write!(line, "{} {detail}", if at == 0 { ":" } else { "," });
    }
    line
}

/// 48K, 105M, 1007.7G.
fn bytes(bytes: u64) -> String {
    let units = [(30, 'G'), (20, 'M'), (10, 'K')];
    let Some((shift, unit)) = units.into_iter().find(|&(shift, _)| bytes >= 1 << shift) else {
        return bytes.to_string();
    };
    let tenths = (u128::from(bytes) * 10) >> shift;
    match tenths % 10 {
        0 => format!("{}{unit}", tenths / 10),
        rest => format!("{}.{rest}{unit}", tenths / 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::fake::Fake;
    use crate::topology::model::NvLink;

    #[test]
    fn devices_stand_below_what_they_hang_on() {
        let text = Topology::detect(&Fake::dgx().sysfs()).text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "NUMA nodes: 2, hardware threads: 8, GPUs: 4, network cards: 3, interfaces: 3",);
        assert!(lines[2].starts_with("NUMA node 0: threads 0-1,4-5 (4), 2 cores, 1G memory, "), "{text}");
        assert_eq!(lines[3], "|- caches: L1d 48K x2, L3 105M x1");
        assert_eq!(lines[4], "`- PCI switch 0000:16:00.0 [1000:2330], 16.0 GT/s PCIe x16");
        assert_eq!(lines[5], "   |- GPU 0000:18:00.0 [10de:2330], 16.0 GT/s PCIe x16");
        assert_eq!(lines[6], "   |  `- GPU0: NVIDIA H100 80GB HBM3, sm unknown, GPUDirect RDMA");
        assert_eq!(lines[10], "      `- mlx5_0: port 1, verbs, InfiniBand, 400 Gbit/s, ACTIVE");
    }

    #[test]
    fn what_is_not_known_is_said_to_be_unknown() {
        let text = Topology { cpus: vec![Cpu::default()] }.text();
        assert!(text.starts_with("NUMA nodes: 1, hardware threads: unknown, GPUs: 0"), "{text}");
        assert!(text.contains("NUMA node unknown: threads unknown, cores unknown, memory unknown"), "{text}");
    }

    #[test]
    fn links_are_counted_by_where_they_lead() {
        let link = |target: &str, count, class: &str| NvLink {
            target: target.to_owned(),
            count,
            tclass: Some(class.to_owned()),
        };
        let nvlinks = vec![link("a", 4, "0x068000"), link("b", 5, "0x068000"), link("c", 2, "0x030200")];
        let line = gpu_line(&Gpu { dev: Some(3), sm: Some(90), nvlinks, ..Gpu::default() });
        assert_eq!(line, "GPU3: name unknown, sm_90, GPUDirect RDMA unknown, 11 NVLinks (2 to c, 9 to NVSwitch)");
    }

    #[test]
    fn sizes_are_short() {
        let sizes = [(500, "500"), (48 << 10, "48K"), (260 << 20, "260M"), (15_689_940 << 10, "14.9G")];
        for (size, text) in sizes {
            assert_eq!(bytes(size), text);
        }
    }
}
