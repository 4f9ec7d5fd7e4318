//! A trace as JSON: the "Trace Event Format", which Perfetto and Chrome read.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::recorder::{Event, Kept};
use super::{Arg, Recorder, TraceError};

/// A row of a PE: stream, and block. Ordered as people count: `stream 10` after `stream 9`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Row<'a> {
    pe: u32,
    length: usize,
    track: &'a str,
    block: Option<u32>,
}

/// A line of the file. The fields are the format's.
#[derive(Serialize)]
struct Line<'a, A: Serialize> {
    ph: &'static str,
    name: &'a str,
    pid: u32,
    tid: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<Box<RawValue>>,
    /// How far an instant reaches across the picture.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<A>,
}

/// Arguments, in their order.
struct Args<'a>(&'a [(&'static str, Arg)]);

/// What the row is, in words for viewers and in parts for our reader.
#[derive(Serialize)]
struct RowName<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    track: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<u32>,
}

#[derive(Serialize)]
struct SortIndex {
    sort_index: u64,
}

impl Recorder {
    /// Writes all events so far to a file, and warns of what was lost.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub(crate) fn write(&self, path: &Path) -> Result<(), TraceError> {
        let kept = self.kept();
        if kept.lost > 0 {
            tracing::warn!(
                path = %path.display(),
                "the trace is not complete: it has the first {} events, the {} after these were lost; trace a shorter run",
                kept.events.len(),
                kept.lost
            );
        }
        write_file(path, &kept).map_err(|reason| TraceError::Write { path: path.to_owned(), reason })
    }
}

fn write_file(path: &Path, kept: &Kept) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    write_to(&mut out, kept)?;
    out.flush()
}

/// One event a line, so that the file can be read and cut by people, and what is left of one that was cut off is of use.
pub(super) fn write_to(out: &mut impl Write, kept: &Kept) -> io::Result<()> {
    write!(out, "{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"lost_events\":{}}},\"traceEvents\":[", kept.lost)?;
    let mut out = Lines { out, first: true };
    let rows = name_rows(&mut out, &kept.events)?;
    // Parents before children: where both begin together the longer comes first, and of equals the one told last.
    let mut order: Vec<(usize, &Event)> = kept.events.iter().enumerate().collect();
    order.sort_unstable_by_key(|&(i, event)| (event.pe, event.begin_ns, Reverse(event.end_ns), Reverse(i)));
    for (_, event) in order {
        out.line(&Line {
            ph: "X",
            name: &event.name,
            pid: event.pe,
            tid: rows[&row(event)],
            ts: Some(microseconds(event.begin_ns)?),
            dur: Some(microseconds(event.end_ns.saturating_sub(event.begin_ns))?),
            s: None,
            args: (!event.args.is_empty()).then_some(Args(&event.args)),
        })?;
    }
    if let Some(last) = kept.events.iter().max_by_key(|event| event.end_ns).filter(|_| kept.lost > 0) {
        let name = format!("the trace was full: {} events are lost", kept.lost);
        out.line(&Line::<()> {
            ph: "i",
            name: &name,
            pid: last.pe,
            tid: rows[&row(last)],
            ts: Some(microseconds(last.end_ns)?),
            dur: None,
            s: Some("g"),
            args: None,
        })?;
    }
    out.out.write_all(b"\n]}\n")
}

/// Names PEs and their rows, in order, and gives each row its number.
fn name_rows<'a>(out: &mut Lines<'_, impl Write>, events: &'a [Event]) -> io::Result<BTreeMap<Row<'a>, u64>> {
    let mut rows: BTreeMap<Row<'a>, u64> = events.iter().map(|event| (row(event), 0)).collect();
    let mut last = None;
    for (row, tid) in &mut rows {
        let pid = row.pe;
        let name = |name| Line { ph: "M", name, pid, tid: 0, ts: None, dur: None, s: None, args: None };
        let sort = |name| Line { ph: "M", name, pid, tid: 0, ts: None, dur: None, s: None, args: None };
        let index = match last {
            Some((pe, index)) if pe == pid => index + 1,
            _ => {
                let words = format!("PE {pid}");
                let args = Some(RowName { name: &words, track: None, block: None });
                out.line(&Line { args, ..name("process_name") })?;
                out.line(&Line { args: Some(SortIndex { sort_index: pid.into() }), ..sort("process_sort_index") })?;
                0
            }
        };
        last = Some((pid, index));
        // No two PEs share a number, and none is a PE's own, which viewers take for the main thread.
        *tid = (u64::from(pid) << 16) + 1 + index;
        let words = match row.block {
            Some(block) => format!("{}, block {block}", row.track),
            None => row.track.to_owned(),
        };
        let args = Some(RowName { name: &words, track: Some(row.track), block: row.block });
        out.line(&Line { tid: *tid, args, ..name("thread_name") })?;
        out.line(&Line { tid: *tid, args: Some(SortIndex { sort_index: index }), ..sort("thread_sort_index") })?;
    }
    Ok(rows)
}

fn row(event: &Event) -> Row<'_> {
    Row { pe: event.pe, length: event.track.len(), track: &event.track, block: event.block }
}

/// The format's unit, with all digits: a host that has been up for a month has more than a float keeps.
fn microseconds(ns: u64) -> io::Result<Box<RawValue>> {
    Ok(RawValue::from_string(format!("{}.{:03}", ns / 1000, ns % 1000))?)
}

/// The elements of an array, one a line.
struct Lines<'a, W> {
    out: &'a mut W,
    first: bool,
}

impl<W: Write> Lines<'_, W> {
    fn line(&mut self, line: &impl Serialize) -> io::Result<()> {
        self.out.write_all(if self.first { b"\n" } else { b",\n" })?;
        self.first = false;
        Ok(serde_json::to_writer(&mut *self.out, line)?)
    }
}

impl Serialize for Args<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{by_pe_and_name, lost, read};

    fn event(pe: u32, block: Option<u32>, name: &'static str, begin_ns: u64, end_ns: u64) -> Event {
        Event { pe, track: "stream 0".into(), block, name: name.into(), begin_ns, end_ns, args: Vec::new() }
    }

    fn written(most: usize, events: impl IntoIterator<Item = Event>) -> String {
        let recorder = Recorder::new(most);
        events.into_iter().for_each(|event| recorder.add(event));
        let mut text = Vec::new();
        write_to(&mut text, &recorder.kept()).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn what_is_written_reads_back() {
        let begin = 123_456_789_012_345_679;
        let args = vec![("bytes", 4096.into()), ("kind", "\"simple\"\n".into()), ("members", "0, 1".to_owned().into())];
        let step = Event { args: args.clone(), ..event(3, Some(2), "all-gather 2/3", begin, begin + 1001) };
        let events = read(&written(8, [step])).unwrap();
        let [read] = &events[..] else { panic!("{events:?}") };
        assert_eq!((read.pe, &*read.track, read.block, &*read.name), (3, "stream 0", Some(2), "all-gather 2/3"));
        assert_eq!((read.begin_ns, read.end_ns, read.number("bytes")), (begin, begin + 1001, Some(4096)));
        assert_eq!(read.args, args.into_iter().map(|(name, value)| (name.to_owned(), value)).collect());
    }

    #[test]
    fn events_nest_in_whatever_order_they_are_told() {
        let ring = || {
            let blocks = (0..2).flat_map(|pe| (0..2).map(move |block| (pe, Some(block))));
            blocks.flat_map(|(pe, block)| {
                [
                    event(pe, block, "scatter-reduce 1/1", 100, 150),
                    event(pe, block, "all-gather 1/1", 150, 200),
                    event(pe, block, "all-reduce", 100, 200),
                    event(pe, block, "kernel", 100, 200),
                ]
            })
        };
        let events = read(&written(100, ring())).unwrap();
        let groups = by_pe_and_name(&events);
        assert_eq!(groups.len(), 8);
        for pe in 0..2 {
            for block in 0..2 {
                let at = |name: &'static str| groups[&(pe, name)][block as usize];
                assert_eq!(at("kernel").block, Some(block));
                assert!(at("kernel").holds(at("all-reduce")) && at("all-reduce").holds(at("scatter-reduce 1/1")));
                assert!(at("all-reduce").holds(at("all-gather 1/1")));
                assert!(!at("all-reduce").holds(groups[&(pe, "all-gather 1/1")][1 - block as usize]));
            }
        }
        let names = |events: &[crate::trace::TraceEvent]| -> Vec<String> {
            let row = events.iter().filter(|event| (event.pe, event.block) == (1, Some(0)));
            row.map(|event| event.name.clone()).collect()
        };
        let order = ["kernel", "all-reduce", "scatter-reduce 1/1", "all-gather 1/1"];
        assert_eq!(names(&events), order);
        let mut reversed: Vec<Event> = ring().collect();
        reversed.sort_by_key(|event| Reverse(event.begin_ns));
        assert_eq!(names(&read(&written(100, reversed)).unwrap()), order);
    }

    #[test]
    fn rows_are_named_once_and_stand_in_order() {
        let tracks = ["stream 10", "stream 9"].into_iter().flat_map(|track| {
            [Some(1), None, Some(0), Some(1)]
                .map(|block| Event { track: track.into(), ..event(1, block, "kernel", 5, 9) })
        });
        let text = written(100, tracks);
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        let lines = document["traceEvents"].as_array().unwrap();
        let meta =
            |name: &str| -> Vec<&serde_json::Value> { lines.iter().filter(|line| line["name"] == name).collect() };
        let words: Vec<_> = meta("thread_name").iter().map(|line| line["args"]["name"].as_str().unwrap()).collect();
        let expected = ["stream 9", "stream 9, block 0", "stream 9, block 1"];
        assert_eq!(words[..3], expected);
        assert_eq!(words[3..], expected.map(|words| words.replace('9', "10")));
        let order: Vec<_> = meta("thread_sort_index").iter().map(|line| &line["args"]["sort_index"]).collect();
        assert_eq!(order, [0, 1, 2, 3, 4, 5]);
        let [process] = &meta("process_name")[..] else { panic!("one PE: {text}") };
        assert_eq!((&process["args"]["name"], &process["pid"]), (&"PE 1".into(), &1.into()));
    }

    #[test]
    fn a_full_trace_says_what_it_lost() {
        let text = written(2, (0..7).map(|at| event(0, None, "kernel", at, at + 1)));
        assert_eq!((read(&text).unwrap().len(), lost(&text).unwrap()), (2, 5));
        assert!(text.contains("the trace was full: 5 events are lost"), "{text}");
        let whole = written(2, [event(0, None, "kernel", 0, 1)]);
        assert_eq!(lost(&whole).unwrap(), 0);
        assert!(!whole.contains("full"), "{whole}");
    }

    #[test]
    fn an_end_before_the_beginning_is_the_beginning() {
        let events = read(&written(2, [event(0, None, "kernel", 7, 3)])).unwrap();
        assert_eq!((events[0].begin_ns, events[0].duration_ns()), (7, 0));
    }
}
