//! All executions of protocol cores, within a bound.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::collections::BTreeSet;
use std::time::Duration;

use congruent_virtual_gpu::{
    Access, Backing, Explored, Launch, Machine, Program, Promises, Schedule, Segment, Settings, Space, Window,
};

const AT: u64 = 0x7000_0000;
/// Executions of one core at most.
const MOST: u64 = 20_000;

/// What blocks of one thread find, each by its own code, in all executions with so many delays: the last words of memory. A core
/// that nobody can end finds nothing.
fn found(bodies: &[&str], delays: u32, weak: bool) -> (BTreeSet<Vec<u32>>, Explored) {
    let mut text = ".version 8.8\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 at) {\n\
        .reg .b64 %a; .reg .b32 %r<10>, %c; .reg .pred %p;\nld.param.u64 %a, [at]; mov.u32 %c, %ctaid.x;\n"
        .to_owned();
    for (block, body) in bodies.iter().enumerate() {
        text += &format!("setp.ne.u32 %p, %c, {block}; @%p bra past{block};\n{body}\nret;\npast{block}:\n");
    }
    let program = Program::new(&(text + "ret;\n}\n")).unwrap();
    let settings = Settings {
        schedule: Schedule::Exhaustive(delays),
        weak: weak.then(Promises::default),
        leap: Some(Duration::ZERO),
        patience: Duration::from_millis(8),
        ..Settings::default()
    };
    let mut found = BTreeSet::new();
    let explored = Machine::explore(&settings, MOST, |machine| {
        let (memory, space) = (Segment::zeroed(64), Space::new(0));
        space.map(Window { at: AT, bytes: 64, backing: Backing::Memory(memory.clone(), 0), access: Access::ReadWrite });
        let ended = machine.launch(Launch {
            program: program.clone(),
            globals: [].into(),
            kernel: "k".to_owned(),
            space,
            pe: None,
            blocks: [bodies.len() as u32, 1, 1],
            threads: [1; 3],
            shared: 0,
            registers: 16,
            params: AT.to_le_bytes().to_vec(),
        });
        let word = |at| {
            let mut word = [0; 4];
            memory.read(at, &mut word);
            u32::from_le_bytes(word)
        };
        found.insert(if ended.is_ok() { vec![word(32), word(36)] } else { Vec::new() });
    });
    (found, explored.unwrap())
}

/// Two blocks add to a word by a load and a store, or by an atomic.
const ADDS: &str = "ld.relaxed.gpu.u32 %r0, [%a+32]; add.u32 %r0, %r0, 1; st.relaxed.gpu.u32 [%a+32], %r0;";
const ATOMIC: &str = "red.relaxed.gpu.add.u32 [%a+32], 1;";

#[test]
fn an_update_is_lost_by_one_preemption() {
    let (words, explored) = found(&[ADDS, ADDS], 0, false);
    assert_eq!((words, explored), (BTreeSet::from([vec![2, 0]]), Explored { executions: 1, is_cut: true }));
    let (words, explored) = found(&[ADDS, ADDS], 2, false);
    assert_eq!(words, BTreeSet::from([vec![1, 0], vec![2, 0]]), "{explored:?}");
    let (words, explored) = found(&[ATOMIC, ATOMIC], 9, false);
    assert_eq!(words, BTreeSet::from([vec![2, 0]]));
    assert!(explored.executions > 1 && !explored.is_cut, "{explored:?}");
}

/// Data and a flag, which the other block waits for.
const PUT: &str = "st.u32 [%a], 7; st.release.gpu.u32 [%a+8], 1;";
const WAIT: &str = "again: ld.acquire.gpu.u32 %r0, [%a+8]; setp.eq.u32 %p, %r0, 0; @%p bra again;\n\
    ld.u32 %r1, [%a]; st.u32 [%a+32], %r1;";

#[test]
fn a_signal_brings_its_data_in_every_execution() {
    let (words, explored) = found(&[PUT, WAIT], 3, true);
    assert_eq!(words, BTreeSet::from([vec![7, 0]]), "{explored:?}");
    assert!(explored.executions > 20 && explored.executions < MOST, "{explored:?}");
    for weaker in
        [(PUT.replace("release", "relaxed"), WAIT.to_owned()), (PUT.to_owned(), WAIT.replace("acquire", "relaxed"))]
    {
        let (words, explored) = found(&[&weaker.0, &weaker.1], 3, true);
        assert_eq!(words, BTreeSet::from([vec![0, 0], vec![7, 0]]), "{explored:?}");
    }
}

/// Store buffering: each says that it is there, and looks for the other.
fn meets(own: u32, other: u32, fence: &str) -> String {
    format!(
        "st.relaxed.gpu.u32 [%a+{own}], 1; {fence} ld.relaxed.gpu.u32 %r0, [%a+{other}]; st.u32 [%a+{}], %r0;",
        32 + own
    )
}

#[test]
fn one_of_two_that_meet_sees_the_other() {
    for (fence, both_miss) in [("fence.sc.gpu;", false), ("fence.acq_rel.gpu;", true)] {
        let (words, explored) = found(&[&meets(0, 4, fence), &meets(4, 0, fence)], 3, true);
        assert_eq!(words.contains(&vec![0, 0]), both_miss, "{fence} {words:?} {explored:?}");
        assert!(words.contains(&vec![1, 0]) && words.contains(&vec![0, 1]), "{fence} {words:?} {explored:?}");
    }
}

/// Two slots' worth of a credit protocol: the sender writes again only when the receiver has read.
const SEND: &str = "st.u32 [%a], 1; st.release.gpu.u32 [%a+8], 1;\n\
    credit: ld.acquire.gpu.u32 %r0, [%a+16]; setp.eq.u32 %p, %r0, 0; @%p bra credit;\n\
    st.u32 [%a], 2; st.release.gpu.u32 [%a+8], 2;";
const RECEIVE: &str = "one: ld.acquire.gpu.u32 %r0, [%a+8]; setp.lt.u32 %p, %r0, 1; @%p bra one;\n\
    ld.u32 %r1, [%a]; st.u32 [%a+32], %r1; st.release.gpu.u32 [%a+16], 1;\n\
    two: ld.acquire.gpu.u32 %r0, [%a+8]; setp.lt.u32 %p, %r0, 2; @%p bra two;\n\
    ld.u32 %r1, [%a]; st.u32 [%a+36], %r1;";

#[test]
fn a_slot_is_used_again_only_with_a_credit() {
    let (words, explored) = found(&[SEND, RECEIVE], 2, true);
    assert_eq!(words, BTreeSet::from([vec![1, 2]]), "{explored:?}");
    assert!(explored.executions > 20 && explored.executions < MOST, "{explored:?}");
    let hasty = SEND.replace("setp.eq.u32 %p, %r0, 0", "setp.eq.u32 %p, %r0, 9");
    let (words, explored) = found(&[&hasty, RECEIVE], 2, true);
    assert!(words.contains(&vec![2, 2]), "{words:?} {explored:?}");
}

#[test]
fn a_deadlock_ends_every_execution() {
    let (words, explored) = found(&[WAIT], 2, false);
    assert_eq!(words, BTreeSet::from([Vec::new()]), "{explored:?}");
}
