//! Mixture of experts: tokens travel to the PEs that have their experts, and what the experts answer travels back and is summed.
//!
//! An exchange has four steps, which a kernel calls with all of its blocks. Whoever sends returns at once, and whoever receives waits,
//! so that a kernel, or another launch, computes in between:
//!
//! | step | what it does | what it gives |
//! |---|---|---|
//! | [`dispatch_send`](Moe::dispatch_send) | each token goes once to each PE that has an expert of it | |
//! | [`dispatch_recv`](Moe::dispatch_recv) | waits for all PEs | rows by source, and which rows each expert has |
//! | [`combine_send`](Moe::combine_send) | what a row's experts answered is weighted, summed in the order of the token's choices, and goes back | |
//! | [`combine_recv`](Moe::combine_recv) | waits for all PEs | for each token the sum of what came back |
//!
//! A micro-batch on its way is a value, [`MicroBatch`], whose type says which step is next; each step takes it and gives the next.
//!
//! ```
//! use congruent_collectives::moe::{Added, MoeView, Tokens};
//! use congruent_device::{Sym, bf16, kernels};
//!
//! kernels! {
//!     /// A layer whose experts double what they are given.
//!     pub fn doubled(
//!         block, ctx, moe: MoeView, count: u32, x: Sym<bf16>, experts: Sym<i32>, weights: Sym<f32>, y: Sym<bf16>,
//!     ) {
//!         let moe = moe.enter(block, ctx);
//!         let tokens = Tokens {
//!             count: count as usize,
//!             payload: x.cast::<u8>(),
//!             scales: Sym::empty(),
//!             experts: |i| ctx.load(experts, i),
//!             weights: |i| ctx.load(weights, i),
//!         };
//!         let sent = moe.dispatch_send(moe.idle(0), &tokens);
//!         let Ok(received) = moe.dispatch_recv(sent) else { return };
//!         let combining = moe.combine_send::<bf16, _>(received, |row, _k| {
//!             let x = row.payload().cast::<bf16>();
//!             move |i| 2.0 * ctx.load(x, i).to_f32()
//!         });
//!         moe.combine_recv(combining, y, Added::Nothing);
//!     }
//! }
//! ```
//!
//! The slots of an exchange, and what came with its tokens, stay where they are until tokens are routed anew:
//! [`dispatch_again`](Moe::dispatch_again) sends other payloads by the same routes, and nothing else. So gradients travel, for which
//! [`combine_send_unweighted`](Moe::combine_send_unweighted) sums what comes back without weights.
//!
//! # Protocol
//! Everything is pushed. A PE has a region for tokens and one for answers of each micro-batch, in which every member has places of its
//! own: token number `i` of those that go from one PE to another lies in slot `i` there. Slots are counted, not claimed, so that all of
//! memory and every sum have the same bits, however many blocks there are.
//!
//! In both halves of an exchange each member signals each other one, also where it has nothing for it: the number of the exchange in one
//! half of the word, and in the other how many rows there are, or why there are none. So the half that receives is a meeting of all, and
//! what makes the regions free again: who has heard in one half from all that they have come to it knows that they have read what the
//! half before it sent. Two regions for each micro-batch are enough for that, and one would not be.
//!
//! # Errors
//! What is wrong with a PE's tokens is found before it has stored anything on another. It then sends the reason instead of a count;
//! every member gets it, with that PE's rank, from its own `dispatch_recv`, and the exchange is over: nothing comes back, and the
//! micro-batch may be used again at once.

mod combine;
mod config;
mod dispatch;
mod gates;
mod permute;
mod route;
mod rows;

use core::fmt;
use core::marker::PhantomData;

use congruent_device::{Block, Ctx, Group, Signal, Sym, TeamView, kernel_arg, opaque, opaque_word, refuse};

pub use combine::Added;
pub use config::{MoeConfig, MoeConfigError, MoeShape};
pub use permute::TooManyRows;
pub use route::Tokens;
pub use rows::Row;

use config::MoeLayout;

kernel_arg! {
    /// An exchange as a kernel argument. [`enter`](MoeView::enter) makes it one that steps are called on.
    pub struct MoeView {
        signals: Sym<Signal>,
        scratch: Sym<u8>,
        team: TeamView,
        layout: MoeLayout,
        signals_of_peers: u32,
        signals_of_blocks: u32,
        tokens: u32,
        experts: u32,
        top_k: u32,
        payload: u32,
        scales: u32,
        output: u32,
        micro_batches: u32,
        blocks: u32,
        first_tag: u32,
        unused: u32,
    }
    most_blocks = Self::blocks;
}

impl MoeView {
    /// The most blocks of a launch with it.
    fn blocks(&self) -> u32 {
        self.blocks
    }

    /// What tokens are received in, of a micro-batch: as many bytes of each member. For tests.
    #[doc(hidden)]
    pub fn dispatch_region(&self, micro_batch: u32) -> Sym<u8> {
        let bytes = self.team.size() as u64 * u64::from(self.tokens) * u64::from(self.layout.message);
        Sym::from_raw(self.scratch.offset() + u64::from(micro_batch) * self.layout.batch + self.layout.dispatch, bytes)
    }

    /// The same exchange for rows of other sizes, as [`Moe::with_rows`]; `None` where that panics.
    #[inline(always)]
    pub fn with_rows(self, payload: usize, scales: usize, output: usize) -> Option<Self> {
        let fits = payload <= self.payload_bytes() && scales <= self.scales_bytes() && output <= self.output_bytes();
        if !fits || payload == 0 || output == 0 || !output.is_multiple_of(8) {
            return None;
        }
        Some(Self { payload: payload as u32, scales: scales as u32, output: output as u32, ..self })
    }

    /// Bytes of a payload.
    #[inline(always)]
    pub const fn payload_bytes(&self) -> usize {
        self.payload as usize
    }

    /// Bytes of its scales.
    #[inline(always)]
    pub const fn scales_bytes(&self) -> usize {
        self.scales as usize
    }

    /// Bytes of a row of outputs.
    #[inline(always)]
    pub const fn output_bytes(&self) -> usize {
        self.output as usize
    }

    /// The exchange, for this block. Every block of a launch enters.
    #[inline(always)]
    pub fn enter<'c>(self, block: &Block<'c>, ctx: &'c Ctx<'c>) -> Moe<'c> {
        Moe { view: self, block: *block, ctx }
    }
}

/// A block's hold on an exchange of tokens with its team's members. All blocks of a launch call the same steps in the same order, and
/// share the work: token `t` is sent, and later summed, by block `t` modulo the blocks.
#[derive(Clone, Copy)]
pub struct Moe<'c> {
    view: MoeView,
    block: Block<'c>,
    ctx: &'c Ctx<'c>,
}

/// A micro-batch on its way through the steps of an exchange, of which `S` is next: [`Idle`], [`Dispatched`], [`Received`] or
/// [`Combining`]. One that is dropped is where it was: a later launch takes it up by [`Moe::resume`].
#[must_use = "a micro-batch in flight goes through all steps, on every PE"]
pub struct MicroBatch<S> {
    /// Where the memory of its exchange is, which no other has.
    of: u64,
    index: u32,
    /// How often the micro-batch has been sent.
    exchange: u64,
    /// Which of two tables has its slots: the other one than the routes before had.
    table: u32,
    step: PhantomData<S>,
}

impl<S> MicroBatch<S> {
    /// Which of an exchange's it is.
    #[inline(always)]
    pub const fn index(&self) -> usize {
        self.index as usize
    }

    /// How often it has been sent: a number that grows with each exchange.
    #[inline(always)]
    pub const fn exchange(&self) -> u64 {
        self.exchange
    }

    /// The same micro-batch at its next step, so many exchanges on.
    #[inline(always)]
    fn next<N>(self, exchanges: u64) -> MicroBatch<N> {
        MicroBatch {
            of: self.of,
            index: self.index,
            exchange: self.exchange + exchanges,
            table: self.table,
            step: PhantomData,
        }
    }
}

/// A step that a micro-batch has come to.
pub trait Step: sealed::Sealed {
    #[doc(hidden)]
    const NUMBER: u64;
}

macro_rules! steps {
    ($($(#[$meta:meta])* $name:ident = $number:literal;)*) => {$(
        $(#[$meta])*
        #[derive(Debug)]
        pub struct $name;
        impl sealed::Sealed for $name {}
        impl Step for $name {
            const NUMBER: u64 = $number;
        }
    )*};
}
steps! {
    /// Nothing is under way.
    Idle = 0;
    /// Its tokens are sent.
    Dispatched = 1;
    /// The tokens of all members are here.
    Received = 2;
    /// The answers are sent.
    Combining = 3;
}

mod sealed {
    /// Keeps the steps to those that there are.
    pub trait Sealed {}
}

/// Which of a micro-batch's words of its own PE it is.
#[derive(Clone, Copy)]
enum Own {
    /// The exchange, the table that has its slots, and the step that it has come to.
    State,
    /// Why the last exchange was refused; 0 where it was not, and routes are kept.
    Refused,
}

/// Where the blocks of one PE meet, or hear of each other. Each has a word for each block, which that block alone sets, and which only
/// grows.
#[derive(Clone, Copy)]
enum Gate {
    /// Slots are known, and whether something is wrong.
    Routed,
    /// All tokens are stored.
    Stored,
    /// What each expert has is known.
    Listed,
    /// All answers are stored, and what was received is read.
    Answered,
    /// All sums are stored.
    Ended,
}

/// How many gates there are.
const GATES: usize = 5;

/// Why an exchange did not take place: what was wrong with a member's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The first such member's rank.
    pub rank: u32,
    /// What was wrong.
    pub why: Wrong,
}

/// What may be wrong with a PE's tokens.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// There are more of them than the exchange was made for.
    TooManyTokens = 1,
    /// An expert that there is not. `-1` is none: such a choice is dropped.
    NoSuchExpert = 2,
    /// One expert twice for one token.
    SameExpert = 3,
    /// A weight that is no number.
    NotANumber = 4,
    /// Payloads to be sent again by routes that there are not: no exchange came before, the last one was refused, or it was of another
    /// number of tokens.
    NoRoutes = 5,
}

impl Wrong {
    const fn from_raw(raw: u32) -> Self {
        match raw {
            1 => Self::TooManyTokens,
            2 => Self::NoSuchExpert,
            3 => Self::SameExpert,
            5 => Self::NoRoutes,
            _ => Self::NotANumber,
        }
    }
}

impl Refusal {
    /// As a word, which is not 0.
    pub const fn to_word(self) -> u64 {
        (self.why as u64) << 32 | self.rank as u64
    }

    /// The refusal that a word has.
    pub const fn from_word(word: u64) -> Option<Self> {
        if word == 0 { None } else { Some(Self { rank: word as u32, why: Wrong::from_raw((word >> 32) as u32) }) }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.why {
            Wrong::TooManyTokens => "more tokens than the exchange was made for",
            Wrong::NoSuchExpert => "an expert that there is not",
            Wrong::SameExpert => "one expert twice for a token",
            Wrong::NotANumber => "a weight that is no number",
            Wrong::NoRoutes => "tokens to be sent again where no routes of so many are kept",
        };
        write!(f, "the member of rank {} gave {why}; no tokens were exchanged", self.rank)
    }
}

/// A micro-batch whose exchange was refused, and why. All members get the same.
pub struct Refused {
    /// The micro-batch, which may be sent again.
    pub batch: MicroBatch<Idle>,
    /// What was wrong.
    pub refusal: Refusal,
}

/// The step in the word of a micro-batch's state.
const fn step(state: u64) -> u64 {
    state % 4
}

impl<'c> Moe<'c> {
    /// The same exchange for rows of other sizes, each up to what it was made for: those of gradients are others than those of tokens.
    /// Every step of an exchange is called with the same sizes, on every PE. Sizes are in bytes, as [`MoeConfig`] has them.
    ///
    /// # Panics
    /// Where a size is larger than the exchange was made for, or there is no payload, or an output of a number of bytes that 8 does not
    /// divide.
    #[inline(always)]
    #[track_caller]
    pub fn with_rows(self, payload: usize, scales: usize, output: usize) -> Self {
        let Some(view) = self.view.with_rows(payload, scales, output) else {
            refuse!(
                "rows are larger than the exchange was made for, or have no payload, or an output that 8 does not divide"
            );
        };
        Self { view, ..self }
    }

    /// The exchange as it was an argument.
    #[inline(always)]
    pub const fn view(&self) -> &MoeView {
        &self.view
    }

    /// The block that entered.
    #[inline(always)]
    pub const fn block(&self) -> &Block<'c> {
        &self.block
    }

    /// What it entered with.
    #[inline(always)]
    pub const fn ctx(&self) -> &'c Ctx<'c> {
        self.ctx
    }

    /// The same exchange and micro-batch, of which the compiler knows nothing: what follows from them is computed where it is needed, and kept
    /// in no registers meanwhile.
    #[doc(hidden)]
    #[inline(always)]
    pub fn opaque<S>(&self, batch: &MicroBatch<S>) -> (Self, MicroBatch<S>) {
        let view = self.view;
        let view = MoeView {
            signals: Sym::from_raw(opaque(view.signals.offset()), opaque(view.signals.len() as u64)),
            scratch: Sym::from_raw(opaque(view.scratch.offset()), opaque(view.scratch.len() as u64)),
            layout: view.layout.opaque(),
            signals_of_peers: opaque_word(view.signals_of_peers),
            signals_of_blocks: opaque_word(view.signals_of_blocks),
            tokens: opaque_word(view.tokens),
            experts: opaque_word(view.experts),
            top_k: opaque_word(view.top_k),
            payload: opaque_word(view.payload),
            output: opaque_word(view.output),
            first_tag: opaque_word(view.first_tag),
            ..view
        };
        let (index, exchange) = (opaque_word(batch.index), opaque(batch.exchange));
        (Self { view, ..*self }, MicroBatch { index, exchange, step: PhantomData, ..*batch })
    }

    /// Micro-batch `index`, to be sent. A kernel calls this, or [`resume`](Moe::resume), once for a micro-batch, before any step of it.
    ///
    /// # Panics
    /// Where there is no such micro-batch, or it is on its way.
    #[inline(always)]
    #[track_caller]
    pub fn idle(&self, index: usize) -> MicroBatch<Idle> {
        self.taken_up(index, self.state(index))
    }

    /// Micro-batch `index`, at the step that launches before this one have left it at.
    ///
    /// # Errors
    /// Why the exchange was refused, where it was, and is over.
    ///
    /// # Panics
    /// Where there is no such micro-batch, or it is at another step.
    #[inline(always)]
    #[track_caller]
    pub fn resume<S: Step>(&self, index: usize) -> Result<MicroBatch<S>, Refusal> {
        let state = self.state(index);
        if step(state) == Idle::NUMBER && S::NUMBER >= Received::NUMBER {
            let refused = self.block.uniform(self.ctx.load(self.own(index as u32, Own::Refused), 0));
            if let Some(refusal) = Refusal::from_word(refused) {
                return Err(refusal);
            }
        }
        Ok(self.taken_up(index, state))
    }

    /// The exchange that a micro-batch has come to, its table and its step.
    #[inline(always)]
    #[track_caller]
    fn state(&self, index: usize) -> u64 {
        if index >= self.view.micro_batches as usize {
            refuse!("an exchange has no such micro-batch; make it with more of them");
        }
        self.block.uniform(self.ctx.load(self.own(index as u32, Own::State), 0))
    }

    #[inline(always)]
    #[track_caller]
    fn taken_up<S: Step>(&self, index: usize, state: u64) -> MicroBatch<S> {
        if step(state) != S::NUMBER {
            refuse!("a micro-batch is at another step: each goes through dispatch and combine, send and recv, in turn");
        }
        let (exchange, table) = (state >> 3, (state >> 2) as u32 & 1);
        MicroBatch { of: self.view.scratch.offset(), index: index as u32, exchange, table, step: PhantomData }
    }

    /// Ends the kernel where a micro-batch is another exchange's.
    #[inline(always)]
    #[track_caller]
    fn check<S>(&self, batch: &MicroBatch<S>) {
        if batch.of != self.view.scratch.offset() {
            refuse!("a micro-batch is of another exchange than this one");
        }
    }

    /// How many members.
    #[inline(always)]
    fn n(&self) -> usize {
        self.view.team.size()
    }

    /// This member.
    #[inline(always)]
    fn me(&self) -> usize {
        self.view.team.me()
    }

    /// Experts of a token.
    #[inline(always)]
    fn top_k(&self) -> usize {
        self.view.top_k as usize
    }

    /// Memory of a micro-batch.
    #[inline(always)]
    fn at(&self, batch: u32, start: u64, bytes: usize) -> Sym<u8> {
        Sym::from_raw(self.view.scratch.offset() + u64::from(batch) * self.view.layout.batch + start, bytes as u64)
    }

    #[inline(always)]
    fn own(&self, batch: u32, word: Own) -> Sym<u64> {
        self.at(batch, word as u64 * 8, 8).cast()
    }

    /// Says that a micro-batch has come to a step. For a moment when all blocks have taken it up, by block 0.
    #[inline(always)]
    fn came_to<S: Step>(&self, batch: MicroBatch<S>) -> MicroBatch<S> {
        if self.block.index() == 0 && self.block.leader() {
            let state = batch.exchange << 3 | u64::from(batch.table) << 2 | S::NUMBER;
            self.ctx.store(self.own(batch.index, Own::State), 0, state);
        }
        batch
    }

    /// Signals of a micro-batch.
    #[inline(always)]
    fn signals(&self, batch: u32, start: u32, count: usize) -> Sym<Signal> {
        let each = 2 * self.view.signals_of_peers + GATES as u32 * self.view.signals_of_blocks;
        let first = batch as usize * each as usize + start as usize;
        self.view.signals.slice(first..first + count)
    }

    /// What members signal when their tokens are here.
    #[inline(always)]
    fn dispatched(&self, batch: u32) -> Sym<Signal> {
        self.signals(batch, 0, self.n())
    }

    /// What members signal when their answers are here.
    #[inline(always)]
    fn combined(&self, batch: u32) -> Sym<Signal> {
        self.signals(batch, self.view.signals_of_peers, self.n())
    }

    /// Words of a gate, for the blocks of this launch.
    #[inline(always)]
    fn gate(&self, batch: u32, gate: Gate) -> Sym<Signal> {
        let start = 2 * self.view.signals_of_peers + gate as u32 * self.view.signals_of_blocks;
        self.signals(batch, start, self.block.count())
    }

    /// What this exchange is called in signals.
    #[inline(always)]
    fn tag(&self, exchange: u64) -> u32 {
        self.view.first_tag.wrapping_add(exchange as u32)
    }
}
