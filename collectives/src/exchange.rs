//! Exchanges of parts of any length: all-to-all-v and all-gather-v.
//!
//! Every member posts at every other where the other's part belongs, and how long it expects that to be; when all have, each puts
//! its parts straight into the others' memory (rendezvous, without a copy). What one sends must be as long as what the other
//! expects: both compare before they send anything, and a difference is a fault that names both.
//!
//! [`send_recv`](crate::send_recv) does the same between the members that have something for each other.

use congruent_device::{Ctx, Disagreement, Group, Pod, Sym, kernel_arg, refuse};

use crate::agree::Posts;
use crate::descriptor::{Descriptor, Work};
use crate::names::Operation;
use crate::session::Coll;
use crate::{Algorithm, Collective, Protocol, check};

kernel_arg! {
    /// One part of a buffer for each member, of any length, as MPI has them: how long each is, and where it begins.
    ///
    /// Both lists have one entry for each member, in this PE's own memory, counted in elements of the buffer or in units of some
    /// of them. Parts that are received do not overlap.
    #[derive(Debug)]
    pub struct Parts {
        counts: Sym<u64>,
        displacements: Sym<u64>,
        unit: u64,
    }
}

impl Parts {
    /// The parts with these lengths that begin at these elements.
    #[inline(always)]
    pub const fn new(counts: Sym<u64>, displacements: Sym<u64>) -> Self {
        Self { counts, displacements, unit: 1 }
    }

    /// The same lists, counted in units of so many elements: of a buffer of bytes, the size of what it holds.
    #[must_use]
    #[inline(always)]
    pub const fn in_units_of(self, elements: usize) -> Self {
        Self { unit: elements as u64, ..self }
    }

    /// The lengths.
    #[inline(always)]
    pub const fn counts(&self) -> Sym<u64> {
        self.counts
    }

    /// Where the parts begin.
    #[inline(always)]
    pub const fn displacements(&self) -> Sym<u64> {
        self.displacements
    }

    /// Part `i` of a buffer.
    #[inline(always)]
    #[track_caller]
    fn of<T: Pod>(&self, ctx: &Ctx<'_>, whole: Sym<T>, i: usize) -> Sym<T> {
        part(ctx, self.counts, self.displacements, self.unit, whole, i)
    }

    #[inline(always)]
    #[track_caller]
    fn check(&self, n: usize) {
        if self.counts.len() != n || self.displacements.len() != n {
            refuse!("counts and displacements have one entry for each member");
        }
    }
}

/// Part `i` of a buffer: a function of its own, which kernels ask often.
#[cfg_attr(target_arch = "nvptx64", inline(never))]
#[cfg_attr(not(target_arch = "nvptx64"), inline(always))]
#[track_caller]
fn part<T: Pod>(
    ctx: &Ctx<'_>,
    counts: Sym<u64>,
    displacements: Sym<u64>,
    unit: u64,
    whole: Sym<T>,
    i: usize,
) -> Sym<T> {
    let entry = |list: Sym<u64>| usize::try_from(ctx.load(list, i).checked_mul(unit)?).ok();
    match (entry(displacements), entry(counts)) {
        (Some(start), Some(count)) => check::range(whole, start, count),
        _ => refuse!("a count and its displacement reach past the buffer"),
    }
}

/// Part `i` of member `j`'s `src` becomes part `j` of member `i`'s `dst`.
///
/// # Collective
/// Over the team; part `i` of member `j`'s `src` is as long as part `j` of member `i`'s `dst`. The buffers may differ from member
/// to member. Each member sends its parts, and 24 bytes to each of `n-1` others.
///
/// # Ordering
/// What a member stored to `src` before, in this block or before this kernel, is sent; on return this block's share of each
/// part of `dst` is complete, and `src` may be overwritten.
///
/// # Panics
/// Where the buffers overlap, a part reaches past its buffer, the lists do not have `n` entries.
#[inline(always)]
#[track_caller]
pub fn all_to_all_v<T: Pod, B: Group>(coll: &mut Coll<'_, B>, dst: Sym<T>, src: Sym<T>, receives: Parts, sends: Parts) {
    check::apart(dst, src);
    receives.check(coll.n());
    sends.check(coll.n());
    let _call = coll.begin(Operation::AllToAllVDirect, src.bytes());
    let ctx = coll.ctx();
    rendezvous(coll, |i| receives.of(ctx, dst, i), |i| sends.of(ctx, src, i));
}

/// Member `j`'s `src` becomes part `j` of every member's `dst`.
///
/// # Collective
/// Over the team; member `j`'s `src` is as long as every member's part `j`, and may be the member's part of its own `dst`. Where
/// parts begin may differ from member to member. Each member sends its `src`, and 24 bytes, to `n-1` others.
///
/// # Ordering
/// As [`all_to_all_v`].
///
/// # Panics
/// As [`all_to_all_v`].
#[inline(always)]
#[track_caller]
pub fn all_gather_v<T: Pod, B: Group>(coll: &mut Coll<'_, B>, dst: Sym<T>, src: Sym<T>, parts: Parts) {
    parts.check(coll.n());
    let ctx = coll.ctx();
    if src != parts.of(ctx, dst, coll.me()) {
        check::apart(dst, src);
    }
    let _call = coll.begin(Operation::AllGatherVDirect, src.bytes());
    rendezvous(coll, |i| parts.of(ctx, dst, i), |_| src);
}

/// Words that a member posts at another: where its part belongs, how many bytes are expected, and how many will be sent. So many they are.
const PLACE: usize = 0;
const EXPECTS: usize = 1;
const SENDS: usize = 2;
const OFFER: usize = 3;

/// Puts `from(i)` to where member `i` wants it, and gets what member `i` has for this one to `to(i)`.
#[inline(always)]
#[track_caller]
fn rendezvous<T: Pod, B: Group>(coll: &Coll<'_, B>, to: impl Fn(usize) -> Sym<T>, from: impl Fn(usize) -> Sym<T>) {
    let (ctx, group) = (coll.ctx(), coll.group());
    let posts = Posts::exchange(coll, OFFER, |i, word| match word {
        PLACE => to(i).offset(),
        EXPECTS => to(i).bytes() as u64,
        _ => from(i).bytes() as u64,
    });
    let differs = |i: usize| {
        let (peer, expects, sends) = (coll.rank(i).pe(), to(i).bytes() as u64, from(i).bytes() as u64);
        let is_own = i == coll.me();
        let they_expect = if is_own { expects } else { posts.from(i, EXPECTS) };
        let they_send = if is_own { sends } else { posts.from(i, SENDS) };
        let count = |sends, mine, theirs| Disagreement::Count { peer, sends, mine, theirs };
        if sends != they_expect {
            Some(count(true, sends, they_expect))
        } else {
            (expects != they_send).then(|| count(false, expects, they_send))
        }
    };
    ctx.end_if(group, group.strided(coll.n()).find_map(differs));
    let (kept, own) = (coll.mine(to(coll.me())), coll.mine(from(coll.me())));
    if kept != own {
        coll.start_copy(kept, own);
    }
    for i in 1..coll.n() {
        let peer = coll.after(i);
        let part = from(peer.index());
        let place = Sym::from_raw(posts.from(peer.index(), PLACE), part.len() as u64);
        let _step = coll.step("give", (i - 1, coll.n() - 1), peer.index(), coll.mine(part).bytes());
        ctx.put_nbi(group, coll.mine(place).at(peer), coll.mine(part));
    }
    ctx.await_proxy(group);
    coll.barrier();
}

/// [`all_to_all_v`].
pub static ALL_TO_ALL_V: Descriptor = described(Collective::AllToAllV);

/// [`all_gather_v`].
pub static ALL_GATHER_V: Descriptor = described(Collective::AllGatherV);

/// As if all parts had one length.
const fn described(collective: Collective) -> Descriptor {
    Descriptor::new(collective, Algorithm::DIRECT, &[Protocol::Simple], |call| {
        Work::between_barriers(call, call.others)
    })
}
