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
use crate::transfers::{self, Listed};
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
    let Listed { sends, receives } = *transfers;
    let transfers = Transfers { coll, dst, src, sends, receives };
    let mut left = transfers.begin() - transfers.keep();
    while left > 0 {
        let coll = transfers.coll;
        let event = coll.ctx().wait_first(coll.group(), 2 * coll.n(), |event| transfers.awaited(event));
        let peer = coll.rank(event / 2);
        if event.is_multiple_of(2) {
            transfers.give(peer)
        } else {
            transfers.take(peer)
        }
        left -= 1;
    }
    // What went through a proxy has left the source.
    transfers.coll.ctx().await_proxy(transfers.coll.group());
}

/// Panics where a part that is received overlaps another part.
#[inline(always)]
#[track_caller]
fn overlap<T: Pod>(group: &impl Group, ctx: &Ctx<'_>, dst: Sym<T>, src: Sym<T>, transfers: &Listed) {
    let Listed { sends, receives } = *transfers;
    for i in group.strided(receives.len()) {
        let received = transfers::part(ctx, receives, i, dst);
        for other in 0..i {
            check::apart(received, transfers::part(ctx, receives, other, dst));
        }
        for other in 0..sends.len() {
            check::apart(received, transfers::part(ctx, sends, other, src));
        }
    }
}

/// The transfers of one call. What is next between this member and each other lies in the channel, where the block's leader keeps it.
struct Transfers<'e, 'c, T, B: Group> {
    coll: &'e Coll<'c, B>,
    dst: Sym<T>,
    src: Sym<T>,
    sends: Sym<[u64; 3]>,
    receives: Sym<[u64; 3]>,
}

impl<T: Pod, B: Group> Transfers<'_, '_, T, B> {
    /// Finds the first transfer with each member and posts where it may send; gives how many transfers there are.
    #[inline(always)]
    #[track_caller]
    fn begin(&self) -> usize {
        let Self { coll, sends, receives, .. } = *self;
        if coll.group().leader() {
            for member in 0..coll.n() {
                coll.keep_posted(member, NEXT_SEND, NONE);
                coll.keep_posted(member, NEXT_RECEIVE, NONE);
            }
            self.find_first(sends, NEXT_SEND);
            self.find_first(receives, NEXT_RECEIVE);
            for i in 1..coll.n() {
                self.post(coll.after(i));
            }
        }
        coll.group().sync();
        sends.len() + receives.len()
    }

    /// Finds the first entry of a list with each member.
    #[inline(always)]
    #[track_caller]
    fn find_first(&self, list: Sym<[u64; 3]>, which: usize) {
        for i in (0..list.len()).rev() {
            let peer = transfers::peer(self.coll.ctx(), list, i);
            if peer >= self.coll.n() as u64 {
                refuse!("there is no such peer in the team");
            }
            self.coll.keep_posted(peer as usize, which, i as u64);
        }
    }

    /// Does what this member sends to itself; gives how many transfers that were.
    #[inline(always)]
    #[track_caller]
    fn keep(&self) -> usize {
        let coll = self.coll;
        let (me, mut done) = (coll.me(), 0);
        loop {
            let next = |which| self.next(coll.group(), me, which);
            let (send, receive) = (next(NEXT_SEND), next(NEXT_RECEIVE));
            let (send, receive) = match (send, receive) {
                (None, None) => return done,
                (Some(send), Some(receive)) => (send, receive),
                _ => refuse!("what a member sends to itself, it receives from itself in the same call"),
            };
            let from = transfers::part(coll.ctx(), self.sends, send, self.src);
            let to = transfers::part(coll.ctx(), self.receives, receive, self.dst);
            let differs = difference(coll.own(), true, from.bytes() as u64, to.bytes() as u64);
            if differs.is_none() {
                coll.start_copy(coll.mine(to), coll.mine(from));
            }
            coll.ctx().end_if(coll.group(), differs);
            if coll.group().leader() {
                self.advance(me, NEXT_SEND, send);
                self.advance(me, NEXT_RECEIVE, receive);
            }
            coll.group().sync();
            done += 2;
        }
    }

    /// The signal of event `event`, where that is awaited: twice a member's rank for its being ready to receive, and one more
    /// for its having sent.
    #[inline(always)]
    fn awaited(&self, event: usize) -> Option<(Awaited<Signal>, u64)> {
        let (coll, member) = (self.coll, event / 2);
        let (next, count, signal) =
            if event.is_multiple_of(2) { (NEXT_SEND, SENDS, READY) } else { (NEXT_RECEIVE, RECEIVES, SENT) };
        if member == coll.me() || coll.posted(member, next) == NONE {
            return None;
        }
        Some((coll.signal_of(member, signal).from_rank(coll.rank(member)), coll.posted(member, count).wrapping_add(1)))
    }

    /// Sends the next transfer to a member that is ready for it.
    #[inline(always)]
    #[track_caller]
    fn give(&self, peer: Rank<World>) {
        let (coll, member) = (self.coll, peer.index());
        let Some(i) = self.next(coll.group(), member, NEXT_SEND) else { return };
        let part = transfers::part(coll.ctx(), self.sends, i, self.src);
        let differs = difference(peer, true, part.bytes() as u64, coll.posted(member, EXPECTED));
        if coll.group().uniform(differs.is_none().into()) != 0 {
            let _step = coll.step("send", (i, self.sends.len()), member, part.bytes());
            let place = coll.mine(Sym::<T>::from_raw(coll.posted(member, PLACE), part.len() as u64));
            coll.ctx().put_nbi(coll.group(), place.at(peer), coll.mine(part));
        }
        // Where it does not fit, the other learns of it before this one ends.
        let sent = coll.posted(member, SENDS).wrapping_add(1);
        if coll.group().leader() {
            coll.post(peer, GIVEN, part.bytes() as u64);
        }
        coll.ctx().notify(coll.group(), coll.signal(SENT).at(peer).set(sent));
        if coll.group().leader() {
            coll.keep_posted(member, SENDS, sent);
            self.advance(member, NEXT_SEND, i);
        }
        coll.ctx().end_if(coll.group(), differs);
    }

    /// Takes the next transfer from a member that has sent it.
    #[inline(always)]
    #[track_caller]
    fn take(&self, peer: Rank<World>) {
        let (coll, member) = (self.coll, peer.index());
        let mut differs = None;
        // Who may send the next one says anew how long that is: nobody else looks.
        if coll.group().leader()
            && let Some(i) = self.next(&Thread, member, NEXT_RECEIVE)
        {
            let part = transfers::part(coll.ctx(), self.receives, i, self.dst);
            differs = difference(peer, false, part.bytes() as u64, coll.posted(member, GIVEN));
            if differs.is_none() {
                coll.keep_posted(member, RECEIVES, coll.posted(member, RECEIVES).wrapping_add(1));
                self.advance(member, NEXT_RECEIVE, i);
                self.post(peer);
            }
        }
        coll.ctx().end_if(coll.group(), differs);
    }

    /// Tells a member where the next transfer from it belongs, if there is one. By one thread.
    #[inline(always)]
    #[track_caller]
    fn post(&self, peer: Rank<World>) {
        let next = self.coll.posted(peer.index(), NEXT_RECEIVE);
        if next != NONE {
            let part = transfers::part(self.coll.ctx(), self.receives, next as usize, self.dst);
            post_place(self.coll, peer, part.offset(), part.bytes() as u64);
        }
    }

    /// The entry that is next with a member. The group meets before the leader changes it, and after that.
    #[inline(always)]
    fn next(&self, group: &impl Group, member: usize, which: usize) -> Option<usize> {
        let next = group.uniform(self.coll.posted(member, which));
        (next != NONE).then_some(next as usize)
    }

    /// Looks for the entry with a member that comes after entry `i`.
    #[inline(always)]
    #[track_caller]
    fn advance(&self, member: usize, which: usize, i: usize) {
        let list = if which == NEXT_SEND { self.sends } else { self.receives };
        let found = transfers::next_with(self.coll.ctx(), list, member, i + 1);
        self.coll.keep_posted(member, which, found.map_or(NONE, |i| i as u64));
    }
}

/// Tells a member where the next transfer from it belongs, and how many bytes it has. By one thread.
#[cfg_attr(target_arch = "nvptx64", inline(never))]
#[track_caller]
fn post_place<B: Group>(coll: &Coll<'_, B>, peer: Rank<World>, place: u64, bytes: u64) {
    coll.post(peer, PLACE, place);
    coll.post(peer, EXPECTED, bytes);
    let received = coll.posted(peer.index(), RECEIVES);
    coll.ctx().notify(&Thread, coll.signal(READY).at(peer).set(received.wrapping_add(1)));
}

/// What is found where a part is not as long as the other side's.
#[inline(always)]
fn difference(peer: Rank<World>, sends: bool, mine: u64, theirs: u64) -> Option<Disagreement> {
    (mine != theirs).then_some(Disagreement::Count { peer: peer.pe(), sends, mine, theirs })
}
