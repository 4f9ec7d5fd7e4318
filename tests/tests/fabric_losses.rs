//! PEs that reach each other by libfabric, and lose one: the others say which, and do not wait longer than they may.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod losing;
mod processes;

use std::time::Duration;

use congruent_transports::Fabric;
use losing::Job;
use processes::is_pe;

#[test]
fn who_is_killed_is_named_by_the_others() {
    const TEST: &str = "who_is_killed_is_named_by_the_others";
    if is_pe() {
        return losing::pass_on();
    }
    match Fabric::find() {
        Ok(()) => {
            let set = [("CONGRUENT_TRANSPORT", "fabric"), ("CONGRUENT_SOCKET_IFNAME", "lo")];
            Job::start(TEST, 3, &set, Duration::from_secs(5)).lose(1);
        }
        Err(error) => congruent_tests::skip(TEST, &error.to_string()),
    }
}
