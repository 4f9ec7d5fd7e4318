//! Network interfaces: ports of RDMA devices, and what sockets use.

use super::model::Net;
use super::pci;
use super::sysfs::Sysfs;

const RDMA: &str = "sys/class/infiniband";
const SOCKETS: &str = "sys/class/net";

/// Types of `sys/class/net`.
const ETHERNET: u32 = 1;
const IP_OVER_INFINIBAND: u32 = 32;

/// An interface, and the bus addresses above it; none where it is no PCI device's.
#[derive(Debug)]
pub(super) struct Interface {
    pub(super) net: Net,
    pub(super) chain: Vec<String>,
}

/// All interfaces, those for RDMA first.
pub(super) fn interfaces(sysfs: &Sysfs) -> Vec<Interface> {
    let mut rdma: Vec<_> = sysfs.names(RDMA).iter().flat_map(|name| ports(sysfs, name)).collect();
    let mut sockets: Vec<_> = sysfs.names(SOCKETS).iter().filter_map(|name| socket(sysfs, name)).collect();
    number(&mut rdma, "ACTIVE");
    number(&mut sockets, "up");
    rdma.append(&mut sockets);
    rdma
}

/// Numbers what is up, as NCCL does: it uses either kind, never both, so each begins at 0.
fn number(interfaces: &mut [Interface], up: &str) {
    let up = interfaces.iter_mut().filter(|interface| interface.net.state.as_deref() == Some(up));
    for (interface, dev) in up.zip(0..) {
        interface.net.dev = Some(dev);
    }
}

fn ports(sysfs: &Sysfs, name: &str) -> Vec<Interface> {
    let folder = format!("{RDMA}/{name}");
    let chain = sysfs.real(&format!("{folder}/device")).map_or(Vec::new(), |path| pci::chain(&path));
    let guid = sysfs.text(&format!("{folder}/sys_image_guid")).map(|guid| format!("0x{}", guid.replace(':', "")));
    let port = |port: u32| {
        let file = |name: &str| sysfs.text(&format!("{folder}/ports/{port}/{name}"));
        let net = Net {
            name: name.to_owned(),
            speed: file("rate").and_then(|rate| megabits(&rate)),
            port: Some(port),
            guid: guid.clone(),
            transport: Some("verbs".to_owned()),
            link_layer: file("link_layer"),
            // `4: ACTIVE`
            state: file("state").map(|state| state.split_once(": ").map_or(state.clone(), |(_, word)| word.to_owned())),
            ..Net::default()
        };
        Interface { net, chain: chain.clone() }
    };
    sysfs.numbered(&format!("{folder}/ports"), "").into_iter().map(port).collect()
}

fn socket(sysfs: &Sysfs, name: &str) -> Option<Interface> {
    let file = |file: &str| sysfs.text(&format!("{SOCKETS}/{name}/{file}"));
    let link_layer = match sysfs.number(&format!("{SOCKETS}/{name}/type"))? {
        ETHERNET => "Ethernet",
        IP_OVER_INFINIBAND => "InfiniBand",
        // The loopback, tunnels.
        _ => return None,
    };
    let chain = sysfs.real(&format!("{SOCKETS}/{name}/device")).map_or(Vec::new(), |path| pci::chain(&path));
    let state = file("operstate");
    if chain.is_empty() && (state.as_deref() != Some("up") || is_inner(sysfs, name)) {
        return None;
    }
    let net = Net {
        name: name.to_owned(),
        // -1 where it is not known.
        speed: file("speed").and_then(|speed| speed.parse().ok()).filter(|&speed| speed > 0),
        transport: Some("socket".to_owned()),
        link_layer: Some(link_layer.to_owned()),
        state,
        ..Net::default()
    };
    Some(Interface { net, chain })
}

/// Whether an interface only joins containers or virtual machines of this host to each other.
fn is_inner(sysfs: &Sysfs, name: &str) -> bool {
    let has = |file: &str| sysfs.exists(&format!("{SOCKETS}/{name}/{file}"));
    ["docker", "veth"].iter().any(|start| name.starts_with(start)) || has("bridge") || has("tun_flags")
}

/// `400 Gb/sec (4X NDR)`
fn megabits(rate: &str) -> Option<u32> {
    let gigabits: f64 = rate.split_once("Gb/sec")?.0.trim().parse().ok()?;
    let megabits = (gigabits * 1000.0).round();
    (1.0..=f64::from(u32::MAX)).contains(&megabits).then_some(megabits as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::fake::Fake;

    #[test]
    fn ports_and_sockets_are_found_with_their_cards() {
        let found = interfaces(&Fake::dgx().sysfs());
        let names: Vec<_> = found.iter().map(|interface| (interface.net.name.as_str(), interface.net.dev)).collect();
        assert_eq!(names, [("mlx5_0", Some(0)), ("mlx5_1", None), ("eth0", Some(0))]);
        let net = &found[0].net;
        assert_eq!((net.speed, net.port, net.guid.as_deref()), (Some(400_000), Some(1), Some("0x506b4b0300a10b2c")));
        assert_eq!((net.link_layer.as_deref(), net.state.as_deref()), (Some("InfiniBand"), Some("ACTIVE")));
        assert_eq!(found[0].chain.last().map(String::as_str), Some("0000:1a:00.0"));
        assert_eq!((found[1].net.state.as_deref(), found[1].net.speed), (Some("DOWN"), Some(2500)));
        assert_eq!((found[2].net.speed, found[2].chain.len()), (Some(25_000), 1));
    }

    #[test]
    fn of_what_is_no_device_only_what_leads_out_is_listed() {
        let fake = Fake::empty();
        let interface = |name: &str, kind: &str, state: &str| {
            fake.file(&format!("{SOCKETS}/{name}/type"), kind);
            fake.file(&format!("{SOCKETS}/{name}/operstate"), state);
            fake.file(&format!("{SOCKETS}/{name}/speed"), "-1");
        };
        interface("eth0", "1", "up");
        interface("lo", "772", "up");
        interface("ifb0", "1", "down");
        interface("veth12", "1", "up");
        interface("virbr0", "1", "up");
        fake.file(&format!("{SOCKETS}/virbr0/bridge/bridge_id"), "1");
        let found = interfaces(&fake.sysfs());
        assert_eq!(found.iter().map(|found| found.net.name.as_str()).collect::<Vec<_>>(), ["eth0"]);
        assert_eq!((found[0].net.speed, found[0].chain.len()), (None, 0));
    }

    #[test]
    fn rates_are_megabits() {
        assert_eq!((megabits("2.5 Gb/sec (1X SDR)"), megabits("200 Gb/sec (4X HDR)")), (Some(2500), Some(200_000)));
        for rate in ["", "fast", "-1 Gb/sec", "NaN Gb/sec", "1e99 Gb/sec"] {
            assert_eq!(megabits(rate), None, "{rate}");
        }
    }
}
