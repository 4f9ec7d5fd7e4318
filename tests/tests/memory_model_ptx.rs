//! The PTX that is shipped holds what the memory model says: each rule of `docs/memory-model.md` by the instructions
//! that the page names, and the kernels where time matters most by a pattern of what must be there and what must not.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::collections::{BTreeMap, BTreeSet};

use congruent::{fixed_kernels, moe_kernels, sum_kernels};
use congruent_tests::repository;

/// A kernel's pattern. Instructions are told by how they begin, so that `fence` is any fence.
struct Pattern {
    kernel: &'static str,
    /// In the kernel, or in a function that it calls: folds, copies and polls are not inlined everywhere.
    reaches: &'static [&'static str],
    /// In the kernel itself.
    has: &'static [&'static str],
    /// Nowhere in the kernel itself. (What it calls may leave a fault record, with fences of its own.)
    lacks: &'static [&'static str],
}

const LOAD_16: &str = "ld.relaxed.sys.global.v4.b32";
const STORE_16: &str = "st.relaxed.sys.global.v4.b32";
const LOAD_PACKETS: &str = "ld.relaxed.sys.global.v2.b64";
const STORE_PACKETS: &str = "st.relaxed.sys.global.v2.b64";
const ACQUIRE: &str = "ld.acquire.sys.global.u64";
const RELEASE: &str = "st.release.sys.global.u64";
const RELEASE_ADD: &str = "red.release.sys.global.add.u64";
const SYNC: &str = "bar.sync";
const QUIET: &str = "fence.sc.sys";

/// The kernels where time matters most. Puts do not fence, and a get does not at all; a signal is one release; a
/// barrier stores and does not add; data goes by 16 bytes, and packets by two words.
#[rustfmt::skip]
const PATTERNS: [Pattern; 13] = [
    Pattern { kernel: "perf_put", reaches: &[LOAD_16, STORE_16], has: &[SYNC, QUIET], lacks: &[RELEASE, "red.", "fence.acq_rel"] },
    Pattern { kernel: "perf_get", reaches: &[LOAD_16, STORE_16], has: &[SYNC], lacks: &[RELEASE, "red.", "fence"] },
    Pattern { kernel: "perf_ping_pong", reaches: &[LOAD_16, STORE_16, ACQUIRE, RELEASE_ADD], has: &[SYNC], lacks: &["fence"] },
    Pattern { kernel: "perf_barrier", reaches: &[ACQUIRE, RELEASE], has: &[SYNC], lacks: &["fence", "red.", LOAD_16, STORE_16] },
    Pattern { kernel: "all_reduce_one_shot", reaches: &[LOAD_16, LOAD_PACKETS, STORE_PACKETS], has: &[SYNC], lacks: &["fence", "red."] },
    Pattern { kernel: "all_reduce_one_shot_f32", reaches: &[LOAD_16, LOAD_PACKETS, STORE_PACKETS], has: &[SYNC], lacks: &["fence", "red."] },
    Pattern { kernel: "all_reduce_direct", reaches: &[LOAD_16, STORE_16, ACQUIRE, RELEASE], has: &[SYNC], lacks: &["fence", "red."] },
    Pattern { kernel: "all_reduce_direct_f32", reaches: &[LOAD_16, STORE_16, ACQUIRE, RELEASE], has: &[SYNC], lacks: &["fence", "red."] },
    Pattern { kernel: "all_reduce_ring", reaches: &[LOAD_16, STORE_16, LOAD_PACKETS, STORE_PACKETS, ACQUIRE, RELEASE], has: &[SYNC], lacks: &["fence", "red."] },
    Pattern { kernel: "all_reduce_ring_f32", reaches: &[LOAD_16, STORE_16, LOAD_PACKETS, STORE_PACKETS, ACQUIRE, RELEASE], has: &[SYNC], lacks: &["fence", "red."] },
    Pattern { kernel: "reduce_scatter_direct", reaches: &[LOAD_16, STORE_16, ACQUIRE, RELEASE], has: &[SYNC], lacks: &["fence", "red."] },
    Pattern { kernel: "all_gather_direct", reaches: &[LOAD_16, STORE_16, ACQUIRE, RELEASE], has: &[SYNC], lacks: &["fence.acq_rel", "red."] },
    Pattern { kernel: "all_to_all_direct", reaches: &[LOAD_16, STORE_16, ACQUIRE, RELEASE], has: &[SYNC], lacks: &["fence.acq_rel", "red."] },
];

/// What no kernel may hold, nor any function: loads outside the model, scopes that do not reach other devices, accesses
/// of global memory without an order, atomics without one, the old fence.
fn is_outside_the_model(instruction: &str) -> bool {
    let parts: BTreeSet<&str> = instruction.split('.').collect();
    let has = |part: &str| parts.contains(part);
    let accesses = has("ld") || has("st") || has("atom") || has("red") || has("multimem");
    // Shared memory is the block's alone.
    let narrow = (accesses && !has("shared") || has("fence")) && ["gpu", "cta", "cluster"].into_iter().any(has);
    let ordered = ["relaxed", "acquire", "release", "acq_rel"].into_iter().any(has);
    let on_global = accesses && has("global");
    // The barrier that votes is `bar.red`, which is not an access.
    let atomic = !has("bar") && (has("atom") || has("red"));
    has("nc") || has("volatile") || has("membar") || has("local") || narrow || ((on_global || atomic) && !ordered)
}

/// A file of PTX, by its functions.
struct Ptx {
    arch: &'static str,
    bodies: BTreeMap<String, String>,
}

impl Ptx {
    fn all() -> Vec<Self> {
        let read = |&(arch, text): &(&'static str, &str)| Self { arch, bodies: functions(text) };
        let modules = [&fixed_kernels::PTX, &fixed_kernels::MULTIMEM, &moe_kernels::PTX, &sum_kernels::PTX];
        modules.iter().flat_map(|module| module.images).map(read).collect()
    }

    /// Those that have a kernel, of which there are some.
    fn with<'p>(all: &'p [Self], kernel: &str) -> Vec<&'p Self> {
        let with: Vec<_> = all.iter().filter(|ptx| ptx.bodies.contains_key(kernel)).collect();
        assert!(!with.is_empty(), "there is no {kernel}");
        with
    }

    /// The instructions of a function.
    fn own(&self, function: &str) -> BTreeSet<&str> {
        self.bodies.get(function).map(|body| instructions(body)).unwrap_or_default()
    }

    /// The instructions of a function and of all that it calls.
    fn reached(&self, function: &str) -> BTreeSet<&str> {
        let mut open = vec![function];
        let mut seen = BTreeSet::new();
        while let Some(name) = open.pop() {
            if let Some((name, body)) = self.bodies.get_key_value(name).filter(|(name, _)| seen.insert(name.as_str())) {
                let calls = body.split(';').filter_map(|statement| statement.split_once("call")).map(|(_, call)| call);
                let words = calls.flat_map(|call| call.split(|c: char| !(c.is_alphanumeric() || "_$".contains(c))));
                open.extend(words.filter(|word| *word != name && self.bodies.contains_key(*word)));
            }
        }
        seen.into_iter().flat_map(|name| self.own(name)).collect()
    }
}

/// The bodies of all functions, by their names. A body stands between lines that are one brace.
fn functions(text: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for part in text.split("\n{\n").collect::<Vec<_>>().windows(2) {
        let (head, body) = (part[0], part[1]);
        let head = head.rsplit("\n}\n").next().unwrap_or(head);
        let Some((_, head)) = head.rsplit_once(".entry").or(head.rsplit_once(".func")) else { continue };
        // What a function returns stands in parentheses before its name.
        let head = head.trim_start();
        let head = head.strip_prefix('(').and_then(|head| head.split_once(')')).map_or(head, |(_, head)| head);
        let name = head.split('(').next().unwrap_or_default().trim();
        found.insert(name.to_owned(), body.split("\n}").next().unwrap_or(body).to_owned());
    }
    found
}

/// The instructions of a body, without what they are applied to.
fn instructions(body: &str) -> BTreeSet<&str> {
    let statements =
        body.lines().filter(|line| !line.trim_start().starts_with("//")).flat_map(|line| line.split([';', '{', '}']));
    let words = statements.filter_map(|statement| statement.split_whitespace().find(|word| !word.starts_with('@')));
    words.filter(|word| word.starts_with(char::is_alphabetic) && !word.contains(".param")).collect()
}

fn has(found: &BTreeSet<&str>, start: &str) -> bool {
    found.iter().any(|instruction| instruction.starts_with(start))
}

#[test]
fn hot_kernels_have_the_instructions_that_they_should() {
    let mut wrong = Vec::new();
    let all = Ptx::all();
    for Pattern { kernel, reaches, has: needs, lacks } in &PATTERNS {
        for ptx in Ptx::with(&all, kernel) {
            let (own, reached) = (ptx.own(kernel), ptx.reached(kernel));
            let missing = reaches.iter().filter(|start| !has(&reached, start));
            let missing = missing.chain(needs.iter().filter(|start| !has(&own, start)));
            wrong.extend(missing.map(|start| format!("{kernel} for {} has no {start}", ptx.arch)));
            let present = lacks.iter().filter(|start| has(&own, start));
            wrong.extend(present.map(|start| format!("{kernel} for {} has {start}", ptx.arch)));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn nothing_is_outside_the_model() {
    for ptx in Ptx::all() {
        assert!(ptx.bodies.len() > 30, "{} functions for {}", ptx.bodies.len(), ptx.arch);
        for (function, body) in &ptx.bodies {
            let outside: Vec<_> = instructions(body).into_iter().filter(|one| is_outside_the_model(one)).collect();
            assert!(outside.is_empty(), "{function} for {}: {outside:?}", ptx.arch);
        }
    }
}

/// What a kernel is given wrongly is a fault, and no trap, which would take the context with it.
#[test]
fn no_kernel_traps() {
    for ptx in Ptx::all() {
        for (function, body) in &ptx.bodies {
            assert!(!body.contains("trap"), "{function} for {}", ptx.arch);
        }
    }
}

/// A row of the page's table "The rules in the PTX".
struct Row<'p> {
    rule: &'p str,
    instructions: Vec<&'p str>,
    kernel: &'p str,
}

fn rows(page: &str) -> Vec<Row<'_>> {
    let (_, section) = page.split_once("## The rules in the PTX").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| MM-"));
    rows.map(row).collect()
}

fn row(text: &str) -> Row<'_> {
    let cells: Vec<&str> = text.split('|').map(str::trim).collect();
    let [rule, instructions, kernel, ..] = cells[..] else { panic!("a row with too few cells: {text}") };
    Row { rule: rule.split(' ').next().unwrap(), instructions: ticked(instructions), kernel: ticked(kernel)[0] }
}

/// What stands in backticks.
fn ticked(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

#[test]
fn each_rule_is_in_the_shipped_ptx_as_the_page_says() {
    let page = std::fs::read_to_string(repository().join("docs/memory-model.md")).unwrap();
    let rows = rows(&page);
    let headings: BTreeSet<&str> =
        page.lines().filter_map(|line| line.strip_prefix("### MM-")?.split(':').next()).collect();
    assert_eq!(rows.iter().map(|row| row.rule).collect::<BTreeSet<_>>(), headings, "each rule has its row");
    let mut wrong = Vec::new();
    let all = Ptx::all();
    for Row { rule, instructions, kernel } in &rows {
        for ptx in Ptx::with(&all, kernel) {
            let found = ptx.reached(kernel);
            let missing = instructions.iter().filter(|instruction| !has(&found, instruction));
            wrong.extend(missing.map(|missing| format!("MM-{rule}: {kernel} for {} has no {missing}", ptx.arch)));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn ptx_is_read_rightly() {
    let text = ".version 8.0\n.func  (.param .b32 r) helper(\n\t.param .b64 a\n)\n{\n\t{ .reg .b64 g; ld.relaxed.sys.global.u64 %rd1, \
                [g]; }\n\tret;\n}\n\n.visible .entry kernel(\n\t.param .b64 a\n)\n{\n\t// st.global\n\t@%p1 bar.sync 0;\n\
                \tcall.uni (retval0), \n\thelper, \n\t(\n\tparam0\n\t);\n\tst.param.b64 [a], 1;\n}\n";
    let ptx = Ptx { arch: "sm_80", bodies: functions(text) };
    assert_eq!(ptx.bodies.keys().collect::<Vec<_>>(), ["helper", "kernel"]);
    assert_eq!(Vec::from_iter(ptx.own("kernel")), ["bar.sync", "call.uni", "helper,", "param0"]);
    assert!(has(&ptx.reached("kernel"), "ld.relaxed.sys") && !has(&ptx.own("kernel"), "ld."));
    for fine in [
        LOAD_16,
        RELEASE_ADD,
        QUIET,
        "bar.red.or.pred",
        "ld.shared.b64",
        "st.relaxed.cta.shared.b64",
        "st.b64",
        "fence.proxy.alias",
        "bar.sync",
    ] {
        assert!(!is_outside_the_model(fine), "{fine}");
    }
    for outside in
        ["ld.global.nc.b32", "ld.global.b32", "atom.add.u64", "st.release.gpu.global.u64", "membar.sys", "st.local.b32"]
    {
        assert!(is_outside_the_model(outside), "{outside}");
    }
}
