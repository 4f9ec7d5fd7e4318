//! What goes wrong with devices on purpose, and that who waits for them ends in the devices' own time.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::thread;
use std::time::{Duration, Instant};

use congruent_virtual_gpu::{
    Access, Backing, Cause, Fault, Injection, Launch, Machine, Program, Schedule, Segment, Settings, Space, Window,
};

const AT: u64 = 0x7000_0000;
/// As one kernel waits for the other: 60 s at most.
const WAIT_AND_TELL: &str = ".version 8.4\n.target sm_90\n.address_size 64\n\
    .visible .entry wait(.param .u64 at) {\n\
        .reg .b64 %rd<4>; .reg .b32 %r<2>; .reg .pred %p;\n\
        ld.param.u64 %rd0, [at]; mov.u64 %rd1, %globaltimer;\n\
    again: ld.acquire.sys.global.u32 %r0, [%rd0]; setp.eq.u32 %p, %r0, 5; @%p bra came;\n\
        mov.u64 %rd2, %globaltimer; sub.u64 %rd3, %rd2, %rd1; setp.lt.u64 %p, %rd3, 60000000000; @%p bra again;\n\
        st.global.u32 [%rd0+4], 1; ret;\n\
    came: st.global.u32 [%rd0+4], 2; ret;\n}\n\
    .visible .entry tell(.param .u64 at) {\n\
        .reg .b64 %rd<2>; .reg .b32 %r<2>; .reg .pred %p;\n\
        ld.param.u64 %rd0, [at]; mov.u32 %r0, 0;\n\
    work: add.u32 %r0, %r0, 1; setp.lt.u32 %p, %r0, 1000; @%p bra work;\n\
        st.release.sys.global.u32 [%rd0], 5; ret;\n}\n";
/// What the waiting kernel says that has given up, and one whose word came.
const GAVE_UP: u32 = 1;
const CAME: u32 = 2;

type Outcome = Result<(), Box<Fault>>;

/// Device 0 waits for device 1: what the first says, and what comes of both.
fn wait(schedule: Schedule, injections: &[Injection]) -> (u32, [Outcome; 2]) {
    let settings = Settings {
        devices: 2,
        schedule,
        injections: injections.to_vec(),
        leap: Some(Duration::from_millis(50)),
        patience: Duration::from_secs(100),
        ..Settings::default()
    };
    let (machine, program, memory) =
        (Machine::new(settings).unwrap(), Program::new(WAIT_AND_TELL).unwrap(), Segment::zeroed(64));
    let launch = |device: u32, kernel: &str| {
        let space = Space::new(device);
        space.map(Window { at: AT, bytes: 64, backing: Backing::Memory(memory.clone(), 0), access: Access::ReadWrite });
        machine.launch(Launch {
            program: program.clone(),
            globals: [].into(),
            kernel: kernel.to_owned(),
            space,
            pe: None,
            blocks: [1; 3],
            threads: [1; 3],
            shared: 0,
            registers: 16,
            params: AT.to_le_bytes().to_vec(),
        })
    };
    let start = Instant::now();
    let outcomes = thread::scope(|scope| {
        let told = scope.spawn(|| launch(1, "tell"));
        [launch(0, "wait"), told.join().unwrap()]
    });
    assert!(start.elapsed() < Duration::from_secs(30), "it took the time that passed on the devices");
    let mut said = [0; 4];
    memory.read(4, &mut said);
    (u32::from_le_bytes(said), outcomes)
}

#[test]
fn who_waits_for_a_device_that_stops_gives_up_in_its_own_time() {
    let (said, [waited, told]) = wait(Schedule::Lockstep, &[Injection::Halt { device: 1, step: 20 }]);
    assert_eq!((said, waited.is_ok()), (GAVE_UP, true));
    assert_eq!(told.unwrap_err().cause, Cause::Halted { step: 20 });
}

#[test]
fn a_device_that_stops_later_has_told() {
    let (said, outcomes) = wait(Schedule::Lockstep, &[Injection::Halt { device: 1, step: 1 << 40 }]);
    assert_eq!((said, outcomes.map(|outcome| outcome.is_ok())), (CAME, [true; 2]));
}

#[test]
fn a_bit_of_a_word_is_inverted() {
    for (bit, expected) in [(0, GAVE_UP), (3, GAVE_UP)] {
        let (said, outcomes) = wait(Schedule::Lockstep, &[Injection::Flip { device: 1, step: 10, bit }]);
        assert_eq!((said, outcomes.map(|outcome| outcome.is_ok())), (expected, [true; 2]));
    }
    // It happens to the other device, which stores no such word.
    let (said, _) = wait(Schedule::Lockstep, &[Injection::Flip { device: 0, step: 0, bit: 0 }]);
    assert_eq!(said, CAME);
}

#[test]
fn slow_devices_and_late_wake_ups_end_well() {
    for schedule in [Schedule::Lockstep, Schedule::Random, Schedule::Behind(1), Schedule::Behind(0)] {
        let (said, outcomes) = wait(schedule, &[Injection::Late { device: 0 }]);
        assert_eq!((said, outcomes.map(|outcome| outcome.is_ok())), (CAME, [true; 2]), "{schedule:?}");
    }
}
