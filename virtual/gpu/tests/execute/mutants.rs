//! Kernels with one thing taken away.

use congruent_virtual_gpu::{Loss, Mutant, Schedule};

use super::{ONE_WARP, Run, passed, program, run_program};

#[test]
fn what_is_taken_away_from_a_kernel_is_missed() {
    let release = "fence.sc.gpu; bar.sync 0; st.release.gpu.global.u32 [%rd0+2048], 1;";
    let body = passed(release, "ld.acquire.gpu.global.u32 %r1, [%rd0+2048];");
    let whole = program(&body);
    let order = |seed| Run { schedule: Schedule::Random, seed, blocks: 2, threads: 32, races: true, ..ONE_WARP };
    let mutants = whole.mutants();
    let losses: Vec<_> = mutants.iter().map(|mutant| mutant.loss).collect();
    let expected = [Loss::Device, Loss::Order, Loss::Wait, Loss::Fence, Loss::Consistency, Loss::Device, Loss::Barrier];
    assert_eq!(losses[..7], expected);
    assert_eq!(losses[7..], [Loss::Device, Loss::Order]);
    assert_eq!((mutants[0].line, mutants[0].kernels.as_slice()), (13, &["k".to_owned()][..]));
    for mutant in mutants {
        let found = (0..20).any(|seed| match run_program(whole.mutated(&mutant), order(seed)) {
            Ok(words) => words[0] != 77,
            Err(_) => true,
        });
        // The fence and the release can stand for each other, and the barrier has nothing to order.
        let is_store = mutant.instruction.starts_with("st.");
        let is_needed = mutant.line != 15 || is_store && mutant.loss == Loss::Device;
        assert_eq!(found, is_needed, "{mutant:?}");
    }
}

#[test]
fn a_call_that_only_waits_is_a_wait_and_an_access_may_be_left_out() {
    let body = ".func (.param .b32 came) poll(.param .b64 at) {\n\
        .reg .b64 %rd<1>; .reg .b32 %r<2>; .reg .pred %p<1>; ld.param.b64 %rd0, [at];\n\
        w: ld.acquire.gpu.global.u32 %r0, [%rd0+2048]; setp.eq.u32 %p0, %r0, 0; @%p0 bra w;\n\
        mov.u32 %r1, 1; st.param.b32 [came], %r1; ret; }===\n\
        setp.eq.u32 %p1, %r9, 0; @%p1 bra reader;\n\
        st.relaxed.gpu.global.u32 [%rd0], 77; st.release.gpu.global.u32 [%rd0+2048], 1; ret;\n\
        reader: { .param .b64 a; .param .b32 c; st.param.b64 [a], %rd0; call.uni (c), poll, (a); ld.param.b32 %r2, [c]; }\n\
        mov.u32 %r3, 5; ld.relaxed.gpu.global.u32 %r3, [%rd0]; st.global.u32 [%rd0+4], %r3; st.global.u32 [%rd0+8], %r2; ret;";
    let whole = program(body);
    let traced = whole.traced();
    let words = |program| run_program(program, Run { blocks: 2, threads: 1, ..ONE_WARP }).unwrap();
    assert_eq!(words(traced.clone())[..3], [77, 77, 1]);
    let mutants = whole.mutants();
    let found = |wanted: &dyn Fn(&&Mutant) -> bool| mutants.iter().find(wanted).unwrap();
    let wait = found(&|mutant| mutant.loss == Loss::Wait && mutant.instruction.starts_with("call"));
    assert!(traced.has_reached(wait) && !whole.has_reached(wait));
    assert_eq!(words(whole.mutated(wait))[..3], [77, 0, 1]);
    let store = found(&|mutant| mutant.loss == Loss::Device && mutant.instruction.starts_with("st.relaxed"));
    let without = |mutant: &Mutant| -> Vec<_> {
        mutant.without_access().map(|less| (less.loss, words(whole.mutated(&less))[..3].to_vec())).collect()
    };
    assert_eq!(without(store), [(Loss::Access, vec![0, 0, 1])]);
    // What the register had before, and what memory had.
    let load = found(&|mutant| mutant.loss == Loss::Device && mutant.instruction.starts_with("ld.relaxed"));
    assert_eq!(without(load), [(Loss::Access, vec![77, 5, 1]), (Loss::Value, vec![77, 0, 1])]);
    assert_eq!(without(wait), []);
}

/// A loop whose middle lies behind it, with a choice in it by what it loads, and the poll at its end.
#[test]
fn a_choice_in_a_loop_is_no_wait_wherever_it_lies() {
    let body = "mov.u32 %r1, 0;\n\
        again: ld.relaxed.gpu.global.u32 %r2, [%rd0]; setp.eq.u32 %p1, %r2, 0; @%p1 bra aside;\n\
        on: add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 4; @%p2 bra again; bra.uni poll;\n\
        aside: add.u32 %r3, %r3, 1; bra.uni on;\n\
        poll: ld.acquire.gpu.global.u32 %r2, [%rd0]; setp.ne.u32 %p1, %r2, 7; @%p1 bra more; bra.uni done;\n\
        more: bra.uni poll;\n\
        done: st.global.u32 [%rd0+4], %r2; ret;";
    let whole = program(body);
    let waits: Vec<_> = whole.mutants().into_iter().filter(|mutant| mutant.loss == Loss::Wait).collect();
    let [wait] = &waits[..] else { panic!("{waits:?}") };
    assert!(wait.instruction.contains("more"), "{wait:?}");
    // Nobody stores a 7.
    assert_eq!(run_program(whole.mutated(wait), Run { threads: 1, ..ONE_WARP }).unwrap()[1], 0);
}
