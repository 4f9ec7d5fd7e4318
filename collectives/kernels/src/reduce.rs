//! Reductions: a kernel for every operation and type, and the table that finds it. The operator is an argument.

use congruent_collectives::{Op, ring};
use congruent_device::{Sym, TeamView, bf16, f16, kernels};

/// A number that the fixed kernels reduce: which kernel does what.
#[cfg(not(target_arch = "nvptx64"))]
pub trait Reducible: congruent_collectives::Number {
    /// All-reduce: team, destination, source, operator, plan.
    type AllReduce: congruent_device::Kernel<Args = (TeamView, Sym<Self>, Sym<Self>, Op, ring::View)>;
    /// Reduce-scatter: team, buffer, operator, plan.
    type ReduceScatter: congruent_device::Kernel<Args = (TeamView, Sym<Self>, Op, ring::View)>;
}

macro_rules! reductions {
    ($($type:ty: $all_reduce:ident $reduce_scatter:ident;)*) => {$(
        kernels! { in crate::PTX;
            /// All-reduce.
            pub fn $all_reduce(block, ctx, team: TeamView, dst: Sym<$type>, src: Sym<$type>, op: Op, plan: ring::View) {
                ring::all_reduce(block, ctx, &ctx.team(team), dst, src, op, &plan);
            }
            /// Reduce-scatter.
            pub fn $reduce_scatter(block, ctx, team: TeamView, buf: Sym<$type>, op: Op, plan: ring::View) {
                ring::reduce_scatter(block, ctx, &ctx.team(team), buf, op, &plan);
            }
        }

        #[cfg(not(target_arch = "nvptx64"))]
        impl Reducible for $type {
            type AllReduce = $all_reduce;
            type ReduceScatter = $reduce_scatter;
        }
    )*};
}

reductions! {
    i32: all_reduce_i32 reduce_scatter_i32;
    u32: all_reduce_u32 reduce_scatter_u32;
    i64: all_reduce_i64 reduce_scatter_i64;
    u64: all_reduce_u64 reduce_scatter_u64;
    f16: all_reduce_f16 reduce_scatter_f16;
    bf16: all_reduce_bf16 reduce_scatter_bf16;
    f32: all_reduce_f32 reduce_scatter_f32;
    f64: all_reduce_f64 reduce_scatter_f64;
}
