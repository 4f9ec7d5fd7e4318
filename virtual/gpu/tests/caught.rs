//! What a GPU does not tell: mistakes between PEs that are caught here, with the lines that make them, and what mends each.
//!
//! Lines that have to be named end with `// caught`.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking, in its helpers too")]

use std::sync::Arc;

use congruent_virtual_gpu::{
    Access, Backing, Cause, Fault, Launch, Machine, Program, Promises, Schedule, Segment, Settings, Space, Window,
};

/// Where the memory of the PEs is, on every device.
const AT: u64 = 0x7000_0000;
/// Schedules that are tried.
const SEEDS: u64 = 20;
const THREADS: u32 = 64;

/// A kernel for two PEs: the parameters are the address of the memory and the PE, which is on a device of its own. PE 1 puts.
fn kernel(wait: &str, put: &str) -> String {
    format!(
        ".version 8.4\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 at, .param .u32 pe) {{\n\
         .reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .pred %p<9>;\n\
         ld.param.u64 %rd0, [at]; ld.param.u32 %r0, [pe]; mov.u32 %r1, %tid.x; setp.eq.u32 %p0, %r1, 0;\n\
         mul.wide.u32 %rd1, %r1, 16; add.s64 %rd1, %rd0, %rd1; setp.ne.u32 %p1, %r0, 0; @%p1 bra put;\n{wait}\nret;\n\
         put:\n{put}\nret;\n}}"
    )
}

/// Runs it on both PEs at one time; the fault of either.
fn run(text: &str, settings: Settings) -> Option<Fault> {
    let program = Program::new(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let machine = Machine::new(Settings { devices: 2, budget: 1 << 20, ..settings }).unwrap();
    let memory = Segment::zeroed(8192);
    let launch = |pe: u32| {
        let space = Space::new(pe);
        let (bytes, access) = (memory.bytes(), Access::ReadWrite);
        space.map(Window { at: AT, bytes, backing: Backing::Memory(memory.clone(), 0), access });
        let params = [&AT.to_le_bytes()[..], &pe.to_le_bytes()].concat();
        let (kernel, globals, threads) = ("k".to_owned(), Arc::new([]), [THREADS, 1, 1]);
        let program = program.clone();
        let (pe, blocks) = (Some(pe), [1; 3]);
        Launch { program, globals, kernel, space, pe, blocks, threads, shared: 0, registers: 32, params }
    };
    machine.launch_all([0, 1].map(|pe| vec![launch(pe)]).into()).err().map(|fault| *fault)
}

/// What is found in one of the schedules.
fn found(text: &str, settings: &Settings) -> Option<Fault> {
    let schedules = (0..SEEDS).flat_map(|seed| [(Schedule::Random, seed), (Schedule::Priorities, seed)]);
    schedules.map(|(schedule, seed)| Settings { schedule, seed, ..settings.clone() }).find_map(|one| run(text, one))
}

/// That it is caught, and why: a race with both lines that are marked, all else with one of them.
fn caught(text: &str, settings: &Settings) -> Cause {
    let fault = found(text, settings).expect("it is caught");
    let marked = (1..).zip(text.lines()).filter(|(_, line)| line.ends_with("// caught")).map(|(at, _)| at);
    let marked: Vec<usize> = marked.collect();
    if let Cause::Race { parties, .. } = &fault.cause {
        let mut named: Vec<_> = parties.iter().map(|party| party.line).collect();
        named.sort_unstable();
        assert_eq!(named, marked, "{fault}\n{text}");
    } else {
        assert!(marked.contains(&fault.line), "{fault}\n{text}");
    }
    fault.cause
}

fn passes(text: &str, settings: &Settings) {
    if let Some(fault) = found(text, settings) {
        panic!("nothing is wrong: {fault}\n{text}");
    }
}

/// That `wrong` has a race, for want of what is `missing`, and `right` has none.
fn caught_race(wrong: &str, right: &str, missing: &str) {
    let races = Settings { races: true, ..Settings::default() };
    let cause = caught(wrong, &races);
    assert!(matches!(cause, Cause::Race { missing: found, .. } if found.contains(missing)), "{cause}");
    passes(right, &races);
}

/// NVSHMEM's wait polls with volatile loads, and then has a fence of the device: the datum may come from another one.
#[test]
fn a_wait_in_nvshmems_shape_whose_fence_is_the_devices() {
    let put = "@!%p0 ret; st.global.u32 [%rd0], 77; // caught\nst.release.sys.global.u32 [%rd0+4096], 1;";
    let wait = |fence: &str| {
        let wait = format!(
            "@!%p0 ret;\nwait: ld.volatile.global.u32 %r2, [%rd0+4096]; setp.eq.u32 %p2, %r2, 0; @%p2 bra wait;\n\
             {fence}\nld.global.u32 %r3, [%rd0]; // caught\nst.global.u32 [%rd0+2048], %r3;"
        );
        kernel(&wait, put)
    };
    caught_race(&wait("fence.acq_rel.gpu;"), &wait("fence.acq_rel.sys;"), "of scope sys");
}

/// A slot is filled again before its reader has said that it is free.
#[test]
fn an_unsynchronized_reuse_of_a_bank() {
    let wait = "@!%p0 ret;\nwait: ld.acquire.sys.global.u32 %r2, [%rd0+4096]; setp.eq.u32 %p2, %r2, 0; @%p2 bra wait;\n\
        ld.global.u32 %r3, [%rd0]; // caught\nst.release.sys.global.u32 [%rd0+4224], 1;";
    let put = |credit: &str| {
        let put = format!(
            "@!%p0 ret; st.global.u32 [%rd0], 1; st.release.sys.global.u32 [%rd0+4096], 1;\n{credit}\n\
             st.global.u32 [%rd0], 2; // caught"
        );
        kernel(wait, &put)
    };
    let credit = "credit: ld.acquire.sys.global.u32 %r4, [%rd0+4224]; setp.eq.u32 %p3, %r4, 0; @%p3 bra credit;";
    caught_race(&put(""), &put(credit), "of scope sys");
}

/// All threads of a block put, and the first of them notifies without having waited for the others.
#[test]
fn a_dropped_block_sync_before_a_notify() {
    let wait = "@!%p0 bra meet;\n\
        wait: ld.acquire.sys.global.u32 %r2, [%rd0+4096]; setp.eq.u32 %p2, %r2, 0; @%p2 bra wait;\n\
        meet: bar.sync 0;\nld.global.u32 %r3, [%rd1]; // caught";
    let put = |sync: &str| {
        let put =
            format!("st.global.u32 [%rd1], %r1; // caught\n{sync}\n@%p0 st.release.sys.global.u32 [%rd0+4096], 1;");
        kernel(wait, &put)
    };
    caught_race(&put(""), &put("bar.sync 0;"), "of scope sys");
}

/// LL128 has one flag for lines of 128 bytes, which PTX does not promise to move as one: data may be old beside a new flag.
#[test]
fn ll128_without_its_knob() {
    let wait = "setp.gt.u32 %p3, %r1, 31; @%p3 ret; cvt.u64.u32 %rd5, %r1; and.b32 %r3, %r1, 7; setp.eq.u32 %p4, %r3, 7;\n\
        wait: ld.relaxed.sys.global.v2.b64 {%rd7, %rd8}, [%rd1]; setp.eq.and.u64 %p2, %rd8, 0, %p4;\n\
        vote.sync.any.pred %p3, %p2, -1; @%p3 bra wait;\n\
        add.s64 %rd5, %rd5, 7000; setp.eq.u64 %p5, %rd7, %rd5; @%p5 ret;\ntrap; // caught";
    let put = "setp.gt.u32 %p3, %r1, 31; @%p3 ret; cvt.u64.u32 %rd5, %r1; add.s64 %rd5, %rd5, 7000; mov.u64 %rd6, 1;\n\
        st.relaxed.sys.global.v2.b64 [%rd1], {%rd5, %rd6};";
    let text = kernel(wait, put);
    let weak = |promises| Settings { weak: Some(promises), ..Settings::default() };
    let knob = weak(Promises { v4_16b_atomic: true, ll128_128b_ordered: true });
    for promises in [Promises::default(), Promises { v4_16b_atomic: true, ll128_128b_ordered: false }] {
        assert_eq!(caught(&text, &weak(promises)), Cause::Trap);
    }
    passes(&text, &knob);
}

/// A barrier of the block in both arms of a branch that divides a warp, as code generators make of one behind it.
#[test]
fn a_divergent_barrier() {
    let twice = "and.b32 %r2, %r1, 1; setp.eq.u32 %p2, %r2, 0; @%p2 bra even;\n\
        st.global.u32 [%rd1], 1;\nbar.sync 0; // caught\nbra done;\n\
        even: st.global.u32 [%rd1], 2;\nbar.sync 0; // caught\ndone:";
    let once = "and.b32 %r2, %r1, 1; setp.eq.u32 %p2, %r2, 0; @%p2 bra even;\n\
        st.global.u32 [%rd1], 1; bra done;\neven: st.global.u32 [%rd1], 2;\ndone: bar.sync 0;";
    let cause = caught(&kernel(twice, ""), &Settings::default());
    assert!(matches!(cause, Cause::Diverged { .. }), "{cause}");
    passes(&kernel(once, ""), &Settings::default());
}

/// What is written while a kernel runs, it may not read by the way for what is never written, even in order.
#[test]
fn a_stale_noncoherent_load() {
    let put = "@!%p0 ret; st.global.u32 [%rd0], 77; // caught\nst.release.sys.global.u32 [%rd0+4096], 1;";
    let wait = |load: &str| {
        let wait = format!(
            "@!%p0 ret;\nwait: ld.acquire.sys.global.u32 %r2, [%rd0+4096]; setp.eq.u32 %p2, %r2, 0; @%p2 bra wait;\n\
             {load} %r3, [%rd0]; // caught\nst.global.u32 [%rd0+2048], %r3;"
        );
        kernel(&wait, put)
    };
    caught_race(&wait("ld.global.nc.u32"), &wait("ld.global.u32"), "that is coherent");
    // A fence of aliases is not for this.
    caught_race(&wait("fence.proxy.alias; ld.global.nc.u32"), &wait("ld.global.u32"), "that is coherent");
}
