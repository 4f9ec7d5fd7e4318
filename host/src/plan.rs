//! Plans: what an in-kernel algorithm needs on the heap, allocated once.

use congruent_collectives::{Layout, Shape};
use congruent_device::{Signal, Sym};

use crate::{AllocError, SymVec, World};

/// What algorithms need on the heap: signals and scratch. Kernels are given its [`view`](Plan::view), as often as they like: nothing in it
/// is ever reset. Made by [`World::plan`].
#[derive(Debug)]
pub struct Plan<S = Layout> {
    shape: S,
    signals: Option<SymVec<Signal>>,
    scratch: Option<SymVec<u8>>,
}

impl<S: Shape> Plan<S> {
    /// The plan as a kernel argument.
    pub fn view(&self) -> S::View {
        let signals = self.signals.as_ref().map_or(Sym::empty(), SymVec::view);
        let scratch = self.scratch.as_ref().map_or(Sym::empty(), SymVec::view);
        self.shape.view(signals, scratch)
    }

    /// What it is a plan for.
    pub fn shape(&self) -> &S {
        &self.shape
    }
}

impl World {
    /// Allocates what algorithms need.
    ///
    /// ```
    /// use congruent::collectives::Layout;
    /// # congruent::local(2, |world| {
    /// let plan = world.plan(Layout::new(world.team(), 4))?;   // for launches of up to 4 blocks on the world's team
    /// # let _ = plan;
    /// # Ok::<_, congruent::Error>(())
    /// # })?;
    /// # Ok::<_, congruent::Error>(())
    /// ```
    ///
    /// # Collective
    /// Over the world, also where the plan is for a team: the heaps stay alike.
    ///
    /// # Errors
    /// See [`AllocError`].
    pub fn plan<S: Shape>(&mut self, shape: S) -> Result<Plan<S>, AllocError> {
        let needs = shape.needs();
        let signals = if needs.signals > 0 { Some(self.alloc(needs.signals)?) } else { None };
        let scratch = if needs.scratch > 0 { Some(self.alloc(needs.scratch)?) } else { None };
        Ok(Plan { shape, signals, scratch })
    }
}
