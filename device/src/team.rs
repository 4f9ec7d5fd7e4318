//! Teams in a kernel: who is in it, and its barrier.

use core::ptr::with_exposed_provenance_mut;

use congruent_heap::abi::{Cause, SyncLayout};
use congruent_heap::refuse;
use congruent_heap::{KernelArg, Pe, Rank, Tag, TeamView, World};

use crate::{Ctx, Group, arch};

/// Up to this size a barrier tells every member directly: one hop. Larger teams use dissemination.
const DIRECT: usize = 8;

/// A team, seen from this PE in this kernel. [`Ctx::world`] and [`Ctx::team`] make one.
pub struct Team<'c, G = World> {
    pub(crate) ctx: &'c Ctx<'c>,
    pub(crate) view: TeamView<G>,
}

impl<'c, G: Tag> Team<'c, G> {
    /// Of a view that was looked at before: it is numbers, each of which is checked where it is followed.
    #[inline(always)]
    pub(crate) const fn new(ctx: &'c Ctx<'_>, view: TeamView<G>) -> Self {
        Self { ctx, view }
    }

    /// Whoever is given a team of another world should know at once.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn checked(self) -> Self {
        self.check_list();
        self.check_window();
        self
    }

    #[inline(always)]
    #[track_caller]
    fn check_list(&self) {
        if !self.view.members().fits(self.ctx.abi().heap_bytes) {
            refuse!("a team's list reaches past the heap: is it of another world?");
        }
    }

    #[inline(always)]
    #[track_caller]
    pub(crate) fn check_window(&self) {
        if self.view.window() > self.ctx.abi().windows {
            refuse!("a team has a multicast window that this world lacks: is it of another world?");
        }
    }

    /// Tells teams of one world apart.
    #[inline(always)]
    pub fn id(&self) -> u64 {
        self.view.sync().offset()
    }

    /// How many members.
    #[inline(always)]
    pub fn size(&self) -> usize {
        self.view.size()
    }

    /// This PE's rank.
    #[inline(always)]
    pub fn me(&self) -> Rank<G> {
        self.view.own(self.ctx.pe())
    }

    /// Member `i`.
    ///
    /// # Panics
    /// Where there is no such member.
    #[inline(always)]
    #[track_caller]
    pub fn rank(&self, i: usize) -> Rank<G> {
        match self.get(i) {
            Some(rank) => rank,
            None => refuse!("rank out of range of its team"),
        }
    }

    /// Member `i`, or `None` where there is no such member.
    ///
    /// # Panics
    /// Where the team's list is of another world.
    #[inline(always)]
    #[track_caller]
    pub fn get(&self, i: usize) -> Option<Rank<G>> {
        (i < self.size()).then(|| {
            self.view.rank_with(i, |i| {
                self.check_list();
                let list = self.ctx.abi().address(self.ctx.pe(), self.view.members().offset());
                let member: *const u32 = with_exposed_provenance_mut::<u32>(list as usize).wrapping_add(i);
                // SAFETY: the list is on this PE's heap, aligned, and has `size` elements.
                unsafe { arch::load(member) }
            })
        })
    }

    /// The member that a PE is, or `None` where it is none.
    ///
    /// A list is looked through from the start; a computed team computes.
    #[inline(always)]
    pub fn rank_of(&self, pe: Pe) -> Option<Rank<G>> {
        match self.view.index_of(pe) {
            Some(found) => found.and_then(|i| self.get(i)),
            None => self.ranks().find(|rank| rank.pe() == pe),
        }
    }

    /// The member that a member of another team is, or `None` where it is none (OpenSHMEM's team_translate_pe).
    ///
    /// ```
    /// use congruent_device::{Sym, TeamView, kernels, team_tag};
    ///
    /// team_tag! { pub Row }
    /// team_tag! { pub Column }
    ///
    /// kernels! {
    ///     /// Sends a number to the next PE of the row, if it is in this PE's column too.
    ///     pub fn neighbour(block, ctx, row: TeamView<Row>, column: TeamView<Column>, inbox: Sym<u64>) {
    ///         let (row, column) = (ctx.team(row), ctx.team(column));
    ///         if let Some(rank) = column.translate(row.next()) {
    ///             ctx.put_value(inbox.at(rank), rank.index() as u64);
    ///         }
    ///     }
    /// }
    /// ```
    #[inline(always)]
    pub fn translate<H>(&self, rank: Rank<H>) -> Option<Rank<G>> {
        self.rank_of(rank.pe())
    }

    /// The member after this PE, in a ring.
    #[inline(always)]
    pub fn next(&self) -> Rank<G> {
        let after = self.view.me() + 1;
        self.rank(if after == self.size() { 0 } else { after })
    }

    /// The member before this PE, in a ring.
    #[inline(always)]
    pub fn prev(&self) -> Rank<G> {
        let me = self.view.me();
        self.rank(if me == 0 { self.size() - 1 } else { me - 1 })
    }

    /// Every member, in rank order.
    #[inline(always)]
    pub fn ranks(&self) -> impl Iterator<Item = Rank<G>> + '_ {
        (0..self.size()).map(|i| self.rank(i))
    }
}

impl Ctx<'_> {
    /// Waits until every member of the team has called it from a block of the same index, and all they put before has
    /// arrived everywhere, through the proxy too, for which a [`sync`](Ctx::sync) does not wait.
    ///
    /// # Collective
    /// Over the members' blocks of this index; blocks of different indices do not meet, so it is re-entrant per block.
    ///
    /// # Ordering
    /// What any member did before, to any PE, is seen by every member after (MM-6).
    #[inline(always)]
    #[track_caller]
    pub fn barrier<G: Tag>(&self, group: &impl Group, team: &Team<'_, G>) {
        self.await_proxy(group);
        // Signals cover what each of its threads put.
        self.sync(group, team);
    }

    /// Waits until every member of the team has called it from a block of the same index.
    ///
    /// Up to 8 members signal each other directly; larger teams use the dissemination algorithm (Hensgen, Finkel and
    /// Manber, 1988). Each signal is a growing epoch in a word with one writer, so nothing is ever reset.
    ///
    /// # Collective
    /// As [`barrier`](Ctx::barrier).
    ///
    /// # Ordering
    /// Release and acquire at every hop (MM-6), so what a member had seen or stored before is seen by every member after;
    /// it does not complete what goes through a proxy, as `barrier` does.
    #[inline(always)]
    #[track_caller]
    pub fn sync<G: Tag>(&self, group: &impl Group, team: &Team<'_, G>) {
        group.sync();
        self.meet(group, team);
    }

    /// [`sync`](Ctx::sync) of a group that has just met.
    #[inline(always)]
    #[track_caller]
    fn meet<G: Tag>(&self, group: &impl Group, team: &Team<'_, G>) {
        let size = team.size();
        if size == 1 {
            return;
        }
        let slot = self.slot();
        let layout = SyncLayout::new(size as u32);
        let base = team.view.sync().offset();
        let epoch_word = self.word(base + layout.epoch(slot), self.pe());
        let epoch = epoch_word.load().wrapping_add(1);
        let me = team.view.me();
        let mut failed = false;
        if size <= DIRECT {
            for distance in group.strided(size - 1) {
                let to = team.rank(wrap(me + 1 + distance, size));
                failed = failed || !self.signal_word(to.pe(), false, base + layout.word(slot, me as u32), epoch);
            }
            for distance in group.strided(size - 1) {
                let from = wrap(me + 1 + distance, size);
                let word = base + layout.word(slot, from as u32);
                failed = failed || !self.reached(word, team.rank(from).pe().raw(), epoch);
            }
        } else if group.leader() {
            let mut round = 0;
            while !failed && 1 << round < size {
                let (to, from) = (wrap(me + (1 << round), size), wrap(me + size - (1 << round), size));
                let word = base + layout.word(slot, round);
                failed = !self.signal_word(team.rank(to).pe(), false, word, epoch)
                    || !self.reached(word, team.rank(from).pe().raw(), epoch);
                round += 1;
            }
        }
        self.join(group, failed);
        // All have looked, and look again only after they have met before the next signals.
        if group.leader() {
            // SAFETY: mapped and aligned.
            unsafe { arch::store(epoch_word.as_ptr(), epoch) };
        }
    }

    /// The sync slot of this block; a block that has none faults.
    #[inline(always)]
    #[track_caller]
    fn slot(&self) -> u32 {
        let slot = self.lane.block();
        let missing = slot >= self.abi().block_slots;
        if missing {
            self.leave(Cause::BlockSlot { block: slot, slots: self.abi().block_slots });
        }
        // The same for all threads.
        self.end_unless(!missing);
        slot
    }
}

impl<G> Clone for Team<'_, G> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<G> Copy for Team<'_, G> {}

/// `i` modulo `n`, for `i` below `2n`.
#[inline(always)]
fn wrap(i: usize, n: usize) -> usize {
    if i >= n { i - n } else { i }
}
