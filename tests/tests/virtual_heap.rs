//! The CUDA machine's heap as programs have it, over the virtual driver: growth, multicast windows, what the world takes of a
//! device, and streams. Multicast on the virtual driver is bookkeeping: what may be bound and mapped where. Kernels run natively, and
//! reach the members one by one.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking, in its helpers too")]

mod virtual_support;

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;
use std::{env, fs};

use congruent::device::{Sym, abi, kernels, team_tag};
use congruent::{AllocError, Builder, CommOptions, Error, Grid, LaunchError, MachineKind, SplitError, SymVec, World};
use congruent_tests::conformance::cuda;
use congruent_virtual_library::{built, install};
use virtual_support::borrow_default;

const MIB: usize = 1 << 20;

team_tag! {
    /// Some of the PEs, or all.
    Members
}

/// Where PEs find the virtual driver, and the PTX.
static DRIVER: LazyLock<PathBuf> = LazyLock::new(|| {
    let here = env::current_exe().unwrap().parent().unwrap().join("virtual-heap");
    install(&here, &built().unwrap()).unwrap();
    fs::write(here.join("heap.ptx"), stubs()).unwrap();
    here
});

fn driver(config: &str, others: &[(&'static str, &str)]) -> Vec<(&'static str, OsString)> {
    let mut set = vec![
        ("LD_LIBRARY_PATH", DRIVER.clone().into()),
        ("CONGRUENT_VIRTUAL_DRIVER", format!("engine=native,{config}").into()),
        ("CONGRUENT_PTX", DRIVER.join("heap.ptx").into()),
    ];
    set.extend(others.iter().map(|(name, value)| (*name, OsString::from(value))));
    set
}

/// Set for a process that [`again`] has started.
const AGAIN: &str = "CONGRUENT_TEST_AGAIN";

/// This test again in a process of its own, on a virtual driver that is so, or whether this is that process.
fn again(test: &str, cases: &[(&str, &[(&'static str, &str)])]) -> bool {
    if env::var_os(AGAIN).is_some() {
        return true;
    }
    for (config, others) in cases {
        let output = Command::new(env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(AGAIN, "1")
            .envs(driver(config, others))
            .output()
            .unwrap();
        let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && said.contains("1 passed"), "{config} {others:?}:\n{said}{complained}");
    }
    false
}

fn on_cuda(heap_mib: usize) -> Builder {
    World::builder().machine(MachineKind::Cuda).heap((heap_mib * MIB) as u64)
}

kernels! {
    /// Puts to the next PE.
    pub fn shift(block, ctx, to: Sym<u32>, from: Sym<u32>) {
        let world = ctx.world();
        ctx.put(block, to.at(world.next()), from);
        ctx.barrier(block, &world);
    }

    /// PE 0 stores to all at once.
    pub fn give(block, ctx, to: Sym<u32>, from: Sym<u32>) {
        let world = ctx.world();
        if let (Some(all), 0) = (world.multicast(to), ctx.pe().raw()) {
            ctx.put_multicast(block, all, from);
        }
        ctx.barrier(block, &world);
    }
}

/// What the virtual driver reads of PTX: which entries there are, and how large their parameters.
fn stubs() -> String {
    let entry = |name: &str| {
        let params = [size_of::<abi::Context>(), 16, 16].map(|bytes| format!(".param .align 8 .b8 p{bytes}[{bytes}]"));
        format!(".visible .entry {name}(\n{}\n)\n{{\n\tret;\n}}\n", params.join(",\n"))
    };
    [".version 8.0\n.target sm_80\n.address_size 64\n\n", &entry("shift"), &entry("give")].concat()
}

/// The end of every PE's `words` reaches the next PE; through a window PE 0's reaches all.
fn reach(world: &mut World, words: &SymVec<u32>) -> Result<(), Error> {
    let (stream, me, npes) = (world.stream()?, world.pe().raw(), world.npes() as u32);
    let from = world.alloc::<u32>(1000)?;
    let to = words.slice(words.len() - from.len()..)?;
    from.fill(100 + me)?;
    world.barrier()?;
    let holds = |expected: u32| {
        let mut got = [0; 1000];
        words.read(words.len() - got.len(), &mut got).map(|()| assert_eq!(got, [expected; 1000]))
    };
    world.run(&stream, shift, Grid::one(32), (to, from.view()))?;
    holds(100 + (me + npes - 1) % npes)?;
    world.barrier()?;
    if world.team().window() != 0 {
        world.run(&stream, give, Grid::one(32), (to, from.view()))?;
        holds(100)?;
        world.barrier()?;
    }
    Ok(())
}

fn grows(world: &mut World) -> Result<(), Error> {
    let (before, pe) = (world.memory(), world.pe().raw());
    assert_eq!((before.heap_bytes, before.heap_max_bytes), (32 << 20, 80 << 20));
    let small = world.alloc::<u32>(MIB)?;
    let free = world.heap_stats().free;
    let large = world.alloc::<u32>(8 * MIB)?;
    let after = world.memory().heap_bytes;
    assert!(after >= before.heap_bytes + (4 << 20) && after <= before.heap_max_bytes, "{after}");
    assert_eq!(world.heap_stats().free, free + (after - before.heap_bytes) - (32 << 20));
    assert!(large.to_vec()?.iter().all(|&word| word == 0));
    small.fill(pe)?;
    reach(world, &large)?;
    assert!(small.to_vec()?.iter().all(|&word| word == pe));
    reach(world, &small)?;
    // More than it may have: the world is as it was.
    world.reclaim()?;
    world.reclaim()?;
    let stats = world.heap_stats();
    let Err(AllocError::Heap(full)) = world.alloc::<u8>(100 * MIB) else { panic!("it grew beyond its limit") };
    assert!(full.to_string().contains("CONGRUENT_HEAP_MAX"), "{full}");
    assert_eq!((world.heap_stats(), world.memory().heap_bytes), (stats, after));
    drop(large);
    world.reclaim()?;
    let reused = world.alloc::<u32>(8 * MIB)?;
    assert_eq!(world.memory().heap_bytes, after);
    reach(world, &reused)
}

#[test]
fn heaps_grow_where_they_may() {
    let devices = || driver("devices=2", &[("CONGRUENT_HEAP_MAX", "80M")]);
    cuda("heaps_grow_where_they_may", grows, &[1, 3], devices);
}

#[test]
fn heaps_of_the_cpu_machine_grow_as_well() -> Result<(), Error> {
    let builder = || World::builder().width(1).heap(32 << 20).heap_max(80 << 20);
    builder().local(3, grows)?;
    builder().proxied(true).local(2, grows)?;
    Ok(())
}

/// The driver refuses the third piece of memory: of two threads one has none to grow by, and both hear of it.
#[test]
fn a_heap_that_cannot_grow_is_an_error_on_all_pes_and_stays_as_it_was() {
    let calls =
        ["cuMemCreate", "cuMemMap", "cuMemSetAccess"].map(|call| format!("fail={call}:3:CUDA_ERROR_OUT_OF_MEMORY"));
    let cases: Vec<(&str, &[_])> = calls.iter().map(|call| (&**call, &[][..])).collect();
    if !again("a_heap_that_cannot_grow_is_an_error_on_all_pes_and_stays_as_it_was", &cases) {
        return;
    }
    let told = on_cuda(4).heap_max(16 << 20).local(2, |world| {
        let (stats, memory) = (world.heap_stats(), world.memory());
        let Err(AllocError::Grow { bytes, error }) = world.alloc::<u8>(6 * MIB) else { panic!("it grew") };
        assert!(bytes > memory.heap_bytes && bytes <= memory.heap_max_bytes);
        assert_eq!((world.heap_stats(), world.memory()), (stats, memory));
        let words = world.alloc::<u32>(2 * MIB)?;
        reach(world, &words)?;
        Ok::<_, Error>(error.to_string())
    });
    let told = told.unwrap();
    let (own, heard) = if told[0].starts_with("PE ") { (&told[1], &told[0]) } else { (&told[0], &told[1]) };
    assert!(heard.ends_with(&**own) && heard.len() > own.len(), "{told:?}");
}

fn windows(world: &mut World) -> Result<(), Error> {
    assert_eq!(world.team().window(), 1);
    let words = world.alloc::<u32>(1000)?;
    reach(world, &words)?;
    let half = world.split::<Members>(Some(world.pe().raw() % 2), 0)?.expect("every PE has a colour");
    assert_eq!(half.view().window(), if half.size() > 1 { 2 } else { 0 });
    // The last PE in none: it has no window, and the number is taken all the same.
    let last = world.npes() as u32 - 1;
    let first = if world.pe().raw() == last { None } else { Some(0) };
    let some = world.split::<Members>(first, 0)?;
    assert_eq!(some.is_none(), world.pe().raw() == last);
    // What was added later is reached as well.
    let large = world.alloc::<u32>(10 * MIB)?;
    assert!(world.memory().heap_bytes > 32 << 20);
    reach(world, &large)?;
    drop((half, some, large));
    world.reclaim()?;
    world.reclaim()?;
    // As many windows as there are, then none; those of teams that are gone are had again.
    let pes: Vec<u32> = (0..=last).rev().collect();
    for _ in 0..2 {
        let teams: Vec<_> = (0..17).map(|_| world.listed_team::<Members>(&pes)).collect::<Result<_, _>>()?;
        let numbers: Vec<_> = teams.iter().flatten().map(|team| team.view().window()).collect();
        assert_eq!(numbers, (2..=16).chain([0, 0]).collect::<Vec<_>>());
        drop(teams);
        world.reclaim()?;
        world.reclaim()?;
    }
    Ok(())
}

#[test]
fn teams_have_windows_where_each_pe_has_a_device() {
    let devices = || driver("devices=4,multicast=1", &[("CONGRUENT_HEAP_MAX", "96M")]);
    cuda("teams_have_windows_where_each_pe_has_a_device", windows, &[2, 4], devices);
}

/// What a world needs that has no window, or why there is no world.
fn outcome(npes: usize) -> Result<u32, String> {
    let ended = on_cuda(4).local(npes, |world| {
        let words = world.alloc::<u32>(1000)?;
        reach(world, &words)?;
        Ok::<_, Error>(world.team().window())
    });
    ended.map(|windows| windows[0]).map_err(|error| error.to_string())
}

#[test]
fn without_windows_a_world_does_without_or_is_refused() {
    let name = "without_windows_a_world_does_without_or_is_refused";
    let fails = ["cuMulticastGetGranularity", "cuMulticastCreate", "cuMulticastAddDevice", "cuMulticastBindMem"];
    let fails = fails.map(|call| (format!("devices=2,multicast=1,fail={call}:1:CUDA_ERROR_UNKNOWN"), call));
    let mut cases: Vec<(&str, &str)> = fails.iter().map(|(config, call)| (&**config, *call)).collect();
    cases.extend([("devices=1,multicast=1", "PEs 0 and 1 have one device"), ("devices=2", "has no multicast")]);
    cases.push(("devices=2,multicast=1,fail=cuMemMap:3:CUDA_ERROR_UNKNOWN", "cuMemMap"));
    // It has the calls, and takes no PTX with multicast instructions.
    cases.push(("devices=2,multicast=1,version=12010", "too old for kernels with multicast: install a newer driver"));
    // Its GPUs take none.
    cases.push(("devices=2,multicast=1,version=12020,capability=8.0", "sm_80"));
    if env::var_os(AGAIN).is_none() {
        for (config, reason) in cases {
            for wish in ["0", "1", "2"] {
                again(name, &[(config, &[("CONGRUENT_NVLS_ENABLE", wish), ("CONGRUENT_TEST_REASON", reason)])]);
            }
        }
        return;
    }
    let reason = env::var("CONGRUENT_TEST_REASON").unwrap();
    match env::var("CONGRUENT_NVLS_ENABLE").as_deref() {
        Ok("1") => {
            let refused = outcome(2).unwrap_err();
            assert!(refused.contains("CONGRUENT_NVLS_ENABLE=1") && refused.contains(&reason), "{refused}");
        }
        // Without multicast none of these calls is made; the mapping that fails is the heap's otherwise.
        Ok("0") if reason == "cuMemMap" => {}
        _ => assert_eq!(outcome(2), Ok(0)),
    }
}

/// The world has its window, the team has none.
#[test]
fn a_team_without_a_window_does_without_or_is_refused() {
    let config = "devices=2,multicast=1,fail=cuMulticastBindMem:3:CUDA_ERROR_UNKNOWN";
    let cases: [(&str, &[_]); 2] = [(config, &[("CONGRUENT_NVLS_ENABLE", "1")]), (config, &[])];
    if !again("a_team_without_a_window_does_without_or_is_refused", &cases) {
        return;
    }
    let windows = on_cuda(4).local(2, |world| {
        let mut made = Vec::new();
        for _ in 0..2 {
            made.push(match world.strided_team::<Members>(0, 1, 2) {
                Ok(team) => team.map(|team| team.view().window()),
                Err(SplitError::Multicast(error)) => {
                    assert!(error.to_string().contains("cuMulticastBindMem"), "{error}");
                    None
                }
                Err(error) => return Err(error.into()),
            });
        }
        Ok::<_, Error>((world.team().window(), made))
    });
    let forced = env::var_os("CONGRUENT_NVLS_ENABLE").is_some();
    let first = if forced { None } else { Some(0) };
    assert_eq!(windows.unwrap(), vec![(1, vec![first, Some(2)]); 2]);
}

/// A window that cannot be had over what a heap grows by leaves the heap as it was.
#[test]
fn a_heap_grows_in_all_windows_or_not_at_all() {
    let config = "devices=2,multicast=1,fail=cuMulticastBindMem:5:CUDA_ERROR_UNKNOWN";
    if !again("a_heap_grows_in_all_windows_or_not_at_all", &[(config, &[])]) {
        return;
    }
    let ended = on_cuda(4).heap_max(16 << 20).local(2, |world| {
        let team = world.strided_team::<Members>(0, 1, 2)?;
        let memory = world.memory();
        let Err(AllocError::Grow { error, .. }) = world.alloc::<u8>(6 * MIB) else { panic!("it grew") };
        assert!(error.to_string().contains("cuMulticastBindMem"), "{error}");
        assert_eq!(world.memory(), memory);
        let words = world.alloc::<u32>(2 * MIB)?;
        reach(world, &words)?;
        assert_eq!(team.map(|team| team.view().window()), Some(2));
        Ok::<_, Error>(())
    });
    ended.unwrap();
}

/// The virtual driver's devices have room for one world of this size, and what is bound to a multicast object is in use.
#[test]
fn a_world_gives_all_its_memory_back() {
    let config = "devices=2,multicast=1,memory=24M";
    if !again("a_world_gives_all_its_memory_back", &[(config, &[("CONGRUENT_NVLS_ENABLE", "1")])]) {
        return;
    }
    for round in 0..3 {
        let ended = on_cuda(8).heap_max(20 << 20).local(2, |world| {
            let team = world.strided_team::<Members>(0, 1, 2)?;
            let words = world.alloc::<u32>(3 * MIB)?;
            reach(world, &words)?;
            Ok::<_, Error>(team.is_some())
        });
        assert_eq!(ended.map_err(|error| error.to_string()), Ok(vec![true; 2]), "round {round}");
    }
}

/// What the driver takes for contexts and modules is not the virtual driver's: this holds what congruent asks for by itself.
#[test]
fn a_world_of_eight_takes_less_than_8_mib_beyond_the_heap_of_each() {
    let cases: [(&str, &[_]); 2] = [("devices=1", &[]), ("devices=8,multicast=1", &[])];
    if !again("a_world_of_eight_takes_less_than_8_mib_beyond_the_heap_of_each", &cases) {
        return;
    }
    let taken = on_cuda(5).local(8, |world| Ok::<_, Error>(world.memory())).unwrap();
    for memory in taken {
        assert_eq!(memory.heap_bytes, 6 << 20);
        assert!(memory.beyond_bytes.is_some_and(|bytes| bytes < 8 << 20), "{memory:?}");
    }
}

#[test]
fn blocks_that_are_asked_for_take_as_much_of_any_heap() {
    if !again("blocks_that_are_asked_for_take_as_much_of_any_heap", &[("memory=2G", &[])]) {
        return;
    }
    let takes = |heap_mib, blocks| {
        let taken = on_cuda(heap_mib).local(1, |world| {
            let free = world.heap_stats().free;
            let options = CommOptions { blocks: NonZeroU32::new(blocks), ..CommOptions::default() };
            let comm = world.comm_with(world.team(), options)?;
            let taken = free - world.heap_stats().free;
            drop(comm);
            Ok::<_, Error>(taken)
        });
        taken.unwrap()[0]
    };
    assert_eq!(takes(128, 2), takes(512, 2));
    assert!(takes(128, 0) < takes(512, 0), "where nobody says how many, they share a part of the heap");
}

/// Streams of all PEs of a process on one device have its hardware queues together, of which the host itself has one.
#[test]
fn streams_are_as_many_as_hardware_queues() {
    let cases: [(&str, &[_]); 4] = [
        ("devices=2,mps=1", &[("CONGRUENT_TEST_QUEUES", "2")]),
        ("devices=1", &[("CONGRUENT_TEST_QUEUES", "6"), ("CUDA_DEVICE_MAX_CONNECTIONS", "7")]),
        ("devices=1", &[("CONGRUENT_TEST_QUEUES", "30"), ("CUDA_DEVICE_MAX_CONNECTIONS", "31")]),
        ("devices=2", &[("CONGRUENT_TEST_QUEUES", "14")]),
    ];
    if !again("streams_are_as_many_as_hardware_queues", &cases) {
        return;
    }
    let queues: usize = env::var("CONGRUENT_TEST_QUEUES").unwrap().parse().unwrap();
    let ended = on_cuda(4).local(2, |world| {
        let streams: Result<Vec<_>, _> = (0..queues / 2).map(|_| world.stream()).collect();
        let mut streams = streams?;
        world.barrier()?;
        let Err(LaunchError::Cuda(refused)) = world.stream() else { panic!("one too many") };
        assert!(refused.to_string().contains("CUDA_DEVICE_MAX_CONNECTIONS=32"), "{refused}");
        assert!(
            borrow_default(world).is_err_and(|refused| refused.to_string().contains("CUDA_DEVICE_MAX_CONNECTIONS=32"))
        );
        world.barrier()?;
        // Two of one PE are one more, and so is that of its neighbour where both have the same device.
        streams.pop();
        let borrowed = (borrow_default(world)?, borrow_default(world)?);
        world.barrier()?;
        drop(borrowed);
        streams.push(world.stream()?);
        world.barrier()?;
        Ok::<_, Error>(streams.len())
    });
    assert_eq!(ended.map_err(|error| error.to_string()), Ok(vec![queues / 2; 2]));
}
