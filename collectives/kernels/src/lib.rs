//! The fixed kernels that host collectives launch, and their PTX.
//!
//! The algorithms are `congruent-collectives`'; here are only entries, so that the crate of the algorithms needs no unsafe
//! attribute. `ptx/` holds what `congruent-build` makes of this crate, packed; `./check` rebuilds and compares it, and `congruent
//! ptx` shows it.
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]

#[cfg(not(target_arch = "nvptx64"))]
use congruent_collectives::{Descriptor, PlanView, Reduction};
#[cfg(not(target_arch = "nvptx64"))]
use congruent_device::{Kernel, Sym};

#[macro_use]
mod entries;

// A GPU runs what was compiled for older ones, so what is compiled for newer ones is what those cannot run.
#[cfg(not(target_feature = "sm_90"))]
mod exchange;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90"))]
mod multimem;
#[cfg(not(target_feature = "sm_90"))]
mod perf;
#[cfg(not(target_feature = "sm_90"))]
mod reduce;
#[cfg(not(target_feature = "sm_90"))]
mod share;

#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90"))]
pub use multimem::*;
#[cfg(not(target_feature = "sm_90"))]
pub use {
    exchange::*,
    perf::{perf_barrier, perf_fetch_add, perf_get, perf_ping_pong, perf_put, perf_put_value},
    reduce::*,
    share::*,
};

/// Arguments of the kernels that reduce: destination, source, operator and type, root, plan, and how often.
#[cfg(not(target_arch = "nvptx64"))]
pub type Reduces = (Sym<u8>, Sym<u8>, Reduction, u32, PlanView, u32);

/// Arguments of the kernels that move data and compute nothing.
#[cfg(not(target_arch = "nvptx64"))]
pub type Moves = (Sym<u8>, Sym<u8>, u32, PlanView, u32);

/// Is shown kernels, with the algorithms that they are of.
#[cfg(not(target_arch = "nvptx64"))]
pub trait Visit {
    /// One that reduces.
    fn reduction<K: Kernel<Args = Reduces>>(&mut self, of: &'static Descriptor, kernel: &'static K);
    /// One that moves data.
    fn movement<K: Kernel<Args = Moves>>(&mut self, of: &'static Descriptor, kernel: &'static K);
}

/// Shows the kernels of all algorithms whose buffers have parts of one length.
#[cfg(not(target_arch = "nvptx64"))]
#[allow(unused_qualifications, reason = "several modules have functions of these names")]
pub fn visit(visit: &mut impl Visit) {
    reduce::reductions(visit);
    share::moves(visit);
    multimem::reductions(visit);
    multimem::moves(visit);
}

/// The PTX of the kernels here that every supported GPU runs.
#[cfg(not(target_arch = "nvptx64"))]
pub static PTX: congruent_device::Module = congruent_device::Module {
    name: "congruent-kernels",
    images: &[("sm_80", include_str!(concat!(env!("OUT_DIR"), "/congruent_kernels.sm_80.ptx")))],
};

/// The PTX of those that use `multimem` instructions.
#[cfg(not(target_arch = "nvptx64"))]
pub static MULTIMEM: congruent_device::Module = congruent_device::Module {
    name: "congruent-kernels for multimem",
    images: &[("sm_90", include_str!(concat!(env!("OUT_DIR"), "/congruent_kernels.sm_90.ptx")))],
};

#[cfg(all(test, not(target_arch = "nvptx64")))]
mod tests {
    use congruent_collectives::Collective;

    use super::*;

    /// CUDA 12.0 takes PTX 8.0, and 12.2, of the drivers R535, PTX 8.2: what is newer needs a newer driver.
    #[test]
    fn images_are_for_drivers_as_old_as_can_be() {
        for (arch, text) in PTX.images.iter().chain(MULTIMEM.images) {
            let version = text.lines().find_map(|line| line.strip_prefix(".version ")).unwrap();
            let (major, minor) = version.split_once('.').unwrap();
            let version: (u32, u32) = (major.parse().unwrap(), minor.parse().unwrap());
            let has_links = arch.strip_prefix("sm_").unwrap().parse::<u32>().unwrap() >= 90;
            assert!(version <= if has_links { (8, 2) } else { (8, 0) }, "{arch}: {version:?}");
            assert_eq!(text.contains("multimem."), has_links, "{arch}");
        }
    }

    #[derive(Default)]
    struct Names(Vec<(Collective, String, &'static str)>);

    impl Names {
        fn push<K: Kernel>(&mut self, of: &Descriptor, reduces: bool) {
            assert_eq!(of.collective.reduces(), reduces, "{}", K::NAME);
            self.0.push((of.collective, format!("{}_{}", of.collective, of.algorithm).replace('-', "_"), K::NAME));
        }
    }

    impl Visit for Names {
        fn reduction<K: Kernel<Args = Reduces>>(&mut self, of: &'static Descriptor, _: &'static K) {
            self.push::<K>(of, true);
        }
        fn movement<K: Kernel<Args = Moves>>(&mut self, of: &'static Descriptor, _: &'static K) {
            self.push::<K>(of, false);
        }
    }

    #[test]
    fn every_algorithm_has_its_kernel_and_every_kernel_the_name_of_its_algorithm() {
        use Collective::{AllGatherV, AllToAllV, Barrier, SendRecv};
        let mut names = Names::default();
        visit(&mut names);
        for (_, described, name) in &names.0 {
            assert_eq!(described, name);
        }
        // The others have arguments of their own, and one kernel each.
        let parts =
            |one: &&&Descriptor| !one.levels && !matches!(one.collective, AllToAllV | AllGatherV | SendRecv | Barrier);
        assert_eq!(names.0.len(), Descriptor::ALL.iter().filter(parts).count());
        names.0.sort_by_key(|(_, name, _)| name.clone());
        assert!(names.0.windows(2).all(|two| two[0].1 != two[1].1), "one stands twice");
    }
}
