//! Folds on the GPU: each thread takes vectors, packets, words of lines, or elements, and keeps sums in registers.

use congruent_heap::refuse;
use core::arch::asm;
use core::mem::transmute_copy;

use congruent_heap::Pod;

use super::bulk::{load16, store16};
use super::{Lane, load, store, store_release};
use crate::arch::{End, Ends, Form, Share, elements_of};
use crate::bulk::{Fold, FoldChoice, FoldJob};
use crate::group::{Group, share};
use crate::poll::{Patience, Waiter};
use crate::sealed::Sealed;

/// Folds element `i` of every source, in their order, into element `i` of every destination. False when a wait for packets
/// ended without them; the reason is recorded.
///
/// # Safety
/// Every end covers `count` elements of mapped symmetric memory, aligned for `T` where it is plain.
#[inline(always)]
pub(crate) unsafe fn fold<T: Pod, F: Fold<T>>(
    share: Share,
    dst: &impl Ends,
    src: &impl Ends,
    count: usize,
    fold: &F,
    patience: Patience<'_>,
) -> bool {
    let (mut packets, mut line, mut apart) = (false, 0, 0);
    let mut look = |end: End| match end.form {
        Form::Plain => apart |= end.start as usize,
        Form::Packets { .. } => packets = true,
        Form::Lines { bytes, .. } => line = bytes as usize,
    };
    for i in 0..src.count() {
        look(src.end(i));
    }
    for i in 0..dst.count() {
        look(dst.end(i));
    }
    let bytes = count * size_of::<T>();
    // SAFETY: the caller's contract; each way covers every element once.
    unsafe {
        if !matches!(size_of::<T>(), 1 | 2 | 4 | 8) {
            elements::<T, F>(share, dst, src, count, fold);
            return true;
        }
        let mut at = 0;
        // Bytes are folded by words only: sixteen at once would be too many sums for the registers.
        if size_of::<T>() > 1 && !packets && line == 0 && apart.is_multiple_of(16) {
            at = bytes / 16 * 16;
            vectors::<T, F>(share, dst, src, at, fold);
        }
        words::<T, F>(share, dst, src, at, bytes, line, fold, patience)
    }
}

/// The most ends of a fold whose type is chosen at run time: all members of a team of 64, twice.
const MOST: usize = 128;
/// Bytes that one end takes in shared memory, after a head of the same size.
const SLOT: u32 = 32;

/// The same for a type that `choice` knows. It runs in a function of its own, one for all kernels of a module, because it is
/// a loop for every type; the ends reach it through the block's shared memory.
///
/// # Safety
/// Every end covers `bytes` bytes of mapped symmetric memory.
#[inline(always)]
pub(crate) unsafe fn fold_chosen<G: Group, C: FoldChoice>(
    group: &G,
    dst: &impl Ends,
    src: &impl Ends,
    bytes: usize,
    choice: C,
    patience: Patience<'_>,
) -> bool {
    let (lane, share) = (Lane::new(), share(group));
    let (dsts, srcs) = (dst.count(), src.count());
    if !G::IS_BLOCK && C::IS_SMALL {
        return choice.run(Job { share, dst, src, bytes, patience });
    }
    if !G::IS_BLOCK || dsts + srcs > MOST {
        refuse!("a reduction chosen at run time folds by whole blocks, at most 128 ends");
    }
    let shared = shared_ends();
    for i in (share.rank..dsts + srcs).step_by(share.size) {
        let end = if i < dsts { dst.end(i) } else { src.end(i - dsts) };
        let (form, flag) = match end.form {
            Form::Plain => (0, 0),
            Form::Packets { flag } => (1, flag),
            Form::Lines { flag, bytes } => (bytes, flag),
        };
        let slot = shared + (i as u32 + 1) * SLOT;
        put_shared(slot, end.start as u64);
        put_shared(slot + 8, end.offset);
        put_shared(slot + 16, u64::from(flag) | u64::from(form) << 32);
        put_shared(slot + 24, u64::from(end.pe));
    }
    if share.rank == 0 {
        put_shared(shared, patience.waiter.control);
        put_shared(shared + 8, patience.budget_ns);
        put_shared(shared + 16, u64::from(patience.waiter.pe));
    }
    lane.block_sync();
    let [a, b, c] = choice.encode();
    // SAFETY: the caller's contract; the barrier ordered what was put with what is read. The next fold puts other ends after
    // the barrier that ends this one.
    unsafe { fold_shared::<C>(a, b, c, bytes as u64, dsts as u64 | (srcs as u64) << 32) }
}

/// # Safety
/// As [`fold_chosen`], of the ends in shared memory.
#[inline(never)]
unsafe fn fold_shared<C: FoldChoice>(a: u64, b: u64, c: u64, bytes: u64, counts: u64) -> bool {
    let (lane, shared) = (Lane::new(), shared_ends());
    let waiter = Waiter { lane, control: get_shared(shared), pe: get_shared(shared + 16) as u32 };
    let patience = Patience { waiter, budget_ns: get_shared(shared + 8) };
    let (dsts, srcs) = (counts as u32, (counts >> 32) as u32);
    let dst = &SharedEnds { first: shared + SLOT, count: dsts };
    let src = &SharedEnds { first: shared + (dsts + 1) * SLOT, count: srcs };
    let share = Share { rank: lane.thread() as usize, size: lane.threads() as usize };
    C::decode([a, b, c]).run(Job { share, dst, src, bytes: bytes as usize, patience })
}

/// A fold without its type, on ends that are mapped.
struct Job<'j, D, S> {
    share: Share,
    dst: &'j D,
    src: &'j S,
    bytes: usize,
    patience: Patience<'j>,
}

impl<D, S> Sealed for Job<'_, D, S> {}
impl<D: Ends, S: Ends> FoldJob for Job<'_, D, S> {
    #[inline(always)]
    fn run<T: Pod, F: Fold<T>>(self, by: &F) -> bool {
        let count = elements_of::<T>(self.dst, self.src, self.bytes);
        // SAFETY: `fold_chosen` was given mapped ends of these bytes, which are whole elements, aligned.
        unsafe { fold(self.share, self.dst, self.src, count, by, self.patience) }
    }
}

/// Ends that are in the block's shared memory.
struct SharedEnds {
    first: u32,
    count: u32,
}

impl Ends for SharedEnds {
    #[inline(always)]
    fn count(&self) -> usize {
        self.count as usize
    }
    #[inline(always)]
    fn end(&self, i: usize) -> End {
        let slot = self.first + i as u32 * SLOT;
        let start = core::ptr::with_exposed_provenance_mut(get_shared(slot) as usize);
        let (flag, form) = (get_shared(slot + 16) as u32, (get_shared(slot + 16) >> 32) as u32);
        let form = match form {
            0 => Form::Plain,
            1 => Form::Packets { flag },
            bytes => Form::Lines { flag, bytes },
        };
        End { start, form, last: start.cast(), offset: get_shared(slot + 8), pe: get_shared(slot + 24) as u32 }
    }
}

/// Where the ends are, in the block's shared memory. A function of its own, so that a module has one such place.
#[inline(never)]
fn shared_ends() -> u32 {
    let address: u32;
    // SAFETY: declares shared memory for a head and MOST ends, and gives its address.
    unsafe {
        asm!("{{ .shared .align 16 .b8 ends[4128]; mov.u32 {a}, ends; }}", a = out(reg32) address, options(nostack));
    }
    const { assert!((MOST as u32 + 1) * SLOT == 4128) };
    address
}

#[inline(always)]
fn put_shared(address: u32, value: u64) {
    // SAFETY: callers give addresses of `shared_ends`, aligned.
    unsafe { asm!("st.shared.b64 [{a}], {v};", a = in(reg32) address, v = in(reg64) value, options(nostack)) }
}

#[inline(always)]
fn get_shared(address: u32) -> u64 {
    let value;
    // SAFETY: callers give addresses of `shared_ends`, aligned.
    unsafe { asm!("ld.shared.b64 {v}, [{a}];", a = in(reg32) address, v = out(reg64) value, options(nostack)) };
    value
}

/// Elements of other sizes, one by one; they are never packed.
///
/// # Safety
/// As [`fold`].
#[inline(always)]
unsafe fn elements<T: Pod, F: Fold<T>>(share: Share, dst: &impl Ends, src: &impl Ends, count: usize, fold: &F) {
    let mut at = share.rank;
    while at < count {
        // SAFETY: the caller's contract, and `at < count`.
        unsafe {
            let mut sum = fold.first(crate::access::load(src.end(0).start.cast::<T>().add(at)));
            for i in 1..src.count() {
                sum = fold.next(sum, crate::access::load(src.end(i).start.cast::<T>().add(at)));
            }
            let result = fold.last(sum);
            for i in 0..dst.count() {
                crate::access::store(dst.end(i).start.cast::<T>().add(at), result);
            }
        }
        at += share.size;
    }
}

/// 16 bytes a thread, of the first `bytes`, all ends plain and aligned.
///
/// # Safety
/// As [`fold`].
#[inline(always)]
unsafe fn vectors<T: Pod, F: Fold<T>>(share: Share, dst: &impl Ends, src: &impl Ends, bytes: usize, fold: &F) {
    let mut at = share.rank * 16;
    while at < bytes {
        // SAFETY: the caller's contract, and `at + 16 <= bytes`.
        unsafe {
            if let Some(result) = fold16::<T, F>(src.count(), |i| Some(load16(src.end(i).start.add(at))), fold) {
                for i in 0..dst.count() {
                    store16(dst.end(i).start.add(at), result);
                }
            }
        }
        at += share.size * 16;
    }
}

/// 8 bytes of data a thread, of bytes `from..bytes`.
///
/// With lines, whose flags are words too, neighbouring threads store a line together. That it then arrives as a whole is a
/// property of the hardware, not of the PTX model (MM-8): that protocol is opt-in.
///
/// # Safety
/// As [`fold`].
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "one function for all forms, since it is a loop for each type")]
unsafe fn words<T: Pod, F: Fold<T>>(
    share: Share,
    dst: &impl Ends,
    src: &impl Ends,
    from: usize,
    bytes: usize,
    line: usize,
    fold: &F,
    patience: Patience<'_>,
) -> bool {
    // Without lines, all is one line without a flag.
    let (line_words, lines) = if line > 0 { (line / 8, bytes.div_ceil(line - 8)) } else { (1 << 40, 1) };
    let all = if line > 0 { lines * line_words } else { (bytes - from).div_ceil(8) };
    let mut word = share.rank;
    // As many turns for every thread, so that they stay together where lines are stored.
    for _ in 0..all.div_ceil(share.size) {
        let (index, place) = (word / line_words, word % line_words);
        let at = from + (word - index) * 8;
        let carries = word < all && place < line_words - 1 && at < bytes;
        let n = if carries { (bytes - at).min(8) } else { 0 };
        let mut result = [0; 2];
        // SAFETY: the caller's contract; `at..at + n` is inside, packets start at `2 * at`, and lines are whole.
        unsafe {
            if carries {
                let load = |i| {
                    let end = src.end(i);
                    match end.form {
                        Form::Plain => Some(load_up_to_8(end.start.add(at), n)),
                        Form::Packets { flag } => take_packets(&end, at, n, flag, patience),
                        Form::Lines { flag, .. } => take_line(&end, index * line, place, line, flag, patience),
                    }
                };
                match fold8::<T, F>(src.count(), load, fold) {
                    Some(sum) => result = sum,
                    None => return false,
                }
            }
            if line > 0 && share.size > 1 {
                Lane::new().warp_sync();
            }
            for i in 0..dst.count() {
                let end = dst.end(i);
                match end.form {
                    Form::Plain if carries => store_up_to_8(end.start.add(at), n, result),
                    Form::Packets { flag } if carries => give_packets(&end, at, n, flag, result),
                    Form::Lines { flag, .. } if word < all => {
                        let here = end.start.add(word * 8).cast::<u64>();
                        if place < line_words - 1 {
                            store(here, u64::from(result[0]) | u64::from(result[1]) << 32);
                        } else if share.size > 1 {
                            store(here, u64::from(flag));
                        } else {
                            store_release(here, u64::from(flag));
                        }
                    }
                    _ => {}
                }
            }
        }
        word += share.size;
    }
    true
}

/// Both packets that carry bytes `at..at + n`.
///
/// # Safety
/// As [`words`].
#[inline(always)]
unsafe fn take_packets(end: &End, at: usize, n: usize, flag: u32, patience: Patience<'_>) -> Option<[u32; 2]> {
    // SAFETY: the caller's contract.
    let words = unsafe { end.start.add(2 * at) };
    // SAFETY: as above. Where one packet is all there is, the other word is memory of the same queue, which is not looked at.
    let mut packets = unsafe { load_words(words) };
    if !(packets[0] as u32 == flag && (n <= 4 || packets[1] as u32 == flag)) {
        if !patience.packets(words, n > 4, flag, end) {
            return None;
        }
        // SAFETY: as above.
        packets = unsafe { load_words(words) };
    }
    Some(packets.map(|packet| (packet >> 32) as u32))
}

/// # Safety
/// As [`words`].
#[inline(always)]
unsafe fn give_packets(end: &End, at: usize, n: usize, flag: u32, data: [u32; 2]) {
    let packet = |data: u32| u64::from(data) << 32 | u64::from(flag);
    // SAFETY: the caller's contract.
    unsafe {
        let words = end.start.add(2 * at);
        if n > 4 {
            store_words(words, data.map(packet));
        } else {
            store(words.cast::<u64>(), packet(data[0]));
        }
    }
}

/// Data word `place` of a line that has arrived: read again once the flag is there.
///
/// # Safety
/// As [`words`].
#[inline(always)]
unsafe fn take_line(
    end: &End,
    start: usize,
    place: usize,
    line: usize,
    flag: u32,
    patience: Patience<'_>,
) -> Option<[u32; 2]> {
    // SAFETY: the caller's contract.
    let (word, last) = unsafe { (end.start.add(start + place * 8), end.start.add(start + line - 8)) };
    // SAFETY: the caller's contract.
    if unsafe { super::load_acquire(last.cast()) } != u64::from(flag) && !patience.packets(last, false, flag, end) {
        return None;
    }
    // SAFETY: the caller's contract.
    let data: u64 = unsafe { load(word.cast::<u64>()) };
    Some([data as u32, (data >> 32) as u32])
}

impl Patience<'_> {
    /// Waits until the packet at `word`, and with `both` the next one, carry the flag; acquires, which is what lines need.
    #[inline(always)]
    fn packets(self, word: *mut u8, both: bool, flag: u32, end: &End) -> bool {
        let what = u64::from(flag) | u64::from(both) << 32;
        let who = u64::from(self.waiter.pe) | u64::from(end.pe) << 32;
        packets_arrive(word, what, self.waiter.control, self.budget_ns, end.offset, who)
    }
}

/// A function of its own, with few scalar arguments, as every loop that waits.
#[inline(never)]
fn packets_arrive(word: *mut u8, what: u64, control: u64, budget_ns: u64, offset: u64, who: u64) -> bool {
    let word: *mut u64 = word.cast();
    let waiter = Waiter { lane: Lane::new(), control, pe: who as u32 };
    // SAFETY: callers give mapped words, aligned, a second one where they ask for both.
    let has = |i| unsafe { super::load_acquire(word.add(i)) } as u32 == what as u32;
    match waiter.poll(word, budget_ns, || has(0) && (what >> 32 == 0 || has(1))) {
        Ok(()) => true,
        Err(stop) => {
            waiter.record(stop, offset, (who >> 32) as u32, what & 0xffff_ffff);
            false
        }
    }
}

/// Two words in one access. Each is a relaxed access of 64 bits of its own in the PTX model, which does not tear.
#[inline(always)]
unsafe fn load_words(pointer: *const u8) -> [u64; 2] {
    let (a, b): (u64, u64);
    on_global!("ld.relaxed.sys.global.v2.b64 {{{a}, {b}}}, [g];", pointer, a = out(reg64) a, b = out(reg64) b);
    [a, b]
}

#[inline(always)]
unsafe fn store_words(pointer: *mut u8, [a, b]: [u64; 2]) {
    on_global!("st.relaxed.sys.global.v2.b64 [g], {{{a}, {b}}};", pointer, a = in(reg64) a, b = in(reg64) b);
}

/// Up to 8 bytes of plain memory, aligned or not.
///
/// # Safety
/// The bytes are mapped global memory.
#[inline(always)]
unsafe fn load_up_to_8(from: *const u8, n: usize) -> [u32; 2] {
    // SAFETY: the caller's contract.
    unsafe {
        let value: u64 = if n == 8 && (from as usize).is_multiple_of(8) {
            load(from.cast::<u64>())
        } else {
            let mut value = 0;
            for i in 0..n {
                value |= u64::from(load::<u8>(from.add(i))) << (8 * i);
            }
            value
        };
        [value as u32, (value >> 32) as u32]
    }
}

/// # Safety
/// As [`load_up_to_8`].
#[inline(always)]
unsafe fn store_up_to_8(to: *mut u8, n: usize, [low, high]: [u32; 2]) {
    let value = u64::from(low) | u64::from(high) << 32;
    // SAFETY: the caller's contract.
    unsafe {
        if n == 8 && (to as usize).is_multiple_of(8) {
            store(to.cast::<u64>(), value);
        } else {
            for i in 0..n {
                store(to.add(i), (value >> (8 * i)) as u8);
            }
        }
    }
}

/// Element `i` of registers. `i` is a constant wherever it is called, so that nothing leaves the registers.
#[inline(always)]
fn get<T: Pod, const K: usize>(words: &[u32; K], i: usize) -> T {
    // SAFETY (each transmute_copy): the branch's `size_of` makes both types equally large, and any bytes are valid.
    unsafe {
        match size_of::<T>() {
            8 => transmute_copy(&(u64::from(words[2 * i]) | u64::from(words[2 * i + 1]) << 32)),
            4 => transmute_copy(&words[i]),
            2 => transmute_copy(&((words[i / 2] >> (16 * (i % 2))) as u16)),
            _ => transmute_copy(&((words[i / 4] >> (8 * (i % 4))) as u8)),
        }
    }
}

#[inline(always)]
fn set<T: Pod, const K: usize>(words: &mut [u32; K], i: usize, value: T) {
    // SAFETY (each transmute_copy): as above.
    unsafe {
        match size_of::<T>() {
            8 => {
                let bits: u64 = transmute_copy(&value);
                words[2 * i] = bits as u32;
                words[2 * i + 1] = (bits >> 32) as u32;
            }
            4 => words[i] = transmute_copy(&value),
            2 => words[i / 2] |= u32::from(transmute_copy::<T, u16>(&value)) << (16 * (i % 2)),
            _ => words[i / 4] |= u32::from(transmute_copy::<T, u8>(&value)) << (8 * (i % 4)),
        }
    }
}

macro_rules! granule {
    ($($name:ident: $words:literal, [$($i:literal)*];)*) => {$(
        #[inline(always)]
        fn $name<T: Pod, F: Fold<T>>(
            count: usize,
            mut load: impl FnMut(usize) -> Option<[u32; $words]>,
            fold: &F,
        ) -> Option<[u32; $words]> {
            let values = load(0)?;
            let mut sums = [$(fold.first(get::<T, $words>(&values, $i))),*];
            for source in 1..count {
                let values = load(source)?;
                sums = [$(fold.next(sums[$i], get::<T, $words>(&values, $i))),*];
            }
            let mut result = [0; $words];
            $(set::<T, $words>(&mut result, $i, fold.last(sums[$i]));)*
            Some(result)
        }
    )*};
}

granule! {
    fold16_of_2: 4, [0 1 2 3 4 5 6 7];
    fold16_of_4: 4, [0 1 2 3];
    fold16_of_8: 4, [0 1];
    fold8_of_1: 2, [0 1 2 3 4 5 6 7];
    fold8_of_2: 2, [0 1 2 3];
    fold8_of_4: 2, [0 1];
    fold8_of_8: 2, [0];
}

/// Folds the elements that 16 bytes hold.
#[inline(always)]
fn fold16<T: Pod, F: Fold<T>>(count: usize, load: impl FnMut(usize) -> Option<[u32; 4]>, fold: &F) -> Option<[u32; 4]> {
    match size_of::<T>() {
        2 => fold16_of_2(count, load, fold),
        4 => fold16_of_4(count, load, fold),
        _ => fold16_of_8(count, load, fold),
    }
}

/// Folds the elements that 8 bytes hold.
#[inline(always)]
fn fold8<T: Pod, F: Fold<T>>(count: usize, load: impl FnMut(usize) -> Option<[u32; 2]>, fold: &F) -> Option<[u32; 2]> {
    match size_of::<T>() {
        1 => fold8_of_1(count, load, fold),
        2 => fold8_of_2(count, load, fold),
        4 => fold8_of_4(count, load, fold),
        _ => fold8_of_8(count, load, fold),
    }
}
