//! The conformance suite on the CUDA machine, over the driver double: the loading of the driver, its memory, modules and streams are
//! as on a GPU; kernels run natively.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::LazyLock;

use congruent_build::{Builder, Target};
use congruent_cuda_double::{built, install};
use congruent_tests::conformance::{self, cuda};
use congruent_tests::repository;

/// Where PEs find the double, and the PTX of the test kernels.
static DRIVER: LazyLock<Vec<(&str, OsString)>> = LazyLock::new(|| {
    let here = env::current_exe().unwrap().parent().unwrap().join("double");
    install(&here, &built().unwrap()).unwrap();
    vec![
        ("LD_LIBRARY_PATH", here.clone().into()),
        ("CONGRUENT_PTX", ptx(here).into()),
        // Eight PEs of a process have more streams than the eight hardware queues that a driver has unless it is told.
        ("CUDA_DEVICE_MAX_CONNECTIONS", "32".into()),
    ]
});

/// PTX of the test kernels for the oldest architecture: what every GPU can run.
fn ptx(here: PathBuf) -> PathBuf {
    let oldest = Target::defaults().into_iter().take(1);
    let builder = Builder::new(repository().join("tests/kernels")).targets(oldest).out_dir(here.join("ptx"));
    builder.build().unwrap().swap_remove(0).path
}

macro_rules! families {
    ($($family:ident)*) => {$(
        #[test]
        fn $family() {
            cuda(stringify!($family), conformance::$family, &[1, 2, 3, 4, 8], || DRIVER.clone());
        }
    )*};
}

families! { rma signals ordering atomics teams groups bulk direct collectives in_kernel flags protocols }

/// Each PE on a device of its own. Windows are made and mapped as on GPUs; what links do, the PEs do one by one.
#[test]
fn multicast() {
    let devices = ("CONGRUENT_DOUBLE", "devices=8,multicast=1".into());
    cuda("multicast", conformance::multicast, &[4], || DRIVER.iter().cloned().chain([devices]).collect());
}
