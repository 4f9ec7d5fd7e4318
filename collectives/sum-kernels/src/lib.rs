//! Fixed kernels for what is reduced most: sums of `f32`, `f16` and `bf16`, by the algorithms that are used most.
//!
//! Type and operator are known when they are compiled, so that a thread needs up to a third fewer registers: no more than 96, for blocks of
//! 640 threads. Without `, 1` ptxas makes room for two blocks. All others have a kernel that is told both, in `congruent-kernels`.
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]

#[cfg(not(target_arch = "nvptx64"))]
use congruent_collectives::{Datatype, Descriptor, HasDatatype};
use congruent_collectives::{PlanView, Reduction, Sum, direct, one_shot, ring};
#[cfg(not(target_arch = "nvptx64"))]
use congruent_device::Kernel;
use congruent_device::{Sym, bf16, f16, kernels};

/// The PTX of the kernels here.
#[cfg(not(target_arch = "nvptx64"))]
pub static PTX: congruent_device::Module = congruent_device::Module {
    name: "congruent-sum-kernels",
    images: &[("sm_80", include_str!(concat!(env!("OUT_DIR"), "/congruent_sum_kernels.sm_80.ptx")))],
};

/// Their arguments: those of the kernels that are told type and operator.
#[cfg(not(target_arch = "nvptx64"))]
pub type Reduces = (Sym<u8>, Sym<u8>, Reduction, u32, PlanView, u32);

/// Is shown kernels, with the algorithm that each is of and what it sums.
#[cfg(not(target_arch = "nvptx64"))]
pub trait Visit {
    /// One of them.
    fn sum<K: Kernel<Args = Reduces>>(&mut self, of: &'static Descriptor, datatype: Datatype, kernel: &'static K);
}

macro_rules! sums {
    ($($algorithm:ident::$operation:ident is $descriptor:ident: $($name:ident of $type:ty),*;)*) => {
        /// Shows all kernels.
        #[cfg(not(target_arch = "nvptx64"))]
        pub fn visit(visit: &mut impl Visit) {
            $($(visit.sum(&$algorithm::$descriptor, <$type>::DATATYPE, &$name);)*)*
        }

        kernels! { in PTX; $($(
            #[doc = concat!("The sum of `", stringify!($type), "`s by `", stringify!($algorithm::$operation), "`.")]
            pub fn $name(
                block, ctx, dst: Sym<u8>, src: Sym<u8>, op: Reduction, root: u32, plan: PlanView, rounds: u32,
            ) launch_bounds(640, 1) {
                plan.repeat(block, ctx, rounds, (dst.cast::<$type>(), src.cast::<$type>()), |coll, dst, src| {
                    $algorithm::$operation(coll, dst, src, Sum);
                });
                let _are_known = (op, root);
            }
        )*)* }
    };
}

sums! {
    ring::all_reduce is ALL_REDUCE: all_reduce_ring_f32 of f32, all_reduce_ring_f16 of f16, all_reduce_ring_bf16 of bf16;
    one_shot::all_reduce is ALL_REDUCE: all_reduce_one_shot_f32 of f32, all_reduce_one_shot_f16 of f16, all_reduce_one_shot_bf16 of bf16;
    direct::all_reduce is ALL_REDUCE: all_reduce_direct_f32 of f32, all_reduce_direct_f16 of f16, all_reduce_direct_bf16 of bf16;
    ring::reduce_scatter is REDUCE_SCATTER:
        reduce_scatter_ring_f32 of f32, reduce_scatter_ring_f16 of f16, reduce_scatter_ring_bf16 of bf16;
    one_shot::reduce_scatter is REDUCE_SCATTER:
        reduce_scatter_one_shot_f32 of f32, reduce_scatter_one_shot_f16 of f16, reduce_scatter_one_shot_bf16 of bf16;
    direct::reduce_scatter is REDUCE_SCATTER:
        reduce_scatter_direct_f32 of f32, reduce_scatter_direct_f16 of f16, reduce_scatter_direct_bf16 of bf16;
}
