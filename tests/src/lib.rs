//! Suites that cross crates, and what they share.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use walkdir::WalkDir;

pub mod conformance;
pub mod guest;
pub mod namespaces;

/// Says that a test cannot run on this machine, in the form that `./check` counts. The test harness hides what passing
/// tests print, so this goes past it.
pub fn skip(test: &str, why: &str) {
    // A closed standard error is no reason to fail a test that has nothing to test.
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {why}");
}

/// The root of the repository.
pub fn repository() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// The `congruent` program of this tree, built as the calling test was, with `congruent-build` beside it; none if they cannot be built.
pub fn program() -> Option<PathBuf> {
    let myself = std::env::current_exe().ok()?;
    let (profile, target) = (myself.ancestors().nth(2)?, myself.ancestors().nth(3)?);
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Built for its package alone, what it stands on would have fewer features than here, and be built anew; an example has as many.
    build.args(["build", "--quiet", "--offline", "--workspace", "--bin", "congruent", "--bin", "congruent-build"]);
    build.args(["--example", "jacobi"]);
    let built = build.arg("--target-dir").arg(target).current_dir(repository()).status().ok()?.success();
    built.then(|| profile.join("congruent"))
}

/// A Rust source file of the repository.
pub struct Source {
    /// Where it is, relative to the root, with `/` between folders.
    pub path: String,
    /// What it says.
    pub text: String,
}

/// All Rust source files of the repository, in order of their paths.
pub fn sources() -> std::io::Result<Vec<Source>> {
    let root = repository();
    let kept = |path: &Path| path.file_name().is_none_or(|name| name != "target" && name != ".git");
    let mut sources = Vec::new();
    for entry in WalkDir::new(root).sort_by_file_name().into_iter().filter_entry(|entry| kept(entry.path())) {
        let path = entry?.into_path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path)?;
            sources.push(Source { path: relative(root, path), text });
        }
    }
    Ok(sources)
}

impl Source {
    /// How many lines have `word` in their code; comments and strings do not count.
    pub fn lines_with(&self, word: &str) -> usize {
        self.text.lines().filter(|line| has_word(&code_of(line), word)).count()
    }
}

fn relative(root: &Path, path: PathBuf) -> String {
    let inside = path.strip_prefix(root).unwrap_or(&path);
    inside.components().map(|part| part.as_os_str().to_string_lossy()).collect::<Vec<_>>().join("/")
}

/// A line without its strings and its comment; strings of several lines are taken for code, which for counting words is
/// near enough.
fn code_of(line: &str) -> String {
    let code = line.split('"').step_by(2).collect::<Vec<_>>().join("\"\"");
    code.split("//").next().unwrap_or_default().to_owned()
}

/// Whether `word` stands in `code` with no letter, digit or underscore beside it.
fn has_word(code: &str, word: &str) -> bool {
    let part_of_a_name = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word)
        .any(|(at, _)| !code[..at].ends_with(part_of_a_name) && !code[at + word.len()..].starts_with(part_of_a_name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_whole_and_outside_comments() {
        assert!(has_word("let x = unsafe { f() };", "unsafe"));
        assert!(!has_word("#![forbid(unsafe_code)]", "unsafe"));
        assert!(has_word("core::arch::asm!(\"nop\")", "asm!"));
        let said = ["say(", "unsafe", ")"].join("\"");
        assert!(!has_word(&code_of(&said), "unsafe"));
        let text = "// unsafe\nunsafe fn f() {} // unsafe\n".to_owned();
        assert_eq!(Source { path: String::new(), text }.lines_with("unsafe"), 1);
    }

    #[test]
    fn this_file_is_among_the_sources() {
        assert!(sources().unwrap().iter().any(|source| source.path == "tests/src/lib.rs"));
    }
}
