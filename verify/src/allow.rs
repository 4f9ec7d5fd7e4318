//! Findings that a comment in the text allows.

use crate::ptx::Span;
use crate::rules::{Finding, Rule};

/// How such a comment begins; the rule's name, `)` and `: ` and the reason follow.
const MARK: &str = "// congruent-verify: allow(";

pub(crate) const NEEDLESS_ALLOW: Rule = Rule {
    id: "needless-allow",
    why: "a comment that allows nothing hides the next finding that comes to its line",
    help: "write `// congruent-verify: allow(RULE): REASON` on the line of the finding or directly above it, or take the comment away",
};

/// A comment that allows what one rule finds on its line or, where it has a line of its own, on the next one with code.
struct Allow<'t> {
    span: Span,
    /// The lines, counted from 0, that it is about.
    lines: [usize; 2],
    rule: &'t str,
    reason: &'t str,
}

/// Takes what comments allow out of the findings, each with its reason, and puts in comments that allow nothing or give no reason.
pub(crate) fn take(
    text: &str,
    line: impl Fn(usize) -> usize,
    findings: Vec<Finding>,
) -> (Vec<Finding>, Vec<(Finding, String)>) {
    let allows = allows(text);
    let mut used = vec![false; allows.len()];
    let (mut left, mut allowed) = (Vec::new(), Vec::new());
    for finding in findings {
        let at = line(finding.span.start);
        let fits =
            |allow: &Allow<'_>| allow.rule == finding.rule.id && allow.lines.contains(&at) && !allow.reason.is_empty();
        match allows.iter().position(fits) {
            Some(index) => {
                used[index] = true;
                allowed.push((finding, allows[index].reason.to_owned()));
            }
            None => left.push(finding),
        }
    }
    let needless = allows.iter().zip(used).filter(|(_, used)| !used).map(|(allow, _)| {
        let message = match allow.reason {
            "" => "this allows something without a reason".to_owned(),
            _ => format!("nothing is found here by a rule `{}`", allow.rule),
        };
        NEEDLESS_ALLOW.at(allow.span, message)
    });
    left.extend(needless);
    left.sort_by_key(|finding| (finding.span, finding.rule.id));
    (left, allowed)
}

fn allows(text: &str) -> Vec<Allow<'_>> {
    let mut allows = Vec::new();
    let mut start = 0;
    let lines: Vec<&str> = text.split('\n').collect();
    for (number, line) in lines.iter().enumerate() {
        if let Some((before, rest)) = line.split_once(MARK) {
            let (rule, rest) = rest.split_once(')').unwrap_or((rest, ""));
            let reason = rest.strip_prefix(':').unwrap_or_default().trim();
            let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
            let next = match is_code(&before) {
                true => number,
                false => number + 1 + lines[number + 1..].iter().take_while(|line| !is_code(line)).count(),
            };
            let span = Span { start: start + before.len(), end: start + line.len() };
            allows.push(Allow { span, lines: [number, next], rule: rule.trim(), reason });
        }
        start += line.len() + 1;
    }
    allows
}
