//! NVIDIA's management library, loaded if the machine has it.

use nvml_wrapper::enum_wrappers::nv_link::Capability;
use nvml_wrapper::{Device, Nvml};

use super::gpu::Reported;
use super::pci;

/// The most NVLinks that a GPU of today has.
const LINKS: u32 = 18;

/// The GPUs that this process may use. None where there is no driver, or it does not answer.
pub(super) fn gpus() -> Vec<Reported> {
    let Ok(library) = Nvml::init() else { return Vec::new() };
    let count = library.device_count().unwrap_or(0);
    (0..count).filter_map(|dev| read(dev, &library.device_by_index(dev).ok()?)).collect()
}

fn read(dev: u32, device: &Device<'_>) -> Option<Reported> {
    let busid = pci::address(&device.pci_info().ok()?.bus_id);
    let sm = device.cuda_compute_capability().ok();
    let sm = sm.and_then(|capability| u32::try_from(capability.major * 10 + capability.minor).ok());
    let links = (0..LINKS).filter_map(|link| far_end(device, link)).collect();
    Some(Reported { busid, dev, sm, name: device.name().ok(), links })
}

/// What a link leads to, if it is up and carries loads and stores between GPUs.
fn far_end(device: &Device<'_>, link: u32) -> Option<String> {
    let link = device.link_wrapper_for(link);
    let usable = link.has_capability(Capability::P2p).unwrap_or(false) && link.is_active().unwrap_or(false);
    usable.then(|| link.remote_pci_info().ok()).flatten().map(|remote| pci::address(&remote.bus_id))
}
