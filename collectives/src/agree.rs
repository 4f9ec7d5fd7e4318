//! Members wait for each other, and post each other a few words while they do.

use congruent_device::{Disagreement, Group, kernel_arg};

use crate::descriptor::{Descriptor, Members, Work};
use crate::names::Operation;
use crate::session::{BARRIERS, Coll, ONE_ROUND};
use crate::{Algorithm, Collective, Protocol};

/// The most words that a member posts at another at once.
pub(crate) const WORDS: usize = 4;

kernel_arg! {
    /// Describes a call in words of the caller's own: its number first, then what is called, then whatever else has to be the same.
    #[derive(Debug, PartialEq, Eq)]
    pub struct Description {
        /// The words.
        pub words: [u64; WORDS],
    }
}

/// [`barrier`] of a team that meets in one round, all with all.
pub(crate) static BARRIER_IN_ONE_ROUND: Descriptor = Descriptor {
    members: Members::UpTo(ONE_ROUND),
    ..Descriptor::new(Collective::Barrier, Algorithm::DIRECT, &[Protocol::Simple], |call| Work {
        hops: 1.0,
        posts: call.n - 2.0,
        ..Work::NONE
    })
};

/// [`barrier`] of a larger team, by dissemination.
pub(crate) static BARRIER: Descriptor = Descriptor {
    members: Members::MoreThan(ONE_ROUND),
    ..Descriptor::new(Collective::Barrier, Algorithm::RECURSIVE, &[Protocol::Simple], |call| Work {
        hops: call.log_n,
        ..Work::NONE
    })
};

/// Waits until every member has called it.
///
/// # Collective
/// Over the members' blocks of this channel. Unlike `Ctx::barrier` it uses the plan's slots, so that launches on several streams
/// may meet at once.
///
/// # Ordering
/// What any member's block put before, anywhere, is seen by every member's block of this channel after (MM-6).
#[inline(always)]
#[track_caller]
pub fn barrier<B: Group>(coll: &mut Coll<'_, B>) {
    let _call = coll.begin(Operation::Barrier, 0);
    coll.ctx().await_proxy(coll.group());
    coll.barrier();
}

/// Makes sure that all members are about to make the same call. Where a member's description differs, every member's kernel
/// ends with a fault that names a member that differs from it, and the first word that does.
///
/// # Collective
/// Over the team. Each member sends 32 bytes to `n-1` others. One block is enough.
///
/// # Ordering
/// As [`barrier`].
#[inline(always)]
#[track_caller]
pub fn agree<B: Group>(coll: &mut Coll<'_, B>, description: Description) {
    let _call = coll.begin(Operation::Agree, size_of_val(&description));
    // Word by word, because an array with an index would need memory on a GPU.
    let [number, called, count, rest] = description.words;
    let mine = |word| match word {
        0 => number,
        1 => called,
        2 => count,
        _ => rest,
    };
    let posts = Posts::exchange(coll, WORDS, |_, word| mine(word));
    let differs = |i| {
        (0..WORDS).find_map(|word| {
            let (peer, mine, theirs) = (coll.rank(i).pe(), mine(word), posts.from(i, word));
            (mine != theirs).then_some(Disagreement::Call { peer, number, called, word: word as u32, mine, theirs })
        })
    };
    let group = coll.group();
    coll.ctx().end_if(group, group.strided(coll.n()).filter(|&i| i != coll.me()).find_map(differs));
}

/// What the members have posted here, until they post something else.
pub(crate) struct Posts<'h, 'c, B: Group> {
    coll: &'h Coll<'c, B>,
    half: usize,
}

impl<'h, 'c, B: Group> Posts<'h, 'c, B> {
    /// Posts so many words at every other member, and waits for theirs.
    ///
    /// Words are written to two places in turn. Who posts the next ones has met all members, and who posts those after them has
    /// met them again: by then all have read the first ones.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn exchange(coll: &'h Coll<'c, B>, words: usize, word: impl Fn(usize, usize) -> u64) -> Self {
        let (ctx, group, head) = (coll.ctx(), coll.group(), coll.plan.head(coll.memory));
        // Which of the two changes each time that the members meet.
        let half = (ctx.load(head, BARRIERS) % 2) as usize;
        for i in group.strided((coll.n() - 1) * words) {
            let to = coll.after(1 + i / words);
            coll.post(to, half * WORDS + i % words, word(to.index(), i % words));
        }
        // Not only those that this member signals directly wait for it: `barrier` passes on that it has come.
        ctx.await_proxy(group);
        coll.barrier();
        Self { coll, half }
    }

    /// A word that another member posted.
    #[inline(always)]
    pub(crate) fn from(&self, member: usize, word: usize) -> u64 {
        self.coll.posted(member, self.half * WORDS + word)
    }
}
