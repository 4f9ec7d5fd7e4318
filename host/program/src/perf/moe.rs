//! Tokens that travel to experts of other PEs and back: dispatch and combine, by calls on a stream.

use std::path::PathBuf;

use congruent_collectives::Datatype;
use congruent_collectives::moe::{Added, MoeConfig, Tokens};
use congruent_device::{Sym, bf16, f16};

use super::case::{Case, Labels, Path, Row, Work};
use super::keep;
use super::pattern::{GUARD, Sample, clear, number, wrong_guard};
use super::sweep::{self, Plan, Swept};
use super::{Blocks, Common};
use crate::failure::Failure;
use congruent::{Answer, Grid, Moe, RowsByExpert, Stream, SymVec, World};

/// What an exchange of tokens takes.
#[derive(clap::Args)]
pub(crate) struct MoeArgs {
    /// Tokens of each PE; several numbers, with commas, make a row each
    #[arg(short = 't', long, value_name = "N", value_delimiter = ',', default_value = "128", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    tokens: Vec<u32>,
    /// Numbers of a token
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    hidden: u32,
    /// Experts of a token
    #[arg(short = 'k', long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    top_k: u32,
    /// Experts on all PEs together
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    experts: u32,
    /// Type of tokens and answers: float, half or bfloat16
    #[arg(short, long, value_name = "TYPE", value_parser = super::datatype(), default_value = Datatype::Bf16.name())]
    datatype: Datatype,
    /// Draw times and bandwidths of the rows as an SVG picture, again after each row
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    blocks: Blocks,
    #[command(flatten)]
    common: Common,
}

/// Runs the rows of an exchange.
pub(super) fn run(args: &MoeArgs) -> Result<Swept, Failure> {
    match args.datatype {
        Datatype::F32 => run_of::<f32>(args),
        Datatype::F16 => run_of::<f16>(args),
        Datatype::Bf16 => run_of::<bf16>(args),
        other => Err(Failure::Usage(format!("-d {other}: experts answer in float, half or bfloat16"))),
    }
}

fn run_of<T: Answer + Sample>(args: &MoeArgs) -> Result<Swept, Failure> {
    let each = u64::from(args.hidden) * size_of::<T>() as u64;
    let mut sizes: Vec<u64> = args.tokens.iter().map(|&tokens| u64::from(tokens) * each).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let blocks = args.blocks.blocks;
    let plot = args.plot.as_deref();
    let plan = Plan { blocks, all: true, graph: true, plot, ..Plan::new("moe", &args.common, 4, &sizes) };
    let pes = plan.settle_pes()?;
    let config = args.config::<T>(plan.longest() / each);
    config.check(pes).map_err(|error| Failure::Usage(error.to_string()))?;
    let rows = config.most_rows(pes, 1) * each;
    let choices = 8 * plan.longest() / each * u64::from(args.top_k);
    let starts = 4 * (u64::from(args.experts) + 1);
    // With room for a proxy's copies: nobody knows yet whether there is one.
    let more_heap = config.bytes(pes, true) + rows + choices + starts;
    let swept =
        sweep::run(Plan { more_heap, ..plan }, |world, plan| Ok(Box::new(Exchange::<T>::new(world, plan, args)?)))?;
    if let (Some(path), Some(document)) = (plot, &swept.document) {
        keep::draw(path, document)?;
    }
    Ok(swept)
}

impl MoeArgs {
    fn config<T>(&self, tokens: u64) -> MoeConfig {
        let bytes = self.hidden * size_of::<T>() as u32;
        let config = MoeConfig::new(tokens as u32, self.experts, self.top_k).blocks(self.blocks.blocks);
        config.payload(bytes).output(bytes)
    }
}

/// An exchange whose experts answer with what they are given.
struct Exchange<T> {
    routing: Routing,
    hidden: usize,
    moe: Moe,
    me: usize,
    dst: SymVec<T>,
    src: SymVec<T>,
    experts: SymVec<i32>,
    weights: SymVec<f32>,
    /// Rows by expert, which are their own answers.
    rows: SymVec<T>,
    starts: SymVec<u32>,
}

impl<T: Answer + Sample> Exchange<T> {
    fn new(world: &mut World, plan: &Plan<'_>, args: &MoeArgs) -> Result<Self, Failure> {
        let (hidden, npes) = (args.hidden as usize, world.npes());
        let tokens = plan.longest() as usize / size_of::<T>() / hidden;
        let routing = Routing { config: args.config::<T>(tokens as u64), npes };
        if routing.most::<T>() == 0 {
            return Err(Failure::Usage(format!(
                "-k {}: sums of so many {} would be rounded, so nothing could be checked; give fewer",
                args.top_k,
                T::DATATYPE
            )));
        }
        let moe = world.moe(world.team(), routing.config).map_err(|error| Failure::Failed(error.to_string()))?;
        let (choices, rows) = (tokens * args.top_k as usize, routing.config.most_rows(npes as u32, 1) as usize);
        Ok(Self {
            hidden,
            moe: moe.with_grid(Grid::new(plan.blocks, plan.common.threads)),
            me: world.pe().index(),
            dst: world.alloc(tokens * hidden + GUARD)?,
            src: world.alloc(tokens * hidden + GUARD)?,
            experts: world.alloc(choices)?,
            weights: world.alloc(choices)?,
            rows: world.alloc(rows * hidden)?,
            starts: world.alloc(args.experts.div_ceil(npes as u32) as usize + 1)?,
            routing,
        })
    }

    /// Tokens of a row.
    fn count(&self, row: Row) -> usize {
        row.size as usize / size_of::<T>() / self.hidden
    }

    /// Element `i` of this PE's tokens.
    fn element(&self, i: usize) -> u64 {
        number(self.me, i, self.routing.most::<T>())
    }
}

impl<T: Answer + Sample> Case for Exchange<T> {
    fn labels(&self) -> Labels {
        Labels { unit: size_of::<T>() as u64, datatype: T::DATATYPE.name(), redop: "sum", root: -1, in_place: false }
    }

    fn path(&self, world: &World, row: Row) -> Path {
        Path::one_sided(world, "simple", self.routing.wire_bytes(self.count(row)))
    }

    fn prepare(&self, row: Row) -> Result<(), Failure> {
        let count = self.count(row);
        let choices: Vec<Choice> = (0..count).flat_map(|token| self.routing.choices(self.me, token)).collect();
        self.experts.write(0, &choices.iter().map(|choice| choice.expert as i32).collect::<Vec<_>>())?;
        self.weights.write(0, &choices.iter().map(|choice| choice.weight as f32).collect::<Vec<_>>())?;
        self.src.write(0, &(0..count * self.hidden).map(|i| T::sample(self.element(i))).collect::<Vec<_>>())?;
        Ok(clear(&self.dst, count * self.hidden)?)
    }

    fn launch(&self, _world: &World, stream: &Stream, row: Row, rounds: u64) -> Result<(), Failure> {
        let count = self.count(row);
        let (experts, weights) = (self.experts.view(), self.weights.view());
        let [dst, src] = [&self.dst, &self.src].map(|buffer| buffer.view().slice(..count * self.hidden));
        let (rows, starts) = (self.rows.view(), self.starts.view());
        let tokens = Tokens { count, payload: src.cast(), scales: Sym::empty(), experts, weights };
        let by_expert = RowsByExpert { payload: rows.cast(), scales: Sym::empty(), starts, align: 1 };
        let mut batch = self.moe.idle(0)?;
        for _ in 0..rounds {
            let received = batch.dispatch_send(stream, &tokens)?.dispatch_recv(stream, by_expert)?;
            batch = received.combine_send(stream, rows)?.combine_recv(stream, dst, Added::Nothing)?;
        }
        Ok(())
    }

    fn wrong(&self, row: Row, _work: Work) -> Result<Option<u64>, Failure> {
        let (count, found) = (self.count(row), self.dst.to_vec()?);
        let mut wrong = wrong_guard(&self.dst, count * self.hidden)?;
        for (token, sums) in found.chunks(self.hidden).take(count).enumerate() {
            let weights: u64 = self.routing.choices(self.me, token).map(|choice| choice.weight).sum();
            let expected = |i| T::sample(weights * self.element(token * self.hidden + i));
            wrong += sums.iter().enumerate().map(|(i, sum)| u64::from(*sum != expected(i))).sum::<u64>();
        }
        Ok(Some(wrong))
    }

    fn bus_factor(&self) -> f64 {
        self.routing.crossings()
    }
}

/// Which experts tokens choose: any, each as likely as every other.
#[derive(Clone, Copy)]
struct Routing {
    config: MoeConfig,
    npes: usize,
}

/// A choice of a token.
struct Choice {
    expert: usize,
    /// 1 or 2.
    weight: u64,
}

impl Routing {
    /// The largest number of a token, for which every sum is exact.
    fn most<T: Sample>(&self) -> u64 {
        T::EXACT / (2 * self.config.top_k() as u64)
    }

    /// The choices of a token of a PE.
    fn choices(&self, pe: usize, token: usize) -> impl Iterator<Item = Choice> {
        let (experts, top_k) = (self.config.expert_count(), self.config.top_k());
        let mut chosen: Vec<usize> = Vec::with_capacity(top_k);
        (0..top_k).map(move |k| {
            let at = token * top_k + k;
            // Of those that are left one, counted past those that are not.
            let mut expert = number(pe, at, (experts - k) as u64) as usize - 1;
            chosen.sort_unstable();
            chosen.iter().for_each(|&taken| expert += usize::from(taken <= expert));
            chosen.push(expert);
            Choice { expert, weight: number(self.npes + pe, at, 2) }
        })
    }

    /// How many of a PE's first `count` tokens go to each PE.
    fn sent(&self, pe: usize, count: usize) -> Vec<u64> {
        let owners: Vec<std::ops::Range<u32>> =
            (0..self.npes as u32).map(|pe| self.config.experts_of(pe, self.npes as u32)).collect();
        let mut sent = vec![0; self.npes];
        for token in 0..count {
            let chosen: Vec<u32> = self.choices(pe, token).map(|choice| choice.expert as u32).collect();
            for (sent, owned) in sent.iter_mut().zip(&owners) {
                *sent += u64::from(chosen.iter().any(|expert| owned.contains(expert)));
            }
        }
        sent
    }

    /// Bytes that the busiest PE sends to others in an exchange: its tokens, with their experts and weights, and answers to
    /// theirs.
    fn wire_bytes(&self, count: usize) -> u64 {
        let sent: Vec<Vec<u64>> = (0..self.npes).map(|pe| self.sent(pe, count)).collect();
        let token = self.config.payload_bytes() as u64 + MoeConfig::HEADER_BYTES + 8 * self.config.top_k() as u64;
        let of_pe = |pe: usize| {
            let with = |other: usize| sent[pe][other] * token + sent[other][pe] * self.config.output_bytes() as u64;
            (0..self.npes).filter(|&other| other != pe).map(with).sum()
        };
        (0..self.npes).map(of_pe).max().unwrap_or(0)
    }

    /// How often a token's numbers go from one PE to another, there and back, on average over PEs and choices.
    fn crossings(&self) -> f64 {
        let (experts, pes) = (self.config.expert_count(), self.npes as u32);
        let reaches = |pe: u32| {
            let others = experts - self.config.experts_of(pe, pes).len();
            // That no choice is an expert of the PE.
            1.0 - (0..self.config.top_k())
                .map(|k| others.saturating_sub(k) as f64 / (experts - k) as f64)
                .product::<f64>()
        };
        let all: f64 = (0..pes).map(reaches).sum();
        2.0 * all * (f64::from(pes) - 1.0) / f64::from(pes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::ways::Way;
    use congruent::Error;

    #[derive(clap::Parser)]
    struct MoeOnly {
        #[command(flatten)]
        args: MoeArgs,
    }

    #[test]
    fn what_moves_is_what_was_foretold() {
        let parsed = <MoeOnly as clap::Parser>::parse_from(["moe", "--hidden", "24", "-k", "3", "--experts", "7"]);
        for npes in [1, 2, 3, 5] {
            let sizes = [48, 48 * 30];
            let busiest = World::builder().watch(true).heap(4 << 20).local(npes, |world| {
                let plan = Plan::new("moe", &parsed.args.common, 4, &sizes);
                let case = Exchange::<bf16>::new(world, &plan, &parsed.args).unwrap();
                let (stream, me) = (world.stream()?, world.pe().index());
                let mut told = Vec::new();
                for row in sizes.map(|size| Row { size, in_place: false, way: Way::ONLY }) {
                    let moved = |world: &World| {
                        let put = world.traffic().map(|traffic| traffic.put);
                        put.iter().flatten().enumerate().filter(|(to, _)| *to != me).map(|(_, put)| put).sum::<u64>()
                    };
                    case.prepare(row).unwrap();
                    world.barrier()?;
                    let before = moved(world);
                    case.launch(world, &stream, row, 3).unwrap();
                    world.synchronize(&stream)?;
                    let wrong = case.wrong(row, Work { launches: 1, rounds: 3 }).unwrap();
                    told.push((moved(world) - before, 3 * case.path(world, row).wire_bytes, wrong));
                    world.barrier()?;
                }
                Ok::<_, Error>(told)
            });
            let all = busiest.unwrap();
            for row in 0..sizes.len() {
                let (moved, wire) = (all.iter().map(|told| told[row].0).max(), all[0][row].1);
                assert_eq!(moved, Some(wire), "{npes} PEs, {} bytes", sizes[row]);
                assert!(all.iter().all(|told| told[row].2 == Some(0)), "{all:?}");
            }
        }
    }

    #[test]
    fn every_token_has_as_many_experts_as_it_should_and_crossings_are_their_mean() {
        let (config, npes) = (MoeConfig::new(400, 10, 4).payload(16).output(16), 3);
        let routing = Routing { config, npes };
        for (pe, token) in [(0, 0), (1, 7), (2, 399)] {
            let mut experts: Vec<usize> = routing.choices(pe, token).map(|choice| choice.expert).collect();
            experts.sort_unstable();
            experts.dedup();
            assert!(experts.len() == 4 && experts[3] < 10, "{experts:?}");
        }
        let others = |pe: usize| -> u64 { routing.sent(pe, 400).iter().sum::<u64>() - routing.sent(pe, 400)[pe] };
        let mean = 2.0 * (0..npes).map(others).sum::<u64>() as f64 / (400 * npes) as f64;
        assert!((mean - routing.crossings()).abs() < 0.1, "{mean} {}", routing.crossings());
    }
}
