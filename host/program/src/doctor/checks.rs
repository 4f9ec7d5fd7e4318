//! What `doctor` looks at.
#![allow(clippy::disallowed_types, reason = "a futex call takes a word that is not symmetric memory")]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicU32;
use std::{env, fs};

use congruent_kernels as kernels;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::process::{PidfdFlags, Resource};
use rustix::thread::futex;

use super::Line;
use congruent::{Error, Grid};

/// Looks at the machine itself, the indispensable first.
pub(super) fn cpu() -> Vec<Line> {
    vec![cores(), memory(), memfd(), futex_wait(), pidfd(), world(), open_files(), huge_pages()]
}

/// Looks at what is optional, but for GPUs.
pub(super) fn optional() -> Vec<Line> {
    vec![device_rustc(), ptxas(), rdma(), open_mpi()]
}

fn cores() -> Line {
    let subject = "cores";
    match std::thread::available_parallelism().map_or(1, usize::from) {
        1 => Line::note(subject, "1", "PEs take turns on it: good for tests, not for measurements"),
        cores => Line::ok(subject, cores.to_string()),
    }
}

fn memory() -> Line {
    let subject = "memory";
    let available = fs::read_to_string("/proc/meminfo").ok().and_then(|text| available_bytes(&text));
    match available.map(|bytes| bytes >> 20) {
        None => Line::note(subject, "unknown: /proc/meminfo cannot be read", "mount /proc"),
        Some(mib @ ..512) => Line::note(
            subject,
            format!("{mib} MiB available"),
            "give small heaps (CONGRUENT_HEAP=16M); 4 PEs of the default need 256 MiB",
        ),
        Some(mib) => Line::ok(subject, format!("{mib} MiB available")),
    }
}

fn available_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn memfd() -> Line {
    let subject = "sealed memory";
    let tried = rustix::fs::memfd_create("congruent doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .and_then(|fd| rustix::fs::ftruncate(&fd, 1 << 20).map(|()| fd))
        .and_then(|fd| rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL));
    match tried {
        Ok(()) => Line::ok(subject, "memfd_create and seals work"),
        Err(error) => {
            Line::fatal(subject, format!("memfd_create: {error}"), "allow it in the container's seccomp profile")
        }
    }
}

fn futex_wait() -> Line {
    let subject = "futex";
    // The word does not hold what the wait expects, so a futex that works returns at once and says so.
    match futex::wait(&AtomicU32::new(1), futex::Flags::empty(), 0, None) {
        Err(rustix::io::Errno::AGAIN) => Line::ok(subject, "waits on shared words work"),
        Ok(()) => Line::fatal(subject, "it returned as if woken", "report this kernel's version"),
        Err(error) => Line::fatal(subject, error.to_string(), "allow futex in the container's seccomp profile"),
    }
}

fn pidfd() -> Line {
    let subject = "pidfd";
    match rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty()) {
        Ok(_) => Line::ok(subject, "`congruent run` can watch its PEs"),
        Err(error) => Line::missing(
            subject,
            format!("pidfd_open: {error}"),
            "PEs can be threads, but not processes of `congruent run`: it needs Linux 5.3",
        ),
    }
}

/// Everything at once: heaps at one address, threads, a kernel that signals to and fro.
fn world() -> Line {
    let subject = "a world of two PEs";
    let tried = crate::world().heap(2 << 20).local(2, |world| {
        let (inbox, outbox, turn) = (world.alloc(8)?, world.alloc(8)?, world.alloc(1)?);
        let stream = world.stream()?;
        let arguments = (inbox.view(), outbox.view(), turn.view(), 100);
        outbox.fill(7)?;
        world.barrier()?;
        world.run(&stream, kernels::perf_ping_pong, Grid::one(32), arguments)?;
        Ok::<_, Error>(inbox.to_vec()? == [7; 8])
    });
    match tried {
        Ok(arrived) if arrived.iter().all(|&arrived| arrived) => {
            Line::ok(subject, "heaps share one address range; a kernel's messages arrived")
        }
        Ok(_) => Line::fatal(subject, "a message arrived damaged", "report this machine's kind and kernel version"),
        Err(error) => Line::fatal(subject, error.to_string(), "do what the error says, then run this again"),
    }
}

fn open_files() -> Line {
    let subject = "open files";
    match rustix::process::getrlimit(Resource::Nofile).current {
        Some(limit @ ..1024) => Line::note(
            subject,
            format!("at most {limit}"),
            format!("jobs of more than {} PEs need more: ulimit -n 4096", limit.saturating_sub(64) / 3),
        ),
        Some(limit) => Line::ok(subject, format!("at most {limit}")),
        None => Line::ok(subject, "no limit"),
    }
}

fn huge_pages() -> Line {
    let (subject, file) = ("huge pages", "/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    let next = format!("large heaps get faster with: echo advise > {file}");
    match fs::read_to_string(file).ok().as_deref().and_then(chosen) {
        Some("never" | "deny") => Line::note(subject, "not for shared memory", next),
        Some(mode) => Line::ok(subject, format!("for shared memory: {mode}")),
        None => Line::note(subject, "this kernel does not tell", "nothing to do: heaps work without, a little slower"),
    }
}

/// The word in brackets of `always [advise] never`.
fn chosen(modes: &str) -> Option<&str> {
    modes.split_once('[')?.1.split_once(']').map(|(mode, _)| mode)
}

fn device_rustc() -> Line {
    let subject = "device rustc";
    let named = env::var_os("CONGRUENT_DEVICE_RUSTC").map(PathBuf::from);
    let next = "to build kernels to PTX: rustup target add nvptx64-nvidia-cuda";
    match named {
        Some(path) if path.is_file() => {
            return Line::ok(subject, format!("{} (CONGRUENT_DEVICE_RUSTC)", path.display()));
        }
        Some(path) => {
            return Line::missing(subject, format!("CONGRUENT_DEVICE_RUSTC={} is no file", path.display()), next);
        }
        None => {}
    }
    let libraries = |rustc: &Path| {
        let output =
            Command::new(rustc).args(["--print", "sysroot"]).output().ok().filter(|done| done.status.success())?;
        Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()).join("lib/rustlib"))
    };
    let able = |rustc: &PathBuf| {
        libraries(rustc).is_some_and(|libraries| {
            libraries.join("nvptx64-nvidia-cuda/lib").is_dir() || libraries.join("src/rust/library/core").is_dir()
        })
    };
    let system = PathBuf::from("/usr/bin/rustc");
    match program("rustc").into_iter().chain(toolchains()).chain([system]).find(able) {
        Some(path) => Line::ok(subject, path.display().to_string()),
        None => Line::missing(subject, "no rustc with a core library for nvptx64-nvidia-cuda", next),
    }
}

/// The compilers of rustup's toolchains.
fn toolchains() -> Vec<PathBuf> {
    let home = env::var_os("RUSTUP_HOME").map(PathBuf::from);
    let home = home.or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".rustup")));
    let Some(entries) = home.and_then(|home| fs::read_dir(home.join("toolchains")).ok()) else { return Vec::new() };
    let mut found: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path().join("bin/rustc"))).collect();
    found.sort();
    found
}

fn ptxas() -> Line {
    let subject = "ptxas";
    let named = env::var_os("CONGRUENT_PTXAS").map(PathBuf::from);
    let installed = cache().map(|cache| cache.join("ptx/bin/ptxas"));
    let usual = Some(PathBuf::from("/usr/local/cuda/bin/ptxas"));
    match [named, installed, program("ptxas"), usual].into_iter().flatten().find(|path| path.is_file()) {
        Some(path) => Line::ok(subject, path.display().to_string()),
        None => Line::missing(
            subject,
            "not in the cache and not on PATH",
            "to assemble PTX: device/build/install-toolchain of the sources, or set CONGRUENT_PTXAS to one",
        ),
    }
}

/// The folder where congruent-build keeps what it compiles, and its assembler.
fn cache() -> Option<PathBuf> {
    let folder = |name| env::var_os(name).map(PathBuf::from);
    let absolute = |name| folder(name).filter(|folder| folder.is_absolute());
    let caches = || absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    folder("CONGRUENT_CACHE")
        .filter(|folder| !folder.as_os_str().is_empty())
        .or_else(|| Some(caches()?.join("congruent")))
}

fn rdma() -> Line {
    let subject = "RDMA devices";
    let devices = fs::read_dir("/sys/class/infiniband").map_or(Vec::new(), |entries| {
        let names = entries.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()));
        names.collect::<Vec<_>>()
    });
    if devices.is_empty() {
        return Line::note(subject, "none", "PEs on other hosts are reached by TCP, with libfabric");
    }
    Line::ok(subject, format!("{}, for PEs on other hosts", devices.join(", ")))
}

fn open_mpi() -> Line {
    let subject = "Open MPI";
    match (program("mpicc"), program("oshcc")) {
        (Some(mpicc), Some(_)) => Line::ok(subject, format!("{}, with OpenSHMEM", mpicc.display())),
        _ => Line::missing(
            subject,
            "no mpicc or no oshcc on PATH",
            "to compare with it: apt-get install openmpi-bin libopenmpi-dev",
        ),
    }
}

/// A program on PATH.
fn program(name: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// A shared library where the loader would look for it.
pub(super) fn library(name: &str) -> Option<PathBuf> {
    const FOLDERS: [&str; 6] = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/lib64",
        "/usr/lib/wsl/lib",
    ];
    let path = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let configured = fs::read_dir("/etc/ld.so.conf.d").into_iter().flatten().filter_map(|entry| entry.ok());
    let configured = configured.filter(|entry| entry.path().extension() == Some(OsStr::new("conf")));
    let configured = configured.filter_map(|entry| fs::read_to_string(entry.path()).ok());
    let configured: Vec<PathBuf> = configured
        .flat_map(|text| text.lines().filter(|line| line.starts_with('/')).map(PathBuf::from).collect::<Vec<_>>())
        .collect();
    let folders = env::split_paths(&path).chain(configured).chain(FOLDERS.map(PathBuf::from));
    folders.map(|folder| folder.join(name)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_is_read() {
        assert_eq!(available_bytes("MemTotal: 9 kB\nMemAvailable:    12 kB\n"), Some(12 << 10));
        assert_eq!(available_bytes("MemAvailable: lots"), None);
        assert_eq!(chosen("always within_size [advise] never deny force\n"), Some("advise"));
        assert_eq!(chosen("nonsense"), None);
    }

    #[test]
    fn nothing_is_found_that_is_not_there() {
        assert_eq!(program("congruent-no-such-program"), None);
        assert_eq!(library("libcongruent-no-such-library.so"), None);
        assert!(program("sh").is_some());
    }
}
