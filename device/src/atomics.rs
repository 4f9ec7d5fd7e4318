//! Remote atomics: 32 and 64 bits, and floats of 16, at system scope.
//!
//! They act on the first element of a place, by the calling thread. All are relaxed (MM-7): they order nothing else; what
//! orders data is a notify and a wait. Those with `fetch_` return the old value; those without need no answer and are
//! cheaper where the peer is far.

use congruent_heap::abi::{AtomicOp, NumberKind};
use congruent_heap::{Place, Pod, Sym, bf16, f16};

use crate::arch::{Rmw, RmwInt};
use crate::proxy::Computed;
use crate::sealed::Sealed;
use crate::{Ctx, Thread, access};

/// A number that can be added to, swapped and compared remotely: `u32`, `i32`, `u64`, `i64`, `f32`, `f64`, `f16`, `bf16`. Those of 16
/// bits need no neighbour: the other half of their word may be another's.
#[expect(private_bounds, reason = "the machine's part of the trait is nobody else's business")]
pub trait Atomic: Pod + Rmw + Sealed {
    /// How the proxy computes with it.
    #[doc(hidden)]
    const KIND: NumberKind;
}

/// An [`Atomic`] integer, which has bits and an order too.
#[expect(private_bounds, reason = "the machine's part of the trait is nobody else's business")]
pub trait AtomicInteger: Atomic + RmwInt {}

macro_rules! atomics {
    ($($type:ty: $kind:ident;)*) => {$(
        impl Atomic for $type {
            const KIND: NumberKind = NumberKind::$kind;
        }
    )*};
}
atomics! { u32: Unsigned; i32: Signed; u64: Unsigned; i64: Signed; f32: Float; f64: Float; f16: Float; bf16: Bfloat; }

impl Sealed for u32 {}
impl Sealed for i32 {}
impl Sealed for u64 {}
impl Sealed for i64 {}
impl Sealed for f32 {}
impl Sealed for f64 {}

impl AtomicInteger for u32 {}
impl AtomicInteger for i32 {}
impl AtomicInteger for u64 {}
impl AtomicInteger for i64 {}

macro_rules! fetching {
    ($bound:ident $machine:ident: $($(#[$doc:meta])* $name:ident $op:ident)*) => {$(
        $(#[$doc])*
        ///
        /// # One-sided
        /// The old value is here on return.
        ///
        /// # Panics
        /// Where the place is empty.
        #[inline(always)]
        #[track_caller]
        pub fn $name<T: $bound, G>(&self, place: Place<T, G>, value: T) -> T {
            let word = self.reach(place.elem(0));
            if self.is_proxied(place.pe()) {
                return self.far(place, AtomicOp::$op, value, value);
            }
            // SAFETY: `reach` gives mapped symmetric memory, aligned for T.
            unsafe { $machine::$name(word, value) }
        }
    )*};
}

macro_rules! posting {
    ($bound:ident: $($(#[$doc:meta])* $name:ident $op:ident)*) => {$(
        $(#[$doc])*
        ///
        /// # One-sided
        /// On return it may not have happened yet; a quiet waits for it.
        ///
        /// # Panics
        /// Where the place is empty.
        #[inline(always)]
        #[track_caller]
        pub fn $name<T: $bound, G>(&self, place: Place<T, G>, value: T) {
            let word = self.reach(place.elem(0));
            if self.is_proxied(place.pe()) {
                return self.post(place, AtomicOp::$op, value);
            }
            // SAFETY: `reach` gives mapped symmetric memory, aligned for T.
            unsafe { RmwInt::$name(word, value) };
        }
    )*};
}

impl Ctx<'_> {
    fetching! { Atomic Rmw:
        /// Adds, and gives the old value. Integers wrap around.
        fetch_add Add
        /// Stores, and gives the old value.
        swap Swap
    }
    fetching! { AtomicInteger RmwInt:
        /// Bitwise and; gives the old value.
        fetch_and And
        /// Bitwise or; gives the old value.
        fetch_or Or
        /// Bitwise exclusive or; gives the old value.
        fetch_xor Xor
        /// Minimum; gives the old value.
        fetch_min Min
        /// Maximum; gives the old value.
        fetch_max Max
    }
    posting! { AtomicInteger:
        /// Bitwise and.
        and And
        /// Bitwise or.
        or Or
        /// Bitwise exclusive or.
        xor Xor
        /// Minimum.
        min Min
        /// Maximum.
        max Max
    }

    /// Stores in this PE's own copy, to which there is no route, and gives the old value.
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn swap_own<T: Atomic>(&self, sym: Sym<T>, value: T) -> T {
        let word = self.locate(sym.elem(0), self.pe());
        // SAFETY: `locate` gives mapped symmetric memory, aligned for T.
        unsafe { Rmw::swap(word, value) }
    }

    /// [`compare_exchange`](Ctx::compare_exchange) in this PE's own copy; gives the value that was there.
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn compare_exchange_own<T: Atomic>(&self, sym: Sym<T>, expected: T, new: T) -> T {
        let word = self.locate(sym.elem(0), self.pe());
        // SAFETY: `locate` gives mapped symmetric memory, aligned for T.
        unsafe { Rmw::compare_exchange(word, expected, new) }
    }

    /// Adds. Integers wrap around; floats of 16 bits are rounded after each addition.
    ///
    /// # One-sided
    /// On return it may not have happened yet; a quiet waits for it.
    ///
    /// # Panics
    /// Where the place is empty.
    #[inline(always)]
    #[track_caller]
    pub fn add<T: Atomic, G>(&self, place: Place<T, G>, value: T) {
        let word = self.reach(place.elem(0));
        if self.is_proxied(place.pe()) {
            return self.post(place, AtomicOp::Add, value);
        }
        // SAFETY: `reach` gives mapped symmetric memory, aligned for T.
        unsafe { Rmw::add(word, value) }
    }

    /// Stores `new` if the value is `expected`, bit for bit; gives the value that was there as `Ok` where it was stored.
    ///
    /// # One-sided
    /// The old value is here on return.
    ///
    /// # Errors
    /// The value that was there, where it was another.
    ///
    /// # Panics
    /// Where the place is empty.
    #[inline(always)]
    #[track_caller]
    pub fn compare_exchange<T: Atomic, G>(&self, place: Place<T, G>, expected: T, new: T) -> Result<T, T> {
        let word = self.reach(place.elem(0));
        let old = if self.is_proxied(place.pe()) {
            self.far(place, AtomicOp::CompareExchange, new, expected)
        } else {
            // SAFETY: `reach` gives mapped symmetric memory, aligned for T.
            unsafe { Rmw::compare_exchange(word, expected, new) }
        };
        if same_bits(&old, &expected) { Ok(old) } else { Err(old) }
    }

    /// An atomic through the proxy.
    #[inline(always)]
    #[track_caller]
    fn far<T: Atomic, G>(&self, place: Place<T, G>, op: AtomicOp, value: T, second: T) -> T {
        let values = [bits(value), bits(second)];
        let old = self.ask_atomic(place.pe(), place.sym().offset(), computed::<T>(op), values);
        self.join(&Thread, old.is_none());
        access::from_words(|_| old.unwrap_or(0))
    }

    /// The same where nobody wants the old value: it is not waited for.
    #[inline(always)]
    #[track_caller]
    fn post<T: Atomic, G>(&self, place: Place<T, G>, op: AtomicOp, value: T) {
        let posted = self.ask_post(place.pe(), place.sym().offset(), computed::<T>(op), bits(value));
        self.join(&Thread, !posted);
    }
}

/// What the proxy does to a number.
const fn computed<T: Atomic>(op: AtomicOp) -> Computed {
    Computed { op, kind: T::KIND, bytes: size_of::<T>() as u64 }
}

/// A number of at most 8 bytes as the proxy gets it.
#[inline(always)]
fn bits<T: Atomic>(value: T) -> u64 {
    let mut bits = 0;
    access::each_word(value, |_, word| bits = word);
    bits
}

/// Compare-exchange compares bits: -0.0 is not 0.0, and a NaN equals itself.
#[inline(always)]
fn same_bits<T: Atomic>(a: &T, b: &T) -> bool {
    match size_of::<T>() {
        // SAFETY: an Atomic is Pod and 2, 4 or 8 bytes wide.
        2 => unsafe { core::mem::transmute_copy::<T, u16>(a) == core::mem::transmute_copy::<T, u16>(b) },
        // SAFETY: as above.
        4 => unsafe { core::mem::transmute_copy::<T, u32>(a) == core::mem::transmute_copy::<T, u32>(b) },
        // SAFETY: as above.
        _ => unsafe { core::mem::transmute_copy::<T, u64>(a) == core::mem::transmute_copy::<T, u64>(b) },
    }
}
