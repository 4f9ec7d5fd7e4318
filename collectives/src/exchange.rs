//! Exchanges of parts of any length: all-to-all-v and all-gather-v.
//!
//! Every member tells every other where the other's part belongs, and how long it expects that to be; when all have, each puts
//! its parts straight into the others' memory (rendezvous, without a copy). What one sends must be as long as what the other
//! expects: both compare before they send anything, and a difference is a fault that names both.
//!
//! [`send_recv`](crate::send_recv) does the same between the members that have something for each other.

use congruent_device::refuse;
use congruent_device::{Ctx, Disagreement, Group, Pod, Sym, Tag, Team, kernel_arg};

use crate::agree::Heard;
use crate::call::Call;
use crate::check;
use crate::names::Operation;
use crate::plan::View;

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
        let entry = |list: Sym<u64>| usize::try_from(ctx.load(list, i).checked_mul(self.unit)?).ok();
        match (entry(self.displacements), entry(self.counts)) {
            (Some(start), Some(count)) => check::range(whole, start, count),
            _ => refuse!("a count and its displacement reach past the buffer"),
        }
    }

    #[inline(always)]
    #[track_caller]
    fn check(&self, n: usize) {
        if self.counts.len() != n || self.displacements.len() != n {
            refuse!("counts and displacements have one entry for each member");
        }
    }
}

/// Part `i` of member `j`'s `src` becomes part `j` of member `i`'s `dst`.
///
/// # Collective
/// Over the team; part `i` of member `j`'s `src` is as long as part `j` of member `i`'s `dst`. The buffers may differ from member
/// to member. Each member sends its parts, and 32 bytes to each of `n-1` others.
///
/// # Ordering
/// What a member stored to `src` before, in this block or before this kernel, is sent; on return this block's share of each
/// part of `dst` is complete, and `src` may be overwritten.
///
/// # Panics
/// Where the buffers overlap, a part reaches past its buffer, the lists do not have `n` entries, or the plan is for another team
/// or fewer blocks.
#[inline(always)]
#[track_caller]
#[expect(clippy::too_many_arguments, reason = "each of them is the caller's to choose")]
pub fn all_to_all_v<T: Pod, G: Tag>(
    group: &impl Group,
    ctx: &Ctx<'_>,
    team: &Team<'_, G>,
    dst: Sym<T>,
    src: Sym<T>,
    receives: Parts,
    sends: Parts,
    plan: &View,
) {
    check::apart(dst, src);
    receives.check(team.size());
    sends.check(team.size());
    let call = Call::enter(group, ctx, team, plan, Operation::AllToAllVDirect, src.bytes());
    rendezvous(&call, group, |i| receives.of(ctx, dst, i), |i| sends.of(ctx, src, i));
    call.leave(group);
}

/// Member `j`'s `src` becomes part `j` of every member's `dst`.
///
/// # Collective
/// Over the team; member `j`'s `src` is as long as every member's part `j`, and may be the member's part of its own `dst`. Where
/// parts begin may differ from member to member. Each member sends its `src`, and 32 bytes, to `n-1` others.
///
/// # Ordering
/// As [`all_to_all_v`].
///
/// # Panics
/// As [`all_to_all_v`].
#[inline(always)]
#[track_caller]
pub fn all_gather_v<T: Pod, G: Tag>(
    group: &impl Group,
    ctx: &Ctx<'_>,
    team: &Team<'_, G>,
    dst: Sym<T>,
    src: Sym<T>,
    parts: Parts,
    plan: &View,
) {
    parts.check(team.size());
    if src != parts.of(ctx, dst, team.me().index()) {
        check::apart(dst, src);
    }
    let call = Call::enter(group, ctx, team, plan, Operation::AllGatherVDirect, src.bytes());
    rendezvous(&call, group, |i| parts.of(ctx, dst, i), |_| src);
    call.leave(group);
}

/// Puts `from(i)` to where member `i` wants it, and gets what member `i` has for this one to `to(i)`.
#[inline(always)]
#[track_caller]
fn rendezvous<T: Pod, G: Tag>(
    call: &Call<'_, G>,
    group: &impl Group,
    to: impl Fn(usize) -> Sym<T>,
    from: impl Fn(usize) -> Sym<T>,
) {
    let offer = |i: usize| [to(i).offset(), to(i).bytes() as u64, from(i).bytes() as u64, 0];
    let heard = Heard::tell(call, group, |rank| offer(rank.index()));
    let theirs = |i: usize| if i == call.me { offer(i) } else { heard.from(i) };
    let differs = |i: usize| {
        let peer = call.team.rank(i).pe();
        let ([_, expects, sends, _], [_, they_expect, they_send, _]) = (offer(i), theirs(i));
        let count = |sends, mine, theirs| Disagreement::Count { peer, sends, mine, theirs };
        if sends != they_expect {
            Some(count(true, sends, they_expect))
        } else {
            (expects != they_send).then(|| count(false, expects, they_send))
        }
    };
    call.ctx.end_if(group, group.strided(call.n).find_map(differs));
    let (kept, own) = (call.mine(to(call.me)), call.mine(from(call.me)));
    if kept != own {
        call.ctx.copy(group, kept, own);
    }
    for i in 1..call.n {
        let peer = call.after(i);
        let part = from(peer.index());
        let [offset, ..] = theirs(peer.index());
        let place = Sym::from_raw(offset, part.len() as u64);
        let _step = call.step("give", (i - 1, call.n - 1), peer, call.mine(part).bytes());
        call.ctx.put(group, call.mine(place).at(peer), call.mine(part));
    }
    call.ctx.quiet(group);
    call.meet(group);
}
