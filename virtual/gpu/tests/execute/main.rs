//! Small kernels: what lanes, warps and blocks do together, and what goes wrong.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking, in its helpers too")]

mod mutants;

use std::sync::Arc;
use std::time::Duration;

use congruent_virtual_gpu::{
    Access, Backing, Cause, Fault, Launch, Machine, Member, Multicast, Program, Promises, Schedule, Segment, Settings,
    Space, Window,
};

/// Where the memory of a kernel is.
const AT: u64 = 0x7000_0000;
const WORDS: usize = 1024;
/// How far from there it is found again, and as a multicast object.
const ALIAS: u64 = 0x1000_0000;
const MULTICAST: u64 = 0x2000_0000;

struct Run {
    schedule: Schedule,
    seed: u64,
    blocks: u32,
    threads: u32,
    races: bool,
    weak: Option<Promises>,
    patience: Duration,
}

/// Longer than any of these kernels takes.
const PATIENCE: Duration = Duration::from_secs(60);
const ONE_WARP: Run =
    Run { schedule: Schedule::Lockstep, seed: 0, blocks: 1, threads: 32, races: false, weak: None, patience: PATIENCE };

/// Runs a kernel whose parameter is the address of words of 32 bits; gives these.
fn run(body: &str, run: Run) -> Result<Vec<u32>, Box<Fault>> {
    run_program(program(body), run)
}

/// A kernel with some registers that know its thread, its block and where its words are. Functions come before `===`.
fn program(body: &str) -> Arc<Program> {
    let (functions, body) = body.split_once("===").unwrap_or(("", body));
    let text = format!(
        ".version 8.4\n.target sm_90\n.address_size 64\n{functions}\n.visible .entry k(.param .u64 at) {{\n\
         .reg .b64 %rd<20>; .reg .b32 %r<20>; .reg .pred %p<10>;\n\
         ld.param.u64 %rd0, [at];\nmov.u32 %r0, %tid.x;\nmov.u32 %r9, %ctaid.x;\n\
         mul.wide.u32 %rd1, %r0, 4;\nadd.s64 %rd1, %rd0, %rd1;\n{body}\n}}"
    );
    Program::new(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn run_program(program: Arc<Program>, run: Run) -> Result<Vec<u32>, Box<Fault>> {
    run_streams(vec![vec![program]], run)
}

/// Runs kernels of several streams.
fn run_streams(streams: Vec<Vec<Arc<Program>>>, run: Run) -> Result<Vec<u32>, Box<Fault>> {
    run_on(&Segment::zeroed(4 * WORDS as u64), streams, run)
}

fn run_on(memory: &Arc<Segment>, streams: Vec<Vec<Arc<Program>>>, run: Run) -> Result<Vec<u32>, Box<Fault>> {
    let space = Space::new(0);
    let (bytes, access) = (memory.bytes(), Access::ReadWrite);
    let backing = Backing::Memory(memory.clone(), 0);
    space.map(Window { at: AT, bytes, backing: backing.clone(), access });
    space.map(Window { at: AT + ALIAS, bytes, backing, access });
    // Two halves of the memory stand for that of two devices.
    let both = Multicast::new(2, ());
    for device in [0, 1] {
        let from = u64::from(device) * bytes / 2;
        both.bind(Member { process: 0, device, at: 0, bytes: bytes / 2, memory: memory.clone(), from });
    }
    space.map(Window { at: AT + MULTICAST, bytes: bytes / 2, backing: Backing::Multicast(both), access });
    let Run { schedule, seed, races, weak, patience, .. } = run;
    let machine =
        Machine::new(Settings { schedule, seed, races, weak, patience, budget: 1 << 20, ..Settings::default() })
            .unwrap();
    let launch = |program| Launch {
        program,
        globals: Arc::new([]),
        kernel: "k".to_owned(),
        space: space.clone(),
        pe: None,
        blocks: [run.blocks, 1, 1],
        threads: [run.threads, 1, 1],
        shared: 0,
        registers: 32,
        params: AT.to_le_bytes().to_vec(),
    };
    machine.launch_all(streams.into_iter().map(|stream| stream.into_iter().map(launch).collect()).collect())?;
    let mut bytes = vec![0; 4 * WORDS];
    memory.read(0, &mut bytes);
    Ok(bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect())
}

/// Runs it in order and in twenty random orders; the result has to be the same.
fn in_every_order(body: &str, blocks: u32, threads: u32) -> Vec<u32> {
    let in_order = run(body, Run { blocks, threads, ..ONE_WARP }).unwrap();
    for schedule in [Schedule::Random, Schedule::Priorities, Schedule::Behind(0)] {
        for seed in 0..20 {
            let by_chance = run(body, Run { schedule, seed, blocks, threads, races: true, ..ONE_WARP }).unwrap();
            assert_eq!(by_chance, in_order, "{schedule:?}, seed {seed}");
        }
    }
    in_order
}

fn cause(body: &str, threads: u32) -> Cause {
    run(body, Run { threads, ..ONE_WARP }).expect_err("it goes wrong").cause
}

#[test]
fn lanes_take_their_own_ways_and_meet_again() {
    // Collatz steps: every lane leaves the loop at another time.
    let body = "add.s32 %r1, %r0, 1; mov.u32 %r2, 0;\n\
        loop: setp.eq.u32 %p1, %r1, 1; @%p1 bra done;\n\
        add.s32 %r2, %r2, 1; and.b32 %r3, %r1, 1; setp.eq.u32 %p2, %r3, 0; @%p2 bra even;\n\
        mad.lo.s32 %r1, %r1, 3, 1; bra.uni loop;\n\
        even: shr.u32 %r1, %r1, 1; bra.uni loop;\n\
        done: activemask.b32 %r4; bar.sync 0; st.global.u32 [%rd1], %r2; ret;";
    let steps = |mut n: u32| {
        let mut steps = 0;
        while n != 1 {
            n = if n.is_multiple_of(2) { n / 2 } else { 3 * n + 1 };
            steps += 1;
        }
        steps
    };
    let expected: Vec<u32> = (1..=32).map(steps).collect();
    assert_eq!(run(body, ONE_WARP).unwrap()[..32], expected[..]);
}

#[test]
fn a_block_reverses_through_shared_memory() {
    let body = ".shared .align 4 .b8 pool[4096];===\n\
        mov.u32 %r1, pool; mad.lo.s32 %r2, %r0, 4, %r1; st.shared.u32 [%r2], %r0;\n\
        bar.sync 0;\n\
        mov.u32 %r3, %ntid.x; sub.s32 %r3, %r3, %r0; add.s32 %r3, %r3, -1;\n\
        mad.lo.s32 %r3, %r3, 4, %r1; ld.shared.u32 %r4, [%r3]; st.global.u32 [%rd1], %r4; ret;";
    let reversed = in_every_order(body, 1, 200);
    assert_eq!(reversed[..200], (0..200).rev().collect::<Vec<u32>>()[..]);
}

#[test]
fn lanes_exchange_values() {
    let body = "shfl.sync.bfly.b32 %r1|%p1, %r0, 1, 31, -1;\n\
        shfl.sync.up.b32 %r2, %r0, 2, 0, -1; mad.lo.s32 %r1, %r2, 100, %r1;\n\
        setp.lt.u32 %p2, %r0, 5; vote.sync.ballot.b32 %r3, %p2, -1; mad.lo.s32 %r1, %r3, 10000, %r1;\n\
        st.global.u32 [%rd1], %r1; ret;";
    let expected: Vec<u32> =
        (0..32).map(|lane| (lane ^ 1) + 100 * if lane < 2 { lane } else { lane - 2 } + 10000 * 31).collect();
    assert_eq!(in_every_order(body, 1, 32)[..32], expected[..]);
}

#[test]
fn halves_are_compared_two_at_a_time() {
    // Of 1 and -1 the second is less than 0.
    let body = "mov.b32 %r1, 0xbc003c00; mov.b32 %r2, 0; set.lt.f16x2.f16x2 %r3, %r1, %r2; set.gt.u32.f16x2 %r4, %r1, %r2;\n\
        add.s32 %r3, %r3, %r4; st.global.u32 [%rd1], %r3; ret;";
    assert_eq!(run(body, ONE_WARP).unwrap()[0], 0x3c00_0000 + 0xffff);
}

#[test]
fn a_function_is_called_by_some_lanes_recursively() {
    let body = ".func (.param .b32 out) sum(.param .b32 n) {\n\
        .reg .b32 %r<5>; .reg .pred %p<2>; .local .align 4 .b8 keep[4];\n\
        ld.param.b32 %r1, [n]; st.local.u32 [keep], %r1; setp.eq.u32 %p1, %r1, 0; mov.u32 %r2, 0; @%p1 bra end;\n\
        add.s32 %r3, %r1, -1;\n\
        { .param .b32 a; .param .b32 b; st.param.b32 [a], %r3; call.uni (b), sum, (a); ld.param.b32 %r4, [b]; }\n\
        ld.local.u32 %r1, [keep]; add.s32 %r2, %r1, %r4;\n\
        end: st.param.b32 [out], %r2; ret; }===\n\
        setp.gt.u32 %p1, %r0, 20; @%p1 ret;\n\
        { .param .b32 a; .param .b32 b; st.param.b32 [a], %r0; call.uni (b), sum, (a); ld.param.b32 %r2, [b]; }\n\
        st.global.u32 [%rd1], %r2; ret;";
    let expected: Vec<u32> = (0..32).map(|lane| if lane > 20 { 0 } else { lane * (lane + 1) / 2 }).collect();
    assert_eq!(in_every_order(body, 1, 32)[..32], expected[..]);
}

#[test]
fn a_block_waits_for_a_word_of_another() {
    // The first block is placed first, and waits for the second one.
    let body = "setp.ne.u32 %p1, %r9, 0; @%p1 bra give;\n\
        wait: ld.acquire.gpu.global.u32 %r1, [%rd0+2048]; setp.eq.u32 %p2, %r1, 0; @%p2 bra wait;\n\
        ld.global.u32 %r2, [%rd0+2052]; st.global.u32 [%rd1], %r2; ret;\n\
        give: setp.ne.u32 %p3, %r0, 0; @%p3 ret; st.global.u32 [%rd0+2052], 77;\n\
        st.release.gpu.global.u32 [%rd0+2048], 1; ret;";
    assert_eq!(in_every_order(body, 2, 64)[..64], [77; 64]);
}

#[test]
fn atomics_count_every_lane() {
    let body = "atom.relaxed.gpu.global.add.u32 %r1, [%rd0], 1; red.relaxed.gpu.global.max.u32 [%rd0+4], %r0;\n\
        retry: ld.relaxed.gpu.global.u32 %r2, [%rd0+8]; add.s32 %r3, %r2, 2;\n\
        atom.relaxed.gpu.global.cas.b32 %r4, [%rd0+8], %r2, %r3; setp.ne.u32 %p1, %r4, %r2; @%p1 bra retry; ret;";
    assert_eq!(in_every_order(body, 3, 100)[..3], [300, 99, 600]);
}

#[test]
fn what_goes_wrong_says_where() {
    let fault = run("ld.global.u32 %r1, [%rd0+4096];\nret;", ONE_WARP).expect_err("it is outside");
    assert_eq!((fault.cause, fault.line, fault.lanes), (Cause::Unmapped { at: AT + 4096, bytes: 4 }, 12, u32::MAX));
    assert_eq!(fault.instruction, "ld.global.u32 %r1, [%rd0+4096];");
    assert_eq!(cause("ld.global.u32 %r1, [%rd0+2]; ret;", 32), Cause::Misaligned { at: AT + 2, bytes: 4 });
    assert_eq!(cause("mov.u32 %r1, 64; st.shared.u32 [%r1], 0; ret;", 32), Cause::Shared { at: 64, bytes: 4, have: 0 });
    assert_eq!(cause("trap;", 32), Cause::Trap);
    assert_eq!(cause("st.param.u64 [at], %rd0; ret;", 32), Cause::Param { at: 0, bytes: 8, have: 8 });
}

#[test]
fn lanes_wait_for_their_warp_at_an_aligned_barrier() {
    // Odd lanes take a longer way; the barrier behind is the same for all.
    let body = "and.b32 %r1, %r0, 1; setp.eq.u32 %p1, %r1, 0; @%p1 bra meet;\n\
        mov.u32 %r2, 0; more: add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, %r0; @%p2 bra more;\n\
        meet: bar.sync 0; red.relaxed.gpu.global.add.u32 [%rd0], 1; bar.red.popc.u32 %r3, 0, %p1; bar.sync 0;\n\
        setp.ne.u32 %p3, %r0, 0; @%p3 bra done; st.global.u32 [%rd0+4], %r3; done: ret;";
    assert_eq!(in_every_order(body, 1, 96)[..2], [96, 48]);
}

#[test]
fn barriers_that_not_all_reach_are_found() {
    let diverged = cause("setp.lt.u32 %p1, %r0, 7; @%p1 bra one; bar.sync 0; ret; one: bar.sync 0; ret;", 32);
    assert!(matches!(diverged, Cause::Diverged { whole: u32::MAX, .. }), "{diverged:?}");
    let other = cause("setp.lt.u32 %p1, %r0, 32; @%p1 bra one; bar.sync 1; ret; one: bar.sync 2; ret;", 64);
    assert!(matches!(&other, Cause::StoodStill { waiting } if waiting.contains("barrier 2")), "{other:?}");
    let outside = cause("shfl.sync.idx.b32 %r1, %r0, 0, 31, 1; ret;", 32);
    assert_eq!(outside, Cause::OutsideMask { what: "shfl.sync.idx.b32".to_owned(), lane: 1, mask: 1 });
}

#[test]
fn what_is_not_executed_is_refused_when_it_is_loaded() {
    let refused = |body: &str| {
        let text = format!(".version 8.0\n.target sm_90\n.entry k() {{ .reg .b64 %rd<3>; .reg .b32 %r<3>;\n{body}\n}}");
        Program::new(&text).err().expect("it is not executed").to_string()
    };
    assert!(refused("frobnicate;").starts_with("line 4: unknown instruction `frobnicate`"));
    assert!(
        refused("cp.async.bulk.commit_group;").starts_with("line 4: `cp.async.bulk.commit_group`: asynchronous bulk")
    );
    assert_eq!(refused("mov.u64 %rd1, nothing;"), "line 4: `mov.u64`: `nothing` is not defined here");
    let behind = refused(".param .b32 one; ld.param.b64 %rd1, [one];");
    assert_eq!(behind, "line 4: `ld.param.b64`: it is outside the 4 bytes of `one`");
}

/// The race that is found in one of twenty orders at the latest.
fn race(body: &str, blocks: u32, threads: u32) -> Option<Cause> {
    let orders = (0..20).map(|seed| Run {
        schedule: Schedule::Random,
        seed,
        blocks,
        threads,
        races: true,
        weak: None,
        patience: PATIENCE,
    });
    orders.map(|order| run(body, order)).find_map(|outcome| outcome.err().map(|fault| fault.cause))
}

fn assert_race(body: &str, blocks: u32, threads: u32, instruction: &str) {
    let found = race(body, blocks, threads);
    let Some(Cause::Race { parties, .. }) = &found else { panic!("{found:?} for {body}") };
    assert!(parties.iter().any(|party| party.instruction.contains(instruction)), "{found:?}");
}

/// A lane of one block writes a datum and a flag, one of another waits for the flag and reads the datum.
fn passed(write: &str, read: &str) -> String {
    format!(
        "setp.ne.u32 %p3, %r0, 0; @%p3 ret; setp.ne.u32 %p1, %r9, 0; @%p1 bra give;\n\
         wait: {read} setp.eq.u32 %p2, %r1, 0; @%p2 bra wait;\n\
         ld.global.u32 %r2, [%rd0+2052]; st.global.u32 [%rd1], %r2; ret;\n\
         give: st.global.u32 [%rd0+2052], 77; {write} ret;"
    )
}

#[test]
fn what_orders_two_blocks_and_what_does_not() {
    let release = "st.release.gpu.global.u32 [%rd0+2048], 1;";
    let acquire = "ld.acquire.gpu.global.u32 %r1, [%rd0+2048];";
    let relaxed = "ld.relaxed.sys.global.u32 %r1, [%rd0+2048];";
    let datum = "st.global.u32 [%rd0+2052], 77;";
    assert_eq!(race(&passed(release, acquire), 2, 32), None);
    assert_eq!(race(&passed("fence.acq_rel.gpu; st.relaxed.gpu.global.u32 [%rd0+2048], 1;", acquire), 2, 32), None);
    assert_eq!(race(&passed(release, &format!("{relaxed} fence.acq_rel.gpu;")), 2, 32), None);
    assert_eq!(race(&passed("red.release.gpu.global.add.u32 [%rd0+2048], 1;", acquire), 2, 32), None);
    // One side does not order.
    assert_race(&passed("st.relaxed.gpu.global.u32 [%rd0+2048], 1;", acquire), 2, 32, datum);
    assert_race(&passed(release, relaxed), 2, 32, datum);
    // The scope leaves the other block out.
    assert_race(&passed("st.release.cta.global.u32 [%rd0+2048], 1;", acquire), 2, 32, "2048]");
    assert_race(&passed("fence.acq_rel.cta; st.relaxed.gpu.global.u32 [%rd0+2048], 1;", acquire), 2, 32, datum);
    assert_race(&passed(release, &format!("{relaxed} fence.acq_rel.cta;")), 2, 32, datum);
    // The flag itself is a plain word.
    assert_race(&passed("st.global.u32 [%rd0+2048], 1;", acquire), 2, 32, "st.global.u32 [%rd0+2048], 1;");
}

/// A kernel that another one of its stream comes after hands on what it has seen of one that goes on.
#[test]
fn what_a_kernel_knows_the_next_one_of_its_stream_knows() {
    let wait =
        |word: u32| format!("w: ld.acquire.gpu.global.u32 %r1, [%rd0+{word}]; setp.eq.u32 %p1, %r1, 0; @%p1 bra w;");
    let give = format!("st.global.u32 [%rd0+4], 77; st.release.gpu.global.u32 [%rd0+8], 1; {} ret;", wait(12));
    let read =
        "ld.global.u32 %r2, [%rd0+4]; st.global.u32 [%rd0+16], %r2; st.release.gpu.global.u32 [%rd0+12], 1; ret;";
    for schedule in [Schedule::Lockstep, Schedule::Random, Schedule::Priorities] {
        for seed in 0..20 {
            let run = || Run { schedule, seed, threads: 1, races: true, weak: Some(Promises::default()), ..ONE_WARP };
            let streams = |before: &str| vec![vec![program(before), program(read)], vec![program(&give)]];
            let words = run_streams(streams(&format!("{} ret;", wait(8))), run()).unwrap();
            assert_eq!(words[4], 77, "{schedule:?}, seed {seed}");
        }
    }
}

/// What a kernel says is ordered behind the one before it in its stream, for kernels that began while that one went on too; that
/// another one has ended orders nothing.
#[test]
fn what_is_said_after_a_kernel_is_said_of_it() {
    let write = "mov.u32 %r2, 0; l: add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 600; @%p1 bra l; st.global.u32 [%rd0+4], 77; ret;";
    let wait = |load: &str| format!("w: ld.{load}.gpu.global.u32 %r1, [%rd0+8]; setp.eq.u32 %p1, %r1, 0; @%p1 bra w;");
    let read = "ld.global.u32 %r2, [%rd0+4]; st.global.u32 [%rd0+16], %r2; ret;";
    let say = |store: &str| vec![program(write), program(&format!("st.{store}.gpu.global.u32 [%rd0+8], 1; ret;"))];
    for schedule in [Schedule::Lockstep, Schedule::Random, Schedule::Priorities] {
        for seed in 0..20 {
            let run = || Run { schedule, seed, threads: 1, races: true, weak: Some(Promises::default()), ..ONE_WARP };
            let heard = vec![program(&format!("{} {read}", wait("acquire")))];
            let words = run_streams(vec![say("release"), heard], run()).unwrap();
            assert_eq!(words[4], 77, "{schedule:?}, seed {seed}");
            let overheard = vec![program(&format!("{} ret;", wait("relaxed"))), program(read)];
            let fault = run_streams(vec![say("relaxed"), overheard], run()).expect_err("nothing orders it");
            assert!(matches!(fault.cause, Cause::Race { .. }), "{schedule:?}, seed {seed}: {fault}");
        }
    }
}

/// Of reads that kernels of a stream make one after the other the last is remembered, but a weak one beside a strong one.
#[test]
fn reads_of_ended_kernels_race_with_a_later_write() {
    let [read, strong] = ["ld.global.u32", "ld.relaxed.gpu.global.u32"].map(|load| format!("{load} %r2, [%rd0+4];"));
    let first = |body: &str| format!("setp.ne.u32 %p2, %r0, 0; @%p2 bra e; {body} e: ret;");
    let write = |load: &str| {
        format!(
            "w: ld.{load}.gpu.global.u32 %r1, [%rd0+8]; setp.eq.u32 %p1, %r1, 0; @%p1 bra w; st.relaxed.gpu.global.u32 [%rd0+4], 77;"
        )
    };
    let say = |store: &str| first(&format!("st.{store}.gpu.global.u32 [%rd0+8], 1;"));
    let streams = |reads: [&str; 2], [store, load]: [&str; 2]| {
        let ended = reads.iter().take(1).map(|read| program(&format!("{read} ret;")));
        let reads = ended.chain([program(&format!("{} {}", reads[1], say(store)))]);
        vec![reads.collect(), vec![program(&first(&write(load)))]]
    };
    for seed in 0..20 {
        let run = || Run { schedule: Schedule::Random, seed, threads: 32, races: true, ..ONE_WARP };
        let ordered = streams([&read, &read], ["release", "acquire"]);
        // Of the block of the last kernel only one lane says that it has read.
        let fault = run_streams(ordered, run()).expect_err("nothing orders the reads of the other lanes");
        assert!(matches!(fault.cause, Cause::Race { .. }), "{fault}");
        for reads in [[&*read, &*read], [&*read, &*strong]] {
            let fault = run_streams(streams(reads, ["relaxed", "relaxed"]), run()).expect_err("nothing orders it");
            let Cause::Race { parties, .. } = &fault.cause else { panic!("{fault}") };
            assert_eq!(parties[0].instruction.trim(), read, "{fault}");
        }
        let words = run_streams(streams([&strong, &strong], ["relaxed", "relaxed"]), run()).unwrap();
        assert_eq!(words[1], 77);
        let words = run_streams(streams([&read, &strong], ["release", "acquire"]), run()).unwrap();
        assert_eq!(words[1], 77);
    }
}

#[test]
fn shared_memory_is_ordered_by_barriers() {
    let body = |first: &str, second: &str| {
        format!(
            ".shared .align 4 .b8 pool[1024];===\n\
             mov.u32 %r1, pool; mad.lo.s32 %r2, %r0, 4, %r1; xor.b32 %r3, %r0, 33; mad.lo.s32 %r3, %r3, 4, %r1;\n\
             st.shared.u32 [%r2], %r0; {first} ld.shared.u32 %r4, [%r3]; {second} st.shared.u32 [%r2], %r4; ret;"
        )
    };
    assert_eq!(race(&body("bar.sync 0;", "bar.sync 0;"), 1, 64), None);
    // The bank is written again before all have read it.
    assert_race(&body("bar.sync 0;", ""), 1, 64, "st.shared.u32 [%r2], %r4;");
    let missing = race(&body("", "bar.sync 0;"), 1, 64);
    assert!(matches!(missing, Some(Cause::Race { .. } | Cause::Unwritten { .. })), "{missing:?}");
    // A barrier of the warp orders its lanes, and not those of the other warp.
    assert_race(&body("bar.warp.sync -1; bar.sync 0;", "bar.warp.sync -1;"), 1, 64, "st.shared.u32 [%r2], %r4;");
}

#[test]
fn memory_that_nobody_wrote_is_read() {
    let body = ".shared .align 4 .b8 pool[1024];===\nmov.u32 %r1, pool; ld.shared.u32 %r2, [%r1+8]; ret;";
    assert_eq!(race(body, 1, 1), Some(Cause::Unwritten { at: 8, bytes: 4 }));
    let body =
        ".local .align 8 .b8 own[16]; st.local.u32 [own], 1; ld.local.u64 %rd2, [own]; ld.local.u32 %r2, [own+4]; ret;";
    assert_eq!(race(body, 1, 1), Some(Cause::Unwritten { at: 4, bytes: 4 }));
}

/// What an earlier call left at its place is nobody's.
#[test]
fn variables_of_a_call_are_written_anew() {
    let body = |second: u32| {
        format!(
            ".func f(.param .b32 n) {{\n\
             .reg .b32 %r<3>; .reg .pred %p<2>; .local .align 4 .b8 keep[4];\n\
             ld.param.b32 %r1, [n]; setp.eq.u32 %p1, %r1, 0; @%p1 bra read; st.local.u32 [keep], %r1;\n\
             read: ld.local.u32 %r2, [keep]; ret; }}===\n\
             {{ .param .b32 a; st.param.b32 [a], 1; call.uni f, (a); }}\n\
             {{ .param .b32 a; st.param.b32 [a], {second}; call.uni f, (a); }}\n\
             ret;"
        )
    };
    assert_eq!(race(&body(1), 1, 32), None);
    assert_eq!(race(&body(0), 1, 32), Some(Cause::Unwritten { at: 0, bytes: 4 }));
}

/// Of memory that holds nothing at first, what the host or a kernel wrote is read.
#[test]
fn what_the_host_writes_is_written() {
    let words = |host: &[(u64, u64)], body: &str| {
        let memory = Segment::zeroed(4096);
        memory.begin_unwritten();
        host.iter().for_each(|&(at, bytes)| memory.host_wrote(at, bytes));
        let run = Run { races: true, threads: 1, ..ONE_WARP };
        run_on(&memory, vec![vec![program(body)]], run).map_err(|fault| (fault.cause, fault.line))
    };
    let read = "ld.global.u32 %r1, [%rd0+8]; st.global.u32 [%rd0], %r1; ld.global.u32 %r1, [%rd0];\n\
        ld.global.v2.u32 {%r1, %r2}, [%rd0+16]; ret;";
    let unwritten = |at, bytes, line| Some((Cause::Unwritten { at, bytes }, line));
    assert_eq!(words(&[], read).err(), unwritten(8, 4, 12));
    assert_eq!(words(&[(9, 3)], read).err(), unwritten(8, 4, 12));
    assert_eq!(words(&[(8, 4), (0, 4), (16, 4), (4, 5)], read).err(), unwritten(20, 4, 13));
    assert_eq!(words(&[(10, 2), (8, 2), (12, 12)], read).err(), None);
    assert_eq!(words(&[], "atom.global.add.u32 %r1, [%rd0], 1; ret;").err(), unwritten(0, 4, 12));
}

/// In how many of two hundred orders, with loads that may be stale, a kernel leaves a word that is not `expected`.
fn surprises(body: &str, promises: Promises, expected: impl Fn(&[u32]) -> bool) -> usize {
    let order = |seed| Run {
        schedule: Schedule::Random,
        seed,
        blocks: 2,
        threads: 32,
        races: false,
        weak: Some(promises),
        patience: PATIENCE,
    };
    let outcomes = (0..200).map(|seed| run(body, order(seed)).unwrap());
    outcomes.filter(|words| !expected(words)).count()
}

#[test]
fn loads_are_stale_where_nothing_orders_them() {
    let release = "st.release.gpu.global.u32 [%rd0+2048], 1;";
    let acquire = "ld.acquire.gpu.global.u32 %r1, [%rd0+2048];";
    let relaxed = "ld.relaxed.gpu.global.u32 %r1, [%rd0+2048];";
    let stale = |write: &str, read: &str| surprises(&passed(write, read), Promises::default(), |words| words[0] == 77);
    assert_eq!(stale(release, acquire), 0);
    assert_eq!(stale(release, &format!("{relaxed} fence.acq_rel.gpu;")), 0);
    assert!(stale(release, relaxed) > 0);
    assert!(stale("st.relaxed.gpu.global.u32 [%rd0+2048], 1;", acquire) > 0);
    assert!(stale("st.release.cta.global.u32 [%rd0+2048], 1;", acquire) > 0);
}

#[test]
fn store_buffering_needs_sequential_consistency() {
    let body = |fence: &str| {
        format!(
            "setp.ne.u32 %p3, %r0, 0; @%p3 ret; mul.wide.u32 %rd3, %r9, 4; add.s64 %rd3, %rd0, %rd3;\n\
             sub.s32 %r1, 1, %r9; mul.wide.u32 %rd4, %r1, 4; add.s64 %rd4, %rd0, %rd4;\n\
             st.relaxed.gpu.global.u32 [%rd3+256], 1; {fence} ld.relaxed.gpu.global.u32 %r2, [%rd4+256];\n\
             st.global.u32 [%rd3], %r2; ret;"
        )
    };
    let seen = |words: &[u32]| words[0] + words[1] > 0;
    assert!(surprises(&body("fence.acq_rel.gpu;"), Promises::default(), seen) > 0);
    assert_eq!(surprises(&body("fence.sc.gpu;"), Promises::default(), seen), 0);
}

#[test]
fn a_vector_is_no_atom_unless_hardware_promises_it() {
    // Data and flag in 16 bytes: a reader that sees the flag may see old data beside it.
    let body = "setp.ne.u32 %p3, %r0, 0; @%p3 ret; setp.ne.u32 %p1, %r9, 0; mov.u64 %rd5, 77; mov.u64 %rd6, 1; @%p1 bra give;\n\
        wait: ld.relaxed.sys.global.v2.b64 {%rd7, %rd8}, [%rd0+2048]; setp.eq.u64 %p2, %rd8, 0; @%p2 bra wait;\n\
        st.global.u64 [%rd0], %rd7; ret;\n\
        give: st.relaxed.sys.global.v2.b64 [%rd0+2048], {%rd5, %rd6}; ret;";
    let whole = |words: &[u32]| words[0] == 77;
    assert!(surprises(body, Promises::default(), whole) > 0);
    let promises = Promises { v4_16b_atomic: true, ..Promises::default() };
    assert_eq!(surprises(body, promises, whole), 0);
}

#[test]
fn kernels_that_do_not_end_are_ended() {
    let wait = "wait: ld.acquire.gpu.global.u32 %r1, [%rd0+64]; setp.eq.u32 %p2, %r1, 0; @%p2 bra wait; ret;";
    let impatient = || Run { patience: Duration::from_millis(50), ..ONE_WARP };
    let deadlock = run(wait, impatient()).expect_err("nobody writes it").cause;
    let Cause::Deadlock { waiting, .. } = &deadlock else { panic!("{deadlock}") };
    assert!(waiting.contains("for the word at 0x70000040 to change in line 12: ld.acquire"), "{waiting}");
    // A loop that looks at words of several values by one instruction, and reads what nobody writes, waits too.
    let several = ".shared .align 4 .b8 pool[4];===\n\
        mov.u32 %r2, 7; st.shared.u32 [pool], %r2; st.global.u32 [%rd0+4], %r2;\n\
        again: mov.u32 %r3, 0;\n\
        next: mul.wide.u32 %rd2, %r3, 4; add.s64 %rd2, %rd0, %rd2; ld.shared.u32 %r4, [pool];\n\
        ld.acquire.gpu.global.u32 %r1, [%rd2]; setp.eq.u32 %p1, %r1, 1; @%p1 bra done;\n\
        add.s32 %r3, %r3, 1; setp.lt.u32 %p1, %r3, 2; @%p1 bra next; bra again;\n\
        done: ret;";
    let deadlock = run(several, impatient()).expect_err("nobody writes them").cause;
    assert!(matches!(deadlock, Cause::Deadlock { .. }), "{deadlock}");
    // A multiprocessor of sixteen has room for two of these blocks, and the last one would write the word.
    let crowd = format!(
        "mov.u32 %r2, %nctaid.x; sub.s32 %r2, %r2, 1; setp.eq.u32 %p1, %r9, %r2; @%p1 st.global.u32 [%rd0+64], 1; {wait}"
    );
    // Each look of its thousand warps uses up some of the instructions that they may execute.
    let impatient = Run { patience: Duration::from_millis(2), blocks: 33, threads: 1024, ..ONE_WARP };
    assert_eq!(run(&crowd, impatient).expect_err("it has no room").cause, Cause::NoRoom { resident: 32, pending: 1 });
    let endless = run("mov.u32 %r1, 0;\nmore: add.s32 %r1, %r1, 1; bra more;", ONE_WARP).expect_err("it has no end");
    assert!(matches!(endless.cause, Cause::Endless { .. }) && endless.line == 13, "{endless}");
}

#[test]
fn another_address_needs_a_fence() {
    let passed = |write: &str, read: &str| {
        format!(
            "setp.ne.u32 %p3, %r0, 0; @%p3 ret; setp.ne.u32 %p1, %r9, 0; @%p1 bra give;\n\
             wait: ld.acquire.gpu.global.u32 %r1, [%rd0+2048]; setp.eq.u32 %p2, %r1, 0; @%p2 bra wait; {read}\n\
             ld.global.u32 %r2, [%rd0+0x10000804]; st.global.u32 [%rd0], %r2; ret;\n\
             give: st.global.u32 [%rd0+2052], 77; {write} ret;"
        )
    };
    let (release, fence) = ("st.release.gpu.global.u32 [%rd0+2048], 1;", "fence.proxy.alias;");
    assert_race(&passed(release, ""), 2, 32, "0x10000804]");
    assert_eq!(race(&passed(&format!("{fence} {release}"), ""), 2, 32), None);
    assert_eq!(race(&passed(release, fence), 2, 32), None);
    // The flag is out before the fence.
    assert_race(&passed(&format!("{release} {fence}"), ""), 2, 32, "0x10000804]");
}

#[test]
fn multimem_reaches_all_members() {
    let body = "setp.ne.u32 %p1, %r0, 0; @%p1 ret;\n\
        multimem.st.relaxed.sys.global.u32 [%rd0+0x20000000], 5; multimem.red.relaxed.sys.global.add.u32 [%rd0+0x20000000], 2;\n\
        fence.proxy.alias; st.global.u32 [%rd0+4], 30; st.global.u32 [%rd0+2052], 12; fence.proxy.alias;\n\
        multimem.ld_reduce.relaxed.sys.global.add.u32 %r1, [%rd0+0x20000004]; st.global.u32 [%rd0+8], %r1; ret;";
    let words = in_every_order(body, 1, 32);
    assert_eq!((words[0], words[512], words[2]), (7, 7, 42));
    assert_race(&body.replace("fence.proxy.alias;", ""), 1, 32, "multimem.ld_reduce");
    let plain = cause("ld.global.u32 %r1, [%rd0+0x20000000]; ret;", 32);
    assert_eq!(plain, Cause::PlainMulticast { at: AT + MULTICAST });
    assert_eq!(cause("multimem.st.global.u32 [%rd0], 1; ret;", 32), Cause::NoMulticast { at: AT });
}

#[test]
fn a_line_is_no_atom_unless_hardware_promises_it() {
    // Lines of eight lanes by 16 bytes, whose last lane has the flag beside its datum.
    let body = "mul.wide.u32 %rd2, %r0, 16; add.s64 %rd2, %rd0, %rd2; cvt.u64.u32 %rd5, %r0; add.s64 %rd5, %rd5, 7000; mov.u64 %rd6, 1;\n\
        setp.ne.u32 %p1, %r9, 0; @%p1 bra give; and.b32 %r3, %r0, 7; setp.eq.u32 %p4, %r3, 7;\n\
        wait: ld.relaxed.sys.global.v2.b64 {%rd7, %rd8}, [%rd2+2048]; setp.eq.and.u64 %p2, %rd8, 0, %p4;\n\
        vote.sync.any.pred %p3, %p2, -1; @%p3 bra wait; cvt.u32.u64 %r4, %rd7; st.global.u32 [%rd1], %r4; ret;\n\
        give: st.relaxed.sys.global.v2.b64 [%rd2+2048], {%rd5, %rd6}; ret;";
    let whole = |words: &[u32]| words[..32].iter().copied().eq(7000..7032);
    assert!(surprises(body, Promises::default(), whole) > 0);
    assert!(surprises(body, Promises { v4_16b_atomic: true, ..Promises::default() }, whole) > 0);
    let promises = Promises { v4_16b_atomic: true, ll128_128b_ordered: true };
    assert_eq!(surprises(body, promises, whole), 0);
    // Each lane acquires the flag, and then looks at its datum.
    let reader = "and.b64 %rd9, %rd2, -128; wait: ld.acquire.sys.global.b64 %rd8, [%rd9+2168]; setp.eq.u64 %p3, %rd8, 0;\n\
        @%p3 bra wait; ld.relaxed.sys.global.b64 %rd7, [%rd2+2048];";
    let (before, after) = (body.find("wait:").unwrap(), body.find("cvt.u32.u64 %r4").unwrap());
    let acquiring = [&body[..before], reader, &body[after..]].concat();
    assert!(surprises(&acquiring, Promises::default(), whole) > 0);
    assert_eq!(surprises(&acquiring, promises, whole), 0);
}

#[test]
fn lanes_that_call_a_function_apart_meet_in_it() {
    let body = ".func f(.param .b64 at) {\n.reg .b64 %rd<1>; .reg .b32 %r<1>; ld.param.u64 %rd0, [at];\n\
        bar.warp.sync -1; activemask.b32 %r0; st.global.u32 [%rd0], %r0; ret; }===\n\
        and.b32 %r1, %r0, 3;\n\
        later: setp.eq.u32 %p1, %r1, 0; @%p1 bra call; sub.u32 %r1, %r1, 1; bra.uni later;\n\
        call: { .param .b64 a; st.param.b64 [a], %rd1; call.uni f, (a); } ret;";
    for seed in 0..20 {
        let words = run(body, Run { schedule: Schedule::Random, seed, ..ONE_WARP }).unwrap();
        assert_eq!(words[..32], [u32::MAX; 32], "seed {seed}");
    }
}

#[test]
fn a_call_with_other_parameters_is_an_error() {
    let call = |there: &str, here: &str| {
        format!(
            ".func f(.param .b{there} n) {{ ret; }}===\n\
             mov.b64 {{%rd2}}, %rd1; {{ .param .b{here} a; st.param.b{here} [a], 1; call.uni f, (a); }} ret;"
        )
    };
    assert!(run(&call("64", "64"), ONE_WARP).is_ok());
    let wrong = cause(&call("64", "32"), 32);
    assert!(matches!(wrong, Cause::NoFunction { .. }), "{wrong}");
}
