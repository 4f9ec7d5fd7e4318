//! Sends and receives between any two members, which all start together.
//!
//! The `k`-th that a member sends to another is what that one receives from it as its `k`-th, over all calls. For each, the
//! receiver posts where it belongs and how long it is; the sender compares, puts it there and says so. Transfers between
//! different members, and the two ways between the same, go on independently of each other, so no order of a list can lead to
//! a deadlock; those one way between the same two go one after the other.
//!
//! Only members that have something for each other talk to each other. It is no collective, and another member need not call
//! it.

use congruent_device::{Awaited, Ctx, Disagreement, Group, Pod, Rank, Signal, Sym, Thread, World, refuse};

use crate::descriptor::{Descriptor, Work};
use crate::names::Operation;
use crate::session::Coll;
use crate::transfers::{Listed, Transfer};
use crate::{Algorithm, Collective, Protocol, check};

/// Signals of a link beside those of `link.rs`.
const READY: usize = 4;
const SENT: usize = 5;

/// Words that a member posts here; those before them are `agree.rs`'s. Where it receives the next transfer from this one, how
/// many bytes, and how many bytes it has sent.
const PLACE: usize = 8;
const EXPECTED: usize = 9;
const GIVEN: usize = 10;

/// Words beside them that the channel's owner keeps: how many transfers it has sent to the member and received from it since the
/// plan was made, and which entries of the lists are next.
const SENDS: usize = 12;
const RECEIVES: usize = 13;
const NEXT_SEND: usize = 14;
const NEXT_RECEIVE: usize = 15;

/// Stands for no entry.
const NONE: u64 = u64::MAX;

/// [`send_recv`].
pub(crate) static SEND_RECV: Descriptor =
    Descriptor::new(Collective::SendRecv, Algorithm::DIRECT, &[Protocol::Simple], |call| Work {
        hops: 2.0,
        moved: call.bytes,
        ..Work::NONE
    });

/// Sends parts of `src` and receives to parts of `dst`, all at once. Returns when all that this member sends has left `src`
/// and all that it receives is in `dst`.
///
/// # Collective
/// Over the members that have something for each other; each transfer is in the lists of both, with the same count, and those
/// between the same two members in the same order. A member may send to itself. `dst` may be `src` where no part that is
/// received overlaps another part.
///
/// # Ordering
/// What a member stored to `src` before, in this block or before this kernel, is sent; on return this block's share of each
/// part is sent or received, and all may be overwritten.
///
/// # Panics
/// Where there is no such peer, a part reaches past its buffer, a part that is received overlaps another, what this member
/// sends to itself is not what it receives from itself.
#[inline(always)]
#[track_caller]
pub fn send_recv<T: Pod, B: Group>(coll: &mut Coll<'_, B>, dst: Sym<T>, src: Sym<T>, transfers: &Listed) {
    overlap(coll.group(), coll.ctx(), dst, src, transfers);
    let _call = coll.begin(Operation::SendRecvDirect, 0);
    let exchange = Exchange { coll, dst, src, transfers };
    let mut left = exchange.begin() - exchange.keep();
    while left > 0 {
        let coll = exchange.coll;
        let event = coll.ctx().wait_first(coll.group(), 2 * coll.n(), |event| exchange.awaited(event));
        let peer = coll.rank(event / 2);
        if event.is_multiple_of(2) {
            exchange.give(peer)
        } else {
            exchange.take(peer)
        }
        left -= 1;
    }
}

/// Panics where a part that is received overlaps another part.
#[inline(always)]
#[track_caller]
fn overlap<T: Pod>(group: &impl Group, ctx: &Ctx<'_>, dst: Sym<T>, src: Sym<T>, transfers: &Listed) {
    for i in group.strided(transfers.receives.len()) {
        let received = transfers.receive(ctx, i).of(dst);
        for other in 0..i {
            check::apart(received, transfers.receive(ctx, other).of(dst));
        }
        for other in 0..transfers.sends.len() {
            check::apart(received, transfers.send(ctx, other).of(src));
        }
    }
}

/// One call. What is next between this member and each other lies in the channel, where the block's leader keeps it.
struct Exchange<'e, 'c, T, B: Group> {
    coll: &'e Coll<'c, B>,
    dst: Sym<T>,
    src: Sym<T>,
    transfers: &'e Listed,
}

impl<T: Pod, B: Group> Exchange<'_, '_, T, B> {
    /// Finds the first transfer with each member and posts where it may send; gives how many transfers there are.
    #[inline(always)]
    #[track_caller]
    fn begin(&self) -> usize {
        let (sends, receives) = (self.transfers.sends.len(), self.transfers.receives.len());
        if self.coll.group().leader() {
            for member in 0..self.coll.n() {
                self.set(member, NEXT_SEND, NONE);
                self.set(member, NEXT_RECEIVE, NONE);
            }
            for i in (0..sends).rev() {
                self.set(self.peer_of(self.transfers.send(self.coll.ctx(), i)), NEXT_SEND, i as u64);
            }
            for i in (0..receives).rev() {
                self.set(self.peer_of(self.transfers.receive(self.coll.ctx(), i)), NEXT_RECEIVE, i as u64);
            }
            for i in 1..self.coll.n() {
                self.post(self.coll.after(i));
            }
        }
        self.coll.group().sync();
        sends + receives
    }

    /// Does what this member sends to itself; gives how many transfers that were.
    #[inline(always)]
    #[track_caller]
    fn keep(&self) -> usize {
        let (me, mut done) = (self.coll.me(), 0);
        loop {
            let (send, receive) = (self.next(me, NEXT_SEND), self.next(me, NEXT_RECEIVE));
            let (send, receive) = match (send, receive) {
                (None, None) => return done,
                (Some(send), Some(receive)) => (send, receive),
                _ => refuse!("what a member sends to itself, it receives from itself in the same call"),
            };
            let from = self.transfers.send(self.coll.ctx(), send).of(self.src);
            let to = self.transfers.receive(self.coll.ctx(), receive).of(self.dst);
            self.compare(self.coll.own(), true, from, to.bytes() as u64);
            self.coll.ctx().copy(self.coll.group(), self.coll.mine(to), self.coll.mine(from));
            if self.coll.group().leader() {
                self.advance(me, NEXT_SEND, send);
                self.advance(me, NEXT_RECEIVE, receive);
            }
            self.coll.group().sync();
            done += 2;
        }
    }

    /// The signal of event `event`, where that is awaited: twice a member's rank for its being ready to receive, and one more
    /// for its having sent.
    #[inline(always)]
    fn awaited(&self, event: usize) -> Option<(Awaited<Signal>, u64)> {
        let member = event / 2;
        let (next, count, signal) =
            if event.is_multiple_of(2) { (NEXT_SEND, SENDS, READY) } else { (NEXT_RECEIVE, RECEIVES, SENT) };
        if member == self.coll.me() || self.word(member, next) == NONE {
            return None;
        }
        let signal = self.coll.plan.signal(self.coll.channel(), member, signal);
        Some((signal.from_rank(self.coll.rank(member)), self.word(member, count).wrapping_add(1)))
    }

    /// Sends the next transfer to a member that is ready for it.
    #[inline(always)]
    #[track_caller]
    fn give(&self, peer: Rank<World>) {
        let (ctx, member) = (self.coll.ctx(), peer.index());
        let Some(i) = self.next(member, NEXT_SEND) else { return };
        let part = self.transfers.send(ctx, i).of(self.src);
        let (place, expected) = (self.word(member, PLACE), self.word(member, EXPECTED));
        let fits = part.bytes() as u64 == expected;
        if fits {
            let _step = self.coll.step("send", (i, self.transfers.sends.len()), peer.index(), part.bytes());
            let place = self.coll.mine(Sym::<T>::from_raw(place, part.len() as u64));
            ctx.put(self.coll.group(), place.at(peer), self.coll.mine(part));
        }
        // Where it does not fit, the other learns of it before this one ends.
        let sent = self.word(member, SENDS).wrapping_add(1);
        if self.coll.group().leader() {
            ctx.put_value(self.mine(GIVEN).at(peer), part.bytes() as u64);
        }
        ctx.notify(
            self.coll.group(),
            self.coll.plan.signal(self.coll.channel(), self.coll.me(), SENT).at(peer).set(sent),
        );
        self.compare(peer, true, part, expected);
        if self.coll.group().leader() {
            self.set(member, SENDS, sent);
            self.advance(member, NEXT_SEND, i);
        }
        self.coll.group().sync();
    }

    /// Takes the next transfer from a member that has sent it.
    #[inline(always)]
    #[track_caller]
    fn take(&self, peer: Rank<World>) {
        let member = peer.index();
        let Some(i) = self.next(member, NEXT_RECEIVE) else { return };
        let part = self.transfers.receive(self.coll.ctx(), i).of(self.dst);
        self.compare(peer, false, part, self.word(member, GIVEN));
        self.coll.group().sync();
        if self.coll.group().leader() {
            self.set(member, RECEIVES, self.word(member, RECEIVES).wrapping_add(1));
            self.advance(member, NEXT_RECEIVE, i);
            self.post(peer);
        }
        self.coll.group().sync();
    }

    /// Tells a member where the next transfer from it belongs, if there is one. By one thread.
    #[inline(always)]
    #[track_caller]
    fn post(&self, peer: Rank<World>) {
        let (ctx, member) = (self.coll.ctx(), peer.index());
        let next = self.word(member, NEXT_RECEIVE);
        if next != NONE {
            let part = self.transfers.receive(ctx, next as usize).of(self.dst);
            ctx.put_value(self.mine(PLACE).at(peer), part.offset());
            ctx.put_value(self.mine(EXPECTED).at(peer), part.bytes() as u64);
            let ready = self.coll.plan.signal(self.coll.channel(), self.coll.me(), READY).at(peer);
            ctx.notify(&Thread, ready.set(self.word(member, RECEIVES).wrapping_add(1)));
        }
    }

    /// Ends the kernel where a part is not as long as the other side's.
    #[inline(always)]
    #[track_caller]
    fn compare(&self, peer: Rank<World>, sends: bool, part: Sym<T>, theirs: u64) {
        let mine = part.bytes() as u64;
        let found = Disagreement::Count { peer: peer.pe(), sends, mine, theirs };
        self.coll.ctx().end_if(self.coll.group(), (mine != theirs).then_some(found));
    }

    /// The entry that is next with a member: the leader's word for all threads.
    #[inline(always)]
    #[track_caller]
    fn next(&self, member: usize, which: usize) -> Option<usize> {
        let next =
            self.coll.group().broadcast(if self.coll.group().leader() { self.word(member, which) } else { NONE });
        (next != NONE).then_some(next as usize)
    }

    /// Looks for the entry with a member that comes after entry `i`.
    #[inline(always)]
    #[track_caller]
    fn advance(&self, member: usize, which: usize, i: usize) {
        let ctx = self.coll.ctx();
        let with = |transfer: Transfer| transfer.peer == member as u64;
        let found = match which {
            NEXT_SEND => (i + 1..self.transfers.sends.len()).find(|&i| with(self.transfers.send(ctx, i))),
            _ => (i + 1..self.transfers.receives.len()).find(|&i| with(self.transfers.receive(ctx, i))),
        };
        self.set(member, which, found.map_or(NONE, |i| i as u64));
    }

    #[inline(always)]
    #[track_caller]
    fn peer_of(&self, transfer: Transfer) -> usize {
        if transfer.peer >= self.coll.n() as u64 {
            refuse!("there is no such peer in the team");
        }
        transfer.peer as usize
    }

    /// A word that a member posts here, or that the channel's owner keeps of it.
    #[inline(always)]
    fn word(&self, member: usize, which: usize) -> u64 {
        self.coll.ctx().load(self.coll.plan.post(self.coll.memory, member), which)
    }

    #[inline(always)]
    fn set(&self, member: usize, which: usize, value: u64) {
        self.coll.ctx().store(self.coll.plan.post(self.coll.memory, member), which, value);
    }

    /// A word that this member posts at others.
    #[inline(always)]
    fn mine(&self, which: usize) -> Sym<u64> {
        self.coll.plan.post(self.coll.memory, self.coll.me()).elem(which)
    }
}
