//! Exchanges of tokens with experts on other PEs, as the host makes them.
#![cfg_attr(doctest, doc = include_str!("../../docs/moe.md"))]

use congruent_collectives::moe::{MoeConfig, MoeConfigError, MoeShape, MoeView, Refusal};
use congruent_device::{Tag, TeamView};

use crate::{AccessError, AllocError, CollectiveError, Plan, World};

/// An exchange of tokens between the members of a team: what kernels need for it on the heap. Made by [`World::moe`].
///
/// Kernels are given its [`view`](Moe::view), and call the [steps](congruent_collectives::moe) on it. Nothing of it is ever reset, and
/// the host waits for nothing, so that launches are captured and launched again.
#[derive(Debug)]
pub struct Moe {
    plan: Plan<MoeShape>,
}

/// Why there is no exchange.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum MoeError {
    /// What was asked for cannot be.
    #[error(transparent)]
    Config(#[from] MoeConfigError),
    /// Its memory on the heap.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The PEs did not come together, or with different configurations.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
}

impl Moe {
    /// The same exchange with a name, which faults call it by.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self { plan: self.plan.named(name) }
    }

    /// The exchange as a kernel argument.
    pub fn view(&self) -> MoeView {
        self.plan.view()
    }

    /// What it is an exchange of.
    pub fn config(&self) -> &MoeConfig {
        self.plan.shape().config()
    }

    /// Why the last exchange of a micro-batch was refused, on all PEs alike; `None` where it was not.
    ///
    /// # Ordering
    /// None against kernels in flight: [`synchronize`](World::synchronize) first.
    ///
    /// # Errors
    /// Where there is no such micro-batch, or the machine has failed.
    pub fn refusal(&self, micro_batch: usize) -> Result<Option<Refusal>, AccessError> {
        let words = self.plan.shape().refused(micro_batch);
        let mut word = [0; 8];
        self.plan.read_scratch(words, &mut word)?;
        Ok(Refusal::from_word(u64::from_le_bytes(word)))
    }
}

impl World {
    /// Allocates what exchanges of tokens need: [`MoeConfig::bytes`] of the heap of each PE.
    ///
    /// ```
    /// use congruent::collectives::moe::MoeConfig;
    /// # congruent::local(2, |world| {
    /// let config = MoeConfig::new(16, 8, 2).payload(256).output(512);
    /// let moe = world.moe(world.team(), config)?.named("layer 1");
    /// # let _ = moe;
    /// # Ok::<_, congruent::Error>(())
    /// # })?;
    /// # Ok::<_, congruent::Error>(())
    /// ```
    ///
    /// # Collective
    /// Over the world, also where the exchange is of a team: the heaps stay alike. Every PE gives the same configuration, and a team of
    /// which it is a member; all of these have one size.
    ///
    /// # Errors
    /// See [`MoeError`]: every PE gets the same.
    #[track_caller]
    pub fn moe<G: Tag>(&mut self, team: TeamView<G>, config: MoeConfig) -> Result<Moe, MoeError> {
        self.agree(format!("an exchange of {} PEs, {config:?}", team.size()))?;
        let shape = MoeShape::new(team.untagged(), config, self.is_proxied())?;
        Ok(Moe { plan: self.plan(shape)? })
    }
}
