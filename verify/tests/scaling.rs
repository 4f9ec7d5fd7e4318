//! A text of twice the length takes about twice the time, whatever it is made of.

#![allow(clippy::expect_used, reason = "a test says what it expects")]

mod large;

use core::time::Duration;
use std::env;
use std::fmt::Write;
use std::process::Command;

use congruent_verify::Report;
use large::{joined_kernels, kernel};
use rustix::time::{ClockId, clock_gettime};

/// Twice the length may take this many times the time; what is quadratic takes 4.
const MOST: f64 = 3.0;
/// Other load disturbs a measurement, but not every time.
const ATTEMPTS: usize = 6;

/// Processor time of this thread to lint and show `text`.
fn time(text: &str) -> Duration {
    let now = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("a time");
    let start = now();
    let report = Report::new("large.ptx", text).unwrap_or_else(|error| panic!("{error}"));
    let shown = report.render(false);
    let taken = now() - start;
    assert_eq!(shown.is_empty(), report.is_clean());
    taken
}

fn assert_doubling(what: &str, text: impl Fn(usize) -> String, size: usize) {
    let (once, twice) = (text(size), text(2 * size));
    let mut ratios = Vec::new();
    for _ in 0..ATTEMPTS {
        let ratio = time(&twice).as_secs_f64() / time(&once).as_secs_f64();
        if ratio < MOST {
            return;
        }
        ratios.push(ratio);
    }
    panic!("{what}: {} lines take, of the time of {}: {ratios:.2?}", twice.lines().count(), once.lines().count());
}

/// `part` for each number below `count`, one after another.
fn repeat(count: usize, part: impl Fn(usize) -> String) -> String {
    (0..count).fold(String::new(), |mut text, number| {
        writeln!(text, "{}", part(number)).expect("a string takes all");
        text
    })
}

/// How many instructions it takes, where valgrind counts them: no clock, and so no load of the machine, is in it. What it
/// counts is this very test, in another process.
#[test]
fn twice_the_lines_take_less_than_2_3_times_the_instructions() {
    const TEST: &str = "twice_the_lines_take_less_than_2_3_times_the_instructions";
    const LINES: &str = "CONGRUENT_TEST_LINES";
    if let Ok(lines) = env::var(LINES) {
        let report = Report::new("large.ptx", joined_kernels(lines.parse().expect("a number")));
        return drop(report.unwrap_or_else(|error| panic!("{error}")).render(false));
    }
    let count = |lines: usize| {
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(env::current_exe().expect("a path"));
        let output = valgrind.args(["--exact", TEST]).env(LINES, lines.to_string()).output().ok()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        let (_, count) = said.split_once("Collected : ")?;
        count.split_whitespace().next()?.parse::<f64>().ok()
    };
    // What it takes to start, and to read what the text is made of, is in the first.
    let sizes = [0, 2_000, 4_000, 8_000, 16_000, 32_000];
    let Some(counts) = sizes.into_iter().map(count).collect::<Option<Vec<_>>>() else {
        return eprintln!("SKIPPED {TEST}: no valgrind");
    };
    // A text ends with a whole kernel, and so has some lines more than were asked for.
    let own = |i: usize| (joined_kernels(sizes[i]).lines().count() as f64, counts[i] - counts[0]);
    for i in 1..sizes.len() - 1 {
        let ((lines, once), (more_lines, more)) = (own(i), own(i + 1));
        let ratio = 2.0 * (more / once) / (more_lines / lines);
        eprintln!("{lines} and {more_lines} lines: {once} and {more} instructions, {ratio:.3} for twice the lines");
        assert!(ratio < 2.3);
    }
}

#[test]
fn one_kernel_of_many_collectives() {
    assert_doubling("joined kernels", joined_kernels, 12_000);
}

#[test]
fn every_shape_of_flow() {
    type Shape = (&'static str, fn(usize) -> String);
    const ADD: &str = "add.s32 %r2, %r2, 1;";
    let shapes: [Shape; 7] = [
        ("early returns", |n| repeat(n, |_| format!("@%p1 ret; {ADD}"))),
        ("branches one after another", |n| repeat(n, |i| format!("@%p1 bra L{i}; {ADD} L{i}:"))),
        ("branches in one another", |n| {
            repeat(n, |i| format!("@%p1 bra L{i};")) + &repeat(n, |i| format!("{ADD} L{}:", n - 1 - i))
        }),
        ("loops that differing threads leave", |n| repeat(n, |i| format!("L{i}: {ADD} @%p1 bra L{i};"))),
        ("loops without an end", |n| repeat(n, |i| format!("@%p1 bra M{i}; L{i}: {ADD} bra L{i}; M{i}:"))),
        ("ways to a trap", |n| {
            format!("bra L{};\nL0: trap;\n", n - 1) + &repeat(n - 1, |i| format!("L{}: bra L{i};", i + 1))
        }),
        ("branches that depend on the one before", |n| {
            let part = |i| {
                format!(
                    "setp.eq.b32 %q{i}, %c{i}, 0; mov.b32 %c{}, 0; @%q{i} bra L{i}; mov.b32 %c{}, 1; L{i}:",
                    i + 1,
                    i + 1
                )
            };
            format!(".reg .b32 %c<{}>; .reg .pred %q<{n}>;\nmov.b32 %c0, %r1;\n", n + 1) + &repeat(n, part)
        }),
    ];
    for (what, body) in shapes {
        assert_doubling(what, |size| kernel(&body(size), ""), 4_000);
    }
}

#[test]
fn every_table_that_is_searched() {
    let calls = |n| {
        let function =
            format!(".func f() {{ .reg .b32 %r<9>;\n{}\nret; }}\n", repeat(n, |_| "mov.b32 %r1, 0;".to_owned()));
        function + &kernel(&repeat(n, |_| "call.uni f, ();".to_owned()), "")
    };
    assert_doubling("calls of a long function", calls, 2_000);
    let functions = |n| {
        let defined = repeat(n, |i| format!(".func f{i}() {{ call.uni f{}, (); ret; }}", i.saturating_sub(1)));
        defined + &kernel(&repeat(n, |i| format!("call.uni f{i}, ();")), "")
    };
    assert_doubling("calls of many functions", functions, 2_000);
    let variables = |n| kernel(&repeat(n, |i| format!(".shared .b32 v{i}; st.b32 [v{i}], %r1;")), "");
    assert_doubling("variables", variables, 4_000);
    let findings = |n| kernel(&repeat(n, |_| "membar.gl;".to_owned()), "");
    assert_doubling("findings", findings, 1_000);
    let related = |n| kernel(&format!("@%p1 bra X;\n{}X:", repeat(n, |_| "bar.sync 0;".to_owned())), "");
    assert_doubling("findings far from their cause", related, 1_000);
    let multicast =
        |n| kernel(&repeat(n, |i| format!("@%p1 bra L{i}; multimem.st.relaxed.sys.global.f32 [%r2], %r3; L{i}:")), "");
    assert_doubling("multicast accesses", multicast, 1_000);
}
