//! Bulk work: combine of one to three sources into one or two places, fill and copy.

use congruent_device::{Sym, kernel_arg, kernels};

use crate::By;
use crate::by::as_group;

kernel_arg! {
    /// What a bulk kernel does.
    #[derive(Debug, PartialEq, Eq)]
    pub enum Bulk {
        /// `dst` becomes the next PE's `src`.
        One = 0,
        /// `dst` becomes my `src` combined with the next PE's.
        Two = 1,
        /// `dst` becomes the previous PE's `src`, combined with mine, combined with the next PE's `other`.
        Three = 2,
        /// `dst` and the next PE's `far` become my `src` combined with the next PE's.
        Both = 3,
        /// `dst` becomes itself combined with the next PE's `src`.
        InPlace = 4,
        /// `dst` becomes the first element of `src`, everywhere.
        Fill = 5,
        /// `dst` becomes my `src`.
        Copy = 6,
    }
}

impl Bulk {
    /// Every kind.
    pub const ALL: [Self; 7] = [Self::One, Self::Two, Self::Three, Self::Both, Self::InPlace, Self::Fill, Self::Copy];
}

/// An element that the suite combines.
pub trait Combined: bytemuck::Pod + Send + Sync {
    /// The kernel: dst, far, src, other, what to do, and by whom.
    #[cfg(not(target_arch = "nvptx64"))]
    type Bulk: congruent_device::Kernel<Args = (Sym<Self>, Sym<Self>, Sym<Self>, Sym<Self>, Bulk, By)>;

    /// The operator: neither commutative nor associative, so that every order gives something else.
    fn mix(self, other: Self) -> Self;
}

macro_rules! combined {
    ($($kernel:ident: $type:ty, |$a:ident, $b:ident| $mix:expr;)*) => {$(
        kernels! {
            /// Bulk work on buffers of this PE and its neighbours.
            pub fn $kernel(
                block, ctx, dst: Sym<$type>, far: Sym<$type>, src: Sym<$type>, other: Sym<$type>, what: Bulk, by: By,
            ) {
                let world = ctx.world();
                let (me, next, prev) = (world.me(), world.next(), world.prev());
                ctx.barrier(block, &world);
                as_group!(by, block, |group| match what {
                    Bulk::One => ctx.combine(group, [dst.at(me)], [src.at(next)], Combined::mix),
                    Bulk::Two => ctx.combine(group, [dst.at(me)], [src.at(me), src.at(next)], Combined::mix),
                    Bulk::Three => {
                        let sources = [src.at(prev), src.at(me), other.at(next)];
                        ctx.combine(group, [dst.at(me)], sources, Combined::mix);
                    }
                    Bulk::Both => {
                        let places = [dst.at(me), far.at(next)];
                        ctx.combine(group, places, [src.at(me), src.at(next)], Combined::mix);
                    }
                    Bulk::InPlace => ctx.combine(group, [dst.at(me)], [dst.at(me), src.at(next)], Combined::mix),
                    Bulk::Fill => ctx.fill(group, dst, ctx.load(src, 0)),
                    Bulk::Copy => ctx.copy(group, dst, src),
                });
                ctx.barrier(block, &world);
            }
        }

        impl Combined for $type {
            #[cfg(not(target_arch = "nvptx64"))]
            type Bulk = $kernel;

            #[inline(always)]
            fn mix(self, other: Self) -> Self {
                let ($a, $b) = (self, other);
                $mix
            }
        }
    )*};
}

// Elements of less than a word, of a word, of more, and of an odd size.
combined! {
    bulk_u8: u8, |a, b| a.wrapping_mul(3).wrapping_sub(b);
    bulk_u32: u32, |a, b| a.wrapping_mul(3).wrapping_sub(b);
    bulk_pair: [u32; 2], |a, b| [a[0].wrapping_mul(3).wrapping_sub(b[1]), a[1] ^ b[0]];
    bulk_bytes: [u8; 3], |a, b| [a[0].wrapping_mul(3).wrapping_sub(b[0]), a[1] ^ b[2], a[2].wrapping_sub(b[1])];
}
