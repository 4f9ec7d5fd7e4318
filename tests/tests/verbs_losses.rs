//! PEs that reach each other by an RDMA device, in a virtual machine, while what they stand on fails: a PE, or the link.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod losing;
mod processes;
mod two_ends;

use std::collections::BTreeSet;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use congruent::World;
use congruent_heap::abi::{AtomicOp, NumberKind};
use congruent_tests::guest;
use congruent_transports::{Atomic, Failure, Post, Reconnect};
use losing::Job;
use processes::{Pe, Port, is_pe, myself, say, seat};
use two_ends::TwoEnds;

/// Connections are given up soon.
const SET: [(&str, &str); 3] =
    [("CONGRUENT_TRANSPORT", "verbs"), ("CONGRUENT_IB_TIMEOUT", "12"), ("CONGRUENT_IB_RETRY_CNT", "3")];

/// The longest wait of a kernel, by an emulated processor of a busy machine.
const DEADLINE: Duration = Duration::from_secs(20);

#[test]
fn who_is_killed_is_named_by_the_others() {
    const TEST: &str = "who_is_killed_is_named_by_the_others";
    if is_pe() {
        losing::pass_on();
    } else if guest::is_inside(TEST) {
        Job::start(TEST, 3, &SET, DEADLINE).lose(1);
    }
}

/// What a program of the virtual machine says.
fn command(command: &str) -> String {
    let mut words = command.split(' ');
    let out = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(out.status.success(), "{command}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// The numbers of the pairs of queues that are reliable connections.
fn connections() -> BTreeSet<String> {
    let all = command("/opt/rdma resource show qp");
    let number = |line: &str| line.split("lqpn ").nth(1).and_then(|rest| rest.split(' ').next()).map(str::to_owned);
    all.lines().filter(|line| line.contains("type RC")).filter_map(number).collect()
}

/// How a world of one PE with this variable begins.
fn begun(test: &str, name: &str, value: &str) -> String {
    let (port, mut command) = (Port::reserve(), myself(test));
    command.env(name, value).env("CONGRUENT_TRANSPORT", "verbs").env("CONGRUENT_P2P_DISABLE", "1");
    Pe::start(seat(command, &port, 0, 1)).hear("BEGUN", Duration::from_secs(60))
}

#[test]
fn what_is_not_there_is_named() {
    const TEST: &str = "what_is_not_there_is_named";
    if is_pe() {
        let world = World::builder().build();
        return say(&format!("BEGUN {}", world.map_or_else(|error| error.to_string(), |world| world.machine())));
    }
    if !guest::is_inside(TEST) {
        return;
    }
    let said = begun(TEST, "CONGRUENT_IB_HCA", "rxe0:1");
    assert!(said.contains("RDMA on rxe0:1"), "{said}");
    for hca in ["mlx5_7", "rxe0:2", "rx"] {
        let said = begun(TEST, "CONGRUENT_IB_HCA", hca);
        assert!(said.contains(&format!("{hca} was looked for, and there is rxe0:1")), "{said}");
    }
    let said = begun(TEST, "CONGRUENT_IB_GID_INDEX", "200");
    assert!(said.contains("port 1 of rxe0 has no GID 200"), "{said}");
    command("/opt/ip link set d0 down");
    let said = begun(TEST, "CONGRUENT_IB_RETRY_CNT", "3");
    // For the tests that come after it in this machine.
    command("/opt/ip link set d0 up");
    assert!(said.contains("any active port was looked for, and there is rxe0:1 (not active)"), "{said}");
}

/// Two hosts, of which the second spoils what goes by the wire between them: packets are late and lost, then none gets through for longer than
/// connections try. PEs are done all the same, and every word is right.
#[test]
#[ignore = "takes long: ./check --full runs it"]
fn a_wire_that_loses_packets_is_got_over() {
    const TEST: &str = "a_wire_that_loses_packets_is_got_over";
    const ROUNDS: u64 = 100;
    if is_pe() {
        return losing::pass_on();
    }
    let Some(host) = guest::host(TEST) else { return };
    let mut pe = losing::start_one(TEST, "10.78.0.1", host as u32, 2, ROUNDS, &SET);
    if host == 1 {
        drop(pe.hear("UNDER WAY", losing::PATIENCE));
        let spoil = |how: &str| drop(command(&format!("/opt/tc qdisc {how}")));
        spoil("add dev d0 root netem delay 1ms loss 2%");
        drop(pe.hear("UNDER WAY", losing::PATIENCE));
        let before = connections();
        spoil("change dev d0 root netem loss 100%");
        thread::sleep(Duration::from_secs(1));
        spoil("change dev d0 root netem delay 1ms loss 2%");
        drop(pe.hear("UNDER WAY", losing::PATIENCE));
        let after = connections();
        assert_eq!((after.len(), before.intersection(&after).count()), (1, 0), "{before:?} {after:?}");
        spoil("del dev d0 root");
    }
    let ended = pe.hear("ENDED", losing::PATIENCE);
    assert_eq!(ended, "well");
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
    let mut job = Job::start(TEST, 2, &SET, DEADLINE);
    for _ in 0..3 {
        let before = connections();
        assert_eq!(before.len(), 2, "one end on each PE: {before:?}");
        command("/opt/ip link set d0 down");
        thread::sleep(Duration::from_millis(300));
        command("/opt/ip link set d0 up");
        job.goes_on();
        let after = connections();
        assert_eq!((after.len(), before.intersection(&after).count()), (2, 0), "{before:?} {after:?}");
    }
}

/// The port's GID goes with the address, and comes back at another place of its table.
#[test]
fn an_address_that_comes_back_is_got_over() {
    const TEST: &str = "an_address_that_comes_back_is_got_over";
    if is_pe() {
        return losing::pass_on();
    }
    if !guest::is_inside(TEST) {
        return;
    }
    let mut job = Job::start(TEST, 2, &SET, DEADLINE);
    for _ in 0..2 {
        let before = connections();
        command("/opt/ip addr del 10.78.0.1/24 dev d0");
        thread::sleep(Duration::from_millis(300));
        command("/opt/ip addr add 10.78.0.1/24 dev d0");
        job.goes_on();
        let after = connections();
        assert_eq!((after.len(), before.intersection(&after).count()), (2, 0), "{before:?} {after:?}");
    }
}

/// A write or read by a key that the peer did not give touches nothing, nothing behind it is done, and the connection can be had again.
#[test]
fn a_wrong_key_opens_nothing() {
    const TEST: &str = "a_wrong_key_opens_nothing";
    if !guest::is_inside(TEST) {
        return;
    }
    // The key is behind the address of the heap.
    let mut two = TwoEnds::joined(|card| card[8] ^= 0xff);
    let bytes = 4096;
    for (round, post) in (1..).zip([
        Post::Write { remote: 0, local: 0, bytes, arrival: None, data: None },
        Post::Read { remote: 0, local: 0, bytes },
    ]) {
        let before = two.post(0, Post::Send(b"before"));
        assert_eq!((two.end_of(0, before), two.message(1)), (Ok(()), b"before".to_vec()));
        let wrong = two.post(0, post);
        let behind = two.post(0, Post::Send(b"behind"));
        assert_eq!(two.end_of(0, wrong), Err(Failure::RemoteAccess), "{post:?}");
        assert_eq!(two.end_of(0, behind), Err(Failure::Flushed), "behind {post:?}");
        assert_eq!([two.word(0, 1), two.word(1, 1)], [1, 1 << 32 | 1]);
        two.renew();
        assert_eq!(connections().len(), 2, "round {round}");
    }
    // The other way the key is the right one.
    let right = two.post(1, Post::Write { remote: 0, local: 0, bytes, arrival: None, data: None });
    let behind = two.post(1, Post::Send(b"behind"));
    assert_eq!((two.end_of(1, right), two.end_of(1, behind), two.message(0)), (Ok(()), Ok(()), b"behind".to_vec()));
    assert_eq!(two.word(0, 1), 1 << 32 | 1);
}

/// Of messages that the device is given together each arrives, in order, and ends once, though it tells of few; where one of them fails, those
/// before it have ended well.
#[test]
fn what_is_given_together_ends_one_by_one() {
    const TEST: &str = "what_is_given_together_ends_one_by_one";
    if !guest::is_inside(TEST) {
        return;
    }
    let mut two = TwoEnds::joined(|card| card[8] ^= 0xff);
    // More than a queue holds, in all.
    for count in [1_u8, 5, 33, 100, 64] {
        let kept: Vec<_> = (1..count).map(|number| two.keep(0, Post::Send(&[number]))).collect();
        two.poll_both();
        assert_eq!(two.messages_so_far(1), 0, "nothing is given to the device before");
        let last = two.post(0, Post::Send(&[count]));
        assert!((1..=count).all(|number| two.message(1) == [number]), "{count} messages");
        assert_eq!(two.end_of(0, last), Ok(()));
        kept.into_iter().for_each(|id| assert_eq!(two.end_of(0, id), Ok(())));
    }
    let wrong = Post::Write { remote: 0, local: 0, bytes: 64, arrival: None, data: None };
    let posts = [Post::Send(b"one"), Post::Send(b"two"), wrong, Post::Send(b"behind")];
    let ids = posts.map(|post| two.keep(0, post));
    let last = two.post(0, Post::Send(b"and behind"));
    let failed = [Ok(()), Ok(()), Err(Failure::RemoteAccess), Err(Failure::Flushed)];
    assert_eq!(ids.map(|id| two.end_of(0, id)), failed);
    assert_eq!(two.end_of(0, last), Err(Failure::Flushed));
    assert_eq!([two.message(1), two.message(1)], [b"one", b"two"]);
    two.renew();
    let again = two.post(0, Post::Send(b"again"));
    assert_eq!((two.end_of(0, again), two.message(1)), (Ok(()), b"again".to_vec()));
    // Bytes that were read before, few enough to lie in a request and more, and not those of the heap.
    for bytes in [8, 4096] {
        let data = vec![bytes as u8; bytes];
        let write = Post::Write { remote: 8, local: 0, bytes: bytes as u64, arrival: None, data: Some(&data) };
        let written = two.keep(1, write);
        let behind = two.post(1, Post::Send(b"behind"));
        assert_eq!(
            (two.end_of(1, written), two.end_of(1, behind), two.message(0)),
            (Ok(()), Ok(()), b"behind".to_vec())
        );
        let word = u64::from_ne_bytes([bytes as u8; 8]);
        assert_eq!([two.word(0, 0), two.word(0, 1), two.word(0, bytes / 8)], [0, word, word]);
    }
    // What is kept while its connection fails goes with it.
    let kept = two.keep(0, Post::Send(b"kept"));
    let outside = two.post(0, Post::Write { remote: 0, local: u64::MAX, bytes: 8, arrival: None, data: None });
    assert_eq!(two.end_of(0, kept), Err(Failure::Flushed));
    assert_eq!(two.end_of(0, outside), Err(Failure::LocalLength));
    two.renew();
    assert_eq!(two.messages_so_far(1), 0);
}

/// Atomics of the device, by the peer and by the PE whose word it is, give what was there.
#[test]
fn atomics_of_the_device_give_what_was_there() {
    const TEST: &str = "atomics_of_the_device_give_what_was_there";
    if !guest::is_inside(TEST) {
        return;
    }
    let atomic = |op, value, expected| {
        let atomic = Atomic { op, kind: NumberKind::Unsigned, bytes: 8, value, expected };
        Post::Atomic { remote: 8, atomic }
    };
    let add = |value| atomic(AtomicOp::Add, value, 0);
    let swap = |expected, new| atomic(AtomicOp::CompareExchange, new, expected);
    let mut two = TwoEnds::joined(|_| {});
    let was = 1 << 32 | 1;
    let first = two.post(0, add(5));
    assert_eq!(two.value_of(0, first), Ok(was));
    let own = two.post_to_own(1, add(u64::MAX));
    assert_eq!(two.value_of(1, own), Ok(was + 5));
    for (expected, left) in [(was, was + 4), (was + 4, 0)] {
        let swapped = two.post(0, swap(expected, 0));
        assert_eq!((two.value_of(0, swapped), two.word(1, 1)), (Ok(was + 4), left));
    }
    // Many at once, from both, and messages between.
    let ids: Vec<_> = (0..40).map(|_| (two.keep(0, add(1)), two.keep(0, Post::Send(b"between")))).collect();
    let own: Vec<_> = (0..40).map(|_| two.post_to_own(1, add(1))).collect();
    let last = two.post(0, add(1));
    let mut drawn: Vec<_> = ids.iter().map(|(id, _)| two.value_of(0, *id).unwrap()).collect();
    ids.iter().for_each(|(_, message)| assert_eq!(two.end_of(0, *message), Ok(())));
    assert!(drawn.is_sorted(), "{drawn:?}");
    drawn.extend(own.into_iter().map(|id| two.value_of(1, id).unwrap()));
    drawn.push(two.value_of(0, last).unwrap());
    drawn.sort_unstable();
    assert!(drawn.into_iter().eq(0..81));
    assert_eq!([two.word(1, 1), two.word(0, 1)], [81, 1]);
    // By a key that the peer did not give.
    let mut two = TwoEnds::joined(|card| card[8] ^= 0xff);
    let wrong = two.post(0, add(1));
    assert_eq!((two.value_of(0, wrong), two.word(1, 1)), (Err(Failure::RemoteAccess), was));
}

/// What goes to an end that the peer has closed meanwhile comes back as failed, whole, and the peer's new end takes what is posted then.
#[test]
fn an_end_that_is_gone_takes_nothing() {
    const TEST: &str = "an_end_that_is_gone_takes_nothing";
    if !guest::is_inside(TEST) {
        return;
    }
    let mut two = TwoEnds::joined(|_| {});
    let bytes = 1 << 15;
    for _ in 0..3 {
        // Nothing is done with what is no part of the heap, and its connection has failed.
        let outside = two.post(1, Post::Write { remote: 0, local: u64::MAX, bytes, arrival: None, data: None });
        let start = Instant::now();
        while two.reconnect(1) != Reconnect::UnderWay || connections().len() > 2 {
            two.poll(1);
            assert!(start.elapsed() < losing::PATIENCE, "the old end stays open");
        }
        let lost = [Post::Write { remote: 0, local: 0, bytes, arrival: None, data: None }, Post::Send(b"lost")]
            .map(|post| two.post(0, post));
        for id in lost {
            let ended = two.end_of(0, id);
            assert!(matches!(ended, Err(Failure::RetryExceeded | Failure::Flushed)), "{ended:?}");
        }
        assert_eq!(two.end_of(1, outside), Err(Failure::LocalLength));
        assert_eq!(two.word(1, 1), 1 << 32 | 1);
        two.renew();
    }
    let written = two.post(0, Post::Write { remote: 0, local: 0, bytes, arrival: None, data: None });
    let behind = two.post(0, Post::Send(b"behind"));
    assert_eq!((two.end_of(0, written), two.end_of(0, behind), two.message(1)), (Ok(()), Ok(()), b"behind".to_vec()));
    assert_eq!([two.word(1, 1), two.word(1, 4095), two.word(1, 4096)], [1, 4095, 1 << 32 | 4096]);
    assert_eq!(connections().len(), 2);
}
