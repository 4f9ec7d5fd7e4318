//! Members wait for each other, and tell each other a few words while they do.

use congruent_device::{Ctx, Disagreement, Group, Rank, Sym, Tag, Team, kernel_arg};

use crate::call::Call;
use crate::names::Operation;
use crate::plan::View;

/// Words that a member tells another at once.
pub(crate) const WORDS: usize = 4;

/// Where in a channel's head the number of times that members told each other something is; `call.rs` has the others.
const TOLD: usize = 3;

kernel_arg! {
    /// Describes a call in words of the caller's own: its number first, then what is called, then whatever else has to be the same.
    #[derive(Debug, PartialEq, Eq)]
    pub struct Description {
        /// The words.
        pub words: [u64; WORDS],
    }
}

/// Waits until every member has called it.
///
/// # Collective
/// Over the members' blocks of this channel. Unlike `Ctx::barrier` it uses the plan's slots, so that launches on several streams
/// may meet at once.
///
/// # Ordering
/// What any member's block put before, anywhere, is seen by every member's block of this channel after (MM-6).
///
/// # Panics
/// Where the plan is for another team or fewer blocks.
#[inline(always)]
#[track_caller]
pub fn barrier<G: Tag>(group: &impl Group, ctx: &Ctx<'_>, team: &Team<'_, G>, plan: &View) {
    let call = Call::enter(group, ctx, team, plan, Operation::Barrier, 0);
    ctx.quiet(group);
    call.meet(group);
    call.leave(group);
}

/// Makes sure that all members are about to make the same call. Where a member's description differs, every member's kernel
/// ends with a fault that names a member that differs from it, and the first word that does.
///
/// # Collective
/// Over the team. Each member sends 32 bytes to `n-1` others. One block is enough.
///
/// # Ordering
/// As [`barrier`].
///
/// # Panics
/// As [`barrier`].
#[inline(always)]
#[track_caller]
pub fn agree<G: Tag>(group: &impl Group, ctx: &Ctx<'_>, team: &Team<'_, G>, description: Description, plan: &View) {
    let call = Call::enter(group, ctx, team, plan, Operation::Agree, size_of_val(&description));
    let heard = Heard::tell(&call, group, |_| description.words);
    let differs = |i| {
        // Word by word, because an array with an index would need memory on a GPU.
        let ([number, called, count, rest], theirs) = (description.words, heard.from(i));
        let (word, mine, theirs) = match theirs {
            [theirs, ..] if theirs != number => (0, number, theirs),
            [_, theirs, ..] if theirs != called => (1, called, theirs),
            [_, _, theirs, _] if theirs != count => (2, count, theirs),
            [_, _, _, theirs] if theirs != rest => (3, rest, theirs),
            _ => return None,
        };
        Some(Disagreement::Call { peer: team.rank(i).pe(), number, called, word, mine, theirs })
    };
    ctx.end_if(group, group.strided(call.n).filter(|&i| i != call.me).find_map(differs));
    call.leave(group);
}

/// What the members told this one, until they tell it something else.
pub(crate) struct Heard<'h, 'c, G> {
    call: &'h Call<'c, G>,
    half: usize,
}

impl<'h, 'c, G: Tag> Heard<'h, 'c, G> {
    /// Tells every other member `words`, and waits until all have told theirs.
    ///
    /// Words are written to two places in turn. Who tells the next ones has met all members, and who tells those after them has
    /// met them again: by then all have read the first ones.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn tell(call: &'h Call<'c, G>, group: &impl Group, words: impl Fn(Rank<G>) -> [u64; WORDS]) -> Self {
        let head = call.view.head(call.channel);
        let told = call.ctx.load(head, TOLD);
        let half = (told % 2) as usize;
        for i in group.strided(call.n - 1) {
            let to = call.after(i + 1);
            let mine = said(call, call.me, half);
            let [first, second, third, fourth] = words(to);
            call.ctx.put_value(mine.elem(0).at(to), first);
            call.ctx.put_value(mine.elem(1).at(to), second);
            call.ctx.put_value(mine.elem(2).at(to), third);
            call.ctx.put_value(mine.elem(3).at(to), fourth);
        }
        // Not only those that this member tells directly wait for it: `meet` passes on that it has come.
        call.ctx.quiet(group);
        call.meet(group);
        if group.leader() {
            call.ctx.store(head, TOLD, told.wrapping_add(1));
        }
        Self { call, half }
    }

    /// What another member told.
    #[inline(always)]
    pub(crate) fn from(&self, member: usize) -> [u64; WORDS] {
        let words = said(self.call, member, self.half);
        let word = |i| self.call.ctx.load(words, i);
        [word(0), word(1), word(2), word(3)]
    }
}

#[inline(always)]
fn said<G: Tag>(call: &Call<'_, G>, member: usize, half: usize) -> Sym<u64> {
    call.view.post(call.channel, member).slice(half * WORDS..(half + 1) * WORDS)
}
