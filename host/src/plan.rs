//! Plans: what an in-kernel algorithm needs on the heap, allocated once.

use congruent_collectives::Shape;
use congruent_device::{Semaphore, Sym};

use crate::{AllocError, SymVec, World};

/// An algorithm's semaphores and scratch. Kernels are given its [`view`](Plan::view), as often as they like: nothing in it
/// is ever reset. Made by [`World::plan`].
#[derive(Debug)]
pub struct Plan<S> {
    shape: S,
    semaphores: Option<SymVec<Semaphore>>,
    scratch: Option<SymVec<u8>>,
}

impl<S: Shape> Plan<S> {
    /// The plan as a kernel argument.
    pub fn view(&self) -> S::View {
        let semaphores = self.semaphores.as_ref().map_or(Sym::empty(), SymVec::view);
        let scratch = self.scratch.as_ref().map_or(Sym::empty(), SymVec::view);
        self.shape.view(semaphores, scratch)
    }

    /// What it is a plan for.
    pub fn shape(&self) -> &S {
        &self.shape
    }
}

impl World {
    /// Allocates what an algorithm needs.
    ///
    /// ```
    /// use congruent::collectives::ring::Ring;
    /// # congruent::local(2, |world| {
    /// let plan = world.plan(Ring::new(4))?;         // for launches of up to 4 blocks
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
        let semaphores = if needs.semaphores > 0 { Some(self.alloc(needs.semaphores)?) } else { None };
        let scratch = if needs.scratch > 0 { Some(self.alloc(needs.scratch)?) } else { None };
        Ok(Plan { shape, semaphores, scratch })
    }
}
