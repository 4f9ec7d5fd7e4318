//! What the host puts on streams that a GPU's copy engines and streams cannot do: atomics, signals that add, and waits that take.
//!
//! Each runs as one block, by its leader. What the stream did before happens before it: a launch begins when all before it on the stream
//! is complete (CUDA C++ Programming Guide, "Streams").
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]

use congruent_device::abi::{NO_PE, NumberKind};
use congruent_device::{Atomic, Ctx, Group, Place, Rank, Semaphore, Signal, Sym, World, bf16, f16, kernels};

/// The PTX of the kernels here.
#[cfg(not(target_arch = "nvptx64"))]
pub static PTX: congruent_device::Module = congruent_device::Module {
    name: "congruent-stream-kernels",
    images: &[("sm_80", include_str!(concat!(env!("OUT_DIR"), "/congruent_stream_kernels.sm_80.ptx")))],
};

const FLOAT: u32 = NumberKind::Float as u32;
const BFLOAT: u32 = NumberKind::Bfloat as u32;

kernels! { in PTX;
    /// Adds a number to the word at the beginning of `word`, of a kind ([`NumberKind`]) and with as many bytes as `word` has; unsigned
    /// and signed ones are added alike.
    pub fn add(block, ctx, word: Sym<u8>, of: Rank<World>, kind: u32, number: u64) {
        if block.leader() {
            match (kind, word.len()) {
                (FLOAT, 2) => add_to(ctx, word, of, f16::from_bits(number as u16)),
                (BFLOAT, 2) => add_to(ctx, word, of, bf16::from_bits(number as u16)),
                (FLOAT, 4) => add_to(ctx, word, of, f32::from_bits(number as u32)),
                (FLOAT, 8) => add_to(ctx, word, of, f64::from_bits(number)),
                (_, 4) => add_to(ctx, word, of, number as u32),
                _ => add_to(ctx, word, of, number),
            }
        }
        ctx.quiet(block);
    }

    /// Sends a signal that adds, or posts.
    pub fn notify(block, ctx, word: Place<Signal, World>, n: u64) {
        ctx.notify(block, word.add(n));
    }

    /// Waits for posts and takes them, which a PE is expected to make, or [`NO_PE`].
    pub fn wait(block, ctx, semaphore: Sym<Semaphore>, from: u32, n: u64) {
        match from {
            NO_PE => ctx.wait(block, semaphore, n),
            from => ctx.wait(block, semaphore.from_rank(ctx.world().rank(from as usize)), n),
        }
    }
}

#[inline(always)]
fn add_to<T: Atomic>(ctx: &Ctx<'_>, word: Sym<u8>, of: Rank<World>, number: T) {
    ctx.add(Sym::<T>::from_raw(word.offset(), 1).at(of), number);
}
