//! Kernels: one body, an entry for PTX and a typed handle for the host.

use congruent_heap::KernelArg;

/// A kernel, as the host names it: what [`kernels!`](crate::kernels) makes of each function.
///
/// # Safety
/// The entry of this name in the module takes [`Args`](Kernel::Args) after the context, and is compiled from the body that
/// [`run`](Kernel::run) runs.
pub unsafe trait Kernel: Copy + Default + Send + Sync + 'static {
    /// The arguments after block and context.
    type Args: KernelArgs;
    /// The name of the PTX entry.
    const NAME: &'static str;
    /// Bytes of its arrays in shared memory whose length is known, and of an element of the one whose length a launch says.
    const SHARED: (usize, usize);
    /// The PTX that has it, where the kernels were given a module.
    const MODULE: Option<&'static Module>;
    /// The most threads of a block.
    const MAX_THREADS: u32 = MAX_THREADS;
    /// How many warps each block has, where the kernel counts on that; 0 where it may have any number.
    const WARPS: u32 = 0;
    /// Whether none of its blocks waits: for another block, for a PE or for a proxy.
    const INDEPENDENT: bool = false;

    /// The body, for machines that run it natively.
    ///
    /// # Safety
    /// Each thread of a launch that was given these arguments runs it once, in its own block.
    #[cfg(not(target_arch = "nvptx64"))]
    unsafe fn run(block: &crate::Block<'_>, ctx: &crate::Ctx<'_>, args: Self::Args);
}

/// The most threads of a block on any GPU (CUDA C++ Programming Guide, "Compute Capabilities"). The CPU machine could run more
/// lanes, but such a program would run nowhere else.
const MAX_THREADS: u32 = 1024;

/// PTX of one kernels crate, one text for each architecture.
#[derive(Debug)]
pub struct Module {
    /// The crate's name.
    pub name: &'static str,
    /// Architecture (`sm_90`) and PTX, from the oldest architecture to the newest.
    pub images: &'static [(&'static str, &'static str)],
}

/// That arrays of known length fit into the shared memory that every block has, beside what the library has there.
#[doc(hidden)]
pub const fn arrays_fit<A: ?Sized + crate::SharedArrays>() {
    assert!(
        A::BYTES <= 46 << 10,
        "arrays of known length have at most 46 KiB together: give one of them the length of a launch"
    );
}

/// What a kernel with such arrays says of its shared memory ([`Kernel::SHARED`]).
#[doc(hidden)]
pub const fn bytes_of<A: ?Sized + crate::SharedArrays>() -> (usize, usize) {
    (A::BYTES, A::ITEM)
}

/// The arguments of a kernel: a tuple of [`KernelArg`]s.
///
/// # Safety
/// `SIZES` and `places` tell of the same arguments, in their order, and each place is read as long as the tuple lives.
pub unsafe trait KernelArgs: Copy + Send + Sync + 'static {
    /// How many bytes each of them has, in their order.
    #[cfg(not(target_arch = "nvptx64"))]
    const SIZES: &'static [usize];

    /// Whether every symmetric object in them lies inside a heap of this size.
    fn fit(&self, heap_bytes: u64) -> bool;

    /// The most blocks of a launch that all of them are for.
    #[cfg(not(target_arch = "nvptx64"))]
    fn most_blocks(&self) -> u32;

    /// Where each of them is, in their order: what a driver is given. Those without bytes are no parameters of a kernel.
    #[cfg(not(target_arch = "nvptx64"))]
    fn places(&self, visit: impl FnMut(*const core::ffi::c_void));

    /// The arguments at such places.
    ///
    /// # Safety
    /// `place` gives, call by call, readable memory that holds a value of each argument's type in turn, aligned for it; of types
    /// without bytes it is not asked.
    #[cfg(not(target_arch = "nvptx64"))]
    unsafe fn at_places(place: impl FnMut() -> *const core::ffi::c_void) -> Self;
}

macro_rules! tuples {
    ($($name:ident)*) => {
        // SAFETY: both go through the tuple's fields in their order, and leave out what has no bytes.
        unsafe impl<$($name: KernelArg),*> KernelArgs for ($($name,)*) {
            #[cfg(not(target_arch = "nvptx64"))]
            const SIZES: &'static [usize] = &[$(size_of::<$name>()),*];

            #[allow(non_snake_case, unused_variables, reason = "one macro for every length")]
            fn fit(&self, heap_bytes: u64) -> bool {
                let ($($name,)*) = self;
                true $(&& $name.fits(heap_bytes))*
            }

            #[cfg(not(target_arch = "nvptx64"))]
            #[allow(non_snake_case, reason = "one macro for every length")]
            fn most_blocks(&self) -> u32 {
                let ($($name,)*) = self;
                u32::MAX $(.min($name.most_blocks()))*
            }

            #[cfg(not(target_arch = "nvptx64"))]
            #[allow(non_snake_case, unused_variables, unused_mut, reason = "one macro for every length")]
            fn places(&self, mut visit: impl FnMut(*const core::ffi::c_void)) {
                let ($($name,)*) = self;
                $(if size_of::<$name>() > 0 {
                    visit(core::ptr::from_ref($name).cast());
                })*
            }

            #[cfg(not(target_arch = "nvptx64"))]
            #[allow(unused_variables, unused_mut, unused_unsafe, clippy::unused_unit, reason = "one macro for every length")]
            unsafe fn at_places(mut place: impl FnMut() -> *const core::ffi::c_void) -> Self {
                // SAFETY: the caller's contract; tuple fields are evaluated in their order. What has no bytes is nowhere.
                unsafe {
                    ($(match size_of::<$name>() {
                        0 => core::ptr::dangling::<$name>().read(),
                        _ => place().cast::<$name>().read(),
                    },)*)
                }
            }
        }
    };
}
tuples!();
tuples!(A);
tuples!(A B);
tuples!(A B C);
tuples!(A B C D);
tuples!(A B C D E);
tuples!(A B C D E F);
tuples!(A B C D E F H);
tuples!(A B C D E F H I);
tuples!(A B C D E F H I J);
tuples!(A B C D E F H I J K);
tuples!(A B C D E F H I J K L);
tuples!(A B C D E F H I J K L M);

/// Declares kernels: functions whose one body runs on every machine.
///
/// The first two parameters are the block and the context, named and not typed; the others are [`KernelArg`]s. On a GPU
/// target each function becomes a PTX entry of its name, which is therefore unique in its crate; elsewhere it becomes a
/// unit struct of its name that implements [`Kernel`], for the host to launch.
///
/// ```
/// use congruent_device::{Group, Semaphore, Sym, kernels};
///
/// kernels! {
///     /// Doubles this PE's numbers, then tells the next PE.
///     pub fn double(block, ctx, numbers: Sym<f32>, done: Sym<Semaphore>) {
///         for i in block.strided(numbers.len()) {
///             ctx.store(numbers, i, ctx.load(numbers, i) * 2.0);
///         }
///         ctx.notify(block, done.at(ctx.world().next()).post());
///         ctx.wait(block, done.from_rank(ctx.world().prev()), 1);
///     }
/// }
/// # use congruent_device::Kernel;
/// assert_eq!(double::NAME, "double");
/// ```
///
/// A kernel that uses shared memory names it behind its arguments, with the types of its arrays: `; shared: ([f32; 256],)`
/// ([`Shared`](crate::Shared)).
///
/// # Several types
/// A kernel may be written for several types: `pub fn axpy<T in [f32, f64]>(…)`. It is named `axpy::<f32>()` where it is launched, and
/// its entries are `axpy_f32` and so on. The types are single names; one of two words needs an alias.
///
/// ```
/// use congruent_device::{Kernel, Slice, SliceMut, kernels};
///
/// kernels! {
///     /// `y` becomes `a * x + y`.
///     pub fn axpy<T in [f32, f64]>(block, ctx, a: T, x: Slice<T>, y: SliceMut<T>) {
///         let x = &x[..y.len()];
///         for (i, y) in y.iter_mut(block) {
///             *y += a * x[i];
///         }
///     }
/// }
/// # assert_eq!((axpy::<f32>::NAME, axpy::<f64>::NAME), ("axpy_f32", "axpy_f64"));
/// ```
///
/// # Launch bounds
/// What a kernel demands of its launches stands before its body; a launch that does not comply is refused on every machine.
///
/// - `launch_bounds(256)`: blocks have at most 256 threads.
/// - `warps(4)`: blocks have four warps, each with work of its own. On the CPU machine, whose blocks have fewer warps than a launch
///   asks for, and one thread at its default width, they have four then too.
///
/// - `blocks(independent)`: no block waits, for another one, for a PE or for a proxy, so that a launch may have more blocks than run at
///   once. On a GPU that is so of every kernel whose PTX never waits; the CPU machine, which has no PTX to look at, is told. A kernel that
///   says so and waits is refused on a GPU, and on the CPU machine it panics where it waits.
///
/// A second number is how many blocks a multiprocessor of a GPU has room for, as in CUDA's `__launch_bounds__`: the assembler gives a
/// thread no more registers than that leaves.
///
/// ```
/// use congruent_device::{Group, Kernel, Sym, kernels};
///
/// kernels! {
///     /// One warp makes numbers, the other one adds them up.
///     pub fn produce_and_consume(block, ctx, sum: Sym<u64>; shared: ([u64; 64],)) warps(2) {
///         let (numbers,) = shared.sync(block);
///         let numbers = numbers.cells();
///         if block.warp_index() == 0 {
///             block.warp().strided(numbers.len()).for_each(|i| numbers.store(i, i as u64));
///         }
///         let (numbers,) = shared.sync(block);
///         let numbers = numbers.all();
///         if block.warp_index() == 1 && block.warp().leader() {
///             ctx.store(sum, 0, (0..numbers.len()).map(|i| numbers.get(i)).sum());
///         }
///     }
/// }
/// # assert_eq!((produce_and_consume::MAX_THREADS, produce_and_consume::WARPS), (64, 2));
/// ```
///
/// # Modules
/// A crate whose kernels are to run on a GPU names its [`Module`] first, `kernels! { in crate::PTX; pub fn … }`, and has
/// at its top `#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]`.
///
/// [`KernelArg`]: congruent_heap::KernelArg
#[macro_export]
macro_rules! kernels {
    (in $module:expr; $($kernels:tt)*) => { $crate::__kernels! { [Some(&$module)] $($kernels)* } };
    ($($kernels:tt)*) => { $crate::__kernels! { [None] $($kernels)* } };
}

/// Takes one kernel after the other.
#[doc(hidden)]
#[macro_export]
macro_rules! __kernels {
    ([$module:expr]) => {};
    // For several types.
    ([$module:expr]
        $(#[$meta:meta])*
        $vis:vis fn $name:ident<$t:ident in [$($of:ident),+ $(,)?]>
        $args:tt $(launch_bounds $bounds:tt)? $(warps $warps:tt)? $(blocks $blocks:tt)? $body:block
        $($rest:tt)*
    ) => {
        #[cfg(not(target_arch = "nvptx64"))]
        $(#[$meta])*
        #[allow(non_camel_case_types, reason = "a kernel is named like the function it is")]
        $vis struct $name<$t> {
            of: ::core::marker::PhantomData<fn() -> $t>,
        }

        #[cfg(not(target_arch = "nvptx64"))]
        $(#[$meta])*
        $vis const fn $name<$t>() -> $name<$t> {
            $name { of: ::core::marker::PhantomData }
        }

        #[cfg(not(target_arch = "nvptx64"))]
        const _: () = {
            impl<$t> Clone for $name<$t> {
                fn clone(&self) -> Self {
                    *self
                }
            }
            impl<$t> Copy for $name<$t> {}
            impl<$t> Default for $name<$t> {
                fn default() -> Self {
                    $name()
                }
            }
        };

        $crate::__kernels_of_types! {
            [$module] [$t: $($of)+]
            { $name $args [$(launch_bounds $bounds)? $(warps $warps)? $(blocks $blocks)?] $body }
        }
        $crate::__kernels! { [$module] $($rest)* }
    };
    ([$module:expr]
        $(#[$meta:meta])*
        $vis:vis fn $name:ident
        $args:tt $(launch_bounds $bounds:tt)? $(warps $warps:tt)? $(blocks $blocks:tt)? $body:block
        $($rest:tt)*
    ) => {
        #[cfg(not(target_arch = "nvptx64"))]
        $(#[$meta])*
        #[allow(non_camel_case_types, reason = "a kernel is named like the function it is")]
        #[derive(Clone, Copy, Debug, Default)]
        $vis struct $name;

        $crate::__kernel! {
            [$module] [$(#[$meta])* $vis $name: $name, stringify!($name)]
            { $name $args [$(launch_bounds $bounds)? $(warps $warps)? $(blocks $blocks)?] $body }
        }
        $crate::__kernels! { [$module] $($rest)* }
    };
}

/// One kernel for each type.
#[doc(hidden)]
#[macro_export]
macro_rules! __kernels_of_types {
    ([$module:expr] [$t:ident: $($of:ident)+] $kernel:tt) => {$(
        const _: () = {
            type $t = $of;
            $crate::__kernel_of_type! { [$module] [$of] $kernel }
        };
    )+};
}

#[doc(hidden)]
#[macro_export]
macro_rules! __kernel_of_type {
    ([$module:expr] [$of:ident] { $name:ident $($kernel:tt)* }) => {
        $crate::__kernel! {
            [$module] [pub $name: $name<$of>, concat!(stringify!($name), "_", stringify!($of))] { $name $($kernel)* }
        }
    };
}

/// One kernel: the PTX entry, or how the host's type is launched.
#[doc(hidden)]
#[macro_export]
macro_rules! __kernel {
    ([$module:expr] [$(#[$meta:meta])* $vis:vis $entry:ident: $kernel:ty, $entry_name:expr] {
        $name:ident
        ($block:ident, $ctx:ident $(, $arg:ident: $type:ty)* $(,)? $(; $shared:ident: $arrays:ty $(,)?)?)
        [$($bounds:tt)*]
        $body:block
    }) => {
        #[cfg(target_arch = "nvptx64")]
        $(#[$meta])*
        ///
        /// # Safety
        /// Launched by the host with a context that it made for this launch, and these arguments.
        #[unsafe(export_name = $entry_name)]
        $vis unsafe extern "ptx-kernel" fn $entry(context: $crate::abi::Context $(, $arg: $type)*) {
            #[inline(always)]
            #[allow(unused_mut, reason = "what is written through is taken by `&mut`")]
            fn body<'k>(
                $block: &'k $crate::Block<'k>, $ctx: &'k $crate::Ctx<'k>
                $(, mut $arg: <$type as $crate::KernelArg>::In<'k>)*
                $(, $shared: &mut $crate::Shared<'_, $arrays>)?
            ) $body
            // SAFETY: the host gives the context, by this entry's own contract.
            let (block, ctx) = unsafe { $crate::enter(context) };
            let _whole = $crate::whole(&ctx, $entry_name);
            body(
                &block, &ctx
                // SAFETY: the host gives the arguments, by the same contract, and this is where each thread begins.
                $(, unsafe { $crate::KernelArg::open($arg) })*
                // SAFETY: a kernel begins here; the host launches it with as many bytes as it is given beyond the known ones.
                $(, &mut unsafe { $crate::Shared::<$arrays>::of(&block) })?
            )
        }

        #[cfg(target_arch = "nvptx64")]
        $crate::__bounds! { [$entry_name] $($bounds)* }

        #[cfg(not(target_arch = "nvptx64"))]
        const _: () = {
            #[allow(
                unused_variables,
                unused_mut,
                clippy::too_many_arguments,
                reason = "a kernel may need neither block nor context, takes as much as it needs, and writes through some of it"
            )]
            fn body<'k>(
                $block: &'k $crate::Block<'k>, $ctx: &'k $crate::Ctx<'k>
                $(, mut $arg: <$type as $crate::KernelArg>::In<'k>)*
                $(, $shared: &mut $crate::Shared<'_, $arrays>)?
            ) $body

            // Where no kernel is compiled, a check finds it all the same.
            const _: () = $crate::arrays_fit::<$crate::__arrays!($($arrays)?)>();

            // SAFETY: the entry of this name is this function, compiled for the device.
            unsafe impl $crate::Kernel for $kernel {
                type Args = ($($type,)*);
                const NAME: &'static str = $entry_name;
                const SHARED: (usize, usize) = $crate::bytes_of::<$crate::__arrays!($($arrays)?)>();
                const MODULE: Option<&'static $crate::Module> = $module;
                $crate::__bounds! { $($bounds)* }

                unsafe fn run(block: &$crate::Block<'_>, ctx: &$crate::Ctx<'_>, ($($arg,)*): Self::Args) {
                    body(
                        block, ctx
                        // SAFETY: the caller's promise; the arguments outlive the launch, and so the body.
                        $(, unsafe { $crate::KernelArg::open($arg) })*
                        // SAFETY: a kernel begins here; the machine gives a room of the bytes that SHARED says.
                        $(, &mut unsafe { $crate::Shared::<$arrays>::of(block) })?
                    )
                }
            }
        };
    };
}

/// What a kernel demands of its launches: for the host; behind its entry's name, for `congruent-build`, which makes directives of such
/// variables.
#[doc(hidden)]
#[macro_export]
macro_rules! __bounds {
    () => {};
    (launch_bounds($threads:literal $(, $blocks:literal)?) $($rest:tt)*) => {
        const MAX_THREADS: u32 = $threads;
        $crate::__bounds! { $($rest)* }
    };
    (warps($warps:literal $(, $blocks:literal)?) $($rest:tt)*) => {
        const MAX_THREADS: u32 = 32 * $warps;
        const WARPS: u32 = $warps;
        $crate::__bounds! { $($rest)* }
    };
    (blocks(independent)) => {
        const INDEPENDENT: bool = true;
    };
    ([$name:expr] $(blocks(independent))?) => {};
    ([$name:expr] launch_bounds($threads:literal $(, $blocks:literal)?) $(blocks(independent))?) => {
        $crate::__bounds! { [$name] "$threads$", stringify!($threads) $(, "$blocks$", stringify!($blocks))? }
    };
    ([$name:expr] warps($warps:literal $(, $blocks:literal)?) $(blocks(independent))?) => {
        $crate::__bounds! { [$name] "$warps$", stringify!($warps) $(, "$blocks$", stringify!($blocks))? }
    };
    ([$name:expr] $($directives:expr),+) => {
        const _: () = {
            #[used]
            #[unsafe(export_name = concat!("congruent_bounds$", $name, $($directives),+))]
            static BOUNDS: u8 = 0;
        };
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __arrays {
    () => {
        ()
    };
    ($arrays:ty) => {
        $arrays
    };
}

/// Where a PTX entry starts: makes block and context of the thread that the hardware runs. It takes no closure, which the
/// compiler would not inline where a kernel is large, and all arguments would go through a stack frame.
///
/// # Safety
/// `context` describes memory that stays mapped for as long as the kernel runs: every PE's heap, the control block, and the tables and
/// the multicast windows where there are any. Every thread of the block calls it, once.
#[cfg(target_arch = "nvptx64")]
#[doc(hidden)]
#[inline(always)]
pub unsafe fn enter(context: congruent_heap::abi::Context) -> (crate::Block<'static>, crate::Ctx<'static>) {
    let lane = crate::arch::Lane::new();
    crate::arch::keep(&lane, context);
    // SAFETY: the caller's contract; the lane is what the hardware says of this thread.
    unsafe { (crate::Block::new(lane), crate::Ctx::of_kernel()) }
}
