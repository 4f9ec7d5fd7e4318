//! Plans: what an in-kernel algorithm needs on the heap, allocated once.

use std::sync::Arc;

use congruent_collectives::{Layout, Shape};
use congruent_device::{Element, Signal, Sym};

use crate::objects::Use;
use crate::{AccessError, AllocError, SymVec, World};

/// What algorithms need on the heap: signals and scratch. Kernels are given its [`view`](Plan::view), as often as they like: nothing in it
/// is ever reset. Made by [`World::plan`].
#[derive(Debug)]
pub struct Plan<S = Layout> {
    shape: S,
    signals: Option<SymVec<Signal>>,
    scratch: Option<SymVec<u8>>,
}

impl<S: Shape> Plan<S> {
    /// The same plan with a name, which faults call it by.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        let (signals, scratch) =
            (self.signals.map(|words| words.named(name)), self.scratch.map(|room| room.named(name)));
        Self { signals, scratch, ..self }
    }

    /// The plan as a kernel argument.
    pub fn view(&self) -> S::View {
        self.shape.view(view_of(&self.signals), view_of(&self.scratch))
    }

    /// What it is a plan for.
    pub fn shape(&self) -> &S {
        &self.shape
    }

    /// Copies bytes of this PE's scratch, from `at` on.
    pub(crate) fn read_scratch(&self, at: usize, out: &mut [u8]) -> Result<(), AccessError> {
        match &self.scratch {
            Some(scratch) => scratch.read(at, out),
            None => Err(AccessError::OutOfBounds { start: at, end: at.saturating_add(out.len()), len: 0 }),
        }
    }
}

fn view_of<T: Element>(object: &Option<SymVec<T>>) -> Sym<T> {
    object.as_ref().map_or(Sym::empty(), SymVec::view)
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
    #[track_caller]
    pub fn plan<S: Shape + Clone + Send + Sync + 'static>(&mut self, shape: S) -> Result<Plan<S>, AllocError> {
        let needs = shape.needs();
        let signals: Option<SymVec<Signal>> = if needs.signals > 0 { Some(self.alloc(needs.signals)?) } else { None };
        let scratch: Option<SymVec<u8>> = if needs.scratch > 0 { Some(self.alloc(needs.scratch)?) } else { None };
        let (words, room, known) = (view_of(&signals), view_of(&scratch), shape.clone());
        let word = Use::Plan(Arc::new(move |offset| known.word(words, room, offset)));
        signals.iter().for_each(|signals| signals.used_for(word.clone()));
        scratch.iter().for_each(|scratch| scratch.used_for(word.clone()));
        Ok(Plan { shape, signals, scratch })
    }
}
