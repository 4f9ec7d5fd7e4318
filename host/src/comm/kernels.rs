//! The fixed kernels: which of them calls of an algorithm launch.

use std::sync::LazyLock;
use std::{fmt, ptr};

use congruent_collectives::{Algorithm, Collective, Datatype, Descriptor, Op, PlanView, Reduction};
use congruent_device::{Kernel, Sym};
use congruent_kernels::{Moves, Reduces, Visit};

use crate::launch::Target;
use crate::launches::Launcher;
use crate::{Grid, LaunchError, Stream, World};

/// The kernel that calls of an algorithm launch: one of the library's, or of a program that
/// [brings an algorithm](crate::Builder::algorithms).
#[derive(Clone, Copy)]
pub struct FixedKernel {
    of: &'static Descriptor,
    kernel: Typed,
}

/// What a fixed kernel is given. Buffers are bytes.
#[derive(Clone, Copy, Debug)]
pub struct FixedArgs {
    /// Where the result goes.
    pub dst: Sym<u8>,
    /// What each member gives.
    pub src: Sym<u8>,
    /// Operator and type, where the collective reduces.
    pub reduction: Option<Reduction>,
    /// The root, where there is one.
    pub root: u32,
    /// The plan, over the protocol that is to be used.
    pub plan: PlanView,
    /// How often, one after the other.
    pub rounds: u32,
}

#[derive(Clone, Copy)]
enum Typed {
    Reduces(&'static dyn Launch<Reduces>),
    Moves(&'static dyn Launch<Moves>),
}

/// A kernel with these arguments.
trait Launch<A>: Sync {
    fn launch(&self, target: &Target<'_>, args: A) -> Result<(), LaunchError>;
}

impl<K: Kernel> Launch<K::Args> for K {
    fn launch(&self, target: &Target<'_>, args: K::Args) -> Result<(), LaunchError> {
        target.launch(*self, args)
    }
}

impl FixedKernel {
    /// The kernel of an algorithm of a collective that reduces.
    ///
    /// # Panics
    /// Where the collective does not reduce; the compiler says so of a `static`.
    pub const fn reducing<K: Kernel<Args = Reduces>>(of: &'static Descriptor, kernel: &'static K) -> Self {
        assert!(of.collective.reduces(), "the collective does not reduce: give its kernel by `moving`");
        Self { of, kernel: Typed::Reduces(kernel) }
    }

    /// The kernel of an algorithm of a collective that moves data and computes nothing.
    ///
    /// # Panics
    /// Where the collective reduces; the compiler says so of a `static`.
    pub const fn moving<K: Kernel<Args = Moves>>(of: &'static Descriptor, kernel: &'static K) -> Self {
        assert!(!of.collective.reduces(), "the collective reduces: give its kernel by `reducing`");
        Self { of, kernel: Typed::Moves(kernel) }
    }

    /// The library's, for an algorithm of a collective whose parts have one length, where it exists.
    pub fn of(collective: Collective, algorithm: Algorithm) -> Option<Self> {
        Self::find(&[], collective, algorithm)
    }

    /// The same, among the library's and `own`.
    pub(crate) fn find(own: &[Self], collective: Collective, algorithm: Algorithm) -> Option<Self> {
        let is_meant = |one: &&Self| (one.of.collective, one.of.algorithm) == (collective, algorithm);
        LIBRARY.kernels.iter().chain(own).find(is_meant).copied()
    }

    /// What the algorithm is described by.
    pub const fn descriptor(&self) -> &'static Descriptor {
        self.of
    }

    /// Puts it at the end of a stream.
    ///
    /// # Errors
    /// [`LaunchError::NoSuchKernel`] where it reduces and is given no reduction, or the other way round; and as
    /// [`World::launch`].
    #[track_caller]
    pub fn launch(&self, world: &World, stream: &Stream, grid: Grid, args: FixedArgs) -> Result<(), LaunchError> {
        self.launch_on(&Target { shared: world.shared(), stream, grid, by: Launcher::kernel() }, args)
    }

    pub(crate) fn launch_on(&self, target: &Target<'_>, args: FixedArgs) -> Result<(), LaunchError> {
        let FixedArgs { dst, src, reduction, root, plan, rounds } = args;
        match (self.kernel, reduction) {
            (Typed::Reduces(kernel), Some(op)) => {
                let knows_it =
                    |sum: &&Sum| ptr::eq(sum.of, self.of) && (Op::Sum, sum.datatype) == (op.op(), op.datatype());
                let kernel = LIBRARY.sums.iter().find(knows_it).map_or(kernel, |sum| sum.kernel);
                kernel.launch(target, (dst, src, op, root, plan, rounds))
            }
            (Typed::Moves(kernel), None) => kernel.launch(target, (dst, src, root, plan, rounds)),
            _ => {
                let Descriptor { collective, algorithm, .. } = *self.of;
                Err(LaunchError::NoSuchKernel { collective, algorithm })
            }
        }
    }
}

impl fmt::Debug for FixedKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FixedKernel").field(self.of).finish()
    }
}

/// The library's.
static LIBRARY: LazyLock<Library> = LazyLock::new(|| {
    let mut library = Library::default();
    congruent_kernels::visit(&mut library);
    congruent_sum_kernels::visit(&mut library);
    library
});

#[derive(Default)]
struct Library {
    kernels: Vec<FixedKernel>,
    sums: Vec<Sum>,
}

/// A kernel that knows what it sums, which takes the place of the one that is told.
struct Sum {
    of: &'static Descriptor,
    datatype: Datatype,
    kernel: &'static dyn Launch<Reduces>,
}

impl Visit for Library {
    fn reduction<K: Kernel<Args = Reduces>>(&mut self, of: &'static Descriptor, kernel: &'static K) {
        self.kernels.push(FixedKernel::reducing(of, kernel));
    }

    fn movement<K: Kernel<Args = Moves>>(&mut self, of: &'static Descriptor, kernel: &'static K) {
        self.kernels.push(FixedKernel::moving(of, kernel));
    }
}

impl congruent_sum_kernels::Visit for Library {
    fn sum<K: Kernel<Args = Reduces>>(&mut self, of: &'static Descriptor, datatype: Datatype, kernel: &'static K) {
        self.sums.push(Sum { of, datatype, kernel });
    }
}
