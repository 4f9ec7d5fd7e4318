//! How a call enters the virtual driver: counted, failed if a test asked for it, refused where the driver would refuse it, and
//! only then done.

use core::ffi::{CStr, c_char};

use cudarc::driver::sys::CUresult;

use crate::errors::Outcome;
use crate::{context, driver, fault, stream};

/// What must hold before a function does anything.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Nothing: it can be called before `cuInit`.
    Nothing,
    /// The driver is initialised.
    Driver,
    /// The driver is initialised, and the thread has a current context that lives and has no fault.
    Context,
}

/// Makes one call.
pub(crate) fn call(function: &'static str, needs: Needs, body: impl FnOnce() -> Outcome) -> CUresult {
    if let Some(code) = fault::count(function) {
        return code;
    }
    match allowed(needs).and_then(|()| body()) {
        Ok(()) => CUresult::CUDA_SUCCESS,
        Err(code) => code,
    }
}

fn allowed(needs: Needs) -> Outcome {
    if needs == Needs::Nothing {
        return Ok(());
    }
    driver::get()?;
    if stream::in_host_function() {
        // A host function in a stream must not call the driver: it would wait for itself.
        return Err(CUresult::CUDA_ERROR_NOT_PERMITTED);
    }
    if needs == Needs::Context {
        context::current()?.check()?;
    }
    Ok(())
}

/// Defines functions of the driver API: `NEEDS fn NAME(ARGUMENTS) { BODY }`, where `BODY` comes to an [`Outcome`].
///
/// Arguments are the C types, with enumerations as plain integers: a caller may pass a number that no enumeration of
/// ours has, which a Rust `enum` must never hold. In the body, a pointer is a [`Ptr`].
macro_rules! entry_points {
    ($($(#[doc = $doc:literal])* $needs:ident fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        /// The functions of this file.
        pub(crate) const NAMES: &[&str] = &[$(stringify!($name)),*];

        /// The function of this file that has a name.
        pub(crate) fn find(name: &str) -> Option<*const ()> {
            match name {
                $(stringify!($name) => Some($name as *const ()),)*
                _ => None,
            }
        }

        $(
            $(#[doc = $doc])*
            ///
            /// # Safety
            /// What the CUDA driver API asks of its callers: a pointer is null, or good for what the function reads or
            /// writes there, for as long as the function says.
            #[cfg_attr(feature = "library", unsafe(no_mangle))]
            #[allow(non_snake_case, reason = "the names are the driver's")]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> cudarc::driver::sys::CUresult {
                // SAFETY: that pointers are null or good is what the caller promises, see `# Safety`.
                $(let $argument = unsafe { $crate::entry::Argument::take($argument) };)*
                $crate::entry::call(stringify!($name), $crate::entry::Needs::$needs, move || $body)
            }
        )*
    };
}
pub(crate) use entry_points;

/// An argument as the body of an entry point sees it.
pub(crate) trait Argument {
    /// What the body gets.
    type Seen;

    /// # Safety
    /// A pointer is null, or good for what the function called does with it until it returns.
    unsafe fn take(self) -> Self::Seen;
}

macro_rules! plain {
    ($($type:ty),*) => {$(
        impl Argument for $type {
            type Seen = Self;

            unsafe fn take(self) -> Self {
                self
            }
        }
    )*};
}
plain!(i32, u32, u64, usize, u8, u16, cudarc::driver::sys::CUhostFn, crate::native::NativeBody);

impl<T> Argument for *mut T {
    type Seen = Ptr<T>;

    unsafe fn take(self) -> Ptr<T> {
        Ptr(self)
    }
}

impl<T> Argument for *const T {
    type Seen = Ptr<T>;

    unsafe fn take(self) -> Ptr<T> {
        Ptr(self.cast_mut())
    }
}

/// A pointer that a caller gave: null, or good for reading or writing as the function called demands. Made by
/// [`Argument::take`] alone, whose caller promises that; used within that call alone.
pub(crate) struct Ptr<T>(*mut T);

impl<T> Clone for Ptr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Ptr<T> {}

impl<T> Ptr<T> {
    /// The number: what a handle is, and what memory is named by. The memory may later be reached by it.
    pub(crate) fn address(self) -> u64 {
        self.0.expose_provenance() as u64
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// As a pointer to something else that the API puts there.
    pub(crate) fn cast<U>(self) -> Ptr<U> {
        Ptr(self.0.cast())
    }

    /// The element `index` of an array.
    pub(crate) fn at(self, index: usize) -> Self {
        Self(self.0.wrapping_add(index))
    }

    /// Gives the caller a value.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for a null pointer
    pub(crate) fn set(self, value: T) -> Outcome {
        if self.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, so the caller promised that it can be written. C callers owe no more alignment than C gives.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Gives the caller a value if it wants it.
    pub(crate) fn set_if_asked(self, value: T) {
        if !self.is_null() {
            // The pointer is not null, so this cannot fail.
            let _written = self.set(value);
        }
    }
}

/// What callers give by pointer.
///
/// # Safety
/// Any bytes are a value of the type: it is an integer, a pointer, or a structure of those, never an enumeration.
pub(crate) unsafe trait Plain: Copy {}

macro_rules! integers {
    ($($type:ty),*) => {$(
        // SAFETY: an integer.
        unsafe impl Plain for $type {}
    )*};
}
integers!(u8, i32, u32, u64, usize);

// SAFETY: a pointer, which is not followed for being one.
unsafe impl<T> Plain for *mut T {}

impl<T: Plain> Ptr<T> {
    /// What the caller gives.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for a null pointer
    pub(crate) fn get(self) -> Outcome<T> {
        if self.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, so the caller promised that it can be read; any bytes are a value of `Plain` types.
        Ok(unsafe { self.0.read_unaligned() })
    }
}

impl Ptr<c_char> {
    /// A text that ends with a zero.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for a null pointer and for what is not UTF-8
    pub(crate) fn text(self) -> Outcome<String> {
        if self.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, so the caller promised a text with a zero at its end.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map(str::to_owned).map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    /// Writes as much of `text` as fits into `room` bytes with a zero behind it.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for a null pointer or no room
    pub(crate) fn set_text(self, text: &str, room: usize) -> Outcome {
        let Some(room) = room.checked_sub(1) else { return Err(CUresult::CUDA_ERROR_INVALID_VALUE) };
        let kept = &text.as_bytes()[..text.len().min(room)];
        for (index, &byte) in kept.iter().enumerate() {
            self.cast::<u8>().at(index).set(byte)?;
        }
        self.cast::<u8>().at(kept.len()).set(0)
    }
}

impl Ptr<u8> {
    /// `bytes` bytes of the caller's memory.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for a null pointer
    pub(crate) fn bytes(self, bytes: usize) -> Outcome<Vec<u8>> {
        (0..bytes).map(|index| self.at(index).get()).collect::<Outcome<_>>()
    }
}
