//! A sparse matrix times a vector, both spread over the PEs by rows.

use bytemuck::{Pod, Zeroable};
use congruent_device::{Group, Signal, Slice, SliceMut, Sym, kernel_arg, kernels};

/// An entry of a row.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Entry {
    /// What a number of the vector is multiplied with.
    pub value: f64,
    /// Which number: of this PE's part, or of its halo.
    pub column: u64,
}

/// What this PE gives to another one, which gives something in return.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Part {
    /// To whom.
    pub pe: u32,
    /// Where it begins in `packed`.
    pub from: u32,
    /// Where it begins in the halo of that PE.
    pub to: u32,
    /// How many numbers.
    pub count: u32,
}

kernel_arg! {
    /// How numbers travel between PEs.
    pub struct Exchange {
        /// What this PE gives, part by part.
        pub packed: Sym<f64>,
        /// Two halos. A product reads one, while the numbers for the next product may arrive in the other.
        pub halos: Sym<f64>,
        /// How far each block of each PE is: a signal for each block of a launch, for each PE.
        pub sent: Sym<Signal>,
        /// Which product this is, from 1 on.
        pub turn: u64,
    }
}

kernels! { in crate::PTX;
    /// `y` becomes this PE's rows times the vector, of which this PE has the part `x`. Row `i` has the entries from `near_offsets[i]` to
    /// `near_offsets[i + 1]` of `near`, whose columns are in `x`, and likewise those of `far`, whose columns are in the halo. Number `i` of
    /// `packed` is that of `x` at `gives[i]`.
    ///
    /// Every launch has as many blocks as any other, on every PE.
    pub fn multiply(
        block, ctx, exchange: Exchange, parts: Slice<Part>, gives: Slice<u32>, near_offsets: Slice<u32>,
        near: Slice<Entry>, far_offsets: Slice<u32>, far: Slice<Entry>, x: Slice<f64>, y: SliceMut<f64>,
    ) {
        let (team, blocks) = (ctx.world(), block.count());
        let (me, n) = (team.me().index(), team.size());
        let halo = exchange.halos.chunk((exchange.turn % 2) as usize, 2);
        let sent = exchange.sent.elem(me * blocks + block.index());
        for part in parts {
            let (from, to, count) = (part.from as usize, part.to as usize, part.count as usize);
            // A share for each block; that of the last ones may be empty, but its signal is sent.
            let each = count.div_ceil(blocks);
            let share = (block.index() * each).min(count)..((block.index() + 1) * each).min(count);
            let packed = exchange.packed.slice(from + share.start..from + share.end);
            for i in block.strided(share.len()) {
                ctx.store(packed, i, x[gives[from + share.start + i] as usize]);
            }
            block.sync();
            let (there, rank) = (halo.slice(to + share.start..to + share.end), team.rank(part.pe as usize));
            ctx.put_signal(block, there.at(rank), packed, sent.at(rank).set(exchange.turn));
        }
        for (i, y) in y.iter_mut(block) {
            *y = sum(near, near_offsets, i, x, 0.0);
        }
        for part in parts {
            ctx.wait_all(block, exchange.sent.chunk(part.pe as usize, n), exchange.turn);
        }
        // SAFETY: what was awaited is all that is put here for this product. Whoever gives puts here again for the product after the next,
        // when it has waited for all blocks of the next launch of this PE, which begins when this one has ended.
        let halo = unsafe { ctx.settled(halo) };
        for (i, y) in y.iter_mut(block) {
            *y = sum(far, far_offsets, i, halo, *y);
        }
    }
}

/// `start` and the entries of row `i`, each times its number, in their order.
#[inline(always)]
pub fn sum(entries: &[Entry], offsets: &[u32], i: usize, numbers: &[f64], start: f64) -> f64 {
    let row = &entries[offsets[i] as usize..offsets[i + 1] as usize];
    row.iter().fold(start, |sum, entry| sum + entry.value * numbers[entry.column as usize])
}
