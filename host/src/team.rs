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
