//! What has been received: a row for each token, by source and slot, and which rows each expert has.

use congruent_device::{Group, Lanes, Rank, Sym, World, refuse};

use super::config::{HEADER, experts_of, owner_of};
use super::gates::AGAIN;
use super::{MicroBatch, Moe, Received};

/// A token that has been received.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    batch: u32,
    source: u32,
    slot: u32,
    payload: Sym<u8>,
    scales: Sym<u8>,
    /// Header, experts and weights.
    words: Sym<u32>,
}

impl Row {
    #[inline(always)]
    pub(super) const fn batch(&self) -> u32 {
        self.batch
    }

    /// The rank that it is from.
    #[inline(always)]
    pub const fn source(&self) -> usize {
        self.source as usize
    }

    /// Which of the tokens from there it is: they are in the order in which their PE has them.
    #[inline(always)]
    pub const fn slot(&self) -> usize {
        self.slot as usize
    }

    /// What the token carries, on this PE.
    #[inline(always)]
    pub const fn payload(&self) -> Sym<u8> {
        self.payload
    }

    /// Its scales, on this PE.
    #[inline(always)]
    pub const fn scales(&self) -> Sym<u8> {
        self.scales
    }
}

/// Words of a header.
pub(super) const TAG: usize = 0;
pub(super) const TOKEN: usize = 1;
pub(super) const SOURCE: usize = 2;
/// Where experts begin, behind the header; weights are behind those.
pub(super) const EXPERTS: usize = HEADER as usize / 4;

impl Moe<'_> {
    /// Which member has an expert.
    #[inline(always)]
    pub(super) fn owner(&self, expert: u32) -> usize {
        owner_of(expert, self.view.experts, self.n() as u32) as usize
    }

    /// Messages from slot `first` on from a source, as they lie at whoever receives them.
    #[inline(always)]
    pub(super) fn messages(&self, batch: u32, source: usize, first: usize, count: usize) -> Sym<u8> {
        let message = self.view.layout.message as usize;
        let row = source * self.view.tokens as usize + first;
        self.at(batch, self.view.layout.dispatch + (row * message) as u64, count * message)
    }

    /// The same on its way to a member that a proxy serves, on this PE.
    #[inline(always)]
    pub(super) fn staged_messages(&self, batch: u32, to: usize, first: usize, count: usize) -> Sym<u8> {
        let message = self.view.layout.message as usize;
        let row = to * self.view.tokens as usize + first;
        self.at(batch, self.view.layout.staged_messages + (row * message) as u64, count * message)
    }

    /// The parts of a message: payload, scales, and words.
    #[inline(always)]
    pub(super) fn parts(&self, message: Sym<u8>) -> (Sym<u8>, Sym<u8>, Sym<u32>) {
        let at = |start: u32, bytes: u32| message.slice(start as usize..(start + bytes) as usize);
        let layout = &self.view.layout;
        let words = at(layout.header, HEADER + 8 * self.view.top_k).cast();
        (at(0, self.view.payload), at(layout.scales, self.view.scales), words)
    }

    /// A row of outputs as it lies where it goes: the one in this slot from a source, of a token's choice `k`.
    #[inline(always)]
    pub(super) fn output(&self, batch: u32, source: usize, slot: usize, token: usize, k: usize) -> Sym<u8> {
        let by_source = self.view.layout.by_source != 0;
        let (major, minor) = if by_source { (source, slot) } else { (k, token) };
        self.outputs(batch, self.view.layout.combine, major, minor, 1)
    }

    /// Rows of outputs, from `minor` on of those of `major`, in a region that begins at `start`.
    #[inline(always)]
    pub(super) fn outputs(&self, batch: u32, start: u64, major: usize, minor: usize, count: usize) -> Sym<u8> {
        let each = self.view.layout.row as usize;
        let row = major * self.view.tokens as usize + minor;
        self.at(batch, start + (row * each) as u64, count * each)
    }

    /// Where what is for a member is stored: there, or in memory of this PE that a proxy takes it from.
    #[inline(always)]
    #[track_caller]
    pub(super) fn towards(
        &self,
        member: usize,
        there: Sym<u8>,
        staged: impl FnOnce() -> Sym<u8>,
    ) -> (Sym<u8>, Rank<World>) {
        let rank = self.rank(member);
        if self.ctx.reaches(rank) { (there, rank) } else { (staged(), self.own_rank()) }
    }

    /// This rank.
    #[inline(always)]
    pub(super) fn own_rank(&self) -> Rank<World> {
        self.view.team.own(self.ctx.pe())
    }

    /// Member `i`.
    #[inline(always)]
    #[track_caller]
    pub(super) fn rank(&self, i: usize) -> Rank<World> {
        self.ctx.team(self.view.team).rank(i)
    }

    /// How many tokens have come from a member.
    #[inline(always)]
    #[track_caller]
    pub fn count(&self, batch: &MicroBatch<Received>, source: usize) -> usize {
        self.check(batch);
        (self.told(batch, source) & !AGAIN) as usize
    }

    /// Token `slot` of those that have come from a member.
    ///
    /// # Panics
    /// Where there is no such slot.
    #[inline(always)]
    #[track_caller]
    pub fn row(&self, batch: &MicroBatch<Received>, source: usize, slot: usize) -> Row {
        self.check(batch);
        if source >= self.n() || slot >= self.count(batch, source) {
            refuse!("an exchange has no such row");
        }
        self.row_at(batch, source, slot)
    }

    /// The same of a slot that there is.
    #[inline(always)]
    #[track_caller]
    pub(super) fn row_at(&self, batch: &MicroBatch<Received>, source: usize, slot: usize) -> Row {
        let (payload, scales, words) = self.parts(self.messages(batch.index, source, slot, 1));
        let row = Row { batch: batch.index, source: source as u32, slot: slot as u32, payload, scales, words };
        #[cfg(debug_assertions)]
        if self.ctx.load(words, TAG) != self.tag(batch.exchange) || self.ctx.load(words, SOURCE) != row.source {
            refuse!("a row is of another exchange");
        }
        row
    }

    /// Which of its PE's tokens it is.
    #[inline(always)]
    #[track_caller]
    pub fn token(&self, row: &Row) -> usize {
        self.ctx.load(row.words, TOKEN) as usize
    }

    /// The expert that its token's choice `k` is, or -1; of any PE.
    #[inline(always)]
    #[track_caller]
    pub fn expert(&self, row: &Row, k: usize) -> i32 {
        self.ctx.load(row.words, EXPERTS + k) as i32
    }

    /// The weight of its token's choice `k`.
    #[inline(always)]
    #[track_caller]
    pub fn weight(&self, row: &Row, k: usize) -> f32 {
        f32::from_bits(self.ctx.load(row.words, EXPERTS + self.top_k() + k))
    }

    /// Which choices of a row's token are experts of this PE, a bit for each.
    #[inline(always)]
    #[track_caller]
    pub fn mine(&self, row: &Row) -> u32 {
        let (experts, mut mine) = (self.experts(), 0);
        for k in 0..self.top_k() {
            // -1 is none of them.
            if experts.contains(&(self.expert(row, k) as usize)) {
                mine |= 1 << k;
            }
        }
        mine
    }

    /// How many tokens expert `expert` of this PE has, counted from this PE's first one.
    ///
    /// # Panics
    /// Where this PE has no such expert.
    #[inline(always)]
    #[track_caller]
    pub fn count_of(&self, batch: &MicroBatch<Received>, expert: usize) -> usize {
        self.check(batch);
        self.ctx.load(self.listed(batch.index), expert) as usize
    }

    /// Token `i` of those that an expert of this PE has: they are by source, and then by slot.
    ///
    /// # Panics
    /// Where this PE has no such expert, or the expert not so many tokens.
    #[inline(always)]
    #[track_caller]
    pub fn row_of(&self, batch: &MicroBatch<Received>, expert: usize, i: usize) -> Row {
        if i >= self.count_of(batch, expert) {
            refuse!("an expert has not so many tokens");
        }
        let row = self.ctx.load(self.list(batch.index, expert), i);
        let tokens = self.view.tokens;
        self.row_at(batch, (row / tokens) as usize, (row % tokens) as usize)
    }

    /// All messages, by source and slot, and how many bytes each is: a payload is at its beginning.
    #[doc(hidden)]
    #[inline(always)]
    pub fn all_messages(&self, batch: &MicroBatch<Received>) -> (Sym<u8>, usize) {
        let message = self.view.layout.message as usize;
        (self.messages(batch.index, 0, 0, self.n() * self.view.tokens as usize), message)
    }

    /// Which messages an expert of this PE has: what [`row_of`](Moe::row_of) looks into.
    ///
    /// # Panics
    /// Where this PE has no such expert.
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn listed_of(&self, batch: &MicroBatch<Received>, expert: usize) -> Sym<u32> {
        self.list(batch.index, expert).slice(..self.count_of(batch, expert))
    }

    /// Which of the rows of its expert a row is, where that is this PE's: what [`row_of`](Moe::row_of) finds it by. Choice `k` of its token
    /// is that expert.
    #[inline(always)]
    #[track_caller]
    pub fn place(&self, row: &Row, k: usize) -> usize {
        let choice = (row.source() * self.view.tokens as usize + row.slot()) * self.top_k() + k;
        self.ctx.load(self.places(row.batch), choice) as usize
    }

    /// The experts that this PE has.
    #[inline(always)]
    pub fn experts(&self) -> core::ops::Range<usize> {
        let experts = experts_of(self.me() as u32, self.view.experts, self.n() as u32);
        experts.start as usize..experts.end as usize
    }

    /// How many tokens each expert of this PE has.
    #[inline(always)]
    pub(super) fn listed(&self, batch: u32) -> Sym<u32> {
        self.at(batch, self.view.layout.listed, 4 * self.experts().len()).cast()
    }

    /// Rows of one of them.
    #[inline(always)]
    fn list(&self, batch: u32, expert: usize) -> Sym<u32> {
        let bytes = 4 * self.n() * self.view.tokens as usize;
        self.at(batch, self.view.layout.lists + (expert * bytes) as u64, bytes).cast()
    }

    /// Which of an expert's rows each choice of each row is.
    #[inline(always)]
    fn places(&self, batch: u32) -> Sym<u32> {
        let bytes = 4 * self.n() * self.view.tokens as usize * self.top_k();
        self.at(batch, self.view.layout.places, bytes).cast()
    }

    /// Lists the rows of each expert: by a warp for each, which counts and claims nothing, so that lists are the same however many there
    /// are. All blocks meet behind it, before they are read.
    #[inline(always)]
    #[track_caller]
    pub(super) fn make_lists(&self, batch: &MicroBatch<Received>) {
        let (warp, first) = (self.block.warp(), self.experts().start);
        let mut expert = self.block.index() * self.block.warps() + self.block.warp_index();
        while expert < self.experts().len() {
            let list = self.list(batch.index, expert);
            let mut listed = 0;
            for source in 0..self.n() {
                let count = self.count(batch, source);
                let mut from = 0;
                while from < count {
                    let slot = from + warp.rank();
                    let row = source * self.view.tokens as usize + slot;
                    let top_k = self.top_k();
                    let k = if slot < count { self.choice(batch, source, slot, first + expert) } else { top_k };
                    let votes = warp.ballot(k < top_k);
                    if k < top_k {
                        let place = listed + (votes & ((1 << warp.rank()) - 1)).count_ones() as usize;
                        self.ctx.store(list, place, row as u32);
                        self.ctx.store(self.places(batch.index), row * top_k + k, place as u32);
                    }
                    listed += votes.count_ones() as usize;
                    from += warp.size();
                }
            }
            if warp.leader() {
                self.ctx.store(self.listed(batch.index), expert, listed as u32);
            }
            expert += self.block.count() * self.block.warps();
        }
    }

    /// Which of its token's choices an expert is to a row; `top_k` where none.
    #[inline(always)]
    #[track_caller]
    fn choice(&self, batch: &MicroBatch<Received>, source: usize, slot: usize, expert: usize) -> usize {
        let row = self.row_at(batch, source, slot);
        let mut choice = self.top_k();
        for k in 0..self.top_k() {
            if self.expert(&row, k) == expert as i32 {
                choice = k;
            }
        }
        choice
    }
}
