//! Examples do on the CUDA machine what they do on the CPU, with PEs as threads and as processes; over the virtual
//! driver, which is given their kernels' declarations.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[path = "../../host/examples/ping_pong.rs"]
#[allow(dead_code, reason = "its kernel's parameters are needed, and the program is built apart")]
mod ping_pong;
mod processes;
#[path = "../../host/examples/scale_and_sum.rs"]
#[allow(dead_code, reason = "as above")]
mod scale_and_sum;
mod virtual_support;
#[path = "../../host/examples/with_cudarc.rs"]
#[allow(dead_code, reason = "as above")]
mod with_cudarc;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use congruent::collectives::PlanView;
use congruent_build::Builder;
use congruent_tests::repository;
use processes::{Port, alone, seat};
use virtual_support::{declare, ends, entry, entry_of, on_virtual};

const PATIENCE: Duration = Duration::from_secs(60);

/// An example of this tree, built as these tests were.
fn example(name: &str) -> PathBuf {
    let myself = std::env::current_exe().unwrap();
    let [_, _, profile, target] = myself.ancestors().take(4).collect::<Vec<_>>()[..] else { panic!("{myself:?}") };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--offline", "--package", "congruent", "--example", name, "--target-dir"]);
    assert!(build.arg(target).current_dir(repository()).status().unwrap().success(), "{name} does not build");
    profile.join("examples").join(name)
}

/// What the processes of an example print, with their kernels declared by this PTX.
fn printed(example: &Path, ptx: &Path, npes: Option<u32>, arguments: &str) -> String {
    let one = || {
        let mut command = on_virtual(Command::new(example), "");
        command.args(arguments.split_whitespace()).env("CONGRUENT_PTX", ptx);
        command
    };
    let port = Port::reserve();
    let commands = match npes {
        None => vec![one()],
        Some(npes) => (0..npes).map(|pe| seat(one(), &port, pe, npes)).collect(),
    };
    let mut text = String::new();
    for end in ends(commands, PATIENCE) {
        assert!(end.succeeded, "{}: {end:?}", example.display());
        text += &end.said;
    }
    text
}

#[test]
fn the_ball_counts_every_bounce() {
    let _alone = alone();
    let (example, ptx) = (example("ping_pong"), declare("ping_pong", &[entry::<ping_pong::ping_pong>()]));
    for npes in [None, Some(2)] {
        let text = printed(&example, &ptx, npes, "");
        assert!(text.contains("launch 2: the ball says 400000,"), "{text}");
    }
}

#[test]
fn what_was_scaled_is_summed() {
    let _alone = alone();
    let (example, ptx) =
        (example("scale_and_sum"), declare("scale_and_sum", &[entry::<scale_and_sum::scale_and_sum>()]));
    for (npes, sum) in [(None, 160), (Some(3), 72)] {
        let text = printed(&example, &ptx, npes, "");
        assert!(text.contains(&format!("launch 2: every number on every PE is {sum}\n")), "{text}");
    }
}

#[test]
fn weights_that_cudarc_has_are_trained() {
    let _alone = alone();
    let (example, ptx) = (example("with_cudarc"), declare("with_cudarc", &[entry::<with_cudarc::descend>()]));
    for (npes, weight) in [(None, 995.5), (Some(3), 991.0)] {
        let text = printed(&example, &ptx, npes, "");
        assert!(text.contains(&format!("every weight of a slice of cudarc's is {weight} after 3 steps")), "{text}");
    }
}

/// The kernel is in the crate of test kernels too, so that its PTX is executed.
#[test]
fn products_by_tiles_are_those_of_a_plain_loop() {
    let _alone = alone();
    let built = Builder::new(repository().join("tests/kernels")).targets(["sm_80:ptx80".parse().unwrap()]);
    let ptx = built.out_dir(Path::new(env!("CARGO_TARGET_TMPDIR")).join("gemm")).build().unwrap().swap_remove(0).path;
    let mut command = Command::new(example("gemm"));
    command
        .args(["--m", "140", "--n", "20", "--k", "70"])
        .envs([("CONGRUENT_MACHINE", "virtual")])
        .env("CONGRUENT_PTX", ptx);
    let end = ends(vec![command], PATIENCE).remove(0);
    let same = "140 x 70 times 70 x 20 is what a plain loop computes";
    assert!(end.succeeded && end.said.contains(same) && end.said.contains("virtual GPU"), "{end:?}");
}

#[test]
fn the_plate_comes_to_rest_as_it_does_sequentially() {
    let _alone = alone();
    let (example, ptx) =
        (example("jacobi"), declare("jacobi", &[entry_of("jacobi", &[64, 16, size_of::<PlanView>(), 12])]));
    for (npes, arguments) in [(None, "--pes 3 --rows 17 --columns 5"), (Some(3), "--rows 31 --columns 33")] {
        let text = printed(&example, &ptx, npes, arguments);
        assert!(text.contains("equals the sequential solve, bit for bit") && text.contains("on 3 PEs"), "{text}");
    }
}

#[test]
fn digits_are_learnt_alike_by_threads_and_by_processes() {
    let _alone = alone();
    let kernels = [entry_of("train", &[96, 32, size_of::<PlanView>(), 16, 16]), entry_of("test", &[96, 32, 16])];
    let (example, ptx) = (example("digits"), declare("digits", &kernels));
    let losses = |npes, arguments| -> Vec<String> {
        let text = printed(&example, &ptx, npes, arguments);
        text.lines().filter(|line| line.starts_with("epoch")).map(str::to_owned).collect()
    };
    let threads = losses(None, "--pes 4 --epochs 3");
    assert_eq!((threads.len(), losses(Some(4), "--epochs 3")), (3, threads));
}

/// Without PTX a kernel is refused, with what to do.
#[test]
fn an_example_without_ptx_says_what_to_do() {
    let _alone = alone();
    let command = on_virtual(Command::new(example("ping_pong")), "");
    let end = ends(vec![command], PATIENCE).remove(0);
    assert!(!end.succeeded && end.said.contains("has no PTX"), "{end:?}");
}
