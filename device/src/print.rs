//! Lines that a kernel prints, for whoever looks for a mistake in it.
//!
//! A line goes to the host through memory that both have ([`Prints`]). Its thread takes a place, stores what it has to say, and publishes
//! that with release; the host, which acquires it, prints it some time later, and gives the place back with release.

use core::marker::PhantomData;
use core::mem::offset_of;
use core::ptr::with_exposed_provenance_mut;

use congruent_heap::abi::{Control, PrintLine, Printed, Prints};
use congruent_heap::{bf16, f16};

use crate::arch::{self, Rmw};
use crate::sealed::Sealed;
use crate::{Ctx, SmallFloat};

/// Prints a line from a kernel: a text in which each `{}` stands for a value, of which there may be six. The host writes it to standard
/// error with PE, kernel, block and thread, or gives it to what `World::on_print` has set.
///
/// The thread waits for nobody, so lines come some time later, and are lost and counted where a PE's kernels print more than 256 at once.
/// Lines of one thread come in its order.
///
/// ```
/// use congruent_device::{Group, Sym, kernels, print};
///
/// kernels! {
///     pub fn check(block, ctx, numbers: Sym<f32>) {
///         for i in block.strided(numbers.len()) {
///             let number = ctx.load(numbers, i);
///             if !number.is_finite() {
///                 print!(ctx, "number {} is {}", i, number);
///             }
///         }
///     }
/// }
/// ```
///
/// A text with more or fewer `{}` than values does not compile:
///
/// ```compile_fail
/// # use congruent_device::{Sym, kernels, print};
/// kernels! {
///     pub fn check(block, ctx, number: f32) {
///         print!(ctx, "{} and {}", number);
///     }
/// }
/// ```
#[macro_export]
macro_rules! print {
    ($ctx:expr, $text:literal $(, $value:expr)* $(,)?) => {{
        const {
            let values: &[&str] = &[$(stringify!($value)),*];
            $crate::check_print($text, values.len());
        }
        let line = $ctx.line($text);
        $(let line = line.value($value);)*
        line.end();
    }};
}

/// Refuses a text that has not as many `{}` as there are values, or is too long.
#[doc(hidden)]
pub const fn check_print(text: &str, values: usize) {
    let (bytes, mut at, mut places) = (text.as_bytes(), 0, 0);
    while at + 1 < bytes.len() {
        if bytes[at] == b'{' && bytes[at + 1] == b'}' {
            places += 1;
        }
        at += 1;
    }
    assert!(places == values, "a line has as many `{{}}` as values");
    assert!(values <= PrintLine::VALUES, "a line has at most 6 values");
    assert!(bytes.len() <= PrintLine::TEXT, "the text of a line has at most 104 bytes");
}

/// What [`print!`](crate::print) prints: numbers and truth values.
pub trait Print: Copy + Sealed {
    /// How it travels.
    #[doc(hidden)]
    fn to_print(self) -> (Printed, u64);
}

macro_rules! print {
    ($($type:ty: $kind:ident, |$value:ident| $bits:expr;)*) => {$(
        impl Print for $type {
            #[inline(always)]
            fn to_print(self) -> (Printed, u64) {
                let $value = self;
                (Printed::$kind, $bits)
            }
        }
    )*};
}

print! {
    u8: Unsigned, |value| value.into();
    u16: Unsigned, |value| value.into();
    u32: Unsigned, |value| value.into();
    u64: Unsigned, |value| value;
    usize: Unsigned, |value| value as u64;
    i8: Signed, |value| i64::from(value) as u64;
    i16: Signed, |value| i64::from(value) as u64;
    i32: Signed, |value| i64::from(value) as u64;
    i64: Signed, |value| value as u64;
    f16: Short, |value| value.widen().to_bits().into();
    bf16: Short, |value| value.widen().to_bits().into();
    f32: Short, |value| value.to_bits().into();
    f64: Float, |value| value.to_bits();
    bool: Bool, |value| value.into();
}

impl Sealed for usize {}
impl Sealed for i8 {}
impl Sealed for i16 {}
impl Sealed for bool {}

/// A line that is being written; one without a place is lost.
#[doc(hidden)]
#[must_use]
pub struct OpenLine<'c> {
    at: *mut PrintLine,
    ready: u64,
    kinds: u32,
    values: u32,
    ctx: PhantomData<&'c ()>,
}

impl Ctx<'_> {
    /// Begins a line.
    #[doc(hidden)]
    #[inline(always)]
    pub fn line(&self, text: &'static str) -> OpenLine<'_> {
        self.open_line(text, offset_of!(Prints, lost))
    }

    /// The same, which counts there if it is lost. As much of the text as a line has room for.
    #[inline(always)]
    fn open_line(&self, text: &'static str, lost: usize) -> OpenLine<'_> {
        let ready = self.reserve_line(text.as_ptr(), text.len().min(PrintLine::TEXT), lost);
        let at = self.line_at(ready);
        OpenLine { at, ready, kinds: 0, values: 0, ctx: PhantomData }
    }

    /// Tells of a part of the work that is over.
    #[cfg(all(target_arch = "nvptx64", feature = "trace"))]
    #[inline(always)]
    pub(crate) fn tell_span(&self, mark: &crate::Mark, begin_ns: u64, end_ns: u64) {
        let (part, of) = mark.part;
        let peer = mark.peer.map_or(congruent_heap::abi::NO_PE, congruent_heap::Pe::raw);
        let line = self.open_line(mark.name, offset_of!(Prints, lost_spans));
        let line = line.value(begin_ns).value(end_ns).value(u64::from(of) << 32 | u64::from(part));
        OpenLine { kinds: PrintLine::SPAN, ..line.value(peer).value(mark.bytes) }.end();
    }

    outlined! {
        /// Takes a place for a line and stores all of it but values. One more than its number; 0 where there is no room, which is
        /// counted at that offset.
        #[cold]
        fn reserve_line(&self, text: *const u8, bytes: usize, lost: usize) -> u64 {
            let prints = self.prints();
            // SAFETY: the context vouches for the control block, whose words are accessed so by all. The slot is this thread's from the
            // exchange on until it is ready: the host has given it back, which the acquire load has seen. The text is as long as that.
            unsafe {
                let reserved = &raw mut (*prints).reserved;
                let mut next = arch::load(reserved);
                loop {
                    let taken = arch::load_acquire(&raw const (*prints).taken);
                    // Less than none where lines were reserved and taken since `next` was loaded: the exchange will tell.
                    if next.wrapping_sub(taken) as i64 >= Prints::SLOTS as i64 {
                        Rmw::add(prints.byte_add(lost).cast(), 1_u64);
                        return 0;
                    }
                    let seen = Rmw::compare_exchange(reserved, next, next + 1);
                    if seen == next {
                        break;
                    }
                    next = seen;
                }
                let line = self.line_at(next + 1);
                arch::store(&raw mut (*line).launch, self.abi().launch);
                arch::store(&raw mut (*line).block, self.lane.block());
                arch::store(&raw mut (*line).thread, self.lane.thread());
                crate::end::keep_text(text, (&raw mut (*line).text).cast(), bytes);
                arch::store(&raw mut (*line).bytes, bytes as u64);
                next + 1
            }
        }
    }

    /// The slot of a line that is to be `ready`.
    #[inline(always)]
    fn line_at(&self, ready: u64) -> *mut PrintLine {
        let slot = ready.wrapping_sub(1) as usize % Prints::SLOTS;
        // SAFETY: the slot is one of the control block's, for which the context vouches.
        unsafe { (&raw mut (*self.prints()).slots).cast::<PrintLine>().add(slot) }
    }

    #[inline(always)]
    fn prints(&self) -> *mut Prints {
        let control: *mut Control = with_exposed_provenance_mut(self.abi().control as usize);
        // SAFETY: a field of the control block, for which the context vouches.
        unsafe { &raw mut (*control).prints }
    }
}

impl OpenLine<'_> {
    /// Adds a value; there are at most as many as a line has room for.
    #[inline(always)]
    pub fn value(self, value: impl Print) -> Self {
        let (kind, bits) = value.to_print();
        if self.ready != 0 {
            // SAFETY: the slot is this thread's, and `check_print` has bounded the values of a line.
            unsafe { arch::store((&raw mut (*self.at).values).cast::<u64>().add(self.values as usize), bits) };
        }
        Self { kinds: self.kinds | (kind as u32) << (4 * self.values), values: self.values + 1, ..self }
    }

    /// Gives it to the host.
    #[inline(always)]
    pub fn end(self) {
        if self.ready != 0 {
            // SAFETY: the slot is this thread's until the second store.
            unsafe {
                arch::store(&raw mut (*self.at).kinds, self.kinds);
                arch::store_release(&raw mut (*self.at).ready, self.ready);
            }
        }
    }
}
