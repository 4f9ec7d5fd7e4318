//! Remote atomics: each operation once, with what it gave, and many at once.

use congruent_device::{Group, NicWord, Sym, Thread, bf16, f16, kernels};

/// How many words the sequence of an integer's operations tells.
pub const INTEGER_STEPS: usize = 16;
/// How many words the sequence of a float's operations tells.
pub const FLOAT_STEPS: usize = 6;

/// A number with remote atomics.
#[cfg(not(target_arch = "nvptx64"))]
pub trait Counted: bytemuck::Pod + Send + Sync {
    /// Every operation once on the next PE's word: word, operands, what each gave, which compare-exchanges succeeded.
    type Sequence: congruent_device::Kernel<Args = (Sym<Self>, Sym<Self>, Sym<Self>, Sym<u64>)>;
    /// Many at once: sums, how many threads took part, rounds.
    type Crowd: congruent_device::Kernel<Args = (Sym<Self>, Sym<u64>, u64)>;
}

kernels! {
    /// Every thread of every block of every PE, `rounds` times: draws a ticket of every PE's first word and marks it there, and adds 2 to the
    /// second; one thread of each block counts the third by compare-exchange.
    pub fn nic_words(block, ctx, words: Sym<NicWord>, marks: Sym<u32>, threads: Sym<u64>, rounds: u64) {
        let world = ctx.world();
        ctx.add(threads.at(world.me()), 1);
        for _ in 0..rounds {
            for rank in world.ranks() {
                let ticket = ctx.nic_fetch_add(words.elem(0).at(rank), 1);
                ctx.add(marks.elem(ticket as usize).at(rank), 1);
                ctx.nic_add(words.elem(1).at(rank), 2);
                let mut seen = 0;
                while block.leader() {
                    match ctx.nic_compare_exchange(words.elem(2).at(rank), seen, seen + 1) {
                        Ok(_) => break,
                        Err(other) => seen = other,
                    }
                }
            }
        }
        ctx.barrier(block, &world);
    }

    /// What this PE's words are.
    pub fn read_nic_words(block, ctx, words: Sym<NicWord>, left: Sym<u64>) {
        if block.leader() {
            for i in 0..left.len() {
                ctx.store(left, i, ctx.nic_fetch_add(words.elem(i).at(ctx.world().me()), 0));
            }
        }
    }
}

macro_rules! crowd {
    ($kernel:ident: $type:ty) => {
        kernels! {
            /// Every thread of every block of every PE adds 1 to every PE's sums, `rounds` times: by fetch_add, by add, and,
            /// one thread of each block, by compare_exchange.
            pub fn $kernel(block, ctx, sums: Sym<$type>, threads: Sym<u64>, rounds: u64) {
                const ONE: $type = 1 as $type;
                let world = ctx.world();
                ctx.add(threads.at(world.me()), 1);
                for _ in 0..rounds {
                    for rank in world.ranks() {
                        ctx.fetch_add(sums.elem(0).at(rank), ONE);
                        ctx.add(sums.elem(1).at(rank), ONE);
                        let third = sums.elem(2).at(rank);
                        let mut seen = ctx.get_value(third);
                        while block.leader() {
                            match ctx.compare_exchange(third, seen, seen + ONE) {
                                Ok(_) => break,
                                Err(other) => seen = other,
                            }
                        }
                    }
                }
                ctx.barrier(block, &world);
            }
        }
    };
}

macro_rules! small_crowd {
    ($kernel:ident: $type:ty) => {
        kernels! {
            /// The same by one thread of each block, for what counts only so far. The sums are neighbours in a word.
            pub fn $kernel(block, ctx, sums: Sym<$type>, threads: Sym<u64>, rounds: u64) {
                const ONE: $type = <$type>::ONE;
                let world = ctx.world();
                if block.leader() {
                    ctx.add(threads.at(world.me()), 1);
                    for _ in 0..rounds {
                        for rank in world.ranks() {
                            ctx.fetch_add(sums.elem(0).at(rank), ONE);
                            ctx.add(sums.elem(1).at(rank), ONE);
                            let third = sums.elem(2).at(rank);
                            let mut seen = ctx.get_value(third);
                            while let Err(other) = ctx.compare_exchange(third, seen, seen + ONE) {
                                seen = other;
                            }
                        }
                    }
                }
                ctx.barrier(block, &world);
            }
        }
    };
}

macro_rules! integers {
    ($($sequence:ident $crowd:ident: $type:ty;)*) => {$(
        kernels! {
            /// Every operation once on the next PE's word, by one thread.
            pub fn $sequence(block, ctx, word: Sym<$type>, operands: Sym<$type>, gave: Sym<$type>, stored: Sym<u64>) {
                let world = ctx.world();
                let place = word.at(world.next());
                ctx.barrier(block, &world);
                if block.leader() {
                    let operand = |i| ctx.load(operands, i);
                    let tell = |i, value| ctx.store(gave, i, value);
                    let now = || {
                        ctx.quiet(&Thread);
                        ctx.get_value(place)
                    };
                    tell(0, ctx.fetch_add(place, operand(0)));
                    tell(1, ctx.swap(place, operand(1)));
                    tell(2, ctx.fetch_and(place, operand(2)));
                    tell(3, ctx.fetch_or(place, operand(3)));
                    tell(4, ctx.fetch_xor(place, operand(4)));
                    tell(5, ctx.fetch_min(place, operand(5)));
                    tell(6, ctx.fetch_max(place, operand(6)));
                    tell(7, now());
                    ctx.add(place, operand(7));
                    tell(8, now());
                    ctx.xor(place, operand(8));
                    tell(9, now());
                    ctx.or(place, operand(9));
                    tell(10, now());
                    ctx.and(place, operand(10));
                    tell(11, now());
                    ctx.max(place, operand(11));
                    tell(12, now());
                    ctx.min(place, operand(12));
                    tell(13, now());
                    let exchange = |i, expected| {
                        let result = ctx.compare_exchange(place, expected, operand(13 + i));
                        ctx.store(stored, i, result.is_ok().into());
                        tell(14 + i, result.unwrap_or_else(|other| other));
                    };
                    exchange(0, !now());
                    exchange(1, now());
                }
                ctx.barrier(block, &world);
            }
        }
        crowd!($crowd: $type);

        #[cfg(not(target_arch = "nvptx64"))]
        impl Counted for $type {
            type Sequence = $sequence;
            type Crowd = $crowd;
        }
    )*};
}

macro_rules! floats {
    ($($sequence:ident $crowd:ident ($many:ident): $type:ty;)*) => {$(
        kernels! {
            /// Every operation once on the next PE's word, by one thread.
            pub fn $sequence(block, ctx, word: Sym<$type>, operands: Sym<$type>, gave: Sym<$type>, stored: Sym<u64>) {
                let world = ctx.world();
                let place = word.at(world.next());
                ctx.barrier(block, &world);
                if block.leader() {
                    let operand = |i| ctx.load(operands, i);
                    ctx.store(gave, 0, ctx.fetch_add(place, operand(0)));
                    ctx.add(place, operand(1));
                    ctx.quiet(&Thread);
                    ctx.store(gave, 1, ctx.get_value(place));
                    ctx.store(gave, 2, ctx.swap(place, operand(2)));
                    for i in 0..3 {
                        let result = ctx.compare_exchange(place, operand(3 + 2 * i), operand(4 + 2 * i));
                        ctx.store(stored, i, result.is_ok().into());
                        ctx.store(gave, 3 + i, result.unwrap_or_else(|other| other));
                    }
                }
                ctx.barrier(block, &world);
            }
        }
        $many!($crowd: $type);

        #[cfg(not(target_arch = "nvptx64"))]
        impl Counted for $type {
            type Sequence = $sequence;
            type Crowd = $crowd;
        }
    )*};
}

integers! {
    atomics_u32 crowd_u32: u32;
    atomics_i32 crowd_i32: i32;
    atomics_u64 crowd_u64: u64;
    atomics_i64 crowd_i64: i64;
}
floats! {
    atomics_f32 crowd_f32 (crowd): f32;
    atomics_f64 crowd_f64 (crowd): f64;
    atomics_f16 crowd_f16 (small_crowd): f16;
    atomics_bf16 crowd_bf16 (small_crowd): bf16;
}
