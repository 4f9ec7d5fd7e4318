//! Where a family runs: the cells of the matrix of widths and PEs, with PEs as threads or as processes.

use std::ffi::OsString;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};
use std::{env, io};

use congruent::{Builder, Error, World};
use congruent_transports::Faults;
use socket2::{Domain, Socket, Type};

/// How wide and how many: lanes of a warp, and PEs.
pub type Shape = (u32, usize);

/// With this variable set to `all`, a family runs at every width with every number of PEs, not only in the shapes chosen for
/// it; with `few`, in a small one of them at width 1 and one with several lanes.
const SHAPES: &str = "CONGRUENT_TEST_SHAPES";

/// Whether everything is to be tried, and not only what was chosen.
pub fn all_shapes() -> bool {
    env::var_os(SHAPES).is_some_and(|shapes| shapes == "all")
}

/// Whether a part of what was chosen is enough.
pub fn few_shapes() -> bool {
    env::var_os(SHAPES).is_some_and(|shapes| shapes == "few")
}

/// The shapes chosen for a family, or all of them, or a few.
pub(super) fn shapes_of(chosen: &[Shape]) -> Vec<Shape> {
    if few_shapes() {
        let smallest = |wide: bool| {
            let several = chosen.iter().filter(|&&(width, npes)| (width > 1) == wide && npes > 1);
            several.min_by_key(|&&(_, npes)| npes).copied()
        };
        return [smallest(false), smallest(true)].into_iter().flatten().collect();
    }
    if !all_shapes() {
        return chosen.to_vec();
    }
    let (widths, many) = ([1, 4, 32], chosen.iter().copied().filter(|&(_, npes)| npes > 8));
    widths.into_iter().flat_map(|width| (1..=8).map(move |npes| (width, npes))).chain(many).collect()
}

/// How many PEs a family runs with where widths make no difference; where a few are enough, the first number of several.
fn few_of(many: &[usize]) -> impl Iterator<Item = usize> {
    let skipped = if few_shapes() { many.iter().take_while(|&&npes| npes == 1).count() } else { 0 };
    many.iter().copied().skip(skipped).take(if few_shapes() { 1 } else { usize::MAX })
}

/// The heap of each PE. Families free what they allocate, so this is what one of them needs at once.
const HEAP: u64 = 32 << 20;

/// One job at a time: the PEs of a few already share the cores of a small machine. Only those whose kernels one thread executes run beside
/// each other.
static MACHINE: RwLock<()> = RwLock::new(());

/// Held by a job that has the machine to itself.
pub(super) fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a family with PEs as threads of this process, in each of these shapes.
///
/// # Panics
/// Where a PE fails.
pub fn threads(family: fn(&mut World) -> Result<(), Error>, shapes: &[Shape]) {
    local(family, shapes, World::builder);
}

/// Runs a family with PEs as threads of this process, with emulated multicast, in each of these shapes.
///
/// # Panics
/// Where a PE fails.
pub fn threads_with_multicast(family: fn(&mut World) -> Result<(), Error>, shapes: &[Shape]) {
    local(family, shapes, with_multicast);
}

fn with_multicast() -> Builder {
    World::builder().multicast(true)
}

/// Runs a family with PEs as threads of this process, each reached through its proxy, in each of these shapes.
///
/// # Panics
/// Where a PE fails.
pub fn proxied(family: fn(&mut World) -> Result<(), Error>, shapes: &[Shape]) {
    local(family, shapes, || World::builder().proxied(true));
}

/// How many seeds a family has: a few, or with [`SHAPES`] one or many.
fn seeds() -> u64 {
    if all_shapes() {
        100
    } else if few_shapes() {
        1
    } else {
        4
    }
}

/// The seed of a child whose network goes wrong.
const SEED: &str = "CONGRUENT_TEST_SEED";

/// What limits cases where each operation takes a network's round trip to so many elements, unless everything is to be tried.
pub(super) fn limit(most: u32) -> Option<(&'static str, OsString)> {
    (!all_shapes()).then(|| (super::LIMIT, most.to_string().into()))
}

/// The limit where processors execute natively, and where they are emulated.
pub(super) const NATIVE: u32 = 300;
pub(super) const EMULATED: u32 = 60;

/// Runs a family with PEs as threads, each reached through its proxy over a network that goes wrong, by seeds. Each is this test
/// binary again.
///
/// # Panics
/// Where a PE fails.
pub fn faulty(test: &str, family: fn(&mut World) -> Result<(), Error>) {
    if let Some(seed) = env::var(SEED).ok().and_then(|seed| seed.parse().ok()) {
        return run_here(family, World::builder().faulty(Faults::seeded(seed)));
    }
    let _alone = alone();
    for seed in 0..seeds() {
        let (width, npes) = [(1, 2), (1, 3), (4, 2), (1, 4)][seed as usize % 4];
        let job = format!("seed {seed}, width {width}, {npes} PEs as threads");
        let set = [(SEED, seed), ("CONGRUENT_CPU_WIDTH", width), (THREADS, npes)];
        let set = set.map(|(name, value)| (name, value.to_string().into())).into_iter().chain(limit(NATIVE));
        let child = start(test, &set.collect::<Vec<_>>()).unwrap_or_else(|error| panic!("{job}: {error}"));
        finish(&job, vec![child]).unwrap_or_else(|error| panic!("{job}: {error}"));
    }
}

fn local(family: fn(&mut World) -> Result<(), Error>, shapes: &[Shape], builder: fn() -> Builder) {
    let _alone = alone();
    for (width, npes) in shapes_of(shapes) {
        if let Err(error) = builder().heap(HEAP).width(width).local(npes, family) {
            panic!("width {width}, {npes} PEs as threads: {error}");
        }
    }
}

/// What a PE says when it has run its family to the end, so that a test that the child did not find is no success.
pub const CONFORMS: &str = "this PE conforms";

/// How a line begins that a PE measured something in: the test says it again, past the harness that hides it.
pub const MEASURED: &str = "MEASURED ";

/// Runs a family with PEs as processes, in each of these shapes. Each is this test binary again, which runs the test named
/// `test` and nothing else; there this function finds its place in the environment and runs the family.
///
/// # Panics
/// Where a PE fails.
pub fn processes(test: &str, family: fn(&mut World) -> Result<(), Error>, shapes: &[Shape]) {
    jobs(test, family, shapes, World::builder);
}

/// The same with emulated multicast.
///
/// # Panics
/// Where a PE fails.
pub fn processes_with_multicast(test: &str, family: fn(&mut World) -> Result<(), Error>, shapes: &[Shape]) {
    jobs(test, family, shapes, with_multicast);
}

fn jobs(test: &str, family: fn(&mut World) -> Result<(), Error>, shapes: &[Shape], builder: fn() -> Builder) {
    if is_child() {
        return run_here(family, builder());
    }
    let _alone = alone();
    for (width, npes) in shapes_of(shapes) {
        let job = format!("width {width}, {npes} PEs as processes");
        let set = [("CONGRUENT_MACHINE", "cpu".into()), ("CONGRUENT_CPU_WIDTH", width.to_string().into())];
        run_job(&job, test, npes, &set).unwrap_or_else(|error| panic!("{job}: {error}"));
    }
}

/// Runs a family on the CUDA machine, with PEs as threads of one process and as processes. Each is this test binary again,
/// with these variables, which find its driver.
///
/// # Panics
/// Where a PE fails.
pub fn cuda(
    test: &str,
    family: fn(&mut World) -> Result<(), Error>,
    many: &[usize],
    driver: impl FnOnce() -> Vec<(&'static str, OsString)>,
) {
    if is_child() {
        return run_here(family, World::builder());
    }
    let set = driver();
    cuda_processes(test, family, many, || set.clone());
    cuda_threads(test, family, many, || set);
}

/// The same with PEs as processes only.
///
/// # Panics
/// Where a PE fails.
pub fn cuda_processes(
    test: &str,
    family: fn(&mut World) -> Result<(), Error>,
    many: &[usize],
    driver: impl FnOnce() -> Vec<(&'static str, OsString)>,
) {
    if is_child() {
        return run_here(family, World::builder());
    }
    let _alone = alone();
    let set = [vec![("CONGRUENT_MACHINE", "cuda".into())], driver()].concat();
    for npes in few_of(many) {
        let job = format!("{npes} PEs as processes");
        run_job(&job, test, npes, &set).unwrap_or_else(|error| panic!("{job}: {error}"));
    }
}

/// The same with PEs as threads only.
///
/// # Panics
/// Where a PE fails.
pub fn cuda_threads(
    test: &str,
    family: fn(&mut World) -> Result<(), Error>,
    many: &[usize],
    driver: impl FnOnce() -> Vec<(&'static str, OsString)>,
) {
    if is_child() {
        return run_here(family, World::builder());
    }
    let _beside_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let set = [vec![("CONGRUENT_MACHINE", "cuda".into())], driver()].concat();
    for npes in few_of(many) {
        let job = format!("{npes} PEs as threads");
        let set = [&set[..], &[(THREADS, npes.to_string().into())]].concat();
        let child = start(test, &set).unwrap_or_else(|error| panic!("{job}: {error}"));
        finish(&job, vec![child]).unwrap_or_else(|error| panic!("{job}: {error}"));
    }
}

/// Set for a child whose PEs are threads: how many.
const THREADS: &str = "CONGRUENT_TEST_THREADS";

/// Whether this is a process that a test has started.
pub fn is_child() -> bool {
    env::var_os("CONGRUENT_PE").is_some() || env::var_os(THREADS).is_some()
}

/// Runs a family as the environment says, and says when it has run.
pub(super) fn run_here(family: impl Fn(&mut World) -> Result<(), Error> + Sync, builder: Builder) {
    let threads = env::var(THREADS).ok().and_then(|many| many.parse().ok());
    let builder = builder.heap(HEAP);
    let ended = match threads {
        Some(many) => builder.local(many, family).map(drop),
        None => builder.build().map_err(Error::from).and_then(|mut world| family(&mut world)),
    };
    match ended {
        Ok(()) => println!("{CONFORMS}"),
        Err(error) => panic!("{error}"),
    }
}

pub(super) fn run_job(job: &str, test: &str, npes: usize, set: &[(&str, OsString)]) -> io::Result<()> {
    let port = Port::reserve()?;
    let seat = |pe: usize| {
        let seat = [
            ("CONGRUENT_PE", pe.to_string().into()),
            ("CONGRUENT_NPES", npes.to_string().into()),
            ("CONGRUENT_RENDEZVOUS", format!("127.0.0.1:{}", port.number).into()),
            ("CONGRUENT_JOB_TOKEN", job.into()),
        ];
        start(test, &[set, &seat].concat())
    };
    finish(job, (0..npes).map(seat).collect::<io::Result<_>>()?)
}

/// Starts this test binary again, with these variables and nothing but one test.
fn start(test: &str, set: &[(&str, OsString)]) -> io::Result<Child> {
    start_by(Command::new(env::current_exe()?), test, set)
}

/// The same by a command that ends with this test binary.
pub(super) fn start_by(mut command: Command, test: &str, set: &[(&str, OsString)]) -> io::Result<Child> {
    command
        .args(["--exact", test, "--include-ignored", "--nocapture"])
        .envs(set.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
}

pub(super) fn finish(job: &str, pes: Vec<Child>) -> io::Result<()> {
    let ends = pes.into_iter().map(Child::wait_with_output).collect::<io::Result<Vec<_>>>()?;
    let mut failures = String::new();
    for (end, pe) in ends.iter().zip(0..) {
        let (said, complained) = (String::from_utf8_lossy(&end.stdout), String::from_utf8_lossy(&end.stderr));
        for line in said.lines().filter(|line| line.starts_with(MEASURED)) {
            // Behind a name that the harness has begun a line with. A closed output is no failure of what was tested.
            let _ = write!(io::stdout(), "\n{line}\n");
        }
        if !end.status.success() || !said.contains(CONFORMS) {
            failures += &format!("\nPE {pe}, {}:\n{said}{complained}", end.status);
        }
    }
    assert!(failures.is_empty(), "{job}:{failures}");
    Ok(())
}

/// A loopback port that is bound but not listened at, so that PE 0 can have it and nobody else is given it by chance.
struct Port {
    number: u16,
    _held: Socket,
}

impl Port {
    fn reserve() -> io::Result<Self> {
        let held = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        held.set_reuse_address(true)?;
        held.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into())?;
        let number = held.local_addr()?.as_socket().map_or(0, |address| address.port());
        Ok(Self { number, _held: held })
    }
}
