//! One engine for several processes.
#![allow(clippy::unwrap_used, reason = "clippy takes only functions marked as tests for such")]

mod common;

use core::ffi::{CStr, c_void};
use std::env;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{again, begin, call, is_child, ok, stream};
use congruent_virtual_driver::*;
use cudarc::driver::sys::{
    CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType,
    CUmemLocation, CUmemLocationType, CUmulticastObjectProp, CUresult,
};
use rustix::process::{Pid, Signal};

const GRANULE: usize = 2 << 20;
const POSIX: u32 = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0;
/// Which of the processes of a test this is.
const NUMBER: &str = "CONGRUENT_VIRTUAL_DRIVER_TEST_PROCESS";

const PTX: &CStr = c".version 8.4\n.target sm_90\n.address_size 64\n\
    .visible .entry meet(.param .u64 at)\n{\n\
        .reg .b64 %rd<2>; .reg .b32 %r<4>; .reg .pred %p;\n\
        ld.param.u64 %rd1, [at];\n\
        atom.acq_rel.sys.global.add.u32 %r2, [%rd1], 1;\n\
    wait: ld.acquire.sys.global.u32 %r3, [%rd1]; setp.lt.u32 %p, %r3, 2; @%p bra wait;\n\
        st.global.u32 [%rd1+8], %r2;\n\
        ret;\n}\n\
    .visible .entry five(.param .u64 at)\n{\n\
        .reg .b64 %rd<2>; ld.param.u64 %rd1, [at];\n\
        multimem.red.relaxed.sys.global.add.u32 [%rd1], 5; ret;\n}\n\
    .visible .entry forever(.param .u64 at)\n{\n\
        .reg .b64 %rd<2>; .reg .b32 %r<2>; .reg .pred %p;\n\
        ld.param.u64 %rd1, [at];\n\
    wait: ld.acquire.sys.global.u32 %r1, [%rd1]; setp.eq.u32 %p, %r1, 0; @%p bra wait;\n\
        ret;\n}\n";

fn location(device: i32) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

fn create(device: i32) -> u64 {
    // SAFETY: integers and a pointer, for which zeros are values; the enumerations are set right below.
    let mut properties: CUmemAllocationProp = unsafe { core::mem::zeroed() };
    properties.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location = location(device);
    let mut handle = 0;
    ok!(cuMemCreate(&mut handle, GRANULE, &properties, 0));
    handle
}

/// What stands for memory in another process.
fn export(handle: u64) -> OwnedFd {
    let mut descriptor = -1;
    ok!(cuMemExportToShareableHandle((&raw mut descriptor).cast(), handle, POSIX, 0));
    // SAFETY: the driver gave the descriptor to us, to close.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

/// The memory of a descriptor that this process was started with.
fn import(descriptor: usize) -> u64 {
    let mut memory = 0;
    let pointer = core::ptr::without_provenance_mut(descriptor);
    ok!(cuMemImportFromShareableHandle(&mut memory, pointer, POSIX));
    memory
}

fn map(memory: u64, device: i32) -> u64 {
    let mut at = 0;
    ok!(cuMemAddressReserve(&mut at, GRANULE, 0, 0, 0));
    ok!(cuMemMap(at, GRANULE, 0, memory, 0));
    let flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    ok!(cuMemSetAccess(at, GRANULE, &CUmemAccessDesc { location: location(device), flags }, 1));
    at
}

/// Runs a kernel; what comes of it.
fn run(kernel: &CStr, mut at: u64) -> CUresult {
    let (mut module, mut function) = (core::ptr::null_mut(), core::ptr::null_mut());
    ok!(cuModuleLoadData(&mut module, PTX.as_ptr().cast()));
    ok!(cuModuleGetFunction(&mut function, module, kernel.as_ptr()));
    let (stream, mut values) = (stream(), [(&raw mut at).cast::<c_void>()]);
    ok!(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, values.as_mut_ptr(), core::ptr::null_mut()));
    println!("\nlaunched");
    call!(cuStreamSynchronize(stream))
}

fn word(at: u64, index: usize) -> u32 {
    // SAFETY: tests read what they mapped with access.
    unsafe { core::ptr::with_exposed_provenance::<u32>(at as usize).wrapping_add(index).read_volatile() }
}

fn set_word(at: u64, index: usize, value: u32) {
    // SAFETY: as above.
    unsafe { core::ptr::with_exposed_provenance_mut::<u32>(at as usize).wrapping_add(index).write_volatile(value) };
}

/// Waits until two processes have come here.
fn both_at(at: u64, place: usize, number: i32) {
    set_word(at, 16 + 2 * place + number as usize, 1);
    while word(at, 16 + 2 * place) == 0 || word(at, 17 + 2 * place) == 0 {
        std::thread::yield_now();
    }
}

/// Which of the processes of a test this is.
fn number() -> i32 {
    env::var(NUMBER).unwrap().parse().unwrap()
}

fn process(test: &str, engine: &str, number: u32) -> Command {
    let mut command = again(test);
    command.env(ENGINE, engine).env(NUMBER, number.to_string()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The name of an engine that nobody else has.
fn name(test: &str) -> String {
    format!("congruent {test} {}", std::process::id())
}

/// Waits until a process says something.
fn hear(child: &mut Child, what: &str) {
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == what), "{what}");
}

/// Waits for the end of a process that is to succeed; what it said on standard error.
fn end(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}\n{said}{}", output.status, String::from_utf8_lossy(&output.stdout));
    said
}

/// Does a test as the engine of processes, which are started with memory as their standard input.
fn engine(test: &str, config: &str, body: impl FnOnce(&str)) {
    if env::var_os(VARIABLE).is_none() {
        return common::passes(Command::new(env::current_exe().unwrap()).args([test, "--exact"]).env(VARIABLE, config));
    }
    let name = name(test);
    let _server = Server::start(&name, None, "").unwrap().unwrap();
    body(&name);
}

#[test]
fn a_race_of_two_processes_is_seen() {
    const TEST: &str = "a_race_of_two_processes_is_seen";
    if is_child() {
        begin(number());
        let at = map(import(0), number());
        // The one that is told of the race is lost.
        let code = run(c"meet", at);
        assert!([CUresult::CUDA_SUCCESS, CUresult::CUDA_ERROR_LAUNCH_FAILED].contains(&code), "{code:?}");
        return;
    }
    engine(TEST, "devices=2,races=1", |name| {
        ok!(cuInit(0));
        let memory = create(0);
        let start = |number| process(TEST, name, number).stdin(Stdio::from(export(memory))).spawn().unwrap();
        let said: String = [0, 1].map(start).into_iter().map(end).collect();
        assert!(said.contains("data race") && said.contains("device 0") && said.contains("device 1"), "{said}");
    });
}

#[test]
fn a_process_that_is_killed_leaves_the_others() {
    const TEST: &str = "a_process_that_is_killed_leaves_the_others";
    if is_child() {
        begin(0);
        let at = map(create(0), 0);
        set_word(at, 0, number() as u32);
        assert_eq!(run(c"forever", at), CUresult::CUDA_SUCCESS);
        return;
    }
    engine(TEST, "sms=1", |name| {
        for _ in 0..3 {
            let mut killed = process(TEST, name, 0).spawn().unwrap();
            hear(&mut killed, "launched");
            killed.kill().unwrap();
            killed.wait().unwrap();
            end(process(TEST, name, 1).spawn().unwrap());
        }
    });
}

/// Whether this process is the engine of a test that ends or stops its own.
fn is_engine() -> bool {
    is_child() && env::var_os(ENGINE).is_none()
}

/// Is the engine until nobody holds its standard input.
fn serve() {
    let _server = Server::start(&env::var(NUMBER).unwrap(), None, "").unwrap();
    println!("\nserves");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// A process that is the engine of that name, and serves.
fn serving(test: &str, name: &str) -> Child {
    let mut engine = again(test).env(NUMBER, name).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    hear(&mut engine, "serves");
    engine
}

#[test]
fn an_engine_that_is_killed_is_missed() {
    const TEST: &str = "an_engine_that_is_killed_is_missed";
    if is_engine() {
        return serve();
    }
    if is_child() {
        begin(0);
        let gone = CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE;
        assert_eq!(run(c"forever", map(create(0), 0)), gone);
        assert_eq!(call!(cuCtxSynchronize()), gone);
        return;
    }
    let name = name(TEST);
    let mut engine = serving(TEST, &name);
    let mut process = process(TEST, &name, 0).spawn().unwrap();
    hear(&mut process, "launched");
    engine.kill().unwrap();
    engine.wait().unwrap();
    assert!(end(process).contains("the engine of this job is gone"));
    // Who comes later is told as well.
    let late = again(TEST).env(ENGINE, &name).env(NUMBER, "1").output().unwrap();
    assert!(
        !late.status.success() && String::from_utf8_lossy(&late.stderr).contains("no connection to the job's engine")
    );
}

/// Waits in vain: the engine's process is stopped, as one that hangs.
#[test]
fn an_engine_that_is_silent_is_missed() {
    const TEST: &str = "an_engine_that_is_silent_is_missed";
    if is_engine() {
        return serve();
    }
    if is_child() {
        begin(0);
        let silent = CUresult::CUDA_ERROR_TIMEOUT;
        assert_eq!(run(c"forever", map(create(0), 0)), silent);
        assert_eq!(call!(cuCtxSynchronize()), silent);
        return;
    }
    let name = name(TEST);
    let mut engine = serving(TEST, &name);
    let mut process = process(TEST, &name, 0).env(VARIABLE, "silence=4").spawn().unwrap();
    hear(&mut process, "launched");
    // A launch may take longer than that, as long as its engine is there.
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(process.try_wait().unwrap(), None);
    let pid = Pid::from_child(&engine);
    rustix::process::kill_process(pid, Signal::STOP).unwrap();
    assert!(end(process).contains("the engine of this job has said nothing for 4 s"));
    // Who comes later is told as well.
    let late = again(TEST).env(ENGINE, &name).env(NUMBER, "1").env(VARIABLE, "silence=1").output().unwrap();
    assert!(
        !late.status.success() && String::from_utf8_lossy(&late.stderr).contains("no connection to the job's engine")
    );
    engine.kill().unwrap();
    engine.wait().unwrap();
}

#[test]
fn multicast_reaches_memory_of_all_processes() {
    const TEST: &str = "multicast_reaches_memory_of_all_processes";
    if is_child() {
        let number = number();
        begin(number);
        // The memory in which the processes wait for each other has the object's descriptor behind it.
        let (meeting, own) = (map(import(0), number), create(number));
        let object = import(2);
        ok!(cuMulticastAddDevice(object, number));
        ok!(cuMulticastBindMem(object, 0, own, 0, GRANULE, 0));
        let (all, own) = (map(object, number), map(own, number));
        both_at(meeting, 0, number);
        assert_eq!(run(c"five", all), CUresult::CUDA_SUCCESS);
        both_at(meeting, 1, number);
        assert_eq!(word(own, 0), 10);
        ok!(cuMulticastUnbind(object, number, 0, GRANULE));
        both_at(meeting, 2, number);
        assert_eq!(run(c"five", all), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        return;
    }
    engine(TEST, "devices=2,multicast=1,races=1", |name| {
        ok!(cuInit(0));
        let properties =
            CUmulticastObjectProp { numDevices: 2, size: GRANULE, handleTypes: u64::from(POSIX), flags: 0 };
        let (mut object, meeting) = (0, create(0));
        ok!(cuMulticastCreate(&mut object, &properties));
        let start = |number| {
            let mut command = process(TEST, name, number);
            command.stdin(Stdio::from(export(meeting))).stderr(Stdio::from(export(object)));
            command.spawn().unwrap()
        };
        [0, 1].map(start).into_iter().for_each(|child| drop(end(child)));
    });
}
