//! Running a program on every PE.

use std::panic;
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::bootstrap::{self, Bootstrap, Launcher};
use crate::builder::{self, Builder};
use crate::{BuildError, World};

/// Runs `program` on `npes` PEs, each a thread of this process, and gives what they return, in PE order.
///
/// For tests, examples and laptops; with settings, see [`Builder::local`].
///
/// ```
/// let pes = congruent::local(3, |world| Ok::<_, congruent::Error>(world.pe().index()))?;
/// assert_eq!(pes, [0, 1, 2]);
/// # Ok::<_, congruent::Error>(())
/// ```
///
/// # Errors
/// The first error of any PE, in time; the other PEs hear of it and end.
///
/// # Panics
/// Where the program panics on a PE, once all PEs have ended.
pub fn local<R: Send, E: From<BuildError> + Send + ToString>(
    npes: usize,
    program: impl Fn(&mut World) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E> {
    World::builder().local(npes, program)
}

/// Runs `program` as this process's PE where a launcher started it (`congruent run`, torchrun, mpirun, srun); otherwise
/// on `npes` PEs, each a thread of this process. Gives what the PEs of this process return.
///
/// # Errors
/// As [`local`].
///
/// # Panics
/// As [`local`].
pub fn run<R: Send, E: From<BuildError> + Send + ToString>(
    npes: usize,
    program: impl Fn(&mut World) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E> {
    World::builder().run(npes, program)
}

impl Builder {
    /// [`local`], with this builder's settings.
    ///
    /// # Errors
    /// As [`local`].
    ///
    /// # Panics
    /// As [`local`].
    pub fn local<R: Send, E: From<BuildError> + Send + ToString>(
        self,
        npes: usize,
        program: impl Fn(&mut World) -> Result<R, E> + Sync,
    ) -> Result<Vec<R>, E> {
        let tunables = self.tunables().map_err(BuildError::from)?;
        let (contexts, emulation, algorithms) = (&self.contexts, self.emulation, self.algorithms);
        let controls = bootstrap::local(npes).map_err(BuildError::from)?;
        let first_error = Mutex::new(None);
        let fail = |error: E| {
            first_error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        };
        let (program, tunables, fail) = (&program, &tunables, &fail);
        let ended: Vec<thread::Result<Option<R>>> = thread::scope(|scope| {
            let mut pes = Vec::with_capacity(npes);
            for control in controls {
                let pe = control.pe();
                let started = thread::Builder::new().name(format!("pe{pe}")).spawn_scoped(scope, move || {
                    let mut world = builder::build(control, tunables.clone(), contexts, emulation)
                        .map_err(|error| fail(error.into()))
                        .ok()?
                        .with_algorithms(algorithms);
                    let result = program(&mut world).map_err(|error| {
                        // Kept before the other PEs hear of it, so that what they say about it does not come first.
                        let reason = error.to_string();
                        fail(error);
                        world.shared().give_up(&reason);
                    });
                    result.ok()
                });
                match started {
                    Ok(handle) => pes.push(handle),
                    Err(error) => fail(BuildError::Thread { pe, error }.into()),
                }
            }
            pes.into_iter().map(thread::ScopedJoinHandle::join).collect()
        });
        let mut results = Vec::with_capacity(npes);
        for end in ended {
            match end {
                Ok(result) => results.extend(result),
                Err(thrown) => panic::resume_unwind(thrown),
            }
        }
        match first_error.into_inner().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(results),
            Some(error) => Err(error),
        }
    }

    /// [`run`], with this builder's settings.
    ///
    /// # Errors
    /// As [`local`].
    ///
    /// # Panics
    /// As [`local`].
    pub fn run<R: Send, E: From<BuildError> + Send + ToString>(
        self,
        npes: usize,
        program: impl Fn(&mut World) -> Result<R, E> + Sync,
    ) -> Result<Vec<R>, E> {
        let bootstrap = Bootstrap::from_env().map_err(BuildError::from)?;
        if bootstrap.job().launcher == Launcher::None {
            return self.local(npes, program);
        }
        let mut world = self.bootstrap(bootstrap).build()?;
        let result = program(&mut world).inspect_err(|error| world.shared().give_up(&error.to_string()));
        Ok(vec![result?])
    }
}
