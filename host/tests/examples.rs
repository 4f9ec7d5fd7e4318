//! The examples do what they say: on threads, on processes, and with lanes.
#![cfg(feature = "cli")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::path::PathBuf;
use std::process::Command;

/// The built example, which `cargo test` puts beside the tests; `--test examples` alone does not build it.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(path.exists(), "{} is not there: build it with `cargo build --examples`", path.display());
    path
}

/// What an example prints on PEs that are threads, with so many lanes in a warp.
fn on_threads(name: &str, width: u32, arguments: &str) -> String {
    printed(Command::new(example(name)).args(arguments.split_whitespace()), width)
}

/// What an example prints on PEs that are processes.
fn on_processes(npes: u32, name: &str, arguments: &str) -> String {
    let mut launcher = Command::new(env!("CARGO_BIN_EXE_congruent"));
    launcher.args(["run", "-n", &npes.to_string(), "--"]).arg(example(name)).args(arguments.split_whitespace());
    printed(&mut launcher, 1)
}

fn printed(command: &mut Command, width: u32) -> String {
    let output = command.env("CONGRUENT_CPU_WIDTH", width.to_string()).output().unwrap();
    let (text, errors) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{text}\n{errors}", output.status);
    text
}

#[test]
fn the_ball_counts_every_bounce() {
    for text in [on_threads("ping_pong", 1, ""), on_processes(2, "ping_pong", "")] {
        assert!(text.contains("launch 2: the ball says 400000,"), "{text}");
    }
}

#[test]
fn what_was_scaled_is_summed() {
    for text in [on_threads("scale_and_sum", 1, ""), on_processes(3, "scale_and_sum", "")] {
        let sum = if text.contains("is 20\n") { "is 160\n" } else { "is 72\n" };
        assert!(text.contains(&format!("launch 2: every number on every PE {sum}")), "{text}");
    }
}

#[test]
fn the_plate_comes_to_rest_as_it_does_sequentially() {
    let same = "every cell on every PE equals the sequential solve, bit for bit";
    for width in [1, 4, 32] {
        for plate in ["--pes 1 --rows 9 --columns 70", "--pes 3 --rows 17 --columns 5", "--pes 8 --rows 8 --columns 1"]
        {
            let text = on_threads("jacobi", width, &format!("{plate} --every 3"));
            assert!(text.contains(same) && text.contains(&format!("width {width}")), "{text}");
        }
    }
    let text = on_processes(3, "jacobi", "--rows 31 --columns 33");
    assert!(text.contains(same) && text.contains("on 3 PEs"), "{text}");
}

#[test]
fn digits_are_read_rightly_and_the_loss_is_that_of_one_pe() {
    let text = on_threads("digits", 1, "--compare");
    let accuracies: Vec<f64> = text
        .lines()
        .filter_map(|line| line.split_once(" read rightly, ")?.1.split_once(" %")?.0.parse().ok())
        .collect();
    assert!(accuracies.len() == 3 && accuracies.iter().all(|&percent| percent >= 95.0), "{text}");
    assert!(text.contains("losses of 1, 2 and 4 PEs"), "{text}");
}

#[test]
fn digits_are_learnt_alike_by_lanes_and_by_processes() {
    let losses = |text: String| text.lines().filter(|line| line.starts_with("epoch")).map(str::to_owned).collect();
    let expected: Vec<String> = losses(on_threads("digits", 1, "--pes 4 --epochs 3"));
    assert_eq!(expected.len(), 3);
    for found in [on_threads("digits", 4, "--pes 4 --epochs 3"), on_processes(4, "digits", "--epochs 3")] {
        assert_eq!(losses(found), expected);
    }
}
