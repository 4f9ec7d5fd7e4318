//! PEs that reach each other by an RDMA device, in a virtual machine, while what they stand on fails: a PE, or the link.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod losing;
mod processes;

use std::collections::BTreeSet;
use std::process::Command;
use std::thread;
use std::time::Duration;

use congruent_tests::guest;
use losing::Job;
use processes::is_pe;

/// By an emulated processor.
const SET: [(&str, &str); 3] =
    [("CONGRUENT_TRANSPORT", "verbs"), ("CONGRUENT_IB_TIMEOUT", "12"), ("CONGRUENT_IB_RETRY_CNT", "3")];

#[test]
fn who_is_killed_is_named_by_the_others() {
    const TEST: &str = "who_is_killed_is_named_by_the_others";
    if is_pe() {
        losing::pass_on();
    } else if guest::is_inside(TEST) {
        Job::start(TEST, 3, &SET).lose(1);
    }
}

/// What a program of the virtual machine says.
fn said(command: &str) -> String {
    let mut words = command.split(' ');
    let out = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(out.status.success(), "{command}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// The numbers of the pairs of queues that are reliable connections.
fn connections() -> BTreeSet<String> {
    let all = said("/opt/rdma resource show qp");
    let number = |line: &str| line.split("lqpn ").nth(1).and_then(|rest| rest.split(' ').next()).map(str::to_owned);
    all.lines().filter(|line| line.contains("type RC")).filter_map(number).collect()
}

#[test]
fn a_link_that_comes_back_is_got_over() {
    const TEST: &str = "a_link_that_comes_back_is_got_over";
    if is_pe() {
        return losing::pass_on();
    }
    if !guest::is_inside(TEST) {
        return;
    }
    let mut job = Job::start(TEST, 2, &SET);
    for _ in 0..3 {
        let before = connections();
        assert_eq!(before.len(), 2, "one end on each PE: {before:?}");
        said("/opt/ip link set d0 down");
        thread::sleep(Duration::from_millis(300));
        said("/opt/ip link set d0 up");
        job.goes_on();
        let after = connections();
        assert_eq!((after.len(), before.intersection(&after).count()), (2, 0), "{before:?} {after:?}");
    }
}
