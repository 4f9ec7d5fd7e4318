//! A session: a group's hold on its channel of a plan, on which it calls collectives.

use core::ops::Deref;

use bytemuck::Zeroable;
use congruent_device::{
    Bound, Ctx, Exchange, Group, Keep, Kept, Mark, Operand, Operands, Pe, Pod, Rank, Reducer, Signal, Span, Sym, Team,
    World, kernel_arg, refuse,
};

use crate::names::Operation;
use crate::node::Node;
use crate::plan::{COUNTERS, PlanView};
use crate::share::Share;

/// Instead of the count of exchanges, while a session uses the channel: this, and the number of its [`Operation`] more.
pub(crate) const BUSY: u64 = 1 << 63;
/// Instead of it, where the launch is ending.
const ENDING: u64 = BUSY - 1;
/// Instead of it, where the block has a session already.
const NESTED: u64 = BUSY - 2;

/// Words of a channel's head. The first says too whose turn it is: one access takes the channel and gets the count.
pub(crate) const EXCHANGES: usize = 0;
pub(crate) const BARRIERS: usize = 1;

/// Up to this size a team meets in one round, all with all; a larger one in `log n` rounds.
pub(crate) const ONE_ROUND: usize = 8;

/// A group's session on a plan, from [`PlanView::enter`] until it is dropped: group, context, team and channel, bound once.
/// Collectives are called on it, one after the other. A block has one session at a time.
pub struct Coll<'c, B: Group> {
    bound: Bound<'c, B>,
    state: B::Kept<State>,
}

kernel_arg! {
    /// What all threads have in common.
    #[doc(hidden)]
    pub struct State {
        pub(crate) plan: PlanView,
        pub(crate) n: u32,
        pub(crate) me: u32,
        pub(crate) channel: u32,
        /// This block, and how many share the work.
        pub(crate) block: u32,
        pub(crate) blocks: u32,
        /// In which form data goes: that of an [`Operand`].
        pub(crate) form: u32,
        /// How many exchanges of all with all this channel has seen.
        pub(crate) exchanges: u64,
        /// What the channel's head has, as far as the leader knows.
        published: u64,
        /// Where the channel's memory is.
        pub(crate) memory: u64,
        /// The exchange that is under way.
        pub(crate) exchange: Exchange,
        /// Destination and source of every collective of the session, where it is for [calls that are all the same](PlanView::repeat):
        /// offsets and lengths, in elements.
        buffers: [[u64; 2]; 2],
        /// Destination and source of the collective that is under way: likewise.
        dst: [u64; 2],
        src: [u64; 2],
        /// How many elements chunks or parts have, and a block's shares of them.
        chunks: [u64; 2],
        /// What an exchange with a partner gives, what it combines with what comes, and where that goes: likewise.
        give: [u64; 2],
        own: [u64; 2],
        to: [u64; 2],
        /// Where this member stands in the two trees of an all-reduce.
        node_a: Node,
        node_b: Node,
        pub(crate) links: [LinkState; 3],
    }
}

/// A link between this block and a member's, while it is open. Counts are since the plan was made.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct LinkState {
    pub(crate) rank: u32,
    pub(crate) pe: u32,
    /// Slots that this side has sent, and received; signals without a slot that it has sent, and awaited.
    pub(crate) counts: [u64; COUNTERS],
}

impl LinkState {
    const NONE: Self = Self { rank: 0, pe: 0, counts: [0; COUNTERS] };

    #[inline(always)]
    pub(crate) fn peer(&self) -> Rank<World> {
        Rank::new(self.rank, Pe::new(self.pe))
    }
}

impl<B: Group> Deref for Coll<'_, B> {
    type Target = State;
    #[inline(always)]
    fn deref(&self) -> &State {
        &self.state
    }
}

impl PlanView {
    /// Begins a session: takes the group's channel of the plan. The group's slot is its block's, unless the plan is for a group
    /// [alone](PlanView::alone).
    ///
    /// # Panics
    /// Where the plan has no slot for the block, another group holds the slot's channel, or the block has a session already.
    #[inline(always)]
    #[track_caller]
    pub fn enter<'c, B: Group>(&self, group: &B, ctx: &'c Ctx<'c>) -> Coll<'c, B> {
        self.session(group, ctx, None)
    }

    /// A session of so many calls of a collective with the same buffers, as fixed kernels have it: no register of a GPU holds them from
    /// one call to the next.
    ///
    /// # Panics
    /// As [`enter`](PlanView::enter), and where the collective does.
    #[inline(always)]
    #[track_caller]
    pub fn repeat<'c, T: Pod, B: Group>(
        &self,
        group: &B,
        ctx: &'c Ctx<'c>,
        times: u32,
        (dst, src): (Sym<T>, Sym<T>),
        call: impl Fn(&mut Coll<'c, B>, Sym<T>, Sym<T>),
    ) {
        let mut coll = self.session(group, ctx, Some([words(dst), words(src)]));
        for _ in 0..times {
            let [dst, src] = coll.buffers;
            call(&mut coll, kept(dst), kept(src));
        }
    }

    /// Without buffers nothing is stored for them: zeros would be on the stack of a kernel with several sessions.
    #[inline(always)]
    #[track_caller]
    fn session<'c, B: Group>(&self, group: &B, ctx: &'c Ctx<'c>, buffers: Option<[[u64; 2]; 2]>) -> Coll<'c, B> {
        let team = ctx.team(self.team);
        let (channel, blocks) = self.channel_of(ctx.block_index(), ctx.blocks());
        let memory = self.memory(channel);
        let exchanges =
            if group.leader() { take(ctx, self.head(memory), B::IS_BLOCK, self.abort_aware == 1) } else { 0 };
        let blank = State {
            plan: *self,
            n: team.size() as u32,
            me: team.me().index() as u32,
            channel: channel as u32,
            block: blocks.index as u32,
            blocks: blocks.count as u32,
            form: self.form(),
            exchanges: 0,
            published: BUSY,
            memory,
            exchange: Exchange::NONE,
            buffers: buffers.unwrap_or([[0; 2]; 2]),
            dst: [0; 2],
            src: [0; 2],
            chunks: [0; 2],
            give: [0; 2],
            own: [0; 2],
            to: [0; 2],
            node_a: Node::NONE,
            node_b: Node::NONE,
            links: [LinkState::NONE; 3],
        };
        let State { plan, n, me, channel, block, blocks, form, published, memory, .. } = blank;
        // The rest is set where it is used.
        let state = B::Kept::<State>::new(group, exchanges, blank, |state, exchanges| {
            (state.plan, state.n, state.me, state.channel) = (plan, n, me, channel);
            (state.block, state.blocks, state.form, state.exchanges) = (block, blocks, form, exchanges);
            (state.published, state.memory) = (published, memory);
            if let Some(buffers) = buffers {
                state.buffers = buffers;
            }
        });
        match state.exchanges {
            ENDING => ctx.end(),
            NESTED => refuse!("the block has a session already; drop it before the block enters a plan again"),
            BUSY.. => refuse!("two blocks use one slot of a plan at once; give each block a slot of its own"),
            _ => Coll { bound: Bound::new(group, ctx), state },
        }
    }
}

/// Takes a channel, by the group's leader: gives how many exchanges it has seen, or why it cannot be had.
#[cfg_attr(target_arch = "nvptx64", inline(never))]
#[track_caller]
fn take(ctx: &Ctx<'_>, head: Sym<u64>, is_block: bool, abort_aware: bool) -> u64 {
    if abort_aware && ctx.aborted() {
        return ENDING;
    }
    if is_block && ctx.set_in_session(true) {
        return NESTED;
    }
    let exchanges = ctx.swap_own(head.elem(EXCHANGES), BUSY);
    // A session that was given up has not given its channel back.
    if exchanges >= BUSY && ctx.aborted() { ENDING } else { exchanges }
}

impl<B: Group> Drop for Coll<'_, B> {
    /// Gives the channel back. A kernel that unwinds keeps it: what it was doing is told by it, and nobody may take it after.
    #[inline(always)]
    fn drop(&mut self) {
        if !self.ctx().unwinds() {
            self.give_back();
        }
    }
}

impl<'c, B: Group> Coll<'c, B> {
    #[inline(always)]
    pub(crate) fn group(&self) -> &B {
        self.bound.group()
    }

    #[inline(always)]
    pub(crate) fn ctx(&self) -> &'c Ctx<'c> {
        self.bound.ctx()
    }

    /// How many members.
    #[inline(always)]
    pub(crate) fn n(&self) -> usize {
        self.n as usize
    }

    /// This member.
    #[inline(always)]
    pub(crate) fn me(&self) -> usize {
        self.me as usize
    }

    #[inline(always)]
    pub(crate) fn channel(&self) -> usize {
        self.channel as usize
    }

    #[inline(always)]
    pub(crate) fn team(&self) -> Team<'c, World> {
        self.ctx().known_team(self.plan.team)
    }

    /// Member `i`.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn rank(&self, i: usize) -> Rank<World> {
        self.team().rank(i)
    }

    /// The rank at distance `i` after this one, which is below `n`.
    #[inline(always)]
    pub(crate) fn after(&self, i: usize) -> Rank<World> {
        self.rank(self.wrap(self.me() + i))
    }

    /// This rank.
    #[inline(always)]
    pub(crate) fn own(&self) -> Rank<World> {
        self.plan.team.own(self.ctx().pe())
    }

    /// `i` modulo the members, for `i` below three times as many.
    #[inline(always)]
    pub(crate) fn wrap(&self, i: usize) -> usize {
        let n = self.n();
        let i = if i >= n { i - n } else { i };
        if i >= n { i - n } else { i }
    }

    /// Changes what all threads have in common. The group has met since it looked at that, and meets before this returns.
    #[inline(always)]
    pub(crate) fn set(&mut self, change: impl FnOnce(&mut State)) {
        self.change(change);
        self.group().sync();
    }

    /// The same, where the group meets behind it, before it looks at that again.
    #[inline(always)]
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut State)) {
        let group = *self.bound.group();
        self.state.change(&group, change);
    }

    /// Meets where every thread is to see, in memory, what the leader has stored: who changes the state looks there.
    #[inline(always)]
    pub(crate) fn meet_unless_by_leader(&self) {
        if const { !<B::Kept<State> as Kept<State>>::BY_LEADER } {
            self.group().sync();
        }
    }

    #[cfg_attr(target_arch = "nvptx64", inline(never))]
    fn give_back(&self) {
        // Others of the group may still ask for the state. Behind this none but the leader does, who writes the next session's.
        self.group().sync();
        if self.group().leader() {
            self.publish(self.exchanges);
            if B::IS_BLOCK {
                self.ctx().set_in_session(false);
            }
        }
    }

    /// Stores in the channel's head what is done with it. By the group's leader.
    #[cfg_attr(target_arch = "nvptx64", inline(never))]
    fn publish(&self, word: u64) {
        self.ctx().store(self.plan.head(self.memory), EXCHANGES, word);
    }

    /// Stores there which collective begins, unless the one before was of its kind.
    #[cfg_attr(target_arch = "nvptx64", inline(never))]
    fn publish_begun(&mut self, word: u64) {
        if self.group().leader() && self.published != word {
            self.publish(word);
            self.change(|state| state.published = word);
        }
    }

    /// Begins a collective, as faults and traces name it.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn begin(&mut self, operation: Operation, bytes: usize) -> Span<'c> {
        self.publish_begun(BUSY + operation as u64);
        self.ctx().span(Mark { bytes: bytes as u64, ..Mark::new(operation.name()) })
    }

    /// Keeps destination and source of a collective, so that no register of a GPU holds them through its loops. The group meets behind it.
    #[inline(always)]
    pub(crate) fn keep<T: Pod>(&mut self, dst: Sym<T>, src: Sym<T>) {
        self.change(|state| (state.dst, state.src) = (words(dst), words(src)));
    }

    /// Keeps how a buffer is divided: into chunks or parts of so many elements, and each of these among the blocks. A GPU divides once, and
    /// not at every step. The group meets behind it.
    #[cfg_attr(target_arch = "nvptx64", inline(never))]
    pub(crate) fn keep_chunks<T: Pod>(&mut self, each: usize) {
        self.change(|state| {
            state.chunks = Share::lengths::<T>(each, state.blocks as usize).map(|length| length as u64)
        });
    }

    /// This block's share of chunk or part `i` of a buffer, as was kept.
    #[inline(always)]
    pub(crate) fn kept_chunk<T: Pod>(&self, whole: Sym<T>, i: usize) -> Sym<T> {
        Share::of_chunk(self.block as usize, whole, i, self.chunks.map(|length| length as usize))
    }

    /// The same of what an exchange with a partner gives, of this member's part in it, and of where the result goes.
    #[inline(always)]
    pub(crate) fn keep_parts<T: Pod>(&mut self, give: Sym<T>, own: Sym<T>, to: Sym<T>) {
        self.change(|state| (state.give, state.own, state.to) = (words(give), words(own), words(to)));
    }

    /// Keeps where this member stands in the two trees of an all-reduce: it takes a while to find out. The group meets behind it.
    #[inline(always)]
    pub(crate) fn keep_nodes(&mut self) {
        self.change(|state| {
            let (me, n) = (state.me as usize, state.n as usize);
            (state.node_a, state.node_b) = (Node::of_two(0, me, n), Node::of_two(1, me, n));
        });
    }

    /// Where this member stands in one of the two trees, which was kept.
    #[inline(always)]
    pub(crate) fn node(&self, tree: usize) -> Node {
        if tree == 0 { self.node_a } else { self.node_b }
    }

    /// The destination that was kept, of the same type.
    #[inline(always)]
    pub(crate) fn dst<T: Pod>(&self) -> Sym<T> {
        kept(self.dst)
    }

    /// The source that was kept, of the same type.
    #[inline(always)]
    pub(crate) fn src<T: Pod>(&self) -> Sym<T> {
        kept(self.src)
    }

    /// What was kept of an exchange with a partner, of the same type: what it gives.
    #[inline(always)]
    pub(crate) fn give<T: Pod>(&self) -> Sym<T> {
        kept(self.give)
    }

    /// This member's part in it.
    #[inline(always)]
    pub(crate) fn own_part<T: Pod>(&self) -> Sym<T> {
        kept(self.own)
    }

    /// Where the result goes.
    #[inline(always)]
    pub(crate) fn to<T: Pod>(&self) -> Sym<T> {
        kept(self.to)
    }

    /// A part of a collective, for traces: step `part` of how many, with a member, and how many bytes.
    #[inline(always)]
    pub(crate) fn step(&self, name: &'static str, part: (usize, usize), peer: usize, bytes: usize) -> Span<'c> {
        let part = (part.0 as u32, part.1 as u32);
        self.ctx().span_of(|| Mark { name, part, peer: Some(self.rank(peer).pe()), bytes: bytes as u64 })
    }

    /// This block's share of a buffer, or of a chunk of it.
    #[inline(always)]
    pub(crate) fn mine<T: Pod>(&self, whole: Sym<T>) -> Sym<T> {
        // A division of a GPU is a hundred cycles, and a function for itself.
        if self.blocks == 1 { whole } else { self.share(whole) }
    }

    #[cfg_attr(target_arch = "nvptx64", inline(never))]
    fn share<T: Pod>(&self, whole: Sym<T>) -> Sym<T> {
        Share::new(self.block as usize, self.blocks as usize).of(whole)
    }

    /// Part `i` of a buffer that has one part for each member.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn part<T: Pod>(&self, parts: Sym<T>, i: usize) -> Sym<T> {
        let each = self.divided(parts.len());
        parts.slice(i * each..(i + 1) * each)
    }

    /// How many elements each member's part of so many has. A GPU divides by a long function.
    #[cfg_attr(target_arch = "nvptx64", inline(never))]
    pub(crate) fn divided(&self, elements: usize) -> usize {
        elements / self.n()
    }

    /// This block's share of chunk `i` of a buffer that is divided among the members.
    #[inline(always)]
    pub(crate) fn chunk<T: Pod>(&self, whole: Sym<T>, i: usize) -> Sym<T> {
        Share::new(self.block as usize, self.blocks as usize).of_chunks(whole, i, self.n())
    }

    /// This member's elements, as an operand.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn operand<T: Pod>(&self, own: Sym<T>) -> Operand {
        self.ctx().operand(own.at(self.own()))
    }

    /// The same range of every member, in rank order.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn of_all<T: Pod>(&self, range: Sym<T>) -> impl Operands {
        self.ctx().places(self.n(), move |i| range.at(self.rank(i)))
    }

    /// This member's elements, as the only source or destination of a fold.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn only<T: Pod>(&self, own: Sym<T>) -> impl Operands {
        self.ctx().places(1, move |_| own.at(self.own()))
    }

    #[inline(always)]
    #[track_caller]
    pub(crate) fn fold<T: Pod>(
        &self,
        bytes: usize,
        dst: impl Operands,
        src: impl Operands,
        op: impl Reducer<T>,
        members: usize,
    ) {
        self.ctx().fold(self.group(), bytes, dst, src, op, members);
    }

    /// A fold of what is not packed; the group meets in the barrier behind it.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn start_fold<T: Pod>(
        &self,
        bytes: usize,
        dst: impl Operands,
        src: impl Operands,
        op: impl Reducer<T>,
        members: usize,
    ) {
        self.ctx().start_fold(self.group(), bytes, dst, src, op, members);
    }

    /// Moves what the source has, which is one, to every destination.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn transfer(&self, bytes: usize, dst: impl Operands, src: impl Operands) {
        self.fold(bytes, dst, src, Keep, 0);
    }

    /// Copies this member's elements; the group meets behind it.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn start_copy<T: Pod>(&self, dst: Sym<T>, src: Sym<T>) {
        self.ctx().start_copy(self.group(), dst, src);
    }

    /// Copies this member's elements.
    #[cfg_attr(target_arch = "nvptx64", inline(never))]
    #[track_caller]
    pub(crate) fn copy<T: Pod>(&self, dst: Sym<T>, src: Sym<T>) {
        self.ctx().copy(self.group(), dst, src);
    }

    /// A reduction in a team of one.
    #[cfg_attr(target_arch = "nvptx64", inline(never))]
    #[cfg_attr(not(target_arch = "nvptx64"), inline(always))]
    #[track_caller]
    pub(crate) fn alone<T: Pod>(&self, dst: Sym<T>, src: Sym<T>, op: impl Reducer<T>) {
        let (dst, src) = (self.mine(dst), self.mine(src));
        self.fold(src.bytes(), self.only(dst), self.only(src), op, 1);
    }

    /// A word that a member posts here, or that the channel's owner keeps of it.
    #[cfg_attr(target_arch = "nvptx64", inline(never))]
    pub(crate) fn posted(&self, member: usize, word: usize) -> u64 {
        self.ctx().load(self.plan.post(self.memory, member), word)
    }

    /// Keeps such a word.
    #[cfg_attr(target_arch = "nvptx64", inline(never))]
    pub(crate) fn keep_posted(&self, member: usize, word: usize, value: u64) {
        self.ctx().store(self.plan.post(self.memory, member), word, value);
    }

    /// Posts a word at a member.
    #[cfg_attr(target_arch = "nvptx64", inline(never))]
    #[track_caller]
    pub(crate) fn post(&self, to: Rank<World>, word: usize, value: u64) {
        self.ctx().put_value(self.plan.post(self.memory, self.me()).elem(word).at(to), value);
    }

    /// Signal `which` that a member sets for this member's channel.
    #[inline(always)]
    pub(crate) fn signal_of(&self, member: usize, which: usize) -> Sym<Signal> {
        self.plan.signal(self.channel(), member, which)
    }

    /// The signal that this member sets for others' channels.
    #[inline(always)]
    pub(crate) fn signal(&self, which: usize) -> Sym<Signal> {
        self.signal_of(self.me(), which)
    }

    /// Waits for all members' blocks of this channel: what each did before is done for all after (MM-6). Up to eight members
    /// signal each other; more disseminate (Hensgen, Finkel and Manber, 1988), with release and acquire at every hop.
    #[cfg_attr(target_arch = "nvptx64", inline(never))]
    #[track_caller]
    pub(crate) fn barrier(&self) {
        let head = self.plan.head(self.memory);
        let count = self.ctx().load(head, BARRIERS).wrapping_add(1);
        self.group().sync();
        if self.group().leader() {
            // All have looked; and they look again only after they have met in an exchange.
            self.ctx().store(head, BARRIERS, count);
        }
        let signal = |to: Rank<World>| self.signal(crate::link::BARRIER).at(to).set(count);
        let wait = |from: Rank<World>| (self.signal_of(from.index(), crate::link::BARRIER).from_rank(from), count);
        let (ctx, group, n) = (self.ctx(), self.group(), self.n());
        if n <= ONE_ROUND {
            ctx.exchange_met(group, n - 1, |i| signal(self.after(i + 1)), |i| wait(self.after(i + 1)));
        } else {
            let mut distance = 1;
            while distance < n {
                ctx.exchange_met(group, 1, |_| signal(self.after(distance)), |_| wait(self.after(n - distance)));
                distance *= 2;
            }
        }
    }
}

/// A range, as a state has it.
#[inline(always)]
const fn words<T: Pod>(range: Sym<T>) -> [u64; 2] {
    [range.offset(), range.len() as u64]
}

#[inline(always)]
const fn kept<T: Pod>([offset, len]: [u64; 2]) -> Sym<T> {
    Sym::from_raw(offset, len)
}
