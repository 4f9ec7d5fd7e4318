//! A walk by chance over a graph: each step is a sparse matrix times a vector, both spread over the PEs.
//!
//! A PE has the rows of some vertices. Most entries of a row belong to vertices of the same PE; what is multiplied with
//! the others is the halo, and lies on other PEs. In each step a block packs its share of what the others need and puts
//! it there with a signal. Then it multiplies what is near, and only then waits for the halo and multiplies what is far.
//!
//! The lesson: the signals of one step keep the next ones in order, so that no barrier is needed. There are two halos.
//! Who has a step's numbers from all its neighbours knows that they have done with the halo of the step before: that one
//! is free again. So a PE is at most one step ahead of its neighbours. All steps are given to the stream at once.
//!
//! Run it with `cargo run --release --example sparse -- --pes 4`, or with
//! `congruent run -n 4 target/release/examples/sparse`.

use std::collections::BTreeSet;
use std::error::Error;
use std::ops::Range;
use std::time::Instant;

use clap::Parser;
use congruent::device::{Pod, Signal};
use congruent::{Buffer, Grid, World};
use congruent_example_kernels::sparse::{Entry, Exchange, Part, multiply};

/// Walks by chance over a graph that is spread over several PEs.
#[derive(Parser)]
struct Args {
    /// PEs, as threads of this process, where no launcher starts them
    #[arg(long, default_value_t = 4)]
    pes: usize,
    /// Vertices of the graph
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    vertices: u32,
    /// Steps
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(..=10_000))]
    steps: u32,
    /// Blocks of a launch
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    blocks: u32,
}

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let args = Args::parse();
    congruent::run(args.pes, |world| run(world, &args))?;
    Ok(())
}

/// The neighbours of each vertex: the two before it and the two after it in a ring, and of every sixteenth vertex one
/// that looks like chance.
fn graph(vertices: usize) -> Vec<BTreeSet<usize>> {
    let mut neighbours = vec![BTreeSet::new(); vertices];
    let mut link = |a: usize, b: usize| {
        neighbours[a].insert(b);
        neighbours[b].insert(a);
    };
    for v in 0..vertices {
        link(v, (v + 1) % vertices);
        link(v, (v + 2) % vertices);
        if v % 16 == 0 {
            let chance = (v as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
            link(v, (chance.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32) as usize % vertices);
        }
    }
    neighbours
}

/// The vertices of a PE: as many as those of any other, but for the last ones.
fn vertices_of(pe: usize, npes: usize, vertices: usize) -> Range<usize> {
    let each = vertices.div_ceil(npes);
    (pe * each).min(vertices)..((pe + 1) * each).min(vertices)
}

/// What a PE needs of another one, in order.
fn needs(graph: &[BTreeSet<usize>], mine: Range<usize>, theirs: &Range<usize>) -> Vec<usize> {
    let needed: BTreeSet<_> = graph[mine].iter().flatten().copied().filter(|v| theirs.contains(v)).collect();
    needed.into_iter().collect()
}

/// Rows of entries, one behind the other, and where each begins.
#[derive(Default)]
struct Rows {
    offsets: Vec<u32>,
    entries: Vec<Entry>,
}

/// A buffer with these elements.
fn buffer<T: Pod + Send + Sync>(world: &World, elements: &[T]) -> Result<Buffer<T>> {
    let mut buffer = world.buffer(elements.len())?;
    buffer.write(0, elements)?;
    Ok(buffer)
}

fn run(world: &mut World, args: &Args) -> Result<()> {
    let (me, npes, vertices) = (world.pe().index(), world.npes(), args.vertices as usize);
    let graph = graph(vertices);
    let of = |pe| vertices_of(pe, npes, vertices);
    let mine = of(me);
    // From a vertex the walk goes on to each of its neighbours alike.
    let share = |v: usize| 1.0 / graph[v].len() as f64;

    let (mut parts, mut gives, mut halo) = (Vec::new(), Vec::new(), Vec::new());
    for pe in (0..npes).filter(|&pe| pe != me) {
        let given = needs(&graph, of(pe), &mine);
        if !given.is_empty() {
            // In the halo there, numbers lie in the order of the PEs that give them.
            let to: usize =
                (0..me).filter(|&other| other != pe).map(|other| needs(&graph, of(pe), &of(other)).len()).sum();
            let (from, count) = (gives.len() as u32, given.len() as u32);
            parts.push(Part { pe: pe as u32, from, to: to as u32, count });
            gives.extend(given.iter().map(|v| (v - mine.start) as u32));
            halo.extend(needs(&graph, mine.clone(), &of(pe)));
        }
    }
    let [mut near, mut far] = [Rows::default(), Rows::default()];
    for v in mine.clone() {
        near.offsets.push(near.entries.len() as u32);
        far.offsets.push(far.entries.len() as u32);
        for &from in &graph[v] {
            let value = share(from);
            match mine.contains(&from) {
                true => near.entries.push(Entry { value, column: (from - mine.start) as u64 }),
                false => far.entries.push(Entry { value, column: halo.partition_point(|&v| v < from) as u64 }),
            }
        }
    }
    near.offsets.push(near.entries.len() as u32);
    far.offsets.push(far.entries.len() as u32);

    // What is symmetric has one size on all PEs.
    let pairs = (0..npes).flat_map(|pe| (0..npes).filter(move |&other| other != pe).map(move |other| (pe, other)));
    let (mut takes, mut gave) = (vec![0; npes], vec![0; npes]);
    for (pe, other) in pairs {
        let count = needs(&graph, of(pe), &of(other)).len();
        takes[pe] += count;
        gave[other] += count;
    }
    let most = |counts: Vec<usize>| counts.into_iter().fold(1, usize::max);
    let (packed, halos) = (world.alloc::<f64>(most(gave))?, world.alloc::<f64>(2 * most(takes))?);
    let sent = world.alloc::<Signal>(npes * args.blocks as usize)?;
    let (parts, gives) = (buffer(world, &parts)?, buffer(world, &gives)?);
    let [near, far] = [near, far].map(|rows| {
        Ok::<_, Box<dyn Error + Send + Sync>>((buffer(world, &rows.offsets)?, buffer(world, &rows.entries)?))
    });
    let ((near_offsets, near), (far_offsets, far)) = (near?, far?);

    // The walk begins at vertex 0.
    let mut start = vec![0.0; vertices];
    start[0] = 1.0;
    let (mut x, mut y) = (buffer(world, &start[mine.clone()])?, buffer(world, &start[mine.clone()])?);
    let (stream, grid) = (world.stream()?, Grid::new(args.blocks, 128));
    world.barrier()?;
    let started = Instant::now();
    for turn in 1..=u64::from(args.steps) {
        let exchange = Exchange { packed: packed.view(), halos: halos.view(), sent: sent.view(), turn };
        let lent = (exchange, &parts, &gives, &near_offsets, &near, &far_offsets, &far, &x, &mut y);
        world.launch(&stream, multiply, grid, lent)?;
        std::mem::swap(&mut x, &mut y);
    }
    world.synchronize(&stream)?;
    let took = started.elapsed();

    // The same on one PE. A row's sum begins with the vertices of the PE that has it.
    let mut expected = start;
    for _ in 0..args.steps {
        expected = (0..vertices)
            .map(|v| {
                let here = (0..npes).map(of).find(|range| range.contains(&v)).unwrap_or_default();
                let (near, far): (Vec<usize>, Vec<usize>) = graph[v].iter().partition(|&from| here.contains(from));
                near.into_iter().chain(far).fold(0.0, |sum, from| sum + share(from) * expected[from])
            })
            .collect();
    }
    let found = x.to_vec()?;
    if let Some(i) = (0..mine.len()).find(|&i| found[i].to_bits() != expected[mine.start + i].to_bits()) {
        let (v, found, right) = (mine.start + i, found[i], expected[mine.start + i]);
        return Err(format!("PE {me}: the walk is at vertex {v} with probability {found}, not {right}").into());
    }
    // Nobody ends while another one still sends.
    world.barrier()?;
    if me == 0 {
        let (entries, reached) =
            (graph.iter().map(BTreeSet::len).sum::<usize>(), expected.iter().filter(|&&x| x > 0.0).count());
        println!("{vertices} vertices with {entries} entries on {npes} PEs ({})", world.machine());
        println!("after {} steps the walk may be at {reached} of them", args.steps);
        println!("every probability on every PE is that of one PE, bit for bit; {} steps took {took:?}", args.steps);
    }
    Ok(())
}
