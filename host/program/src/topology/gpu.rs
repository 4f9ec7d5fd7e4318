//! What the driver's library adds to the GPUs that the kernel shows.

use std::collections::BTreeMap;

use super::model::{Gpu, NvLink, Pci, Topology};
use super::pci::{self, DEVICES};
use super::sysfs::Sysfs;

/// NCCL's name for a device of which nothing but a link is seen: inside virtual machines, NVSwitches are.
const NVSWITCH: &str = "0x068000";

/// A GPU as the driver's library knows it.
#[derive(Clone, Debug, Default)]
pub(super) struct Reported {
    pub(super) busid: String,
    pub(super) dev: u32,
    pub(super) sm: Option<u32>,
    pub(super) name: Option<String>,
    /// The bus address at the other end of each NVLink that is up.
    pub(super) links: Vec<String>,
}

/// A GPU as the kernel knows it; its index comes later.
pub(super) fn read(sysfs: &Sysfs, busid: &str) -> Gpu {
    const PEER_MEMORY: [&str; 3] = [
        "sys/module/nvidia_peermem/version",
        "sys/kernel/mm/memory_peers/nv_mem/version",
        "sys/kernel/mm/memory_peers/nv_mem_nc/version",
    ];
    let information = sysfs.text(&format!("proc/driver/nvidia/gpus/{busid}/information")).unwrap_or_default();
    let name = information.lines().find_map(|line| line.strip_prefix("Model:"));
    // There are ways without these modules, which cannot be seen from here: absence means unknown.
    let gdr = PEER_MEMORY.iter().any(|path| sysfs.exists(path)).then_some(true);
    Gpu { gdr, name: name.map(|name| name.trim().to_owned()), ..Gpu::default() }
}

/// Numbers GPUs by their bus addresses, as CUDA can and the driver's library does.
pub(super) fn number(topology: &mut Topology) {
    let mut addresses = Vec::new();
    topology.for_each_pci(&mut |pci| addresses.extend((!pci.gpus.is_empty()).then(|| pci.busid.clone())));
    addresses.sort();
    topology.for_each_pci(&mut |pci| {
        let dev = addresses.binary_search(&pci.busid).ok().map(|at| at as u32);
        pci.gpus.iter_mut().for_each(|gpu| (gpu.dev, gpu.rank) = (dev, dev));
    });
}

/// Adds what the library reports. Its numbers stand; a GPU that it does not report has none, for no program can use it.
pub(super) fn add(topology: &mut Topology, sysfs: &Sysfs, reported: &[Reported]) {
    if reported.is_empty() {
        return;
    }
    topology.for_each_pci(&mut |pci| pci.gpus.iter_mut().for_each(|gpu| (gpu.dev, gpu.rank) = (None, None)));
    for report in reported {
        let path = sysfs.real(&format!("{DEVICES}/{}", report.busid));
        let chain = path.map_or_else(|| vec![report.busid.clone()], |path| pci::chain(&path));
        let Some(pci) = pci::place(topology, sysfs, &chain) else { continue };
        pci.class.get_or_insert_with(|| "0x03".to_owned());
        let gpu = known(pci, sysfs);
        (gpu.dev, gpu.rank) = (Some(report.dev), Some(report.dev));
        gpu.sm = report.sm;
        gpu.name = report.name.clone().or(gpu.name.take());
        gpu.nvlinks = links(sysfs, &report.links);
    }
}

fn known<'p>(pci: &'p mut Pci, sysfs: &Sysfs) -> &'p mut Gpu {
    if pci.gpus.is_empty() {
        pci.gpus.push(read(sysfs, &pci.busid));
    }
    &mut pci.gpus[0]
}

/// Links to the same device are one entry.
fn links(sysfs: &Sysfs, targets: &[String]) -> Vec<NvLink> {
    let mut counts = BTreeMap::new();
    for target in targets {
        *counts.entry(target.clone()).or_default() += 1;
    }
    let class = |target: &str| sysfs.text(&format!("{DEVICES}/{target}/class"));
    let link = |(target, count): (String, u32)| {
        let tclass = class(&target).or_else(|| Some(NVSWITCH.to_owned()));
        NvLink { target, count, tclass }
    };
    counts.into_iter().map(link).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::fake::Fake;

    #[test]
    fn what_the_library_reports_is_added_to_what_the_kernel_shows() {
        let fake = Fake::dgx();
        let mut topology = Topology::detect(&fake.sysfs());
        let links = ["0000:19:00.0", "0000:0a:00.0", "0000:19:00.0"].map(str::to_owned).to_vec();
        let report =
            Reported { busid: "0000:18:00.0".into(), dev: 0, sm: Some(90), name: Some("NVIDIA H100".into()), links };
        add(&mut topology, &fake.sysfs(), &[report]);
        let mut gpus = Vec::new();
        topology.for_each_pci(&mut |pci| gpus.extend(pci.gpus.clone()));
        assert_eq!(gpus.iter().map(|gpu| gpu.dev).collect::<Vec<_>>(), [Some(0), None, None, None]);
        assert_eq!((gpus[0].sm, gpus[0].name.as_deref()), (Some(90), Some("NVIDIA H100")));
        let links: Vec<_> =
            gpus[0].nvlinks.iter().map(|link| (&*link.target, link.count, link.tclass.as_deref())).collect();
        assert_eq!(
            links,
            [("0000:0a:00.0", 1, Some(NVSWITCH)), ("0000:19:00.0", 2, Some("0x030200"))],
            "what the kernel does not show is taken for a switch"
        );
    }

    #[test]
    fn a_gpu_that_the_kernel_hides_is_somewhere() {
        let fake = Fake::empty();
        let mut topology = Topology::detect(&fake.sysfs());
        add(&mut topology, &fake.sysfs(), &[Reported { busid: "0000:18:00.0".into(), ..Reported::default() }]);
        let pci = &topology.cpus[0].pci[0];
        assert_eq!((pci.class.as_deref(), pci.gpus.len(), pci.gpus[0].dev), (Some("0x03"), 1, Some(0)));
    }

    #[test]
    fn without_the_library_gpus_count_by_address_and_have_the_drivers_names() {
        let mut topology = Topology::detect(&Fake::dgx().sysfs());
        let mut gpus = Vec::new();
        topology.for_each_pci(&mut |pci| gpus.extend(pci.gpus.iter().map(|gpu| (pci.busid.clone(), gpu.clone()))));
        let numbers: Vec<_> = gpus.iter().map(|(busid, gpu)| (&**busid, gpu.dev, gpu.rank, gpu.gdr)).collect();
        let expected = ["0000:18:00.0", "0000:19:00.0", "0000:88:00.0", "0000:89:00.0"];
        let expected: Vec<_> = expected.into_iter().zip(0..).map(|(b, n)| (b, Some(n), Some(n), Some(true))).collect();
        assert_eq!(numbers, expected);
        assert_eq!(gpus[0].1.name.as_deref(), Some("NVIDIA H100 80GB HBM3"));
    }
}
