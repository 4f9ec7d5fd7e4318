//! What experts in one kernel refuse: memory and weights of other sizes than the exchange's, and tokens that are wrong.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::time::Duration;

use congruent::collectives::moe::{MoeConfig, Refusal, Wrong};
use congruent::device::bf16;
use congruent::fused::experts::{ExpertsError, ExpertsShape};
use congruent::fused::gemm::{Eight, SHARED_F32, THREADS};
use congruent::{Error, Grid, World, WorldFailure};
use congruent_example_kernels::moe_experts::{Routed, answer_by_experts};

const TOKENS: usize = 3;
const EXPERTS: u32 = 4;
/// Groups of eight in a token, between the layers, and in an answer.
const GROUPS: [u32; 3] = [1, 2, 3];

fn config() -> MoeConfig {
    MoeConfig::new(TOKENS as u32, EXPERTS, 1).payload(16 * GROUPS[0]).output(16 * GROUPS[2])
}

/// An exchange of two PEs, with memory of this shape, `more` groups of weights of the first layers than there should be, and this
/// choice of PE 1's last token.
fn answered(shape: ExpertsShape, more: usize, last: i32) -> Result<Vec<Option<Refusal>>, Error> {
    let world = World::builder().heap(32 << 20).deadline(Duration::from_secs(20));
    let ends = world.local(2, |world| {
        let moe = world.moe(world.team(), config())?;
        let memory = world.plan(shape)?;
        let x = world.alloc::<bf16>(TOKENS * 8 * GROUPS[0] as usize)?;
        let y = world.alloc::<bf16>(TOKENS * 8 * GROUPS[2] as usize)?;
        let (experts, weights) = (world.alloc::<i32>(TOKENS)?, world.alloc::<f32>(TOKENS)?);
        let me = world.pe().index();
        experts.write(0, &[0, 3, if me == 1 { last } else { 1 }])?;
        weights.fill(1.0)?;
        let [token, inner, outer] = GROUPS.map(|groups| groups as usize);
        let here = EXPERTS as usize / 2;
        let up = world.buffer::<Eight>(here * 8 * inner * token + more)?;
        let down = world.buffer::<Eight>(here * 8 * outer * inner)?;
        let (x, y, experts, weights) = (x.view(), y.view(), experts.view(), weights.view());
        let tokens = Routed { x, experts, weights, y, index: 0, count: TOKENS as u32 };
        let (stream, grid) = (world.stream()?, Grid::one(THREADS as u32).with_shared(SHARED_F32 as u32));
        world.run(&stream, answer_by_experts, grid, (moe.view(), tokens, memory.view(), &up, &down))?;
        Ok::<_, Error>(moe.refusal(0)?)
    })?;
    Ok(ends)
}

/// What both kernels say. Which PE's error comes first differs: one panics itself, or hears that the other did.
fn told(shape: ExpertsShape, more: usize) -> String {
    match answered(shape, more, 2).unwrap_err().world_failure() {
        Some(WorldFailure::KernelPanicked { message, .. } | WorldFailure::Aborted { reason: message, .. }) => {
            message.clone()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn sizes_that_are_not_the_exchanges_are_refused() {
    let shape = |config| ExpertsShape::new(config, 2, 8 * GROUPS[1]).unwrap();
    assert_eq!(answered(shape(config()), 0, 2).unwrap(), [None, None]);
    let message = told(shape(config().output(16)), 0);
    assert!(message.contains("memory of experts is for other answers"), "{message}");
    let message = told(shape(config()), 1);
    assert!(message.contains("weights are of another size"), "{message}");
}

#[test]
fn tokens_that_are_wrong_are_told_to_all() {
    let shape = ExpertsShape::new(config(), 2, 8 * GROUPS[1]).unwrap();
    let refusal = Refusal { rank: 1, why: Wrong::NoSuchExpert };
    assert_eq!(answered(shape, 0, EXPERTS as i32).unwrap(), [Some(refusal), Some(refusal)]);
}

#[test]
fn rows_that_cannot_be_multiplied_have_no_shape() {
    let why = |config, inner| ExpertsShape::new(config, 2, inner).unwrap_err();
    assert_eq!(why(config().payload(24), 8), ExpertsError::Bytes("a payload", 24));
    assert_eq!(why(config().output(8), 8), ExpertsError::Bytes("an output", 8));
    assert_eq!(why(config(), 12), ExpertsError::Inner(12));
    assert_eq!(
        why(config(), 0).to_string(),
        "0 numbers between an expert's layers were asked for; give a multiple of 8"
    );
}
