//! What the virtual driver pretends to be: the environment variable `CONGRUENT_VIRTUAL_DRIVER`.
//!
//! A list like `devices=2,sms=4,memory=512M,shared=99K,capability=9.0,version=12080,multicast=1,mps=1,handles=posix,reach=1,
//! engine=ptx,schedule=lockstep,seed=0,races=0,weak=0,mutant=0,patience=60,budget=1000000000,leap=50,halt=1:5000,flip=1:5000:0,late=1,
//! silence=60,fail=cuMemCreate:3:CUDA_ERROR_OUT_OF_MEMORY`, in one line. What it does not name keeps its default. `fail=NAME:N:CODE` makes
//! the N-th call of a function fail, `*` every call of it. `halt`, `flip`, `late` and `fail` may be given several times.
//! `record=FILE`, `replay=FILE` and `profile=FILE` are for one engine each: of a job, or of the only process.

use std::env;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::{LazyLock, OnceLock};

use congruent_virtual_gpu::{Injection, Promises, Schedule};
use cudarc::driver::sys::CUresult;

use crate::device::SHARED_PER_BLOCK;
use crate::vmm::physical::{FABRIC, POSIX};
use crate::{calls, errors};

/// The variable's name.
pub const VARIABLE: &str = "CONGRUENT_VIRTUAL_DRIVER";
/// The variable that says how many devices there are, and how many PEs on each: `4` or `2x4`.
const SHAPE: &str = "CONGRUENT_VIRTUAL";
/// The most devices that there can be.
const MOST: u32 = 64;
/// Bytes of shared memory that a block may ask for: what it has without asking, to what it has on an H100.
const SHARED: RangeInclusive<u32> = SHARED_PER_BLOCK..=227 << 10;

/// Whether the driver is part of the program that uses it.
static IN_PROGRAM: OnceLock<()> = OnceLock::new();

/// The driver is part of the program: a device for each PE, unless somebody says otherwise.
pub(crate) fn in_program() {
    IN_PROGRAM.get_or_init(|| ());
}

/// A machine with GPUs, as tests see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// Devices, all alike.
    pub(crate) devices: u32,
    /// Multiprocessors of a device.
    pub(crate) sms: u32,
    /// Bytes of a device's memory. Each process has all of it for itself: the virtual driver does not count across processes.
    pub(crate) memory: u64,
    /// Bytes of shared memory that a block may ask for, from 48K to 227K. A multiprocessor has 1K more.
    pub(crate) shared: u32,
    /// Compute capability, major and minor.
    pub(crate) capability: (u32, u32),
    /// Driver version, as `cuDriverGetVersion` gives it: 1000 major + 10 minor.
    pub(crate) version: u32,
    /// Whether devices have multicast objects.
    pub(crate) multicast: bool,
    /// Whether network devices may be given the memory of devices.
    pub(crate) rdma: bool,
    /// Whether devices say that an MPS serves them.
    pub(crate) mps: bool,
    /// How memory can be exported: the driver's kinds of handles, of which there may be several. `handles=none`, `posix`, `fabric` or
    /// `both`.
    pub(crate) handles: u32,
    /// Whether devices reach each other's memory.
    pub(crate) reach: bool,
    /// What runs kernels: `engine=ptx` or `native`.
    pub(crate) engine: Engine,
    /// How the warps of virtual GPUs take turns: `schedule=lockstep`, `random`, `priorities`, or `behind:1` for a device 1 that
    /// runs only while all others wait.
    pub(crate) schedule: Schedule,
    /// What choices of the schedule come from.
    pub(crate) seed: u64,
    /// Whether data races end a launch.
    pub(crate) races: bool,
    /// Whether loads may see all that the memory model lets them see: `weak=0` or `1`, or with what hardware promises beside the
    /// model, `v4` (`V4_16B_ATOMIC`) or `ll128` (that and `LL128_128B_ORDERED`).
    pub(crate) weak: Option<Promises>,
    /// Which of the things that order accesses in an image is taken away: `mutant=N`, counted from 1 as in
    /// `Program::mutants`; 0 for none. Of an image with fewer nothing is.
    pub(crate) mutant: u32,
    /// After how many seconds without any write it is a deadlock that all wait.
    pub(crate) patience: u32,
    /// How many instructions the warps of a launch may execute, if not any number.
    pub(crate) budget: Option<u64>,
    /// After how many milliseconds in which all wait the devices' own time goes on by itself, if it ever does.
    pub(crate) leap: Option<u32>,
    /// What goes wrong with devices: `halt=1:5000` stops device 1 after 5000 instructions, `flip=1:5000:0` inverts bit 0 of what it
    /// stores next in the scope of the system, `late=1` has it find out late what it waits for.
    pub(crate) injections: Vec<Injection>,
    /// Where to write down when launches come: `record=FILE`.
    pub(crate) record: Option<PathBuf>,
    /// Which record to follow: `replay=FILE`.
    pub(crate) replay: Option<PathBuf>,
    /// Where to write down how often what was executed: `profile=FILE`.
    pub(crate) profile: Option<PathBuf>,
    /// How many seconds the engine of a job may say nothing to a process that waits for it.
    pub(crate) silence: u32,
    /// Calls that fail.
    pub(crate) faults: Vec<Fault>,
}

/// What runs kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    /// Virtual GPUs, which execute their PTX.
    Ptx,
    /// Native functions that the process registered. Of PTX, what is outside the bodies of its functions counts.
    Native,
}

/// A call that fails without being made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The exported name, with its `_v2`.
    pub(crate) function: String,
    /// Which call, counted from 1; none for all.
    pub(crate) call: Option<u64>,
    /// What it gives.
    pub(crate) code: CUresult,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            devices: 1,
            sms: 132,
            memory: 4 << 30,
            // As on an H100.
            shared: 227 << 10,
            capability: (9, 0),
            version: 12080,
            multicast: false,
            rdma: false,
            mps: false,
            handles: POSIX,
            reach: true,
            engine: Engine::Ptx,
            schedule: Schedule::Lockstep,
            seed: 0,
            races: false,
            weak: None,
            mutant: 0,
            patience: 60,
            budget: None,
            leap: None,
            injections: Vec::new(),
            record: None,
            replay: None,
            profile: None,
            silence: 60,
            faults: Vec::new(),
        }
    }
}

const HANDLES: [(&str, u32); 4] = [("none", 0), ("posix", POSIX), ("fabric", FABRIC), ("both", POSIX | FABRIC)];

const WEAK: [(&str, Option<Promises>); 4] = [
    ("0", None),
    ("1", Some(Promises { v4_16b_atomic: false, ll128_128b_ordered: false })),
    ("v4", Some(Promises { v4_16b_atomic: true, ll128_128b_ordered: false })),
    ("ll128", Some(Promises { v4_16b_atomic: true, ll128_128b_ordered: true })),
];

/// The configuration of this process, or what is wrong with the variable. Read once.
pub(crate) fn get() -> Result<&'static Config, &'static str> {
    static CONFIG: LazyLock<Result<Config, String>> =
        LazyLock::new(|| read(None, "", if IN_PROGRAM.get().is_some() { MOST } else { Config::default().devices }));
    CONFIG.as_ref().map_err(String::as_str)
}

/// The configuration of a job on so many GPUs, or as many as a process of it would have, with settings beside those of the
/// variable.
pub(crate) fn of_job(gpus: Option<u32>, settings: &str) -> Result<&'static Config, String> {
    // A process starts few jobs, and what an engine is like stays.
    read(gpus, settings, MOST).map(|config| &*Box::leak(Box::new(config)))
}

/// With so many devices, or as many as a variable says, or `otherwise`.
fn read(gpus: Option<u32>, settings: &str, otherwise: u32) -> Result<Config, String> {
    let devices = match (gpus, variable(SHAPE)?) {
        (Some(gpus), _) => gpus,
        (None, Some(text)) => devices(&text)?,
        (None, None) => otherwise,
    };
    let config = Config { devices, ..Config::default() };
    let text = variable(VARIABLE)?.unwrap_or_default();
    parse(config, &format!("{text},{settings}")).map_err(|why| format!("{VARIABLE}: {why}"))
}

pub(crate) fn variable(name: &str) -> Result<Option<String>, String> {
    match env::var(name) {
        Ok(text) => Ok(Some(text)),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(env::VarError::NotUnicode(_)) => Err(format!("{name} is not UTF-8")),
    }
}

/// The devices of a shape such as `2x4`.
fn devices(shape: &str) -> Result<u32, String> {
    let (devices, pes) = shape.split_once('x').unwrap_or((shape, "1"));
    let number = |text: &str| text.parse().ok().filter(|number| (1..=MOST).contains(number));
    let wrong =
        || format!("{SHAPE}={shape}: give a number of GPUs from 1 to {MOST}, or GPUs and PEs on each, such as 2x4");
    number(devices).filter(|_| number(pes).is_some()).ok_or_else(wrong)
}

fn parse(mut config: Config, text: &str) -> Result<Config, String> {
    for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let (key, value) = item.split_once('=').ok_or_else(|| format!("`{item}` has no `=`"))?;
        match key {
            "devices" => config.devices = number(key, value, 0..=MOST)?,
            "sms" => config.sms = number(key, value, 1..=1024)?,
            "memory" => config.memory = bytes(key, value)?,
            "shared" => {
                let shared = u32::try_from(bytes(key, value)?).ok().filter(|shared| SHARED.contains(shared));
                config.shared = shared.ok_or_else(|| format!("shared={value}: give 48K to 227K"))?;
            }
            "capability" => config.capability = capability(value)?,
            "version" => config.version = number(key, value, 1000..=99_990)?,
            "multicast" => config.multicast = number(key, value, 0..=1)? == 1,
            "rdma" => config.rdma = number(key, value, 0..=1)? == 1,
            "mps" => config.mps = number(key, value, 0..=1)? == 1,
            "handles" => config.handles = one_of(key, value, &HANDLES)?,
            "reach" => config.reach = number(key, value, 0..=1)? == 1,
            "engine" => config.engine = one_of(key, value, &[("ptx", Engine::Ptx), ("native", Engine::Native)])?,
            "schedule" => config.schedule = schedule(key, value)?,
            "seed" => config.seed = value.parse().map_err(|_| format!("seed={value}: give a whole number"))?,
            "races" => config.races = number(key, value, 0..=1)? == 1,
            "weak" => config.weak = one_of(key, value, &WEAK)?,
            "mutant" => config.mutant = number(key, value, 0..=1_000_000)?,
            "patience" => config.patience = number(key, value, 1..=86_400)?,
            "budget" => {
                let budget = value.parse().map_err(|_| format!("budget={value}: give instructions as a whole number"));
                config.budget = Some(budget?);
            }
            "leap" => config.leap = Some(number(key, value, 0..=3_600_000)?),
            "halt" | "flip" | "late" => config.injections.push(injection(key, value)?),
            "record" => config.record = Some(value.into()),
            "replay" => config.replay = Some(value.into()),
            "profile" => config.profile = Some(value.into()),
            "silence" => config.silence = number(key, value, 1..=86_400)?,
            "fail" => config.faults.push(fault(value)?),
            _ => {
                let known = "devices, sms, memory, shared, capability, version, multicast, rdma, mps, handles, reach, engine, schedule, \
                             seed, races, weak, mutant, patience, budget, leap, halt, flip, late, record, replay, profile, \
                             silence, fail";
                return Err(format!("there is no `{key}`; there are {known}"));
            }
        }
    }
    Ok(config)
}

fn schedule(key: &str, value: &str) -> Result<Schedule, String> {
    if let Some(device) = value.strip_prefix("behind:") {
        return Ok(Schedule::Behind(number(key, device, 0..=63)?));
    }
    let named = [("lockstep", Schedule::Lockstep), ("random", Schedule::Random), ("priorities", Schedule::Priorities)];
    one_of(key, value, &named)
}

fn injection(key: &str, value: &str) -> Result<Injection, String> {
    let parts: Vec<&str> = value.split(':').collect();
    let device = |text| number(key, text, 0..=63);
    let step = |text: &str| text.parse().map_err(|_| format!("{key}={value}: give instructions as a whole number"));
    match (key, &parts[..]) {
        ("halt", [on, after]) => Ok(Injection::Halt { device: device(on)?, step: step(after)? }),
        ("flip", [on, after, bit]) => {
            Ok(Injection::Flip { device: device(on)?, step: step(after)?, bit: number(key, bit, 0..=127)? })
        }
        ("late", [on]) => Ok(Injection::Late { device: device(on)? }),
        _ => Err(format!("{key}={value}: give it like halt=1:5000, flip=1:5000:0 or late=1")),
    }
}

fn number(key: &str, value: &str, allowed: RangeInclusive<u32>) -> Result<u32, String> {
    let number = value.parse().ok().filter(|number| allowed.contains(number));
    number.ok_or_else(|| format!("{key}={value}: give a number from {} to {}", allowed.start(), allowed.end()))
}

fn bytes(key: &str, value: &str) -> Result<u64, String> {
    let (digits, shift) = match value.strip_suffix(['K', 'M', 'G']) {
        Some(digits) if value.ends_with('K') => (digits, 10),
        Some(digits) if value.ends_with('M') => (digits, 20),
        Some(digits) => (digits, 30),
        None => (value, 0),
    };
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    number.ok_or_else(|| format!("{key}={value}: give bytes, or a number with K, M or G behind it"))
}

/// What a word stands for.
fn one_of<T: Copy>(key: &str, value: &str, meanings: &[(&str, T)]) -> Result<T, String> {
    let meant = meanings.iter().find(|(word, _)| *word == value).map(|&(_, meaning)| meaning);
    let words = || meanings.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(" or ");
    meant.ok_or_else(|| format!("{key}={value}: give {}", words()))
}

fn capability(value: &str) -> Result<(u32, u32), String> {
    let parts = value.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    let sane = parts.filter(|&(major, minor): &(u32, u32)| (1..100).contains(&major) && minor < 10);
    sane.ok_or_else(|| format!("capability={value}: give it like 9.0"))
}

fn fault(value: &str) -> Result<Fault, String> {
    let wrong = |why: &str| format!("fail={value}: {why}");
    let mut parts = value.splitn(3, ':');
    let (Some(function), Some(call), Some(code)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(wrong("give it like cuMemCreate:3:CUDA_ERROR_OUT_OF_MEMORY"));
    };
    if !calls::names().any(|name| name == function) {
        return Err(wrong("the virtual driver exports no such function; give its full name, such as cuMemAlloc_v2"));
    }
    let call = match call {
        "*" => None,
        digits => match digits.parse() {
            Ok(0) | Err(_) => return Err(wrong("which call is a number from 1, or * for all")),
            Ok(number) => Some(number),
        },
    };
    let code = errors::named(code).filter(|&code| code != CUresult::CUDA_SUCCESS);
    let code = code.ok_or_else(|| wrong("the code is not an error of the driver, such as CUDA_ERROR_OUT_OF_MEMORY"))?;
    Ok(Fault { function: function.to_owned(), call, code })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Result<Config, String> {
        parse(Config::default(), text)
    }

    #[test]
    fn shapes_name_devices_first() {
        assert_eq!((devices("4"), devices("2x4"), devices("64")), (Ok(4), Ok(2), Ok(64)));
        for text in ["", "0", "65", "2x", "x4", "2x0", "2x2x2", "two"] {
            let why = devices(text).expect_err(text);
            assert!(why.contains("CONGRUENT_VIRTUAL=") && why.contains("2x4"), "{text}: {why}");
        }
    }

    #[test]
    fn nothing_said_is_the_default() {
        assert_eq!(said(""), Ok(Config::default()));
        assert_eq!(said(" , "), Ok(Config::default()));
    }

    #[test]
    fn everything_can_be_said() {
        let text = "devices=2,sms=4,memory=512M,shared=99K,capability=8.6,version=11040,multicast=1,rdma=1,mps=1,handles=both,reach=0,\
                    engine=native,schedule=behind:2,seed=7,races=1,weak=v4,mutant=3,patience=5,budget=5000000000,leap=50,halt=1:5000,flip=2:7:33,late=0,record=a/file,replay=another,profile=third,silence=9,fail=cuMemCreate:3:CUDA_ERROR_OUT_OF_MEMORY,fail=cuMemMap:*:CUDA_ERROR_UNKNOWN";
        let fault = |function: &str, call, code| Fault { function: function.to_owned(), call, code };
        let expected = Config {
            devices: 2,
            sms: 4,
            memory: 512 << 20,
            shared: 99 << 10,
            capability: (8, 6),
            version: 11040,
            multicast: true,
            rdma: true,
            mps: true,
            handles: POSIX | FABRIC,
            reach: false,
            engine: Engine::Native,
            schedule: Schedule::Behind(2),
            seed: 7,
            races: true,
            weak: Some(Promises { v4_16b_atomic: true, ll128_128b_ordered: false }),
            mutant: 3,
            patience: 5,
            budget: Some(5_000_000_000),
            leap: Some(50),
            injections: vec![
                Injection::Halt { device: 1, step: 5000 },
                Injection::Flip { device: 2, step: 7, bit: 33 },
                Injection::Late { device: 0 },
            ],
            record: Some("a/file".into()),
            replay: Some("another".into()),
            profile: Some("third".into()),
            silence: 9,
            faults: vec![
                fault("cuMemCreate", Some(3), CUresult::CUDA_ERROR_OUT_OF_MEMORY),
                fault("cuMemMap", None, CUresult::CUDA_ERROR_UNKNOWN),
            ],
        };
        assert_eq!(said(text), Ok(expected));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("devices", "has no `=`"),
            ("gpus=2", "there is no `gpus`"),
            ("sms=0", "from 1 to 1024"),
            ("memory=lots", "memory=lots"),
            ("memory=99999999999G", "memory="),
            ("shared=228K", "48K to 227K"),
            ("shared=much", "shared=much: give bytes"),
            ("capability=9", "like 9.0"),
            ("handles=win32", "none or posix or fabric or both"),
            ("budget=much", "whole number"),
            ("halt=1", "give it like"),
            ("halt=1:soon", "whole number"),
            ("flip=1:5:128", "from 0 to 127"),
            ("late=64", "from 0 to 63"),
            ("fail=cuMemCreate", "give it like"),
            ("fail=cuMemAlloc:1:CUDA_ERROR_UNKNOWN", "exports no such function"),
            ("fail=cuMemCreate:0:CUDA_ERROR_UNKNOWN", "from 1"),
            ("fail=cuMemCreate:1:CUDA_SUCCESS", "not an error"),
        ] {
            let said = said(text).expect_err(text);
            assert!(said.contains(part), "{text}: {said}");
        }
    }
}
