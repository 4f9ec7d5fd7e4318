//! A sparse matrix times a vector, both spread over the PEs by rows.
//!
//! Most entries of a PE's rows are near: what they are multiplied with is in the PE's own part of the vector. The others are far: their numbers
//! are the halo, which other PEs send. A block packs its share of what the others need and puts it there with a signal; then it multiplies what
//! is near, and only then waits for the halo and multiplies what is far.
//!
//! # Protocol
//! PEs that give each other numbers are neighbours: each has a [`Part`] for the other.
//!
//! - In product `t` each block puts its share into halo `t % 2` of each neighbour, and sets the signal there that is its own to `t`. It does
//!   so even where its share is empty.
//! - A block reads halo `t % 2` when the signals of all blocks of all neighbours are `t`. So all that is put there for this product has come.
//! - A neighbour puts there again in product `t + 2`, which it begins when it has the signals of product `t + 1` from all blocks of this PE.
//!   These are of a launch that began when that of product `t` had ended, and nobody reads the halo of `t` any more.
//!
//! So two halos are enough, a PE is at most one product ahead of its neighbours, and no barrier is needed: all launches are given to a stream
//! at once. Signals grow, and nothing is ever reset.

use bytemuck::{Pod, Zeroable};
use congruent_device::{Block, Ctx, Elements, Group, Signal, Sym, kernel_arg, refuse};

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
    /// How many numbers. There may be none, for a PE that gives something and needs nothing.
    pub count: u32,
}

kernel_arg! {
    /// How numbers travel between PEs.
    pub struct Exchange {
        /// What this PE gives, part by part.
        pub packed: Sym<f64>,
        /// Two halos, as long as the longest of any PE. A product reads one, while the numbers for the next product may arrive in the other.
        pub halos: Sym<f64>,
        /// How far each block of each PE is: a signal for each block of a launch, for each PE.
        pub sent: Sym<Signal>,
        /// Which product this is, from 1 on.
        pub turn: u64,
    }
}

/// Rows of entries, one behind the other.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// Where each row begins in `entries`, and where the last one ends.
    pub offsets: &'a [u32],
    /// The entries of all rows.
    pub entries: &'a [Entry],
}

impl Rows<'_> {
    /// `start` and the entries of row `i`, each times its number, in their order.
    #[inline(always)]
    #[track_caller]
    fn sum(&self, i: usize, numbers: &[f64], start: f64) -> f64 {
        let row = &self.entries[self.offsets[i] as usize..self.offsets[i + 1] as usize];
        row.iter().fold(start, |sum, entry| sum + entry.value * numbers[entry.column as usize])
    }
}

/// What this PE has of a matrix.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// Its entries whose columns are in this PE's part of the vector.
    pub near: Rows<'a>,
    /// Those whose columns are in its halo, of as many rows.
    pub far: Rows<'a>,
    /// What it gives to others.
    pub parts: &'a [Part],
    /// Which number of this PE's part of the vector each of `packed` is.
    pub gives: &'a [u32],
}

/// `y` becomes this PE's rows times the vector, of which this PE has the part `x`. A row's sum begins with what is near, and each
/// part of it is in the order of its entries, so that its bits do not depend on the number of blocks.
///
/// ```
/// use congruent_device::{Slice, SliceMut, kernels};
/// use congruent_fused::sparse::{Entry, Exchange, Matrix, Part, Rows, multiply};
///
/// kernels! {
///     /// A step of a walk by chance.
///     pub fn step(
///         block, ctx, exchange: Exchange, parts: Slice<Part>, gives: Slice<u32>, near_offsets: Slice<u32>,
///         near: Slice<Entry>, far_offsets: Slice<u32>, far: Slice<Entry>, x: Slice<f64>, y: SliceMut<f64>,
///     ) {
///         let near = Rows { offsets: near_offsets, entries: near };
///         let far = Rows { offsets: far_offsets, entries: far };
///         let matrix = Matrix { near, far, parts, gives };
///         // SAFETY: the program has the exchange for launches of this kernel alone, all of as many blocks, and counts them.
///         unsafe { multiply(block, ctx, exchange, matrix, x, &mut y) };
///     }
/// }
/// ```
///
/// # Collective
/// Over all PEs, and by all blocks of a launch.
///
/// # Ordering
/// Numbers come with their signals (MM-2), which are awaited before they are read (MM-3). On return this thread's numbers of `y` are there;
/// those of the whole part, when the launch is complete.
///
/// # Panics
/// Where rows of either kind have no more offsets than there are numbers in `y`, or there is no signal for each block of each PE; or where an
/// offset, a column or a part is out of bounds.
///
/// # Safety
/// From the first launch that calls it with this exchange on, nobody else accesses the exchange's memory, which is the same on every PE. Every
/// launch has as many blocks as any other, on every PE, and begins when the one before it has ended; the first has the turn 1, and each other
/// one a turn more than the one before it. Of two PEs either both have a part for the other, one each, in every launch, or none has in any.
#[inline(always)]
#[track_caller]
pub unsafe fn multiply(
    block: &Block<'_>,
    ctx: &Ctx<'_>,
    exchange: Exchange,
    matrix: Matrix<'_>,
    x: &[f64],
    y: &mut Elements<'_, f64>,
) {
    let Matrix { near, far, parts, gives } = matrix;
    let (team, blocks) = (ctx.world(), block.count());
    if near.offsets.len() <= y.len() || far.offsets.len() <= y.len() {
        refuse!("rows have an offset more than there are numbers in the product");
    }
    let halo = exchange.halos.chunk((exchange.turn % 2) as usize, 2);
    let sent = exchange.sent.elem(team.me().index() * blocks + block.index());
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
        *y = near.sum(i, x, 0.0);
    }
    for part in parts {
        let pe = part.pe as usize;
        ctx.wait_all(block, exchange.sent.slice(pe * blocks..(pe + 1) * blocks), exchange.turn);
    }
    // SAFETY: what was awaited is all that is put here for this product. Whoever gives puts here again for the product after the next,
    // when it has waited for all blocks of the next launch of this PE, which begins when this one has ended. Nobody else writes here,
    // as the caller vouches.
    let halo = unsafe { ctx.settled(halo) };
    for (i, y) in y.iter_mut(block) {
        *y = far.sum(i, halo, *y);
    }
}
