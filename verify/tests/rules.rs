//! Every rule has a fixture named after it that breaks this rule and no other; all other fixtures break none.

#![allow(clippy::expect_used, reason = "a test says what it expects")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use congruent_verify::{RULES, Report, lint_file};

/// The reports on all fixtures, by name up to the first dot.
fn reports() -> BTreeMap<String, Report> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let paths = fs::read_dir(folder).expect("fixtures").map(|entry| entry.expect("an entry").path());
    let report = |path: &Path| lint_file(path).unwrap_or_else(|error| panic!("{error}"));
    let name = |path: &Path| path.file_name().and_then(|name| name.to_str()?.split('.').next().map(str::to_owned));
    let ptx = paths.filter(|path| path.extension().is_some_and(|extension| extension == "ptx"));
    ptx.map(|path| (name(&path).expect("a name"), report(&path))).collect()
}

#[test]
fn each_rule_fires_on_its_fixture_alone() {
    let reports = reports();
    let mut unused: BTreeSet<&str> = RULES.iter().map(|rule| rule.id).collect();
    for (name, report) in &reports {
        let id = name.replace('_', "-");
        let fired: BTreeSet<&str> = report.findings().iter().map(|finding| finding.rule.id).collect();
        let expected: BTreeSet<&str> = unused.take(id.as_str()).into_iter().collect();
        assert_eq!(fired, expected, "{name}:\n{report}");
    }
    assert!(unused.is_empty(), "rules without a fixture: {unused:?}");
}

#[test]
fn findings_point_at_the_instruction() {
    let reports = reports();
    let place = |name: &str| reports[name].to_string();
    for (name, excerpt) in [
        ("unqualified_atomic", "atom.global.add.u64"),
        ("divergent_barrier", "bar.sync 0;"),
        ("divergent_matrix", "ldmatrix.sync.aligned"),
        ("non_coherent_load", "ld.global.nc.b64"),
        ("narrow_scope", "st.release.gpu.global.b64"),
        ("stack_frame", "__local_depot0"),
        ("narrow_minimum", "setp.eq.b16"),
    ] {
        assert!(place(name).contains(excerpt), "{}", place(name));
    }
    assert_eq!(reports["narrow_minimum"].findings().len(), 1, "not of the comparison with another number");
    assert_eq!(reports["divergent_barrier"].findings().len(), 2, "one for each copy of the barrier");
    assert_eq!(reports["divergent_matrix"].findings().len(), 2, "a load and a product, and not those of all threads");
}

#[test]
fn comments_allow_what_is_on_their_line_or_the_next_one() {
    let report = &reports()["needless_allow"];
    let allowed: Vec<(&str, usize, &str)> = report
        .allowed()
        .iter()
        .map(|(finding, why)| (finding.rule.id, report.place(finding).0, why.as_str()))
        .collect();
    let expected = [("narrow-scope", 12, "no other block sees this flag"), ("narrow-scope", 13, "nor this one")];
    assert_eq!(allowed, expected);
    let needless: Vec<usize> = report.findings().iter().map(|finding| report.place(finding).0).collect();
    assert_eq!(needless, [14, 16]);
    let shown = report.to_string();
    assert!(
        shown.contains("nothing is found here by a rule `narrow-scope`") && shown.contains("without a reason"),
        "{shown}"
    );
}

#[test]
fn the_readme_lists_every_rule() {
    let readme = include_str!("../README.md");
    let unlisted: Vec<_> =
        RULES.iter().map(|rule| rule.id).filter(|id| !readme.contains(&format!("| `{id}` |"))).collect();
    assert!(unlisted.is_empty(), "{unlisted:?}");
}
