//! Tokens that go to experts and come back: as in `compare/sample.h`, by kernels.

use std::error::Error;

use congruent::collectives::moe::{Added, MoeConfig, MoeView, Tokens};
use congruent::device::{Pack, SmallFloat, Sym, bf16, kernels};

use crate::ours::Ours;
use crate::sample::Work;

const TOKENS: usize = 128;
const HIDDEN: usize = 2048;
const EXPERTS: usize = 16;
const TOP_K: usize = 4;

/// Bytes of a PE's tokens.
pub(crate) const BYTES: u64 = (TOKENS * TOKEN) as u64;

/// Bytes of a token.
const TOKEN: usize = 2 * HIDDEN;

kernels! {
    /// Tokens of this PE go to their experts, which answer with what they are given, and come back, so many times.
    pub fn exchanges(
        block, ctx, moe: MoeView, x: Sym<bf16>, experts: Sym<i32>, weights: Sym<f32>, y: Sym<bf16>, rounds: u64,
    ) {
        let moe = moe.enter(block, ctx);
        let tokens = Tokens {
            count: TOKENS,
            payload: x.cast(),
            scales: Sym::empty(),
            experts: |i| ctx.load(experts, i),
            weights: |i| ctx.load(weights, i),
        };
        let mut idle = moe.idle(0);
        for _ in 0..rounds {
            let sent = moe.dispatch_send(idle, &tokens);
            let Ok(received) = moe.dispatch_recv(sent) else { return };
            let combining = moe.combine_send_packs::<bf16, 8, _>(received, |row, _k| {
                let x = ctx.direct(row.payload().cast::<Pack<bf16, 8>>().at(ctx.world().me()));
                move |i| x.map_or([0.0; 8], |x| x.load(i).0.map(SmallFloat::widen))
            });
            idle = moe.combine_recv(combining, y, Added::Nothing);
        }
    }
}

/// A random number, the same as the C peers have.
fn random_number(i: usize) -> u64 {
    let mut mixed = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// The expert of choice `k` of a PE's token.
fn expert_of(pe: usize, token: usize, k: usize) -> usize {
    let random = random_number(pe * TOKENS + token);
    (random.wrapping_add((k as u64).wrapping_mul(random >> 8 | 1)) % EXPERTS as u64) as usize
}

fn weight_of(pe: usize, token: usize, k: usize) -> f32 {
    (random_number((pe * TOKENS + token) * TOP_K + k) % 1024) as f32 / 1024.0
}

/// Number `i` of a PE's token.
fn number_of(pe: usize, token: usize, i: usize) -> f32 {
    ((pe * 31 + token * 7 + i) % 61) as f32
}

/// Bytes that a PE gives away in an exchange, and as answers, on average: what has to be moved.
pub(crate) fn moved(pes: usize) -> u64 {
    let goes = |pe, token, to| (0..TOP_K).any(|k| expert_of(pe, token, k) * pes / EXPERTS == to);
    let rows = (0..pes).flat_map(|pe| (0..TOKENS).flat_map(move |token| (0..pes).map(move |to| (pe, token, to))));
    let rows = rows.filter(|&(pe, token, to)| goes(pe, token, to)).count();
    (2 * rows * TOKEN / pes) as u64
}

impl Ours {
    /// Times exchanges. What is not told is checked.
    pub(crate) fn tokens(&mut self, told: bool) -> Result<(), Box<dyn Error>> {
        let me = self.world.pe().index();
        let config = MoeConfig::new(TOKENS as u32, EXPERTS as u32, TOP_K as u32).blocks(1);
        let config = config.payload(TOKEN as u32).output(TOKEN as u32);
        let moe = self.world.moe(self.world.team(), config)?;
        let (x, y) = (self.world.alloc::<bf16>(TOKENS * HIDDEN)?, self.world.alloc::<bf16>(TOKENS * HIDDEN)?);
        let (experts, weights) = (self.world.alloc::<i32>(TOKENS * TOP_K)?, self.world.alloc::<f32>(TOKENS * TOP_K)?);
        let all = |i: usize| (i / HIDDEN, i % HIDDEN);
        let numbers: Vec<_> = (0..TOKENS * HIDDEN).map(all).map(|(token, i)| number_of(me, token, i)).collect();
        x.write(0, &numbers.iter().map(|&number| bf16::from_f32(number)).collect::<Vec<_>>())?;
        let choices = || (0..TOKENS * TOP_K).map(|i| (i / TOP_K, i % TOP_K));
        experts.write(0, &choices().map(|(token, k)| expert_of(me, token, k) as i32).collect::<Vec<_>>())?;
        let weighed: Vec<_> = choices().map(|(token, k)| weight_of(me, token, k)).collect();
        weights.write(0, &weighed)?;
        let n = self.rounds(BYTES);
        let args = (moe.view(), x.view(), experts.view(), weights.view(), y.view(), n);
        let ns = self.time(n, exchanges, args)?;
        if !told {
            for (i, sum) in y.to_vec()?.into_iter().enumerate() {
                let all: f32 = weighed[i / HIDDEN * TOP_K..][..TOP_K].iter().sum();
                let (is, expected) = (sum.to_f32(), all * numbers[i]);
                // Answers and their sum are rounded.
                if (is - expected).abs() > 0.02 * expected {
                    return Err(format!("number {i} of PE {me} is {is}, not {expected}").into());
                }
            }
        }
        self.tell(told, Work::Moe, BYTES, ns);
        Ok(())
    }
}
