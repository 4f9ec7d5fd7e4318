//! PEs that reach each other by libfabric: processes of this host, and of two hosts that are network namespaces.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::process::Command;

use congruent::device::Pe;
use congruent::{Error, World};
use congruent_transports::Fabric;

use super::machines::{
    EMULATED, NATIVE, Shape, alone, few_shapes, finish, is_child, limit, run_here, run_job, shapes_of, start_by,
};
use crate::namespaces::Hosts;
use crate::{guest, skip};

/// Runs a family with PEs as processes that reach each other by libfabric, in each of these shapes.
///
/// # Panics
/// Where a PE fails.
pub fn fabric(test: &str, family: fn(&mut World) -> Result<(), Error>, shapes: &[Shape]) {
    fabric_by("tcp;ofi_rxm", test, family, &shapes_of(shapes));
}

/// The same by another provider of libfabric, in these shapes only: what is asked of providers is the same in all.
///
/// # Panics
/// Where a PE fails.
pub fn fabric_by(provider: &str, test: &str, family: fn(&mut World) -> Result<(), Error>, shapes: &[Shape]) {
    if is_child() {
        return run_here(family, World::builder());
    }
    let _alone = alone();
    if let Err(error) = Fabric::find() {
        return skip(test, &error.to_string());
    }
    let mut set = vec![("CONGRUENT_LIBFABRIC_PROVIDER", provider)];
    if provider != "shm" {
        set.push(("CONGRUENT_SOCKET_IFNAME", "lo"));
    }
    over("fabric", &set, NATIVE, test, shapes);
}

/// Runs a family with PEs as processes of a virtual machine that reach each other by its RDMA device, in these shapes only: it is emulated.
///
/// # Panics
/// Where a PE fails.
pub fn verbs(test: &str, family: fn(&mut World) -> Result<(), Error>, shapes: &[Shape]) {
    if is_child() {
        return run_here(family, World::builder());
    }
    if guest::is_inside(test) {
        over("verbs", &[], EMULATED, test, shapes);
    }
}

/// The same of two PEs on virtual GPUs, whose driver is told this.
///
/// # Panics
/// Where a PE fails.
pub fn verbs_gpus(test: &str, family: fn(&mut World) -> Result<(), Error>, driver: &str) {
    if is_child() {
        return run_here(family, World::builder());
    }
    if guest::is_inside(test) {
        let gpus = [("CONGRUENT_MACHINE", "virtual"), ("CONGRUENT_VIRTUAL_DRIVER", driver)];
        over("verbs", &gpus, EMULATED, test, &[(1, 2)]);
    }
}

/// Runs this test's jobs of PEs as processes, each reached through its proxy by this transport; where a few are enough, the first.
fn over(transport: &str, set: &[(&'static str, &str)], most: u32, test: &str, shapes: &[Shape]) {
    for &(width, npes) in shapes.iter().take(if few_shapes() { 1 } else { usize::MAX }) {
        let job = format!("width {width}, {npes} PEs by {transport}");
        let all = [
            ("CONGRUENT_MACHINE", "cpu".into()),
            ("CONGRUENT_CPU_WIDTH", width.to_string().into()),
            ("CONGRUENT_P2P_DISABLE", "1".into()),
            ("CONGRUENT_TRANSPORT", transport.into()),
        ];
        let set = set.iter().map(|&(name, value)| (name, value.into()));
        let set: Vec<_> = all.into_iter().chain(set).chain(limit(most)).collect();
        run_job(&job, test, npes, &set).unwrap_or_else(|error| panic!("{job}: {error}"));
    }
}

/// How many PEs each host has, for a PE of a test with two hosts.
const EACH: &str = "CONGRUENT_TEST_EACH";

/// Runs a family on two hosts with so many PEs each. Between hosts nothing is mapped, so that who loads or stores there is
/// ended by the system; and what the network devices count has grown.
///
/// # Panics
/// Where a PE fails.
pub fn hosts(test: &str, family: fn(&mut World) -> Result<(), Error>, each: &[usize]) {
    cuda_hosts(test, family, each, Vec::new);
}

/// The same on the machine that `driver` says, where it says one.
///
/// # Panics
/// Where a PE fails.
pub fn cuda_hosts(
    test: &str,
    family: fn(&mut World) -> Result<(), Error>,
    each: &[usize],
    driver: impl FnOnce() -> Vec<(&'static str, OsString)>,
) {
    if is_child() {
        let both = |world: &mut World| are_apart(world).and_then(|()| family(world));
        return run_here(both, World::builder());
    }
    let _alone = alone();
    if let Err(error) = Fabric::find() {
        return skip(test, &error.to_string());
    }
    let hosts = match Hosts::new() {
        Ok(hosts) => hosts,
        Err(error) => return skip(test, &format!("no network namespaces can be made: {error}")),
    };
    let set = driver();
    for &each in each.iter().take(if few_shapes() { 1 } else { each.len() }) {
        run(&hosts, test, each, &set).unwrap_or_else(|error| panic!("two hosts of {each} PEs: {error}"));
    }
}

/// Runs a family on two virtual machines with so many PEs each, which reach each other by RDMA devices: nobody says so, they find them.
///
/// # Panics
/// Where a PE fails.
pub fn verbs_hosts(test: &str, family: fn(&mut World) -> Result<(), Error>, each: usize) {
    if is_child() {
        let both = |world: &mut World| are_apart(world).and_then(|()| family(world));
        return run_here(both, World::builder());
    }
    let Some(host) = guest::host(test) else { return };
    let sent = || -> u64 {
        let counted = fs::read_to_string("/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts");
        counted.ok().and_then(|packets| packets.trim().parse().ok()).unwrap_or_default()
    };
    let before = sent();
    let job = format!("host {host} of two with {each} PEs");
    let start = |pe: usize| {
        let command = Command::new(env::current_exe()?);
        start_by(command, test, &seat(pe, each, "10.78.0.1").into_iter().chain(limit(EMULATED)).collect::<Vec<_>>())
    };
    let pes = (host * each..(host + 1) * each).map(start).collect::<io::Result<_>>();
    pes.and_then(|pes| finish(&job, pes)).unwrap_or_else(|error| panic!("{job}: {error}"));
    // A packet has at most 4096 bytes.
    let packets = sent() - before;
    assert!(packets > MOVED / 4096, "{packets} packets went to the other host");
}

/// The place of a PE among so many on each of two hosts, of which the first has this address.
fn seat(pe: usize, each: usize, address: &str) -> Vec<(&'static str, OsString)> {
    vec![
        ("CONGRUENT_MACHINE", "cpu".into()),
        ("CONGRUENT_PE", pe.to_string().into()),
        ("CONGRUENT_NPES", (2 * each).to_string().into()),
        ("CONGRUENT_RENDEZVOUS", format!("{address}:29500").into()),
        ("CONGRUENT_JOB_TOKEN", "two hosts".into()),
        (EACH, each.to_string().into()),
    ]
}

/// What goes from host to host at least: [`are_apart`] puts so much.
const MOVED: u64 = 1 << 20;

/// Whether PEs of one host, and only those, reach each other by loads and stores.
fn are_apart(world: &mut World) -> Result<(), Error> {
    let each: usize = env::var(EACH).ok().and_then(|each| each.parse().ok()).unwrap_or(1);
    for pe in 0..world.npes() {
        let near = pe / each == world.pe().index() / each;
        assert_eq!(world.is_direct(Pe::new(pe as u32)), near, "PE {pe} from PE {}", world.pe().index());
    }
    let (me, stream) = (world.pe().index() as u64, world.stream()?);
    let (to, from) = (world.alloc::<u64>(MOVED as usize / 8)?, world.alloc::<u64>(MOVED as usize / 8)?);
    from.fill(me + 1)?;
    world.barrier()?;
    // Each PE to the one with its place on the other host.
    let peer = (world.pe().index() + each) % world.npes();
    world.put(&stream, to.view().at(world.rank(peer as u32)?), from.view())?;
    world.synchronize(&stream)?;
    world.barrier()?;
    assert!(to.to_vec()?.iter().all(|&word| word == peer as u64 + 1));
    Ok(())
}

/// Runs a test on both, with so many PEs each.
fn run(hosts: &Hosts, test: &str, each: usize, set: &[(&'static str, OsString)]) -> io::Result<()> {
    let before = hosts.bytes()?;
    let start = |pe: usize| {
        let host = pe / each;
        let host_id = ("CONGRUENT_HOST_ID", host.to_string().into());
        let seat = seat(pe, each, Hosts::ADDRESSES[0]).into_iter().chain([host_id]).chain(limit(NATIVE));
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &hosts.name(host)]).arg(env::current_exe()?);
        start_by(command, test, &seat.chain(set.iter().cloned()).collect::<Vec<_>>())
    };
    let pes = (0..2 * each).map(start).collect::<io::Result<_>>()?;
    finish(&format!("two hosts of {each} PEs"), pes)?;
    let moved = hosts.bytes()? - before;
    assert!(moved > MOVED, "{moved} bytes went from host to host");
    Ok(())
}
