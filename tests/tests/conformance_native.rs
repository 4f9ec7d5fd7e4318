//! The conformance suite on the CUDA machine, over the virtual driver: the loading of the driver, its memory, modules and streams are
//! as on a GPU; kernels run natively.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::{env, fs};

use congruent_build::Builder;
use congruent_tests::conformance::{self, all_shapes, cuda};
use congruent_tests::repository;
use congruent_virtual_library::{built, install};

/// Where PEs find the virtual driver, and the PTX of the test kernels.
static DRIVER: LazyLock<Vec<(&str, OsString)>> = LazyLock::new(|| {
    let here = env::current_exe().unwrap().parent().unwrap().join("virtual");
    install(&here, &built().unwrap()).unwrap();
    vec![
        ("LD_LIBRARY_PATH", here.clone().into()),
        ("CONGRUENT_PTX", ptx(here).into()),
        ("CONGRUENT_VIRTUAL_DRIVER", "engine=native".into()),
        // Eight PEs of a process have more streams than the eight hardware queues that a driver has unless it is told.
        ("CUDA_DEVICE_MAX_CONNECTIONS", "32".into()),
    ]
});

/// How many PEs; PEs as threads and as processes, all on the virtual driver's one device.
const MANY: [usize; 3] = [1, 2, 5];

/// The same for families in which the host does nothing else than for one another: what their kernels compute natively, the suites of the CPU
/// machine show. `./check --full` takes all.
fn few() -> &'static [usize] {
    if all_shapes() { &MANY } else { &MANY[1..2] }
}

/// PTX of the test kernels for the default target: what every GPU can run.
fn ptx(here: PathBuf) -> PathBuf {
    let builder = Builder::new(repository().join("tests/kernels")).out_dir(here.join("ptx"));
    builder.build().unwrap().swap_remove(0).path
}

macro_rules! families {
    ($($family:ident)* => $many:expr) => {$(
        #[test]
        fn $family() {
            cuda(stringify!($family), conformance::$family, $many, || DRIVER.clone());
        }
    )*};
}

families! { rma signals collectives streams buffers => &MANY }
families! { atomics teams groups ordering lanes shared matrix arithmetic bulk direct in_kernel flags protocols => few() }

/// A wait of a stream ends, though the driver's has no deadline. The PEs take in their PTX before they wait, and not all at the
/// same time: the deadline is longer than that.
#[test]
fn unanswered() {
    let driver = || [&DRIVER[..], &[("CONGRUENT_DEADLINE_MS", "2000".into())]].concat();
    cuda("unanswered", conformance::unanswered, &[1, 3], driver);
}

#[test]
fn groups_in_flight() {
    cuda("groups_in_flight", conformance::groups_in_flight, &[1, 3], || DRIVER.clone());
}

/// The file for the newest GPUs is too new for the driver, and that for older ones is taken.
#[test]
fn older_files() {
    cuda("older_files", conformance::streams, &[2], || {
        let older = DRIVER.iter().find(|(name, _)| *name == "CONGRUENT_PTX").unwrap().1.to_str().unwrap();
        // What it is written for is all that this driver reads of it.
        let text = fs::read_to_string(older).unwrap();
        assert!(text.contains(".version 8.0\n.target sm_80\n"), "{older}");
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("newer.ptx");
        fs::write(&path, text.replace(".version 8.0\n.target sm_80\n", ".version 8.2\n.target sm_90\n")).unwrap();
        let files = format!("{older},{}", path.display());
        let settings = "engine=native,capability=9.0,version=12000";
        let own = [("CONGRUENT_VIRTUAL_DRIVER", settings.into()), ("CONGRUENT_PTX", files.into())];
        [&DRIVER[..], &own].concat()
    });
}

/// Each PE on a device of its own, with the oldest driver that takes kernels with multicast (R535). Windows are made and mapped as on
/// GPUs; what links do, the PEs do one by one.
#[test]
fn multicast() {
    let devices = ("CONGRUENT_VIRTUAL_DRIVER", "engine=native,devices=8,multicast=1,version=12020".into());
    cuda("multicast", conformance::multicast, &[4], || DRIVER.iter().cloned().chain([devices]).collect());
}

/// Memory and multicast objects go to the other processes as handles of a fabric.
#[test]
fn fabric() {
    let settings = [
        ("CONGRUENT_VIRTUAL_DRIVER", "engine=native,devices=8,multicast=1,handles=fabric".into()),
        ("CONGRUENT_NVLS_ENABLE", "1".into()),
    ];
    cuda("fabric", conformance::rma, &[3], || DRIVER.iter().cloned().chain(settings).collect());
}
