//! Collectives on teams that the other suites are too small for, and flags that wrap around.

use congruent_tests::conformance::{self, Shape, threads};

/// As the widths go, each with a team that is a power of two and one that is not.
const FLAGS: [Shape; 5] = [(1, 2), (1, 3), (4, 2), (1, 4), (32, 3)];

#[test]
fn collectives_of_sixteen() {
    threads(conformance::collectives, &[(1, 16)]);
}

#[test]
fn flags_that_wrap_around() {
    threads(conformance::flags, &FLAGS);
}

#[test]
fn protocols_that_take_turns() {
    threads(conformance::protocols, &[(1, 2), (4, 2), (1, 4)]);
}
