//! The conformance suite on the CUDA machine, over the driver that this machine has. Where it has no GPU, each test says
//! so and passes.
//!
//! `CONGRUENT_PTX` names the PTX of the test kernels, which is compiled here if it is unset; `CONGRUENT_TEST_PES=1,2` has
//! families run with these numbers of PEs alone. All PEs take the GPUs that there are in turns.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::env;
use std::ffi::OsString;
use std::sync::LazyLock;

use congruent::{BuildError, CudaError, Error, MachineKind, World};
use congruent_build::Builder;
use congruent_tests::conformance::{self, cuda_processes, cuda_threads, is_child};
use congruent_tests::{repository, skip};

/// Why no test can run here, if none can. A GPU that is there and does not work is a failure, not a reason.
static MISSING: LazyLock<Option<String>> = LazyLock::new(|| {
    let world = World::builder().machine(MachineKind::Cuda).heap(2 << 20);
    match world.local(1, |_| Ok::<_, Error>(())) {
        Ok(_) => None,
        Err(Error::Build(BuildError::Cuda(error @ (CudaError::NoLibrary { .. } | CudaError::NoDevice)))) => {
            Some(error.to_string())
        }
        Err(error) => panic!("{error}"),
    }
});

/// Where children find the PTX of the test kernels.
static PTX: LazyLock<Vec<(&'static str, OsString)>> = LazyLock::new(|| {
    if env::var_os("CONGRUENT_PTX").is_some() {
        return Vec::new();
    }
    let out = env::current_exe().unwrap().parent().unwrap().join("gpu-ptx");
    let built = Builder::new(repository().join("tests/kernels")).out_dir(out).build().unwrap();
    built.into_iter().map(|file| ("CONGRUENT_PTX", file.path.into())).collect()
});

/// With how many PEs.
fn numbers() -> Vec<usize> {
    let list = env::var("CONGRUENT_TEST_PES").unwrap_or_else(|_| "1,2,4,8".to_owned());
    list.split(',').map(|number| number.trim().parse().unwrap()).collect()
}

/// Whether a test can run here; says why, if it cannot.
fn can_run(test: &str) -> bool {
    if is_child() {
        return true;
    }
    if let Some(why) = &*MISSING {
        skip(test, why);
    }
    MISSING.is_none()
}

macro_rules! families {
    ($how:ident, $run:ident: $($family:ident)*) => {
        mod $how {
            use super::*;
            $(
                #[test]
                fn $family() {
                    let test = concat!(stringify!($how), "::", stringify!($family));
                    if can_run(test) {
                        $run(test, conformance::$family, &numbers(), || PTX.clone());
                    }
                }
            )*

            #[test]
            fn mixed() {
                let test = concat!(stringify!($how), "::mixed");
                if can_run(test) {
                    $run(test, a_thousand, &numbers(), || PTX.clone());
                }
            }
        }
    };
}

families! { threads, cuda_threads: rma signals ordering atomics teams groups lanes shared matrix arithmetic bulk direct collectives in_kernel norm moe flags protocols streams buffers prints }
families! { processes, cuda_processes: rma signals ordering atomics teams groups lanes shared matrix arithmetic bulk direct collectives in_kernel norm moe flags protocols streams buffers prints }

/// A thousand collectives, and the host waits once.
fn a_thousand(world: &mut World) -> Result<(), Error> {
    conformance::mixed(world, 80, 1000)
}

/// Every peer through its proxy, which reaches the memory of GPUs by copies, writes of a stream and a kernel.
mod proxied {
    use super::*;

    macro_rules! families {
        ($($family:ident)*) => {$(
            #[test]
            fn $family() {
                let test = concat!("proxied::", stringify!($family));
                if can_run(test) {
                    let set = || [&PTX[..], &[("CONGRUENT_P2P_DISABLE", "1".into())]].concat();
                    cuda_threads(test, conformance::$family, &[2], set);
                }
            }
        )*};
    }

    families! { rma signals ordering atomics streams }
}

mod faults {
    use super::*;

    /// With a deadline that is soon over.
    fn hasty() -> Vec<(&'static str, OsString)> {
        [&PTX[..], &[("CONGRUENT_DEADLINE_MS", "500".into())]].concat()
    }

    #[test]
    fn deadline_of_threads() {
        if can_run("faults::deadline_of_threads") {
            cuda_threads("faults::deadline_of_threads", conformance::deadline, &[2, 4], hasty);
        }
    }

    #[test]
    fn deadline_of_processes() {
        if can_run("faults::deadline_of_processes") {
            cuda_processes("faults::deadline_of_processes", conformance::deadline, &[2, 4], hasty);
        }
    }

    #[test]
    fn dead_process() {
        if can_run("faults::dead_process") {
            cuda_processes("faults::dead_process", conformance::dead, &[2, 4], || PTX.clone());
        }
    }
}
