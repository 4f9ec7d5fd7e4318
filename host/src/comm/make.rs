//! Making communicators.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};

use congruent_collectives::{Layout, Needs, PlanView, PlanWord, Protocol, Shape};
use congruent_device::{KernelArg, Pe, Signal, Sym, Tag, TeamView, World as WorldTag, abi};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::levels::Levels;
use super::{Comm, STREAMS, TRANSFERS, self_test};
use crate::machine::Machine;
use crate::select::Selector;
use crate::tunables::{Key, Source};
use crate::{CollectiveError, CommError, Team, World, WorldFailure};

/// How a communicator is made. The same on every member. What is `None` is as the environment has it, or as is usual.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommOptions {
    /// Blocks of each launch, which share the work. Without it, as many as the machine and the message take: one on the CPU
    /// machine, up to 32 on a GPU, which then share the scratch of one.
    pub blocks: Option<NonZeroU32>,
    /// Threads of each block. Without it, as many as have something to do in a step of the call, from 32 to 256.
    pub threads: Option<NonZeroU32>,
    /// Bytes of scratch for each block and protocol: `CONGRUENT_BUFFSIZE`. Where `blocks` is not given, for all blocks of a launch.
    /// Without either 1 MiB, and more where the heap is large: on GPUs, where `blocks` is not given, a 128th of it, at most 8 MiB; on the
    /// CPU machine, where peers are reached through the proxy, a block's share of a 32nd, at most 4 MiB.
    pub buffer: Option<u64>,
    /// Whether members compare every collective before it runs: `CONGRUENT_CHECK`. Without either they do on the CPU machine and do
    /// not on GPUs. In checked mode members also capture and launch the same graphs, in the same order.
    pub check: Option<bool>,
    /// Bits of the flags of packets, for tests of what happens when they wrap around.
    #[doc(hidden)]
    pub flag_bits: Option<u32>,
}

impl CommOptions {
    fn resolved(self, world: &World) -> Self {
        let tunables = world.tunables();
        Self {
            buffer: Some(self.buffer.unwrap_or_else(|| {
                let is_usual = tunables.setting(Key::BuffSize).source == Source::Default;
                let heap = world.shared().context().heap_bytes;
                match world.shared().machine() {
                    _ if !is_usual => tunables.get(Key::BuffSize),
                    // Blocks that are asked for do not share.
                    Machine::Cuda(_) if self.blocks.is_none() => shared_buffer(heap),
                    Machine::Cpu(_) if world.is_proxied() => {
                        proxied_buffer(heap, self.blocks.map_or(1, NonZeroU32::get))
                    }
                    _ => Layout::BUFFER,
                }
            })),
            check: Some(self.check.unwrap_or_else(|| match tunables.get(Key::Check) {
                // Where programs are tried out a wrong call should be named, and where they are run it should cost nothing.
                2 => matches!(world.shared().machine(), Machine::Cpu(_)),
                check => check == 1,
            })),
            ..self
        }
    }

    /// Threads of a block.
    pub(super) fn threads(&self) -> u32 {
        self.threads.map_or(256, NonZeroU32::get)
    }

    /// Blocks of a team's largest launches, and scratch of each, on a machine that takes up to `most` where nobody says how many.
    /// Those share the scratch of one block, so a communicator takes no more of the heap for being fast.
    fn blocks(&self, members: usize, most: u32) -> (u32, u64) {
        let buffer = self.buffer.unwrap_or(Layout::BUFFER);
        if let Some(asked) = self.blocks {
            return (asked.get(), buffer);
        }
        let fit = buffer / (Layout::FEWEST_BYTES * members as u64);
        let blocks = fit.clamp(1, most.max(1).into());
        (blocks as u32, buffer / blocks)
    }

    fn layout(&self, team: TeamView, most: u32) -> Layout {
        let (blocks, buffer) = self.blocks(team.size(), most);
        let layout = Layout::new(team, blocks * STREAMS).buffer(buffer);
        self.flag_bits.map_or(layout, |bits| layout.flag_bits(bits))
    }
}

/// A layout with room for the layouts of other PEs, whose teams have other sizes, so that heaps stay alike.
#[derive(Clone)]
pub(super) struct Room {
    pub(super) layout: Layout,
    needs: Needs,
}

impl Shape for Room {
    type View = PlanView;

    fn needs(&self) -> Needs {
        self.needs
    }

    fn view(&self, signals: Sym<Signal>, scratch: Sym<u8>) -> PlanView {
        self.layout.view(signals, scratch)
    }

    fn word(&self, signals: Sym<Signal>, scratch: Sym<u8>, offset: u64) -> Option<PlanWord> {
        self.layout.word(signals, scratch, offset)
    }
}

/// What PEs tell each other when they make communicators.
#[derive(Serialize, Deserialize)]
struct Said {
    /// Which team.
    team: (u64, u32),
    size: u32,
    options: CommOptions,
    /// Blocks that this PE's machine takes where nobody says how many.
    most: u32,
}

/// Which member of a team a PE is, and where.
#[derive(Serialize, Deserialize)]
struct Membership {
    team: (u64, u32),
    rank: u32,
    /// By its first PE.
    host: u32,
}

fn to_text(what: &impl Serialize) -> String {
    // Numbers have a text, whatever they are.
    serde_json::to_string(what).unwrap_or_default()
}

fn from_text<T: DeserializeOwned>(text: &str) -> Option<T> {
    serde_json::from_str(text).ok()
}

impl Membership {
    /// Among `all` of the world: on which host of its team, counted from 0, and the place there, where ranks are those of one host after
    /// the other, as many on each, two or more.
    fn in_levels(&self, all: &[Self]) -> Option<[u32; 2]> {
        let mut team: Vec<&Self> = all.iter().filter(|other| other.team == self.team).collect();
        team.sort_unstable_by_key(|member| member.rank);
        let on_first = team.iter().take_while(|member| member.host == team[0].host).count();
        let hosts: Vec<_> = team.chunks(on_first.max(1)).collect();
        let is_even = hosts.iter().all(|one| one.len() == on_first && one.iter().all(|pe| pe.host == one[0].host));
        let mut names: Vec<_> = hosts.iter().map(|one| one[0].host).collect();
        names.sort_unstable();
        names.dedup();
        let fits = on_first > 1 && hosts.len() > 1 && is_even && names.len() == hosts.len();
        fits.then(|| [self.rank / on_first as u32, self.rank % on_first as u32])
    }
}

impl World {
    /// Makes a communicator of a team.
    ///
    /// # Collective
    /// Over the world, each PE with a team that it is in; teams may have different sizes. A PE that is to have none gives
    /// [`World::team`] and drops what it gets.
    ///
    /// # Errors
    /// See [`CommError`].
    #[track_caller]
    pub fn comm<G: Tag>(&mut self, team: TeamView<G>) -> Result<Comm, CommError> {
        self.comm_with(team, CommOptions::default())
    }

    /// Makes a communicator of a team, with options.
    ///
    /// # Collective
    /// As [`comm`](World::comm), with the same options on all members of a team.
    ///
    /// # Errors
    /// See [`CommError`].
    #[track_caller]
    pub fn comm_with<G: Tag>(&mut self, team: TeamView<G>, options: CommOptions) -> Result<Comm, CommError> {
        let comm = self.make_comm(team.untagged(), None, options)?;
        let levels = self.make_levels(team.untagged(), options)?;
        Ok(Comm { levels, ..comm })
    }

    /// Splits the world into communicators: PEs that give the same colour form one, ordered by key and then by PE. `None` as a
    /// colour joins none.
    ///
    /// # Collective
    /// Over the world; each PE gives its own colour and key.
    ///
    /// # Errors
    /// See [`CommError`].
    #[track_caller]
    pub fn comm_split(&mut self, colour: Option<u32>, key: u32) -> Result<Option<Comm>, CommError> {
        self.split_within(String::new(), colour, key, CommOptions::default())
    }

    /// Splits the members of each `parent` by colour.
    #[track_caller]
    fn split_within(
        &mut self,
        parent: String,
        colour: Option<u32>,
        key: u32,
        options: CommOptions,
    ) -> Result<Option<Comm>, CommError> {
        let comm = self.split_flat(&parent, colour, key, options)?;
        let view = comm.as_ref().map_or(self.team(), |comm| comm.team);
        let levels = self.make_levels(view, options)?;
        Ok(comm.map(|comm| Comm { levels, ..comm }))
    }

    /// The same, of one level.
    #[track_caller]
    fn split_flat(
        &mut self,
        parent: &str,
        colour: Option<u32>,
        key: u32,
        options: CommOptions,
    ) -> Result<Option<Comm>, CommError> {
        let team: Option<Team<WorldTag>> = self.split_parts("split of communicators", parent, colour, key)?;
        let (is_member, view) = (team.is_some(), team.as_ref().map_or(self.team(), Team::view));
        let comm = self.make_comm(view, team, options)?;
        Ok(is_member.then_some(comm))
    }

    /// The communicators of a team's two levels, where it has them.
    #[track_caller]
    fn make_levels(&mut self, team: TeamView, options: CommOptions) -> Result<Option<Levels>, CommError> {
        if self.shared().control().same_host() {
            return Ok(None);
        }
        let options = options.resolved(self);
        let buffer = options.buffer.unwrap_or(Layout::BUFFER).min(LEVEL);
        let options = CommOptions { check: Some(false), buffer: Some(buffer), ..options };
        let (offset, first) = identity(self, team).map_err(CollectiveError::World)?;
        let (parent, rank) = (format!("{offset} {first}"), team.me() as u32);
        let mine = Membership { team: (offset, first), rank, host: self.host() };
        let all = self.exchange("levels of a communicator", &to_text(&mine))?;
        let each: Vec<Membership> = all.iter().filter_map(|said| from_text(said)).collect();
        // Every PE sees what all said, and takes part in the same calls.
        if !each.iter().any(|place| place.in_levels(&each).is_some()) {
            return Ok(None);
        }
        let place = mine.in_levels(&each);
        let host = self.split_flat(&parent, place.map(|[host, _]| host), rank, options)?;
        let rail = self.split_flat(&parent, place.map(|[_, rail]| rail), rank, options)?;
        let scratch = self.alloc(STREAMS as usize * buffer as usize)?;
        Ok(host.zip(rail).map(|(host, rail)| Levels::new(host, rail, scratch)))
    }

    #[track_caller]
    fn make_comm(
        &mut self,
        team: TeamView,
        own_team: Option<Team<WorldTag>>,
        options: CommOptions,
    ) -> Result<Comm, CommError> {
        let options = options.resolved(self);
        let fits = self.shared().context().block_slots;
        let team_of = identity(self, team).map_err(CollectiveError::World)?;
        let most = usual_blocks(self.shared().machine()).min(fits);
        let mine = Said { team: team_of, size: team.size() as u32, options, most };
        let all = self.exchange("communicator", &to_text(&mine))?;
        let each: Vec<Said> = all.iter().filter_map(|said| from_text(said)).collect();
        let is_member = |(_, said): &(u32, &Said)| said.team == team_of;
        let all_direct = (0..).zip(&each).filter(is_member).all(|(pe, _)| self.is_direct(Pe::new(pe)));
        let selector = self.agreed_selector(all_direct, &each)?;
        let most = each.iter().map(|said| said.most).min().unwrap_or(1);
        // Every PE sees what all said, so every PE takes the same way out from here.
        for (pe, said) in (0..).zip(&each) {
            let (asked, _) = said.options.blocks(said.size as usize, most);
            if asked > fits {
                return Err(CommError::Blocks { asked, fits });
            }
            let other = each.iter().position(|other| other.team == said.team && other.options != said.options);
            if let Some(other) = other {
                return Err(CommError::Options { pe, other: other as u32 });
            }
        }
        let mut needs = Needs { signals: 0, scratch: 0 };
        for said in &each {
            // Only the size of a team matters for what it needs.
            let needed = said.options.layout(TeamView::strided(0, 1, said.size, 0, Sym::empty()), most).needs();
            needs.signals = needs.signals.max(needed.signals);
            needs.scratch = needs.scratch.max(needed.scratch);
        }
        let plan = self.plan(Room { layout: options.layout(team, most), needs })?;
        let lists = self.alloc(STREAMS as usize * TRANSFERS)?;
        let largest = each.iter().map(|one| one.size).max().unwrap_or(1) as usize;
        let lines_arrive = self.tunables().get(Key::Ll128Enable) == 1
            && self_test::lines_arrive(self, team, plan.view().over(Protocol::Ll128), largest)?;
        let shared = Arc::clone(self.shared());
        let streams = Mutex::default();
        Ok(Comm {
            shared,
            team,
            algorithms: self.algorithms(),
            _own_team: own_team,
            all_direct,
            levels: None,
            plan,
            lists,
            selector,
            options,
            most: options.blocks(team.size(), most).0,
            lines_arrive,
            streams,
            forced: None,
        })
    }

    /// The selector of a team, once it is known that those of all members of each team decide alike.
    fn agreed_selector(&mut self, all_direct: bool, each: &[Said]) -> Result<Selector, CommError> {
        let machine = self.shared().machine().parameters(!all_direct);
        let selector = Selector::from_tunables(self.tunables(), machine, self.algorithms());
        let digest = |selector: &Selector| selector.digest().iter().map(|byte| format!("{byte:02x}")).collect();
        let mine: String = selector.as_ref().map_or_else(ToString::to_string, digest);
        let all = self.exchange("how algorithms are chosen", &mine)?;
        let selector = selector?;
        // Every PE compares all, so that every PE takes the same way out.
        let first_of = |pe: usize| each.iter().position(|said| said.team == each[pe].team).unwrap_or(pe);
        let is_digest = |said: &String| said.bytes().all(|byte| byte.is_ascii_hexdigit());
        let differs = |&pe: &usize| !all.get(pe).is_some_and(is_digest) || all.get(pe) != all.get(first_of(pe));
        match (0..each.len()).find(differs) {
            Some(pe) => Err(CommError::Choices { pe: pe as u32 }),
            None => Ok(selector),
        }
    }
}

impl Comm {
    /// Splits the communicator: members that give the same colour form a new one, ordered by key and then by PE. `None` as a
    /// colour joins none. The new ones are made with this one's options.
    ///
    /// # Collective
    /// Over the world, so that heaps stay alike: every PE splits a communicator that it is in, or calls
    /// [`World::comm_split`] with no colour.
    ///
    /// # Errors
    /// See [`CommError`].
    #[track_caller]
    pub fn split(&self, world: &mut World, colour: Option<u32>, key: u32) -> Result<Option<Comm>, CommError> {
        if world.shared().id() != self.shared.id() {
            return Err(CommError::ForeignWorld);
        }
        let (offset, first) = identity(world, self.team).map_err(CollectiveError::World)?;
        world.split_within(format!("{offset} {first}"), colour, key, self.options)
    }
}

/// Blocks of launches for long messages, where nobody says how many. Cores are busy with one block for each PE. A GPU's block
/// moves a few tens of GB/s at most, so it takes as many as NCCL has channels there, as far as launches on all streams of all PEs
/// that share it leave each block a multiprocessor.
pub(crate) fn usual_blocks(machine: &Machine) -> u32 {
    const MOST: u32 = 32;
    machine.multiprocessors().map_or(1, |all| (all / STREAMS).clamp(1, MOST))
}

/// Scratch that a GPU's many blocks share, for each stream and protocol: a tenth of the heap in all. A queue that
/// holds less than a block stores at once costs a step for each piece.
fn shared_buffer(heap: u64) -> u64 {
    (heap / 128).clamp(Layout::BUFFER, 8 * Layout::BUFFER)
}

/// Scratch of a block where a slot and its signal cost round trips, for each stream and protocol: a quarter of the heap in all.
fn proxied_buffer(heap: u64, blocks: u32) -> u64 {
    (heap / 32 / u64::from(blocks)).clamp(Layout::BUFFER, 4 * Layout::BUFFER)
}

/// The most scratch of each block and protocol of a communicator's levels, bytes: three times as many communicators should not take three
/// times as much of the heap.
const LEVEL: u64 = 256 << 10;

/// Tells teams of a world apart, the same on every member: where its words are, and the PE of rank 0, because teams that were
/// made by one call lie at the same place.
fn identity(world: &World, team: TeamView) -> Result<(u64, u32), WorldFailure> {
    let mut first = abi::NO_PE;
    // A team of another world may name a list that is not on this heap; it is nobody's then.
    if let Some(list) = team.members().get(0..1).filter(|list| list.fits(world.shared().context().heap_bytes)) {
        world.shared().read(list.offset(), bytemuck::bytes_of_mut(&mut first))?;
    }
    Ok((team.sync().offset(), team.rank_with(0, |_| first).pe().raw()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a communicator takes of the heap, bytes, and the blocks of its largest launches.
    fn takes(options: CommOptions, members: u32, most: u32) -> (usize, u32) {
        let layout = options.layout(TeamView::strided(0, 1, members, 0, Sym::empty()), most);
        let Needs { signals, scratch } = layout.needs();
        (scratch + signals * size_of::<Signal>(), layout.blocks() / STREAMS)
    }

    #[test]
    fn levels_are_of_hosts_that_have_as_many_one_after_the_other() {
        let place = |hosts: &[u32], rank: usize| {
            let team =
                |team: u64| (0..).zip(hosts).map(move |(rank, &host)| Membership { team: (team, 0), rank, host });
            // Beside a team that is on one host.
            let other = (0..3).map(|rank| Membership { team: (9, 0), rank, host: 0 });
            let all: Vec<_> = other.chain(team(1)).collect();
            all[3 + rank].in_levels(&all)
        };
        assert_eq!([0, 1, 2, 3].map(|rank| place(&[0, 0, 7, 7], rank)), [[0, 0], [0, 1], [1, 0], [1, 1]].map(Some));
        assert_eq!(place(&[5, 5, 5, 0, 0, 0], 4), Some([1, 1]));
        for not in [&[0, 0][..], &[0, 1], &[0, 0, 1], &[0, 1, 0, 1], &[0, 0, 1, 1, 0, 0], &[0, 0, 1, 1, 1, 1]] {
            assert_eq!(place(not, 0), None, "{not:?}");
        }
    }

    #[test]
    fn more_blocks_share_the_scratch_of_one() {
        for (members, blocks) in [(2, 32), (8, 32), (16, 16), (64, 4), (300, 1)] {
            let (one, _) = takes(CommOptions::default(), members, 1);
            let (all, found) = takes(CommOptions::default(), members, 32);
            assert_eq!(found, blocks, "{members} members");
            assert!(all < one * 5 / 4, "{members} members: {all} bytes for {blocks} blocks and {one} for one");
        }
    }

    /// What queues of a block's threads need, where the heap has room for it.
    #[test]
    fn long_queues_are_for_large_heaps() {
        for (heap, slot) in [(64 << 20, 1024), (256 << 20, 2048), (1 << 30, 8192), (1 << 40, 8192)] {
            let options = CommOptions { buffer: Some(shared_buffer(heap)), ..CommOptions::default() };
            let layout = options.layout(TeamView::strided(0, 1, 8, 0, Sym::empty()), 32);
            assert_eq!(layout.slot(), slot, "a heap of {heap} bytes");
            assert!(layout.needs().scratch as u64 <= heap / 5);
        }
    }

    /// Slots of what goes through proxies, where the heap has room for them.
    #[test]
    fn proxied_queues_take_a_quarter_of_the_heap_at_most() {
        for (heap, slot) in [(32 << 20, 64 << 10), (64 << 20, 128 << 10), (128 << 20, 256 << 10), (1 << 40, 256 << 10)]
        {
            let options = CommOptions { buffer: Some(proxied_buffer(heap, 1)), ..CommOptions::default() };
            let layout = options.layout(TeamView::strided(0, 1, 4, 0, Sym::empty()), 1);
            assert!(layout.slot().abs_diff(slot) <= slot / 8, "a heap of {heap} bytes: {}", layout.slot());
            assert!(heap < 64 << 20 || layout.needs().scratch as u64 <= heap / 4 + (64 << 10));
        }
    }

    /// It was 12 MiB once.
    #[test]
    fn a_block_takes_little_of_the_heap() {
        for members in [2, 8, 16] {
            let (bytes, blocks) = takes(CommOptions::default(), members, 32);
            assert!(bytes / blocks as usize <= 1 << 20, "{members} members: {bytes} bytes for {blocks} blocks");
        }
    }

    #[test]
    fn blocks_that_are_asked_for_have_scratch_each() {
        let options = CommOptions { blocks: NonZeroU32::new(4), ..CommOptions::default() };
        let (one, _) = takes(CommOptions::default(), 8, 1);
        assert_eq!(takes(options, 8, 32), (4 * one, 4));
    }
}
