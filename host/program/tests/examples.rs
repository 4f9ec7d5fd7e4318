//! The examples do what they say: on threads, on processes, and with lanes. And what a program says on standard error.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::path::PathBuf;
use std::process::Command;

/// A built example of the library, beside the tests: `cargo test --workspace` builds it, this package alone does not.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(path.exists(), "{} is not there: build it with `cargo build -p congruent --examples`", path.display());
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
    for width in [4, 32] {
        let text = on_threads("ping_pong", width, "--rounds 5000");
        assert!(text.contains("launch 2: the ball says 20000,"), "{text}");
    }
}

#[test]
fn what_was_scaled_is_summed() {
    let mut runs = [1, 4, 32].map(|width| (on_threads("scale_and_sum", width, ""), 160)).to_vec();
    runs.push((on_processes(3, "scale_and_sum", ""), 72));
    for (text, sum) in runs {
        assert!(text.contains(&format!("launch 2: every number on every PE is {sum}\n")), "{text}");
    }
}

#[test]
fn weights_are_trained_where_cudarc_has_none() {
    let mut runs = [1, 4, 32].map(|width| (on_threads("with_cudarc", width, ""), 995.5)).to_vec();
    runs.push((on_processes(3, "with_cudarc", ""), 991.0));
    for (text, weight) in runs {
        assert!(text.contains(&format!("every weight of a buffer is {weight} after 3 steps")), "{text}");
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
fn products_by_tiles_are_those_of_a_plain_loop() {
    for (width, sizes) in [(1, ""), (4, "--m 1 --n 194 --k 33"), (32, "--m 193 --n 3 --k 8")] {
        let text = on_threads("gemm", width, sizes);
        assert!(text.contains("is what a plain loop computes") && text.contains(&format!("width {width}")), "{text}");
    }
    let text = on_processes(2, "gemm", "--m 20 --n 20 --k 20");
    assert!(text.contains("20 x 20 times 20 x 20 is what a plain loop computes"), "{text}");
}

#[test]
fn rows_of_all_pes_are_multiplied_as_they_come() {
    let same = "every product on every PE is what a plain loop computes";
    for (width, layer) in [
        (1, "--pes 3"),
        (4, "--pes 4 --rows 5 --columns 193 --width 17 --blocks 1"),
        (32, "--pes 2 --rows 193 --columns 1 --width 64 --turns 1"),
    ] {
        let text = on_threads("gather_gemm", width, layer);
        assert!(text.contains(same) && text.contains(&format!("width {width}")), "{text}");
    }
    let text = on_processes(3, "gather_gemm", "--rows 20 --columns 12");
    assert!(text.contains(same) && text.contains("60 rows of 100 numbers times 12 columns on each of 3 PEs"), "{text}");
}

#[test]
fn partial_products_are_summed_in_the_order_of_the_pes() {
    let same = "every sum has the bits of a plain loop's in the order of the PEs";
    for (width, layer) in [
        (1, ""),
        (4, "--pes 4 --rows 5 --columns 193 --width 17 --blocks 1"),
        (32, "--pes 2 --rows 193 --columns 1 --width 64 --blocks 5 --turns 1"),
    ] {
        let text = on_threads("gemm_scatter", width, layer);
        assert!(text.contains(same) && text.contains(&format!("width {width}")), "{text}");
    }
    let mut proxied = Command::new(example("gemm_scatter"));
    let text = printed(proxied.env("CONGRUENT_P2P_DISABLE", "1"), 1);
    assert!(text.contains(same) && text.contains("through the proxy"), "{text}");
    let text = on_processes(3, "gemm_scatter", "--rows 20 --columns 12");
    assert!(text.contains(same) && text.contains("60 rows of 300 numbers times 12 columns"), "{text}");
}

#[test]
fn keys_go_around_the_ring_until_every_query_has_met_all() {
    let same = "every answer is within 2e-6 of one in f64";
    for (width, sequence) in [
        (1, "--pes 3"),
        (4, "--pes 4 --rows 33 --heads 4 --blocks 3 --threads 40 --causal"),
        (32, "--pes 1 --rows 5 --heads 1"),
        (32, "--pes 2 --rows 40 --causal --blocks 5"),
    ] {
        let text = on_threads("ring_attention", width, sequence);
        assert!(text.contains(same) && text.contains(&format!("width {width}")), "{text}");
    }
    let text = on_processes(3, "ring_attention", "--rows 20 --causal");
    assert!(text.contains(same) && text.contains("causal attention over 60 rows in 3 heads on 3 PEs"), "{text}");
}

#[test]
fn partial_answers_of_all_pes_are_joined() {
    let same = "every answer is within 2e-6 of one in f64";
    for (width, past) in
        [(1, ""), (4, "--pes 3 --keys 257 --heads 3 --blocks 4 --threads 40"), (32, "--pes 2 --keys 1 --heads 1")]
    {
        let text = on_threads("flash_decode", width, past);
        assert!(text.contains(same) && text.contains(&format!("width {width}")), "{text}");
    }
    let text = on_processes(3, "flash_decode", "--keys 40 --turns 20");
    assert!(text.contains(same) && text.contains("6 heads over 117 keys on 3 PEs"), "{text}");
}

#[test]
fn layers_are_answered_from_pages_that_another_pe_has_put() {
    let same = "every answer is within 1e-5 of one in f64";
    for (width, prompts) in
        [(1, ""), (4, "--pes 3 --pages 5 --layers 3 --blocks 4 --threads 40"), (32, "--pes 1 --pages 1 --layers 1")]
    {
        let text = on_threads("paged_kv", width, prompts);
        assert!(text.contains(same) && text.contains(&format!("width {width}")), "{text}");
    }
    let text = on_processes(3, "paged_kv", "--pages 2 --turns 20");
    assert!(text.contains(same) && text.contains("prompts of 32 tokens in 4 layers, for each of 3 PEs"), "{text}");
}

#[test]
fn tokens_come_back_as_one_pe_computes_them() {
    let same = "every token on every PE, and its gradient, is what one PE alone computes, bit for bit";
    for (width, layer) in [(1, ""), (4, "--pes 3 --experts 5 --tokens 7 --blocks 3"), (32, "--pes 1 --layers 1")] {
        let text = on_threads("moe", width, layer);
        assert!(text.contains(same) && text.contains(&format!("width {width}")), "{text}");
    }
    let text = on_processes(3, "moe", "--tokens 20 --layers 2");
    assert!(text.contains(same) && text.contains("2 layers of 120 tokens on 3 PEs"), "{text}");
}

#[test]
fn experts_answer_in_one_kernel_as_by_steps() {
    let same = "every sum has the bits of the steps one by one, and is that of f64 but for roundings";
    for (width, layer) in [
        (1, ""),
        (1, "--pes 8 --tokens 30 --experts 5 --blocks 2"),
        (4, "--pes 3 --tokens 70 --experts 4 --top-k 4 --inner-groups 3 --blocks 1"),
        (32, "--pes 1 --tokens 9 --experts 2 --top-k 2 --blocks 5 --turns 2"),
    ] {
        let text = on_threads("moe_experts", width, layer);
        assert!(text.contains(same) && text.contains(&format!("width {width}")), "{text}");
    }
    let mut proxied = Command::new(example("moe_experts"));
    let text = printed(proxied.env("CONGRUENT_P2P_DISABLE", "1"), 1);
    assert!(text.contains(same) && text.contains("through the proxy"), "{text}");
    let text = on_processes(3, "moe_experts", "--tokens 20");
    assert!(text.contains(same) && text.contains("for 9 experts of 200 numbers in between, on 3 PEs"), "{text}");
}

#[test]
fn layers_are_summed_and_normalized_in_one_kernel() {
    let same = "every token has the same bits on every PE, and is what one PE alone computes";
    for (width, layers) in [(1, ""), (4, "--pes 3 --tokens 700"), (32, "--pes 1 --layers 2")] {
        let text = on_threads("fused_norm", width, layers);
        assert!(text.contains(same) && text.contains(&format!("width {width}")), "{text}");
    }
    let text = on_processes(3, "fused_norm", "--tokens 5");
    assert!(text.contains(same) && text.contains("6 layers of 5 tokens on 3 PEs"), "{text}");
}

#[test]
fn rows_are_normalized_as_in_f64() {
    for (width, rows) in [(1, ""), (4, "--pes 3 --rows 9 --width 36"), (32, "--pes 1 --rows 5 --width 700")] {
        let text = on_threads("rows", width, rows);
        for norm in ["softmax", "RMSNorm"] {
            assert!(text.contains(&format!("{norm} is what f64 gives on every PE")), "{text}");
        }
        assert!(text.contains(&format!("width {width}")), "{text}");
    }
    let text = on_processes(3, "rows", "--rows 2 --width 4");
    assert!(text.contains("RMSNorm is what f64 gives") && text.contains("on each of 3 PEs"), "{text}");
}

#[test]
fn bins_on_all_pes_have_what_the_host_counts() {
    let same = "every bin on every PE has what the host counts, both ways";
    for (width, keys) in [(1, ""), (4, "--pes 3 --keys 1001"), (32, "--pes 7 --keys 5000")] {
        let text = on_threads("histogram", width, keys);
        assert!(text.contains(same) && text.contains(&format!("width {width}")), "{text}");
    }
    let text = on_processes(3, "histogram", "--keys 0");
    assert!(text.contains(same) && text.contains("0 keys of each of 3 PEs"), "{text}");
}

#[test]
fn no_update_of_a_word_by_chance_is_lost() {
    let same = "no update was lost on any PE, and done twice they leave the table as it was";
    for (width, table) in [(1, ""), (4, "--pes 3 --log2-words 5 --updates 20000"), (32, "--pes 1 --log2-words 0")] {
        let text = on_threads("gups", width, table);
        assert!(text.contains(same) && text.contains(&format!("width {width}")), "{text}");
    }
    let text = on_processes(3, "gups", "--updates 1000 --blocks 1");
    assert!(text.contains(same) && text.contains("1000 updates by each of 3 PEs"), "{text}");
}

#[test]
fn rows_of_a_table_on_all_pes_are_fetched_and_summed() {
    let same = "every sum on every PE is that of the rows, bit for bit";
    for (width, table) in [
        (1, ""),
        (4, "--pes 3 --rows 7 --width 40 --bags 33 --bag 5 --blocks 3"),
        (32, "--pes 1 --rows 1 --width 8 --bag 1"),
    ] {
        let text = on_threads("embedding", width, table);
        assert!(text.contains(same) && text.contains(&format!("width {width}")), "{text}");
    }
    let text = on_processes(3, "embedding", "--rows 50 --bags 0");
    assert!(text.contains(same) && text.contains("on each of 3 PEs, of a table of 150 rows"), "{text}");
}

#[test]
fn a_walk_over_a_graph_is_that_of_one_pe() {
    let same = "every probability on every PE is that of one PE, bit for bit";
    for (width, graph) in [
        (1, ""),
        (4, "--pes 3 --vertices 1001 --steps 60 --blocks 5"),
        (32, "--pes 1 --vertices 50"),
        (32, "--pes 7 --vertices 5"),
    ] {
        let text = on_threads("sparse", width, graph);
        assert!(text.contains(same) && text.contains(&format!("width {width}")), "{text}");
    }
    let text = on_processes(3, "sparse", "--vertices 10000 --steps 0");
    assert!(text.contains(same) && text.contains("entries on 3 PEs"), "{text}");
}

#[test]
fn batches_go_through_two_stages_in_order() {
    let same = "every sum on every PE is that of what the PE before has computed, bit for bit";
    for (width, batches) in [(1, ""), (4, "--pes 3 --batches 33 --len 5"), (32, "--pes 1 --batches 3")] {
        let text = on_threads("pipeline", width, batches);
        assert!(text.contains(same) && text.contains(&format!("width {width}")), "{text}");
    }
    let text = on_processes(3, "pipeline", "--batches 1");
    assert!(text.contains(same) && text.contains("on each of 3 PEs"), "{text}");
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
    let [four, thirty_two] = [4, 32].map(|width| on_threads("digits", width, "--pes 4 --epochs 3"));
    for found in [four, thirty_two, on_processes(4, "digits", "--epochs 3")] {
        assert_eq!(losses(found), expected);
    }
}

#[test]
fn a_transformer_is_trained_as_by_one_pe_and_is_better_than_a_bigram_model() {
    let same = "every loss is within 1e-3 of that of one PE";
    let text = on_threads("transformer", 1, "");
    assert!(text.contains(same) && text.contains("data 2 x pipeline 2 x tensor 2"), "{text}");
    assert!(text.contains("the transformer is better than the bigram model"), "{text}");
    for (width, training, division) in [
        (4, "--pes 8 --steps 4", "data 2 x pipeline 2 x tensor 2"),
        (32, "--pes 8 --steps 3 --batch 3", "data 2 x pipeline 2 x tensor 2"),
        (32, "--pes 2 --steps 2 --batch 1", "data 1 x pipeline 1 x tensor 2"),
        (1, "--pes 3 --steps 4 --batch 2", "data 3 x pipeline 1 x tensor 1"),
    ] {
        let text = on_threads("transformer", width, training);
        assert!(text.contains(same) && text.contains(division) && text.contains(&format!("width {width}")), "{text}");
    }
    let text = on_processes(4, "transformer", "--steps 4");
    assert!(text.contains(same) && text.contains("data 1 x pipeline 2 x tensor 2"), "{text}");
    let mut proxied = Command::new(example("transformer"));
    let text = printed(proxied.args(["--steps", "4"]).env("CONGRUENT_P2P_DISABLE", "1"), 1);
    assert!(text.contains(same) && text.contains("through the proxy"), "{text}");
}

/// What `scale_and_sum` writes to standard error with these variables.
fn told(variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = Command::new(example("scale_and_sum"));
    let output = command.env("CONGRUENT_MACHINE", "auto").envs(variables.iter().copied()).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// PEs are four threads: one of them says it. Where there is a driver, it has no GPU to show.
#[test]
fn who_did_not_ask_for_the_cpu_is_told_that_kernels_run_there() {
    let mut command = Command::new(example("scale_and_sum"));
    let output = command.env_remove("CONGRUENT_MACHINE").env("CUDA_VISIBLE_DEVICES", "").output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{text}");
    let start = "congruent: WARN init: kernels run on the CPU, because ";
    assert!(text.starts_with(start) && text.matches('\n').count() == 1, "{text}");
    assert!(text.contains("CONGRUENT_MACHINE=cpu"), "{text}");
}

#[test]
fn an_error_that_main_returns_is_printed_as_a_sentence() {
    let sentence = "Error: CONGRUENT_HEAP=much: expected a whole number, with K, M or G after it if you like\n";
    assert_eq!(told(&[("CONGRUENT_HEAP", "much")]), (Some(1), sentence.to_owned()));
}

/// A PE that cannot start tells the others why, and not only that it is gone.
#[test]
fn the_last_line_of_each_survivor_of_a_failed_start_is_its_reason() {
    let script = "[ $CONGRUENT_PE = 1 ] && export CONGRUENT_TRACE=/nowhere/trace; exec \"$0\"";
    let mut launcher = Command::new(env!("CARGO_BIN_EXE_congruent"));
    launcher.args(["run", "-n", "3", "--label", "--", "sh", "-c", script]).arg(example("scale_and_sum"));
    let output = launcher.env("CONGRUENT_MACHINE", "cpu").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    for pe in 0..3 {
        let last = said.lines().rfind(|line| line.starts_with(&format!("[{pe}] "))).unwrap_or_default();
        assert!(
            last.contains("Error: ") && last.contains("cannot write the trace to '/nowhere/trace"),
            "PE {pe}: {said}"
        );
        assert!(pe == 1 || last.contains("PE 1 gave up: ") || last.contains("PE 1 aborted: "), "PE {pe}: {said}");
    }
}

#[test]
fn what_is_asked_for_is_told_on_standard_error() {
    let lines = |detail, parts| {
        let (code, text) = told(&[("CONGRUENT_DEBUG", detail), ("CONGRUENT_DEBUG_SUBSYS", parts)]);
        assert_eq!(code, Some(0), "{text}");
        text
    };
    assert_eq!(told(&[]), (Some(0), String::new()));
    let version = concat!("congruent: INFO init: version ", env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!(lines("version", "all"), version);
    assert_eq!(lines("warn", "all"), version, "nothing goes wrong");
    let info = lines("info", "all");
    assert!(info.contains("congruent: INFO env: CONGRUENT_DEBUG=info, by the environment\n"), "{info}");
    assert!(info.contains("congruent: INFO init: PE 3 of 4 is ready: ") && !info.contains("TRACE"), "{info}");
    let trace = lines("trace", "launch");
    assert!(
        trace.contains("TRACE launch: scale_and_sum in 1 blocks of 256 pe=2") && !trace.contains("env:"),
        "{trace}"
    );
}
