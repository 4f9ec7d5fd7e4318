//! Our times beside another's.

use core::fmt;

use comfy_table::{CellAlignment, Table, presets};

use crate::requirement::required;
use crate::sample::{Case, Summaries, Summary};

/// One work at one size, ours and another's.
#[derive(Debug, Clone)]
pub struct Row {
    /// The work, its size and how many PEs did it.
    pub case: Case,
    /// Our times, if measured.
    pub ours: Option<Summary>,
    /// Whose the others are.
    pub peer: String,
    /// The other's times.
    pub theirs: Summary,
}

/// What a row says about a promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Kept.
    Pass,
    /// Broken.
    Fail,
    /// Promised, but our side was not measured.
    NotMeasured,
    /// Nothing was promised.
    Informative,
}

/// A row for everything that another peer measured.
pub fn rows(ours: &Summaries, peer: &str, theirs: &Summaries) -> Vec<Row> {
    let row = |(&case, &theirs): (&Case, &Summary)| Row {
        case,
        ours: ours.get(&case).copied(),
        peer: peer.to_owned(),
        theirs,
    };
    theirs.iter().map(row).collect()
}

impl Row {
    /// The other's median over ours: above 1 we are faster.
    pub fn ratio(&self) -> Option<f64> {
        self.ours.map(|ours| self.theirs.median / ours.median)
    }

    /// The ratio promised.
    pub fn required(&self) -> Option<f64> {
        required(self.case, &self.peer)
    }

    /// Whether the promise is kept.
    pub fn verdict(&self) -> Verdict {
        match (self.ratio(), self.required()) {
            (_, None) => Verdict::Informative,
            (None, Some(_)) => Verdict::NotMeasured,
            (Some(ratio), Some(required)) if ratio >= required => Verdict::Pass,
            _ => Verdict::Fail,
        }
    }
}

/// Lays the rows out for people to read; those of a run that is not judged without verdicts.
pub fn render(rows: &mut [Row], judged: bool) -> Table {
    rows.sort_by(|a, b| (a.case, &a.peer).cmp(&(b.case, &b.peer)));
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    table.set_header(["PEs", "work", "size", "ours", "best", "peer", "theirs", "best", "ratio", "required", "verdict"]);
    for row in rows.iter() {
        let time = |ns: Option<f64>| ns.map_or("-".to_owned(), |ns| Time(ns).to_string());
        let factor = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
        table.add_row([
            row.case.pes.to_string(),
            row.case.work.to_string(),
            size(row.case.bytes),
            time(row.ours.map(|ours| ours.median)),
            time(row.ours.map(|ours| ours.min)),
            row.peer.clone(),
            time(Some(row.theirs.median)),
            time(Some(row.theirs.min)),
            factor(row.ratio()),
            factor(row.required()),
            if judged { row.verdict().to_string() } else { String::new() },
        ]);
    }
    for column in [0, 2, 3, 4, 6, 7, 8, 9] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pass => "pass",
            Self::Fail => "FAIL",
            Self::NotMeasured => "not measured",
            Self::Informative => "",
        })
    }
}

/// A table with every column at its right edge.
pub(crate) fn to_the_right(mut table: Table) -> Table {
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Nanoseconds, in a unit that suits them.
pub(crate) struct Time(pub(crate) f64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ns if ns < 1e3 => write!(f, "{ns:.1} ns"),
            ns if ns < 1e6 => write!(f, "{:.2} us", ns / 1e3),
            ns => write!(f, "{:.2} ms", ns / 1e6),
        }
    }
}

/// Bytes, in a unit that suits them; nothing where there are none.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0 => String::new(),
        bytes if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        bytes if bytes >= 1 << 10 => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Work;

    fn row(ours: Option<f64>, theirs: f64, work: Work) -> Row {
        let summary = |ns| Summary { min: ns, median: ns };
        let case = Case { pes: 2, work, bytes: 8 };
        Row { case, ours: ours.map(summary), peer: "Open MPI".to_owned(), theirs: summary(theirs) }
    }

    #[test]
    fn verdicts_follow_the_promises() {
        assert_eq!(row(Some(100.0), 100.0, Work::SendRecv).verdict(), Verdict::Pass);
        assert_eq!(row(Some(101.0), 100.0, Work::SendRecv).verdict(), Verdict::Fail);
        assert_eq!(row(None, 100.0, Work::SendRecv).verdict(), Verdict::NotMeasured);
        assert_eq!(row(Some(1.0), 100.0, Work::Copy).verdict(), Verdict::Informative);
    }

    #[test]
    fn what_is_not_judged_has_no_verdict() {
        let mut rows = [row(Some(101.0), 100.0, Work::SendRecv)];
        assert!(render(&mut rows, true).to_string().contains("FAIL"));
        assert!(!render(&mut rows, false).to_string().contains("FAIL"));
    }

    #[test]
    fn tables_say_it_all() {
        let table = render(&mut [row(Some(250.0), 2500.0, Work::SendRecv)], true).to_string();
        for word in ["send_recv", "8 B", "250.0 ns", "2.50 us", "10.00", "pass"] {
            assert!(table.contains(word), "{word} is missing in\n{table}");
        }
    }
}
