//! What fusing an all-reduce with the norm behind it saves: two launches beside one, and two calls in a kernel beside one.

use std::collections::BTreeMap;
use std::error::Error;

use comfy_table::{Table, presets};
use congruent::collectives::norm::{self, NormRows};
use congruent::collectives::{Algorithm, Collective, Datatype, Op, PlanView, Protocol, Sum, direct, one_shot};
use congruent::device::{Block, Ctx, Group, Slice, Sym, kernels, math};
use congruent::{Buffer, Grid};
use serde::{Deserialize, Serialize};

use crate::ours::Ours;
use crate::sample::summary;
use crate::table::{Time, size, to_the_right};

/// The word on the command line that calls this.
pub const WORD: &str = "fused";

/// Numbers of a row.
const HIDDEN: usize = 1024;

/// Bytes of all rows.
pub const SIZES: [u64; 4] = [4 << 10, 16 << 10, 64 << 10, 1 << 20];

/// Up to this size fusing is to pay.
const FEW: u64 = 64 << 10;

const EPSILON: f32 = 1e-5;

/// How it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// An all-reduce is launched, and then a kernel that adds and normalizes.
    TwoLaunches,
    /// One kernel does both.
    OneLaunch,
    /// In a kernel an all-reduce is called, and then the other is done.
    TwoCalls,
    /// In a kernel both are one call.
    OneCall,
}

/// One repeat.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Timed {
    /// Bytes of all rows.
    pub bytes: u64,
    /// How it was done.
    pub how: How,
    /// Nanoseconds for one, the mean over many.
    pub ns: f64,
}

/// Medians at one size.
#[derive(Debug, Clone, PartialEq)]
pub struct Saving {
    /// Bytes of all rows.
    pub bytes: u64,
    /// Nanoseconds of each way.
    pub ns: BTreeMap<How, f64>,
}

impl Saving {
    /// How many times as long one takes as the other.
    pub fn ratio(&self, apart: How, fused: How) -> f64 {
        let ns = |how| self.ns.get(&how).copied().unwrap_or(f64::NAN);
        ns(apart) / ns(fused)
    }

    /// Whether fusing pays as it is to: where bytes are few; else it is to cost nothing.
    pub fn is_kept(&self) -> bool {
        let (launches, calls) = if self.bytes <= FEW { (1.3, 1.1) } else { (1.0, 1.0) };
        self.ratio(How::TwoLaunches, How::OneLaunch) >= launches && self.ratio(How::TwoCalls, How::OneCall) >= calls
    }
}

/// Adds the residual, which becomes the sum, and normalizes.
#[inline(always)]
fn add_and_norm(block: &Block<'_>, ctx: &Ctx<'_>, sums: Sym<f32>, residual: Sym<f32>, weights: &[f32]) {
    for row in 0..sums.len() / HIDDEN {
        let of = |all: Sym<f32>| all.slice(row * HIDDEN..(row + 1) * HIDDEN);
        let mut squares = 0.0;
        for i in block.strided(HIDDEN) {
            let sum = ctx.load(of(sums), i) + ctx.load(of(residual), i);
            ctx.store(of(residual), i, sum);
            squares += sum * sum;
        }
        let scale = math::rsqrt(block.reduce(squares, Sum) / HIDDEN as f32 + EPSILON);
        for i in block.strided(HIDDEN) {
            ctx.store(of(sums), i, ctx.load(of(residual), i) * scale * weights[i]);
        }
    }
}

kernels! {
    /// Adds and normalizes what has been summed.
    pub fn norm_rows(block, ctx, sums: Sym<f32>, residual: Sym<f32>, weights: Slice<f32>) {
        add_and_norm(block, ctx, sums, residual, weights);
    }

    /// An all-reduce and then the rest, so many times.
    pub fn two_calls(
        block, ctx, plan: PlanView, dst: Sym<f32>, src: Sym<f32>, residual: Sym<f32>, weights: Slice<f32>, n: u64,
    ) {
        for _ in 0..n {
            let mut coll = plan.enter(block, ctx);
            match plan.protocol() {
                Protocol::Simple => direct::all_reduce(&mut coll, dst, src, Sum),
                _ => one_shot::all_reduce(&mut coll, dst, src, Sum),
            }
            drop(coll);
            block.sync();
            add_and_norm(block, ctx, dst, residual, weights);
        }
    }

    /// Both in one call, so many times.
    pub fn one_call(
        block, ctx, plan: PlanView, dst: Sym<f32>, src: Sym<f32>, residual: Sym<f32>, weights: Slice<f32>, n: u64,
    ) {
        for _ in 0..n {
            let rows = NormRows { dst, src, residual, weights, epsilon: EPSILON };
            norm::all_reduce(&mut plan.enter(block, ctx), rows);
        }
    }
}

/// Times all ways at all sizes.
pub(crate) fn repeat(ours: &Ours, told: bool) -> Result<(), Box<dyn Error>> {
    let mut weights: Buffer<f32> = ours.world.buffer(HIDDEN)?;
    weights.fill(1.0)?;
    for bytes in SIZES {
        let part = |of: &congruent::SymVec<u8>, i: u64| of.slice((i * bytes) as usize..((i + 1) * bytes) as usize);
        let (dst, src, residual) = (part(&ours.dst, 0)?.cast(), part(&ours.src, 0)?.cast(), part(&ours.src, 1)?.cast());
        // As an all-reduce is chosen.
        let choice = ours.comm.chosen(Collective::AllReduce, bytes, Some((Op::Sum, Datatype::F32)))?;
        let by_packets = choice.algorithm == Algorithm::ONE_SHOT;
        let plan = ours.plan.view().over(if by_packets { choice.protocol } else { Protocol::Simple });
        let (n, grid) = (ours.rounds(bytes), Grid::one(256));
        let launches = n.min(2000);
        let tell = |how, ns| ours.print(told, &Timed { bytes, how, ns });
        tell(
            How::TwoLaunches,
            ours.clocked(launches, || {
                (0..launches).try_for_each(|_| {
                    ours.unchecked.all_reduce(&ours.stream, dst, src, Op::Sum)?;
                    Ok(ours.world.launch(&ours.stream, norm_rows, grid, (dst, residual, &weights))?)
                })
            })?,
        );
        tell(
            How::OneLaunch,
            ours.clocked(launches, || {
                (0..launches).try_for_each(|_| {
                    Ok(ours.world.launch(&ours.stream, one_call, grid, (plan, dst, src, residual, &weights, 1))?)
                })
            })?,
        );
        tell(How::TwoCalls, ours.time(n, two_calls, (plan, dst, src, residual, &weights, n))?);
        tell(How::OneCall, ours.time(n, one_call, (plan, dst, src, residual, &weights, n))?);
    }
    Ok(())
}

/// Gathers repeats by size.
pub fn savings(timed: &[Timed]) -> Vec<Saving> {
    let mut repeats: BTreeMap<u64, BTreeMap<How, Vec<f64>>> = BTreeMap::new();
    for one in timed {
        repeats.entry(one.bytes).or_default().entry(one.how).or_default().push(one.ns);
    }
    let medians =
        |mut ways: BTreeMap<How, Vec<f64>>| ways.iter_mut().map(|(&how, ns)| (how, summary(ns).median)).collect();
    repeats.into_iter().map(|(bytes, ways)| Saving { bytes, ns: medians(ways) }).collect()
}

/// Lays the times out for people to read.
pub fn render(savings: &[Saving]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    table.set_header(["all-reduce + RMSNorm", "two launches", "one launch", "ratio", "two calls", "one call", "ratio"]);
    for saving in savings {
        let time = |how| Time(saving.ns.get(&how).copied().unwrap_or(f64::NAN)).to_string();
        let ratio = |apart, fused| format!("{:.2}", saving.ratio(apart, fused));
        table.add_row([
            size(saving.bytes),
            time(How::TwoLaunches),
            time(How::OneLaunch),
            ratio(How::TwoLaunches, How::OneLaunch),
            time(How::TwoCalls),
            time(How::OneCall),
            ratio(How::TwoCalls, How::OneCall),
        ]);
    }
    to_the_right(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_fused_stands_beside_what_is_not() {
        let ways = [How::TwoLaunches, How::OneLaunch, How::TwoCalls, How::OneCall];
        let timed: Vec<_> = ways
            .into_iter()
            .zip([300.0, 200.0, 120.0, 100.0])
            .map(|(how, ns)| Timed { bytes: 4096, how, ns })
            .collect();
        let savings = savings(&timed);
        assert!(savings[0].is_kept() && !Saving { bytes: 4096, ns: BTreeMap::new() }.is_kept());
        let table = render(&savings).to_string();
        for word in ["4 KiB", "300.0 ns", "1.50", "1.20"] {
            assert!(table.contains(word), "{word} is missing in\n{table}");
        }
    }
}
