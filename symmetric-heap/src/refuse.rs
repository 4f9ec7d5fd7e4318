//! How code that runs in kernels panics.

/// Panics with a message. On a GPU by a function of the message's own, without arguments: a kernel checks hundreds of things, and
/// none of them costs it more than a call. In a `const fn`, with `const` before it, the message is lost there.
#[doc(hidden)]
#[macro_export]
macro_rules! refuse {
    (const $why:literal) => {
        if cfg!(target_arch = "nvptx64") { $crate::refused() } else { panic!($why) }
    };
    ($why:literal) => {{
        #[cfg(target_arch = "nvptx64")]
        {
            #[cold]
            #[inline(never)]
            fn refused() -> ! {
                $crate::refused_because($why)
            }
            refused()
        }
        #[cfg(not(target_arch = "nvptx64"))]
        {
            panic!($why)
        }
    }};
}

/// The panic of every [`refuse!`] of a `const fn` on a GPU.
#[doc(hidden)]
#[cold]
#[inline(never)]
pub const fn refused() -> ! {
    panic!("a kernel was given what it must refuse")
}

/// Ends a kernel that was given what it must refuse.
#[cfg(target_arch = "nvptx64")]
#[doc(hidden)]
#[cold]
#[inline(always)]
pub fn refused_because(why: &'static str) -> ! {
    unsafe extern "Rust" {
        safe fn congruent_refused(why: &'static str) -> !;
    }
    congruent_refused(why)
}
