//! A link between two members' blocks: a queue each way, and a signal each way, over any protocol.
//!
//! The sender writes a piece to the next place of the receiver's queue; the receiver uses it and gives the place back. In the
//! simple protocol a signal says that the piece is there, in the others its flags do. All counts only grow, and what each side
//! expects next lies in its own memory, so nothing is ever reset (NCCL's primitives work alike; Hu and others, "Demystifying
//! NCCL", 2025).

use congruent_device::{End, Ends, Group, Pe, Pod, Rank, Signal, Sym, Tag, Thread, ends};

use crate::Protocol;
use crate::call::Call;
use crate::plan::Layout;
use crate::reducer::{Keep, Reducer, Stage};

/// Signals of a link.
const DATA: usize = 0;
const CREDIT: usize = 1;
const KNOCK: usize = 2;

/// The signals of a link with a member.
#[inline(always)]
fn sent_to<G: Tag>(call: &Call<'_, G>, which: usize) -> Sym<Signal> {
    call.view.signal(call.channel, call.me, which)
}

#[inline(always)]
fn sent_by<G: Tag>(call: &Call<'_, G>, peer: Rank<G>, which: usize) -> Sym<Signal> {
    call.view.signal(call.channel, peer.index(), which)
}

/// Where the counts of a link are: pieces sent, pieces received, knocks given, knocks heard, since the plan was made.
const SENT: usize = 0;
const RECEIVED: usize = 1;
const KNOCKED: usize = 2;
const HEARD: usize = 3;

/// The way from this block to a member's, from when it is opened until it is closed. One is open to a member at a time.
pub(crate) struct Outgoing<'l, 'c, G> {
    call: &'l Call<'c, G>,
    pub(crate) peer: Rank<G>,
    sent: u64,
    knocked: u64,
}

/// The way from a member's block to this one, from when it is opened until it is closed. One is open from a member at a time.
pub(crate) struct Incoming<'l, 'c, G> {
    call: &'l Call<'c, G>,
    peer: Rank<G>,
    received: u64,
    heard: u64,
}

impl<'l, 'c, G: Tag> Outgoing<'l, 'c, G> {
    /// The way to a member.
    #[inline(always)]
    pub(crate) fn open(call: &'l Call<'c, G>, peer: Rank<G>) -> Self {
        let counters = call.view.counters(call.channel, peer.index());
        Self { call, peer, sent: call.ctx.load(counters, SENT), knocked: call.ctx.load(counters, KNOCKED) }
    }

    /// Remembers the counts, for the next call.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn close(self, group: &impl Group) {
        if group.leader() {
            let counters = self.call.view.counters(self.call.channel, self.peer.index());
            self.call.ctx.store(counters, SENT, self.sent);
            self.call.ctx.store(counters, KNOCKED, self.knocked);
        }
        // Who opens it next, in this call too, finds the new counts.
        group.sync();
    }

    /// Where the next piece, of `len` elements, goes: the queue's next place, once the receiver has given it back.
    #[inline(always)]
    #[track_caller]
    fn out<T: Pod>(&self, group: &impl Group, len: usize) -> End<T, G> {
        if self.sent >= Layout::DEPTH {
            let credit = sent_by(self.call, self.peer, CREDIT).from_rank(self.peer);
            self.call.ctx.wait_at_least(group, credit, self.sent - Layout::DEPTH + 1);
        }
        let (call, view) = (self.call, &self.call.view);
        let place = view.queue(call.channel, call.me, (self.sent % Layout::DEPTH) as usize);
        let renews = view.renews(self.sent, Layout::DEPTH);
        packed_or_plain(call, group, place, self.peer, len, view.flag(self.sent), renews)
    }

    /// Folds the sources into the next piece that this member sends, of `len` elements, and into `kept` of its own memory, which
    /// is empty where nothing is kept.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn send<T: Pod>(
        &mut self,
        group: &impl Group,
        len: usize,
        kept: Sym<T>,
        src: impl Ends<T>,
        op: impl Reducer<T>,
        stage: Stage,
    ) {
        let (call, out) = (self.call, self.out::<T>(group, len));
        // The fold needs memory that it can store to; the queue that this member has to itself is free.
        let (there, stages) = (out.memory(), out.is_plain() && !call.ctx.reaches(self.peer));
        let staged = call.view.queue(call.channel, call.me, 0).slice(..there.len());
        let near = if stages { End::plain(staged.cast().at(call.own())) } else { out };
        fold_into(call, group, near, kept, src, op, stage);
        self.sent += 1;
        let arrives = sent_to(self.call, DATA).at(self.peer).set(self.sent);
        if stages {
            call.ctx.put_signal(group, there, staged, arrives);
        } else if call.view.protocol() == Protocol::Simple {
            call.ctx.notify(group, arrives);
        }
    }

    /// Sends a piece as it is.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn pass<T: Pod>(&mut self, group: &impl Group, piece: Sym<T>) {
        self.send(group, piece.len(), Sym::empty(), [piece.at(self.call.own())], Keep, Stage::RAW);
    }

    /// Puts a piece where it belongs at the member, which has said that it may, and knocks.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn put<T: Pod>(&mut self, group: &impl Group, dst: Sym<T>, src: Sym<T>) {
        self.knocked += 1;
        let knock = sent_to(self.call, KNOCK).at(self.peer).set(self.knocked);
        self.call.ctx.put_signal(group, dst.at(self.peer), src, knock);
    }

    /// Tells the member that what this block did for it before is done.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn knock(&mut self, group: &impl Group) {
        self.knocked += 1;
        self.call.ctx.notify(group, sent_to(self.call, KNOCK).at(self.peer).set(self.knocked));
    }
}

impl<'l, 'c, G: Tag> Incoming<'l, 'c, G> {
    /// The way from a member.
    #[inline(always)]
    pub(crate) fn open(call: &'l Call<'c, G>, peer: Rank<G>) -> Self {
        let counters = call.view.counters(call.channel, peer.index());
        Self { call, peer, received: call.ctx.load(counters, RECEIVED), heard: call.ctx.load(counters, HEARD) }
    }

    /// Remembers the counts, for the next call.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn close(self, group: &impl Group) {
        if group.leader() {
            let counters = self.call.view.counters(self.call.channel, self.peer.index());
            self.call.ctx.store(counters, RECEIVED, self.received);
            self.call.ctx.store(counters, HEARD, self.heard);
        }
        group.sync();
    }

    /// The next piece that arrives, of `len` elements: awaited here in the simple protocol, otherwise when it is read.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn input<T: Pod>(&self, group: &impl Group, len: usize) -> End<T, G> {
        self.arrival(group).end(self.call, len)
    }

    /// The same, as single values.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn arrival(&self, group: &impl Group) -> Arrival {
        let (call, view) = (self.call, &self.call.view);
        if view.protocol() == Protocol::Simple {
            call.ctx.wait_at_least(group, sent_by(call, self.peer, DATA).from_rank(self.peer), self.received + 1);
        }
        let place = view.queue(call.channel, self.peer.index(), (self.received % Layout::DEPTH) as usize);
        Arrival { offset: place.offset(), flag: view.flag(self.received), sender: self.peer.pe() }
    }

    /// Gives the place of the piece back to the sender.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn release(&mut self, group: &impl Group) {
        self.received += 1;
        self.call.ctx.notify(group, sent_to(self.call, CREDIT).at(self.peer).set(self.received));
    }

    /// Receives a piece as it is.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn receive<T: Pod>(&mut self, group: &impl Group, piece: Sym<T>) {
        let input = self.input(group, piece.len());
        Keep.fold(group, self.call.ctx, [piece.at(self.call.own())], [input], Stage::RAW);
        self.release(group);
    }

    /// Waits for the member's next knock.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn hear(&mut self, group: &impl Group) {
        self.heard += 1;
        self.call.ctx.wait_at_least(group, sent_by(self.call, self.peer, KNOCK).from_rank(self.peer), self.heard);
    }
}

/// Elements of the largest piece.
#[inline(always)]
pub(crate) fn largest_piece<T, G: Tag>(call: &Call<'_, G>) -> usize {
    (call.view.piece_bytes() / size_of::<T>()).max(1)
}

/// Both ways between this block and a member's.
pub(crate) struct Link<'l, 'c, G> {
    pub(crate) peer: Rank<G>,
    to: Outgoing<'l, 'c, G>,
    from: Incoming<'l, 'c, G>,
}

impl<'l, 'c, G: Tag> Link<'l, 'c, G> {
    /// The link with a member.
    #[inline(always)]
    pub(crate) fn open(call: &'l Call<'c, G>, peer: Rank<G>) -> Self {
        Self { peer, to: Outgoing::open(call, peer), from: Incoming::open(call, peer) }
    }

    /// Remembers the counts, for the next call.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn close(self, group: &impl Group) {
        self.to.close(group);
        self.from.close(group);
    }

    /// See [`largest_piece`].
    #[inline(always)]
    pub(crate) fn most<T>(call: &Call<'_, G>) -> usize {
        largest_piece::<T, G>(call)
    }

    /// See [`Outgoing::pass`].
    #[inline(always)]
    #[track_caller]
    pub(crate) fn pass<T: Pod>(&mut self, group: &impl Group, piece: Sym<T>) {
        self.to.pass(group, piece);
    }

    /// See [`Outgoing::put`].
    #[inline(always)]
    #[track_caller]
    pub(crate) fn put<T: Pod>(&mut self, group: &impl Group, dst: Sym<T>, src: Sym<T>) {
        self.to.put(group, dst, src);
    }

    /// See [`Outgoing::knock`].
    #[inline(always)]
    #[track_caller]
    pub(crate) fn knock(&mut self, group: &impl Group) {
        self.to.knock(group);
    }

    /// See [`Incoming::input`].
    #[inline(always)]
    #[track_caller]
    pub(crate) fn input<T: Pod>(&self, group: &impl Group, len: usize) -> End<T, G> {
        self.from.input(group, len)
    }

    /// See [`Incoming::release`].
    #[inline(always)]
    #[track_caller]
    pub(crate) fn release(&mut self, group: &impl Group) {
        self.from.release(group);
    }

    /// See [`Incoming::receive`].
    #[inline(always)]
    #[track_caller]
    pub(crate) fn receive<T: Pod>(&mut self, group: &impl Group, piece: Sym<T>) {
        self.from.receive(group, piece);
    }

    /// See [`Incoming::hear`].
    #[inline(always)]
    #[track_caller]
    pub(crate) fn hear(&mut self, group: &impl Group) {
        self.from.hear(group);
    }
}

/// Where a piece is that arrives in a queue here, and with which flag. Of several, one is chosen value by value: a choice among
/// whole [`End`]s would be one among their addresses, and put them in memory.
#[derive(Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) offset: u64,
    pub(crate) flag: u32,
    pub(crate) sender: Pe,
}

impl Arrival {
    /// Its `len` elements.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn end<T: Pod, G: Tag>(self, call: &Call<'_, G>, len: usize) -> End<T, G> {
        let place = Sym::from_raw(self.offset, call.view.piece() as u64);
        packed_or_plain(call, &Thread, place, call.own(), len, self.flag, false).from_pe(self.sender)
    }
}

/// `len` elements at the start of a queue's or inbox's place, in the plan's protocol; with `renews`, what lies behind them
/// gets the flag too.
#[inline(always)]
#[track_caller]
pub(crate) fn packed_or_plain<T: Pod, G: Tag>(
    call: &Call<'_, G>,
    group: &impl Group,
    place: Sym<u8>,
    at: Rank<G>,
    len: usize,
    flag: u32,
    renews: bool,
) -> End<T, G> {
    let packed = match call.view.protocol() {
        Protocol::Simple => return End::plain(place.slice(..len * size_of::<T>()).cast::<T>().at(at)),
        Protocol::Ll => End::packets(place.cast().at(at), len, flag),
        Protocol::Ll128 => End::lines(place.cast().at(at), len, flag, call.view.line()),
    };
    if renews {
        let behind = place.slice(packed.memory().len()..).cast::<u64>();
        call.ctx.fill_at(group, behind.at(at), u64::from(flag));
    }
    packed
}

/// Folds the sources into `out` and, where it is not empty, into `kept`.
#[inline(always)]
#[track_caller]
fn fold_into<T: Pod, G: Tag>(
    call: &Call<'_, G>,
    group: &impl Group,
    out: End<T, G>,
    kept: Sym<T>,
    src: impl Ends<T>,
    op: impl Reducer<T>,
    stage: Stage,
) {
    // What is kept comes first: it is this member's own memory.
    let keeps = !kept.is_empty();
    let kept = kept.at(call.own());
    let dst = ends(1 + usize::from(keeps), move |i| if keeps && i == 0 { End::plain(kept) } else { out });
    op.fold(group, call.ctx, dst, src, stage);
}
