//! What a machine counts of its launches, on a kernel whose instructions can be counted by hand.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use congruent_virtual_gpu::{Launch, Machine, Program, Settings, Space};

/// Each warp adds four times, of which the odd lanes do the last one alone; then the block meets and the device is fenced.
const KERNEL: &str = ".version 8.4\n.target sm_90\n.address_size 64\n.file 1 \"src/count.rs\"\n\
    .visible .entry count() {\n\
        .reg .b32 %r<3>; .reg .pred %p, %q;\n\
        .loc 1 10 0\n\
        mov.u32 %r0, 0; mov.u32 %r1, %tid.x; and.b32 %r1, %r1, 1; setp.eq.u32 %q, %r1, 0;\n\
        .loc 1 11 0\n\
    again: add.u32 %r0, %r0, 1; setp.lt.u32 %p, %r0, 3; @%p bra again;\n\
        .loc 1 12 0\n\
        @%q bra even;\n\
        .loc 1 13 0\n\
        add.u32 %r0, %r0, 1;\n\
    even:\n\
        .loc 1 14 0\n\
        bar.sync 0; fence.acq_rel.gpu; ret;\n}\n";

#[test]
fn every_instruction_is_counted_once() {
    let path = std::env::temp_dir().join(format!("congruent-profile-{}", std::process::id()));
    let machine = Machine::new(Settings { profile: Some(path.clone()), ..Settings::default() }).unwrap();
    for _ in 0..2 {
        let launch = Launch {
            program: Program::new(KERNEL).unwrap(),
            globals: [].into(),
            kernel: "count".to_owned(),
            space: Space::new(0),
            pe: None,
            blocks: [3, 1, 1],
            threads: [64, 1, 1],
            shared: 0,
            registers: 32,
            params: Vec::new(),
        };
        machine.launch(launch).unwrap();
    }
    drop(machine);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(text.contains("\ncount: 2 launches, 18 instructions in the longest warp\n"), "{text}");
    // Of 2 launches of 3 blocks of 2 warps each.
    let row = |place: &str| {
        let line = text.lines().find(|line| line.ends_with(&format!("  {place}")));
        let words: Vec<_> = line.unwrap_or_else(|| panic!("no {place} in {text}")).split_whitespace().collect();
        let [all, _, "%", lanes, first, own, ..] = words[..] else { panic!("{words:?}") };
        let number = |word: &str| word.parse::<u64>().unwrap();
        (number(all), lanes.parse::<f64>().unwrap(), number(first), number(own))
    };
    // A lane whose predicate does not hold passes by: the branches back and to `even` are of 32, 32, 0 and 16 lanes, the first among these.
    assert_eq!(row("everything"), (12 * 18, 28.4, 12 * 16, 12 * 18));
    assert_eq!(row("fn count"), (12 * 18, 28.4, 12 * 16, 0));
    assert_eq!(row("src/count.rs:10"), (12 * 4, 32.0, 12 * 4, 12 * 4));
    assert_eq!(row("src/count.rs:11"), (12 * 9, 28.4, 12 * 8, 12 * 9));
    assert_eq!(row("src/count.rs:12"), (12, 16.0, 12, 12));
    assert_eq!(row("src/count.rs:13"), (12, 16.0, 0, 12));
    assert_eq!(row("barriers of the block"), (12, 32.0, 12, 12));
    assert_eq!(row("fences, narrower"), (12, 32.0, 12, 12));
}
