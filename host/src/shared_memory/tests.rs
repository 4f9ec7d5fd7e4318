use super::*;
use crate::bootstrap::{Bootstrap, Job, Launcher, Rendezvous, Token, local};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

const HEAP: usize = 2 * GRANULARITY;

/// Writes `value` at the start of PE `pe`'s part.
fn write(reservation: &Reservation, pe: usize, value: u64) {
    // SAFETY: the address is in the reservation and aligned; no other PE writes this part, and all read after a gather.
    unsafe { reservation.base().add(pe * reservation.stride()).cast::<u64>().write_volatile(value) };
}

fn read(reservation: &Reservation, pe: usize) -> u64 {
    // SAFETY: as in `write`.
    unsafe { reservation.base().add(pe * reservation.stride()).cast::<u64>().read_volatile() }
}

/// What one PE does, however it was started: all see what each wrote, at the same address.
fn exchange(control: &Control) {
    for round in 0..3 {
        let reservation = reserve(control, HEAP, HEAP).unwrap();
        assert_eq!(reservation.stride(), HEAP);
        assert_eq!(read(&reservation, control.pe() as usize), 0);
        write(&reservation, control.pe() as usize, 100 * round + u64::from(control.pe()));
        let bases = control.all_gather(&reservation.base().addr().to_le_bytes()).unwrap();
        assert!(bases.windows(2).all(|pair| pair[0] == pair[1]));
        for pe in 0..control.npes() as usize {
            assert_eq!(read(&reservation, pe), 100 * round + pe as u64);
        }
        control.all_gather(&[]).unwrap();
    }
    control.depart();
}

fn each<T: Send>(controls: &[Control], body: impl Fn(&Control) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let running: Vec<_> = controls.iter().map(|control| scope.spawn(|| body(control))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn threads_share_one_mapping() {
    let controls = local(4).unwrap();
    each(&controls, exchange);
}

const TEST: &str = "shared_memory::tests::processes_share_memory_at_one_address";

/// Runs itself again as each of its PEs.
#[test]
fn processes_share_memory_at_one_address() {
    if std::env::var_os("CONGRUENT_PE").is_some() {
        return exchange(&Bootstrap::from_env().unwrap().connect().unwrap());
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let start = |pe: u32| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", TEST])
            .env("CONGRUENT_PE", pe.to_string())
            .env("CONGRUENT_NPES", "3")
            .env("CONGRUENT_RENDEZVOUS", format!("127.0.0.1:{port}"))
            .env("CONGRUENT_JOB_TOKEN", "shared memory test")
            // No folder is needed.
            .env("TMPDIR", "/does/not/exist")
            .env_remove("XDG_RUNTIME_DIR")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let children: Vec<_> = (0..3).map(start).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

/// Two PEs of one process that do not know it cannot both have the address: the attempts are bounded.
#[test]
fn an_address_that_is_never_free_is_an_error_for_all() {
    let name = format!("never free {}", std::process::id());
    let job = |pe| Job {
        pe,
        npes: 2,
        local_rank: None,
        name: "never free".into(),
        rendezvous: Rendezvous::File { name: name.clone() },
        token: Token::derive(b"test"),
        deadline: Duration::from_secs(20),
        launcher: Launcher::Congruent,
    };
    let controls = thread::scope(|scope| {
        let other = scope.spawn(|| crate::bootstrap::connect(&job(1)).unwrap());
        [crate::bootstrap::connect(&job(0)).unwrap(), other.join().unwrap()]
    });
    for outcome in each(&controls, |control| reserve(control, HEAP, HEAP)) {
        assert_eq!(outcome.err(), Some(ReserveError::NoAddress { bytes: 2 * HEAP }));
    }
    each(&controls, Control::depart);
}

#[test]
fn sizes_that_make_no_sense_are_refused() {
    let controls = local(2).unwrap();
    for heap_bytes in [0, 1, GRANULARITY + 1, usize::MAX, usize::MAX / 2 + 1, 1 << 50] {
        for outcome in each(&controls, |control| reserve(control, heap_bytes, 0)) {
            assert_eq!(outcome.err(), Some(ReserveError::Size { heap_bytes, npes: 2 }));
        }
    }
    let differing = each(&controls, |control| reserve(control, GRANULARITY * (1 + control.pe() as usize), 0));
    for outcome in differing {
        let expected = ReserveError::Mismatch { pe: 1, theirs: 2 * GRANULARITY, first: GRANULARITY };
        assert_eq!(outcome.err(), Some(expected));
    }
}

/// A terabyte for each PE: refused by sizes, and nobody is killed.
#[test]
fn more_than_there_is_is_refused() {
    let controls = local(2).unwrap();
    let outcomes = each(&controls, |control| reserve(control, 1 << 40, 0).err());
    let asked = ReserveError::OutOfMemory { heap_bytes: 1 << 40, npes: 2, available: 0 }.to_string();
    let asked = asked.split(':').next().unwrap();
    for outcome in outcomes {
        assert!(outcome.as_ref().is_some_and(|error| error.to_string().contains(asked)), "{outcome:?}");
    }
}

#[test]
fn only_sealed_memory_of_the_right_size_is_believed() {
    let memory = |seals| {
        let fd = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, 4096).unwrap();
        rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
        Some(fd)
    };
    assert!(sealed(memory(SEALS), 4096).is_ok());
    for (fd, bytes) in [(memory(SEALS), 8192), (memory(SealFlags::SHRINK), 4096), (None, 4096)] {
        assert_eq!(sealed(fd, bytes).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
