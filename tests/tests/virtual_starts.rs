//! Worlds on the CUDA machine that cannot be made, by all PEs or by one of them, over the virtual driver: every PE is told why,
//! and what to do.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod processes;
mod virtual_cases;
mod virtual_support;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Barrier;
use std::thread;

use congruent::collectives::Op;
use congruent::device::{Module, Signal, kernels};
use congruent::{BuildError, Builder, CudaError, Error, Grid, LaunchError, MachineKind, World};
use processes::{Port, is_pe, say};
use virtual_cases::scenarios::{self, EVERYTHING, NPES, everything, fill, meet, raise, until};
use virtual_cases::{Outcome, PATIENCE, again, job, outcome};
use virtual_support::{FOLDER, ends};

/// A crate's module for which nobody has made PTX yet, as `congruent new` writes it.
static UNBUILT: Module = Module { name: "unbuilt", images: &[] };

kernels! { in UNBUILT;
    /// Runs on the CPU alone.
    pub fn nowhere(_block, _ctx) {}
}

/// Where the driver's library is found, and is none.
fn broken() -> PathBuf {
    let folder = FOLDER.join("broken");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("libcuda.so.1"), "no library").unwrap();
    folder
}

/// What is wrong with a PE, and what all are told: the error's kind there, and parts of its text.
type Lack = (&'static str, fn(&mut Command), &'static str, &'static [&'static str]);

const LACKS: [Lack; 4] = [
    (
        "no library",
        |pe| _ = pe.env("LD_LIBRARY_PATH", broken()),
        "NoLibrary",
        &["libcuda.so.1", "install NVIDIA's driver 525 or newer", "run on the CPU"],
    ),
    (
        "no PTX",
        |pe| _ = pe.env("CONGRUENT_PTX", "/no/such/file.ptx"),
        "PtxFile",
        &["CONGRUENT_PTX names /no/such/file.ptx", "give a file that congruent-build wrote"],
    ),
    (
        "an old driver",
        |pe| _ = pe.env("CONGRUENT_VIRTUAL_DRIVER", "version=11080"),
        "DriverTooOld",
        &["for CUDA 11.8, and CUDA 12.0 is needed"],
    ),
    (
        "no device",
        |pe| _ = pe.env("CONGRUENT_VIRTUAL_DRIVER", "devices=0"),
        "NoDevice",
        &["finds no GPU", "CUDA_VISIBLE_DEVICES"],
    ),
];

/// Says with which error a world cannot be made.
fn say_kind() {
    match World::builder().run(NPES as usize, everything) {
        Ok(_) => say("RIGHT"),
        Err(error) => {
            let kind = match &error {
                Error::Build(BuildError::Cuda(CudaError::Peer { pe, .. })) => format!("Peer {pe}"),
                Error::Build(BuildError::Cuda(cuda)) => {
                    format!("{cuda:?}").split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
                }
                other => format!("another error, {other:?}"),
            };
            say(&format!("KIND {kind}"));
            say(&format!("REFUSED {}", error.to_string().replace('\n', " ")));
        }
    }
}

/// What one of two processes lacks, both are told, whichever it is.
#[test]
fn what_one_process_lacks_is_told_to_all() {
    const TEST: &str = "what_one_process_lacks_is_told_to_all";
    if is_pe() {
        return say_kind();
    }
    for (lack, take, kind, parts) in LACKS {
        for poor in 0..NPES {
            let port = Port::reserve();
            let mut pes = job(TEST, EVERYTHING, "", &port);
            take(&mut pes[poor as usize]);
            for (pe, end) in (0..).zip(ends(pes, PATIENCE)) {
                let case = format!("PE {poor} has {lack}, PE {pe}");
                let Outcome::Refused(why) = outcome(&case, &end) else { panic!("{case}: {end:?}") };
                let expected = if pe == poor { format!("KIND {kind}") } else { format!("KIND Peer {poor}") };
                assert!(end.said.lines().any(|line| line == expected), "{case}: {end:?}");
                assert!(parts.iter().all(|part| why.contains(part)), "{case}: {why}");
            }
        }
    }
}

/// With nothing asked for, all do without a GPU that one of them lacks.
#[test]
fn without_a_library_on_one_process_all_run_on_the_cpu() {
    const TEST: &str = "without_a_library_on_one_process_all_run_on_the_cpu";
    if is_pe() {
        let machine = World::builder().run(NPES as usize, |world| {
            everything(world)?;
            Ok::<_, Error>(world.machine())
        });
        return say(&format!("MACHINE {machine:?}"));
    }
    let port = Port::reserve();
    let mut pes = job(TEST, EVERYTHING, "", &port);
    for pe in &mut pes {
        pe.env("CONGRUENT_MACHINE", "auto");
    }
    pes[1].env("LD_LIBRARY_PATH", broken());
    for end in ends(pes, PATIENCE) {
        assert!(end.succeeded && end.said.contains("MACHINE Ok([\"cpu, "), "{end:?}");
    }
}

/// A world that cannot be made is refused with the reason, and what to do.
#[test]
fn drivers_and_devices_that_are_not_enough_are_refused() {
    const TEST: &str = "drivers_and_devices_that_are_not_enough_are_refused";
    if is_pe() {
        return say_kind();
    }
    let mut cases: Vec<(&str, Command, &str, &[&str])> = Vec::new();
    for (lack, take, kind, parts) in LACKS {
        let mut command = again(TEST, EVERYTHING, "");
        take(&mut command);
        cases.push((lack, command, kind, parts));
    }
    let more = ["bytes of device memory were asked for", "CONGRUENT_HEAP"];
    cases.push(("little memory", again(TEST, EVERYTHING, "memory=40M"), "OutOfMemory", &more));
    for (lack, command, kind, parts) in cases {
        let end = ends(vec![command], PATIENCE).remove(0);
        let Outcome::Refused(why) = outcome(lack, &end) else { panic!("{lack}: {end:?}") };
        // On threads the first error is told, which may be what a PE has heard of another.
        let told = [format!("KIND {kind}"), "KIND Peer 0".to_owned(), "KIND Peer 1".to_owned()];
        assert!(end.said.lines().any(|line| told.iter().any(|told| line == told)), "{lack}: {end:?}");
        assert!(parts.iter().all(|part| why.contains(part)), "{lack}: {why}");
    }
}

/// Devices that cannot reach each other have no heap together, and one of them has.
#[test]
fn devices_that_do_not_reach_each_other_are_refused_with_what_to_do() {
    const TEST: &str = "devices_that_do_not_reach_each_other_are_refused_with_what_to_do";
    const PARTS: [&str; 3] = ["cannot access the memory of PE", "nvidia-smi topo -p2p r", "CONGRUENT_DEVICE"];
    if is_pe() {
        return say_kind();
    }
    let command = |device: Option<&str>| {
        let mut command = again(TEST, EVERYTHING, "engine=native,devices=2,reach=0");
        command.envs(device.map(|device| ("CONGRUENT_DEVICE", device)));
        command
    };
    let [apart, together]: [_; 2] = ends(vec![command(None), command(Some("1"))], PATIENCE).try_into().unwrap();
    assert!(outcome("on one device", &together).is_right(), "{together:?}");
    let port = Port::reserve();
    let mut pes = job(TEST, EVERYTHING, "", &port);
    for pe in &mut pes {
        pe.env("CONGRUENT_VIRTUAL_DRIVER", "engine=native,devices=2,reach=0");
    }
    let mut kinds = Vec::new();
    for end in [apart].into_iter().chain(ends(pes, PATIENCE)) {
        let Outcome::Refused(why) = outcome("apart", &end) else { panic!("{end:?}") };
        assert!(PARTS.iter().all(|part| why.contains(part)), "{why}");
        kinds.extend(end.said.lines().find_map(|line| line.strip_prefix("KIND ")).map(str::to_owned));
    }
    // What a PE finds by itself is told first to itself.
    assert!(kinds[1..].contains(&"Unreachable".to_owned()), "{kinds:?}");
}

/// With nothing said of the machine, PEs run on the GPU where there is one that can be used, else on the CPU.
#[test]
fn auto_takes_the_gpu_if_it_can_be_used_and_else_the_cpu() {
    const TEST: &str = "auto_takes_the_gpu_if_it_can_be_used_and_else_the_cpu";
    if is_pe() {
        let machines = World::builder().local(NPES as usize, |world| {
            everything(world)?;
            Ok::<_, Error>(world.machine())
        });
        return say(&format!("MACHINES {machines:?}"));
    }
    // What runs the kernels, by `World::machine`.
    for (settings, machine) in [("", "cuda, "), ("devices=0", "cpu, "), ("version=11080", "cpu, ")] {
        for kind in ["auto", ""] {
            let mut command = again(TEST, EVERYTHING, settings);
            match kind {
                "" => command.env_remove("CONGRUENT_MACHINE"),
                kind => command.env("CONGRUENT_MACHINE", kind),
            };
            let end = ends(vec![command], PATIENCE).remove(0);
            let said = end.said.lines().find_map(|line| line.strip_prefix("MACHINES ")).map(str::to_owned);
            let expected = format!("[\"{machine}");
            assert!(end.succeeded && said.is_some_and(|said| said.contains(&expected)), "{settings}: {end:?}");
        }
    }
    // A trace is of either machine.
    let mut command = again(TEST, EVERYTHING, "");
    command.env_remove("CONGRUENT_MACHINE").env("CONGRUENT_TRACE", FOLDER.join("auto"));
    let end = ends(vec![command], PATIENCE).remove(0);
    assert!(end.succeeded && end.said.contains("MACHINES Ok([\"cuda, ") && !end.said.contains("WARN"), "{end:?}");
    // What only the CPU machine obeys moves no job off its GPUs without a word.
    for (settings, expected) in [("", "Err(CONGRUENT_WATCH is set, which only the CPU"), ("devices=0", "Ok([\"cpu, ")] {
        let mut command = again(TEST, EVERYTHING, settings);
        command.env_remove("CONGRUENT_MACHINE").env("CONGRUENT_WATCH", "1");
        let end = ends(vec![command], PATIENCE).remove(0);
        assert!(end.succeeded && end.said.contains(&format!("MACHINES {expected}")), "{settings}: {end:?}");
    }
}

/// A program that asks for what the CPU machine alone has runs there, and says so where there are GPUs and nobody chose the machine.
#[test]
fn a_program_that_leaves_its_gpus_says_so() {
    const TEST: &str = "a_program_that_leaves_its_gpus_says_so";
    type Call = (&'static str, fn(Builder) -> Builder);
    const CALLS: [Call; 2] =
        [("Builder::watch", |builder| builder.watch(true)), ("Builder::multicast", |builder| builder.multicast(true))];
    if is_pe() {
        let (_, ask) = CALLS[usize::from(std::env::var_os("MULTICAST").is_some())];
        let machines = ask(World::builder()).local(NPES as usize, |world| {
            everything(world)?;
            Ok::<_, Error>(world.machine())
        });
        return say(&format!("MACHINES {machines:?}"));
    }
    for (call, _) in CALLS {
        let told = |settings, kind| {
            let mut command = again(TEST, EVERYTHING, settings);
            match kind {
                "" => command.env_remove("CONGRUENT_MACHINE"),
                kind => command.env("CONGRUENT_MACHINE", kind),
            };
            if call == "Builder::multicast" {
                command.env("MULTICAST", "1");
            }
            ends(vec![command], PATIENCE).remove(0)
        };
        // Without GPUs there is no other machine, and who writes `auto` or `cpu` means this one or either.
        for (settings, kind, warns) in [("", "", 1), ("devices=0", "", 0), ("", "auto", 0), ("", "cpu", 0)] {
            let end = told(settings, kind);
            let case = format!("{call}, {settings}, {kind}: {end:?}");
            assert!(end.succeeded && end.said.contains("MACHINES Ok([\"cpu, "), "{case}");
            let why = format!("WARN init: kernels run on the CPU, because the program asks for {call}, ");
            assert_eq!((end.said.matches("WARN").count(), end.said.matches(&why).count()), (warns, warns), "{case}");
        }
        let refused = told("", "cuda");
        assert!(refused.said.contains(&format!("MACHINES Err({call} is set, which only the CPU")), "{refused:?}");
    }
}

/// A kernel whose crate has no PTX runs on the CPU, and on a GPU it is told what makes the PTX: before a launch, and instead of one.
#[test]
fn a_kernel_without_ptx_is_told_what_makes_it() {
    const TEST: &str = "a_kernel_without_ptx_is_told_what_makes_it";
    if is_pe() {
        let ended = World::builder().local(1, |world| {
            let stream = world.stream()?;
            let refused = [
                world.load(nowhere),
                world.launch(&stream, nowhere, Grid::one(32), ()),
                world.occupancy(nowhere, 32, 0).map(drop),
            ];
            for refused in refused.map(Result::unwrap_err) {
                let LaunchError::Cuda(CudaError::NoPtx { kernel: "nowhere" }) = refused else { panic!("{refused:?}") };
                let said = refused.to_string();
                let parts = ["kernel nowhere has no PTX", "`congruent-build build` in its crate", "CONGRUENT_PTX"];
                assert!(parts.iter().all(|part| said.contains(part)), "{said}");
            }
            // Others have theirs.
            Ok::<_, Error>(world.run(&stream, meet, Grid::one(32), ())?)
        });
        ended.unwrap();
        let on_cpu = World::builder()
            .machine(MachineKind::Cpu)
            .local(1, |world| Ok::<_, Error>(world.run(&world.stream()?, nowhere, Grid::one(32), ())?));
        on_cpu.unwrap();
        return say("RIGHT");
    }
    let end = ends(vec![again(TEST, EVERYTHING, "")], PATIENCE).remove(0);
    assert!(outcome("no PTX", &end).is_right(), "{end:?}");
}

/// The library's kernels are loaded with the world, once for each device, or if that is asked for each before its first launch.
#[test]
fn lazy_kernels_are_loaded_one_by_one() {
    const TEST: &str = "lazy_kernels_are_loaded_one_by_one";
    if is_pe() {
        let ended = World::builder().local(NPES as usize, |world| {
            let (comm, stream, numbers) = (world.comm(world.team())?, world.stream()?, world.alloc::<f32>(8)?);
            numbers.fill(1.0)?;
            for _ in 0..2 {
                comm.all_reduce(&stream, numbers.view(), numbers.view(), Op::Sum)?;
            }
            world.synchronize(&stream)?;
            assert_eq!(numbers.to_vec()?, [4.0; 8]);
            Ok::<_, Error>(())
        });
        ended.unwrap();
        return say("RIGHT");
    }
    for (devices, lazy) in [(1, false), (NPES, false), (NPES, true)] {
        let mut command = again(TEST, EVERYTHING, &format!("devices={devices}"));
        command.env("CONGRUENT_DEBUG", "info").env("CONGRUENT_ALGO", "one-shot");
        command.env("CONGRUENT_LAZY_LOADING", if lazy { "1" } else { "0" });
        let (end, case) = (ends(vec![command], PATIENCE).remove(0), format!("{devices} devices, lazy: {lazy}"));
        assert!(outcome(&case, &end).is_right(), "{case}: {end:?}");
        let loaded = |what: &str| end.said.matches(&format!(" {what} loaded for sm_80, in ")).count() as u32;
        let found = (loaded("all_reduce_one_shot_f32"), loaded("congruent-kernels"), loaded("congruent-sum-kernels"));
        assert_eq!(found, if lazy { (devices, 0, 0) } else { (0, devices, devices) }, "{case}: {end:?}");
    }
}

/// PEs take the devices that the program chose in turn, as threads and as processes, and one that is not there is refused.
#[test]
fn pes_compute_on_the_devices_that_the_program_chose() {
    const TEST: &str = "pes_compute_on_the_devices_that_the_program_chose";
    const SETTINGS: &str = "engine=native,devices=2";
    let on = |devices: &'static [u32], npes| {
        World::builder().devices(devices.iter().copied()).run(npes, move |world| {
            everything(world)?;
            assert_eq!(world.device(), Some(devices[world.pe().index() % devices.len()]), "PE {}", world.pe().raw());
            Ok::<_, Error>(world.device())
        })
    };
    if is_pe() {
        // As one of two PEs, or all of them.
        let seated = std::env::var_os("CONGRUENT_PE").is_some();
        let found = on(&[1, 0], NPES as usize).unwrap();
        assert_eq!(found.len(), if seated { 1 } else { NPES as usize });
        if seated {
            return say("RIGHT");
        }
        assert_eq!(on(&[1], NPES as usize).unwrap(), [Some(1); NPES as usize]);
        for devices in [&[2][..], &[0, 2]] {
            let said = on(devices, NPES as usize).unwrap_err().to_string();
            let parts = ["there is no device 2, devices are 0..2", "CONGRUENT_DEVICE", "Builder::devices"];
            assert!(parts.iter().all(|part| said.contains(part)), "{devices:?}: {said}");
        }
        return say("RIGHT");
    }
    let port = Port::reserve();
    let mut pes = job(TEST, EVERYTHING, "", &port);
    pes.push(again(TEST, EVERYTHING, ""));
    pes.iter_mut().for_each(|pe| _ = pe.env("CONGRUENT_VIRTUAL_DRIVER", SETTINGS));
    for end in ends(pes, PATIENCE) {
        assert!(outcome("two devices", &end).is_right(), "{end:?}");
    }
}

/// Processes on one device run one after the other there, unless an MPS serves it.
#[test]
fn processes_that_share_a_device_without_mps_say_that_they_take_turns() {
    const TEST: &str = "processes_that_share_a_device_without_mps_say_that_they_take_turns";
    if is_pe() {
        let machine = World::builder().run(NPES as usize, |world| {
            world.barrier()?;
            Ok::<_, Error>(world.machine())
        });
        return say(&format!("MACHINE {}", machine.unwrap()[0]));
    }
    for (settings, turns) in
        [("engine=native", true), ("engine=native,mps=1", false), ("engine=native,devices=2", false)]
    {
        let port = Port::reserve();
        let mut pes = job(TEST, EVERYTHING, "", &port);
        pes.iter_mut().for_each(|pe| _ = pe.env("CONGRUENT_VIRTUAL_DRIVER", settings));
        for end in ends(pes, PATIENCE) {
            let machine = end.said.lines().find_map(|line| line.strip_prefix("MACHINE ")).map(str::to_owned);
            let machine = machine.unwrap_or_else(|| panic!("{end:?}"));
            assert_eq!(machine.contains("2 PEs that take turns, as no MPS runs"), turns, "{settings}: {machine}");
        }
    }
    let threads = ends(vec![again(TEST, EVERYTHING, "")], PATIENCE).remove(0);
    assert!(threads.said.contains("shared by 2 PEs\n"), "{threads:?}");
}

/// Blocks that wait for each other have to fit, those of all PEs on a device together.
#[test]
fn a_grid_that_does_not_fit_is_not_launched() {
    const TEST: &str = "a_grid_that_does_not_fit_is_not_launched";
    if is_pe() {
        let refused = World::builder().local(2, |world| {
            let stream = world.stream()?;
            // Two blocks of 128 threads with all registers fit on the one multiprocessor: one of each PE.
            let refused = world.launch(&stream, meet, Grid::new(2, 128), ());
            assert!(
                matches!(refused, Err(LaunchError::NotCoresident { asked: 2, fits: 1, running: 0 })),
                "{refused:?}"
            );
            // And no block of more than 256 threads on any.
            let refused = world.launch(&stream, meet, Grid::one(512), ()).unwrap_err();
            assert!(matches!(refused, LaunchError::TooManyThreads { asked: 512, fits: 256, .. }), "{refused:?}");
            let said = refused.to_string();
            assert!(said.contains("256 or fewer") && said.contains("more blocks"), "{said}");
            world.run(&stream, meet, Grid::one(128), ())?;
            // As it is told before.
            let told = world.occupancy(meet, 128, 0)?;
            assert_eq!((told.blocks_per_multiprocessor, told.multiprocessors), (2, 1));
            assert_eq!((told.resident_blocks, told.waits), (1, true));
            let never_waits = world.occupancy(fill, 128, 0)?;
            assert_eq!((never_waits.resident_blocks, never_waits.waits), (1, false));
            let refused = world.occupancy(meet, 512, 0);
            assert!(matches!(refused, Err(LaunchError::TooManyThreads { fits: 256, .. })), "{refused:?}");
            Ok::<_, Error>(())
        });
        refused.unwrap();
        return say("RIGHT");
    }
    let end = ends(vec![again(TEST, EVERYTHING, "sms=1")], PATIENCE).remove(0);
    assert!(outcome("one multiprocessor", &end).is_right(), "{end:?}");
}

/// A kernel that never waits may have more blocks than run at once, but not more than a grid has.
#[test]
fn a_grid_past_a_gpus_limit_is_refused_before_the_driver_is_asked() {
    const TEST: &str = "a_grid_past_a_gpus_limit_is_refused_before_the_driver_is_asked";
    if is_pe() {
        let refused = World::builder().local(1, |world| {
            let (stream, numbers) = (world.stream()?, world.alloc::<f32>(1000)?);
            for grid in [Grid::new(1 << 31, 32), Grid::tiled([1 << 20, 1 << 20], [1, 1], 32)] {
                let refused = world.launch(&stream, fill, grid, (numbers.view(),)).unwrap_err();
                let LaunchError::TooManyBlocks { kernel: "fill", asked, fits: 0x7fff_ffff } = refused else {
                    panic!("{refused:?}")
                };
                assert_eq!(asked, grid.blocks);
                assert!(refused.to_string().contains("give each block more of the work"), "{refused}");
            }
            let refused = world.launch(&stream, meet, Grid::new(1 << 31, 32), ()).unwrap_err();
            assert!(matches!(refused, LaunchError::NotCoresident { .. }), "{refused:?}");
            world.run(&stream, fill, Grid::new(3, 32), (numbers.view(),))?;
            assert_eq!(numbers.to_vec()?, [1.0; 1000]);
            Ok::<_, Error>(())
        });
        refused.unwrap();
        return say("RIGHT");
    }
    let end = ends(vec![again(TEST, EVERYTHING, "")], PATIENCE).remove(0);
    assert!(outcome("a large grid", &end).is_right(), "{end:?}");
}

/// A GPU may have less shared memory than others, and a launch that asks for more is told how much there is.
#[test]
fn shared_memory_past_this_gpus_limit_is_refused() {
    const TEST: &str = "shared_memory_past_this_gpus_limit_is_refused";
    const MOST: u32 = 99 << 10;
    if is_pe() {
        let refused = World::builder().local(1, |world| {
            let (stream, mut numbers) = (world.stream()?, world.buffer::<u32>(1000)?);
            let grid = |bytes| Grid::one(32).with_shared(bytes);
            let launched = world.launch(&stream, raise, grid(MOST + 4), (&mut numbers,));
            for refused in [launched, world.occupancy(raise, 32, MOST + 4).map(drop)].map(Result::unwrap_err) {
                let LaunchError::SharedMemory { kernel: "raise", asked, fits: MOST } = refused else {
                    panic!("{refused:?}")
                };
                assert_eq!(asked, MOST + 4);
                let said = refused.to_string();
                assert!(said.contains("can have 101376 bytes") && said.contains("ask for less"), "{said}");
            }
            assert_eq!(world.occupancy(raise, 32, MOST)?.blocks_per_multiprocessor, 1);
            world.run(&stream, raise, grid(MOST), (&mut numbers,))?;
            assert_eq!(numbers.to_vec()?, [1; 1000]);
            Ok::<_, Error>(())
        });
        refused.unwrap();
        return say("RIGHT");
    }
    let end = ends(vec![again(TEST, EVERYTHING, "shared=99K")], PATIENCE).remove(0);
    assert!(outcome("less shared memory", &end).is_right(), "{end:?}");
}

/// Kernels of several streams run at once, so their blocks have to fit together, until they are done; those of a kernel that never
/// waits go on whenever there is room.
#[test]
fn kernels_that_wait_fit_together_or_are_not_launched() {
    const TEST: &str = "kernels_that_wait_fit_together_or_are_not_launched";
    if is_pe() {
        let ended = World::builder().local(1, |world| {
            let (one, two) = (world.stream()?, world.stream()?);
            let (flag, other) = (world.alloc::<Signal>(1)?, world.stream()?);
            let numbers = world.alloc::<f32>(1000)?;
            let me = world.rank(0)?;
            // Two blocks of 128 threads with all registers fit on each of four multiprocessors. These do not begin yet.
            world.wait_at_least(&one, flag.view().from_rank(me), 1)?;
            world.launch(&one, meet, Grid::new(5, 128), ())?;
            world.launch(&one, meet, Grid::new(2, 128), ())?;
            let refused = world.launch(&two, meet, Grid::new(4, 128), ()).unwrap_err();
            assert!(matches!(refused, LaunchError::NotCoresident { asked: 4, fits: 3, running: 5 }), "{refused:?}");
            let said = refused.to_string();
            assert!(said.contains("beside 5 of this PE's other streams") && said.contains("synchronize"), "{said}");
            world.launch(&two, meet, Grid::new(3, 128), ())?;
            // More than run at once, which need not.
            world.launch(&other, fill, Grid::new(40, 128), (numbers.view(),))?;
            world.synchronize(&other)?;
            world.notify(&other, flag.view().at(me).set(1))?;
            world.synchronize(&one)?;
            world.synchronize(&two)?;
            let graph = world.capture(&two, |stream| world.launch(stream, meet, Grid::new(8, 128), ()))?;
            graph.launch(&two)?;
            world.synchronize(&two)?;
            world.wait_at_least(&one, flag.view().from_rank(me), 2)?;
            world.launch(&one, meet, Grid::new(1, 128), ())?;
            let refused = graph.launch(&two).unwrap_err();
            assert!(matches!(refused, LaunchError::NotCoresident { asked: 8, fits: 7, running: 1 }), "{refused:?}");
            world.notify(&other, flag.view().at(me).set(2))?;
            world.synchronize(&one)?;
            graph.launch(&two)?;
            Ok::<_, Error>(world.synchronize(&two)?)
        });
        ended.unwrap();
        return say("RIGHT");
    }
    let end = ends(vec![again(TEST, EVERYTHING, "sms=4")], PATIENCE).remove(0);
    assert!(outcome("four multiprocessors", &end).is_right(), "{end:?}");
}

/// Threads that launch at once are counted as if one came after the other: a kernel that is being launched counts already.
#[test]
fn kernels_that_threads_launch_at_once_fit_together() {
    const TEST: &str = "kernels_that_threads_launch_at_once_fit_together";
    const ROUNDS: u64 = 300;
    if is_pe() {
        let ended = World::builder().local(1, |world| {
            let streams = [world.stream()?, world.stream()?];
            let (flag, other, me) = (world.alloc::<Signal>(1)?, world.stream()?, world.rank(0)?);
            let world = &*world;
            for round in 1..=ROUNDS {
                let flag = flag.view();
                let begun = Barrier::new(streams.len());
                // Two blocks of 128 threads fit on each of four multiprocessors, so one of the two grids does.
                let launched = thread::scope(|scope| {
                    let launch = |stream| {
                        begun.wait();
                        world.launch(stream, until, Grid::new(5, 128), (flag, round))
                    };
                    let both = streams.each_ref().map(|stream| scope.spawn(move || launch(stream)));
                    both.map(|one| one.join().unwrap())
                });
                let refused: Vec<_> = launched.into_iter().filter_map(Result::err).collect();
                let beside = matches!(refused[..], [LaunchError::NotCoresident { asked: 5, fits: 3, running: 5 }]);
                assert!(beside, "in round {round}: {refused:?}");
                world.notify(&other, flag.at(me).set(round))?;
                streams.iter().chain([&other]).try_for_each(|stream| world.synchronize(stream))?;
            }
            Ok::<_, Error>(())
        });
        ended.unwrap();
        return say("RIGHT");
    }
    let end = ends(vec![again(TEST, EVERYTHING, "sms=4")], PATIENCE).remove(0);
    assert!(outcome("two threads", &end).is_right(), "{end:?}");
}

/// Nobody asks for anything: long messages have as many blocks as the device has room for, short ones one of few threads, and none is
/// compared first, which costs a launch.
#[test]
fn default_communicators_launch_more_blocks_for_longer_messages() {
    const TEST: &str = "default_communicators_launch_more_blocks_for_longer_messages";
    const LENGTHS: [usize; 3] = [1, 5_000, 1 << 20];
    if is_pe() {
        let ended = World::builder().heap(64 << 20).local(2, |world| {
            let (comm, stream, numbers) = (world.comm(world.team())?, world.stream()?, world.alloc::<f32>(LENGTHS[2])?);
            numbers.fill(1.0)?;
            for length in LENGTHS {
                let some = numbers.slice(..length)?;
                comm.all_reduce(&stream, some, some, Op::Sum)?;
                world.synchronize(&stream)?;
            }
            let mut last = [0.0];
            numbers.read(LENGTHS[2] - 1, &mut last)?;
            assert_eq!(last, [2.0]);
            Ok::<_, Error>(())
        });
        ended.unwrap();
        return say("RIGHT");
    }
    let mut command = again(TEST, EVERYTHING, "devices=2,sms=132");
    command.env("CONGRUENT_DEBUG", "trace").env("CONGRUENT_DEBUG_SUBSYS", "launch");
    let end = ends(vec![command], PATIENCE).remove(0);
    assert!(outcome("two devices", &end).is_right(), "{end:?}");
    let launches = end.said.lines().filter_map(|line| line.split_once(": TRACE launch: ")?.1.split_once(" pe="));
    let mut launches: Vec<_> = launches.map(|(launch, _)| launch).collect();
    launches.sort_unstable();
    let of_both_pes = |launch| [launch, launch];
    let expected =
        ["direct_f32 in 32 blocks of 256", "one_shot_f32 in 1 blocks of 32", "one_shot_f32 in 10 blocks of 256"];
    let expected: Vec<_> =
        expected.into_iter().flat_map(of_both_pes).map(|launch| format!("all_reduce_{launch}")).collect();
    assert_eq!(launches, expected);
}

/// A graph in checked mode compares at every launch, and one that differs is told to all.
#[test]
fn a_graph_in_checked_mode_is_compared_at_every_launch() {
    const TEST: &str = "a_graph_in_checked_mode_is_compared_at_every_launch";
    if is_pe() {
        return scenarios::run(scenarios::CHECKED);
    }
    let end = ends(vec![again(TEST, scenarios::CHECKED, "")], PATIENCE).remove(0);
    let Outcome::Refused(why) = outcome(TEST, &end) else { panic!("{end:?}") };
    assert!(why.contains("all-reduce with count 999 where PE") || why.contains("count 1000 where PE"), "{why}");
    for line in ["PE 0 REPLAYED", "PE 1 REPLAYED", "PE 0 FAILED", "PE 1 FAILED"] {
        assert!(end.said.lines().any(|said| said == line), "{line}: {end:?}");
    }
}
