//! Many collectives back to back, on several streams and plans, with members that are late at random.

use congruent::collectives::{Algorithm, HasDatatype, Layout, Op};
use congruent::device::{Semaphore, World as WorldTag};
use congruent::{Error, Grid, Plan, SymVec, Team, World};
use congruent_heap::f16;
use congruent_test_kernels::collectives::delay;

use super::expected::Call;
use super::model::{Sample, samples};
use super::pattern::{assert_same, value};
use super::ways::{Args, Site, Way};

/// Blocks of the largest launch.
const BLOCKS: u32 = 2;
/// Elements of the longest part.
const LONGEST: usize = 700;
/// The longest that a member is late, in microseconds.
const LATE_US: usize = 300;

/// What is drawn at random, the same on every PE but for lateness.
struct Dice {
    seed: u64,
    thrown: usize,
}

impl Dice {
    fn below(&mut self, sides: usize) -> usize {
        self.thrown += 1;
        (value::<u64>(self.seed, 0, self.thrown) % sides as u64) as usize
    }
}

/// A team with its plan; every stream has slots of its own in it.
struct Crew {
    plan: Plan,
    /// The PE of each rank.
    pes: Vec<usize>,
    me: usize,
    _own: Option<Team<WorldTag>>,
}

impl Crew {
    fn new(world: &mut World, pes: Vec<usize>, streams: usize) -> Result<Self, Error> {
        let listed: Vec<u32> = pes.iter().map(|&pe| pe as u32).collect();
        let own = world.listed_team::<WorldTag>(&listed)?;
        let team = own.as_ref().map_or(world.team(), Team::view);
        let plan = world.plan(Layout::new(team, BLOCKS * streams as u32).buffer(0))?;
        let me = pes.iter().position(|&pe| pe == world.pe().index()).unwrap_or_default();
        Ok(Self { plan, pes, me, _own: own })
    }
}

/// Checks what has come of a call.
type Verify = Box<dyn FnOnce(&Memory, usize) -> Result<(), Error>>;

impl Crew {
    /// Puts a collective of elements of `T` on a stream.
    fn call<T: Sample + HasDatatype>(
        &self,
        site: &Site<'_>,
        way: Way,
        slot: usize,
        memory: &mut Memory,
        dice: &mut Dice,
    ) -> Result<Verify, Error> {
        let n = self.pes.len();
        let on_type = || Op::ALL.iter().copied().filter(|op| op.supports(T::DATATYPE));
        // Links have no operator on some types; other members do.
        let has_one = on_type().any(|op| way.takes(op, T::DATATYPE));
        let way = if has_one { way } else { Way { algorithm: Algorithm::DIRECT, ..way } };
        let ops: Vec<Op> = on_type().filter(|&op| way.takes(op, T::DATATYPE)).collect();
        // Mostly short ones; nothing fits a piece exactly.
        let longest = if dice.below(4) == 0 { LONGEST } else { 40 };
        let call = Call {
            way,
            op: ops[dice.below(ops.len())],
            scalar: T::sample(dice.thrown as u64, 0, 0),
            root: dice.below(n),
            members: n,
            len: dice.below(longest),
            buffer: dice.below(200) as u64,
        };
        let (to, from) = way.lengths(call.len, n);
        let (dst, src) = (memory.take::<T>(to), memory.take::<T>(from));
        let part = |at: usize, len: usize| memory.bytes.slice(at..at + len * size_of::<T>());
        let mine: Vec<T> = samples(call.buffer, self.pes[self.me], from);
        memory.bytes.write(src, bytemuck::cast_slice(&mine))?;
        let (plan, root) = (self.plan.view().from_slot(slot), call.root as u32);
        let args =
            Args { dst: part(dst, to)?, src: part(src, from)?, reduction: call.reduction(), root, plan, rounds: 1 };
        way.launch(site, args)?;
        let (me, pes) = (self.me, self.pes.clone());
        Ok(Box::new(move |memory, i| {
            // Memory is zero until something is written.
            let expected = call.expected(me, |rank| pes[rank]).unwrap_or_else(|| vec![T::zeroed(); to]);
            let mut found = vec![T::zeroed(); to];
            memory.bytes.read(dst, bytemuck::cast_slice_mut(&mut found))?;
            assert_same(&found, &expected, || format!("call {i}, {way:?} of {} {} by {pes:?}", call.len, T::DATATYPE));
            Ok(())
        }))
    }
}

/// Memory of which each call is given some that no other has.
struct Memory {
    bytes: SymVec<u8>,
    used: usize,
}

impl Memory {
    fn take<T>(&mut self, len: usize) -> usize {
        let at = self.used.next_multiple_of(size_of::<T>());
        self.used = at + len * size_of::<T>();
        at
    }
}

/// Makes `calls` collectives of random ways, types, operators, roots and lengths, by two teams that have the members in
/// different orders, each on two streams. Nothing waits for anything until all are enqueued.
pub fn mixed(world: &mut World, seed: u64, calls: usize) -> Result<(), Error> {
    let n = world.npes();
    let streams = [world.stream()?, world.stream()?];
    // Every other PE from the last one on, then the rest.
    let shuffled = (0..n).rev().step_by(2).chain((0..n).rev().skip(1).step_by(2)).collect();
    let crews = [Crew::new(world, (0..n).collect(), streams.len())?, Crew::new(world, shuffled, streams.len())?];
    let never = world.alloc::<Semaphore>(1)?;
    let mut memory = Memory { bytes: world.alloc(calls * (n * 700 + 512))?, used: 0 };
    let mut dice = Dice { seed, thrown: 0 };
    let mut late = Dice { seed: seed + 1 + world.pe().index() as u64, thrown: 0 };
    let mut ways = Way::all(n);
    if world.team().window() != 0 {
        ways.extend(Way::multimem(n));
    }
    let mut made = Vec::new();
    for i in 0..calls {
        let (stream, crew) = (dice.below(streams.len()), &crews[dice.below(crews.len())]);
        let site =
            Site { world, stream: &streams[stream], grid: Grid::new(1 + dice.below(BLOCKS as usize) as u32, 64) };
        if late.below(8) == 0 {
            world.launch(site.stream, delay, Grid::one(1), (never.view(), late.below(LATE_US) as u64))?;
        }
        let slot = stream * BLOCKS as usize;
        let way = ways[dice.below(ways.len())];
        made.push(match i % 4 {
            0 => crew.call::<f32>(&site, way, slot, &mut memory, &mut dice)?,
            1 => crew.call::<f16>(&site, way, slot, &mut memory, &mut dice)?,
            2 => crew.call::<i64>(&site, way, slot, &mut memory, &mut dice)?,
            _ => crew.call::<u8>(&site, way, slot, &mut memory, &mut dice)?,
        });
    }
    streams.iter().try_for_each(|stream| world.synchronize(stream))?;
    made.into_iter().enumerate().try_for_each(|(i, verify)| verify(&memory, i))
}
