//! What the host puts on streams that a GPU's copy engines and streams cannot do: atomics, signals that add, waits that take, and whatever
//! goes through a proxy. And what a proxy cannot do to the memory of a GPU.
//!
//! Each runs as one block, by its leader. What the stream did before happens before it: a launch begins when all before it on the stream
//! is complete (CUDA C++ Programming Guide, "Streams").
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]

use congruent_device::abi::{AtomicOp, NO_PE, NumberKind};
use congruent_device::{Atomic, Ctx, Group, Place, Rank, Relaxed, Semaphore, Signal, Sym, World, bf16, f16, kernels};

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

    /// Copies to a peer.
    pub fn put(block, ctx, to: Place<u8, World>, from: Sym<u8>) {
        ctx.put(block, to, from);
        ctx.quiet(block);
    }

    /// Copies from a peer.
    pub fn get(block, ctx, to: Sym<u8>, from: Place<u8, World>) {
        ctx.get(block, to, from);
    }

    /// Sends a signal that sets.
    pub fn set(block, ctx, word: Place<Signal, World>, value: u64) {
        ctx.notify(block, word.set(value));
    }

    /// Does an atomic for a proxy, to the word at the beginning of `word`, with as many bytes as `word` has, and leaves the old bits. What the
    /// proxy did before is done for whoever acquires the word (MM-2). It waits for nothing: others may wait for it.
    pub fn atomic(block, ctx, word: Sym<u8>, op: u32, kind: u32, value: u64, expected: u64, reply: Relaxed<u64>) {
        ctx.fence(block, ctx.world().me());
        if block.leader() {
            let (op, kind, bytes) = (AtomicOp::from_raw(op as u8), NumberKind::from_raw(kind as u8), word.len() as u64);
            // A guess: where it is wrong, the first attempt says what is there.
            let mut seen = 0;
            let old = loop {
                let new = op.apply(kind, bytes, seen, [value, expected]);
                let old = match bytes {
                    2 => replace(ctx, word, f16::from_bits(seen as u16), f16::from_bits(new as u16)).to_bits().into(),
                    4 => replace(ctx, word, seen as u32, new as u32).into(),
                    _ => replace(ctx, word, seen, new),
                };
                if old == seen {
                    break old;
                }
                seen = old;
            };
            reply.store(0, old);
        }
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

/// Replaces a word where it is `seen`, and gives what was there.
#[inline(always)]
fn replace<T: Atomic>(ctx: &Ctx<'_>, word: Sym<u8>, seen: T, new: T) -> T {
    ctx.compare_exchange_own(Sym::from_raw(word.offset(), 1), seen, new)
}

#[inline(always)]
fn add_to<T: Atomic>(ctx: &Ctx<'_>, word: Sym<u8>, of: Rank<World>, number: T) {
    ctx.add(Sym::<T>::from_raw(word.offset(), 1).at(of), number);
}
