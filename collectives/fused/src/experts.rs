//! Experts of a mixture, from the tokens that have come to the answers that go back: two products and what is between them, in one kernel.
//!
//! An expert has two layers: `answer = down * activation(up * x)`. A kernel calls [`answer`] in place of
//! [`dispatch_recv`](Moe::dispatch_recv) and [`combine_send`](Moe::combine_send), and nothing else changes in an exchange of
//! [`congruent_collectives::moe`]. The bits are those of these steps with products by tiles in between.
//!
//! # Protocol
//! The blocks of a launch take tiles in turn: first all tiles of the first product, each of some rows of an expert, then all of the second.
//! Rows are fetched from where they were received, by the expert's list. Nobody meets between the products:
//!
//! - A tile of the first product has a signal, which is set to the number of the exchange when its part of the activations is stored. A tile of
//!   the second one waits for the signals of its rows. All of these are of earlier turns, and all blocks of a launch run at once, so that
//!   each is set in the end.
//! - A tile of the second product counts, for each of its rows, how many of the choices that the row's token has on this PE are answered
//!   in its columns. Whoever counts the last one sums them all, in the order of the choices, and stores that part of the row where it goes.
//!   So it goes while other tiles are computed, and its bits do not depend on who comes last.
//!
//! Numbers of exchanges grow, and what a row's choices add is 32 together, so nothing is ever reset.

use core::{array, fmt};

use congruent_collectives::moe::{Combining, Dispatched, MicroBatch, Moe, MoeConfig, Received, Refused, Row};
use congruent_collectives::{Needs, Shape};
use congruent_device::{
    Ctx, Element, Global, Group, Lanes, Pack, Rank, Shared, Signal, SmallFloat, Sym, Thread, World, bf16, kernel_arg,
    opaque, opaque_word, refuse,
};

use crate::gemm::{Eight, ROWS, TiledProduct};

/// Tiles are narrower than those of a product alone: of what there is to do around them some is kept in registers.
type Product<'g> = TiledProduct<'g, 4>;

/// What a row's choices add to a count, all together: as many as a token may have, so that a count is a multiple of it between exchanges.
const WHOLE: u32 = MoeConfig::MOST_TOP_K;
// Counts wrap around.
const _: () = assert!(WHOLE.is_power_of_two());

kernel_arg! {
    /// Memory of a PE's experts as a kernel argument, of a plan of an [`ExpertsShape`].
    pub struct ExpertsView {
        /// For each tile of the first product, the exchange that it is computed of.
        computed: Sym<Signal>,
        /// For each message and each tile across an answer, how many choices are answered.
        counts: Sym<u32>,
        /// Rows by expert: what the activation gives.
        hidden: Sym<bf16>,
        /// The same of answers.
        answers: Sym<f32>,
        /// Numbers of a row of these.
        inner: u32,
        outer: u32,
        /// Rows by expert of a micro-batch, blocks of these, and messages, at most.
        rows: u32,
        row_blocks: u32,
        messages: u32,
        micro_batches: u32,
    }
}

/// The memory that [`answer`] needs beside an exchange, for the host's `World::plan`: of each of its micro-batches what the activation gives,
/// and the answers in `f32`, a row for each choice that may come to a PE.
///
/// ```
/// use congruent_collectives::{Shape, moe::MoeConfig};
/// use congruent_fused::experts::ExpertsShape;
///
/// // 128 tokens of 4096 bf16 on each of 8 PEs, 64 experts, of which each token has 4; 1024 numbers between the layers.
/// let config = MoeConfig::new(128, 64, 4).payload(8192).output(8192);
/// let shape = ExpertsShape::new(config, 8, 1024)?;
/// assert_eq!(shape.needs().scratch, 4096 * (2 * 1024 + 4 * 4096) + 1024 * 32 * 4);
/// assert!(ExpertsShape::new(config, 8, 1023).is_err());
/// # Ok::<_, congruent_fused::experts::ExpertsError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ExpertsShape {
    config: MoeConfig,
    pes: u32,
    inner: u32,
}

/// Why there is no [`ExpertsShape`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertsError {
    /// Tokens or answers of no whole number of groups of eight `bf16`: so many bytes of what is named.
    Bytes(&'static str, usize),
    /// No whole number of groups of eight between the layers, or none.
    Inner(u32),
}

impl fmt::Display for ExpertsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(what, bytes) => {
                write!(f, "{what} of {bytes} bytes cannot be multiplied; give 16 bytes for each eight numbers of bf16")
            }
            Self::Inner(inner) => {
                write!(f, "{inner} numbers between an expert's layers were asked for; give a multiple of 8")
            }
        }
    }
}

impl core::error::Error for ExpertsError {}

impl ExpertsShape {
    /// For an exchange of so many PEs, whose tokens and answers are of `bf16`, and experts with `inner` numbers between their layers.
    ///
    /// # Errors
    /// Where a row is of no whole number of groups of eight.
    pub const fn new(config: MoeConfig, pes: u32, inner: u32) -> Result<Self, ExpertsError> {
        if !config.payload_bytes().is_multiple_of(16) {
            return Err(ExpertsError::Bytes("a payload", config.payload_bytes()));
        }
        if !config.output_bytes().is_multiple_of(16) {
            return Err(ExpertsError::Bytes("an output", config.output_bytes()));
        }
        if inner == 0 || !inner.is_multiple_of(8) {
            return Err(ExpertsError::Inner(inner));
        }
        Ok(Self { config, pes, inner })
    }

    /// What there is of it, without memory.
    fn sizes(&self) -> ExpertsView {
        let rows = self.config.most_rows(self.pes, 1) as u32;
        ExpertsView {
            computed: Sym::empty(),
            counts: Sym::empty(),
            hidden: Sym::empty(),
            answers: Sym::empty(),
            inner: self.inner,
            outer: self.config.output_bytes() as u32 / 2,
            rows,
            // Each expert has one block that is not whole. No PE has more experts than the first.
            row_blocks: rows / ROWS as u32 + self.config.experts_of(0, self.pes).len() as u32,
            messages: (self.config.dispatch_bytes(self.pes) / u64::from(self.config.message_bytes())) as u32,
            micro_batches: self.config.in_flight(),
        }
    }
}

impl ExpertsView {
    /// How many signals, counts, numbers of activations and numbers of answers a micro-batch has.
    #[inline(always)]
    fn lens(&self) -> [usize; 4] {
        let [rows, inner, outer] = [self.rows, self.inner, self.outer].map(|numbers| numbers as usize);
        let signals = self.row_blocks * Product::across(self.inner);
        [signals as usize, (self.messages * Product::across(self.outer)) as usize, rows * inner, rows * outer]
    }

    /// The same of all micro-batches.
    fn all(&self) -> [usize; 4] {
        self.lens().map(|each| self.micro_batches as usize * each)
    }
}

impl Shape for ExpertsShape {
    type View = ExpertsView;

    fn needs(&self) -> Needs {
        let [signals, counts, hidden, answers] = self.sizes().all();
        Needs { signals, scratch: 4 * answers + 2 * hidden + 4 * counts }
    }

    fn view(&self, signals: Sym<Signal>, scratch: Sym<u8>) -> ExpertsView {
        let sizes = self.sizes();
        let [_, counts, hidden, answers] = sizes.all();
        // The widest first: so each is aligned.
        let (first, second) = (4 * answers, 4 * answers + 2 * hidden);
        ExpertsView {
            computed: signals,
            counts: scratch.slice(second..second + 4 * counts).cast(),
            hidden: scratch.slice(first..second).cast(),
            answers: scratch.slice(..first).cast(),
            ..sizes
        }
    }
}

/// The experts of a PE.
#[derive(Clone, Copy)]
pub struct Experts<'w> {
    /// What they compute in.
    pub memory: ExpertsView,
    /// The first layers, one behind the other: of each `inner` rows of as many numbers as a token has.
    pub up: &'w [Eight],
    /// The second ones: of each as many rows as an answer has numbers, of `inner` numbers each.
    pub down: &'w [Eight],
}

/// Waits until the tokens of all members are here, has the experts of this PE answer them, and sends the answers back: the steps
/// [`dispatch_recv`](Moe::dispatch_recv) and [`combine_send`](Moe::combine_send), and what is between them.
///
/// A product is summed in `f32`. What `activation` makes of a sum of the first one is rounded to `bf16`; a sum of the second one is an
/// answer, which is weighted, summed and rounded as `combine_send` does. Bits do not depend on the number of blocks.
///
/// Blocks have [`THREADS`](crate::gemm::THREADS) threads and [`SHARED_F32`](crate::gemm::SHARED_F32) bytes of shared memory.
///
/// ```
/// use congruent_collectives::moe::{Added, MoeView, Tokens};
/// use congruent_device::{Slice, Sym, bf16, kernels};
/// use congruent_fused::experts::{self, Experts, ExpertsView};
/// use congruent_fused::gemm::Eight;
///
/// kernels! {
///     /// A layer of a mixture of experts.
///     pub fn layer(
///         block, ctx, moe: MoeView, memory: ExpertsView, up: Slice<Eight>, down: Slice<Eight>, count: u32, x: Sym<bf16>,
///         choices: Sym<i32>, weights: Sym<f32>, y: Sym<bf16>;
///         shared: ([Eight],)
///     ) launch_bounds(384, 1) {
///         let moe = moe.enter(block, ctx);
///         let tokens = Tokens {
///             count: count as usize,
///             payload: x.cast(),
///             scales: Sym::empty(),
///             experts: |i| ctx.load(choices, i),
///             weights: |i| ctx.load(weights, i),
///         };
///         let sent = moe.dispatch_send(moe.idle(0), &tokens);
///         let experts = Experts { memory, up, down };
///         // SAFETY: the program has the memory for this kernel and this exchange alone.
///         let answered = unsafe { experts::answer(&moe, shared, sent, experts, |x| x.max(0.0)) };
///         let Ok(combining) = answered else { return };
///         moe.combine_recv(combining, y, Added::Residual(x));
///     }
/// }
/// ```
///
/// # Collective
/// As [`dispatch_send`](Moe::dispatch_send). Each member answers so or by the steps, as it likes.
///
/// # Ordering
/// As [`dispatch_recv`](Moe::dispatch_recv) and [`combine_send`](Moe::combine_send). What an activation reads was there before the launch.
///
/// # Errors
/// As [`dispatch_recv`](Moe::dispatch_recv): then nothing is computed.
///
/// # Panics
/// Where memory or weights are not of this exchange's sizes.
///
/// # Safety
/// From the first launch that calls it with this memory on, nobody else accesses that, and calls are for one exchange alone.
#[inline(always)]
#[track_caller]
pub unsafe fn answer(
    moe: &Moe<'_>,
    shared: &mut Shared<'_, ([Eight],)>,
    sent: MicroBatch<Dispatched>,
    experts: Experts<'_>,
    activation: impl Fn(f32) -> f32,
) -> Result<MicroBatch<Combining>, Refused> {
    let batch = moe.dispatch_recv(sent)?;
    let work = Work { moe: *moe, batch, experts };
    work.check();
    let mut at = moe.block().index() as u32;
    while work.take(shared, at, &activation) {
        at += moe.block().count() as u32;
    }
    let Work { moe, batch, .. } = work.opaque();
    Ok(moe.answered(batch))
}

/// What there is to do for a micro-batch.
struct Work<'w> {
    moe: Moe<'w>,
    batch: MicroBatch<Received>,
    experts: Experts<'w>,
}

/// A tile of either product.
#[derive(Clone, Copy)]
struct Tile {
    expert: usize,
    /// Which of the expert's rows its first one is, and which of all rows by expert.
    place: usize,
    row: usize,
    /// How many there are.
    rows: usize,
    /// Which block of rows it is of, of all.
    row_block: u32,
    /// Which tile it is across.
    column: u32,
}

impl<'w> Work<'w> {
    /// Ends the kernel where memory or weights are not of the exchange's sizes.
    #[inline(always)]
    #[track_caller]
    fn check(&self) {
        let (here, memory) = (self.moe.experts().len(), &self.experts.memory);
        let batches = memory.micro_batches as usize;
        if 2 * memory.outer as usize != self.moe.view().output_bytes() || self.batch.index() >= batches {
            refuse!(
                "memory of experts is for other answers or fewer micro-batches; make it of the exchange's configuration"
            );
        }
        let groups = |rows: u32, numbers: u32| here * rows as usize * (numbers / 8) as usize;
        if self.experts.up.len() != groups(memory.inner, 8 * self.token_groups())
            || self.experts.down.len() != groups(memory.outer, memory.inner)
        {
            refuse!("weights are of another size than tokens, answers and what is between the layers");
        }
        if self.moe.start_of(&self.batch, here, 1) > memory.rows as usize {
            refuse!(
                "more rows came than the memory of experts is for; make it of the exchange's configuration and team"
            );
        }
    }

    /// The same, of which the compiler knows nothing. A product takes most of the registers: what follows from this is computed where it is
    /// needed, and not kept through one.
    #[inline(always)]
    fn opaque(&self) -> Self {
        let (moe, batch) = self.moe.opaque(&self.batch);
        let memory = self.experts.memory;
        let memory = ExpertsView {
            computed: opaque_sym(memory.computed),
            counts: opaque_sym(memory.counts),
            hidden: opaque_sym(memory.hidden),
            answers: opaque_sym(memory.answers),
            inner: opaque_word(memory.inner),
            outer: opaque_word(memory.outer),
            rows: opaque_word(memory.rows),
            row_blocks: opaque_word(memory.row_blocks),
            messages: opaque_word(memory.messages),
            ..memory
        };
        Self { moe, batch, experts: Experts { memory, ..self.experts } }
    }

    #[inline(always)]
    fn ctx(&self) -> &'w Ctx<'w> {
        self.moe.ctx()
    }

    /// This PE.
    #[inline(always)]
    fn own(&self) -> Rank<World> {
        self.ctx().world().me()
    }

    /// Groups of eight in a token.
    #[inline(always)]
    fn token_groups(&self) -> u32 {
        (self.moe.view().payload_bytes() / size_of::<Eight>()) as u32
    }

    /// Numbers of a row of activations, and of answers.
    #[inline(always)]
    fn inner(&self) -> usize {
        self.experts.memory.inner as usize
    }

    #[inline(always)]
    fn outer(&self) -> usize {
        self.experts.memory.outer as usize
    }

    /// Tiles beside each other.
    #[inline(always)]
    fn across_inner(&self) -> u32 {
        Product::across(self.experts.memory.inner)
    }

    #[inline(always)]
    fn across_outer(&self) -> u32 {
        Product::across(self.experts.memory.outer)
    }

    /// The micro-batch's part of memory.
    #[inline(always)]
    #[track_caller]
    fn part<T: Element>(&self, all: Sym<T>, each: usize) -> Sym<T> {
        all.slice(self.batch.index() * each..(self.batch.index() + 1) * each)
    }

    #[inline(always)]
    #[track_caller]
    fn computed(&self) -> Sym<Signal> {
        let [each, ..] = self.experts.memory.lens();
        self.part(self.experts.memory.computed, each)
    }

    #[inline(always)]
    #[track_caller]
    fn counts(&self) -> Sym<u32> {
        let [_, each, ..] = self.experts.memory.lens();
        self.part(self.experts.memory.counts, each)
    }

    #[inline(always)]
    #[track_caller]
    fn hidden(&self) -> Sym<bf16> {
        let [.., each, _] = self.experts.memory.lens();
        self.part(self.experts.memory.hidden, each)
    }

    #[inline(always)]
    #[track_caller]
    fn answers(&self) -> Sym<f32> {
        let [.., each] = self.experts.memory.lens();
        self.part(self.experts.memory.answers, each)
    }

    /// How many rows an expert has.
    #[inline(always)]
    #[track_caller]
    fn count(&self, expert: usize) -> usize {
        self.moe.block().uniform(self.moe.count_of(&self.batch, expert) as u64) as usize
    }

    /// Blocks of rows of all experts.
    #[inline(always)]
    #[track_caller]
    fn row_blocks(&self) -> u32 {
        (0..self.moe.experts().len()).map(|expert| self.count(expert).div_ceil(ROWS) as u32).sum()
    }

    /// Tile `at` of the first product.
    #[inline(always)]
    #[track_caller]
    fn inner_tile(&self, at: u32) -> Tile {
        self.tile(at, self.across_inner())
    }

    /// Tile `at` of both products, which is one of the second.
    #[inline(always)]
    #[track_caller]
    fn outer_tile(&self, at: u32) -> Tile {
        self.tile(at - self.row_blocks() * self.across_inner(), self.across_outer())
    }

    /// Tile `at` of a product that has so many beside each other.
    #[inline(always)]
    #[track_caller]
    fn tile(&self, at: u32, across: u32) -> Tile {
        let (row_block, column) = (at / across, at % across);
        let (mut expert, mut row, mut before) = (0, 0, 0);
        loop {
            let count = self.count(expert);
            let blocks = count.div_ceil(ROWS) as u32;
            if row_block < before + blocks {
                let place = (row_block - before) as usize * ROWS;
                return Tile { expert, place, row: row + place, rows: (count - place).min(ROWS), row_block, column };
            }
            (expert, row, before) = (expert + 1, row + count, before + blocks);
        }
    }

    /// Whether tile `at` of both products is one of the first, and whether there is such a tile.
    #[inline(always)]
    #[track_caller]
    fn is_inner(&self, at: u32) -> (bool, bool) {
        let row_blocks = self.row_blocks();
        (at < row_blocks * self.across_inner(), at < row_blocks * (self.across_inner() + self.across_outer()))
    }

    /// Does what tile `at` of both products needs, if there is one.
    #[inline(always)]
    #[track_caller]
    fn take(&self, shared: &mut Shared<'_, ([Eight],)>, at: u32, activation: &impl Fn(f32) -> f32) -> bool {
        let (is_inner, is) = self.opaque().is_inner(at);
        if !is {
            return false;
        }
        let (ctx, now) = (self.ctx(), self.opaque());
        // One tile of code for both: a kernel has room for the registers of one.
        let (product, column) = if is_inner { now.inner_product(at) } else { now.outer_product(at) };
        product.tile(self.moe.block(), shared, column, || {
            let work = self.opaque();
            let (is_inner, _) = work.is_inner(at);
            let (tile, columns) =
                if is_inner { (work.inner_tile(at), work.inner()) } else { (work.outer_tile(at), work.outer()) };
            let (hidden, answers, first) = (work.hidden(), work.answers(), tile.row * columns);
            move |row, column, sum| {
                let place = first + row * columns + column;
                if is_inner {
                    ctx.store(hidden, place, bf16::narrow(activation(sum)));
                } else {
                    ctx.store(answers, place, sum);
                }
            }
        });
        let work = self.opaque();
        let (is_inner, _) = work.is_inner(at);
        if is_inner {
            let computed = work.computed().elem(at as usize);
            // What all threads have stored is covered (MM-2).
            ctx.notify(work.moe.block(), computed.at(work.own()).set(work.batch.exchange()));
        } else {
            work.send_whole(at);
        }
        true
    }

    /// The first product, of the rows of tile `at`, and which tile across it is.
    #[inline(always)]
    #[track_caller]
    fn inner_product(&self, at: u32) -> (Product<'w>, u32) {
        let (ctx, inner, k, tile) = (self.ctx(), self.inner(), self.token_groups(), self.inner_tile(at));
        let (messages, pitch) = self.moe.all_messages(&self.batch);
        let listed = self.moe.listed_of(&self.batch, tile.expert).slice(tile.place..tile.place + tile.rows);
        let weights = &self.experts.up[tile.expert * inner * k as usize..(tile.expert + 1) * inner * k as usize];
        // SAFETY: payloads were awaited, and lists are behind the gate of `dispatch_recv` (MM-3). Members store there again when they have
        // heard that this PE's blocks have done with it, which they tell by `answered` (MM-2).
        let (messages, listed) = unsafe { (ctx.settled(messages.cast::<Eight>()), ctx.settled(listed)) };
        // SAFETY: as above; the weights are lent to the launch to be read.
        let (messages, weights) = unsafe { (Global::of(messages), Global::of(weights)) };
        let pitch = (pitch / size_of::<Eight>()) as u32;
        (Product::listed(messages, pitch, listed, weights, k), tile.column)
    }

    /// The second one, of those of tile `at`, when all of its rows' activations are there.
    #[inline(always)]
    #[track_caller]
    fn outer_product(&self, at: u32) -> (Product<'w>, u32) {
        let (ctx, outer, k, tile) = (self.ctx(), self.outer(), self.inner() / 8, self.outer_tile(at));
        let across = self.across_inner() as usize;
        let first = tile.row_block as usize * across;
        // With these come the activations (MM-3).
        let computed = self.computed().slice(first..first + across);
        ctx.wait_all(self.moe.block(), computed, self.batch.exchange());
        let hidden = self.hidden().cast::<Eight>();
        let weights = &self.experts.down[tile.expert * outer * k..(tile.expert + 1) * outer * k];
        // SAFETY: it was awaited (MM-3), and is written again in a later exchange, whose `dispatch_recv` hears of this PE, too, that its
        // blocks have done with this one (MM-2).
        let hidden = unsafe { ctx.settled(hidden.slice(tile.row * k..(tile.row + tile.rows) * k)) };
        // SAFETY: as above; the weights are lent to the launch to be read.
        let (hidden, weights) = unsafe { (Global::of(hidden), Global::of(weights)) };
        (Product::new(hidden, weights, k as u32), tile.column)
    }

    /// Sends back, in the columns of tile `at`, the rows that it has answered the last choice of. Warps share the rows of the tile.
    #[inline(always)]
    #[track_caller]
    fn send_whole(&self, at: u32) {
        let (moe, ctx, block, tile) = (&self.moe, self.ctx(), self.moe.block(), self.outer_tile(at));
        let (warp, index) = (block.warp(), opaque_word(block.warp_index() as u32) as usize);
        let each = tile.rows.div_ceil(opaque_word(block.warps() as u32) as usize);
        let (mut from, end) = (index * each, ((index + 1) * each).min(tile.rows));
        let (column, outer) = (tile.column as usize, self.outer());
        let packs = column * Product::COLUMNS / 8..((column + 1) * Product::COLUMNS).min(outer) / 8;
        let answers = self.answers().cast::<Pack<f32, 4>>();
        let weight = |row: &Row, k| moe.weight(row, k);
        let answer = |row: &Row, k| {
            let first = moe.row_by_expert(row, k, 1) * outer / 4;
            move |pack| {
                let [low, high] = [0, 1].map(|half| ctx.load(answers, first + 2 * pack + half));
                array::from_fn(|i| if i < 4 { low[i] } else { high[i - 4] })
            }
        };
        // What others of the block have stored is counted, too.
        block.sync();
        while from < end {
            let i = from + warp.rank();
            let mut whole = warp.ballot(i < end && self.count_choice(&tile, i));
            // With whoever counted the last choice all threads of the warp see the answers.
            warp.sync();
            while whole != 0 {
                let i = from + whole.trailing_zeros() as usize;
                whole &= whole - 1;
                let row = moe.row_of(&self.batch, tile.expert, tile.place + i);
                moe.send_part::<bf16, 8, _>(&warp, &self.batch, &row, packs.clone(), &weight, &answer);
            }
            from += warp.size();
        }
    }

    /// Counts that an expert has answered row `i` of a tile, in its columns. Whether that was the last of the choices that the row's token
    /// has on this PE.
    #[inline(always)]
    #[track_caller]
    fn count_choice(&self, tile: &Tile, i: usize) -> bool {
        let (moe, ctx, own) = (&self.moe, self.ctx(), self.own());
        let row = moe.row_of(&self.batch, tile.expert, tile.place + i);
        let mine = moe.mine(&row);
        if mine.count_ones() == 1 {
            return true;
        }
        let first = moe.expert(&row, mine.trailing_zeros() as usize) as usize - moe.experts().start;
        let more = if tile.expert == first { WHOLE - (mine.count_ones() - 1) } else { 1 };
        let message = ctx.load(moe.listed_of(&self.batch, tile.expert), tile.place + i) as usize;
        let counts = self.counts();
        let count = counts.elem(message * self.across_outer() as usize + tile.column as usize);
        // A fence, the addition and a fence release what the block has stored, and acquire what those have who counted before (MM-4, MM-7).
        ctx.fence(&Thread, own);
        let before = ctx.fetch_add(count.at(own), more);
        ctx.fence(&Thread, own);
        before.wrapping_add(more).is_multiple_of(WHOLE)
    }
}

/// The same object, of which the compiler knows nothing.
#[inline(always)]
fn opaque_sym<T: Element>(sym: Sym<T>) -> Sym<T> {
    Sym::from_raw(opaque(sym.offset()), opaque(sym.len() as u64))
}
