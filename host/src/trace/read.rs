//! Reads a trace back, for tests and for those who count rather than look.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::{Arg, TraceError};

/// Something that took time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TraceEvent {
    /// The PE that did it.
    pub pe: u32,
    /// What it ran on, such as `stream 0`; empty where the file does not say.
    pub track: String,
    /// The block; `None` for what concerns the stream as a whole.
    pub block: Option<u32>,
    /// What it was, such as `all-gather 2/3`.
    pub name: String,
    /// When it began: nanoseconds on the monotonic clock of the host.
    pub begin_ns: u64,
    /// When it ended, likewise.
    pub end_ns: u64,
    /// Details, by name.
    pub args: BTreeMap<String, Arg>,
    /// Number of the row that viewers show it on.
    row: u64,
}

impl TraceEvent {
    /// How long it took, in nanoseconds.
    pub fn duration_ns(&self) -> u64 {
        self.end_ns - self.begin_ns
    }

    /// A detail that is a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        match self.args.get(name)? {
            Arg::Number(number) => Some(*number),
            Arg::Text(_) => None,
        }
    }

    /// Whether `inner` happened within this, on the same row: as a step does in its collective.
    pub fn holds(&self, inner: &Self) -> bool {
        let same = (self.pe, self.row) == (inner.pe, inner.row);
        same && self.begin_ns <= inner.begin_ns && inner.end_ns <= self.end_ns
    }

    /// For how many nanoseconds both were under way, on whatever PE and row: of a collective and of what was computed
    /// meanwhile, the overlap.
    pub fn overlap_ns(&self, other: &Self) -> u64 {
        self.end_ns.min(other.end_ns).saturating_sub(self.begin_ns.max(other.begin_ns))
    }
}

/// The file, as far as it concerns us.
#[derive(Deserialize)]
struct Document<'a> {
    #[serde(rename = "traceEvents", borrow)]
    lines: Vec<Line<'a>>,
    #[serde(rename = "otherData", default)]
    other: Other,
}

#[derive(Default, Deserialize)]
struct Other {
    #[serde(default)]
    lost_events: u64,
}

#[derive(Deserialize)]
struct Line<'a> {
    ph: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    pid: u32,
    #[serde(default)]
    tid: u64,
    #[serde(borrow)]
    ts: Option<&'a RawValue>,
    #[serde(borrow)]
    dur: Option<&'a RawValue>,
    #[serde(default)]
    args: Map<String, Value>,
}

/// The events of a trace, by PE, by row, by beginning, and those that hold others before these.
///
/// # Errors
/// Where the text is not JSON of the kind that `CONGRUENT_TRACE` writes, or an event has no time.
pub fn read(text: &str) -> Result<Vec<TraceEvent>, TraceError> {
    let document = parse(text)?;
    let mut rows = BTreeMap::new();
    for line in document.lines.iter().filter(|line| line.ph == "M" && line.name == "thread_name") {
        let track = line.args.get("track").and_then(Value::as_str).unwrap_or_default();
        let block = line.args.get("block").and_then(Value::as_u64).and_then(|block| u32::try_from(block).ok());
        rows.insert((line.pid, line.tid), (track.to_owned(), block));
    }
    let mut events = Vec::new();
    for (index, line) in document.lines.into_iter().enumerate().filter(|(_, line)| line.ph == "X") {
        let time = |field, text: Option<&RawValue>| {
            let ns = text.and_then(|text| nanoseconds(text.get()));
            ns.ok_or_else(|| TraceError::NoTime { index, name: line.name.clone(), field })
        };
        let begin_ns = time("ts", line.ts)?;
        let end_ns = begin_ns.saturating_add(time("dur", line.dur)?);
        let (track, block) = rows.get(&(line.pid, line.tid)).cloned().unwrap_or_default();
        let args = line.args.into_iter().map(|(name, value)| (name, arg(value))).collect();
        events.push(TraceEvent { pe: line.pid, track, block, name: line.name, begin_ns, end_ns, args, row: line.tid });
    }
    // A stable sort: of two over the same time, the file has the outer one first.
    events.sort_by_key(|event| (event.pe, event.row, event.begin_ns, Reverse(event.end_ns)));
    Ok(events)
}

/// How many events the trace lost because it was full.
///
/// # Errors
/// Where the text is not JSON of the kind that `CONGRUENT_TRACE` writes.
pub fn lost(text: &str) -> Result<u64, TraceError> {
    Ok(parse(text)?.other.lost_events)
}

/// The events by PE and name, each list in the order given.
pub fn by_pe_and_name(events: &[TraceEvent]) -> BTreeMap<(u32, &str), Vec<&TraceEvent>> {
    let mut groups: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for event in events {
        groups.entry((event.pe, &*event.name)).or_default().push(event);
    }
    groups
}

fn parse(text: &str) -> Result<Document<'_>, TraceError> {
    serde_json::from_str(text).map_err(|error| TraceError::NotATrace { reason: error.to_string() })
}

/// Microseconds as we write them, with three digits after the point, to the nanosecond; in another notation, which a tool
/// may have put them in, as a float has them.
fn nanoseconds(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    if part.len() <= 3
        && let (Ok(whole), Ok(part)) = (whole.parse::<u64>(), format!("{part:0<3}").parse::<u64>())
    {
        return whole.checked_mul(1000)?.checked_add(part);
    }
    let ns = (text.parse::<f64>().ok()? * 1e3).round();
    (0.0..u64::MAX as f64).contains(&ns).then_some(ns as u64)
}

fn arg(value: Value) -> Arg {
    match value {
        Value::String(text) => Arg::Text(Cow::Owned(text)),
        other => other.as_u64().map_or_else(|| Arg::Text(Cow::Owned(other.to_string())), Arg::Number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(ts: &str, dur: &str) -> Result<Vec<TraceEvent>, TraceError> {
        read(&format!(r#"{{"traceEvents": [{{"ph": "i"}}, {{"ph": "X", "name": "step", "ts": {ts}, "dur": {dur}}}]}}"#))
    }

    #[test]
    fn times_are_exact_in_our_notation_and_understood_in_others() {
        for (text, ns) in [
            ("0", 0),
            ("1.5", 1500),
            ("9007199254740.993", 9_007_199_254_740_993),
            ("1.25e3", 1_250_000),
            ("2.00049", 2000),
            ("0.0005", 1),
        ] {
            assert_eq!(event(text, "1").unwrap()[0].begin_ns, ns, "{text}");
            assert_eq!(event("0.0", text).unwrap()[0].duration_ns(), ns, "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused_with_its_event() {
        for text in ["-1", "null", "\"soon\"", "1e300", "-0.5", "18446744073709551615"] {
            let refused = event(text, "1").unwrap_err();
            assert!(
                matches!(&refused, TraceError::NoTime { index: 1, name, field: "ts" } if name == "step"),
                "{refused}"
            );
            let refused = event("1", text).unwrap_err();
            assert!(matches!(&refused, TraceError::NoTime { field: "dur", .. }), "{refused}");
        }
    }

    #[test]
    fn what_is_no_trace_is_refused() {
        for text in ["", "[]", "{}", r#"{"traceEvents": [{"ph": "X", "name": "cut o"#, r#"{"traceEvents": [{}]}"#] {
            let refused = read(text).unwrap_err();
            assert!(refused.to_string().starts_with("not a trace, or one that was cut off"), "{refused}");
            assert!(lost(text).is_err());
        }
    }

    #[test]
    fn overlap_is_the_time_of_both() {
        let (step, compute) = (event("10", "5").unwrap().remove(0), event("12", "1.5").unwrap().remove(0));
        let later = event("14", "100").unwrap().remove(0);
        assert_eq!((step.overlap_ns(&compute), compute.overlap_ns(&step)), (1500, 1500));
        assert_eq!((step.overlap_ns(&later), compute.overlap_ns(&later)), (1000, 0));
        assert!(step.holds(&compute) && !compute.holds(&step) && !step.holds(&later));
    }
}
