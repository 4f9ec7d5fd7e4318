//! Every way of every collective: lengths around what one piece holds and of several laps, in place and apart, by one block
//! and several, several calls in a row without a pause, every type and operator.
//!
//! Each result is compared with the model bit for bit. The model knows nothing of blocks, widths, protocols and PEs, so two
//! runs that differ in these have the same bits too.

use congruent::collectives::{Algorithm, Collective, Datatype, HasDatatype, Layout, Op, PlanView, Protocol};
use congruent::device::{Fp8E4M3, Fp8E5M2, Sym};
use congruent::{Error, Grid, Plan, Stream, SymVec, World};
use congruent_heap::{bf16, f16};

use super::expected::Call;
use super::limit::is_limited;
use super::machines::{all_shapes, few_shapes};
use super::model::{Sample, samples};
use super::pattern::{assert_same, values};
use super::ways::{Args, Site, Way};

/// Blocks of the largest launch.
const BLOCKS: u32 = 3;
/// Elements around a range that must stay as they are: ranges start on no boundary.
const MARGIN: usize = 3;
/// Calls in a row, the second in place.
const CALLS: usize = 3;
/// Steps of the longest messages: more than a queue holds.
const LAPS: usize = Layout::DEPTH as usize + 1;
/// What the scalar of a premul-sum is a sample of.
const SCALARS: u64 = 201;

/// Every way of every collective.
pub(super) fn ways(world: &mut World) -> Result<(), Error> {
    these(world, Way::all(world.npes()))
}

/// These ways.
pub(super) fn these(world: &mut World, ways: Vec<Way>) -> Result<(), Error> {
    let layout = Layout::new(world.team(), BLOCKS).buffer(0);
    let mut bench = Bench::new(world, layout)?;
    let everything = all_shapes();
    for (nth, way) in ways.into_iter().enumerate() {
        for (i, len) in lengths(&layout, &way).into_iter().enumerate() {
            // Half of them, and the other half with one PE more.
            if !everything && (nth + i + world.npes()) % 2 == 1 {
                continue;
            }
            let blocks: &[u32] = if everything { &[1, 2, 3] } else { &[1 + bench.cases % BLOCKS] };
            for &blocks in blocks {
                bench.any_type(world, way, len, blocks)?;
            }
        }
        match way.reduces() {
            true if everything => bench.every_type(world, way)?,
            true if !is_limited() => bench.every_operator(world, way)?,
            _ => {}
        }
    }
    Ok(())
}

/// These ways with every type and operator that they have.
pub(super) fn types(world: &mut World, ways: Vec<Way>) -> Result<(), Error> {
    let mut bench = Bench::new(world, Layout::new(world.team(), BLOCKS).buffer(0))?;
    ways.into_iter().filter(Way::reduces).try_for_each(|way| bench.every_type(world, way))
}

/// How long a message is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Length {
    /// So many elements.
    Elements(usize),
    /// Whole steps of all blocks, and so many elements more.
    Steps(usize, isize),
    /// Steps that each move 128 bytes only.
    ShortSteps(usize),
}

fn lengths(layout: &Layout, way: &Way) -> [Length; 7] {
    use Length::{Elements, Steps};
    let step = step_bytes(layout, way);
    assert!(step >= 128, "{way:?} with steps of {step} bytes");
    [Elements(0), Elements(1), Elements(37), Steps(1, -1), Steps(1, 0), Steps(1, 1), Steps(LAPS, 5)]
}

/// Bytes of data that go in one step: where data has flags a slot is half as long, of which LL has half and of each line LL128 all but the
/// last word.
fn step_bytes(layout: &Layout, way: &Way) -> usize {
    let (slot, line) = (layout.slot(), layout.line_bytes() as usize);
    match way.protocol {
        protocol if way.algorithm == Algorithm::ONE_SHOT => layout.shot(protocol),
        Protocol::Simple => slot,
        Protocol::Ll => slot / 2 / 2,
        Protocol::Ll128 => slot / 2 / line * (line - 8) / 128 * 128,
    }
}

/// A case with elements of one type.
type Case = fn(&Bench, &World, Way, Length, u32, usize) -> Result<(), Error>;

const TYPES: [(Datatype, Case); 14] = [
    (Datatype::F32, Bench::case::<f32>),
    (Datatype::F16, Bench::case::<f16>),
    (Datatype::I32, Bench::case::<i32>),
    (Datatype::F8E4M3, Bench::case::<Fp8E4M3>),
    (Datatype::U64, Bench::case::<u64>),
    (Datatype::Bf16, Bench::case::<bf16>),
    (Datatype::I8, Bench::case::<i8>),
    (Datatype::F64, Bench::case::<f64>),
    (Datatype::U16, Bench::case::<u16>),
    (Datatype::F8E5M2, Bench::case::<Fp8E5M2>),
    (Datatype::U8, Bench::case::<u8>),
    (Datatype::I64, Bench::case::<i64>),
    (Datatype::I16, Bench::case::<i16>),
    (Datatype::U32, Bench::case::<u32>),
];

/// What all cases use again and again: nothing in a plan is ever reset.
pub(super) struct Bench {
    layout: Layout,
    plan: Plan,
    stream: Stream,
    /// Destination and source of each call of a case.
    buffers: Vec<(SymVec<u8>, SymVec<u8>)>,
    /// How many there were: each is with another type and operator.
    cases: u32,
}

impl Bench {
    pub(super) fn new(world: &mut World, layout: Layout) -> Result<Self, Error> {
        let bytes = LAPS * layout.slot().max(layout.inbox()) * world.npes() * BLOCKS as usize + 1024;
        let mut buffers = Vec::new();
        for _ in 0..CALLS {
            buffers.push((world.alloc(bytes)?, world.alloc(bytes)?));
        }
        Ok(Self { layout, plan: world.plan(layout)?, stream: world.stream()?, buffers, cases: 0 })
    }

    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// A case of the next type.
    fn any_type(&mut self, world: &World, way: Way, len: Length, blocks: u32) -> Result<(), Error> {
        self.cases += 1;
        self.type_of(way)(self, world, way, len, blocks, CALLS)
    }

    /// Cases of every type with every operator; in a few shapes every third of them, which is each type and each operator.
    fn every_type(&mut self, world: &World, way: Way) -> Result<(), Error> {
        let step = if few_shapes() { 3 } else { 1 };
        for _ in 0..(TYPES.len() * Op::ALL.len()).div_ceil(step as usize) {
            self.cases += step - 1;
            self.any_type(world, way, Length::Elements(37), 2)?;
        }
        Ok(())
    }

    /// Cases of every operator, on one type: what is a contribution and what a partial result differs for some of them only.
    fn every_operator(&mut self, world: &World, way: Way) -> Result<(), Error> {
        for _ in Op::ALL {
            // So many cases later comes the same type, with the next operator.
            self.cases += TYPES.len() as u32 - 1;
            self.any_type(world, way, Length::Elements(37), 2)?;
        }
        Ok(())
    }

    /// One call by one block, of the next type.
    pub(super) fn once(&mut self, world: &World, way: Way, len: Length) -> Result<(), Error> {
        self.cases += 1;
        self.type_of(way)(self, world, way, len, 1, 1)
    }

    /// The case's type: the next one that the way has an operator on.
    fn type_of(&self, way: Way) -> Case {
        let has_one = |(datatype, _): &&(Datatype, Case)| Op::ALL.iter().any(|&op| way.takes(op, *datatype));
        let types = TYPES.iter().filter(has_one);
        types.clone().nth(self.cases as usize % types.count()).map_or(TYPES[0].1, |&(_, case)| case)
    }

    /// Calls in a row, and what must come of them.
    fn case<T: Sample + HasDatatype>(
        &self,
        world: &World,
        way: Way,
        len: Length,
        blocks: u32,
        calls: usize,
    ) -> Result<(), Error> {
        let n = world.npes();
        // Where a step moves a part of the buffer only, there are as many at once as parts.
        let parts = match (way.collective, way.algorithm) {
            (Collective::AllReduce, Algorithm::RING | Algorithm::DIRECT | Algorithm::MULTIMEM) => n,
            (Collective::AllReduce, Algorithm::TREE) => n.min(2),
            _ => 1,
        };
        let step = |bytes: usize| bytes / size_of::<T>() * blocks as usize * parts;
        let len = match len {
            Length::Elements(len) => len,
            Length::Steps(steps, more) => (steps * step(step_bytes(&self.layout, &way))).saturating_add_signed(more),
            Length::ShortSteps(steps) => steps * step(128),
        };
        let takes = |op: &Op| op.supports(T::DATATYPE) && way.takes(*op, T::DATATYPE);
        let ops: Vec<Op> = Op::ALL.iter().copied().filter(takes).collect();
        let op = ops[self.cases as usize / TYPES.len() % ops.len()];
        let calls = (0..calls).map(|i| Call {
            way,
            op,
            scalar: T::sample(SCALARS, 0, i),
            root: (self.cases as usize + i) % n,
            members: n,
            len,
            buffer: (self.cases as usize % 60 * CALLS + i) as u64,
        });
        let made = calls.zip(&self.buffers).enumerate().map(|(i, (call, buffers))| {
            let made = Made::write(world, call, buffers, i == 1)?;
            let site = Site { world, stream: &self.stream, grid: Grid::new(blocks, 64 - 16 * (blocks % 2)) };
            let plan = self.plan.view();
            way.launch(&site, made.args(world, plan))?;
            Ok(made)
        });
        let made = made.collect::<Result<Vec<_>, Error>>()?;
        world.synchronize(&self.stream)?;
        made.into_iter().try_for_each(|made| made.check(world, || format!("{blocks} blocks")))
    }
}

/// A call that was made.
struct Made<'m, T> {
    call: Call<T>,
    dst: &'m SymVec<u8>,
    src: &'m SymVec<u8>,
    in_place: bool,
    /// What lay in the buffers before.
    before: [Vec<T>; 2],
}

impl<'m, T: Sample + HasDatatype> Made<'m, T> {
    fn write(
        world: &World,
        call: Call<T>,
        (dst, src): &'m (SymVec<u8>, SymVec<u8>),
        in_place: bool,
    ) -> Result<Self, Error> {
        let me = world.pe().index();
        let (to, from) = call.way.lengths(call.len, call.members);
        let around = |len: usize| values::<T>(202, me, len + 2 * MARGIN);
        let mut made = Self { call, dst, src, in_place, before: [around(to.max(from)), around(from)] };
        let [_, at] = made.starts(me);
        let into = &mut made.before[usize::from(!in_place)];
        into[at..at + from].copy_from_slice(&samples(call.buffer, me, from));
        for (buffer, before) in [dst, src].iter().zip(&made.before) {
            buffer.write(0, bytemuck::cast_slice(before))?;
        }
        Ok(made)
    }

    /// Where destination and source start: in place, the shorter one is this member's part of the longer one.
    fn starts(&self, me: usize) -> [usize; 2] {
        let (to, from) = self.call.way.lengths(self.call.len, self.call.members);
        let inside = |len: usize, whole: usize| if self.in_place && len < whole { MARGIN + me * len } else { MARGIN };
        [inside(to, from), inside(from, to)]
    }

    fn args(&self, world: &World, plan: PlanView) -> Args {
        let (to, from) = self.call.way.lengths(self.call.len, self.call.members);
        let [dst_at, src_at] = self.starts(world.pe().index());
        let part = |of: &SymVec<u8>, at: usize, len: usize| -> Sym<u8> {
            of.view().slice(at * size_of::<T>()..(at + len) * size_of::<T>())
        };
        Args {
            dst: part(self.dst, dst_at, to),
            src: part(if self.in_place { self.dst } else { self.src }, src_at, from),
            reduction: self.call.reduction(),
            root: self.call.root as u32,
            plan,
            rounds: 1,
        }
    }

    fn check(self, world: &World, how: impl Fn() -> String) -> Result<(), Error> {
        let Call { way, op, root, len, .. } = self.call;
        let me = world.pe().index();
        let (to, from) = way.lengths(len, self.call.members);
        let [at, _] = self.starts(me);
        let case = |what: &str| {
            let place = if self.in_place { "in place" } else { "apart" };
            let n = self.call.members;
            format!("{what} of {way:?}, {op} of {len} {}, root {root}, {n} members, {place}, {}", T::DATATYPE, how())
        };
        let result = self.call.expected(me, |rank| rank);
        let [mut dst, src] = self.before;
        let mut found = vec![T::zeroed(); dst.len()];
        self.dst.read(0, bytemuck::cast_slice_mut(&mut found))?;
        if self.in_place && way.reduces() && to < from {
            // What becomes of the other members' parts is nobody's business.
            let whole = MARGIN..MARGIN + from;
            dst[whole.clone()].copy_from_slice(&found[whole]);
        }
        if let Some(result) = result {
            dst[at..at + to].copy_from_slice(&result);
        }
        assert_same(&found, &dst, || case("the destination"));
        let mut found = vec![T::zeroed(); src.len()];
        self.src.read(0, bytemuck::cast_slice_mut(&mut found))?;
        assert_same(&found, &src, || case("the source"));
        Ok(())
    }
}
