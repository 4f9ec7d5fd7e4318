//! Runs that are had again: launches that two threads of a host make at times of their own.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use congruent_virtual_gpu::{
    Access, Backing, Cause, Fault, Launch, Machine, Program, Schedule, Segment, Settings, Space, Window,
};

const AT: u64 = 0x7000_0000;
/// How often a run is tried that depends on when threads run.
const ATTEMPTS: u32 = 50;
/// `work` writes a word that others write too, is busy for a while, and says what time it is; `wait` waits for a word before it
/// says so, and `tell` writes it.
const KERNELS: &str = ".version 8.4\n.target sm_90\n.address_size 64\n\
    .visible .entry work(.param .u64 at, .param .u64 own) {\n\
        .reg .b64 %rd<4>; .reg .b32 %r<2>; .reg .pred %p;\n\
        ld.param.u64 %rd0, [at]; ld.param.u64 %rd1, [own];\n\
        st.global.u32 [%rd0], 1; mov.u32 %r0, 0;\n\
    again: add.u32 %r0, %r0, 1; setp.lt.u32 %p, %r0, 80000; @%p bra again;\n\
        mov.u64 %rd2, %globaltimer; st.global.u64 [%rd1], %rd2; ret;\n}\n\
    .visible .entry wait(.param .u64 at, .param .u64 own) {\n\
        .reg .b64 %rd<4>; .reg .b32 %r<2>; .reg .pred %p;\n\
        ld.param.u64 %rd0, [at]; ld.param.u64 %rd1, [own];\n\
    again: ld.acquire.sys.global.u32 %r0, [%rd0]; setp.ne.u32 %p, %r0, 5; @%p bra again;\n\
        mov.u64 %rd2, %globaltimer; st.global.u64 [%rd1], %rd2; ret;\n}\n\
    .visible .entry tell(.param .u64 at, .param .u64 own) {\n\
        .reg .b64 %rd<4>; .reg .b32 %r<2>;\n\
        ld.param.u64 %rd0, [at]; ld.param.u64 %rd1, [own]; mov.u32 %r0, 5;\n\
        st.release.sys.global.u32 [%rd0], %r0; mov.u64 %rd2, %globaltimer; st.global.u64 [%rd1], %rd2; ret;\n}\n";

/// What comes of the kernels of two devices: how each ended, and what time they said it was.
#[derive(Debug, PartialEq)]
struct End {
    faults: [Option<String>; 2],
    times: [u64; 2],
}

/// Where a record is, for as long as a test runs.
struct File(PathBuf);

impl File {
    fn new(test: &str) -> Self {
        Self(std::env::temp_dir().join(format!("congruent-{test}-{}", std::process::id())))
    }

    fn recorded(&self) -> Settings {
        Settings { record: Some(self.0.clone()), ..settings() }
    }

    fn replayed(&self) -> Settings {
        Settings { replay: Some(self.0.clone()), ..settings() }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // Where there is none, that is well.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn settings() -> Settings {
    Settings { devices: 2, schedule: Schedule::Random, seed: 7, races: true, ..Settings::default() }
}

/// Launches a kernel on each of two devices, each after so many milliseconds.
fn run(settings: Settings, kernels: [&str; 2], after: [u64; 2]) -> (End, [Option<Cause>; 2]) {
    let (machine, program, memory) =
        (Machine::new(settings).unwrap(), Program::new(KERNELS).unwrap(), Segment::zeroed(64));
    let launch = |device: u32| {
        let space = Space::new(device);
        space.map(Window { at: AT, bytes: 64, backing: Backing::Memory(memory.clone(), 0), access: Access::ReadWrite });
        thread::sleep(Duration::from_millis(after[device as usize]));
        machine.launch(Launch {
            program: program.clone(),
            globals: [].into(),
            kernel: kernels[device as usize].to_owned(),
            space,
            pe: Some(device),
            blocks: [1; 3],
            threads: [1; 3],
            shared: 0,
            registers: 16,
            params: [AT, AT + 8 + 8 * u64::from(device)].map(u64::to_le_bytes).concat(),
        })
    };
    let ends = thread::scope(|scope| {
        let other = scope.spawn(|| launch(1));
        [launch(0), other.join().unwrap()]
    });
    let faults = ends.map(Result::err);
    let time = |at: u64| {
        let mut bytes = [0; 8];
        memory.read(at, &mut bytes);
        u64::from_le_bytes(bytes)
    };
    let said = faults.each_ref().map(|fault| fault.as_deref().map(Fault::to_string));
    (End { faults: said, times: [8, 16].map(time) }, faults.map(|fault| fault.map(|fault| fault.cause)))
}

const WORK: [&str; 2] = ["work"; 2];

/// A run whose race this device is told of, as it comes last. On a busy machine its thread may come too late, or early.
fn raced(settings: &Settings, last: usize) -> End {
    let after = [0, 1].map(|device| if device == last { 3 } else { 0 });
    let mut ends = (0..ATTEMPTS).map(|_| run(settings.clone(), WORK, after).0);
    ends.find(|end| end.faults[last].is_some() && end.faults[1 - last].is_none()).unwrap()
}

#[test]
fn a_race_whose_order_is_the_hosts_comes_again() {
    let file = File::new("race");
    raced(&settings(), 0);
    let recorded = raced(&file.recorded(), 1);
    let fault = recorded.faults[1].as_ref().unwrap();
    assert!(fault.contains("data race") && fault.contains("of PE 0") && fault.contains("of PE 1"), "{fault}");
    for after in [0, 1, 2, 3, 4, 0, 1, 2, 3, 4] {
        let (again, _) = run(file.replayed(), WORK, [after, 4 - after]);
        assert_eq!(again, recorded, "with {after} ms");
    }
}

#[test]
fn waits_take_as_long_again() {
    let file = File::new("waits");
    let mut ends = (0..ATTEMPTS).map(|_| run(file.recorded(), ["wait", "tell"], [0, 5]).0);
    let recorded = ends.find(|end| end.faults == [None, None] && end.times[0] > 1_000_000).unwrap();
    for after in [[0, 0], [5, 0], [0, 9]] {
        assert_eq!(run(file.replayed(), ["wait", "tell"], after).0, recorded);
    }
}

#[test]
fn what_was_not_recorded_is_told_with_its_line() {
    let file = File::new("other");
    raced(&file.recorded(), 1);
    let (_, causes) = run(file.replayed(), ["work", "tell"], [0, 3]);
    for cause in causes {
        let Some(Cause::Unrecorded { line: 3, recorded, came }) = &cause else { panic!("{cause:?}") };
        assert!(recorded.starts_with("launch ") && recorded.contains("work of PE 1 on device 1"), "{recorded}");
        assert!(came.contains("tell of PE 1 on device 1"), "{came}");
    }
    let other = Machine::new(Settings { seed: 8, ..file.replayed() }).err().unwrap().to_string();
    assert!(other.contains("another machine") && other.contains("seed: 7") && other.contains("seed: 8"), "{other}");
}
