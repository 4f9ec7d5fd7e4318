//! The conformance suite with every peer reached through the proxy by an RDMA device, PEs as processes of a virtual machine. The families
//! are those of `conformance_proxied.rs`. Some run on two virtual machines, too, with several PEs each, where those of one machine reach each
//! other by loads and stores.

use congruent::device::Signal;
use congruent::{Error, World};
use congruent_tests::conformance::{self, Shape, verbs, verbs_gpus, verbs_hosts};

/// Few, because an emulated processor does all of it.
const SHAPES: [Shape; 1] = [(1, 2)];

macro_rules! families {
    ($($family:ident $(, $ignored:meta)?;)*) => {$(
        #[test]
        $(#[$ignored])?
        fn $family() {
            verbs(stringify!($family), conformance::$family, &SHAPES);
        }
    )*};
}

families! {
    rma, ignore = "takes long: ./check --full runs it";
    signals;
    atomics, ignore = "takes long: ./check --full runs it";
    ordering, ignore = "takes long: ./check --full runs it";
    teams, ignore = "takes long: ./check --full runs it";
    groups, ignore = "takes long: ./check --full runs it";
    streams, ignore = "takes long: ./check --full runs it";
}

macro_rules! families_of_two_hosts {
    ($($test:ident: $family:ident, $each:literal $(, $ignored:meta)?;)*) => {$(
        #[test]
        $(#[$ignored])?
        fn $test() {
            verbs_hosts(stringify!($test), conformance::$family, $each);
        }
    )*};
}

families_of_two_hosts! {
    signals_of_two_hosts: signals, 2;
    streams_of_two_hosts: streams, 1, ignore = "takes long: ./check --full runs it";
    rma_of_two_hosts: rma, 1, ignore = "takes long: ./check --full runs it";
    ordering_of_two_hosts: ordering, 2, ignore = "takes long: ./check --full runs it";
    atomics_of_two_hosts: atomics, 2, ignore = "takes long: ./check --full runs it";
    teams_of_two_hosts: teams, 2, ignore = "takes long: ./check --full runs it";
    groups_of_two_hosts: groups, 2, ignore = "takes long: ./check --full runs it";
}

/// The device does atomics of the words that are its own.
#[test]
fn words_of_the_device() {
    verbs("words_of_the_device", by_the_device, &SHAPES);
}

/// The same of two PEs on each of two hosts, of which those of one host reach each other by loads and stores.
#[test]
fn words_of_the_devices_of_two_hosts() {
    verbs_hosts("words_of_the_devices_of_two_hosts", by_the_device, 2);
}

fn by_the_device(world: &mut World) -> Result<(), Error> {
    let machine = world.machine();
    assert!(machine.contains("NIC atomics"), "{machine}");
    conformance::nic_words(world)
}

/// The RDMA device reads and writes the memory of virtual GPUs itself.
#[test]
fn memory_of_gpus() {
    verbs_gpus("memory_of_gpus", |world| pass_around(world, false), "rdma=1");
}

/// The same where their driver has no dma-buf of it.
#[test]
fn memory_of_gpus_without_a_dma_buf() {
    let driver = "rdma=1,fail=cuMemGetHandleForAddressRange:1:CUDA_ERROR_NOT_SUPPORTED";
    verbs_gpus("memory_of_gpus_without_a_dma_buf", |world| pass_around(world, false), driver);
}

/// Virtual GPUs keep their memory to themselves, and proxies stage what they send.
#[test]
fn staged_memory_of_gpus() {
    verbs_gpus("staged_memory_of_gpus", |world| pass_around(world, true), "rdma=0");
}

/// Long and short puts with their signals, gets and atomics, by calls on a stream.
fn pass_around(world: &mut World, staged: bool) -> Result<(), Error> {
    const LEN: usize = 50_000;
    let machine = world.machine();
    assert!(machine.contains("RDMA on rxe0"), "{machine}");
    assert_eq!(machine.contains("staged through the host"), staged, "{machine}");
    let (me, npes, stream) = (world.pe().raw(), world.npes() as u32, world.stream()?);
    let (mine, theirs, back) = (world.alloc::<u32>(LEN)?, world.alloc::<u32>(LEN)?, world.alloc::<u32>(LEN)?);
    let (came, count) = (world.alloc::<Signal>(1)?, world.alloc::<u64>(1)?);
    let next = world.rank((me + 1) % npes)?;
    let of = |pe: u32, round: u32| (0..LEN as u32).map(move |i| i * 100 + pe * 10 + round);
    for (round, len) in (1..).zip([LEN, 7, 3000]) {
        mine.write(0, &of(me, round).collect::<Vec<_>>())?;
        world.put_signal(
            &stream,
            theirs.view().slice(..len).at(next),
            mine.view().slice(..len),
            came.view().at(next).set(round.into()),
        )?;
        world.wait_at_least(&stream, came.view(), round.into())?;
        world.get(&stream, back.view().slice(..len), theirs.view().slice(..len).at(next))?;
        world.add(&stream, count.view().at(world.rank(0)?), 1)?;
        world.synchronize(&stream)?;
        let before = (me + npes - 1) % npes;
        assert!(of(before, round).take(len).eq(theirs.to_vec()?[..len].iter().copied()), "round {round}");
        assert!(of(me, round).take(len).eq(back.to_vec()?[..len].iter().copied()), "round {round}");
        world.barrier()?;
    }
    assert_eq!(count.to_vec()?[0], if me == 0 { 3 * u64::from(npes) } else { 0 });
    Ok(())
}
