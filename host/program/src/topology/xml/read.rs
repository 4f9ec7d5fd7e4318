//! Reading NCCL's format, from NCCL, from us, or from anyone who wrote one by hand.

use super::document::{Element, ReadError, parse};
use super::{VERSION, family_from_nccl};
use crate::topology::cpu_set::CpuSet;
use crate::topology::model::{Cache, Cpu, Gpu, Net, NvLink, Pci, Topology};

/// Reads the text of a file.
///
/// # Errors
/// See [`ReadError`]. Elements and attributes of unknown names are passed over.
pub(crate) fn read(text: &str) -> Result<Topology, ReadError> {
    let root = parse(text)?;
    let version = root.get("version");
    if root.name != "system" || version != Some(VERSION) {
        let found = match version {
            Some(version) => format!("<{} version=\"{version}\">", root.name),
            None => format!("<{}> without a version", root.name),
        };
        return Err(ReadError::NotATopology { at: root.at, found });
    }
    let mut topology = Topology::default();
    for child in root.children {
        match &*child.name {
            "cpu" => topology.cpus.push(cpu(child)?),
            _ => child.pass_over("system")?,
        }
    }
    Ok(topology)
}

fn cpu(element: Element) -> Result<Cpu, ReadError> {
    const NAME: &str = "cpu";
    element.required(NAME, "numaid")?;
    let arch = element.text("arch");
    let is_x86 = arch.as_deref() == Some("x86_64");
    let family = element.number_or_unknown(NAME, "familyid")?;
    let affinity = element.parsed(NAME, "affinity", "a mask such as 00000000,0000ffff", CpuSet::from_mask)?;
    let mut cpu = Cpu {
        numa: element.number_or_unknown(NAME, "numaid")?,
        host: element.text("host_hash"),
        affinity,
        arch,
        vendor: element.text("vendor"),
        family: family.map(|family| if is_x86 { family_from_nccl(family) } else { family }),
        model: element.number_or_unknown(NAME, "modelid")?,
        name: element.text("model_name"),
        cores: element.number(NAME, "cores")?,
        memory: element.number(NAME, "memory")?,
        ..Cpu::default()
    };
    for child in element.children {
        match &*child.name {
            "cache" => cpu.caches.push(cache(&child)?),
            "pci" => cpu.pci.push(pci(child)?),
            "nic" => cpu.nets.append(&mut nic(child)?),
            _ => child.pass_over(NAME)?,
        }
    }
    Ok(cpu)
}

fn cache(element: &Element) -> Result<Cache, ReadError> {
    const NAME: &str = "cache";
    let missing = |attribute| ReadError::Missing { at: element.at, element: NAME, attribute };
    Ok(Cache {
        level: element.number(NAME, "level")?.ok_or(missing("level"))?,
        kind: element.required(NAME, "type")?,
        size: element.number(NAME, "size")?.ok_or(missing("size"))?,
        count: element.number(NAME, "count")?.ok_or(missing("count"))?,
    })
}

fn pci(element: Element) -> Result<Pci, ReadError> {
    const NAME: &str = "pci";
    let mut pci = Pci {
        busid: element.address(NAME, "busid")?,
        class: element.text("class"),
        vendor: element.text("vendor"),
        device: element.text("device"),
        subsystem_vendor: element.text("subsystem_vendor"),
        subsystem_device: element.text("subsystem_device"),
        link_speed: element.text("link_speed"),
        link_width: element.number_or_unknown(NAME, "link_width")?.filter(|&width| width > 0),
        ..Pci::default()
    };
    for child in element.children {
        match &*child.name {
            "gpu" => pci.gpus.push(gpu(child)?),
            "nic" => pci.nic.get_or_insert_default().append(&mut nic(child)?),
            "pci" => pci.pci.push(self::pci(child)?),
            _ => child.pass_over(NAME)?,
        }
    }
    Ok(pci)
}

fn gpu(element: Element) -> Result<Gpu, ReadError> {
    const NAME: &str = "gpu";
    let mut gpu = Gpu {
        dev: element.number_or_unknown(NAME, "dev")?,
        sm: element.number_or_unknown(NAME, "sm")?,
        rank: element.number_or_unknown(NAME, "rank")?,
        gdr: element.flag(NAME, "gdr")?,
        name: element.text("name"),
        nvlinks: Vec::new(),
    };
    for child in element.children {
        match &*child.name {
            "nvlink" => gpu.nvlinks.push(nvlink(&child)?),
            _ => child.pass_over(NAME)?,
        }
    }
    Ok(gpu)
}

fn nvlink(element: &Element) -> Result<NvLink, ReadError> {
    const NAME: &str = "nvlink";
    let missing = ReadError::Missing { at: element.at, element: NAME, attribute: "count" };
    Ok(NvLink {
        target: element.address(NAME, "target")?,
        count: element.number(NAME, "count")?.ok_or(missing)?,
        tclass: element.text("tclass"),
    })
}

fn nic(element: Element) -> Result<Vec<Net>, ReadError> {
    let mut nets = Vec::new();
    for child in element.children {
        match &*child.name {
            "net" => nets.push(net(&child)?),
            _ => child.pass_over("nic")?,
        }
    }
    Ok(nets)
}

fn net(element: &Element) -> Result<Net, ReadError> {
    const NAME: &str = "net";
    Ok(Net {
        name: element.required(NAME, "name")?,
        dev: element.number_or_unknown(NAME, "dev")?,
        speed: element.number_or_unknown(NAME, "speed")?,
        port: element.number_or_unknown(NAME, "port")?,
        guid: element.text("guid"),
        gdr: element.flag(NAME, "gdr")?,
        transport: element.text("transport"),
        link_layer: element.text("link_layer"),
        state: element.text("state"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::paths::Paths;

    /// As NCCL writes it, with a comment, another kind of quote, and things that are not for us.
    const DUMP: &str = r#"<?xml version="1.0"?>
<!-- of one host -->
<system version="1" name='example'>
  <cpu host_hash="0x3f2a" numaid="1" affinity="ffffffff,00000000" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1">
    <pci busid="0000:C0:00.0" class="0x060400" vendor="0x1000" device="0xc030" link_speed="16.0 GT/s PCIe" link_width="16">
      <pcilink target="0000:e0:00.0"/>
      <pci busid="0000:c1:00.0" class="0x030200" link_speed="" link_width="0">
        <gpu dev="5" sm="90" rank="-1" gdr="1">
          <nvlink target="FFFFFFF:FFFF:FF" count="18" tclass="0x068000"/>
          <c2c bw="25000" count="2"/>
        </gpu>
      </pci>
    </pci>
    <nic><net name="a &amp; b" dev="0" latency="0.0" speed="-1" port="1" guid="0x1" gdr="0" coll="1" keep="1"/></nic>
  </cpu>
</system>
"#;

    #[test]
    fn a_dump_of_nccl_is_read() {
        let topology = read(DUMP).unwrap();
        let cpu = &topology.cpus[0];
        assert_eq!(
            (cpu.numa, cpu.family, cpu.model, cpu.host.as_deref()),
            (Some(1), Some(25), Some(1), Some("0x3f2a"))
        );
        assert_eq!(cpu.affinity.as_ref().map(CpuSet::to_string).as_deref(), Some("32-63"));
        let device = &cpu.pci[0].pci[0];
        assert_eq!((cpu.pci[0].busid.as_str(), cpu.pci[0].link_width), ("0000:c0:00.0", Some(16)));
        assert_eq!((&device.link_speed, device.link_width), (&None, None));
        let gpu = &device.gpus[0];
        assert_eq!((gpu.dev, gpu.sm, gpu.rank, gpu.gdr), (Some(5), Some(90), None, Some(true)));
        assert_eq!((gpu.nvlinks[0].count, gpu.nvlinks[0].leads_to_switch()), (18, true));
        let net = &cpu.nets[0];
        assert_eq!((net.name.as_str(), net.speed, net.gdr), ("a & b", None, Some(false)));
        assert_eq!(Paths::of(&topology).devices, ["GPU5", "a & b"]);
    }

    /// What is wrong with a text, as its reader is told.
    fn refused(text: &str) -> String {
        read(text).unwrap_err().to_string()
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        let cases = [
            ("", "line 1, column 1: there is no element"),
            ("<system version=\"1\">\n  <cpu", "line 2, column 3: "),
            ("<system version=\"1\">\n<cpu numaid=\"0\"></system>", "line 2, column 17: "),
            ("<system version=\"1\">\n", "line 2, column 1: <system> is not closed"),
            (
                "<system version=\"2\"/>",
                "line 1, column 1: expected <system version=\"1\">, found <system version=\"2\">",
            ),
            ("<graphs version=\"1\"/>", "line 1, column 1: expected <system"),
            ("<system/>", "found <system> without a version"),
            ("<system version=\"1\"/><system version=\"1\"/>", "line 1, column 22: a second element"),
            ("<system version=\"1\">hello</system>", "line 1, column 21: text stands"),
            ("<!DOCTYPE x><system version=\"1\"/>", "line 1, column 1: a document type"),
            ("<system version=\"1\" version=\"1\"/>", "line 1, column 1: "),
            ("<system version=\"1\">\n <gpu dev=\"0\"/></system>", "line 2, column 2: <gpu> cannot be in <system>"),
            ("not XML at all", "line 1, column 1: text stands"),
        ];
        for (text, expected) in cases {
            assert!(refused(text).contains(expected), "{text}: {}", refused(text));
        }
    }

    #[test]
    fn values_that_cannot_be_are_told_with_their_element() {
        let in_cpu = |inner: &str| format!("<system version=\"1\">\n<cpu numaid=\"0\">{inner}</cpu></system>");
        let cases = [
            ("<pci/>", "line 2, column 17: <pci> lacks the attribute busid"),
            ("<pci busid=\"here\"/>", "busid=\"here\" of <pci> is not a bus address"),
            ("<pci busid=\"0:1:2.3\" link_width=\"wide\"/>", "link_width=\"wide\" of <pci> is not a number"),
            ("<pci busid=\"0:1:2.3\"><gpu dev=\"x\"/></pci>", "line 2, column 38: dev=\"x\" of <gpu>"),
            ("<pci busid=\"0:1:2.3\"><gpu><nvlink target=\"0:1\"/></gpu></pci>", "<nvlink> lacks the attribute count"),
            ("<nic><net speed=\"1\"/></nic>", "<net> lacks the attribute name"),
            ("<nic><net name=\"&#27;[2J\"/></nic>", "\\u{1b}[2J holds a control character"),
            ("<nic><net name=\"&what;\"/></nic>", "line 2, column 22: "),
            (
                "<cache level=\"1\" type=\"Data\" size=\"-1\" count=\"1\"/>",
                "size=\"-1\" of <cache> is not a number from 0",
            ),
            ("<cpu numaid=\"1\"/>", "<cpu> cannot be in <cpu>"),
        ];
        for (inner, expected) in cases {
            let text = in_cpu(inner);
            assert!(refused(&text).contains(expected), "{text}: {}", refused(&text));
        }
        assert!(refused("<system version=\"1\"><cpu/></system>").contains("lacks the attribute numaid"));
        let mask = "<system version=\"1\"><cpu numaid=\"0\" affinity=\"0-3\"/></system>";
        assert!(refused(mask).contains("affinity=\"0-3\" of <cpu> is not a mask"));
    }

    #[test]
    fn a_file_that_is_no_machines_is_refused() {
        let text = format!("<system version=\"1\">{}</system>", "<é/>".repeat(10_000));
        assert_eq!(
            refused(&text).split(';').next(),
            Some("line 1, column 32785: there are more than 8192 elements"),
            "letters are counted, not bytes"
        );
        let text = format!("<system version=\"1\">{}", "<pci busid=\"0:1:2.3\">".repeat(100_000));
        assert!(refused(&text).contains("elements lie more than 64 deep"));
    }
}
