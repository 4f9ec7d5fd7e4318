//! Exchanges of tokens.

use congruent::collectives::moe::{MoeConfig, MoeShape};
use congruent::device::{Reduction, Sym, bf16, f16};
use congruent::{Answer, Error, Grid, MoeError, SymVec, moe_kernels as kernels};
use congruent_virtual_driver as driver;
use congruent_virtual_gpu::Promises;

use super::{BLOCKS, BYTES, Calls};
use crate::recording::Copies;

impl Calls<'_> {
    /// Exchanges of tokens with answers of each type, with scales and without, in rows of whole accesses of 16 bytes and others.
    pub(super) fn exchanges(&mut self) -> Result<(), Error> {
        // Blocks that are more than threads.
        let grid = core::mem::replace(&mut self.grid, Grid::new(BLOCKS, 1));
        self.exchanges_of::<f32>(0, 128, 0, false)?;
        self.grid = grid;
        self.exchanges_of::<f32>(1, 128, 0, true)?;
        self.exchanges_of::<f16>(1, 128, 16, true)?;
        self.exchanges_of::<bf16>(1, 128, 4, true)?;
        self.exchanges_of::<f32>(1, 136, 0, true)?;
        self.exchanges_of::<f16>(1, 136, 0, true)?;
        self.exchanges_of::<bf16>(1, 136, 0, true)
    }

    /// Exchanges behind each other, each with what the one before gave, and two that are refused. What a step has read is overwritten
    /// behind it.
    fn exchanges_of<T: Answer>(&mut self, team: usize, row: usize, scales: usize, is_far: bool) -> Result<(), Error> {
        const TOKENS: usize = 9;
        const ALIGN: u32 = 4;
        let (me, n) = (self.teams[team].rank, self.world.npes());
        // Of two experts of each PE, each token has two that stand beside each other: of one PE, or of two.
        let all = 2 * n;
        let config = MoeConfig::new(TOKENS as u32, all as u32, 2).payload(row as u32).scales(scales as u32);
        let config = config.output(row as u32).blocks(BLOCKS);
        let view = self.teams[team].plan.view().team();
        let moe = self.world.plan(MoeShape::new(view, config, is_far).map_err(MoeError::from)?)?;
        let (experts, wrong) = (self.world.alloc::<i32>(2 * TOKENS)?, self.world.alloc::<i32>(2 * TOKENS)?);
        let (weights, starts) = (self.world.alloc::<f32>(2 * TOKENS)?, self.world.alloc::<u32>(3)?);
        let chosen = |token: usize| {
            [0, 1].map(|choice| match ((me + token + choice) % all, token) {
                // An expert without tokens, the last one of its PE, and a token without experts.
                (3, _) | (_, 4) => -1,
                (expert, _) => expert as i32,
            })
        };
        let chosen: Vec<i32> = (0..TOKENS).flat_map(chosen).collect();
        experts.write(0, &chosen)?;
        // One PE has a token with one expert twice.
        wrong.write(0, &if me == 1 { vec![0; chosen.len()] } else { chosen })?;
        weights.write(0, &[0.5, 0.25].repeat(TOKENS))?;
        let rows = config.most_rows(n as u32, ALIGN) as usize;
        let (experts, wrong, weights, starts) = (experts.view(), wrong.view(), weights.view(), starts.view());
        // By the routes of the exchange before where there are no experts, and then without weights.
        let exchange = |calls: &Self, to: Sym<u8>, from: Sym<u8>, experts: Sym<i32>, added: usize, count: usize| {
            // Rows by expert and their scales, and then the sums; as far as there are any.
            let (room, sums) = (to.slice(..rows * (row + scales)), to.slice(BYTES / 2..BYTES / 2 + TOKENS * row));
            let (answers, scales_of_rows) = (room.slice(..rows * row), room.slice(rows * row..));
            let (payload, none) = (from.slice(..TOKENS * row), from.slice(..0));
            let scales = from.slice(TOKENS * row..TOKENS * (row + scales));
            // A row for all tokens or one for each.
            let more = from.slice(BYTES / 2..BYTES / 2 + added * row);
            let (world, stream, grid, view) = (&calls.world, &calls.stream, calls.grid, moe.view());
            let (datatype, for_each) = (T::DATATYPE as u32, u32::from(added > 1));
            let again = experts.is_empty();
            if again {
                world.launch(stream, kernels::moe_dispatch_again, grid, (view, 0, count as u64, payload, scales))?;
            } else {
                let args = (view, 0, count as u64, payload, scales, experts, weights);
                world.launch(stream, kernels::moe_dispatch_send, grid, args)?;
            }
            calls.go_on(none, payload)?;
            world.launch(
                stream,
                kernels::moe_dispatch_recv,
                grid,
                (view, 0, answers, scales_of_rows, starts, ALIGN),
            )?;
            let weighted = u32::from(!again);
            world.launch(stream, kernels::moe_combine_send, grid, (view, 0, datatype, answers, starts, weighted))?;
            calls.go_on(none, answers)?;
            let sum = Reduction::sum::<T>();
            world.launch(stream, kernels::moe_combine_recv, grid, (view, 0, sum, sums, more, for_each))?;
            calls.go_on(sums, none)
        };
        // The kernels are in a module of their own.
        let [to, from] = self.buffers.each_ref().map(SymVec::view);
        exchange(self, to, from, experts, 0, TOKENS)?;
        self.world.synchronize(&self.stream)?;
        self.world.barrier()?;
        self.copies = Copies::of(&driver::record());
        let far = if is_far { ", staged for proxies" } else { "" };
        self.record(
            &format!("exchanges of tokens, {row} bytes of {}{far}", T::DATATYPE),
            Promises::default(),
            is_far,
            |calls| {
                exchange(calls, to, from, experts, 0, TOKENS)?;
                exchange(calls, from, to, Sym::empty(), 0, TOKENS)?;
                exchange(calls, to, from, wrong, 0, TOKENS)?;
                exchange(calls, from, to, Sym::empty(), 0, TOKENS)?;
                exchange(calls, from, to, experts, TOKENS, TOKENS)?;
                // One PE has no tokens.
                exchange(calls, to, from, experts, 1, if me == 0 { 0 } else { TOKENS })?;
                // What one that is refused leaves alone, nobody writes anymore.
                exchange(calls, from, to, wrong, 0, TOKENS)
            },
        )
    }
}
