//! How code that runs in kernels panics.

/// Panics with a message. On a GPU, where nobody reads it and a kernel traps, all these panics are one.
#[doc(hidden)]
#[macro_export]
macro_rules! refuse {
    ($why:literal) => {
        if cfg!(target_arch = "nvptx64") { $crate::refused() } else { panic!($why) }
    };
}

/// The panic of every [`refuse!`] on a GPU. A function of its own: a kernel checks hundreds of things.
#[doc(hidden)]
#[cold]
#[inline(never)]
pub const fn refused() -> ! {
    panic!("a kernel was given what it must refuse")
}
