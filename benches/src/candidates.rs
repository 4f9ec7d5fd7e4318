//! How good the selector's choices are: every way to do an all-reduce of two PEs is timed beside the chosen one.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};

use crate::sample::summary;
use crate::table::{Time, Verdict, size};

/// The word on the command line that calls this.
pub const WORD: &str = "candidates";

/// A choice is good whose time is within this factor of the best one's.
pub const WITHIN: f64 = 1.1;

/// The part of sizes at which the choice must be good.
pub const REQUIRED: f64 = 0.9;

/// One repeat of an all-reduce done in one way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Timed {
    /// Bytes of a PE's buffer.
    pub bytes: u64,
    /// Along which paths.
    pub algorithm: String,
    /// How data and signals travel.
    pub protocol: String,
    /// Whether the selector chooses it.
    pub chosen: bool,
    /// Nanoseconds for one, the mean over the repeat's loop.
    pub ns: f64,
}

/// The choice at one size.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// Bytes of a PE's buffer.
    pub bytes: u64,
    /// Names and median of every way, the fastest first.
    pub ways: Vec<(String, f64)>,
    /// Which of them was chosen.
    pub chosen: usize,
}

impl Choice {
    /// The chosen way's time by the best one's.
    pub fn excess(&self) -> f64 {
        self.ways[self.chosen].1 / self.ways[0].1
    }
}

/// Gathers repeats by size. A size at which nothing was chosen is left out.
pub fn choices(timed: &[Timed]) -> Vec<Choice> {
    let mut sizes: BTreeMap<u64, BTreeMap<(String, bool), Vec<f64>>> = BTreeMap::new();
    for one in timed {
        let way = (format!("{} {}", one.algorithm, one.protocol), one.chosen);
        sizes.entry(one.bytes).or_default().entry(way).or_default().push(one.ns);
    }
    let choice = |(bytes, ways): (u64, BTreeMap<(String, bool), Vec<f64>>)| {
        let mut ways: Vec<_> = ways.into_iter().map(|(way, mut ns)| (way, summary(&mut ns).median)).collect();
        ways.sort_by(|a, b| a.1.total_cmp(&b.1));
        let chosen = ways.iter().position(|((_, chosen), _)| *chosen)?;
        Some(Choice { bytes, ways: ways.into_iter().map(|((name, _), ns)| (name, ns)).collect(), chosen })
    };
    sizes.into_iter().filter_map(choice).collect()
}

/// The part of sizes at which the choice is good.
pub fn share(choices: &[Choice]) -> f64 {
    let good = choices.iter().filter(|choice| choice.excess() <= WITHIN).count();
    good as f64 / choices.len().max(1) as f64
}

/// Says how good the choices are, and whether that is enough where it is judged.
pub fn sentence(share: f64, judged: bool) -> String {
    let (within, share_of_sizes, required) = ((WITHIN - 1.0) * 100.0, share * 100.0, REQUIRED * 100.0);
    let seen = format!(
        "the selector's choice is within {within:.0} % of the best all-reduce at {share_of_sizes:.0} % of sizes"
    );
    let verdict = if share >= REQUIRED { Verdict::Pass } else { Verdict::Fail };
    if judged { format!("{seen}, required {required:.0} %: {verdict}") } else { format!("{seen}, which is not judged") }
}

/// Lays the choices out for people to read.
pub fn render(choices: &[Choice]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    table.set_header(["size", "chosen", "time", "over best", "all, fastest first"]);
    for choice in choices {
        let (name, ns) = &choice.ways[choice.chosen];
        let all: Vec<_> = choice.ways.iter().map(|(name, ns)| format!("{name} {}", Time(*ns))).collect();
        let excess = format!("{:.2}", choice.excess());
        table.add_row([size(choice.bytes), name.clone(), Time(*ns).to_string(), excess, all.join(", ")]);
    }
    for column in [0, 2, 3] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(bytes: u64, algorithm: &str, chosen: bool, ns: f64) -> Timed {
        Timed { bytes, algorithm: algorithm.to_owned(), protocol: "simple".to_owned(), chosen, ns }
    }

    #[test]
    fn few_repeats_are_no_verdict() {
        assert!(sentence(0.88, true).ends_with("at 88 % of sizes, required 90 %: FAIL"));
        assert!(sentence(0.9, true).ends_with("pass"));
        assert!(sentence(0.88, false).ends_with("at 88 % of sizes, which is not judged"));
    }

    #[test]
    fn a_choice_is_measured_by_the_best() {
        let choices = choices(&[
            timed(4, "ring", false, 100.0),
            timed(4, "direct", true, 109.0),
            timed(64, "ring", true, 150.0),
            timed(64, "direct", false, 90.0),
            timed(64, "direct", false, 110.0),
            timed(256, "ring", false, 1.0),
        ]);
        assert_eq!(choices.len(), 2, "nothing was chosen at 256 bytes");
        assert_eq!((choices[0].chosen, choices[0].excess()), (1, 1.09));
        assert_eq!((choices[1].ways[0].clone(), choices[1].excess()), (("direct simple".to_owned(), 100.0), 1.5));
        assert_eq!(share(&choices), 0.5);
        let table = render(&choices).to_string();
        assert!(table.contains("direct simple 100.0 ns, ring simple 150.0 ns"), "{table}");
    }
}
