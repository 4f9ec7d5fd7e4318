//! What members' blocks send each other, step by step, over any protocol: the verbs of rings and trees.
//!
//! A link has a queue each way, and signals. The sender writes data to the next slot of the receiver's queue; the receiver uses it
//! and gives the slot back as a credit. In the simple protocol a signal says that the data is there, in the others its flags do. All
//! counts only grow, and what each side expects next lies in its own memory, so nothing is ever reset (NCCL's primitives work
//! alike; Hu and others, "Demystifying NCCL", 2025).
//!
//! What is *direct* goes, in the simple protocol, straight to where it belongs at the receiver, who has said that it may, or has sent
//! what was there, and a signal without a slot follows. Over the other protocols it goes through slots as well.

use congruent_device::{Group, Keep, Operand, PLAIN, Pe, Pod, Rank, Reducer, Sym, World, operands};

use crate::Protocol;
use crate::plan::Layout;
use crate::session::{Coll, LinkState};
use crate::step::{Link, Step};

/// Signals of a link.
const DATA: usize = 0;
const CREDIT: usize = 1;
const READY: usize = 2;
/// The signal by which members meet ([`Coll::barrier`]).
pub(crate) const BARRIER: usize = 3;

/// Where the counts of a link are kept between sessions.
const SENT: usize = 0;
const RECEIVED: usize = 1;
const SIGNALLED: usize = 2;
const AWAITED: usize = 3;

/// An operand of a step, before it is looked up where it is.
struct Unplaced {
    memory: Sym<u8>,
    at: Rank<World>,
    form: u32,
    flag: u32,
    sender: Pe,
    is_partial: bool,
}

impl<B: Group> Coll<'_, B> {
    #[inline(always)]
    pub(crate) fn link(&self, link: Link) -> &LinkState {
        &self.links[link.index()]
    }

    /// Changes a link; the group meets behind it, before it looks at it.
    #[inline(always)]
    fn change_link(&mut self, link: Link, change: impl FnOnce(&mut LinkState)) {
        self.change(|state| change(&mut state.links[link.index()]));
    }

    /// Opens a link with a member, of which none is open that goes the same way. The group meets behind it.
    #[cfg_attr(target_arch = "nvptx64", inline(never))]
    #[track_caller]
    pub(crate) fn open(&mut self, link: Link, member: usize) {
        let (team, ctx, counters) = (self.team(), self.ctx(), self.plan.counters(self.memory, member));
        // By whoever changes it, which on a GPU is one thread.
        self.change_link(link, |state| {
            let (rank, pe) = (member as u32, team.rank(member).pe().raw());
            *state = LinkState {
                rank,
                pe,
                counts: [SENT, RECEIVED, SIGNALLED, AWAITED].map(|which| ctx.load(counters, which)),
            };
        });
    }

    /// Keeps the counts of a link for the next time. The group meets before it changes the link.
    #[cfg_attr(target_arch = "nvptx64", inline(never))]
    #[track_caller]
    pub(crate) fn close(&mut self, link: Link) {
        self.keep_counts(link, &[SENT, SIGNALLED, RECEIVED, AWAITED]);
    }

    /// The same, of a link that has only sent: another to the same member may have received.
    #[cfg_attr(target_arch = "nvptx64", inline(never))]
    #[track_caller]
    pub(crate) fn close_sender(&mut self, link: Link) {
        self.keep_counts(link, &[SENT, SIGNALLED]);
    }

    /// The same, of a link that has only received.
    #[cfg_attr(target_arch = "nvptx64", inline(never))]
    #[track_caller]
    pub(crate) fn close_receiver(&mut self, link: Link) {
        self.keep_counts(link, &[RECEIVED, AWAITED]);
    }

    #[inline(always)]
    #[track_caller]
    fn keep_counts(&self, link: Link, which: &[usize]) {
        if self.group().leader() {
            let state = self.link(link);
            let (ctx, counters) = (self.ctx(), self.plan.counters(self.memory, state.rank as usize));
            which.iter().for_each(|&which| ctx.store(counters, which, state.counts[which]));
        }
        // Who opens it next finds the new counts.
        self.meet_unless_by_leader();
    }

    /// Signals the member that what this block did for it before is done. The group has met since then.
    #[cfg_attr(target_arch = "nvptx64", inline(never))]
    #[track_caller]
    pub(crate) fn signal_ready(&mut self, link: Link) {
        self.change_link(link, |state| state.counts[SIGNALLED] += 1);
        self.ctx().notify_by_leader(self.group(), || {
            let state = self.link(link);
            self.signal(READY).at(state.peer()).set(state.counts[SIGNALLED])
        });
    }

    /// Waits for the member to [`signal_ready`](Coll::signal_ready).
    #[cfg_attr(target_arch = "nvptx64", inline(never))]
    #[track_caller]
    pub(crate) fn wait_ready(&mut self, link: Link) {
        self.change_link(link, |state| state.counts[AWAITED] += 1);
        self.ctx().wait_by_leader(self.group(), || {
            let state = self.link(link);
            (self.signal_of(state.rank as usize, READY).from_rank(state.peer()), state.counts[AWAITED])
        });
    }

    /// Says that member `from` may write here directly, and awaits the same of member `to`, where that is how data goes.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn ready(&mut self, from: Option<usize>, to: Option<usize>) {
        if self.plan.protocol() != Protocol::Simple {
            return;
        }
        if let Some(from) = from {
            self.signal_member(from);
        }
        if let Some(to) = to {
            self.wait_member(to);
        }
    }

    /// Signals a member without an open link.
    #[cfg_attr(target_arch = "nvptx64", inline(never))]
    #[track_caller]
    pub(crate) fn signal_member(&mut self, member: usize) {
        self.group().sync();
        self.open(Link::A, member);
        self.signal_ready(Link::A);
        self.close_sender(Link::A);
    }

    /// Waits for a member without an open link.
    #[cfg_attr(target_arch = "nvptx64", inline(never))]
    #[track_caller]
    pub(crate) fn wait_member(&mut self, member: usize) {
        self.open(Link::A, member);
        self.wait_ready(Link::A);
        self.close_receiver(Link::A);
    }

    /// What goes in round `round` of a range that takes several: a slot's worth of elements.
    #[inline(always)]
    pub(crate) fn cut<T: Pod>(&self, range: Sym<T>, round: usize) -> Sym<T> {
        let most = self.plan.slot_elements::<T>();
        range.slice((round * most).min(range.len())..((round + 1) * most).min(range.len()))
    }

    /// What goes in round `round` of this block's share of a buffer's chunk or part, as the buffer's division was kept: that of the member so
    /// many ranks before this one. Loops count in 32 bits, which are one register of a GPU.
    #[cfg_attr(target_arch = "nvptx64", inline(never))]
    pub(crate) fn chunk_in<T: Pod>(&self, whole: Sym<T>, back: u32, round: u32) -> Sym<T> {
        self.cut(self.kept_chunk(whole, self.before(back as usize)), round as usize)
    }

    /// How many rounds this block's share of a range takes.
    #[inline(always)]
    pub(crate) fn rounds_of<T: Pod>(&self, range: Sym<T>) -> usize {
        self.mine(range).len().div_ceil(self.plan.slot_elements::<T>())
    }

    /// Whether round `round` moves anything: the first of a buffer's chunks, as its division was kept, is no shorter than another.
    #[inline(always)]
    pub(crate) fn has_round<T: Pod>(&self, whole: Sym<T>, round: u32) -> bool {
        !self.chunk_in(whole, self.me, round).is_empty()
    }

    /// The member so many ranks before this one, at most `n`.
    #[inline(always)]
    pub(crate) fn before(&self, back: usize) -> usize {
        self.wrap(self.me() + self.n() - back)
    }

    /// Puts elements where they belong at the member, which has said that it may, and signals it.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn put<T: Pod>(&mut self, link: Link, dst: Sym<T>, src: Sym<T>) {
        self.change_link(link, |state| state.counts[SIGNALLED] += 1);
        self.group().sync();
        let state = self.link(link);
        let signal = self.signal(READY).at(state.peer()).set(state.counts[SIGNALLED]);
        self.ctx().put_signal(self.group(), dst.at(state.peer()), src, signal);
    }

    /// A step on elements without arithmetic; see [`step_of`](Coll::step_of).
    #[inline(always)]
    #[track_caller]
    pub(crate) fn moves<T: Pod>(&mut self, step: Step, elements: Sym<T>) {
        let elements = elements.cast::<u8>();
        self.step_of(step.unchanged(), elements, elements, Keep);
    }

    /// Does a step on at most a slot's worth of elements: waits for slots and data, folds what it receives and `src` into `dst` and
    /// what it sends, and says what is done. Nothing where there are no elements. Both lengths are the same where both are used.
    ///
    /// One function for all verbs, as NCCL's `genericOp` is: a kernel holds it once for each operator.
    #[cfg_attr(target_arch = "nvptx64", inline(never))]
    #[cfg_attr(not(target_arch = "nvptx64"), inline(always))]
    #[track_caller]
    pub(crate) fn step_of<T: Pod>(&mut self, step: Step, dst: Sym<T>, src: Sym<T>, op: impl Reducer<T>) {
        // A slot's length is a number of 32 bits.
        let bytes = if step.has(Step::SRC) { src.bytes() } else { dst.bytes() } as u32;
        if bytes == 0 {
            return;
        }
        self.wait_peers(step, bytes);
        let failed = self.fold_step(step, dst, src, op);
        self.signal_peers(step, dst.offset(), bytes, failed);
    }

    /// The start of a step: waits for slots and data.
    #[cfg_attr(target_arch = "nvptx64", inline(never))]
    #[cfg_attr(not(target_arch = "nvptx64"), inline(always))]
    #[track_caller]
    fn wait_peers(&self, step: Step, bytes: u32) {
        let (simple, direct_receive, direct_send) = self.ways(step);
        let credits = if direct_send { 0 } else { step.sends() };
        let data = if simple { step.receives() } else { 0 };
        let first = credits.count_ones() as usize;
        self.ctx().wait_each(self.group(), first + data.count_ones() as usize, |i| {
            let (state, which, count) = match i.checked_sub(first) {
                None => self.freed(Link::nth(i, credits))?,
                Some(i) => self.arrived(Link::nth(i, data), direct_receive),
            };
            Some((self.signal_of(state.rank as usize, which).from_rank(state.peer()), count))
        });
        if !simple {
            Link::each(step.sends()).for_each(|link| self.clean(link, bytes as usize));
        }
    }

    /// Whether data goes without flags of its own, and then whether a step receives and sends directly.
    #[inline(always)]
    fn ways(&self, step: Step) -> (bool, bool, bool) {
        let simple = self.plan.protocol() == Protocol::Simple;
        (simple, simple && step.has(Step::DIRECT_RECEIVE), simple && step.has(Step::DIRECT_SEND))
    }

    /// The fold of a step. True where what this thread awaited has not come; the group meets behind it.
    #[cfg_attr(target_arch = "nvptx64", inline(never))]
    #[cfg_attr(not(target_arch = "nvptx64"), inline(always))]
    #[track_caller]
    fn fold_step<T: Pod>(&self, step: Step, dst: Sym<T>, src: Sym<T>, op: impl Reducer<T>) -> bool {
        let (_, direct_receive, direct_send) = self.ways(step);
        let own = if step.has(Step::SRC) { src } else { dst };
        let bytes = own.bytes();
        // A send through a proxy is from what is sent as it is, or else from the queue that this member has to itself.
        let proxied = self.proxied(step);
        let keeps = step.has(Step::DST) && (!direct_receive || step.has(Step::SRC));
        let stages = proxied != 0 && !direct_send && !step.has(Step::SENDS_OWN);
        let receives = if direct_receive { 0 } else { step.receives() };
        let stored = step.sends() & !proxied;
        let received = receives.count_ones() as usize;
        let uses_own = step.has(Step::SRC) || received == 0;
        let sends = stored.count_ones() as usize;
        let (srcs, dsts) = (received + usize::from(uses_own), sends + usize::from(keeps) + usize::from(stages));
        dsts > 0 && {
            // Each is chosen first and looked up then, so that a GPU's threads, which take one each, do that together.
            let from = operands(srcs, |i| {
                let first = step.has(Step::SRC_FIRST);
                let is_own = uses_own && i == if first { 0 } else { srcs - 1 };
                let it = if is_own {
                    Unplaced { is_partial: step.has(Step::SRC_PARTIAL), ..self.own_bytes(own) }
                } else {
                    let link = Link::nth(i - usize::from(uses_own && first), receives);
                    Unplaced { is_partial: !step.has(Step::CONTRIBUTIONS), ..self.received(link) }
                };
                self.operand_of(it, bytes)
            });
            let to = operands(dsts, |i| {
                let (kept, staged) = (usize::from(keeps), usize::from(stages));
                let it = if i < kept {
                    self.own_bytes(dst)
                } else if i < kept + staged {
                    self.own_bytes(self.staging(bytes))
                } else {
                    let link = Link::nth(i - kept - staged, stored);
                    if direct_send {
                        Unplaced { at: self.link(link).peer(), ..self.own_bytes(dst) }
                    } else {
                        self.sent(link)
                    }
                };
                self.operand_of(it, bytes)
            });
            let members = if step.has(Step::FINISHED) { self.n() } else { 0 };
            self.ctx().fold_unmet(self.group(), bytes, to, from, op, members)
        }
    }

    /// The end of a step: counts what came and went, and signals the members. `dst` is an offset. Lanes read the counts until
    /// the group meets again.
    #[cfg_attr(target_arch = "nvptx64", inline(never))]
    #[cfg_attr(not(target_arch = "nvptx64"), inline(always))]
    #[track_caller]
    fn signal_peers(&mut self, step: Step, dst: u64, bytes: u32, failed: bool) {
        let (simple, direct_receive, direct_send) = self.ways(step);
        // Others may still fold, of what they have in hand.
        self.change(|state| {
            let (sent, received) =
                (if direct_send { SIGNALLED } else { SENT }, if direct_receive { AWAITED } else { RECEIVED });
            Link::each(step.sends()).for_each(|link| state.links[link.index()].counts[sent] += 1);
            Link::each(step.receives()).for_each(|link| state.links[link.index()].counts[received] += 1);
        });
        self.ctx().join(self.group(), failed);
        let (proxied, credits) = (self.proxied(step), if direct_receive { 0 } else { step.receives() });
        for link in Link::each(proxied) {
            let is_at_dst = direct_send || step.has(Step::SENDS_OWN);
            let from = if is_at_dst { Sym::from_raw(dst, bytes.into()) } else { self.staging(bytes as usize) };
            self.put_sent(link, direct_send, from);
        }
        let sent = if simple { step.sends() & !proxied } else { 0 };
        let first = sent.count_ones() as usize;
        self.ctx().notify_each_met(self.group(), first + credits.count_ones() as usize, |i| {
            let (state, which, count) = match i.checked_sub(first) {
                None => self.sent_count(Link::nth(i, sent), direct_send),
                Some(i) => {
                    let state = self.link(Link::nth(i, credits));
                    (state, CREDIT, state.counts[RECEIVED])
                }
            };
            self.signal(which).at(state.peer()).set(count)
        });
    }

    /// Which signal of a link says that the queue to a member has a free slot, and its count. `None` where all were free.
    #[inline(always)]
    fn freed(&self, link: Link) -> Option<(&LinkState, usize, u64)> {
        let state = self.link(link);
        let free = state.counts[SENT].checked_sub(Layout::DEPTH)?;
        Some((state, CREDIT, free + 1))
    }

    /// Which signal of a link says that data from a member is there, in a slot or where it belongs, and its count.
    #[inline(always)]
    fn arrived(&self, link: Link, direct: bool) -> (&LinkState, usize, u64) {
        let state = self.link(link);
        if direct { (state, READY, state.counts[AWAITED] + 1) } else { (state, DATA, state.counts[RECEIVED] + 1) }
    }

    /// Writes the rest of the slot that is next to a member, where the flags have wrapped around ([`PlanView::cleans`](crate::PlanView)).
    #[inline(always)]
    #[track_caller]
    fn clean(&self, link: Link, bytes: usize) {
        let state = self.link(link);
        if self.plan.cleans(state.counts[SENT], Layout::DEPTH) {
            let behind = self
                .slot_to(state.counts[SENT])
                .slice(self.operand_of(self.sent(link), bytes).extent()..)
                .cast::<u64>();
            self.ctx().start_fill_at(self.group(), behind.at(state.peer()), self.plan.flag(state.counts[SENT]).into());
        }
    }

    /// Which signal of a link says that data is there, and its count, once the counts have it.
    #[inline(always)]
    fn sent_count(&self, link: Link, direct: bool) -> (&LinkState, usize, u64) {
        let state = self.link(link);
        if direct { (state, READY, state.counts[SIGNALLED]) } else { (state, DATA, state.counts[SENT]) }
    }

    /// Sends data and its signal through the proxy, once the counts have it: the fold could not store it there.
    #[inline(always)]
    #[track_caller]
    fn put_sent(&self, link: Link, direct: bool, from: Sym<u8>) {
        let state = self.link(link);
        let to = if direct { from } else { self.slot_to(state.counts[SENT] - 1).slice(..from.len()) };
        let (_, which, count) = self.sent_count(link, direct);
        let signal = self.signal(which).at(state.peer()).set(count);
        self.ctx().put_signal_by_proxy(self.group(), to.at(state.peer()), from, signal);
    }

    /// The links that a step sends to through a proxy, a bit for each. Packets go to those only that are reached without.
    #[inline(always)]
    fn proxied(&self, step: Step) -> u32 {
        if !self.ctx().has_proxy() || self.plan.protocol() != Protocol::Simple {
            return 0;
        }
        let bit = |link: Link| u32::from(!self.ctx().reaches(self.link(link).peer())) << link.0;
        Link::each(step.sends()).fold(0, |proxied, link| proxied | bit(link))
    }

    /// Memory that sends through a proxy are staged in: the queue that this member has to itself.
    #[inline(always)]
    fn staging(&self, bytes: usize) -> Sym<u8> {
        self.slot_to(0).slice(..bytes)
    }

    /// The slot that this member's send number `step` goes to, at any member.
    #[inline(always)]
    fn slot_to(&self, step: u64) -> Sym<u8> {
        self.plan.slot(self.memory, self.me(), (step % Layout::DEPTH) as usize)
    }

    /// The slot that is next from a member.
    #[inline(always)]
    fn received(&self, link: Link) -> Unplaced {
        let state = self.link(link);
        let memory =
            self.plan.slot(self.memory, state.rank as usize, (state.counts[RECEIVED] % Layout::DEPTH) as usize);
        Unplaced {
            sender: state.peer().pe(),
            flag: self.plan.flag(state.counts[RECEIVED]),
            ..self.slot_of(memory, self.own())
        }
    }

    /// The slot that what is next to a member goes to.
    #[inline(always)]
    fn sent(&self, link: Link) -> Unplaced {
        let state = self.link(link);
        Unplaced {
            flag: self.plan.flag(state.counts[SENT]),
            ..self.slot_of(self.slot_to(state.counts[SENT]), state.peer())
        }
    }

    /// A slot, in the plan's protocol.
    #[inline(always)]
    fn slot_of(&self, memory: Sym<u8>, at: Rank<World>) -> Unplaced {
        Unplaced { memory, at, form: self.form, ..self.own_bytes(memory) }
    }

    /// This member's elements, as they are.
    #[inline(always)]
    fn own_bytes<T: Pod>(&self, own: Sym<T>) -> Unplaced {
        Unplaced {
            memory: own.cast(),
            at: self.own(),
            form: PLAIN,
            flag: 0,
            sender: self.own().pe(),
            is_partial: false,
        }
    }

    #[inline(always)]
    #[track_caller]
    fn operand_of(&self, it: Unplaced, bytes: usize) -> Operand {
        let operand = self.ctx().in_form(it.memory.at(it.at), bytes, it.form, it.flag);
        operand.from_pe(it.sender).partial(it.is_partial)
    }

    /// `bytes` bytes at the start of a slot of a queue or an inbox, in the plan's protocol.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn packed(&self, slot: Sym<u8>, at: Rank<World>, bytes: usize, flag: u32) -> Operand {
        self.ctx().in_form(slot.at(at), bytes, self.form, flag)
    }
}
