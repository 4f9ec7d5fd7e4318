//! The CUDA machine over the virtual driver. The virtual driver reads what it is to be when a process starts, so that
//! each case is a process: this test binary again, which runs one test and finds the virtual driver and its settings in the
//! environment.
#![allow(dead_code, reason = "each suite uses its own part")]
#![allow(clippy::disallowed_types, reason = "numbers folders")]

use std::ffi::{CString, c_char};
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use congruent::device::{Element, Kernel, KernelArgs, Pod, abi};
use congruent::{AllocError, Buffer, ImportError, LaunchError, Stream, SymVec, World};
use congruent_virtual_library::{VARIABLE, built, install, names};

/// A folder of this test binary's own.
pub(crate) static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let program = std::env::current_exe().unwrap();
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(program.file_name().unwrap());
    fs::create_dir_all(&folder).unwrap();
    folder
});

/// Where the virtual driver is installed, whole.
static DRIVER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = FOLDER.join("virtual");
    install(&folder, &built().unwrap()).unwrap();
    folder
});

/// Lets a program run on the CUDA machine, over a virtual driver of these settings that runs native bodies.
pub(crate) fn on_virtual(mut command: Command, settings: &str) -> Command {
    command
        .env("CONGRUENT_MACHINE", "cuda")
        .env("LD_LIBRARY_PATH", &*DRIVER)
        .env(VARIABLE, format!("engine=native,{settings}"));
    command
}

/// A buffer of a world's, as memory that another library gave it the address of.
pub(crate) fn by_address<T: Pod>(world: &World, buffer: &Buffer<T>) -> Result<Buffer<T>, AllocError> {
    // SAFETY: so many elements are there, and callers read them, by either buffer, while both are there.
    unsafe { world.borrow_raw_buffer(buffer.device_ptr(), buffer.len()) }
}

/// How a process ended.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) succeeded: bool,
    /// What it wrote to either output.
    pub(crate) said: String,
    pub(crate) took: Duration,
}

/// Lets processes run to their ends, all at once. One that goes on for longer than `within` is killed, and has not
/// succeeded.
pub(crate) fn ends(commands: Vec<Command>, within: Duration) -> Vec<End> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let began = Instant::now();
    let start = |mut command: Command| {
        let file = FOLDER.join(format!("output-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
        let output = File::create(&file).unwrap();
        command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
        (command.spawn().unwrap(), file)
    };
    let running: Vec<_> = commands.into_iter().map(start).collect();
    let finish = |(mut child, file): (std::process::Child, PathBuf)| {
        let status = loop {
            match child.try_wait().unwrap() {
                Some(status) => break Some(status),
                None if began.elapsed() > within => {
                    child.kill().unwrap();
                    child.wait().unwrap();
                    break None;
                }
                None => thread::sleep(Duration::from_millis(2)),
            }
        };
        let said = String::from_utf8_lossy(&fs::read(&file).unwrap()).into_owned();
        fs::remove_file(&file).unwrap();
        End { succeeded: status.is_some_and(|status| status.success()), said, took: began.elapsed() }
    };
    running.into_iter().map(finish).collect()
}

/// PTX that declares kernels and nothing more: the virtual driver runs their native bodies. For kernels of a test.
pub(crate) fn declare(name: &str, entries: &[String]) -> PathBuf {
    let path = FOLDER.join(name).with_extension("ptx");
    let text = format!(".version 8.0\n.target sm_80\n.address_size 64\n{}", entries.concat());
    fs::write(&path, text).unwrap();
    path
}

/// The declaration of a kernel.
pub(crate) fn entry<K: Kernel>() -> String {
    declared(K::NAME, K::Args::SIZES, ".reg .b64 %now; mov.u64 %now, %globaltimer; ret;")
}

/// The declaration of a kernel that never waits: it does not look at the clock.
pub(crate) fn entry_without_waits<K: Kernel>() -> String {
    declared(K::NAME, K::Args::SIZES, "ret;")
}

/// The declaration of a kernel of this name, with arguments of so many bytes.
pub(crate) fn declared(name: &str, arguments: &[usize], body: &str) -> String {
    let sizes = [size_of::<abi::Context>()].into_iter().chain(arguments.iter().copied());
    let param = |(at, bytes): (usize, usize)| format!(".param .align 8 .b8 param_{at}[{bytes}]");
    let params: Vec<_> = sizes.enumerate().map(param).collect();
    format!(".visible .entry {name}({})\n{{ {body} }}\n", params.join(", "))
}

/// How often each function of the virtual driver was called so far, in this process, which has loaded it as its driver.
pub(crate) fn calls() -> Vec<(&'static str, u64)> {
    // SAFETY: the library is the virtual driver, and is in the process already: nothing runs for this.
    let library = unsafe { libloading::Library::new("libcuda.so.1") }.unwrap();
    // SAFETY: the virtual driver declares the function so (`virtual/driver/src/calls/own.rs`).
    let calls = unsafe { library.get::<unsafe extern "C" fn(*const c_char) -> u64>("congruentVirtualCalls") }.unwrap();
    let count = |name: &str| {
        let name = CString::new(name).unwrap();
        // SAFETY: the name ends with a zero.
        unsafe { calls(name.as_ptr()) }
    };
    names().map(|name| (name, count(name))).filter(|(_, calls)| *calls > 0).collect()
}

/// Faults the context of the kernel that calls it, as an access of memory that is not there does on a GPU.
pub(crate) fn trap() {
    // SAFETY: the library is the virtual driver, and is in the process already: nothing runs for this.
    let library = unsafe { libloading::Library::new("libcuda.so.1") }.unwrap();
    // SAFETY: the virtual driver declares the function so (`virtual/driver/src/calls/own.rs`), and a kernel's thread calls it.
    unsafe { library.get::<unsafe extern "C" fn() -> u32>("congruentVirtualTrap").unwrap()() };
}

/// Device memory as another library would have it: so many pieces of 2 MiB on the first device, each mapped by itself, until the
/// process ends. Their addresses.
pub(crate) fn foreign_memory(pieces: u32) -> Vec<usize> {
    const BYTES: usize = 2 << 20;
    /// `CUmemAllocationProp`: pinned memory of device 0, for descriptors.
    const PROPERTIES: [u64; 4] = [1 | 1 << 32, 1, 0, 0];
    /// `CUmemAccessDesc`: device 0 reads and writes.
    const ACCESS: [u32; 3] = [1, 0, 3];
    // SAFETY: the library is the virtual driver, whose threads start by themselves.
    let library = unsafe { libloading::Library::new("libcuda.so.1") }.unwrap();
    // SAFETY: the five have these types (CUDA Driver API), and are given places, sizes and handles that they ask for.
    unsafe {
        let init = library.get::<unsafe extern "C" fn(u32) -> u32>("cuInit").unwrap();
        let reserve =
            library.get::<unsafe extern "C" fn(*mut u64, usize, usize, u64, u64) -> u32>("cuMemAddressReserve");
        let create = library.get::<unsafe extern "C" fn(*mut u64, usize, *const u64, u64) -> u32>("cuMemCreate");
        let map = library.get::<unsafe extern "C" fn(u64, usize, usize, u64, u64) -> u32>("cuMemMap");
        let allow = library.get::<unsafe extern "C" fn(u64, usize, *const u32, usize) -> u32>("cuMemSetAccess");
        let (reserve, create, map, allow) = (reserve.unwrap(), create.unwrap(), map.unwrap(), allow.unwrap());
        assert_eq!(init(0), 0);
        let piece = |_| {
            let (mut address, mut handle) = (0, 0);
            assert_eq!(reserve(&raw mut address, BYTES, 0, 0, 0), 0);
            assert_eq!(create(&raw mut handle, BYTES, PROPERTIES.as_ptr(), 0), 0);
            assert_eq!(map(address, BYTES, 0, handle, 0), 0);
            assert_eq!(allow(address, BYTES, ACCESS.as_ptr(), 1), 0);
            address as usize
        };
        (0..pieces).map(piece).collect()
    }
}

/// Imports memory of [`foreign_memory`].
pub(crate) fn import<T: Element>(world: &mut World, address: usize, len: usize) -> Result<SymVec<T>, ImportError> {
    // SAFETY: the memory stays mapped, and nobody else accesses it.
    unsafe { world.import(std::ptr::with_exposed_provenance_mut(address), len) }
}

/// Undoes [`import`].
pub(crate) fn release<T: Element>(world: &mut World, object: SymVec<T>) -> Result<(), ImportError> {
    // SAFETY: no test keeps a view of it.
    unsafe { world.release_imported(object) }
}

/// The default stream of a PE's device, as another library of the process would have it.
pub(crate) fn borrow_default(world: &World) -> Result<Stream, LaunchError> {
    // SAFETY: the default stream lives as long as its context, and nobody captures it.
    unsafe { world.borrow_raw_stream(std::ptr::null_mut()) }
}
