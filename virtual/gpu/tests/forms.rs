//! What the virtual GPU can compute is what PTX has: ptxas takes the instructions that it knows, and it knows those that
//! ptxas takes, of all that the parser lets through.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::fmt::Write as _;
use std::io::Write as _;

use congruent_build::{BuildError, Ptxas};
use congruent_verify::ptx::spellings;
use congruent_virtual_gpu::alu::{carry, function, matrix};

/// The opcodes that are arithmetic.
const OPCODES: &str = "abs add addc and bfe bfi bfind bmsk brev clz cnot copysign cos cvt div dp2a dp4a ex2 fma fns lg2 lop3 mad \
    mad24 madc max min mul mul24 neg not or popc prmt rcp rem rsqrt sad set setp shf shl shr sin slct sqrt sub subc szext tanh \
    testp xor";

/// Registers of each width that the kernel of a file declares.
const REGISTERS: usize = 40;

/// Says so where the test harness does not hide it.
fn skip(test: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {why}");
}

#[test]
fn every_form_that_ptxas_takes_is_known() {
    const TEST: &str = "every_form_that_ptxas_takes_is_known";
    let ptxas = match Ptxas::find() {
        Ok(ptxas) => ptxas,
        Err(error) => return skip(TEST, &error.to_string()),
    };
    let mut known = Vec::new();
    let mut unknown = Vec::new();
    for opcode in OPCODES.split_whitespace() {
        let forms = spellings(opcode);
        assert!(!forms.is_empty(), "{opcode} is no opcode");
        for modifiers in forms {
            let owned: Vec<String> = modifiers.iter().map(|&modifier| modifier.to_owned()).collect();
            let line = instruction(opcode, &modifiers);
            match function(opcode, &owned).is_some() || carry(opcode, &owned).is_some() {
                true => known.push(line),
                false => unknown.push(line),
            }
        }
    }
    assert!(known.len() > 4_000, "only {} forms are known", known.len());
    // Two elements in a register of 64 bits came with the later generation.
    let (_, refused) = sorted(&ptxas, TEST, "sm_90a", known);
    let (_, refused) = sorted(&ptxas, TEST, "sm_100a", refused);
    assert!(refused.is_empty(), "ptxas refuses, of what is known: {refused:#?}");
    let (mut taken, refused) = sorted(&ptxas, TEST, "sm_90a", unknown);
    taken.extend(sorted(&ptxas, TEST, "sm_100a", refused).0);
    taken.retain(|line| !is_left_out(line));
    assert!(taken.is_empty(), "ptxas takes, of what is not known: {taken:#?}");
}

#[test]
fn every_mma_that_is_known_has_the_registers_that_ptxas_wants() {
    const TEST: &str = "every_mma_that_is_known_has_the_registers_that_ptxas_wants";
    let ptxas = match Ptxas::find() {
        Ok(ptxas) => ptxas,
        Err(error) => return skip(TEST, &error.to_string()),
    };
    let known: Vec<String> = spellings("mma")
        .into_iter()
        .filter_map(|modifiers| {
            let modifiers: Vec<String> = modifiers.into_iter().map(str::to_owned).collect();
            let kind = if modifiers.last().is_some_and(|last| last == "f64") { 'd' } else { 'r' };
            let mut used = 0;
            let operands = matrix::mma(&modifiers)?.registers().map(|count| {
                let names: Vec<String> = (used..used + count).map(|i| format!("%{kind}{i}")).collect();
                used += count;
                format!("{{{}}}", names.join(", "))
            });
            Some(format!("mma.{} {};", modifiers.join("."), operands.join(", ")))
        })
        .collect();
    assert!(known.len() > 50, "only {} forms are known", known.len());
    let (_, refused) = sorted(&ptxas, TEST, "sm_90a", known);
    assert!(refused.is_empty(), "{refused:#?}");
}

/// What the virtual GPU refuses on purpose: of later generations, with an operand that is no register's value, or beside what
/// the PTX ISA documents.
fn is_left_out(line: &str) -> bool {
    let name = line.split(' ').next().unwrap_or_default();
    let has = |word: &str| name.split('.').any(|own| own == word);
    match name.split('.').next().unwrap_or_default() {
        "cvt" => has("rs"),
        "fma" => has("oob"),
        // Two predicates at once, or one that is combined with both elements.
        "setp" => has("f16x2") || has("bf16x2"),
        "set" => has("f16x2") || has("bf16x2"),
        "rcp" => has("ftz") && has("f64"),
        "addc" | "subc" | "madc" => has("u16") || has("s16"),
        _ => false,
    }
}

/// The lines that ptxas takes for a generation, and those it refuses.
fn sorted(ptxas: &Ptxas, test: &str, target: &str, mut lines: Vec<String>) -> (Vec<String>, Vec<String>) {
    let mut head = format!(".version 8.8\n.target {target}\n.address_size 64\n.entry k()\n{{\n");
    for (width, name) in [("b16", 'h'), ("b32", 'r'), ("b64", 'd'), ("pred", 'p')] {
        writeln!(head, ".reg .{width} %{name}<{REGISTERS}>;").unwrap();
    }
    let before = head.lines().count();
    let file = std::env::temp_dir().join(format!("{test}-{}.ptx", std::process::id()));
    let mut refused = Vec::new();
    // Where a line cannot be read at all, ptxas looks at none of the later ones.
    loop {
        std::fs::write(&file, format!("{head}{}\nret;\n}}\n", lines.join("\n"))).unwrap();
        let message = match ptxas.assemble(&file) {
            Ok(_) => break,
            Err(BuildError::Rejected { message, .. }) => message,
            Err(other) => panic!("{other}"),
        };
        let numbers = message.lines().filter_map(|line| line.split_once(", line ")?.1.split(';').next()?.parse().ok());
        let mut bad: Vec<usize> =
            numbers.filter(|number| *number > before).map(|number: usize| number - before - 1).collect();
        bad.sort_unstable();
        bad.dedup();
        bad.retain(|at| *at < lines.len());
        assert!(!bad.is_empty(), "{message}");
        let mut at = 0..;
        let (gone, left) = lines.into_iter().partition(|_| at.next().is_some_and(|at| bad.binary_search(&at).is_ok()));
        lines = left;
        refused.extend::<Vec<_>>(gone);
    }
    std::fs::remove_file(&file).unwrap();
    (lines, refused)
}

/// The instruction with operands of the widths that its types have.
fn instruction(opcode: &str, modifiers: &[&str]) -> String {
    let mut used = 0;
    let mut register = |kind: char| {
        used += 1;
        format!("%{kind}{used}")
    };
    let operands: Vec<String> = operands(opcode, modifiers)
        .split(' ')
        .map(|operand| match operand {
            "#" => "26".to_owned(),
            _ => operand.split('|').map(|kind| register(kind.chars().next().unwrap())).collect::<Vec<_>>().join("|"),
        })
        .collect();
    format!("{opcode}.{} {};", modifiers.join("."), operands.join(", "))
}

/// The kinds of an instruction's operands: h, r, d of 16, 32, 64 bits, p of one, # a number.
fn operands(opcode: &str, modifiers: &[&str]) -> String {
    let last = modifiers.last().map_or('r', |of| kind(of));
    let other = modifiers.iter().rev().nth(1).map_or('r', |of| kind(of));
    let has = |word: &str| modifiers.contains(&word);
    let predicate = if has("and") || has("or") || has("xor") { " p" } else { "" };
    let wide = match last {
        'h' if has("wide") => 'r',
        'r' if has("wide") => 'd',
        same => same,
    };
    match opcode {
        "mul" => format!("{wide} {last} {last}"),
        "mad" | "madc" => format!("{wide} {last} {last} {wide}"),
        "popc" | "clz" | "bfind" => format!("r {last}"),
        "shl" | "shr" => format!("{last} {last} r"),
        "bfe" => format!("{last} {last} r r"),
        "bfi" => format!("{last} {last} {last} r r"),
        "abs" | "neg" | "brev" | "rcp" | "sqrt" | "rsqrt" | "sin" | "cos" | "lg2" | "ex2" | "tanh" | "not" | "cnot" => {
            format!("{last} {last}")
        }
        "testp" => format!("p {last}"),
        "mad24" | "fma" | "sad" | "fns" | "dp4a" | "dp2a" | "shf" | "prmt" => format!("{last} {last} {last} {last}"),
        "lop3" if predicate.is_empty() => "r r r r #".to_owned(),
        "lop3" => "r|p r r r # p".to_owned(),
        "setp" if has("f16x2") || has("bf16x2") => format!("p|p {last} {last}{predicate}"),
        "setp" => format!("p {last} {last}{predicate}"),
        "set" => format!("{other} {last} {last}{predicate}"),
        "slct" => format!("{other} {other} {other} r"),
        "cvt" if has("f32") && last == 'r' && modifiers.iter().rev().nth(1).is_some_and(|to| to.ends_with("x2")) => {
            format!("{other} r r{}", if has("rs") { " r" } else { "" })
        }
        "cvt" => format!("{other} {last}"),
        _ => format!("{last} {last} {last}"),
    }
}

/// The register that holds a type.
fn kind(of: &str) -> char {
    match of {
        "pred" => 'p',
        "f16" | "bf16" | "e4m3x2" | "e5m2x2" | "b8" | "u8" | "s8" | "b16" | "u16" | "s16" => 'h',
        "f64" | "f32x2" | "b64" | "u64" | "s64" | "b128" => 'd',
        _ => 'r',
    }
}
