//! Jobs over TCP whose PEs are threads: meeting, disagreeing, noise at the door, leaving.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod bootstrap_support;

use bootstrap_support::{Port, notice_within};
use congruent::bootstrap::{
    BootstrapError, Control, ControlError, Job, MAX_PAYLOAD, Notice, Rendezvous, Token, connect,
};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(5);

/// All jobs join at once; the outcomes in the same order.
fn join(jobs: &[Job]) -> Vec<Result<Control, BootstrapError>> {
    thread::scope(|scope| {
        let joining: Vec<_> = jobs.iter().map(|job| scope.spawn(move || connect(job))).collect();
        joining.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn joined(jobs: &[Job]) -> Vec<Control> {
    join(jobs).into_iter().map(|outcome| outcome.unwrap()).collect()
}

fn jobs(port: &Port, npes: u32) -> Vec<Job> {
    (0..npes).map(|pe| port.job(pe, npes)).collect()
}

fn each(controls: &[Control], body: impl Fn(&Control) + Sync) {
    thread::scope(|scope| controls.iter().for_each(|control| drop(scope.spawn(|| body(control)))));
}

#[test]
fn pes_meet_at_a_port_and_gather() {
    let controls = joined(&jobs(&Port::reserve(), 4));
    each(&controls, |control| {
        assert!(control.same_host() && !control.in_process());
        for round in 0..200_u8 {
            let gathered = control.all_gather(&[control.pe() as u8, round]).unwrap();
            assert_eq!(gathered, (0..4).map(|pe| vec![pe, round]).collect::<Vec<_>>());
        }
        let most = vec![control.pe() as u8; MAX_PAYLOAD];
        let gathered = control.all_gather(&most).unwrap();
        assert!(gathered.iter().zip(0..).all(|(part, pe)| part.len() == MAX_PAYLOAD && part.iter().all(|b| *b == pe)));
        control.depart();
    });
}

#[test]
fn pes_meet_by_a_file_again_and_again() {
    for _ in 0..3 {
        let name = format!("meeting of {}", std::process::id());
        let rendezvous = Rendezvous::File { name };
        let port = Port::reserve();
        let jobs: Vec<_> =
            jobs(&port, 3).into_iter().map(|job| Job { rendezvous: rendezvous.clone(), ..job }).collect();
        let controls = joined(&jobs);
        each(&controls, |control| {
            assert_eq!(control.all_gather(&[7]).unwrap().len(), 3);
            control.depart();
        });
    }
}

#[test]
fn a_wrong_token_is_the_strangers_error() {
    let port = Port::reserve();
    let mut all = jobs(&port, 2);
    all.push(Job { token: Token::derive(b"guess"), deadline: Duration::from_millis(300), ..port.job(1, 2) });
    let outcomes = thread::scope(|scope| {
        let honest = scope.spawn(|| {
            thread::sleep(Duration::from_millis(600));
            connect(&all[1])
        });
        let hub = scope.spawn(|| connect(&all[0]));
        let stranger = connect(&all[2]);
        (hub.join().unwrap(), honest.join().unwrap(), stranger)
    });
    assert!(matches!(outcomes, (Ok(_), Ok(_), Err(BootstrapError::WrongToken))));
}

#[test]
fn another_number_of_pes_is_everyones_error() {
    let port = Port::reserve();
    let mut all = jobs(&port, 4);
    all[2].npes = 5;
    let begun = Instant::now();
    for outcome in join(&all) {
        assert!(
            matches!(outcome, Err(BootstrapError::WorldSize { pe: 2, claims: 5, expected: 4 })),
            "{:?}",
            outcome.err()
        );
    }
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
}

#[test]
fn a_pe_twice_is_everyones_error() {
    let port = Port::reserve();
    let mut all = jobs(&port, 4);
    all[3].pe = 1;
    let begun = Instant::now();
    for outcome in join(&all) {
        assert!(matches!(outcome, Err(BootstrapError::DuplicatePe { pe: 1 })), "{:?}", outcome.err());
    }
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
}

#[test]
fn a_second_pe_0_cannot_listen() {
    let port = Port::reserve();
    let job = Job { deadline: Duration::from_millis(500), ..port.job(0, 2) };
    let outcomes = join(&[job.clone(), job]);
    assert!(outcomes.iter().any(|outcome| matches!(outcome, Err(BootstrapError::Io { .. }))));
    assert!(outcomes.iter().any(|outcome| matches!(outcome, Err(BootstrapError::Missing { .. }))));
}

#[test]
fn a_pe_out_of_range_does_not_leave_home() {
    let outcome = connect(&Port::reserve().job(4, 4));
    assert!(matches!(outcome, Err(BootstrapError::PeOutOfRange { pe: 4, npes: 4 })));
}

#[test]
fn missing_pes_are_named_to_all_who_came() {
    let port = Port::reserve();
    let all: Vec<_> = jobs(&port, 5).into_iter().map(|job| Job { deadline: Duration::from_secs(1), ..job }).collect();
    for outcome in join(&[all[0].clone(), all[2].clone()]) {
        let Err(BootstrapError::Missing { pes, waited }) = outcome else { panic!("{:?}", outcome.err()) };
        assert_eq!((pes, waited), (vec![1, 3, 4], Duration::from_secs(1)));
    }
}

#[test]
fn without_pe_0_the_place_is_named() {
    let port = Port::reserve();
    let outcome = connect(&Job { deadline: Duration::from_millis(300), ..port.job(1, 2) });
    let Err(error @ BootstrapError::Unreachable { .. }) = outcome else { panic!("{:?}", outcome.err()) };
    assert!(error.to_string().contains(&port.number.to_string()), "{error}");
}

#[test]
fn noise_at_the_door_keeps_nobody_out() {
    let port = Port::reserve();
    let address = port.address();
    let took = thread::scope(|scope| {
        let late = port.job(2, 3);
        let hub = scope.spawn(|| connect(&port.job(0, 3)));
        let first = scope.spawn(|| connect(&port.job(1, 3)));
        let held = noise(address);
        let begun = Instant::now();
        let last = connect(&late);
        let controls: Vec<_> =
            [hub.join().unwrap(), first.join().unwrap(), last].into_iter().map(Result::unwrap).collect();
        let took = begun.elapsed();
        drop(held);
        each(&controls, |control| assert_eq!(control.all_gather(&[]).unwrap().len(), 3));
        took
    });
    assert!(took < SOON, "{took:?}");
}

/// What port scanners, health checks and lost browsers do. Some connections are kept open.
fn noise(address: SocketAddr) -> Vec<TcpStream> {
    let mut held = Vec::new();
    while held.is_empty() {
        held.extend(TcpStream::connect(address));
    }
    for round in 0..100_usize {
        drop(TcpStream::connect(address));
        for bytes in [&b"CGRT\x03\0\x01"[..1 + round % 7], b"GET / HTTP/1.1\r\n\r\n", b"CGRT\x09\0", &[0; 4096]] {
            if let Ok(mut stream) = TcpStream::connect(address) {
                let _ = stream.write_all(bytes);
                if round % 10 == 0 {
                    held.push(stream);
                }
            }
        }
    }
    held
}

#[test]
fn a_slow_stranger_is_sent_away_and_another_version_is_told() {
    let port = Port::reserve();
    thread::scope(|scope| {
        let hub = scope.spawn(|| connect(&port.job(0, 2)));
        let mut other = connect_when_up(port.address());
        other.write_all(b"CGRT\x09\0").unwrap();
        let mut answer = Vec::new();
        other.read_to_end(&mut answer).unwrap();
        assert_eq!(answer[..8], *b"CGRT\x03\0\x05\0", "a refusal, of version 3");
        assert_eq!(answer.len(), 24, "and no reason: it would not be believed");

        let mut slow = connect_when_up(port.address());
        slow.write_all(b"CGR").unwrap();
        let begun = Instant::now();
        slow.read_to_end(&mut answer).unwrap();
        assert!((Duration::from_secs(1)..SOON).contains(&begun.elapsed()), "{:?}", begun.elapsed());

        let peer = connect(&port.job(1, 2)).unwrap();
        let hub = hub.join().unwrap().unwrap();
        each(&[peer, hub], |control| assert_eq!(control.all_gather(&[]).unwrap().len(), 2));
    });
}

fn connect_when_up(address: SocketAddr) -> TcpStream {
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => return stream,
            Err(_) => thread::sleep(Duration::from_millis(2)),
        }
    }
}

#[test]
fn an_abort_is_told_to_all_and_the_first_wins() {
    let controls = joined(&jobs(&Port::reserve(), 4));
    controls[2].abort(b"first");
    let first = Notice::Aborted { by: 2, reason: b"first".to_vec() };
    each(&controls, |control| {
        assert_eq!(notice_within(control, SOON), Some(first.clone()));
        control.abort(b"later");
        assert_eq!(control.all_gather(&[]), Err(ControlError::Ended(first.clone())));
    });
}

#[test]
fn an_abort_said_while_leaving_still_arrives() {
    for author in [0, 1] {
        let mut controls = joined(&jobs(&Port::reserve(), 3));
        let control = controls.remove(author as usize);
        control.abort(b"last words");
        drop(control);
        let expected = Notice::Aborted { by: author, reason: b"last words".to_vec() };
        each(&controls, |control| assert_eq!(notice_within(control, SOON), Some(expected.clone())));
    }
}

#[test]
fn a_dropped_handle_is_a_failed_pe_even_amid_a_gather() {
    for lost in [0, 2] {
        let mut controls = joined(&jobs(&Port::reserve(), 3));
        let gone = controls.remove(lost);
        thread::scope(|scope| {
            let waiting: Vec<_> = controls.iter().map(|control| scope.spawn(|| control.all_gather(&[]))).collect();
            thread::sleep(Duration::from_millis(50));
            drop(gone);
            for outcome in waiting.into_iter().map(|thread| thread.join().unwrap()) {
                let Err(ControlError::Ended(Notice::PeerFailed { pe, .. })) = outcome else { panic!("{outcome:?}") };
                assert_eq!(pe, lost as u32);
            }
        });
    }
}

#[test]
fn departures_are_no_failures_in_any_order() {
    for first in 0..3 {
        let mut controls = joined(&jobs(&Port::reserve(), 3));
        let gone = controls.remove(first);
        gone.depart();
        drop(gone);
        each(&controls, |control| {
            assert_eq!(control.all_gather(&[]), Err(ControlError::Departed { pe: first as u32 }));
            assert_eq!(notice_within(control, Duration::from_millis(50)), None);
            control.depart();
        });
    }
}

#[test]
fn a_late_pe_is_named_at_the_deadline() {
    let port = Port::reserve();
    let all: Vec<_> =
        jobs(&port, 3).into_iter().map(|job| Job { deadline: Duration::from_millis(400), ..job }).collect();
    let controls = joined(&all);
    each(&controls[..2], |control| {
        let expected = ControlError::Deadline { missing: vec![2], waited: Duration::from_millis(400) };
        assert_eq!(control.all_gather(&[]), Err(expected));
    });
}
