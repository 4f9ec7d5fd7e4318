//! Writing NCCL's format.
//!
//! NCCL's own reader takes no XML declaration, no text between elements, and nothing between an attribute's quote and the
//! next attribute but one space.

use std::io;

use quick_xml::Writer;
use quick_xml::events::{BytesEnd, BytesStart, Event};

use super::{VERSION, family_for_nccl};
use crate::topology::model::{Cache, Cpu, Gpu, Net, NvLink, Pci, Topology};

/// The text of a file.
///
/// # Errors
/// Only those of writing to memory, of which there are none today.
pub(crate) fn write(topology: &Topology) -> io::Result<String> {
    let mut writer = Writer::new_with_indent(Vec::new(), b' ', 2);
    let system = Element::new("system").with("version", Some(VERSION));
    emit(&mut writer, &system.containing(topology.cpus.iter().map(cpu)))?;
    let mut text = String::from_utf8(writer.into_inner()).map_err(io::Error::other)?;
    text.push('\n');
    Ok(text)
}

struct Element {
    name: &'static str,
    attributes: Vec<(&'static str, String)>,
    children: Vec<Element>,
}

impl Element {
    fn new(name: &'static str) -> Self {
        Self { name, attributes: Vec::new(), children: Vec::new() }
    }

    /// Adds an attribute if it is known.
    fn with(mut self, name: &'static str, value: Option<impl ToString>) -> Self {
        self.attributes.extend(value.map(|value| (name, value.to_string())));
        self
    }

    fn containing(mut self, children: impl IntoIterator<Item = Self>) -> Self {
        self.children.extend(children);
        self
    }
}

fn emit(writer: &mut Writer<Vec<u8>>, element: &Element) -> io::Result<()> {
    let attributes = element.attributes.iter().map(|(name, value)| (*name, value.as_str()));
    let start = BytesStart::new(element.name).with_attributes(attributes);
    if element.children.is_empty() {
        return writer.write_event(Event::Empty(start));
    }
    writer.write_event(Event::Start(start))?;
    for child in &element.children {
        emit(writer, child)?;
    }
    writer.write_event(Event::End(BytesEnd::new(element.name)))
}

fn cpu(cpu: &Cpu) -> Element {
    // Where the system does not say, NCCL's number is -1 too.
    let numa = cpu.numa.map_or_else(|| "-1".to_owned(), |numa| numa.to_string());
    let is_x86 = cpu.arch.as_deref() == Some("x86_64");
    let family = cpu.family.map(|family| if is_x86 { family_for_nccl(family) } else { family });
    let nets = (!cpu.nets.is_empty()).then(|| nic(&cpu.nets));
    Element::new("cpu")
        .with("host_hash", cpu.host.as_ref())
        .with("numaid", Some(numa))
        .with("affinity", cpu.affinity.as_ref().map(|set| set.mask()))
        .with("arch", cpu.arch.as_ref())
        .with("vendor", cpu.vendor.as_ref())
        .with("familyid", family)
        .with("modelid", cpu.model)
        .with("model_name", cpu.name.as_ref())
        .with("cores", cpu.cores)
        .with("memory", cpu.memory)
        .containing(cpu.caches.iter().map(cache))
        .containing(cpu.pci.iter().map(pci))
        .containing(nets)
}

fn cache(cache: &Cache) -> Element {
    Element::new("cache")
        .with("level", Some(cache.level))
        .with("type", Some(&cache.kind))
        .with("size", Some(cache.size))
        .with("count", Some(cache.count))
}

fn pci(device: &Pci) -> Element {
    Element::new("pci")
        .with("busid", Some(&device.busid))
        .with("class", device.class.as_ref())
        .with("vendor", device.vendor.as_ref())
        .with("device", device.device.as_ref())
        .with("subsystem_vendor", device.subsystem_vendor.as_ref())
        .with("subsystem_device", device.subsystem_device.as_ref())
        // These two NCCL does not fill in for switches of a file; empty and 0 are its own words for unknown.
        .with("link_speed", Some(device.link_speed.as_deref().unwrap_or("")))
        .with("link_width", Some(device.link_width.unwrap_or(0)))
        .containing(device.gpus.iter().map(gpu))
        .containing(device.nic.as_deref().map(nic))
        .containing(device.pci.iter().map(pci))
}

fn gpu(gpu: &Gpu) -> Element {
    Element::new("gpu")
        .with("dev", gpu.dev)
        .with("sm", gpu.sm)
        .with("rank", gpu.rank)
        .with("gdr", gpu.gdr.map(u8::from))
        .with("name", gpu.name.as_ref())
        .containing(gpu.nvlinks.iter().map(nvlink))
}

fn nvlink(link: &NvLink) -> Element {
    Element::new("nvlink")
        .with("target", Some(&link.target))
        .with("count", Some(link.count))
        .with("tclass", link.tclass.as_ref())
}

fn nic(nets: &[Net]) -> Element {
    Element::new("nic").containing(nets.iter().map(net))
}

fn net(net: &Net) -> Element {
    Element::new("net")
        .with("name", Some(&net.name))
        .with("dev", net.dev)
        .with("speed", net.speed)
        .with("port", net.port)
        .with("guid", net.guid.as_ref())
        .with("gdr", net.gdr.map(u8::from))
        .with("transport", net.transport.as_ref())
        .with("link_layer", net.link_layer.as_ref())
        .with("state", net.state.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::fake::Fake;
    use crate::topology::gpu::{Reported, add};

    /// The first element of a name, as text.
    fn first<'t>(text: &'t str, name: &str) -> &'t str {
        let start = text.find(&format!("<{name} ")).unwrap();
        &text[start..start + text[start..].find('>').unwrap()]
    }

    #[test]
    fn every_attribute_is_there_that_nccl_insists_on() {
        let fake = Fake::dgx();
        let mut topology = Topology::detect(&fake.sysfs());
        let links = vec!["0000:19:00.0".to_owned(); 18];
        let report = Reported { busid: "0000:18:00.0".into(), sm: Some(90), links, ..Reported::default() };
        add(&mut topology, &fake.sysfs(), &[report]);
        let text = write(&topology).unwrap();
        let wanted = [
            ("system", &["version=\"1\""][..]),
            ("cpu", &["numaid=\"0\"", "affinity=\"00000033\"", "arch=\"", "vendor=\"GenuineIntel\""]),
            ("cpu", &["familyid=\"6\"", "modelid=\"143\""]),
            ("pci", &["busid=\"0000:16:00.0\"", "class=\"0x060400\"", "vendor=\"0x1000\"", "device=\"0x2330\""]),
            ("pci", &["link_speed=\"16.0 GT/s PCIe\"", "link_width=\"16\""]),
            ("gpu", &["dev=\"0\"", "sm=\"90\"", "rank=\"0\"", "gdr=\"1\""]),
            ("nvlink", &["target=\"0000:19:00.0\"", "count=\"18\"", "tclass=\"0x030200\""]),
            ("net", &["name=\"mlx5_0\"", "dev=\"0\"", "speed=\"400000\"", "port=\"1\"", "guid=\"0x506b"]),
        ];
        for (element, attributes) in wanted {
            for attribute in attributes {
                assert!(first(&text, element).contains(&format!(" {attribute}")), "{attribute} of {element}:\n{text}");
            }
        }
        assert_eq!((text.matches("<gpu ").count(), text.matches("<nic>").count()), (4, 3));
    }

    #[test]
    fn nothing_is_written_that_nccls_reader_stumbles_over() {
        let text = write(&Topology::detect(&Fake::dgx().sysfs())).unwrap();
        assert!(text.starts_with("<system version=\"1\">\n"), "no declaration");
        assert!(!text.contains('\t') && !text.contains("\" />") && !text.contains("  version"));
        for line in text.lines() {
            let line = line.trim_start();
            assert!(line.starts_with('<') && line.ends_with('>') && line.matches('<').count() == 1, "{line}");
            // It has room for 16 attributes and 255 letters in each.
            assert!(line.matches("=\"").count() <= 16, "{line}");
            assert!(line.split('"').all(|value| value.len() < 255), "{line}");
        }
    }

    #[test]
    fn a_link_of_unknown_speed_is_empty_and_0() {
        let pci = Pci { busid: "0000:18:00.0".into(), ..Pci::default() };
        let cpu = Cpu { pci: vec![pci], ..Cpu::default() };
        let text = write(&Topology { cpus: vec![cpu] }).unwrap();
        assert!(
            first(&text, "pci").ends_with("<pci busid=\"0000:18:00.0\" link_speed=\"\" link_width=\"0\"/"),
            "{text}"
        );
    }
}
