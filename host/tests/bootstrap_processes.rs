//! Jobs whose PEs are processes, and what the others see when one is killed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod bootstrap_support;

use bootstrap_support::{Port, notice_within};
use congruent::bootstrap::{Bootstrap, Control, Notice};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const NPES: u32 = 4;
/// Far above what it takes, for machines that are busy with other things.
const PATIENCE: Duration = Duration::from_secs(10);

/// This binary again, as one PE that runs the test named by `test`.
struct Pe {
    child: Child,
    said: BufReader<ChildStdout>,
    _told: ChildStdin,
}

impl Pe {
    fn start(test: &str, port: &Port, pe: u32) -> Self {
        Self::start_with(test, port, pe, &[])
    }

    /// The same with more in its environment.
    fn start_with(test: &str, port: &Port, pe: u32, more: &[(&str, String)]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env("CONGRUENT_PE", pe.to_string())
            .env("CONGRUENT_NPES", NPES.to_string())
            .env("CONGRUENT_RENDEZVOUS", port.address().to_string())
            .env("CONGRUENT_JOB_TOKEN", "processes")
            .envs(more.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let _told = child.stdin.take().unwrap();
        Self { child, said, _told }
    }

    /// The next line that begins with `word`; what the test harness prints is passed over.
    fn hear(&mut self, word: &str) -> String {
        for line in self.said.by_ref().lines() {
            // The harness writes the name of the test without an end of line.
            if let Some(at) = line.as_ref().unwrap().find(word) {
                return line.unwrap()[at..].to_string();
            }
        }
        panic!("ended without saying {word}");
    }
}

impl Drop for Pe {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(text: &str) {
    println!("{text}");
    std::io::stdout().flush().unwrap();
}

fn is_pe() -> bool {
    std::env::var_os("CONGRUENT_PE").is_some()
}

fn join() -> Control {
    Bootstrap::from_env().unwrap().connect().unwrap()
}

fn start_all(test: &str) -> Vec<Pe> {
    let port = Port::reserve();
    let mut pes: Vec<_> = (0..NPES).map(|pe| Pe::start(test, &port, pe)).collect();
    pes.iter_mut().for_each(|pe| drop(pe.hear("READY")));
    pes
}

#[test]
fn a_killed_pe_is_named_by_all_the_others() {
    if is_pe() {
        let control = join();
        control.all_gather(&[]).unwrap();
        say("READY");
        match notice_within(&control, PATIENCE) {
            Some(Notice::PeerFailed { pe, .. }) => say(&format!("LOST {pe}")),
            other => say(&format!("LOST not, but {other:?}")),
        }
        std::process::exit(0);
    }
    let mut took = Vec::new();
    for round in 0..12 {
        let mut pes = start_all("a_killed_pe_is_named_by_all_the_others");
        let victim = round % NPES;
        let killed = Instant::now();
        pes[victim as usize].child.kill().unwrap();
        for (_, pe) in (0..NPES).zip(&mut pes).filter(|(index, _)| *index != victim) {
            assert_eq!(pe.hear("LOST"), format!("LOST {victim}"));
        }
        took.push(killed.elapsed());
    }
    took.sort();
    println!(
        "from kill to the last of the others' reports: median {:?}, worst {:?}",
        took[took.len() / 2],
        took[took.len() - 1]
    );
    assert!(took[took.len() / 2] < Duration::from_secs(1), "{took:?}");
}

#[test]
fn a_pe_killed_before_all_have_come_is_named() {
    if is_pe() {
        say("READY");
        say(&format!("ENDED {}", Bootstrap::from_env().unwrap().connect().map(drop).unwrap_err()));
        std::process::exit(0);
    }
    let port = Port::reserve();
    let test = "a_pe_killed_before_all_have_come_is_named";
    let mut pes: Vec<_> = (0..NPES - 1).map(|pe| Pe::start(test, &port, pe)).collect();
    pes.iter_mut().for_each(|pe| drop(pe.hear("READY")));
    std::thread::sleep(Duration::from_millis(500));
    pes[1].child.kill().unwrap();
    for pe in [0, 2] {
        let error = pes[pe].hear("ENDED");
        assert!(error.contains("PE 1 was lost"), "{error}");
    }
}

/// One that stands still in the middle of the start, after it has come and before all have: it is named when the deadline of the job is
/// over, by all the others.
#[test]
fn a_pe_stopped_before_all_have_come_is_named() {
    // Half of it is what the last PE has to start in, beside whatever else runs.
    const DEADLINE: Duration = Duration::from_secs(4);
    if is_pe() {
        say("READY");
        match Bootstrap::from_env().unwrap().connect() {
            Ok(control) => {
                say(&format!("ENDED {}", control.all_gather(&[]).unwrap_err()));
                // Who leaves at once would be missed by those who are told a little later.
                let _end = std::io::stdin().read(&mut [0]);
            }
            Err(error) => say(&format!("ENDED {error}")),
        }
        std::process::exit(0);
    }
    let port = Port::reserve();
    let test = "a_pe_stopped_before_all_have_come_is_named";
    let start =
        |pe| Pe::start_with(test, &port, pe, &[("CONGRUENT_BOOTSTRAP_DEADLINE", DEADLINE.as_secs().to_string())]);
    let mut pes: Vec<_> = (0..NPES - 1).map(start).collect();
    pes.iter_mut().for_each(|pe| drop(pe.hear("READY")));
    std::thread::sleep(DEADLINE / 2);
    kill_process(Pid::from_child(&pes[1].child), Signal::STOP).unwrap();
    let stopped = Instant::now();
    pes.push(start(NPES - 1));
    for pe in [0, 2, 3] {
        let error = pes[pe].hear("ENDED");
        assert!(error.contains("[1]") && error.contains(&format!("{DEADLINE:?}")), "{error}");
    }
    assert!(stopped.elapsed() < DEADLINE + PATIENCE, "{:?}", stopped.elapsed());
}

#[test]
fn processes_that_leave_in_order_trouble_nobody() {
    if is_pe() {
        let control = join();
        say("READY");
        for round in 0..50_u8 {
            assert_eq!(control.all_gather(&[round]).unwrap(), vec![vec![round]; NPES as usize]);
        }
        let (told, heard) = std::sync::mpsc::channel();
        control.watch(move |notice| drop(told.send(notice)));
        control.depart();
        drop(control);
        say(&format!("NOTICE {:?}", heard.try_recv().ok()));
        std::process::exit(0);
    }
    for mut pe in start_all("processes_that_leave_in_order_trouble_nobody") {
        assert_eq!(pe.hear("NOTICE"), "NOTICE None");
        assert!(pe.child.wait().unwrap().success());
    }
}
