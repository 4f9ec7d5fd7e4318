//! The litmus tests: each has the verdict that it expects, and names the clauses that decide it.

#![allow(clippy::expect_used, reason = "a test says what it expects")]

use std::fs;
use std::path::{Path, PathBuf};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use congruent_verify::litmus::{Error, Rule, Test, Verdict, parse, table};

/// Every file of tests, by name.
fn files() -> Vec<(String, Vec<Test>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/litmus");
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder).expect("tests").map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    let read = |path: &PathBuf| {
        let text = fs::read_to_string(path).expect("a file");
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let tests = parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, tests)
    };
    paths.iter().map(read).collect()
}

#[test]
fn every_test_has_the_verdict_that_it_expects() {
    let mut wrong = Vec::new();
    for (file, tests) in files() {
        for test in tests {
            let outcome = test.check();
            if outcome.verdict != test.expected {
                let witness = outcome.witness.map(|witness| witness.to_string()).unwrap_or_default();
                wrong.push(format!("{file}:{} {}: {}\n{witness}", test.line, test.name, outcome.verdict));
            }
            let unnamed: Vec<_> =
                outcome.rules.iter().filter(|rule| !test.clauses.iter().any(|own| own == rule.clause())).collect();
            if !unnamed.is_empty() {
                wrong.push(format!("{file}:{} {}: also decided by {unnamed:?}", test.line, test.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Two never do. Where Fence-SC forbids an order of two fences, the other order demands no more than what holds already. And what
/// sequential consistency per location forbids, coherence, atomicity or causality forbid as well.
#[test]
fn every_rule_decides_a_test() {
    let decided: Vec<Rule> = files().iter().flat_map(|(_, tests)| tests).flat_map(|test| test.check().rules).collect();
    let idle: Vec<Rule> = Rule::ALL.into_iter().filter(|rule| !decided.contains(rule)).collect();
    assert_eq!(idle, [Rule::FenceSc, Rule::ScPerLocation]);
}

/// `congruent litmus --markdown verify/tests/litmus/*.litmus` prints them.
#[test]
fn the_page_has_the_tables() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/litmus.md");
    let page = fs::read_to_string(path).expect("the page");
    let stale: Vec<String> = files()
        .into_iter()
        .filter(|(name, tests)| !page.contains(&format!("\n## {name}\n\n{}", table(tests))))
        .map(|(name, _)| name)
        .collect();
    assert!(stale.is_empty(), "docs/litmus.md has other tables of {stale:?}");
}

#[test]
fn what_is_no_test_is_an_error_with_its_line() {
    let error = |text: &str| -> Error { parse(text).expect_err("no test") };
    let body = |instruction: &str| format!("test t\nthread P0\n  {instruction}\nexists r0 == 1\nexpect allowed\n");
    for (text, line, part) in [
        ("thread P0".to_owned(), 1, "expected `test NAME`"),
        ("test".to_owned(), 1, "needs a name"),
        ("variant v".to_owned(), 1, "no test before"),
        (body("ld.sideways.u64 r0, [x];"), 3, "unknown modifier `.sideways`"),
        (body("shfl.sync.idx.b32 r0, r1, 0, 31, -1;"), 3, "not modelled"),
        (body("st.relaxed.sys.u64 [x], r0;"), 3, "nothing is loaded into `r0`"),
        (body("ld.relaxed.sys.b128 r0, [x];"), 3, "8 to 64 bits"),
        (body("ld.relaxed.sys.v4.b32 {r0, r1}, [x];"), 3, "another length"),
        (body("ld.relaxed.sys.u64 r0, [x+4];"), 3, "not aligned"),
        (body("bar.sync 0;"), 4, "waits alone"),
        (body("@p ld.relaxed.sys.u64 r0, [x];"), 3, "not declared"),
        (body("ld.u64 r0, [x];\nmultimem m x\nthread P1\n st.u64 [m], 1;"), 6, "only `multimem`"),
        (body("ld.u64 r0, [x];\nalias y x"), 5, "nothing accesses `y`"),
        (body("ld.u64 r0, [z];\nalias y x\nalias z y"), 6, "`y` is an alias"),
        (body("ld.u64 r0, [x];\npieces q 4"), 5, "nothing accesses `q`"),
        (body(&format!("ld.u64 r0, [x];{}", "\natom.add.u64 _, [x], 1;".repeat(9))), 13, "takes too long"),
        (body(&"ld.u64 _, [x];\n".repeat(65)), 69, "more than 64 events"),
        ("test t\nthread P0 moon 1".to_owned(), 2, "no place"),
        ("test t\nthread P0\nthread P0".to_owned(), 3, "two threads"),
        ("test t\nexists r0 = 1\nexpect allowed".to_owned(), 2, "no comparison"),
        ("test t\nexpect allowed".to_owned(), 1, "asks for no outcome"),
        ("test t\nexists r0 == 1".to_owned(), 1, "expects nothing"),
    ] {
        let error = error(&text);
        assert!(error.line == line && error.message.contains(part), "{text}\n{error}");
    }
}

/// Every text is tests or an error, never a panic: here a test with words of others in some of its lines.
#[test]
fn any_mix_of_words_is_read_or_refused() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/litmus");
    let text = fs::read_to_string(folder.join("protocols.litmus")).expect("a file");
    let tests: Vec<&str> = text.split("\n\n").filter(|part| part.contains("\ntest ")).collect();
    let words: Vec<&str> = text.split_whitespace().collect();
    let change = || (any::<Index>(), any::<Index>());
    proptest!(ProptestConfig::with_cases(3_000), |(test: Index, changes in vec(change(), 1..4))| {
        let mut mixed: Vec<&str> = tests[test.index(tests.len())].split_inclusive(char::is_whitespace).collect();
        for (place, word) in changes {
            let place = place.index(mixed.len());
            mixed[place] = words[word.index(words.len())];
            mixed.insert(place + 1, if place % 4 == 0 { "\n" } else { " " });
        }
        let _ = parse(&mixed.concat());
    });
}

#[test]
fn a_variant_changes_one_instruction() {
    let text = "test t\nthread P0\n st.u64 [x], 1;\n st.u64 [x], 1;\nexists [x] == 1\nexpect allowed\nvariant v\n";
    let change = |line: &str| parse(&format!("{text}{line}\nexpect allowed\n"));
    assert!(change("P0/2: st.u64 [x], 1 => st.u64 [x], 2").is_ok());
    for (line, part) in [
        ("P0: st.u64 [x], 1 => st.u64 [x], 2", "2 times"),
        ("P0: st.u64 [y], 1 => st.u64 [x], 2", "0 times"),
        ("P1: st.u64 [x], 1 =>", "no thread `P1`"),
        ("thread P1", "no thread `P1`"),
        ("st.u64 [x], 1", "not understood"),
    ] {
        let error = change(line).expect_err("no change");
        assert!(error.line == 8 && error.message.contains(part), "{line}: {error}");
    }
}

#[test]
fn an_allowed_outcome_is_shown_and_a_forbidden_one_is_not() {
    let tests = files().into_iter().flat_map(|(_, tests)| tests);
    for test in tests {
        let outcome = test.check();
        assert_eq!(outcome.witness.is_some(), outcome.verdict != Verdict::Forbidden, "{}", test.name);
    }
    let text = "test t\nthread P0\n st.u64 [x], 7;\nthread P1\n ld.u64 r0, [x];\nexists r0 == 7\nexpect allowed\n";
    let outcome = parse(text).expect("a test")[0].check();
    let shown = outcome.witness.expect("a witness").to_string();
    assert_eq!(shown, "P0: st.u64 [x], 7\nP1: ld.u64 r0, [x]  # reads 7 from P0 `st.u64 [x], 7`\n");
}
