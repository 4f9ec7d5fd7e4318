//! `congruent perf` as users run it: every operation moves what it should, and the output is what its readers expect.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod support;

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::{congruent, ended};

/// Runs a small sweep and gives its document.
fn document(arguments: &[&str]) -> Value {
    let ended = ended(congruent(&["perf"]).args(arguments).args(["-n", "4", "--json"]));
    assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
    serde_json::from_str(&ended.out).unwrap()
}

fn rows(document: &Value) -> &Vec<Value> {
    document["rows"].as_array().unwrap()
}

#[test]
fn every_movement_arrives_at_every_size() {
    for operation in ["put", "get", "ping-pong"] {
        let document = document(&[operation, "-b", "1", "-e", "100K", "-f", "7"]);
        assert_eq!(document["operation"], operation);
        assert_eq!(document["pes"], 2);
        assert_eq!(document["out_of_bounds_values"], 0, "{operation}");
        assert_eq!(rows(&document).len(), 6);
        for row in rows(&document) {
            assert_eq!(row["out_of_place"]["wrong"], 0);
            assert_eq!(row["out_of_place"]["rounds"], 4);
            assert!(row["out_of_place"]["time_us"].as_f64().unwrap() > 0.0);
            assert!(row["in_place"].is_null());
        }
    }
}

#[test]
fn an_all_reduce_runs_as_ptx_on_virtual_gpus() {
    let program = env!("CARGO_BIN_EXE_congruent");
    let perf = ["perf", "all-reduce", "-b", "4K", "-e", "4K", "-n", "1"];
    let job = ["run", "--virtual", "2", "--races", "--", program];
    let shown = ended(congruent(&job).args(perf));
    assert_eq!((shown.code, &*shown.err), (Some(0), ""), "{}", shown.out);
    assert!(
        shown.out.contains("times are not a GPU's") && shown.out.contains("# Out of bounds values : 0 OK\n"),
        "{}",
        shown.out
    );
}

#[test]
fn tokens_go_to_experts_and_come_back() {
    let shape = ["--tokens", "40,1,9", "--hidden", "24", "--top-k", "3", "--experts", "7"];
    for (pes, datatype, element, blocks) in [("1", "float", 4, "1"), ("3", "bfloat16", 2, "2"), ("4", "half", 2, "3")] {
        let document = document(&[&["moe", "-p", pes, "-d", datatype, "--blocks", blocks][..], &shape].concat());
        assert_eq!((&document["operation"], &document["type"]), (&"moe".into(), &datatype.into()));
        assert_eq!(document["out_of_bounds_values"], 0, "{pes} PEs: {document}");
        let sizes: Vec<&Value> = rows(&document).iter().map(|row| &row["size"]).collect();
        assert_eq!(sizes, [1, 9, 40].map(|tokens| Value::from(tokens * 24 * element)).iter().collect::<Vec<_>>());
        let half = &rows(&document)[2]["out_of_place"];
        let (algbw, busbw) = (half["algbw"].as_f64().unwrap(), half["busbw"].as_f64().unwrap());
        // One PE has nobody to send to; of several, a token goes to more than one other on average.
        assert!(if pes == "1" { busbw == 0.0 } else { busbw > 2.0 * algbw }, "{half}");
    }
    let mut proxied = congruent(&["perf", "moe", "-t", "5", "--hidden", "8", "-n", "2", "--json"]);
    let ended = ended(proxied.env("CONGRUENT_P2P_DISABLE", "1"));
    let document: Value = serde_json::from_str(&ended.out).unwrap_or_else(|_| panic!("{ended:?}"));
    assert_eq!((&rows(&document)[0]["algorithm"], &document["out_of_bounds_values"]), (&"proxy".into(), &0.into()));
}

#[test]
fn tokens_travel_as_ptx_on_virtual_gpus() {
    let program = env!("CARGO_BIN_EXE_congruent");
    let perf = ["perf", "moe", "-t", "3", "--hidden", "16", "-k", "2", "--experts", "5", "-n", "1"];
    let shown = ended(congruent(&["run", "--virtual", "2", "--races", "--", program]).args(perf));
    assert_eq!((shown.code, &*shown.err), (Some(0), ""), "{}", shown.out);
    assert!(shown.out.contains("# Out of bounds values : 0 OK\n"), "{}", shown.out);
}

#[test]
fn blocks_share_puts_and_gets_of_every_pe() {
    for operation in ["put", "get"] {
        for pes in ["2", "3"] {
            let shape = ["-p", pes, "--all", "--blocks", "3", "-b", "1", "-e", "300K", "-f", "9"];
            let document = document(&[&[operation][..], &shape].concat());
            assert_eq!((&document["blocks"], &document["all"]), (&3.into(), &true.into()));
            assert_eq!(document["out_of_bounds_values"], 0, "{operation} of {pes} PEs");
            assert!(rows(&document).iter().all(|row| row["wire_bytes"] == row["size"]));
        }
        let alone = document(&[operation, "-p", "3", "--blocks", "2", "-b", "1K", "-e", "1K"]);
        assert_eq!((&alone["all"], &alone["out_of_bounds_values"]), (&false.into(), &0.into()), "{operation}");
        let said = ended(&mut congruent(&["perf", operation, "--all", "-b", "8", "-e", "8", "-n", "1"])).out;
        assert!(said.contains("PEs: 4 threads") && said.contains("every PE at once"), "{said}");
    }
}

#[test]
fn calls_of_the_host_are_replayed_as_graphs() {
    for (operation, blocks) in [("all-reduce", "1"), ("broadcast", "2"), ("all-to-all-v", "1"), ("send-recv", "1")] {
        let shape = ["--graph", "-p", "3", "--blocks", blocks, "-b", "24", "-e", "9K", "-f", "19"];
        let document = document(&[&[operation][..], &shape].concat());
        assert_eq!((&document["mode"], &document["out_of_bounds_values"]), (&"graph".into(), &0.into()), "{operation}");
        // A graph is 20 rounds, so four become as many.
        assert!(rows(&document).iter().all(|row| row["out_of_place"]["rounds"] == 20), "{document}");
    }
    assert_eq!(document(&["all-reduce", "-e", "8"])["mode"], "kernel");
    let refused = ended(&mut congruent(&["perf", "barrier", "--graph"]));
    assert_eq!(refused.code, Some(2), "{refused:?}");
}

#[test]
fn the_other_pes_look_on() {
    for operation in ["put", "get", "ping-pong", "put-value", "fetch-add"] {
        let document = document(&[operation, "-p", "3"]);
        assert_eq!((&document["pes"], &document["out_of_bounds_values"]), (&3.into(), &0.into()), "{operation}");
    }
}

#[test]
fn words_have_one_row_and_the_barrier_nothing_to_check() {
    for (operation, wrong) in [("put-value", Value::from(0)), ("fetch-add", Value::from(0)), ("barrier", Value::Null)] {
        let document = document(&[operation]);
        assert_eq!(rows(&document).len(), 1);
        assert_eq!(rows(&document)[0]["out_of_place"]["wrong"], wrong, "{operation}");
    }
    assert_eq!(document(&["barrier", "--blocks", "3"])["pes"], 4);
}

const COLLECTIVES: [&str; 11] = [
    "all-reduce",
    "reduce-scatter",
    "reduce",
    "all-gather",
    "broadcast",
    "gather",
    "scatter",
    "all-to-all",
    "all-to-all-v",
    "all-gather-v",
    "send-recv",
];

#[test]
fn every_collective_is_right_with_every_algorithm_and_protocol() {
    for operation in COLLECTIVES {
        let document = document(&[operation, "-p", "3", "-b", "4", "-e", "40K", "-f", "50", "--algo", "all"]);
        assert_eq!(document["out_of_bounds_values"], 0, "{operation}: {document}");
        assert_eq!(document["operation"], operation);
        let ways: std::collections::BTreeSet<String> =
            rows(&document).iter().map(|row| format!("{} {}", row["algorithm"], row["protocol"])).collect();
        let fewest = if ["all-reduce", "broadcast", "reduce"].contains(&operation) { 5 } else { 1 };
        assert!(ways.len() >= fewest, "{operation}: {ways:?}");
        for row in rows(&document) {
            assert!(row["wire_bytes"].as_u64().unwrap() > 0 && row["size"].as_u64().unwrap() > 0, "{row}");
        }
        for size in rows(&document).iter().map(|row| &row["size"]) {
            let chosen = rows(&document).iter().filter(|row| row["size"] == *size && row["chosen"] == true);
            assert_eq!(chosen.count(), 1, "{operation} of {size}");
        }
    }
}

#[test]
fn collectives_with_a_root_take_any_pe() {
    for operation in ["reduce", "broadcast", "gather", "scatter"] {
        let document = document(&[operation, "-p", "3", "-b", "24", "-e", "4K", "-f", "13", "-r", "2"]);
        assert_eq!((&document["out_of_bounds_values"], &document["root"]), (&0.into(), &2.into()), "{operation}");
    }
}

#[test]
fn reductions_are_right_in_every_type_with_every_operator() {
    let integers = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"];
    let floats = ["half", "bfloat16", "float", "double", "f8e4m3", "f8e5m2"];
    for datatype in integers.into_iter().chain(floats) {
        let bitwise = if integers.contains(&datatype) { &["and", "or", "xor"][..] } else { &[] };
        for op in ["sum", "prod", "min", "max", "avg", "premul-sum"].iter().chain(bitwise) {
            let document =
                document(&["all-reduce", "-p", "3", "-b", "8", "-e", "21K", "-f", "51", "-d", datatype, "-o", op]);
            assert_eq!(document["out_of_bounds_values"], 0, "{datatype} {op}");
            assert_eq!((&document["type"], &document["redop"]), (&datatype.into(), &(*op).into()));
            assert_eq!(rows(&document).len(), 3);
            assert!(rows(&document).iter().all(|row| row["in_place"]["wrong"] == 0));
        }
    }
    for operation in ["reduce", "reduce-scatter"] {
        let document =
            document(&[operation, "-p", "3", "-b", "24", "-e", "9K", "-f", "51", "-d", "int16", "-o", "avg"]);
        assert_eq!(document["out_of_bounds_values"], 0, "{operation}");
    }
}

#[test]
fn collectives_are_right_for_any_number_of_pes_and_blocks() {
    for (pes, blocks, width) in [("1", "1", "1"), ("2", "3", "1"), ("5", "2", "1"), ("3", "2", "4")] {
        let shape = ["-p", pes, "--blocks", blocks, "--width", width];
        for operation in COLLECTIVES {
            let document = document(&[&[operation, "-b", "4", "-e", "300K", "-f", "90"][..], &shape].concat());
            assert_eq!(document["out_of_bounds_values"], 0, "{operation} {shape:?}");
            assert_eq!(document["machine"], format!("cpu, width {width}"));
        }
    }
}

#[test]
fn what_is_asked_for_is_taken_or_refused() {
    let ring = document(&["all-reduce", "-b", "8", "-e", "1M", "-f", "64", "--algo", "ring", "--proto", "ll"]);
    assert!(rows(&ring).iter().all(|row| (&row["algorithm"], &row["protocol"]) == (&"ring".into(), &"ll".into())));
    let row = &rows(&ring)[1];
    assert_eq!(row["size"], 512);
    // Packets double what the ring sends of 512 bytes in chunks of 128.
    assert_eq!(row["wire_bytes"], 2 * 2 * (512 - 128));
    let refused = ended(&mut congruent(&["perf", "all-to-all", "--algo", "tree", "-e", "8"]));
    assert_eq!(refused.code, Some(1));
    assert!(refused.err.contains("tree") && refused.err.contains("all-to-all"), "{}", refused.err);
}

#[test]
fn all_ways_become_a_plot_and_a_tuning_table_that_is_obeyed() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (plot, table) = (file("all.svg"), file("table.csv"));
    let sizes = ["-p", "2", "-b", "64", "-e", "4K", "-f", "8", "-n", "4"];
    for operation in ["all-gather", "broadcast", "broadcast"] {
        let command = ["perf", operation, "--plot", &plot, "--tune", &table];
        let ended = ended(congruent(&command).args(sizes));
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
    let picture = std::fs::read_to_string(&plot).unwrap();
    for label in ["ring ll", "tree simple", "direct simple", "broadcast, 2 PEs"] {
        assert!(picture.contains(label), "{label}");
    }
    let text = std::fs::read_to_string(&table).unwrap();
    let of = |operation: &str| text.lines().filter(|line| line.contains(&format!(",{operation},"))).count();
    // Ring, tree and direct; three sizes each, simple and with packets. They stand there once.
    assert_eq!((of("broadcast"), of("all-gather") > 0), (15, true), "{text}");

    // A table by which the slowest is the fastest.
    let slow = text.lines().find(|line| line.contains("broadcast,2,64,ring,simple")).unwrap();
    let (rest, _) = slow.rsplit_once(',').unwrap();
    std::fs::write(&table, text.replace(slow, &format!("{rest},0.001"))).unwrap();
    let mut perf = congruent(&["perf", "broadcast", "-p", "2", "-b", "64", "-e", "64", "-n", "4", "--json"]);
    let tuned: Value = serde_json::from_str(&ended(perf.env("CONGRUENT_TUNING", &table)).out).unwrap();
    let row = &rows(&tuned)[0];
    assert_eq!((&row["algorithm"], &row["protocol"]), (&"ring".into(), &"simple".into()));

    std::fs::write(&table, "no table").unwrap();
    let refused = ended(congruent(&["perf", "broadcast", "--tune", &table]).args(sizes));
    assert_eq!((refused.code, &*refused.out), (Some(1), ""), "nothing is measured");
    assert!(refused.err.contains("line 1"), "{}", refused.err);
}

#[test]
fn exchanges_of_tokens_become_a_plot() {
    let folder = tempfile::tempdir().unwrap();
    let plot = folder.path().join("moe.svg");
    let command =
        ["perf", "moe", "-p", "2", "-t", "2,5", "--hidden", "16", "-n", "1", "--plot", plot.to_str().unwrap()];
    let ended = ended(&mut congruent(&command));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let picture = std::fs::read_to_string(&plot).unwrap();
    assert!(picture.contains("moe, 2 PEs") && !picture.contains("the first"), "{picture}");
}

#[test]
fn a_sweep_that_is_stopped_leaves_the_plot_of_what_it_had() {
    // Not by INT, which a shell has its jobs in the background ignore.
    for signal in [Signal::TERM, Signal::KILL] {
        let folder = tempfile::tempdir().unwrap();
        let plot = folder.path().join("plot.svg");
        let command = ["perf", "broadcast", "-p", "2", "--plot", plot.to_str().unwrap()];
        let mut perf = congruent(&command).stdout(Stdio::null()).spawn().unwrap();
        let started = Instant::now();
        while !plot.exists() && started.elapsed() < Duration::from_secs(60) {
            sleep(Duration::from_millis(20));
        }
        kill_process(Pid::from_child(&perf), signal).unwrap();
        assert_eq!(perf.wait().unwrap().signal(), Some(signal.as_raw()));
        let picture = std::fs::read_to_string(&plot).unwrap();
        roxmltree::Document::parse(&picture).unwrap();
        assert!(picture.contains("the first ") && picture.contains(" measurements"), "{picture}");
    }
}

#[test]
fn bus_bandwidth_is_what_a_ring_needs() {
    let document = document(&["all-reduce", "-p", "4", "-b", "64K", "-e", "64K"]);
    let half = &rows(&document)[0]["in_place"];
    let (algbw, busbw) = (half["algbw"].as_f64().unwrap(), half["busbw"].as_f64().unwrap());
    assert!((busbw / algbw - 1.5).abs() < 1e-9, "{busbw} / {algbw}");
    let time = half["time_us"].as_f64().unwrap();
    assert!((algbw - 65536.0 / time / 1e3).abs() < 1e-9);
}

#[test]
fn the_table_has_the_columns_of_nccl_tests() {
    let ended = ended(&mut congruent(&["perf", "all-reduce", "-p", "2", "-b", "8", "-e", "16", "-n", "2"]));
    assert_eq!((ended.code, &*ended.err), (Some(0), ""));
    let rows: Vec<Vec<&str>> =
        ended.out.lines().filter(|line| !line.starts_with('#')).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0][..5], ["8", "2", "float", "sum", "-1"]);
    assert_eq!((rows[0][8], rows[0][12]), ("0", "0"));
    assert_eq!(rows[1][13..], ["32", "one-shot", "ll", "2"]);
    let names = ended.out.lines().find(|line| line.contains("algbw")).unwrap();
    let names: Vec<&str> = names.trim_start_matches('#').split_whitespace().collect();
    assert_eq!(names[..9], ["size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong"]);
    assert_eq!(names.len(), rows[0].len());
    assert!(ended.out.contains("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : "));
}

#[test]
fn unchecked_data_is_not_called_right() {
    let document = document(&["put", "-e", "64", "-c", "0"]);
    assert!(document["out_of_bounds_values"].is_null());
    assert!(rows(&document).iter().all(|row| row["out_of_place"]["wrong"].is_null()));
}

#[test]
fn rounds_are_found_where_none_are_given() {
    let ended = ended(&mut congruent(&["perf", "put", "-b", "1K", "-e", "1K", "--json"]));
    let document: Value = serde_json::from_str(&ended.out).unwrap();
    assert!(rows(&document)[0]["out_of_place"]["rounds"].as_u64().unwrap() > 100, "{}", ended.out);
    assert_eq!(document["out_of_bounds_values"], 0);
}

#[test]
fn pes_as_processes_of_a_job() {
    let program = env!("CARGO_BIN_EXE_congruent");
    let job =
        ["run", "-n", "3", "--", program, "perf", "all-reduce", "-b", "8", "-e", "8K", "-f", "16", "-n", "3", "--json"];
    let ended = ended(&mut congruent(&job));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    // One document: only PE 0 prints.
    let document: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!((&document["pes"], &document["started_as"]), (&3.into(), &"processes".into()));
    assert_eq!(document["out_of_bounds_values"], 0);
}

#[test]
fn what_makes_no_sense_is_refused_in_a_line() {
    for (arguments, complaint) in [
        (&["put", "-b", "0"][..], "-b 0"),
        (&["put", "-b", "1K", "-e", "8"], "-e 8 is less than -b 1024"),
        (&["put", "-f", "1"], "1 is not in 2.."),
        (&["put", "-b", "many"], "expected bytes"),
        (&["put", "-p", "1"], "give 2 or more"),
        (&["put", "-p", "0"], "0 is not in 1.."),
        (&["put", "--width", "33"], "33 is not in 1..=32"),
        (&["put", "-c", "2"], "2 is not in 0..=1"),
        (&["all-reduce", "-d", "float128"], "possible values"),
        (&["all-reduce", "-b", "4", "-d", "double"], "one element has 8 bytes"),
        (&["all-reduce", "-f", "2", "-i", "8"], "cannot be used with"),
        (&["all-reduce", "-d", "f8e5m2", "-p", "9", "-e", "8"], "sums of more than 8 PEs"),
        (&["all-reduce", "-o", "xor", "-e", "8"], "no such operator on float"),
        (&["reduce", "-r", "4", "-e", "8"], "-r 4: there are 4 PEs"),
        (&["reduce", "--algo", "sing", "-e", "8"], "sing"),
        (&["all-gather", "-o", "max"], "unexpected argument"),
        (&["moe", "-k", "5", "--experts", "4"], "a token cannot have 5 experts"),
        (&["moe", "-d", "double"], "experts answer in float"),
        (&["moe", "-t", "0"], "0 is not in 1.."),
        (&["moe", "--hidden", "3"], "no whole number of words"),
        (&["moe", "-k", "200", "--experts", "300"], "a token cannot have 200 experts"),
        (&["rumble"], "unrecognized subcommand"),
    ] {
        let ended = ended(congruent(&["perf"]).args(arguments));
        assert_eq!(ended.code, Some(2), "{arguments:?}: {ended:?}");
        assert!(ended.err.starts_with("error: ") && ended.err.contains(complaint), "{arguments:?}: {}", ended.err);
        assert_eq!(ended.out, "");
    }
}

#[test]
fn more_blocks_than_there_are_slots_fail_with_the_way_out() {
    let ended = ended(&mut congruent(&["perf", "barrier", "--blocks", "65", "-n", "1"]));
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("raise CONGRUENT_MAX_BLOCKS"), "{}", ended.err);
    assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
}

#[test]
fn what_runs_through_the_proxy_says_so() {
    let run = |operation| ended(congruent(&["perf", operation, "-n", "4", "--json"]).env("CONGRUENT_P2P_DISABLE", "1"));
    for operation in ["put-value", "fetch-add"] {
        let document: Value = serde_json::from_str(&run(operation).out).unwrap();
        assert_eq!(rows(&document)[0]["algorithm"], "proxy");
        assert_eq!(document["out_of_bounds_values"], 0);
    }
}

#[test]
fn collectives_run_through_the_proxy_too() {
    for operation in ["all-reduce", "all-gather", "all-to-all-v"] {
        let mut perf =
            congruent(&["perf", operation, "-p", "3", "-b", "12", "-e", "9K", "-f", "25", "-n", "2", "--json"]);
        let ended = ended(perf.env("CONGRUENT_P2P_DISABLE", "1"));
        let document: Value = serde_json::from_str(&ended.out).unwrap_or_else(|_| panic!("{operation}: {ended:?}"));
        assert_eq!(document["out_of_bounds_values"], 0, "{operation}");
        assert!(rows(&document).iter().all(|row| row["protocol"] == "simple"), "{document}");
    }
}
