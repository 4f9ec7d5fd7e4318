//! One call of a collective: whose turn it is, who takes part, and the block's words.

use core::cell::Cell;

use congruent_device::refuse;
use congruent_device::{Ctx, Group, Mark, Pod, Rank, Span, Sym, Tag, Team};

use crate::names::Operation;
use crate::plan::View;
use crate::reducer::{Reducer, Stage};
use crate::share::Share;

/// The signal of a link by which members meet; the others are its link's (`link.rs`).
const MEET: usize = 3;

/// Instead of the count of exchanges, while a call uses the channel: this, and the number of its [`Operation`] more.
pub(crate) const BUSY: u64 = 1 << 63;
/// Instead of it, where the launch is ending.
const ENDING: u64 = BUSY - 1;

/// Where in a channel's head the counts of exchanges and of meetings are. The first says too whose turn it is: one access takes
/// the channel and gets the count.
pub(crate) const SHOTS: usize = 0;
const MEETINGS: usize = 1;

/// Up to this size a team meets in one round, all with all; a larger one in `log n` rounds.
const ONE_ROUND: usize = 8;

/// What an algorithm knows once it may use its channel.
pub(crate) struct Call<'c, G> {
    pub(crate) ctx: &'c Ctx<'c>,
    pub(crate) team: &'c Team<'c, G>,
    pub(crate) view: View,
    pub(crate) n: usize,
    pub(crate) me: usize,
    pub(crate) channel: usize,
    /// This block among those that share the work.
    pub(crate) blocks: Share,
    shots: Cell<u64>,
    _span: Span<'c>,
}

impl<'c, G: Tag> Call<'c, G> {
    /// Takes the block's channel of the plan.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn enter(
        group: &impl Group,
        ctx: &'c Ctx<'_>,
        team: &'c Team<'_, G>,
        plan: &View,
        operation: Operation,
        bytes: usize,
    ) -> Self {
        if plan.team != team.id() || plan.members as usize != team.size() {
            refuse!("this plan was made for another team; make one with the layout of this team");
        }
        let (channel, blocks) = plan.channel_of(ctx.block_index(), ctx.blocks());
        let me = team.me();
        let span = ctx.span(Mark { bytes: bytes as u64, ..Mark::new(operation.name()) });
        let ends = plan.heeds == 1 && ctx.aborted();
        let shots = match group.leader() {
            true if ends => ENDING,
            true => ctx.swap(plan.head(channel).elem(SHOTS).at(me), BUSY + operation as u64),
            false => 0,
        };
        // A call that was given up has not given its channel back.
        let shots = if shots >= BUSY && ctx.aborted() { ENDING } else { shots };
        let shots = group.broadcast(shots);
        if shots == ENDING {
            ctx.end();
        }
        if shots >= BUSY {
            refuse!("two blocks use one slot of a plan at once; give each block a slot of its own");
        }
        let shots = Cell::new(shots);
        Self { ctx, team, view: *plan, n: team.size(), me: me.index(), channel, blocks, shots, _span: span }
    }

    /// Gives the channel back.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn leave(self, group: &impl Group) {
        if group.leader() {
            self.ctx.store(self.view.head(self.channel), SHOTS, self.shots.get());
        }
    }

    /// The rank at distance `i` after this one.
    #[inline(always)]
    pub(crate) fn after(&self, i: usize) -> Rank<G> {
        self.team.rank(self.wrap(self.me + i))
    }

    /// This rank.
    #[inline(always)]
    pub(crate) fn own(&self) -> Rank<G> {
        self.team.me()
    }

    /// `i` modulo the members, for `i` below three times as many.
    #[inline(always)]
    pub(crate) fn wrap(&self, i: usize) -> usize {
        let i = if i >= self.n { i - self.n } else { i };
        if i >= self.n { i - self.n } else { i }
    }

    /// This block's share of a buffer, or of a chunk of it.
    #[inline(always)]
    pub(crate) fn mine<T: Pod>(&self, whole: Sym<T>) -> Sym<T> {
        self.blocks.of(whole)
    }

    /// A part of the call, for traces: step `part` of how many, with a peer, and how many bytes.
    #[inline(always)]
    pub(crate) fn step(&self, name: &'static str, part: (usize, usize), peer: Rank<G>, bytes: usize) -> Span<'c> {
        let part = (part.0 as u32, part.1 as u32);
        self.ctx.span(Mark { name, part, peer: Some(peer.pe()), bytes: bytes as u64 })
    }

    /// A reduction in a team of one.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn keep<T: Pod>(&self, group: &impl Group, dst: Sym<T>, src: Sym<T>, op: impl Reducer<T>) {
        let (dst, src) = (self.mine(dst).at(self.own()), self.mine(src).at(self.own()));
        op.fold(group, self.ctx, [dst], [src], Stage::RAW.finish(1));
    }

    /// Part `i` of a buffer that has one part for each member.
    #[inline(always)]
    pub(crate) fn part<T: Pod>(&self, parts: Sym<T>, i: usize) -> Sym<T> {
        let each = parts.len() / self.n;
        parts.slice(i * each..(i + 1) * each)
    }

    /// How many exchanges of all with all this channel has seen.
    #[inline(always)]
    pub(crate) fn shots(&self) -> u64 {
        self.shots.get()
    }

    /// So many, from when the channel is given back.
    #[inline(always)]
    pub(crate) fn set_shots(&self, shots: u64) {
        self.shots.set(shots);
    }

    /// Waits for all members' blocks of this channel: what each did before is done for all after (MM-5). Up to eight members
    /// signal each other; more disseminate (Hensgen, Finkel and Manber, 1988), with release and acquire at every hop.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn meet(&self, group: &impl Group) {
        let head = self.view.head(self.channel);
        let meeting = self.ctx.load(head, MEETINGS).wrapping_add(1);
        let between = |to: Rank<G>, from: Rank<G>| {
            let mine = self.view.signal(self.channel, self.me, MEET);
            let theirs = self.view.signal(self.channel, from.index(), MEET);
            (mine.at(to).set(meeting), theirs.from_rank(from), meeting)
        };
        if self.n <= ONE_ROUND {
            self.ctx.exchange(group, self.n - 1, |i| between(self.after(i + 1), self.after(i + 1)));
        } else {
            let mut distance = 1;
            while distance < self.n {
                self.ctx.exchange(group, 1, |_| between(self.after(distance), self.after(self.n - distance)));
                distance *= 2;
            }
        }
        if group.leader() {
            self.ctx.store(head, MEETINGS, meeting);
        }
        group.sync();
    }
}
