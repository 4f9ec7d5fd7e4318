//! A peer's memory by load and store.

use congruent_device::{Group, Sym, kernels};

use crate::rma::Particle;
use crate::tell;

/// An element that the suite reads and writes in place.
#[cfg(not(target_arch = "nvptx64"))]
pub trait Direct: bytemuck::Pod + Send + Sync {
    /// The kernel: to, back, from, what it tells.
    type Peers: congruent_device::Kernel<Args = (Sym<Self>, Sym<Self>, Sym<Self>, Sym<u64>)>;
}

macro_rules! direct {
    ($($kernel:ident: $type:ty;)*) => {$(
        kernels! {
            /// Stores `from` to the next PE's `to` and loads the next PE's `from` to `back`, element by element. Tells the
            /// length of the view, and whether it says that it is empty.
            pub fn $kernel(block, ctx, to: Sym<$type>, back: Sym<$type>, from: Sym<$type>, told: Sym<u64>) {
                let world = ctx.world();
                ctx.barrier(block, &world);
                let views = (ctx.direct(to.at(world.next())), ctx.direct(from.at(world.next())));
                if let (Some(to), Some(far)) = views {
                    tell::leader(ctx, block, told, 0, to.len() as u64);
                    tell::leader(ctx, block, told, 1, to.is_empty().into());
                    for i in block.strided(to.len()) {
                        to.store(i, ctx.load(from, i));
                        ctx.store(back, i, far.load(i));
                    }
                }
                ctx.barrier(block, &world);
            }
        }

        #[cfg(not(target_arch = "nvptx64"))]
        impl Direct for $type {
            type Peers = $kernel;
        }
    )*};
}

direct! {
    direct_u16: u16;
    direct_u64: u64;
    direct_bytes: [u8; 3];
    direct_particle: Particle;
}
