//! `congruent litmus`: decides litmus tests by the PTX memory model.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use congruent_verify::litmus::{Test, parse, table};
use serde::Serialize;

use super::failure::Failure;
use super::output::{print, print_json};

/// Decide litmus tests by the PTX memory model
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  congruent litmus my.litmus             each test's verdict, and the clauses that decide it
  congruent litmus --witness my.litmus   and an execution, where the outcome is allowed

The crate congruent-verify documents the format of tests.

Exit codes: 0 all verdicts are as expected, 1 one is not, or a file has no tests.")]
pub(super) struct Args {
    /// Files of tests
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Show an execution for each allowed outcome
    #[arg(long)]
    witness: bool,
    /// Print one JSON document
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// Print tables of tests, what they expect and why, as docs/litmus.md has them
    #[arg(long)]
    markdown: bool,
}

#[derive(Serialize)]
struct Decided {
    file: String,
    line: usize,
    test: String,
    verdict: String,
    expected: String,
    /// Clauses of the PTX ISA, each of which decides alone.
    clauses: Vec<&'static str>,
    candidates: u64,
    witness: Option<String>,
}

/// Decides every test of every file, also after a file that has none.
pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let (mut decided, mut unread) = (Vec::new(), 0_usize);
    for file in &args.files {
        match read(file) {
            Ok(tests) if args.markdown => {
                let name = file.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
                print(&format!("## {name}\n\n{}\n", table(&tests)))?;
            }
            Ok(tests) => {
                for test in &tests {
                    let one = Decided::of(file, test);
                    if !args.json {
                        print(&one.line(args.witness))?;
                    }
                    decided.push(one);
                }
            }
            Err(error) => {
                unread += 1;
                eprintln!("error: {}: {error}", file.display());
            }
        }
    }
    let wrong = decided.iter().filter(|one| !one.is_right()).count();
    if args.json {
        print_json(&decided)?;
    } else if !args.markdown {
        print(&format!("tests: {}, not as expected: {wrong}, files not readable as tests: {unread}\n", decided.len()))?;
    }
    Ok(if wrong == 0 && unread == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn read(file: &Path) -> Result<Vec<Test>, String> {
    let text = fs::read_to_string(file).map_err(|error| error.to_string())?;
    parse(&text).map_err(|error| error.to_string())
}

impl Decided {
    fn of(file: &Path, test: &Test) -> Self {
        let outcome = test.check();
        let mut clauses: Vec<&str> = outcome.rules.iter().map(|rule| rule.clause()).collect();
        clauses.dedup();
        Self {
            file: file.display().to_string(),
            line: test.line,
            test: test.name.clone(),
            verdict: outcome.verdict.to_string(),
            expected: test.expected.to_string(),
            clauses,
            candidates: outcome.candidates,
            witness: outcome.witness.map(|witness| witness.to_string()),
        }
    }

    fn is_right(&self) -> bool {
        self.verdict == self.expected
    }

    /// For people; an execution belongs to it if asked for, or if nobody expected one.
    fn line(&self, witness: bool) -> String {
        let Self { file, line, test, verdict, expected, candidates, .. } = self;
        let clauses = if self.clauses.is_empty() { String::new() } else { format!(", by {}", self.clauses.join(" ")) };
        let expected = if self.is_right() { String::new() } else { format!(", EXPECTED {expected}") };
        let shown = self.witness.iter().filter(|_| witness || !self.is_right());
        let shown: String = shown.flat_map(|text| text.lines()).map(|line| format!("    {line}\n")).collect();
        format!("{file}:{line}: {test}: {verdict}{expected}{clauses} ({candidates} candidates)\n{shown}")
    }
}
