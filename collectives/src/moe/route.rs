//! Where tokens go: slots that are counted, and what may be wrong.

use congruent_device::{Group, Lanes, Max, Sym};

use super::{Dispatched, Gate, Idle, MicroBatch, Moe, Own, Wrong};

/// Tokens of one PE and what a router made of them. All blocks give the same.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<E, W> {
    /// How many.
    pub count: usize,
    /// What each carries, one behind the other; as many bytes as the exchange was made for.
    pub payload: Sym<u8>,
    /// The same of scales. Empty where there are none.
    pub scales: Sym<u8>,
    /// The expert of choice `i % top_k` of token `i / top_k`; -1 for none, whose weight is not looked at. The experts of a token are
    /// different ones. Every block asks for all tokens' experts and weights: what they are read from is written by an earlier launch,
    /// or before a meeting of all blocks. Payload and scales of token `t` may be written by the block that sends it.
    pub experts: E,
    /// The weight of the same choice.
    pub weights: W,
}

/// Instead of a row, where a choice is dropped, or goes along with an earlier one to the same PE.
pub(super) const NOWHERE: u32 = u32::MAX;

impl Moe<'_> {
    /// Where each choice of each token goes: the row at its PE, which is rank and slot.
    #[inline(always)]
    pub(super) fn slots(&self, batch: u32, table: u32) -> Sym<u32> {
        // Two in turn: a block may count slots anew while another still sums the tokens of the exchange before.
        let bytes = 4 * self.view.tokens as usize * self.top_k();
        self.at(batch, self.view.layout.slots + u64::from(table) * bytes as u64, bytes).cast()
    }

    /// How many tokens go to each member, and behind that how many there are.
    #[inline(always)]
    pub(super) fn counts(&self, batch: u32, table: u32) -> Sym<u32> {
        let bytes = 4 * (self.n() + 1);
        self.at(batch, self.view.layout.counts + u64::from(table) * bytes as u64, bytes).cast()
    }

    /// Counts slots and looks for what is wrong, together with the other blocks; gives the worst of it, or 0, to all threads of all.
    #[inline(always)]
    #[track_caller]
    pub(super) fn route<E, W>(&self, batch: &MicroBatch<Dispatched>, tokens: &Tokens<E, W>) -> u32
    where
        E: Fn(usize) -> i32,
        W: Fn(usize) -> f32,
    {
        let Self { block, ctx, .. } = *self;
        let (batch, exchange, table) = (batch.index, batch.exchange, batch.table);
        let fits = tokens.count <= self.view.tokens as usize;
        let count = if fits { tokens.count } else { 0 };
        let mut wrong = if fits { 0 } else { Wrong::TooManyTokens as u32 };
        let mut i = block.index() * block.size() + block.rank();
        while i < count * self.top_k() {
            wrong = wrong.max(self.look_at(tokens, i));
            if (tokens.experts)(i) < 0 {
                ctx.store(self.slots(batch, table), i, NOWHERE);
            }
            i += block.count() * block.size();
        }
        let mut member = block.index() * block.warps() + block.warp_index();
        while member < self.n() {
            self.count_slots(batch, table, member, count, &tokens.experts);
            member += block.count() * block.warps();
        }
        if block.index() == 0 && block.leader() {
            ctx.store(self.counts(batch, table), self.n(), count as u32);
        }
        self.arrive(batch, Gate::Routed, exchange, block.reduce(wrong, Max));
        self.meet(batch, Gate::Routed, exchange);
        self.found(batch, Gate::Routed)
    }

    /// What is wrong with sending so many tokens again: 0 where their routes are kept. All blocks find the same, and so do all members
    /// where they send as many as before.
    ///
    /// What a block reads here, others have stored before they told the members of the exchange before, which this one has heard in it
    /// (MM-2, MM-3), or in an earlier launch. It changes only behind this exchange's gate where all tokens are stored, to which this
    /// block comes later.
    #[inline(always)]
    #[track_caller]
    pub(super) fn lacks_routes(&self, batch: &MicroBatch<Idle>, count: usize) -> u32 {
        let refused = self.ctx.load(self.own(batch.index, Own::Refused), 0);
        let kept = self.ctx.load(self.counts(batch.index, batch.table), self.n());
        let lacks = batch.exchange == 0 || refused != 0 || count != kept as usize;
        if self.block.uniform(lacks.into()) != 0 { Wrong::NoRoutes as u32 } else { 0 }
    }

    /// What is wrong with choice `i`.
    #[inline(always)]
    #[track_caller]
    fn look_at<E: Fn(usize) -> i32, W: Fn(usize) -> f32>(&self, tokens: &Tokens<E, W>, i: usize) -> u32 {
        let expert = (tokens.experts)(i);
        if expert < -1 || i64::from(expert) >= i64::from(self.view.experts) {
            return Wrong::NoSuchExpert as u32;
        }
        if expert >= 0 && (tokens.weights)(i).is_nan() {
            return Wrong::NotANumber as u32;
        }
        let first = i - i % self.top_k();
        let twice = expert >= 0 && (first..i).any(|other| (tokens.experts)(other) == expert);
        if twice { Wrong::SameExpert as u32 } else { 0 }
    }

    /// Counts the slots of one member, by a warp: a token's is how many tokens before it go there.
    #[inline(always)]
    #[track_caller]
    fn count_slots(&self, batch: u32, table: u32, member: usize, count: usize, experts: &impl Fn(usize) -> i32) {
        let (warp, ctx, top_k) = (self.block.warp(), self.ctx, self.top_k());
        let slots = self.slots(batch, table);
        let (mut counted, mut from) = (0, 0);
        while from < count {
            let token = from + warp.rank();
            // A token's first choice that is there takes it along; the others of it go with that one.
            let mut first = top_k;
            if token < count {
                for k in 0..top_k {
                    let expert = experts(token * top_k + k);
                    let there =
                        expert >= 0 && (expert as u32) < self.view.experts && self.owner(expert as u32) == member;
                    if there && first == top_k {
                        first = k;
                    } else if there {
                        ctx.store(slots, token * top_k + k, NOWHERE);
                    }
                }
            }
            let votes = warp.ballot(first < top_k);
            if first < top_k {
                let slot = counted + (votes & ((1 << warp.rank()) - 1)).count_ones() as usize;
                ctx.store(slots, token * top_k + first, (member * self.view.tokens as usize + slot) as u32);
            }
            counted += votes.count_ones() as usize;
            from += warp.size();
        }
        if warp.leader() {
            ctx.store(self.counts(batch, table), member, counted as u32);
        }
    }
}
