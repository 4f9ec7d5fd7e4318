//! What strangers do at a job's door while its PEs come together: the job starts all the same, whole and its own.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod bootstrap_support;

use bootstrap_support::Port;
use congruent::bootstrap::{Bootstrap, BootstrapError, Control, Job, Rendezvous, Token, connect};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::iter;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const NPES: u32 = 4;
/// The kinds of frames, as they are on the wire.
const HELLO: u16 = 1;
const CHALLENGE: u16 = 2;
const PROOF: u16 = 3;
const REFUSE: u16 = 5;
const PART: u16 = 16;
const KINDS: [u16; 9] = [HELLO, CHALLENGE, PROOF, 4, REFUSE, PART, 17, 18, 19];

fn frame(kind: u16, from: u32, payload: &[u8]) -> Vec<u8> {
    [&header(kind, from, payload.len() as u32)[..], payload].concat()
}

fn header(kind: u16, from: u32, length: u32) -> [u8; 24] {
    let mut bytes = *b"CGRT\x03\0......................".first_chunk::<24>().unwrap();
    bytes[6..8].copy_from_slice(&kind.to_le_bytes());
    bytes[8..12].copy_from_slice(&from.to_le_bytes());
    bytes[12..16].copy_from_slice(&length.to_le_bytes());
    bytes[16..].fill(0);
    bytes
}

/// A Hello as a PE says it, but for the host.
fn hello(pe: u32) -> Vec<u8> {
    frame(HELLO, pe, &[&NPES.to_le_bytes()[..], &[7; 64]].concat())
}

/// Numbers that look random and are the same each time.
fn noise(seed: u64) -> impl Iterator<Item = u8> {
    let next = |state: &u64| Some(state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407));
    iter::successors(Some(seed), next).map(|state| (state >> 56) as u8)
}

fn call(address: SocketAddr) -> TcpStream {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => return stream,
            Err(error) if Instant::now() > until => panic!("{error}"),
            Err(_) => thread::sleep(Duration::from_millis(2)),
        }
    }
}

fn say(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = call(address);
    // It may be sent away before it has said it all.
    let _ = stream.write_all(bytes);
    stream
}

/// Says `bytes`, and gives what is answered until the other side hangs up, which it does.
fn answered(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = say(address, bytes);
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => {}
        // Bytes that were left unread reset the connection.
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "not hung up"),
    }
    answer
}

/// Opens what it takes to be many strangers and PE 0 in one process.
fn many_files() {
    let limits = getrlimit(Resource::Nofile);
    let wanted = limits.maximum.map_or(8192, |hard| hard.min(8192));
    if limits.current.is_some_and(|soft| soft < wanted) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limits }).unwrap();
    }
}

/// A job that comes together while `attack` runs: PE 0 and 1 are there before, the others come after. What the attack gives is
/// kept until then.
fn attacked<T>(attack: impl FnOnce(SocketAddr) -> T) {
    many_files();
    let port = Port::reserve();
    let jobs: Vec<Job> = (0..NPES).map(|pe| port.job(pe, NPES)).collect();
    thread::scope(|scope| {
        let mut joining: Vec<_> = jobs[..2].iter().map(|job| scope.spawn(|| connect(job))).collect();
        drop(call(port.address()));
        let held = attack(port.address());
        joining.extend(jobs[2..].iter().map(|job| scope.spawn(|| connect(job))));
        works(joining.into_iter().map(|pe| pe.join().unwrap().unwrap()).collect());
        drop(held);
    });
}

/// The PEs of a job reach each other, and nobody else.
fn works(controls: Vec<Control>) {
    thread::scope(|scope| {
        for control in &controls {
            scope.spawn(|| {
                let all = control.all_gather(&control.pe().to_le_bytes()).unwrap();
                assert_eq!(all, (0..controls.len() as u32).map(|pe| pe.to_le_bytes().to_vec()).collect::<Vec<_>>());
                control.depart();
            });
        }
    });
}

#[test]
fn a_thousand_come_and_go() {
    attacked(|address| (0..1000).for_each(|_| drop(call(address))));
}

#[test]
fn five_hundred_say_nothing() {
    attacked(|address| (0..500).map(|_| call(address)).collect::<Vec<_>>());
}

#[test]
fn three_hundred_say_half_a_frame() {
    let hello = hello(3);
    attacked(|address| (0..300).map(|at| say(address, &hello[..1 + at % (hello.len() - 1)])).collect::<Vec<_>>());
}

#[test]
fn a_hundred_speak_slowly() {
    let hello = hello(3);
    attacked(|address| {
        let mut slow: Vec<_> = (0..100).map(|_| call(address)).collect();
        thread::spawn(move || {
            for byte in &hello[..hello.len() - 1] {
                slow.iter_mut().for_each(|stream| drop(stream.write_all(&[*byte])));
                thread::sleep(Duration::from_millis(5));
            }
        });
    });
}

#[test]
fn a_thousand_talk_nonsense() {
    attacked(|address| {
        for seed in 0..500 {
            let bytes: Vec<u8> = noise(seed).take(1 + seed as usize % 300).collect();
            drop(say(address, &bytes));
            let kind = KINDS[seed as usize % KINDS.len()];
            drop(say(address, &frame(kind, seed as u32 % 6, &bytes[..bytes.len().min(128)])));
        }
    });
}

#[test]
fn a_hundred_and_fifty_speak_another_protocol_and_are_hung_up_on() {
    attacked(|address| {
        for _ in 0..50 {
            for other in [&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], b"\x16\x03\x01\x02\0\x01\0", b"SSH-2.0-x\r\n"] {
                assert_eq!(answered(address, other), b"", "{other:?}");
            }
        }
    });
}

/// Beyond 128 bytes nobody is listened to who has proved nothing, whatever kind of frame it is said to be.
#[test]
fn frames_that_are_long_or_out_of_place_are_refused_by_their_header() {
    attacked(|address| {
        for (kind, length) in [HELLO, PROOF, PART]
            .into_iter()
            .flat_map(|kind| [129, 255, 4096, 65_535, 65_536, 1 << 31, u32::MAX].map(|length| (kind, length)))
        {
            assert_eq!(answered(address, &header(kind, 1, length)), b"", "{kind}, {length}");
        }
        for kind in KINDS.into_iter().filter(|kind| ![HELLO, PROOF].contains(kind)) {
            assert_eq!(answered(address, &header(kind, 1, 8)), b"", "{kind}");
        }
    });
}

#[test]
fn five_hundred_begin_a_part_and_are_hung_up_on() {
    let part = [&header(PART, 1, 65_536)[..], &[0; 2000]].concat();
    attacked(|address| (0..500).for_each(|_| assert_eq!(answered(address, &part), b"")));
}

/// The same Hello is challenged anew each time, so what answered one challenge is no answer to the next.
#[test]
fn two_hundred_repeat_what_was_said() {
    attacked(|address| {
        let mut seen = Vec::new();
        let proof = frame(PROOF, 3, &[9; 32]);
        for _ in 0..200 {
            let mut stream = say(address, &hello(3));
            let mut challenge = [0; 88];
            stream.read_exact(&mut challenge).unwrap();
            assert!(!seen.contains(&challenge));
            seen.push(challenge);
            stream.write_all(&proof).unwrap();
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest);
            assert_eq!(rest, b"", "an answer to a forged proof");
        }
    });
}

#[test]
fn fifty_say_everything_at_once() {
    let all = [hello(3), frame(PROOF, 3, &[9; 32])].concat();
    attacked(|address| {
        for _ in 0..50 {
            let answer = answered(address, &all);
            assert!(answer.is_empty() || answer[6..8] == CHALLENGE.to_le_bytes(), "{answer:?}");
        }
    });
}

#[test]
fn seven_with_another_token_are_nobody() {
    attacked(|address| {
        let wrong = |(pe, npes)| {
            let rendezvous = Rendezvous::Address { host: "127.0.0.1".into(), port: address.port(), ports: 1 };
            let token = Token::derive(b"guess");
            let job = Job { pe, npes, token, rendezvous, deadline: Duration::from_secs(1), ..Job::single() };
            match connect(&job).map(drop) {
                Err(BootstrapError::WrongToken) => {}
                // There is a PE 0.
                Err(BootstrapError::Io { .. }) if pe == 0 => {}
                other => panic!("PE {pe} of {npes}: {other:?}"),
            }
        };
        let strangers = [(0, NPES), (1, NPES), (3, NPES), (9, 10), (4095, 4096), (1, 2), (3, 5)];
        thread::scope(|scope| strangers.into_iter().for_each(|place| drop(scope.spawn(move || wrong(place)))));
    });
}

#[test]
fn a_flood_of_connections_ends_no_start() {
    attacked(|address| {
        for flooder in 0..3 {
            thread::spawn(move || {
                let mut held = Vec::new();
                // It ends with PE 0's listener.
                while let Ok(stream) = TcpStream::connect(address)
                    && held.len() < 1000
                {
                    held.extend((flooder != 0).then_some(stream));
                }
            });
        }
        thread::sleep(Duration::from_millis(100));
    });
}

/// Listeners at ports that follow each other, with some free ones after them.
fn squatters(count: u16) -> (u16, Vec<TcpListener>) {
    for _ in 0..100 {
        let first = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = first.local_addr().unwrap().port();
        let others: Result<Vec<_>, _> =
            (1..count).map(|offset| TcpListener::bind(("127.0.0.1", port.saturating_add(offset)))).collect();
        if let Ok(others) = others
            && port < u16::MAX - count - 8
        {
            return (port, iter::once(first).chain(others).collect());
        }
    }
    panic!("no ports in a row");
}

/// A job that may meet at a squatted port or at those after it.
fn beside(port: u16, ports: u16, deadline: Duration) -> Vec<Job> {
    let place = Rendezvous::Address { host: "127.0.0.1".into(), port, ports };
    let job = |pe| Job { rendezvous: place.clone(), deadline, ..Port::reserve().job(pe, NPES) };
    (0..NPES).map(job).collect()
}

fn meet(jobs: &[Job]) {
    thread::scope(|scope| {
        // PE 0 comes last, so that the others hear the stranger out.
        let others: Vec<_> = jobs[1..].iter().map(|job| scope.spawn(|| connect(job))).collect();
        thread::sleep(Duration::from_millis(200));
        let joining = iter::once(scope.spawn(|| connect(&jobs[0]))).chain(others);
        works(joining.map(|pe| pe.join().unwrap().unwrap()).collect());
    });
}

/// What a stranger says at the first of the ports, to each who comes.
fn stranger_says(words: &[u8]) {
    let (port, listeners) = squatters(1);
    let words = words.to_vec();
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listeners[0].accept() {
            let _ = stream.read(&mut [0; 256]);
            let _ = stream.write_all(&words);
            let _ = stream.shutdown(Shutdown::Write);
        }
    });
    meet(&beside(port, 8, Duration::from_secs(20)));
}

#[test]
fn what_a_stranger_says_in_pe_0s_place_ends_nothing() {
    // World size, twice the same PE, PEs that are missing: verdicts as PE 0 might say them, without a proof.
    for verdict in [&[3, 1, 2, 4][..], &[4, 1], &[6, 9, 1, 2], &[]] {
        let verdict: Vec<u8> = verdict.iter().flat_map(|number: &u32| number.to_le_bytes()).collect();
        stranger_says(&frame(REFUSE, 0, &verdict));
    }
    stranger_says(b"CGRT\x09\0\x05\0................");
    stranger_says(&frame(CHALLENGE, 0, &[5; 64]));
    stranger_says(b"HTTP/1.1 400 Bad Request\r\n\r\n");
}

#[test]
fn a_stranger_of_another_version_is_told_at_the_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.write_all(b"CGRT\x09\0\x05\0................");
        }
    });
    let outcome = connect(&beside(port, 1, Duration::from_millis(300))[1]).map(drop);
    assert!(matches!(outcome, Err(BootstrapError::Version { hub: 9, peer: 3 })), "{outcome:?}");
}

/// Someone passes on what a PE and PE 0 say: each knows the token, but does not prove it to the one it talks to.
#[test]
fn nobody_stands_between() {
    attacked(|hub| {
        let between = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = between.local_addr().unwrap().port();
        let passes = thread::spawn(move || {
            let (mut peer, mut hub) = (between.accept().unwrap().0, call(hub));
            let (mut said, mut challenge) = ([0; 92], [0; 88]);
            peer.read_exact(&mut said).unwrap();
            hub.write_all(&said).unwrap();
            hub.read_exact(&mut challenge).unwrap();
            peer.write_all(&challenge).unwrap();
            peer.read(&mut said).unwrap_or(0)
        });
        let outcome = connect(&beside(port, 1, Duration::from_secs(1))[3]).map(drop);
        assert!(matches!(outcome, Err(BootstrapError::WrongToken)), "{outcome:?}");
        assert_eq!(passes.join().unwrap(), 0, "bytes of a proof");
    });
}

/// One after the other they would take longer than there is time.
#[test]
fn silent_strangers_at_the_ports_hold_nobody_up() {
    let (port, _listeners) = squatters(15);
    meet(&beside(port, 23, Duration::from_secs(10)));
    let begun = Instant::now();
    let outcome = connect(&beside(port, 15, Duration::from_millis(300))[1]).map(drop);
    assert!(matches!(outcome, Err(BootstrapError::Unreachable { .. })), "{outcome:?}");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

/// This test again, as PE 0 of a job of `npes` that may have so many open files, as `ulimit` says it.
fn with_few_files(test: &str, files: &str, port: &Port, npes: u32) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("ulimit {files}; exec \"$0\" --exact {test} --nocapture")])
        .arg(std::env::current_exe().unwrap())
        .env("CONGRUENT_PE", "0")
        .env("CONGRUENT_NPES", npes.to_string())
        .env("CONGRUENT_RENDEZVOUS", port.address().to_string())
        .env("CONGRUENT_JOB_TOKEN", "test")
        .stdout(Stdio::piped());
    command
}

/// What PE 0 with few files does in its process.
fn few_files_pe() -> bool {
    let is_pe = std::env::var_os("CONGRUENT_PE").is_some();
    if is_pe {
        match Bootstrap::from_env().unwrap().connect() {
            Ok(control) => {
                control.all_gather(&control.pe().to_le_bytes()).unwrap();
                control.depart();
                println!("ENDED well");
            }
            Err(error) => println!("ENDED {error}"),
        }
    }
    is_pe
}

/// All PEs of a job but PE 0.
fn the_others(port: &Port, npes: u32) {
    let name = "congruent".to_string();
    thread::scope(|scope| {
        let join = |pe| {
            let job = Job { name: name.clone(), deadline: Duration::from_secs(10), ..port.job(pe, npes) };
            let control = connect(&job).unwrap();
            assert_eq!(control.all_gather(&pe.to_le_bytes()).unwrap().len(), npes as usize);
            control.depart();
        };
        (1..npes).for_each(|pe| drop(scope.spawn(move || join(pe))));
    });
}

/// Who is not sent away leaves after 2 s: PE 0 would need half a minute to see the last of them.
#[test]
fn a_job_starts_though_strangers_take_all_files() {
    if few_files_pe() {
        return;
    }
    many_files();
    let port = Port::reserve();
    let hub = with_few_files("a_job_starts_though_strangers_take_all_files", "-n 48", &port, NPES)
        .env("CONGRUENT_BOOTSTRAP_DEADLINE", "10")
        .spawn()
        .unwrap();
    let held: Vec<_> = (0..500).map(|_| call(port.address())).collect();
    the_others(&port, NPES);
    drop(held);
    let said = String::from_utf8(hub.wait_with_output().unwrap().stdout).unwrap();
    assert!(said.contains("ENDED well"), "{said}");
}

/// What may be raised is: 40 PEs take more than 24 files.
#[test]
fn a_soft_limit_is_raised_as_far_as_the_job_needs() {
    if few_files_pe() {
        return;
    }
    let port = Port::reserve();
    let hub = with_few_files("a_soft_limit_is_raised_as_far_as_the_job_needs", "-Sn 24", &port, 40);
    let hub = { hub }.env("CONGRUENT_BOOTSTRAP_DEADLINE", "10").spawn().unwrap();
    the_others(&port, 40);
    let said = String::from_utf8(hub.wait_with_output().unwrap().stdout).unwrap();
    assert!(said.contains("ENDED well"), "{said}");
}

/// PE 0 of a job that nobody else comes to; soon it has no files left. Says how long its thread has run by then.
fn full_pe() {
    let mut schedstat = File::open("/proc/thread-self/schedstat").unwrap();
    thread::spawn(|| {
        // Its port is open by then.
        thread::sleep(Duration::from_millis(500));
        let _all: Vec<_> = iter::from_fn(|| File::open("/dev/null").ok()).collect();
        println!("FULL");
        thread::sleep(Duration::from_secs(60));
    });
    let ended = Bootstrap::from_env().unwrap().connect();
    let mut ran = String::new();
    schedstat.read_to_string(&mut ran).unwrap();
    println!("RAN {}", ran.split(' ').next().unwrap());
    assert!(ended.is_err());
}

/// Strangers that cannot be let in keep the listener ready: who only polled it would not rest.
#[test]
fn a_door_that_cannot_be_opened_costs_no_time() {
    if std::env::var_os("CONGRUENT_PE").is_some() {
        return full_pe();
    }
    let port = Port::reserve();
    let mut hub = with_few_files("a_door_that_cannot_be_opened_costs_no_time", "-n 48", &port, NPES)
        .env("CONGRUENT_BOOTSTRAP_DEADLINE", "4")
        .spawn()
        .unwrap();
    let mut said = BufReader::new(hub.stdout.take().unwrap()).lines().map(Result::unwrap);
    said.find(|line| line.ends_with("FULL")).unwrap();
    let _held: Vec<_> = (0..3).map(|_| call(port.address())).collect();
    let ran = said.find_map(|line| line.strip_prefix("RAN ").map(|ran| ran.parse().unwrap()));
    hub.wait().unwrap();
    let ran = Duration::from_nanos(ran.unwrap());
    assert!(ran < Duration::from_millis(400), "it ran for {ran:?} of about 3 s");
}

#[test]
fn too_few_files_for_the_job_are_told_at_once() {
    if few_files_pe() {
        return;
    }
    let port = Port::reserve();
    let hub = with_few_files("too_few_files_for_the_job_are_told_at_once", "-n 32", &port, 24).output().unwrap();
    let said = String::from_utf8(hub.stdout).unwrap();
    assert!(said.contains("24 PEs take") && said.contains("the limit is 32"), "{said}");
}
