//! The inner loop of the tiled product, in the machine code that ptxas makes of its PTX: how many instructions there are beside the `mma`,
//! how many registers, and that nothing is spilled.
//!
//! `cargo test --workspace --test machine_code -- --nocapture` prints the figures.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use congruent_build::{Ptxas, nvdisasm};
use congruent_tests::{repository, skip};

/// Instructions beside each `mma` of the inner loop, and registers of a thread, at most.
const OTHERS: f64 = 0.6;
const REGISTERS: u32 = 168;

/// The instructions of a kernel, and for each that is a jump back how far.
struct Code {
    instructions: Vec<String>,
    loops: Vec<(usize, usize)>,
}

impl Code {
    /// Of a kernel, out of what nvdisasm says of a file.
    fn of(kernel: &str, text: &str) -> Self {
        let section = text.split(&format!("\n.text.{kernel}:\n")).nth(1).unwrap_or_else(|| panic!("no {kernel}"));
        let section = section.split("\n//---").next().unwrap();
        let (mut instructions, mut labels, mut loops) = (Vec::new(), HashMap::new(), Vec::new());
        for line in section.lines().map(str::trim) {
            if let Some(label) = line.strip_suffix(':') {
                labels.insert(label, instructions.len());
            } else if let Some((_, instruction)) = line.strip_prefix("/*").and_then(|line| line.split_once("*/")) {
                let (instruction, _) = instruction.split_once(';').unwrap_or((instruction, ""));
                let target = instruction.split_once("`(").and_then(|(_, rest)| rest.split_once(')'));
                if let Some(&start) = target.and_then(|(label, _)| labels.get(label))
                    && instruction.contains("BRA")
                {
                    loops.push((start, instructions.len()));
                }
                instructions.push(instruction.trim().to_owned());
            }
        }
        Self { instructions, loops }
    }

    /// How many of some instructions begin with this, behind their conditions.
    fn count(some: &[String], name: &str) -> usize {
        let without_condition = |one: &str| match one.strip_prefix('@') {
            Some(rest) => rest.split_once(' ').map_or("", |(_, rest)| rest.trim_start()).to_owned(),
            None => one.to_owned(),
        };
        some.iter().filter(|one| without_condition(one).starts_with(name)).count()
    }

    /// The shortest loop that multiplies.
    fn hot_loop(&self) -> &[String] {
        let all = self.loops.iter().map(|&(start, end)| &self.instructions[start..=end]);
        all.filter(|some| Self::count(some, "HMMA") > 0).min_by_key(|some| some.len()).unwrap()
    }
}

#[test]
fn the_product_has_few_instructions_beside_its_mma_and_spills_nothing() {
    const NAME: &str = "the_product_has_few_instructions_beside_its_mma_and_spills_nothing";
    let (Some(nvdisasm), Ok(ptxas)) = (nvdisasm(), Ptxas::find()) else {
        return skip(NAME, "no nvdisasm or no ptxas");
    };
    let folder = repository().join("host/examples/kernels/ptx");
    let cubin = Path::new(env!("CARGO_TARGET_TMPDIR")).join("product.cubin");
    ptxas.assemble_to(&folder.join("congruent_example_kernels.sm_80.ptx.zst"), "sm_90", &cubin).unwrap();
    let output = Command::new(&nvdisasm).arg("-c").arg(&cubin).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let code = Code::of("gemm", &String::from_utf8(output.stdout).unwrap());
    let hot = code.hot_loop();
    let [mma, loads, copies] = ["HMMA", "LDSM", "LDGSTS"].map(|name| Code::count(hot, name));
    let others = (hot.len() - mma) as f64 / mma as f64;
    println!("{mma} mma, {others:.2} others for each, of which {loads} ldmatrix and {copies} copies in all");
    // A stage has four times 16 elements of each row, a part 24 `mma` for them, and the loop two stages.
    assert!(mma >= 2 * 4 * 24 && loads > 0 && copies > 0, "the loop that is looked at is another one");
    assert!(others <= OTHERS, "{others:.2} others for each mma, at most {OTHERS}");
    let spills = ["STL", "LDL"].map(|name| Code::count(&code.instructions, name));
    assert_eq!(spills, [0, 0], "numbers are spilled");

    // The table has all generations.
    let table = std::fs::read_to_string(folder.join("usage.txt")).unwrap();
    let rows: Vec<Vec<_>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    let rows: Vec<_> = rows.iter().filter(|row| row.last() == Some(&"gemm")).collect();
    assert!(rows.len() >= 3, "{rows:?}");
    for row in rows {
        let [_, registers, stack, stores, ..] = row[..] else { panic!("{row:?}") };
        assert!(registers.parse::<u32>().unwrap() <= REGISTERS && (stack, stores) == ("0", "0"), "{row:?}");
    }
}
