//! What checked mode costs: all-reduces of two PEs as calls of the host, which the PEs compare or do not.

use std::collections::BTreeMap;

use comfy_table::{Table, presets};
use serde::{Deserialize, Serialize};

use crate::sample::summary;
use crate::table::{Time, size, to_the_right};

/// The word on the command line that calls this.
pub const WORD: &str = "checked";

/// The largest size.
pub const LARGEST: u64 = 1 << 20;

/// Where a comparison weighs most, and where it should weigh nothing.
pub const SIZES: [u64; 2] = [8, LARGEST];

/// One repeat of calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Timed {
    /// Bytes of a PE's buffer.
    pub bytes: u64,
    /// Whether the PEs compare their calls.
    pub checked: bool,
    /// Nanoseconds for one call, the mean over many on a stream.
    pub ns: f64,
}

/// Medians at one size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// Bytes of a PE's buffer.
    pub bytes: u64,
    /// Nanoseconds of a call that is compared.
    pub checked: f64,
    /// Nanoseconds of one that is not.
    pub unchecked: f64,
}

impl Cost {
    /// How many times as long a call takes that is compared.
    pub fn ratio(&self) -> f64 {
        self.checked / self.unchecked
    }
}

/// Gathers repeats by size. A size that was not measured both ways is left out.
pub fn costs(timed: &[Timed]) -> Vec<Cost> {
    let mut repeats: BTreeMap<u64, [Vec<f64>; 2]> = BTreeMap::new();
    for one in timed {
        repeats.entry(one.bytes).or_default()[usize::from(one.checked)].push(one.ns);
    }
    let whole = repeats.into_iter().filter(|(_, ways)| ways.iter().all(|way| !way.is_empty()));
    let medians = |(bytes, mut ways): (u64, [Vec<f64>; 2])| {
        let [unchecked, checked] = ways.each_mut().map(|ns| summary(ns).median);
        Cost { bytes, checked, unchecked }
    };
    whole.map(medians).collect()
}

/// Lays the costs out for people to read.
pub fn render(costs: &[Cost]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    table.set_header(["all-reduce call", "unchecked", "checked", "checked / unchecked"]);
    for cost in costs {
        let time = |ns| Time(ns).to_string();
        table.add_row([size(cost.bytes), time(cost.unchecked), time(cost.checked), format!("{:.2}", cost.ratio())]);
    }
    to_the_right(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_stand_side_by_side() {
        let timed = |bytes, checked, ns| Timed { bytes, checked, ns };
        let costs = costs(&[
            timed(8, true, 300.0),
            timed(8, false, 200.0),
            timed(8, true, 500.0),
            timed(8, true, 400.0),
            timed(LARGEST, true, 1.0),
        ]);
        assert_eq!(costs, [Cost { bytes: 8, checked: 400.0, unchecked: 200.0 }]);
        let table = render(&costs).to_string();
        for word in ["8 B", "200.0 ns", "400.0 ns", "2.00"] {
            assert!(table.contains(word), "{word} is missing in\n{table}");
        }
    }
}
