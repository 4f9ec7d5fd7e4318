//! Findings for people: the source lines, marked.

use core::fmt;
use std::path::Path;
use std::{fs, io};

use annotate_snippets::{Annotation, AnnotationKind, Group, Level, Renderer, Snippet};

use crate::allow;
use crate::ptx::{ParseError, Span, parse};
use crate::rules::{Finding, lint};

/// A linted text.
#[derive(Clone, Debug)]
pub struct Report {
    name: String,
    text: String,
    /// Where each line begins.
    lines: Vec<usize>,
    findings: Vec<Finding>,
    allowed: Vec<(Finding, String)>,
}

/// Something to show in the text.
#[derive(Clone, Copy)]
struct Mark<'a> {
    span: Span,
    kind: AnnotationKind,
    label: &'a str,
}

/// How many lines two marks may lie apart that are shown in one excerpt.
const FARTHEST_TOGETHER: usize = 200;

/// Why a file could not be linted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LintError {
    /// It could not be read.
    #[error("`{name}`: {source}")]
    Io {
        /// The file.
        name: String,
        /// The system's reason.
        source: io::Error,
    },
    /// It is not PTX, or has instructions that the linter does not know and therefore cannot vouch for.
    #[error("`{name}`:{error}\n{excerpt}")]
    Parse {
        /// The file.
        name: String,
        /// What is wrong and where.
        error: ParseError,
        /// The line, marked.
        excerpt: String,
    },
}

/// Parses and lints the PTX file at `path`.
pub fn lint_file(path: impl AsRef<Path>) -> Result<Report, LintError> {
    let name = path.as_ref().display().to_string();
    let text = fs::read_to_string(&path).map_err(|source| LintError::Io { name: name.clone(), source })?;
    Report::new(name, text)
}

impl Report {
    /// Parses and lints `text`, called `name` in messages.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Result<Self, LintError> {
        let (name, text) = (name.into(), text.into());
        match parse(&text) {
            Ok(module) => {
                let newlines = text.match_indices('\n').map(|(newline, _)| newline + 1);
                let lines: Vec<usize> = core::iter::once(0).chain(newlines).collect();
                let (findings, allowed) = allow::take(&text, |at| line(&lines, at), lint(&module));
                Ok(Self { findings, allowed, lines, name, text })
            }
            Err(error) => {
                let title = Level::ERROR.primary_title(&*error.message);
                let mark = AnnotationKind::Primary.span(error.span.start..error.span.end);
                let snippet = Snippet::source(&*text).path(&*name).annotation(mark);
                let excerpt = Renderer::plain().render(&[title.element(snippet)]);
                Err(LintError::Parse { name, excerpt, error })
            }
        }
    }

    /// What was found, in the order of the text, without what is allowed.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// What was found and is allowed, each with the reason: by a comment `// congruent-verify: allow(RULE): REASON` on its line, or
    /// directly above it. In Rust such a comment stands in the text of an `asm!`, before the instruction.
    pub fn allowed(&self) -> &[(Finding, String)] {
        &self.allowed
    }

    /// Whether nothing was found.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    /// The findings with the source lines they are about, in colour if the reader is a terminal; empty if there are none.
    pub fn render(&self, colour: bool) -> String {
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        let rendered = self.findings.iter().map(|finding| renderer.render(&self.groups(finding)));
        rendered.collect::<Vec<_>>().join("\n\n")
    }

    /// The line and column where a finding begins, both counted from 1, columns in characters.
    pub fn place(&self, finding: &Finding) -> (usize, usize) {
        let line = self.line(finding.span.start);
        let before = self.text.get(self.lines[line]..finding.span.start).unwrap_or_default();
        (line + 1, before.chars().count() + 1)
    }

    /// The line, counted from 0, that a byte of the text is on.
    fn line(&self, at: usize) -> usize {
        line(&self.lines, at)
    }

    /// The renderer looks at every line of a source, so it gets those from the first to the last mark; a mark far away has a
    /// source of its own.
    fn groups<'a>(&'a self, finding: &'a Finding) -> Vec<Group<'a>> {
        let primary = Mark { span: finding.span, kind: AnnotationKind::Primary, label: finding.rule.why };
        let context = |(span, label): &'a (Span, String)| Mark { span: *span, kind: AnnotationKind::Context, label };
        let related = finding.related.iter().map(context);
        let distance = |mark: &Mark<'_>| self.line(mark.span.start).abs_diff(self.line(finding.span.start));
        let (near, far): (Vec<_>, Vec<_>) = related.partition(|mark| distance(mark) <= FARTHEST_TOGETHER);
        let title = Level::ERROR.primary_title(&*finding.message).id(finding.rule.id);
        let group = title.element(self.snippet(primary, &near));
        let group = far.iter().fold(group, |group, &mark| group.element(self.snippet(mark, &[])));
        vec![group.element(Level::HELP.message(finding.rule.help))]
    }

    /// The lines of some marks.
    fn snippet<'a>(&'a self, first: Mark<'a>, others: &[Mark<'a>]) -> Snippet<'a, Annotation<'a>> {
        let marks = || core::iter::once(&first).chain(others);
        let from = marks().map(|mark| self.line(mark.span.start)).min().unwrap_or_default();
        let to = marks().map(|mark| self.line(mark.span.end)).max().unwrap_or_default();
        let start = self.lines[from];
        let end = self.lines.get(to + 1).copied().unwrap_or(self.text.len());
        let source = self.text.get(start..end).unwrap_or_default();
        let annotations =
            marks().map(|mark| mark.kind.span(mark.span.start - start..mark.span.end - start).label(mark.label));
        Snippet::source(source).line_start(from + 1).path(&*self.name).annotations(annotations)
    }
}

/// The line, counted from 0, that a byte of a text is on whose lines begin at these.
fn line(lines: &[usize], at: usize) -> usize {
    lines.partition_point(|&start| start <= at) - 1
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = ".version 8.4\n.target sm_90\n.address_size 64\n";

    #[test]
    fn a_finding_shows_its_line_its_rule_and_what_to_do() {
        let report = Report::new("k.ptx", format!("{HEAD}.entry k() {{\n\tmembar.gl;\n\tret;\n}}\n")).expect("PTX");
        let shown = report.to_string();
        for part in ["default-scope-fence", "k.ptx:5", "membar.gl;", "help: write `fence.acq_rel.sys`"] {
            assert!(shown.contains(part), "no `{part}` in:\n{shown}");
        }
        assert!(report.render(true).contains('\u{1b}') && !shown.contains('\u{1b}'));
    }

    #[test]
    fn an_unknown_instruction_is_an_error_that_shows_it() {
        let error = Report::new("k.ptx", format!("{HEAD}.entry k() {{\n\twarp.speed;\n}}\n")).expect_err("unknown");
        let shown = error.to_string();
        assert!(shown.starts_with("`k.ptx`:5:2: unknown instruction `warp.speed`"), "{shown}");
        assert!(shown.contains("^^^^"), "{shown}");
    }

    #[test]
    fn a_missing_file_is_an_error() {
        assert!(matches!(lint_file("/nonexistent/k.ptx"), Err(LintError::Io { .. })));
    }
}
