//! Examples do on virtual GPUs what they do on the CPU, with PEs as threads and as processes: by the PTX that is in them, with nothing else
//! set but where cudarc finds a driver.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod virtual_support;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use std::{env, fs};

use congruent::trace::{by_pe_and_name, lost, read};
use congruent_build::Builder;
use congruent_tests::{program, repository};
use congruent_virtual_library::VARIABLE;
use virtual_support::{ends, on_virtual};

const PATIENCE: Duration = Duration::from_secs(100);

/// An example of this tree, built as these tests were.
fn example(name: &str) -> PathBuf {
    let myself = env::current_exe().unwrap();
    let [_, _, profile, target] = myself.ancestors().take(4).collect::<Vec<_>>()[..] else { panic!("{myself:?}") };
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    // Not for its package alone, which has fewer features: all would be built anew.
    build.args(["build", "--quiet", "--offline", "--workspace", "--example", name, "--target-dir"]);
    assert!(build.arg(target).current_dir(repository()).status().unwrap().success(), "{name} does not build");
    profile.join("examples").join(name)
}

/// What an example prints, with PEs that are threads, in a schedule by chance in which a race is an error.
fn on_threads(name: &str, arguments: &str) -> String {
    let mut command = Command::new(example(name));
    command.env("CONGRUENT_MACHINE", "virtual").env(VARIABLE, "races=1,schedule=random,seed=7");
    printed(command, arguments)
}

/// What an example prints, with PEs that are processes on a GPU each.
fn on_processes(npes: u32, name: &str, arguments: &str) -> String {
    let mut command = Command::new(program().unwrap());
    command.args(["run", "--virtual", &npes.to_string(), "--"]).arg(example(name));
    printed(command, arguments)
}

fn printed(mut command: Command, arguments: &str) -> String {
    command.args(arguments.split_whitespace());
    let end = ends(vec![command], PATIENCE).remove(0);
    assert!(end.succeeded, "{end:?}");
    end.said
}

#[test]
fn nothing_in_the_kernels_would_be_wrong_on_a_gpu_only() {
    let modules = [&congruent_example_kernels::PTX, &congruent_stream_kernels::PTX];
    for (target, text) in modules.iter().flat_map(|module| module.images) {
        let report = congruent_verify::Report::new(*target, *text).unwrap();
        assert!(report.is_clean(), "{}", report.render(false));
    }
}

/// Kernels that are built for it tell a trace what is inside them, and are taken from a file in place of those in the program.
#[test]
fn a_trace_shows_what_kernels_hold() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, kernels) = (folder.path().join("trace.json"), repository().join("host/examples/kernels"));
    let built = Builder::new(kernels).features(["congruent-device/trace"]).out_dir(folder.path()).build().unwrap();
    let mut command = Command::new(example("jacobi"));
    command.env("CONGRUENT_MACHINE", "virtual").env("CONGRUENT_PTX", &built[0].path).env("CONGRUENT_TRACE", &trace);
    let text = printed(command, "--pes 2 --rows 8 --columns 8 --every 5 --limit 10");
    assert!(text.contains("bit for bit"), "{text}");
    let events = read(&fs::read_to_string(&trace).unwrap()).unwrap();
    assert_eq!(lost(&fs::read_to_string(&trace).unwrap()).unwrap(), 0);
    let names = by_pe_and_name(&events);
    for pe in 0..2 {
        let [on_stream, block] = names[&(pe, "jacobi")][..] else { panic!("{names:?}") };
        assert_eq!((on_stream.block, block.block, &block.track), (None, Some(0), &on_stream.track));
        assert!(on_stream.begin_ns <= block.begin_ns && block.end_ns == on_stream.end_ns, "{on_stream:?} {block:?}");
        for (name, times) in [("put", 10), ("inner rows", 10), ("all-reduce ring", 2), ("all-gather 1/1", 2)] {
            let parts = &names[&(pe, name)];
            assert_eq!(parts.len(), times, "{name}");
            assert!(parts.iter().all(|part| block.holds(part) && part.track == block.track), "{name}: {parts:?}");
        }
        let (puts, rows) = (&names[&(pe, "put")], &names[&(pe, "inner rows")]);
        assert!(
            puts.iter().all(|put| put.number("peer") == Some(1 - u64::from(pe)) && put.number("bytes") == Some(32))
        );
        // Each step puts what is on its edges, and computes the rest.
        assert!(puts.iter().zip(rows).all(|(put, rows)| put.end_ns <= rows.begin_ns), "{puts:?} {rows:?}");
    }
    assert!(names.keys().any(|&(_, name)| name == "wait"), "{names:?}");
}

#[test]
fn the_ball_counts_every_bounce() {
    for text in [on_threads("ping_pong", "--rounds 200"), on_processes(2, "ping_pong", "--rounds 200")] {
        assert!(text.contains("launch 2: the ball says 800,"), "{text}");
    }
}

#[test]
fn what_was_scaled_is_summed() {
    for (text, sum) in [(on_threads("scale_and_sum", ""), 160), (on_processes(3, "scale_and_sum", ""), 72)] {
        assert!(text.contains(&format!("launch 2: every number on every PE is {sum}\n")), "{text}");
    }
}

/// Which finds the driver by itself.
#[test]
fn weights_that_cudarc_has_are_trained() {
    let mut command = on_virtual(Command::new(example("with_cudarc")), "");
    command.env(VARIABLE, "");
    let text = printed(command, "");
    assert!(text.contains("every weight of a slice of cudarc's is 995.5 after 3 steps"), "{text}");
}

#[test]
fn the_plate_comes_to_rest_as_it_does_sequentially() {
    let threads = on_threads("jacobi", "--pes 3 --rows 17 --columns 5");
    for text in [threads, on_processes(3, "jacobi", "--rows 19 --columns 33 --every 10 --limit 30")] {
        let same = "every cell on every PE equals the sequential solve, bit for bit";
        assert!(text.contains(same) && text.contains("on 3 PEs (cuda, congruent virtual GPU"), "{text}");
    }
}

#[test]
fn products_by_tiles_are_those_of_a_plain_loop() {
    let text = on_threads("gemm", "--m 200 --n 20 --k 70");
    let same = "200 x 70 times 70 x 20 is what a plain loop computes";
    assert!(text.contains(same) && text.contains("virtual GPU"), "{text}");
}

#[test]
fn rows_of_all_pes_are_multiplied_as_they_come() {
    let small = "--rows 20 --columns 12 --width 70 --turns 2";
    for text in [on_threads("gather_gemm", &format!("--pes 3 {small}")), on_processes(2, "gather_gemm", small)] {
        let same = "every product on every PE is what a plain loop computes";
        assert!(text.contains(same) && text.contains("virtual GPU"), "{text}");
    }
}

#[test]
fn partial_products_are_summed_in_the_order_of_the_pes() {
    let small = "--rows 20 --columns 12 --width 70 --turns 2";
    for text in [on_threads("gemm_scatter", &format!("--pes 3 {small}")), on_processes(2, "gemm_scatter", small)] {
        let same = "every sum has the bits of a plain loop's in the order of the PEs";
        assert!(text.contains(same) && text.contains("virtual GPU"), "{text}");
    }
}

#[test]
fn keys_go_around_the_ring_until_every_query_has_met_all() {
    let small = "--rows 9 --heads 3 --threads 32 --turns 2 --causal";
    for text in [on_threads("ring_attention", &format!("--pes 3 {small}")), on_processes(2, "ring_attention", small)] {
        assert!(text.contains("every answer is within 2e-6 of one in f64") && text.contains("virtual GPU"), "{text}");
    }
}

#[test]
fn partial_answers_of_all_pes_are_joined() {
    let small = "--keys 70 --heads 1 --turns 2";
    for text in [on_threads("flash_decode", &format!("--pes 3 {small}")), on_processes(2, "flash_decode", small)] {
        assert!(text.contains("every answer is within 2e-6 of one in f64") && text.contains("virtual GPU"), "{text}");
    }
}

#[test]
fn layers_are_answered_from_pages_that_another_pe_has_put() {
    let small = "--pages 1 --layers 2 --turns 2";
    for text in [on_threads("paged_kv", &format!("--pes 3 {small}")), on_processes(2, "paged_kv", small)] {
        assert!(text.contains("every answer is within 1e-5 of one in f64") && text.contains("virtual GPU"), "{text}");
    }
}

#[test]
fn tokens_come_back_as_one_pe_computes_them() {
    let small = "--tokens 7 --layers 2 --experts 6";
    for text in [on_threads("moe", &format!("--pes 3 {small}")), on_processes(2, "moe", small)] {
        let same = "every token on every PE, and its gradient, is what one PE alone computes, bit for bit";
        assert!(text.contains(same) && text.contains("virtual GPU"), "{text}");
    }
}

#[test]
fn experts_answer_in_one_kernel_as_by_steps() {
    let small = "--tokens 7 --experts 4 --groups 2 --answer-groups 2 --inner-groups 2 --turns 2 --blocks 2";
    for text in [on_threads("moe_experts", &format!("--pes 3 {small}")), on_processes(2, "moe_experts", small)] {
        let same = "every sum has the bits of the steps one by one, and is that of f64 but for roundings";
        assert!(text.contains(same) && text.contains("virtual GPU"), "{text}");
    }
}

#[test]
fn layers_are_summed_and_normalized_in_one_kernel() {
    let small = "--tokens 7 --layers 2";
    for text in [on_threads("fused_norm", &format!("--pes 3 {small}")), on_processes(2, "fused_norm", small)] {
        let same = "every token has the same bits on every PE, and is what one PE alone computes";
        assert!(text.contains(same) && text.contains("virtual GPU"), "{text}");
    }
}

#[test]
fn rows_are_normalized_as_in_f64() {
    let small = "--rows 6 --width 148";
    for text in [on_threads("rows", &format!("--pes 3 {small}")), on_processes(2, "rows", small)] {
        for norm in ["softmax", "RMSNorm"] {
            assert!(text.contains(&format!("{norm} is what f64 gives on every PE")), "{text}");
        }
        assert!(text.contains("virtual GPU"), "{text}");
    }
}

#[test]
fn bins_on_all_pes_have_what_the_host_counts() {
    let small = "--keys 3000";
    for text in [on_threads("histogram", &format!("--pes 3 {small}")), on_processes(2, "histogram", small)] {
        let same = "every bin on every PE has what the host counts, both ways";
        assert!(text.contains(same) && text.contains("virtual GPU"), "{text}");
    }
}

#[test]
fn no_update_of_a_word_by_chance_is_lost() {
    let small = "--log2-words 8 --updates 1500";
    for text in [on_threads("gups", &format!("--pes 3 {small}")), on_processes(2, "gups", small)] {
        let same = "no update was lost on any PE, and done twice they leave the table as it was";
        assert!(text.contains(same) && text.contains("virtual GPU"), "{text}");
    }
}

#[test]
fn rows_of_a_table_on_all_pes_are_fetched_and_summed() {
    let small = "--rows 20 --width 40 --bags 7 --bag 3";
    for text in [on_threads("embedding", &format!("--pes 3 {small}")), on_processes(2, "embedding", small)] {
        let same = "every sum on every PE is that of the rows, bit for bit";
        assert!(text.contains(same) && text.contains("virtual GPU"), "{text}");
    }
}

#[test]
fn a_walk_over_a_graph_is_that_of_one_pe() {
    let small = "--vertices 300 --steps 9";
    for text in [on_threads("sparse", &format!("--pes 3 {small}")), on_processes(2, "sparse", small)] {
        let same = "every probability on every PE is that of one PE, bit for bit";
        assert!(text.contains(same) && text.contains("virtual GPU"), "{text}");
    }
}

#[test]
fn batches_go_through_two_stages_in_order() {
    let small = "--batches 5 --len 300";
    for text in [on_threads("pipeline", &format!("--pes 3 {small}")), on_processes(2, "pipeline", small)] {
        let same = "every sum on every PE is that of what the PE before has computed, bit for bit";
        assert!(text.contains(same) && text.contains("virtual GPU"), "{text}");
    }
}

#[test]
fn digits_are_learnt() {
    let text = on_threads("digits", "--epochs 1");
    let percent = text.split_once(" read rightly, ").and_then(|(_, rest)| rest.split_once(" %")?.0.parse::<f64>().ok());
    assert!(percent.is_some_and(|percent| percent > 70.0) && text.contains("virtual GPU"), "{text}");
}

#[test]
fn a_transformer_is_trained_as_by_one_pe() {
    let small = "--steps 2 --batch 2 --tests 1";
    for text in [on_threads("transformer", &format!("--pes 4 {small}")), on_processes(2, "transformer", small)] {
        let same = "every loss is within 1e-3 of that of one PE";
        assert!(text.contains(same) && text.contains("virtual GPU"), "{text}");
    }
}
