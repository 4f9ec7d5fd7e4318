//! Operands of a fold: where sources and destinations are, and in what form.
//!
//! In *packets* (NCCL's LL protocol) every 8-byte word is 4 bytes of data and a 4-byte flag, so that data and the news of its
//! arrival are one access: no signal, no fence, twice the bytes (MM-8). A CPU stores in order at no cost, so that its packets are the
//! bytes as they are, in the same room, behind one flag that is stored last. In *lines* (LL128) the last 8 bytes of each line are the
//! flag: 15/16 of the bytes are data, but the line must arrive as a whole, which only some hardware grants.

use congruent_heap::abi::NO_PE;
use congruent_heap::{Pe, Place, Pod, is_inside, refuse};

use crate::Ctx;
#[cfg(not(target_arch = "nvptx64"))]
use crate::{Group, arch, poll::Polled};

/// One source or destination of a fold: memory that loads and stores reach. [`Ctx::operand`] makes one.
///
/// Packed sources are awaited: whoever reads packets or lines gives the flag that they were written with, and waits until the
/// words carry it. So a flag must not be found in the words before they are written, and words that are written again get
/// another one.
// No enum of forms: a field that only some variants had would be undefined in the others, and a GPU's compiler keeps a register
// for such a field through every loop around it.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    pub(crate) address: u64,
    /// Bytes of data.
    pub(crate) bytes: usize,
    /// Where it is on its heap, and on which PE's.
    pub(crate) offset: u64,
    #[cfg_attr(target_arch = "nvptx64", expect(dead_code, reason = "who sleeps or counts bytes does so on CPUs"))]
    pub(crate) pe: u32,
    /// The PE that is to send it, or [`NO_PE`]: what a fault says.
    pub(crate) sender: u32,
    /// [`PLAIN`], [`PACKETS`], or the bytes of a line; with [`PARTIAL`] where it is a partial result.
    pub(crate) form: u32,
    pub(crate) flag: u32,
}

/// The form of bytes as they are.
#[doc(hidden)]
pub const PLAIN: u32 = 0;
/// The form of packets: 4 bytes in the upper half of each 8-byte word, with the flag in the lower half. On a CPU the first flag is that of
/// all bytes.
#[doc(hidden)]
pub const PACKETS: u32 = 1;
/// Added to a form: not as a member contributed it.
pub(crate) const PARTIAL: u32 = 1 << 8;

impl Operand {
    /// The same, as a partial result, which an operator resumes from.
    #[must_use]
    #[inline(always)]
    pub const fn partial(self, is_partial: bool) -> Self {
        Self { form: self.form & !PARTIAL | if is_partial { PARTIAL } else { 0 }, ..self }
    }

    /// The same, from a PE that is to send it: what a fault says where it does not.
    #[must_use]
    #[inline(always)]
    pub const fn from_pe(self, sender: Pe) -> Self {
        Self { sender: sender.raw(), ..self }
    }

    /// The same. Where the bytes are as they are, the compiler gets to know it.
    #[cfg(target_arch = "nvptx64")]
    #[inline(always)]
    pub(crate) const fn known(self, is_plain: bool) -> Self {
        if is_plain { Self { form: self.form & PARTIAL, ..self } } else { self }
    }

    /// Whether the bytes are as they are.
    #[inline(always)]
    pub(crate) const fn is_plain(&self) -> bool {
        self.form() == PLAIN
    }

    /// Its form, without whether it is partial.
    #[inline(always)]
    pub(crate) const fn form(&self) -> u32 {
        self.form & !PARTIAL
    }

    #[inline(always)]
    pub(crate) const fn is_partial(&self) -> bool {
        self.form & PARTIAL != 0
    }

    #[inline(always)]
    pub(crate) const fn start(&self) -> *mut u8 {
        core::ptr::with_exposed_provenance_mut(self.address as usize)
    }

    /// Bytes of memory that it takes, flags included.
    #[inline(always)]
    pub const fn extent(&self) -> usize {
        match self.form() {
            PLAIN => self.bytes,
            form => packed_words(self.bytes, form) * 8,
        }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
impl Operand {
    /// Where the bytes are, of what has no lines. Those of packets follow their flag, on another cache line where they fill one, so that
    /// who polls the flag does not take from the sender what it still writes.
    #[inline(always)]
    pub(crate) const fn data(&self) -> *mut u8 {
        let behind = match (self.form(), self.bytes) {
            (PACKETS, ..=4) => 4,
            (PACKETS, ..16) => 8,
            (PACKETS, ..64) => 16,
            (PACKETS, _) => 64,
            _ => 0,
        };
        self.start().wrapping_add(behind)
    }

    /// Whether its form is lines.
    #[inline(always)]
    pub(crate) const fn has_lines(&self) -> bool {
        !matches!(self.form(), PLAIN | PACKETS)
    }

    /// The word that the last flag is in, for those who sleep until it changes.
    #[inline(always)]
    fn last_word(&self) -> Polled {
        let at = if self.form() == PACKETS { 0 } else { self.extent().saturating_sub(8) };
        // SAFETY: whole words of mapped memory, aligned (`packed`).
        unsafe { Polled::new(self.start().wrapping_add(at).cast()) }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
impl Ctx<'_> {
    /// Waits for packets, of which only the calling thread knows then that they are there; for nothing of another form. False when the
    /// kernel must end; then the reason is recorded.
    #[inline(always)]
    pub(crate) fn packets_come(&self, operand: &Operand) -> bool {
        // SAFETY: the start of packets is mapped and aligned (`packed`).
        let arrived = || unsafe { arch::load_acquire::<u32>(operand.start().cast()) } == operand.flag;
        operand.form() != PACKETS || operand.bytes == 0 || arrived() || self.flagged(*operand, arrived)
    }

    /// Waits for a flag of an operand. False when the kernel must end; then the reason is recorded.
    #[cold]
    pub(crate) fn flagged(&self, operand: Operand, arrived: impl FnMut() -> bool) -> bool {
        self.packet(|| operand, operand.last_word(), arrived)
    }

    /// The group has met since its threads stored what goes to an operand: sets the flag of packets, wakes who sleeps until they come, and
    /// tells who watches. By the group's leader.
    pub(crate) fn sent(&self, group: &impl Group, operand: &Operand) {
        self.moved_by(group, self.pe().raw(), operand.pe, operand.extent());
        if operand.is_plain() || operand.bytes == 0 {
            return;
        }
        if operand.form() == PACKETS {
            // SAFETY: as in `packets_come`.
            unsafe { arch::store_release::<u32>(operand.start().cast(), operand.flag) };
        }
        self.wake(Pe::new(operand.pe), operand.last_word());
    }
}

/// How many 8-byte words `bytes` bytes take in packets (`form` 1), or in lines of `form` bytes.
#[inline(always)]
pub const fn packed_words(bytes: usize, form: u32) -> usize {
    // By constants, because a GPU divides 64-bit numbers in a function.
    let lines = match form {
        PACKETS => return bytes.div_ceil(4),
        16 => bytes.div_ceil(8),
        32 => bytes.div_ceil(24),
        64 => bytes.div_ceil(56),
        128 => bytes.div_ceil(120),
        _ => refuse!(const "lines have 16, 32, 64 or 128 bytes"),
    };
    lines * (form as usize / 8)
}

impl Ctx<'_> {
    /// A place's elements as they are.
    ///
    /// # Panics
    /// Where the place is reached only through a proxy.
    #[inline(always)]
    #[track_caller]
    pub fn operand<T: Pod, G>(&self, place: Place<T, G>) -> Operand {
        let (offset, bytes) = (place.sym().offset(), place.sym().bytes());
        self.located(offset, bytes, PLAIN, place.pe(), 0, bytes)
    }

    /// `bytes` bytes in packets at the start of `memory`.
    ///
    /// # Panics
    /// Where `memory` is too short or does not start on a multiple of 16 bytes, and as [`operand`](Ctx::operand).
    #[inline(always)]
    #[track_caller]
    pub fn packets<G>(&self, memory: Place<u8, G>, bytes: usize, flag: u32) -> Operand {
        self.in_form(memory, bytes, PACKETS, flag)
    }

    /// `bytes` bytes in lines of `line` bytes at the start of `memory`.
    ///
    /// # Panics
    /// Where `memory` is too short or does not start on a multiple of `line`, or `line` is not 16, 32, 64 or 128, and as
    /// [`operand`](Ctx::operand).
    #[inline(always)]
    #[track_caller]
    pub fn lines<G>(&self, memory: Place<u8, G>, bytes: usize, flag: u32, line: u32) -> Operand {
        self.in_form(memory, bytes, line, flag)
    }

    /// `bytes` bytes at the start of `memory`: [`PLAIN`], in [`PACKETS`], or in lines of `form` bytes. What chooses one at run time has
    /// one way for all.
    ///
    /// # Panics
    /// As [`operand`](Ctx::operand), [`packets`](Ctx::packets) and [`lines`](Ctx::lines).
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn in_form<G>(&self, memory: Place<u8, G>, bytes: usize, form: u32, flag: u32) -> Operand {
        self.located(memory.sym().offset(), memory.len(), form, memory.pe(), flag, bytes)
    }

    #[inline(always)]
    #[track_caller]
    fn located(&self, offset: u64, room: usize, form: u32, pe: Pe, flag: u32, bytes: usize) -> Operand {
        let address = self.address_of_operand(offset, room, form, pe, bytes);
        Operand { address, bytes, offset, pe: pe.raw(), sender: NO_PE, form, flag }
    }

    outlined! {
        /// Where the memory of an operand is, `room` bytes of it.
        pub(crate) fn address_of_operand(&self, offset: u64, room: usize, form: u32, pe: Pe, bytes: usize) -> u64 {
            if self.is_proxied(pe) {
                refuse!("folds work on peers that loads and stores reach; this one is reached through a proxy");
            }
            let (extent, align) = match form {
                PLAIN => (bytes, 1),
                PACKETS => (packed_words(bytes, PACKETS) * 8, 16),
                line => (packed_words(bytes, line) * 8, u64::from(line)),
            };
            if extent > room {
                refuse!("too little memory for these bytes, in words with flags where they are packed");
            }
            if offset & (align - 1) != 0 {
                refuse!("packets start on a multiple of 16 bytes, lines on one of their size");
            }
            if !is_inside(offset, room as u64, (1, 1), self.abi().heap_bytes) {
                refuse!("a symmetric object reaches past the heap: is it of another world?");
            }
            self.check_pe(pe);
            self.abi().address(pe, offset)
        }
    }
}

/// The sources or the destinations of a fold: an array of operands, or what [`operands`] or [`Ctx::places`] makes.
pub trait Operands {
    /// Whether the bytes of all are as they are, whatever `get` says of their form: a GPU's fold of such ones is shorter.
    const PLAIN: bool = false;
    /// Whether they lie differently within words, or are less than one: a GPU's fold of such ones has no vectors.
    const APART: bool = false;
    /// How many.
    fn count(&self) -> usize;
    /// Number `i`.
    fn get(&self, i: usize) -> Operand;
}

/// Operands that lie differently within words, or are less than one.
#[doc(hidden)]
pub struct Apart<O>(pub O);

impl<O: Operands> Operands for Apart<O> {
    const PLAIN: bool = O::PLAIN;
    const APART: bool = true;

    #[inline(always)]
    fn count(&self) -> usize {
        self.0.count()
    }
    #[inline(always)]
    fn get(&self, i: usize) -> Operand {
        self.0.get(i)
    }
}

/// `count` operands, computed one by one.
#[inline(always)]
pub fn operands(count: usize, get: impl Fn(usize) -> Operand) -> impl Operands {
    Computed::<_, false> { count, get }
}

impl Ctx<'_> {
    /// `count` places, whose bytes are as they are, computed one by one.
    ///
    /// # Panics
    /// As [`operand`](Ctx::operand), when they are used.
    #[inline(always)]
    #[track_caller]
    pub fn places<T: Pod, G>(&self, count: usize, get: impl Fn(usize) -> Place<T, G>) -> impl Operands {
        Computed::<_, true> { count, get: move |i| self.operand(get(i)) }
    }

    /// The same of an array, each computed once.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn array<T: Pod, G, const N: usize>(&self, places: [Place<T, G>; N]) -> impl Operands {
        let all = places.map(|place| self.operand(place));
        Computed::<_, true> { count: N, get: move |i| one_of(&all, i) }
    }
}

/// Both kinds, of which the type says which.
struct Computed<F, const PLAIN: bool> {
    count: usize,
    get: F,
}

impl<F: Fn(usize) -> Operand, const PLAIN: bool> Operands for Computed<F, PLAIN> {
    const PLAIN: bool = PLAIN;

    #[inline(always)]
    fn count(&self) -> usize {
        self.count
    }
    #[inline(always)]
    fn get(&self, i: usize) -> Operand {
        (self.get)(i)
    }
}

impl<const N: usize> Operands for [Operand; N] {
    #[inline(always)]
    fn count(&self) -> usize {
        N
    }
    #[inline(always)]
    fn get(&self, i: usize) -> Operand {
        one_of(self, i)
    }
}

/// Element `i`, the last one past the end, by comparisons: an array that is indexed is in memory, which on a GPU is slow.
#[inline(always)]
fn one_of<T: Copy, const N: usize>(all: &[T; N], i: usize) -> T {
    let mut chosen = all[N - 1];
    let mut k = N - 1;
    while k > 0 {
        k -= 1;
        if i == k {
            chosen = all[k];
        }
    }
    chosen
}
