//! Streams on the CPU machine: waits of the host's that nobody answers, and captures that panic.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::time::Duration;

use congruent::{Error, World};
use congruent_tests::conformance;

#[test]
fn waits_that_nobody_answers_end_at_the_deadline() {
    for (width, npes) in [(1, 1), (1, 3), (4, 2)] {
        let builder = || World::builder().width(width).deadline(Duration::from_millis(200)).heap(16 << 20);
        builder().local(npes, conformance::unanswered).unwrap();
        builder().local(npes, conformance::unposted).unwrap();
    }
}

/// A panic while capturing leaves the stream as it was.
#[test]
fn a_capture_that_panics_is_over() {
    let program = |world: &mut World| {
        let stream = world.stream()?;
        let thrown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _never = world.capture(&stream, |_| std::panic::resume_unwind(Box::new("thrown")));
        }));
        assert!(thrown.is_err());
        world.capture(&stream, |_| Ok(()))?.launch(&stream)?;
        Ok::<_, Error>(())
    };
    World::builder().width(1).heap(16 << 20).local(1, program).unwrap();
}
