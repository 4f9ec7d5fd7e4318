//! Teams: some of the world's PEs, with barriers of their own.

use std::marker::PhantomData;

use congruent_device::{Pe, Tag, TeamView, abi};
use congruent_heap::Members;

use crate::cuda::CudaError;
use crate::machine::Machine;
use crate::objects::Use;
use crate::{CollectiveError, SplitError, SymVec, World};

/// A team that this PE is a member of. Kernels are given its [`view`](Team::view).
#[derive(Debug)]
pub struct Team<G> {
    members: Members,
    me: u32,
    /// The members, on the heap, where they are not computed.
    list: Option<SymVec<u32>>,
    sync: SymVec<u64>,
    /// Its multicast window, 0 for none.
    window: u32,
    tag: PhantomData<G>,
}

impl<G: Tag> Team<G> {
    /// The team as a kernel argument.
    pub fn view(&self) -> TeamView<G> {
        let sync = self.sync.view();
        let view = match (&self.members, &self.list) {
            (Members::Listed(members), Some(list)) => {
                TeamView::listed(list.view().slice(..members.len()), self.me, sync)
            }
            (Members::Strided { start, stride, size }, _) => TeamView::strided(*start, *stride, *size, self.me, sync),
            (Members::Listed(_), None) => TeamView::strided(0, 1, 1, 0, sync),
        };
        view.with_window(self.window)
    }

    /// How many members.
    pub fn size(&self) -> usize {
        self.members.size() as usize
    }

    /// This PE's rank.
    pub fn me(&self) -> usize {
        self.me as usize
    }

    /// The PE of a rank, or `None` where there is no such rank.
    pub fn pe(&self, rank: usize) -> Option<Pe> {
        u32::try_from(rank).ok().and_then(|rank| self.members.pe(rank))
    }

    /// The rank of a PE, or `None` where it is no member.
    ///
    /// A rank of one team is that of another by way of its PE: `rows.pe(i).and_then(|pe| columns.rank_of(pe))`.
    pub fn rank_of(&self, pe: Pe) -> Option<usize> {
        self.members.rank_of(pe).map(|rank| rank as usize)
    }

    /// The members, in rank order.
    pub fn pes(&self) -> impl Iterator<Item = Pe> + '_ {
        self.members.pes()
    }
}

impl World {
    /// Splits the world: PEs that give the same colour form a team, ordered by key and then by PE. `None` as a colour joins
    /// none. The rule is MPI_Comm_split's.
    ///
    /// # Collective
    /// Over the world; each PE gives its own colour and key.
    ///
    /// # Errors
    /// See [`SplitError`].
    #[track_caller]
    pub fn split<G: Tag>(&mut self, colour: Option<u32>, key: u32) -> Result<Option<Team<G>>, SplitError> {
        let mine = colour.map_or(String::new(), |colour| format!("{colour} {key}"));
        let all = self.exchange("split", &mine)?;
        let choices: Vec<Option<(u32, u32)>> = all
            .iter()
            .map(|choice| {
                let (colour, key) = choice.split_once(' ')?;
                Some((colour.parse().ok()?, key.parse().ok()?))
            })
            .collect();
        let me = self.pe();
        // Every PE computes every team, so that all allocate alike.
        let teams = (0..choices.len()).filter_map(|pe| {
            let team = Members::split(&choices, pe)?;
            // Each once: as its first member has it.
            let first = team.pes().next()?;
            (first.index() == pe).then_some(team)
        });
        let teams: Vec<Members> = teams.collect();
        let mine = Members::split(&choices, me.index());
        self.form(mine, &teams)
    }

    /// Splits teams: members of one parent that give the same colour form a team, ordered by key and then by PE. `None` as a colour
    /// joins none. Of several parents without a common member each PE gives its own, and their colours are different ones.
    ///
    /// Colours that are computed from the rank in the parent give parts with a stride (`rank % n`) and blocks (`rank / n`), and so rows and
    /// columns of it.
    ///
    /// # Collective
    /// Over the world, so that heaps stay alike: a PE without a parent gives `None`, and joins none.
    ///
    /// # Errors
    /// See [`SplitError`].
    ///
    /// ```
    /// # use congruent::{Error, Team, device::World as All, local};
    /// let sizes = local(6, |world| {
    ///     // Two rows of three; of each row, the first and the others.
    ///     let row: Option<Team<All>> = world.split(Some(world.pe().raw() / 3), 0)?;
    ///     let colour = row.as_ref().map(|row| u32::from(row.me() > 0));
    ///     let part: Option<Team<All>> = world.split_team(row.as_ref(), colour, 0)?;
    ///     Ok::<_, Error>(part.map(|part| part.size()))
    /// })?;
    /// assert_eq!(sizes, [1, 2, 2, 1, 2, 2].map(Some));
    /// # Ok::<_, Error>(())
    /// ```
    #[track_caller]
    pub fn split_team<P: Tag, G: Tag>(
        &mut self,
        parent: Option<&Team<P>>,
        colour: Option<u32>,
        key: u32,
    ) -> Result<Option<Team<G>>, SplitError> {
        if parent.is_some_and(|parent| !parent.sync.is_of(self.shared())) {
            return Err(SplitError::ForeignWorld);
        }
        // Teams that one call made have their words at the same place, and different first members.
        let identity = parent.and_then(|parent| Some((parent.sync.view().raw_offset(), parent.pe(0)?.raw())));
        let colour = identity.and(colour);
        let (offset, first) = identity.unwrap_or_default();
        self.split_parts("split of teams", &format!("{offset} {first}"), colour, key)
    }

    /// Splits the members of each `parent` by colour, in a call of this name.
    #[track_caller]
    pub(crate) fn split_parts<G: Tag>(
        &mut self,
        call: &str,
        parent: &str,
        colour: Option<u32>,
        key: u32,
    ) -> Result<Option<Team<G>>, SplitError> {
        let mine = colour.map(|colour| format!("{parent}/{colour}")).unwrap_or_default();
        let all = self.exchange(call, &mine)?;
        // Parts of different parents are different, whatever their colours, so they are numbered anew.
        let mut parts: Vec<&String> = all.iter().filter(|part| !part.is_empty()).collect();
        parts.sort_unstable();
        parts.dedup();
        let number = colour.and_then(|_| parts.iter().position(|part| **part == mine));
        self.split(number.map(|number| number as u32), key)
    }

    /// The PEs of this host, in order: what NVSHMEM has `NVSHMEMX_TEAM_NODE` for.
    ///
    /// # Collective
    /// Over the world.
    ///
    /// # Errors
    /// See [`SplitError`].
    #[track_caller]
    pub fn host_team<G: Tag>(&mut self) -> Result<Team<G>, SplitError> {
        let host = self.host();
        let team = self.split_parts("team of each host", "", Some(host), 0)?;
        // With a colour it is in one.
        team.ok_or(SplitError::ForeignWorld)
    }

    /// The team of the PEs `start + i * stride`, for `i` below `size`. `None` for a PE that is not in it.
    ///
    /// # Collective
    /// Over the world; every PE gives the same numbers.
    ///
    /// # Errors
    /// See [`SplitError`].
    #[track_caller]
    pub fn strided_team<G: Tag>(&mut self, start: u32, stride: u32, size: u32) -> Result<Option<Team<G>>, SplitError> {
        let members = Members::strided(self.npes() as u32, start, stride, size);
        self.exchange(&format!("team of {size} from PE {start} by {stride}"), "")?;
        self.form_one(members?)
    }

    /// The team of exactly these PEs, in this order. `None` for a PE that is not in it.
    ///
    /// # Collective
    /// Over the world; every PE gives the same list.
    ///
    /// # Errors
    /// See [`SplitError`].
    #[track_caller]
    pub fn listed_team<G: Tag>(&mut self, pes: &[u32]) -> Result<Option<Team<G>>, SplitError> {
        let members = Members::listed(self.npes() as u32, pes);
        self.exchange(&format!("team of PEs {pes:?}"), "")?;
        self.form_one(members?)
    }

    #[track_caller]
    fn form_one<G: Tag>(&mut self, members: Members) -> Result<Option<Team<G>>, SplitError> {
        let mine = members.rank_of(self.pe()).map(|_| members.clone());
        self.form(mine, &[members])
    }

    /// Allocates the teams' words on every PE, members or not, so that the heaps stay alike; and opens their multicast windows.
    #[track_caller]
    fn form<G: Tag>(&mut self, mine: Option<Members>, teams: &[Members]) -> Result<Option<Team<G>>, SplitError> {
        let largest = teams.iter().map(Members::size).max().unwrap_or(1);
        let listed = teams.iter().any(|team| matches!(team, Members::Listed(_)));
        let slots = self.shared().context().block_slots;
        let sync = self.alloc::<u64>(abi::SyncLayout::new(largest).words(slots) as usize)?;
        sync.used_for(Use::Barrier);
        let list = if listed { Some(self.alloc::<u32>(largest as usize)?) } else { None };
        let window = self.open_window(teams, sync.view().raw_offset())?;
        let Some(members) = mine else { return Ok(None) };
        if let (Some(list), Members::Listed(pes)) = (&list, &members) {
            // It is as long as the largest team, so this fits.
            self.shared().write(list.view().offset(), bytemuck::cast_slice(pes)).map_err(CollectiveError::from)?;
        }
        let me = members.rank_of(self.pe()).unwrap_or(0);
        Ok(Some(Team { members, me, list, sync, window, tag: PhantomData }))
    }

    /// Collective: the multicast window of this PE's team among these, whose words begin at `sync`; 0 without multicast.
    fn open_window(&mut self, teams: &[Members], sync: u64) -> Result<u32, SplitError> {
        match self.shared().machine() {
            Machine::Cpu(_) => Ok(self.window()),
            Machine::Cuda(pe) => {
                let teams: Vec<Vec<u32>> = teams.iter().map(|team| team.pes().map(Pe::raw).collect()).collect();
                pe.open_window(self.shared().control(), &teams, sync).map_err(|error| match error {
                    CudaError::Control(lost) => self.shared().lost(lost).into(),
                    error => SplitError::Multicast(error),
                })
            }
        }
    }
}
