//! Calls in which computation and communication overlap: of kernels of the examples, as no shipped kernel has them.

use core::ops::Range;
use std::sync::PoisonError;

use congruent::collectives::Protocol;
use congruent::collectives::moe::{MoeConfig, MoeShape};
use congruent::device::{Pod, Signal, Sym, bf16};
use congruent::fused::experts::ExpertsShape;
use congruent::fused::gemm::{Eight, SHARED, SHARED_F32, THREADS};
use congruent::{Buffer, Chunked, Error, Grid, MoeError, fixed_kernels};
use congruent_example_kernels::attention::{Answer, FOURS, Four, Row, WIDTH, rows};
use congruent_example_kernels::embedding::{Table, embed};
use congruent_example_kernels::flash_decode::{Decode, flash_decode};
use congruent_example_kernels::fused_norm::{HIDDEN, multiply_sum_and_norm};
use congruent_example_kernels::gather_gemm::{Rows, gather_gemm};
use congruent_example_kernels::gemm::numbers;
use congruent_example_kernels::gemm_scatter::{Sums, gemm_scatter};
use congruent_example_kernels::moe_experts::{Routed, answer_by_experts};
use congruent_example_kernels::paged_kv::{PAGE, Page, Pages, prefill_and_decode};
use congruent_example_kernels::ring_attention::{Ring, ring_attention};
use congruent_virtual_driver as driver;
use congruent_virtual_gpu::Promises;

use super::{BLOCKS, BYTES, Calls};
use crate::recording::Copies;

/// Launches that are recorded.
const LAUNCHES: usize = 2;
/// Threads of a block that multiplies.
const TILE: Grid = Grid::new(BLOCKS, THREADS as u32);

/// Where a buffer is.
fn addresses<T: Pod>(buffer: &Buffer<T>) -> Range<u64> {
    buffer.device_ptr()..buffer.device_ptr() + (buffer.len() * size_of::<T>()) as u64
}

impl Calls<'_> {
    /// Launches behind each other, of few tiles: what one has read is overwritten before the next.
    pub(super) fn fused(&mut self) -> Result<(), Error> {
        self.load()?;
        self.gather_gemm()?;
        self.answer_by_experts()?;
        self.gemm_scatter()?;
        self.ring_attention()?;
        self.flash_decode()?;
        self.paged_kv()?;
        self.embed()?;
        self.fused_norm()
    }

    /// Records launches, of which there is one before: it loads the module. If not all results are on the heap, others are at these
    /// addresses.
    fn launches(
        &mut self,
        name: &str,
        count: usize,
        is_far: bool,
        results: Range<u64>,
        mut launch: impl FnMut(&Self, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        launch(self, 0)?;
        self.world.synchronize(&self.stream)?;
        let outside = (!results.is_empty()).then_some((self.world.pe().index(), results));
        self.recorder.outside.lock().unwrap_or_else(PoisonError::into_inner).extend(outside);
        self.world.barrier()?;
        self.copies = Copies::of(&driver::record());
        self.record(name, Promises::default(), is_far, |calls| (1..=count).try_for_each(|at| launch(calls, at)))
    }

    /// Stores something else, of so many bytes and more, without the others.
    fn overwrite<T: Pod>(&self, to: Sym<T>, at: usize) -> Result<(), Error> {
        let to = to.cast::<u8>();
        self.copy(to, self.buffers[1].view().slice(at..at + to.len()))
    }

    /// Copies on this PE.
    fn copy(&self, to: Sym<u8>, from: Sym<u8>) -> Result<(), Error> {
        let args = (to, from, 0, self.alone.plan.view(), 1);
        Ok(self.world.launch(&self.stream, fixed_kernels::gather_direct, self.grid, args)?)
    }

    /// A tile of each PE's rows, of which each block sends some; at last so many that a block has two behind each other.
    fn gather_gemm(&mut self) -> Result<(), Error> {
        const ROWS: usize = 2 * BLOCKS as usize;
        const COLUMNS: [usize; 1 + LAUNCHES] = [3, 3, 2 * 192 + 1];
        let (me, n) = (self.world.pe().index(), self.world.npes());
        let all = self.buffers[0].view().slice(..n * ROWS * size_of::<Eight>()).cast::<Eight>();
        let sent = self.world.alloc::<Signal>(n * BLOCKS as usize)?;
        let weights = self.eights(COLUMNS[LAUNCHES])?;
        let mut y = self.world.buffer::<bf16>(n * ROWS * COLUMNS.iter().sum::<usize>())?;
        self.launches("gather and product", LAUNCHES, true, addresses(&y), |calls, at| {
            let rows = Rows { all, sent: sent.view(), turn: 1 + at as u64, gathers: 1, multiplies: 1 };
            let first = n * ROWS * COLUMNS[..at].iter().sum::<usize>();
            let y = y.slice_mut(first..first + n * ROWS * COLUMNS[at])?;
            let args = (rows, weights.slice(..COLUMNS[at])?, y, 1);
            calls.world.launch(&calls.stream, gather_gemm, TILE.with_shared(SHARED as u32), args)?;
            calls.overwrite(all.chunk(me, n), 1024 * at)
        })
    }

    /// Tokens that experts answer: with both choices on one PE, where different blocks compute them, and on different ones. Over proxies
    /// they have one expert, where a block waits for what another one has computed; before them some are refused, and the last have none.
    fn answer_by_experts(&mut self) -> Result<(), Error> {
        self.experts("experts", false, BLOCKS, [[0, 2, 0, 2, 0, 2], [0, 1, 1, 2, -1, 1]])?;
        // Of three blocks, one signals the other PE by a thread that has not waited for the last one itself.
        let (refused, none) = ([1, 0, 1, 1, 1, -1], [-1; 6]);
        self.experts("an expert", true, 1 + BLOCKS, [[0, 1, 1, 0, -1, 1], refused, [2, -1, -1, -1, -1, 2], none])
    }

    /// Tokens with these choices in each launch. Where the call is to be made over proxies, it is staged for them.
    fn experts<const N: usize>(
        &mut self,
        name: &str,
        is_far: bool,
        blocks: u32,
        choices: [[i32; 6]; N],
    ) -> Result<(), Error> {
        const TOKENS: usize = 3;
        const EXPERTS: usize = 2;
        let n = self.world.npes();
        let config = MoeConfig::new(TOKENS as u32, (n * EXPERTS) as u32, 2).payload(16).output(32).blocks(blocks);
        let moe = MoeShape::new(self.teams[1].plan.view().team(), config, is_far).map_err(MoeError::from)?;
        let moe = self.world.plan(moe)?;
        let shape = ExpertsShape::new(config, n as u32, 8).unwrap_or_else(|error| unreachable!("{error}"));
        let memory = self.world.plan(shape)?;
        let (experts, weights) = (self.world.alloc(2 * TOKENS * N)?, self.world.alloc(2 * TOKENS)?);
        experts.write(0, choices.as_flattened())?;
        weights.write(0, &[0.5, 0.25].repeat(TOKENS))?;
        let (up, down) = (self.eights(8 * EXPERTS)?, self.eights(16 * EXPERTS)?);
        let [x, ys] = [0, BYTES / 2].map(|from| self.buffers[0].view().slice(from..from + BYTES / 2).cast::<bf16>());
        let (x, sums) = (x.slice(..8 * TOKENS), 16 * TOKENS);
        self.launches(name, N - 1, is_far, 0..0, |calls, at| {
            let y = ys.slice(at * sums..(at + 1) * sums);
            let experts = experts.view().chunk(at, N);
            let tokens = Routed { x, experts, weights: weights.view(), y, index: 0, count: TOKENS as u32 };
            let args = (moe.view(), tokens, memory.view(), &up, &down);
            let grid = Grid::new(blocks, THREADS as u32).with_shared(SHARED_F32 as u32);
            calls.world.launch(&calls.stream, answer_by_experts, grid, args)?;
            calls.overwrite(x, 1024 * at)
        })
    }

    /// Products that are summed where they belong, and given to all: a bank of partial products is used again in the launch after the next.
    /// In between a block alone multiplies, and sends nothing from one tile to the next.
    fn gemm_scatter(&mut self) -> Result<(), Error> {
        const ROWS: usize = 2;
        const COLUMNS: usize = 3;
        const TURNS: [u64; 2 + LAUNCHES] = [1, 2, 3, 3];
        let n = self.world.npes();
        let partials = self.world.alloc::<f32>(Sums::partials(n, ROWS, COLUMNS))?;
        let (arrived, given) =
            (self.world.alloc(Sums::arrived(n, ROWS, COLUMNS))?, self.world.alloc(n * BLOCKS as usize)?);
        let x = self.eights(n * ROWS * TURNS.len())?;
        let weights = self.eights(COLUMNS)?;
        let [y, found] = self.buffers.each_ref().map(|buffer| buffer.view().cast::<bf16>());
        let y = y.slice(..n * ROWS * COLUMNS);
        self.launches("product and sums", 1 + LAUNCHES, true, 0..0, |calls, at| {
            let (turn, scatters) = (TURNS[at], u32::from(TURNS.get(at + 1) != Some(&TURNS[at])));
            let blocks = if scatters == 1 { BLOCKS } else { 1 };
            let (partials, arrived, given) = (partials.view(), arrived.view(), given.view());
            let given = given.slice(..n * blocks as usize);
            let sums =
                Sums { partials, arrived, y, given, turn, rows: ROWS as u32, multiplies: 1, scatters, gathers: 1 };
            let first = at * n * ROWS;
            let args = (sums, x.slice(first..first + n * ROWS)?, &weights, 1);
            let grid = Grid::new(blocks, THREADS as u32).with_shared(SHARED_F32 as u32);
            calls.world.launch(&calls.stream, gemm_scatter, grid, args)?;
            calls.copy(found.slice(at * y.len()..(at + 1) * y.len()).cast(), y.cast())
        })
    }

    /// Keys and values go around a ring of PEs. A block has two heads and another one only one: what comes of another head would say that
    /// the launch before is over.
    fn ring_attention(&mut self) -> Result<(), Error> {
        const HEADS: usize = 1 + BLOCKS as usize;
        const COUNT: usize = 2;
        let me = self.world.pe().index() as u64;
        let (arrived, done) = (self.world.alloc::<Signal>(HEADS)?, self.world.alloc::<Signal>(HEADS)?);
        let queries = self.rows(me, HEADS * COUNT)?;
        let banks = self.buffers[0].view().slice(..4 * HEADS * COUNT * size_of::<Row>()).cast::<Row>();
        let mut answers = self.world.buffer::<Answer>((1 + LAUNCHES) * HEADS * COUNT)?;
        self.launches("attention around a ring", LAUNCHES, true, addresses(&answers), |calls, at| {
            let (arrived, done) = (arrived.view(), done.view());
            let ring = Ring { banks, arrived, done, turn: at as u64, causal: at as u32 % 2 };
            let each = HEADS * COUNT;
            let answers = Chunked::new(answers.slice_mut(at * each..(at + 1) * each)?, COUNT);
            calls.world.launch(&calls.stream, ring_attention, calls.grid, (ring, &queries, answers))?;
            calls.overwrite(banks.chunk(0, 2), 1024 * at)
        })
    }

    /// Answers of heads, of which each PE has two, to keys of all PEs, one more than a block scores at a time: a bank is used again in the
    /// launch after the next.
    fn flash_decode(&mut self) -> Result<(), Error> {
        const KEYS: usize = 257;
        let (me, heads) = (self.world.pe().index() as u64, BLOCKS as usize * self.world.npes());
        let (computed, gathered) = (self.world.alloc::<Answer>(heads)?, self.world.alloc::<Answer>(2 * heads)?);
        let arrived = self.world.alloc::<Signal>(heads)?;
        let (queries, keys) = (self.rows(99, heads * (2 + LAUNCHES))?, self.rows(me, 2 * heads * KEYS)?);
        let each = BLOCKS as usize * FOURS;
        let mut answers = self.world.buffer::<Four>((2 + LAUNCHES) * each)?;
        self.launches("decoding", 1 + LAUNCHES, true, addresses(&answers), |calls, at| {
            let (computed, gathered, arrived) = (computed.view(), gathered.view(), arrived.view());
            let decode = Decode { computed, gathered, arrived, turn: 1 + at as u64 };
            let queries = queries.slice(at * heads..(at + 1) * heads)?;
            let [keys, values] = [keys.slice(..heads * KEYS)?, keys.slice(heads * KEYS..)?];
            let answers = Chunked::new(answers.slice_mut(at * each..(at + 1) * each)?, FOURS);
            let args = (decode, queries, keys, values, answers);
            Ok(calls.world.launch(&calls.stream, flash_decode, calls.grid, args)?)
        })
    }

    /// Pages of layers that the PE before computes, two of each; in the next launch they are other layers'.
    fn paged_kv(&mut self) -> Result<(), Error> {
        const LAYERS: usize = 2;
        const PAGES: usize = 2;
        let (cache, computed) = (self.world.alloc::<Page>(LAYERS * PAGES)?, self.world.alloc::<Page>(BLOCKS as usize)?);
        let (ready, done) = (self.world.alloc::<Signal>(LAYERS)?, self.world.alloc::<Signal>(1)?);
        let me = self.world.pe().index() as u64;
        let (model, queries) = (self.rows(98, 2 * LAYERS * WIDTH)?, self.rows(me, LAYERS)?);
        let tokens = self.rows(8 + me, PAGES * PAGE * (1 + LAUNCHES))?;
        let mut table = self.world.buffer::<u32>(2 * LAYERS * PAGES)?;
        table.write(0, &[0, 1, 2, 3, 2, 3, 0, 1])?;
        let each = LAYERS * FOURS;
        let mut answers = self.world.buffer::<Four>((1 + LAUNCHES) * each)?;
        self.launches("pages", LAUNCHES, true, addresses(&answers), |calls, at| {
            let (pages, ready, done) = (cache.view().cast(), ready.view(), done.view());
            let cache = Pages { pages, ready, done, turn: at as u64 };
            let table = || table.slice(at % 2 * LAYERS * PAGES..(at % 2 + 1) * LAYERS * PAGES);
            let tokens = tokens.slice(at * PAGES * PAGE..(at + 1) * PAGES * PAGE)?;
            let answers = Chunked::new(answers.slice_mut(at * each..(at + 1) * each)?, FOURS);
            let args = (cache, computed.view(), tokens, &model, table()?, table()?, &queries, answers);
            Ok(calls.world.launch(&calls.stream, prefill_and_decode, calls.grid, args)?)
        })
    }

    /// Bags of rows, of which each warp has a part: so many for each block that a proxy comes ahead of a warp that still reads the last
    /// one.
    fn embed(&mut self) -> Result<(), Error> {
        const BAGS: usize = 8 * BLOCKS as usize;
        const BAG: usize = 2;
        const WIDTH: usize = 40;
        let n = self.world.npes();
        let rows = self.buffers[0].view().slice(..WIDTH * 2 * size_of::<Eight>()).cast::<Eight>();
        let fetched = self.world.alloc::<Eight>(BLOCKS as usize * BAG * WIDTH)?;
        let mut ids = self.world.buffer::<u32>(BAGS * BAG)?;
        ids.write(0, &(0..BAGS * BAG).map(|i| ((i + i / BAG) % (2 * n)) as u32).collect::<Vec<_>>())?;
        let mut sums = self.world.buffer::<Eight>((1 + LAUNCHES) * BAGS * WIDTH)?;
        self.launches("rows of a table", LAUNCHES, true, addresses(&sums), |calls, at| {
            let table = Table { rows, fetched: fetched.view(), width: WIDTH as u32, bag: BAG as u32 };
            let each = BAGS * WIDTH;
            let sums = Chunked::new(sums.slice_mut(at * each..(at + 1) * each)?, WIDTH);
            Ok(calls.world.launch(&calls.stream, embed, calls.grid, (table, &ids, sums, at as u32 % 2))?)
        })
    }

    /// Layers whose rows are summed and normalized, which the next layer multiplies: by an exchange in two steps, and by packets and lines.
    fn fused_norm(&mut self) -> Result<(), Error> {
        const TOKENS: usize = 8;
        const LEN: usize = TOKENS * HIDDEN;
        let numbers: Vec<f32> = rows(97, TOKENS + HIDDEN).iter().flatten().flat_map(|four| four.0).collect();
        let (first, others) = numbers.split_at(LEN);
        let [tokens, normed, partials] = [self.world.alloc(LEN)?, self.world.alloc(LEN)?, self.world.alloc(LEN)?];
        tokens.write(0, first)?;
        normed.write(0, first)?;
        let (mut matrix, mut weights) = (self.world.buffer(HIDDEN * HIDDEN)?, self.world.buffer(HIDDEN)?);
        matrix.write(0, others)?;
        weights.fill(1.0)?;
        let found = self.buffers[1].view().cast::<f32>();
        for protocol in [Protocol::Simple, Protocol::Ll, Protocol::Ll128] {
            let promises = Promises { v4_16b_atomic: false, ll128_128b_ordered: protocol == Protocol::Ll128 };
            self.world.barrier()?;
            self.copies = Copies::of(&driver::record());
            self.record(&format!("layers {protocol}"), promises, false, |calls| {
                for at in 0..2 + LAUNCHES {
                    let plan = calls.teams[1].plan.view().over(protocol);
                    let args = (plan, normed.view(), partials.view(), tokens.view(), &matrix, &weights);
                    calls.world.launch(&calls.stream, multiply_sum_and_norm, calls.grid, args)?;
                    for (i, sums) in [&tokens, &normed].into_iter().enumerate() {
                        let to = found.slice((2 * at + i) * LEN..(2 * at + i + 1) * LEN);
                        calls.copy(to.cast(), sums.view().cast())?;
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn eights(&self, count: usize) -> Result<Buffer<Eight>, Error> {
        let mut eights = self.world.buffer::<Eight>(count)?;
        eights.write(0, &numbers(count, 8, self.world.pe().index()))?;
        Ok(eights)
    }

    fn rows(&self, seed: u64, count: usize) -> Result<Buffer<Row>, Error> {
        let mut all = self.world.buffer::<Row>(count)?;
        all.write(0, &rows(seed, count))?;
        Ok(all)
    }
}
