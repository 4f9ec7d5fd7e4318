//! `congruent doctor`: what this machine can do, what it lacks, and what to do about it.

mod checks;
mod cuda;

use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use serde::Serialize;

use super::failure::Failure;
use super::output::{print, print_json};

/// Tell what this machine can do, what it lacks, and what to do about it
#[derive(clap::Args)]
#[command(after_help = "\
Exit codes: 0 kernels can run on this machine's CPU, 1 they cannot.")]
pub(super) struct Args {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Line {
    subject: &'static str,
    verdict: Verdict,
    found: String,
    /// What to do next; nothing where all is well.
    next: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    /// It is there and works.
    Ok,
    /// Worth knowing; nothing fails for it.
    Note,
    /// Something optional cannot be done without it.
    Missing,
    /// The CPU machine cannot run.
    Fatal,
}

/// Looks at everything.
pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let lines: Vec<Line> = [checks::cpu(), cuda::lines(), checks::optional()].into_iter().flatten().collect();
    if args.json {
        print_json(&lines)?
    } else {
        print(&text(&lines))?
    };
    Ok(if can_run(&lines) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn can_run(lines: &[Line]) -> bool {
    lines.iter().all(|line| line.verdict != Verdict::Fatal)
}

fn text(lines: &[Line]) -> String {
    let mut text: String = lines.iter().map(Line::text).collect();
    text += if can_run(lines) {
        "\nKernels can run on this machine's CPU: try `congruent perf all-reduce`.\n"
    } else {
        "\nKernels cannot run on this machine's CPU before the lines marked `fatal` are dealt with.\n"
    };
    text
}

impl Line {
    fn ok(subject: &'static str, found: impl Into<String>) -> Self {
        Self { subject, verdict: Verdict::Ok, found: found.into(), next: None }
    }

    fn note(subject: &'static str, found: impl Into<String>, next: impl Into<String>) -> Self {
        Self { subject, verdict: Verdict::Note, found: found.into(), next: Some(next.into()) }
    }

    fn missing(subject: &'static str, found: impl Into<String>, next: impl Into<String>) -> Self {
        Self { subject, verdict: Verdict::Missing, found: found.into(), next: Some(next.into()) }
    }

    fn fatal(subject: &'static str, found: impl Into<String>, next: impl Into<String>) -> Self {
        Self { subject, verdict: Verdict::Fatal, found: found.into(), next: Some(next.into()) }
    }

    fn text(&self) -> String {
        let style = self.verdict.style();
        let verdict = format!("{style}{:7}{style:#}", self.verdict.name());
        let mut text = format!("{verdict}  {:20}  {}\n", self.subject, self.found);
        if let Some(next) = &self.next {
            text += &format!("{:31}{next}\n", "");
        }
        text
    }
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Note => "note",
            Self::Missing => "missing",
            Self::Fatal => "fatal",
        }
    }

    fn style(self) -> Style {
        match self {
            Self::Ok => AnsiColor::Green.on_default(),
            Self::Note => AnsiColor::Cyan.on_default(),
            Self::Missing => AnsiColor::Yellow.on_default(),
            Self::Fatal => AnsiColor::Red.on_default().bold(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_fatal_lines_keep_kernels_from_running() {
        let fine = [Line::ok("a", "b"), Line::note("a", "b", "c"), Line::missing("a", "b", "c")];
        assert!(can_run(&fine) && text(&fine).contains("can run"));
        let broken = [Line::ok("a", "b"), Line::fatal("futex", "refused", "allow it")];
        assert!(!can_run(&broken) && text(&broken).contains("cannot run"));
    }

    #[test]
    fn what_to_do_next_stands_below_what_was_found() {
        let text = Line::missing("ptxas", "not on PATH", "install it").text();
        let text = anstream::adapter::strip_str(&text).to_string();
        let columns: Vec<_> =
            text.lines().map(|line| line.find("not on PATH").or_else(|| line.find("install it"))).collect();
        assert_eq!(columns, [Some(31), Some(31)]);
    }
}
