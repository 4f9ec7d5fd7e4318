//! The columns of nccl-tests, as text; ours (bytes on the wire, algorithm, protocol, rounds) come after theirs, so that their
//! readers read them.

use super::measure::Mode;
use super::report::{Document, Half, Heading, Line};

const HALF: &str = "     time   algbw   busbw  #wrong";
const UNITS: &str = "     (us)  (GB/s)  (GB/s)        ";

/// The lines above the rows.
pub(super) fn heading(heading: &Heading) -> String {
    let Heading { version, operation, machine, cores, pes, started_as, blocks, threads, labels, .. } = heading;
    let heap = heading.heap_bytes.div_ceil(1 << 20);
    let rounds = match heading.iters {
        Some(iters) => format!("{iters} rounds"),
        None => "rounds for about 150 ms".to_owned(),
    };
    let launches = match heading.mode {
        Mode::Kernel => "all in one kernel",
        Mode::Graph => "each a launch, 20 in a graph",
    };
    let time = match *operation {
        "ping-pong" => "; times are of half a round trip",
        _ if heading.all => "; every PE at once: time of the slowest, bytes of one",
        _ => "",
    };
    let not_a_gpu = if machine.contains("virtual GPU") { ", on virtual GPUs: times are not a GPU's" } else { "" };
    let (places, names, units) = if labels.in_place {
        let places = format!("# {:50}{:>23}{:>33}\n", "", "out-of-place", "in-place");
        (places, HALF.repeat(2), UNITS.repeat(2))
    } else {
        (String::new(), HALF.to_owned(), UNITS.to_owned())
    };
    let first = format!("{:>10}  {:>12}  {:>8}  {:>6}  {:>6}", "size", "count", "type", "redop", "root");
    let second = format!("{:>10}  {:>12}  {:>8}  {:>6}  {:>6}", "(B)", "(elements)", "", "", "");
    format!(
        "# congruent {version}, perf {operation}{not_a_gpu}\n\
         # machine: {machine}, {cores} cores; PEs: {pes} {started_as}; heap: {heap} MiB each\n\
         # launch: blocks {blocks}, threads {threads}; {rounds}, {launches}{time}\n\
         #\n\
         {places}\
         # {first}{names}        wire       algo   proto    rounds\n\
         # {second}{units}         (B)\n"
    )
    .lines()
    .map(|line| line.trim_end().to_owned() + "\n")
    .collect()
}

/// One row.
pub(super) fn row(heading: &Heading, line: &Line) -> String {
    let labels = heading.labels;
    let in_place = line.in_place.as_ref().map_or(String::new(), half);
    format!(
        "{:12}  {:12}  {:>8}  {:>6}  {:6}{}{in_place}  {:>10}  {:>9}  {:>6}  {:8}\n",
        line.size,
        line.count,
        labels.datatype,
        labels.redop,
        labels.root,
        half(&line.out_of_place),
        line.path.wire_bytes,
        line.path.algorithm,
        line.path.protocol,
        line.out_of_place.rounds,
    )
}

/// The lines below the rows.
pub(super) fn footer(document: &Document) -> String {
    let values = match document.out_of_bounds_values {
        None => "not checked".to_owned(),
        Some(0) => "0 OK".to_owned(),
        Some(wrong) => format!("{wrong} FAILED"),
    };
    let average = document.average_bus_bandwidth;
    format!("# Out of bounds values : {values}\n# Avg bus bandwidth    : {average:.3}\n")
}

fn half(half: &Half) -> String {
    let digits = match half.time_us {
        ..1.0 => 4,
        ..100.0 => 2,
        ..10_000.0 => 1,
        _ => 0,
    };
    let wrong = half.wrong.map_or("N/A".to_owned(), |wrong| wrong.to_string());
    format!("  {:7.digits$}  {:6.2}  {:6.2}  {wrong:>6}", half.time_us, half.algbw, half.busbw)
}
