//! Put and get, whole ranges, single values and strided, for elements of every size.

use bytemuck::{Pod, Zeroable};
use congruent_device::{Group, Sym, f16, kernel_arg, kernels};

use crate::By;
use crate::by::as_group;

/// An element of a user's own: 20 bytes of several widths, aligned to 4.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Particle {
    /// Where it is.
    pub position: [f32; 3],
    /// Who it is.
    pub id: u32,
    /// What it is.
    pub kind: u16,
    /// How it is.
    pub state: [u8; 2],
}

kernel_arg! {
    /// What a transfer kernel does.
    #[derive(Debug, PartialEq, Eq)]
    pub enum Transfer {
        /// Puts `from` to the next PE's `to`, and gets the next PE's `from` to `back`.
        Whole = 0,
        /// The same, value by value.
        Values = 1,
        /// Puts every third element of `from` to every second of `to`, and gets every second of `from` to every third of
        /// `back`: a third of the elements, rounded up.
        Strided = 2,
        /// The same, all in flight at once.
        StridedAtOnce = 3,
    }
}

/// An element that the suite moves.
#[cfg(not(target_arch = "nvptx64"))]
pub trait Movable: Pod + Send + Sync {
    /// The kernel that moves it: to, back, from, what to do, and by whom.
    type Move: congruent_device::Kernel<Args = (Sym<Self>, Sym<Self>, Sym<Self>, Transfer, By)>;
}

macro_rules! movable {
    ($($kernel:ident: $type:ty;)*) => {$(
        kernels! {
            /// Moves elements between this PE and the next one.
            pub fn $kernel(
                block, ctx, to: Sym<$type>, back: Sym<$type>, from: Sym<$type>, what: Transfer, by: By,
            ) {
                let world = ctx.world();
                let next = world.next();
                // Every PE has prepared its buffers.
                ctx.barrier(block, &world);
                as_group!(by, block, |group| match what {
                    Transfer::Whole => {
                        ctx.put(group, to.at(next), from);
                        ctx.get(group, back, from.at(next));
                    }
                    Transfer::Values => {
                        for i in group.strided(from.len()) {
                            ctx.put_value(to.at(next).elem(i), ctx.load(from, i));
                            ctx.store(back, i, ctx.get_value(from.at(next).elem(i)));
                        }
                    }
                    Transfer::Strided => {
                        let third = from.len().div_ceil(3);
                        ctx.put_strided(group, to.at(next), 2, from, 3, third);
                        ctx.get_strided(group, back, 3, from.at(next), 2, third);
                    }
                    Transfer::StridedAtOnce => ctx.nonblocking(group, |nb| {
                        let third = from.len().div_ceil(3);
                        ctx.put_strided(group, to.at(next), 2, from, 3, third);
                        nb.get_strided(back, 3, from.at(next), 2, third);
                    }),
                });
                // Every PE's data has arrived.
                ctx.barrier(block, &world);
            }
        }

        #[cfg(not(target_arch = "nvptx64"))]
        impl Movable for $type {
            type Move = $kernel;
        }
    )*};
}

// One of each size, since types of one size are moved alike.
movable! {
    move_u8: u8;
    move_f16: f16;
    move_f32: f32;
    move_i64: i64;
    move_words: [u32; 4];
    move_bytes: [u8; 3];
    move_particle: Particle;
}
