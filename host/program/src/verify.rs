//! `congruent verify`: checks PTX files for what is wrong on a GPU and no test on a CPU sees.

use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use congruent_verify::{Finding, LintError, Report};
use serde::Serialize;

use super::failure::Failure;
use super::output::{Progress, print, print_json};

/// Check PTX of kernels for what goes wrong on a GPU only
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  congruent verify kernels.ptx           findings with their lines and what to write instead
  congruent verify --json ptx/*.ptx      the same for programs

Exit codes: 0 nothing found, 1 something found or a file that is not PTX.")]
pub(super) struct Args {
    /// PTX files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Linted {
    file: String,
    error: Option<String>,
    findings: Vec<Place>,
    allowed: Vec<Allowed>,
    /// For people.
    #[serde(skip)]
    shown: String,
}

#[derive(Serialize)]
struct Place {
    rule: &'static str,
    message: String,
    line: usize,
    column: usize,
    help: &'static str,
}

#[derive(Serialize)]
struct Allowed {
    #[serde(flatten)]
    place: Place,
    reason: String,
}

/// Lints every file, also after one that cannot be; for people, tells of each as soon as it is done.
pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let colour = !args.json && std::io::stdout().is_terminal();
    let mut linted: Vec<Linted> = Vec::new();
    for (index, file) in args.files.iter().enumerate() {
        let progress = Progress::show(format_args!("{} of {}: {}", index + 1, args.files.len(), file.display()));
        let one = Linted::of(file, colour);
        drop(progress);
        if !args.json {
            print(&one.shown)?;
        }
        linted.push(one);
    }
    if args.json {
        print_json(&linted)?;
    } else {
        let found: usize = linted.iter().map(|linted| linted.findings.len()).sum();
        let allowed: usize = linted.iter().map(|linted| linted.allowed.len()).sum();
        let failed = linted.iter().filter(|linted| linted.error.is_some()).count();
        let allowed = if allowed == 0 { String::new() } else { format!(" and {allowed} allowed") };
        print(&format!("files: {}, findings: {found}{allowed}, not readable as PTX: {failed}\n", linted.len()))?;
    }
    let clean = linted.iter().all(|linted| linted.error.is_none() && linted.findings.is_empty());
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Linted {
    fn of(path: &Path, colour: bool) -> Self {
        let file = path.display().to_string();
        let failed = |error: String, shown: &str| {
            let shown = format!("{}\n\n{file}: not checked\n", shown.trim_end());
            Self { file: file.clone(), error: Some(error), findings: Vec::new(), allowed: Vec::new(), shown }
        };
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) => return failed(error.to_string(), &format!("error: cannot read {file}: {error}")),
        };
        let report = match Report::new(&*file, &*text) {
            Ok(report) => report,
            Err(LintError::Parse { error, excerpt, .. }) => return failed(error.to_string(), &excerpt),
            Err(error) => return failed(error.to_string(), &format!("error: {error}")),
        };
        let place = |finding: &Finding| {
            let (line, column) = report.place(finding);
            Place { rule: finding.rule.id, message: finding.message.clone(), line, column, help: finding.rule.help }
        };
        let findings = report.findings().iter().map(place).collect();
        let allowed = report.allowed().iter();
        let allowed = allowed.map(|(finding, reason)| Allowed { place: place(finding), reason: reason.clone() });
        let excerpts = if report.is_clean() { String::new() } else { format!("{}\n\n", report.render(colour)) };
        let shown = format!("{excerpts}{file}: {} lines, {} findings\n", text.lines().count(), report.findings().len());
        Self { findings, allowed: allowed.collect(), file, error: None, shown }
    }
}
