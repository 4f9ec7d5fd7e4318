//! `congruent topo`: this machine, a file of another, and the routes of a job.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod support;

use serde_json::Value;
use support::{congruent, ended};

/// Two GPUs behind a switch, joined by NVLinks, and a third one on the other socket beside a card.
const MACHINE: &str = r#"<system version="1">
  <cpu numaid="0" affinity="0000000f" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:16:00.0" class="0x060400" vendor="0x1000" device="0xc030" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:18:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="90" rank="0" gdr="1"><nvlink target="0000:19:00.0" count="6" tclass="0x030200"/></gpu>
      </pci>
      <pci busid="0000:19:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="1" sm="90" rank="1" gdr="1"><nvlink target="0000:18:00.0" count="6" tclass="0x030200"/></gpu>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="1" affinity="000000f0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:88:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
      <gpu dev="2" sm="90" rank="2" gdr="1"/>
    </pci>
    <pci busid="0000:8a:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16">
      <nic><net name="mlx5_0" dev="0" speed="400000" port="1" guid="0x1" gdr="1"/></nic>
    </pci>
  </cpu>
</system>
"#;

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[test]
fn this_machine_has_a_cpu_and_its_pes_have_routes() {
    let shown = ended(&mut congruent(&["topo", "-p", "2"]));
    assert_eq!((shown.code, &*shown.err), (Some(0), ""));
    assert!(
        shown.out.lines().any(|line| line.starts_with("NUMA node ") && line.contains(": threads ")),
        "{}",
        shown.out
    );
    let rows: Vec<_> = shown.out.lines().map(words).collect();
    for row in [["PE", "0", "-", "direct"], ["PE", "1", "direct", "-"]] {
        assert!(rows.contains(&row.to_vec()), "{}", shown.out);
    }
    let proxied = ended(congruent(&["topo", "-p", "2"]).env("CONGRUENT_P2P_DISABLE", "1"));
    assert!(proxied.out.lines().any(|line| words(line) == ["PE", "0", "-", "proxied"]), "{}", proxied.out);
}

#[test]
fn a_job_shows_its_routes_once() {
    let program = env!("CARGO_BIN_EXE_congruent");
    let shown = ended(&mut congruent(&["run", "-n", "3", "--", program, "topo"]));
    assert_eq!(shown.code, Some(0), "{shown:?}");
    assert_eq!(shown.out.matches("Routes between 3 PEs, processes of this machine").count(), 1, "{}", shown.out);
}

#[test]
fn a_file_is_shown_and_comes_back_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second, document] = ["first.xml", "second.xml", "topo.json"].map(|name| folder.path().join(name));
    std::fs::write(&first, MACHINE).unwrap();
    let [first, second, document] = [first, second, document].map(|path| path.to_str().unwrap().to_owned());
    let shown = ended(&mut congruent(&["topo", "--from", &first, "--xml", &second, "--json", &document]));
    assert_eq!((shown.code, &*shown.err), (Some(0), ""));
    assert!(!shown.out.contains("Routes between"), "no PE runs on a file's machine");
    let rows: Vec<_> = shown.out.lines().map(words).collect();
    assert!(rows.contains(&vec!["GPU0", "LOC", "NVL", "SYS", "SYS"]), "{}", shown.out);
    assert!(rows.contains(&vec!["GPU2", "SYS", "SYS", "LOC", "PHB"]), "{}", shown.out);

    let again = ended(&mut congruent(&["topo", "--from", &second]));
    assert_eq!(again.out, shown.out);
    let json: Value = serde_json::from_str(&std::fs::read_to_string(&document).unwrap()).unwrap();
    assert_eq!(json["paths"]["classes"][0][1], "NVL");
    assert_eq!(json["cpus"][0]["pci"][0]["pci"][1]["gpus"][0]["dev"], 1);
    assert_eq!(json["pes"], Value::Null);
}

#[test]
fn documents_on_standard_output_stand_alone() {
    let json = ended(&mut congruent(&["topo", "-p", "2", "--json", "-"]));
    let document: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(document["pes"]["routes"], serde_json::json!([["itself", "direct"], ["direct", "itself"]]));
    let xml = ended(&mut congruent(&["topo", "-p", "1", "--xml", "-"]));
    assert!(xml.out.starts_with("<system version=\"1\">") && xml.out.trim_end().ends_with("</system>"), "{}", xml.out);
    let both = ended(&mut congruent(&["topo", "--xml", "-", "--json", "-"]));
    assert_eq!((both.code, &*both.out), (Some(2), ""));
}

#[test]
fn what_is_wrong_with_a_file_is_told_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("broken.xml");
    std::fs::write(&file, MACHINE.replace("dev=\"1\"", "dev=\"second\"")).unwrap();
    let refused = ended(&mut congruent(&["topo", "--from", file.to_str().unwrap()]));
    assert_eq!((refused.code, &*refused.out), (Some(1), ""));
    assert!(refused.err.contains("broken.xml: line 8, column 9: dev=\"second\" of <gpu>"), "{}", refused.err);
    let file = folder.path().join("none").join("out.xml");
    let refused = ended(&mut congruent(&["topo", "-p", "1", "--xml", file.to_str().unwrap()]));
    assert_eq!(refused.code, Some(1));
    assert!(refused.err.contains("out.xml cannot be written"), "{}", refused.err);
    assert_eq!(ended(&mut congruent(&["topo", "--from", "x", "-p", "2"])).code, Some(2));
}
