//! Combine: what experts answered goes back, and is summed.

use core::array;
use core::marker::PhantomData;
use core::ops::Range;

use congruent_device::{
    Datatype, Group, Number, Pack, Peer, Pod, Reducer, Sum, Sym, Vectorized, bf16, f16, opaque_word, refuse, vectorized,
};

use super::gates::Half;
use super::route::NOWHERE;
use super::{Combining, Gate, Idle, MicroBatch, Moe, Received, Row};

/// What is added to each token's sum behind what came back, before it is rounded.
#[derive(Clone, Copy, Debug)]
pub enum Added<T> {
    /// Nothing.
    Nothing,
    /// One row, to all tokens alike.
    Bias(Sym<T>),
    /// A row for each token.
    Residual(Sym<T>),
}

/// How many packs of an answer a thread computes together. A GPU has other warps while one waits, and no registers to spare.
const TOGETHER: usize = if cfg!(target_arch = "nvptx64") { 1 } else { 8 };

impl Moe<'_> {
    /// Sends back what the experts of this PE answered: of each row, the answers of its token's choices that are experts of this PE, each
    /// times the choice's weight, summed in `f32` in the order of the choices and rounded once to a `T`. `answer` gives what the expert of
    /// choice `k` answered to a row, as a function of the element.
    ///
    /// Rows are dealt to blocks by source and slot, so that `answer` may be asked for any row by any block: what other blocks have
    /// computed is there after a launch, or a meeting of the blocks.
    ///
    /// # Collective
    /// As [`dispatch_send`](Moe::dispatch_send).
    ///
    /// # Ordering
    /// Release (MM-2), and the end of this PE's use of what it received: the members may send to it again.
    ///
    /// # Panics
    /// Where a row of the exchange is no whole number of `T`s.
    #[inline(always)]
    #[track_caller]
    pub fn combine_send<T: Number<Acc = f32>, A: Fn(usize) -> f32>(
        &self,
        batch: MicroBatch<Received>,
        answer: impl Fn(&Row, usize) -> A,
    ) -> MicroBatch<Combining> {
        self.send_answers::<T, A>(&batch, |row, k| self.weight(row, k), answer);
        self.answered(batch)
    }

    /// The same, with `N` elements of an answer together: element `j` of what the function gives for `i` is element `N * i + j`. Sixteen
    /// bytes of `T`s are best, which are 4 of `f32`, 8 of `bf16`: they are computed together, and one access stores them.
    ///
    /// # Collective
    /// As [`dispatch_send`](Moe::dispatch_send).
    ///
    /// # Ordering
    /// As [`combine_send`](Moe::combine_send).
    ///
    /// # Panics
    /// Where `N` elements have neither 8 nor 16 bytes, or a row of the exchange is not of whole `N`s.
    ///
    /// ```
    /// use congruent_collectives::moe::{Combining, MicroBatch, Moe, Received};
    /// use congruent_device::{Ctx, Pack, SmallFloat, bf16};
    ///
    /// /// Answers twice the token, as experts that need not be told apart.
    /// fn double(moe: &Moe<'_>, ctx: &Ctx<'_>, received: MicroBatch<Received>) -> MicroBatch<Combining> {
    ///     moe.combine_send_packs::<bf16, 8, _>(received, |row, _k| {
    ///         let x = row.payload().cast::<Pack<bf16, 8>>();
    ///         move |i| ctx.load(x, i).0.map(|x| 2.0 * x.widen())
    ///     })
    /// }
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn combine_send_packs<T: Number<Acc = f32>, const N: usize, A: Fn(usize) -> [f32; N]>(
        &self,
        batch: MicroBatch<Received>,
        answer: impl Fn(&Row, usize) -> A,
    ) -> MicroBatch<Combining> {
        self.send_packs::<T, N, A>(&batch, |row, k| self.weight(row, k), answer);
        self.answered(batch)
    }

    /// As [`combine_send`](Moe::combine_send), without weights: of each row, the sum of what `answer` gives for its token's choices. So
    /// gradients go back, in which `answer` has the weights where they belong.
    ///
    /// # Collective
    /// As [`dispatch_send`](Moe::dispatch_send). Each member weights its answers or does not.
    ///
    /// # Ordering
    /// As [`combine_send`](Moe::combine_send).
    ///
    /// # Panics
    /// Where a row of the exchange is no whole number of `T`s.
    #[inline(always)]
    #[track_caller]
    pub fn combine_send_unweighted<T: Number<Acc = f32>, A: Fn(usize) -> f32>(
        &self,
        batch: MicroBatch<Received>,
        answer: impl Fn(&Row, usize) -> A,
    ) -> MicroBatch<Combining> {
        self.send_answers::<T, A>(&batch, |_, _| 1.0, answer);
        self.answered(batch)
    }

    /// The part of [`combine_send`](Moe::combine_send) that depends on what answers are of: words of 8 bytes, which all rows are of.
    #[inline(always)]
    #[track_caller]
    fn send_answers<T: Number<Acc = f32>, A: Fn(usize) -> f32>(
        &self,
        batch: &MicroBatch<Received>,
        weight: impl Fn(&Row, usize) -> f32,
        answer: impl Fn(&Row, usize) -> A,
    ) {
        match size_of::<T>() {
            1 => self.send_packs::<T, 8, _>(batch, weight, |row, k| packed(answer(row, k))),
            2 => self.send_packs::<T, 4, _>(batch, weight, |row, k| packed(answer(row, k))),
            4 => self.send_packs::<T, 2, _>(batch, weight, |row, k| packed(answer(row, k))),
            _ => self.send_packs::<T, 1, _>(batch, weight, |row, k| packed(answer(row, k))),
        }
    }

    /// The same of answers that lie in symmetric memory of this PE, of which `at` gives the row. Their type is looked at row by row, so that
    /// what finds the rows, and the way back, is there once for all types.
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn send_rows(
        &self,
        batch: &MicroBatch<Received>,
        datatype: Datatype,
        weight: impl Fn(&Row, usize) -> f32,
        answers: Sym<u8>,
        at: impl Fn(&Row, usize) -> usize,
    ) {
        if !matches!(datatype, Datatype::F32 | Datatype::F16 | Datatype::Bf16) {
            refuse!("answers are of f32, f16 or bf16");
        }
        let bytes = self.view.output as usize;
        let is_wide = (answers.offset() as usize | bytes).is_multiple_of(16);
        let from = |row: &Row, k| {
            let start = at(row, k) * bytes;
            answers.slice(start..start + bytes)
        };
        self.each_row(batch, |row| {
            let way = self.way_back(&self.block, batch, row, 0..bytes);
            macro_rules! send {
                ($T:ty, $W:ty, $N:literal) => {
                    way.send::<$T, $N, _>(&weight, |of, k| self.loaded::<$W, $T, $N>(from(of, k)))
                };
            }
            match (datatype, is_wide) {
                (Datatype::F32, true) => send!(f32, Pack<u64, 2>, 4),
                (Datatype::F32, false) => send!(f32, u64, 2),
                (Datatype::F16, true) => send!(f16, Pack<u64, 2>, 8),
                (Datatype::F16, false) => send!(f16, u64, 4),
                (_, true) => send!(bf16, Pack<u64, 2>, 8),
                (_, false) => send!(bf16, u64, 4),
            }
        });
    }

    /// A row of this PE's memory, a word at a time.
    #[inline(always)]
    #[track_caller]
    fn loaded<W: Pod, T: Number<Acc = f32>, const N: usize>(&self, row: Sym<u8>) -> impl Fn(usize) -> [f32; N] {
        let words = self.ctx.direct(row.cast::<W>().at(self.own_rank()));
        move |i| words.map_or([0.0; N], |words| bytemuck::cast::<W, [T; N]>(words.load(i)).map(T::into_acc))
    }

    /// The same part of [`combine_send_packs`](Moe::combine_send_packs).
    #[inline(always)]
    #[track_caller]
    fn send_packs<T: Number<Acc = f32>, const N: usize, A: Fn(usize) -> [f32; N]>(
        &self,
        batch: &MicroBatch<Received>,
        weight: impl Fn(&Row, usize) -> f32,
        answer: impl Fn(&Row, usize) -> A,
    ) {
        let pack = size_of::<[T; N]>();
        if !matches!(pack, 8 | 16) || !(self.view.output as usize).is_multiple_of(pack) {
            refuse!("a row of outputs is of whole packs, and a pack of 8 or 16 bytes");
        }
        let packs = self.view.output as usize / pack;
        self.each_row(batch, |row| self.send_part::<T, N, A>(&self.block, batch, row, 0..packs, &weight, &answer));
    }

    /// Deals the rows of all sources to the blocks, in turn, and gives this one those that are its.
    #[inline(always)]
    #[track_caller]
    fn each_row(&self, batch: &MicroBatch<Received>, send: impl Fn(&Row)) {
        self.check(batch);
        let (blocks, mut before) = (self.block.count(), 0);
        for i in 0..self.n() {
            // Each begins with another one, so that not all send to the same at once.
            let source = self.after(i);
            let count = self.count(batch, source);
            let mut slot = (self.block.index() + blocks - before % blocks) % blocks;
            while slot < count {
                send(&self.row_at(batch, source, slot));
                slot += blocks;
            }
            before += count;
        }
    }

    /// The other part of it.
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn answered(&self, batch: MicroBatch<Received>) -> MicroBatch<Combining> {
        self.send_back(batch, true)
    }

    /// Waits until the answers of all members are here, and sums them: for each token, what came back from each PE in the order in which
    /// the token's choices first name the PEs, in `f32`, then what is `added`, rounded once.
    ///
    /// Row `t` of `dst` is there for the block that sums it, `t` modulo the blocks, and for all when the launch is complete.
    ///
    /// # Collective
    /// As [`dispatch_send`](Moe::dispatch_send).
    ///
    /// # Ordering
    /// Acquire (MM-3).
    ///
    /// # Panics
    /// Where `dst`, or what is added, is shorter than the tokens need.
    #[inline(always)]
    #[track_caller]
    pub fn combine_recv<T: Number<Acc = f32>>(
        &self,
        batch: MicroBatch<Combining>,
        dst: Sym<T>,
        added: Added<T>,
    ) -> MicroBatch<Idle> {
        // What was computed for the steps before is not kept in registers for this one.
        let (moe, batch) = self.opaque(&batch);
        moe.await_answers(&batch);
        moe.sum_answers(&batch, dst, &added, Sum);
        moe.close(batch)
    }

    /// The part of [`combine_recv`](Moe::combine_recv) that waits.
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn await_answers(&self, batch: &MicroBatch<Combining>) {
        self.check(batch);
        self.wait(self.combined(batch.index), batch.exchange);
    }

    /// The part of it that depends on what answers are of, which `sum` sums.
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn sum_answers<T: Pod>(
        &self,
        batch: &MicroBatch<Combining>,
        dst: Sym<T>,
        added: &Added<T>,
        sum: impl Reducer<T>,
    ) {
        let count = self.ctx.load(self.counts(batch.index, batch.table), self.n());
        let count = self.block.uniform(count.into()) as usize;
        let mut token = opaque_word(self.block.index() as u32) as usize;
        while token < count {
            self.sum(batch, token, dst, added, sum);
            token += self.block.count();
        }
    }

    /// Sends back some packs of one row, by the threads of a group.
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn send_part<T: Number<Acc = f32>, const N: usize, A: Fn(usize) -> [f32; N]>(
        &self,
        group: &impl Group,
        batch: &MicroBatch<Received>,
        row: &Row,
        packs: Range<usize>,
        weight: &impl Fn(&Row, usize) -> f32,
        answer: &impl Fn(&Row, usize) -> A,
    ) {
        let size = size_of::<[T; N]>();
        let bytes = packs.start * size..packs.end * size;
        self.way_back(group, batch, row, bytes).send::<T, N, A>(weight, answer);
    }

    /// Where bytes of a row's answers go, and which packs of them are this thread's of the group.
    #[inline(always)]
    #[track_caller]
    fn way_back<'r>(
        &'r self,
        group: &impl Group,
        batch: &MicroBatch<Received>,
        row: &'r Row,
        bytes: Range<usize>,
    ) -> WayBack<'r> {
        let (index, source, slot) = (batch.index, row.source(), row.slot());
        let mine = self.mine(row);
        let there = self.output(index, self.me(), slot, self.token(row), mine.trailing_zeros() as usize);
        let staged = || self.outputs(index, self.view.layout.staged_outputs, source, slot, 1);
        let (there, at) = self.towards(source, there, staged);
        let whole = there.slice(..self.view.output as usize);
        let words = whole.cast::<u64>().at(at);
        let wide = whole.slice(..whole.len() / 16 * 16).cast::<Pack<u64, 2>>().at(at);
        let Range { start: first, end } = bytes;
        self.ctx.stores_to(group, there.slice(bytes).at(at));
        let (words, wide) = (self.ctx.direct(words), self.ctx.direct(wide));
        WayBack { row, mine, first, end, rank: group.rank(), size: group.size(), words, wide }
    }

    /// Sums what came back for a token.
    #[inline(always)]
    #[track_caller]
    fn sum<T: Pod>(
        &self,
        batch: &MicroBatch<Combining>,
        token: usize,
        dst: Sym<T>,
        added: &Added<T>,
        sum: impl Reducer<T>,
    ) {
        let Self { block, ctx, .. } = *self;
        let elements = self.view.output as usize / size_of::<T>();
        let dst = dst.slice(token * elements..(token + 1) * elements);
        let more = match added {
            Added::Nothing => None,
            Added::Bias(row) => Some(row.slice(..elements)),
            Added::Residual(rows) => Some(rows.slice(token * elements..(token + 1) * elements)),
        };
        let slots = self.slots(batch.index, batch.table);
        let mut came = 0_u32;
        for k in 0..self.top_k() {
            if ctx.load(slots, token * self.top_k() + k) != NOWHERE {
                came |= 1 << k;
            }
        }
        let came = block.uniform(came.into()) as u32;
        let rows = came.count_ones() as usize;
        let all = rows + usize::from(more.is_some());
        if all == 0 {
            return ctx.start_fill_at(&block, dst.at(self.own_rank()), T::zeroed());
        }
        let most = self.view.tokens;
        let sources = ctx.places(all, |i| {
            let row = match more {
                Some(more) if i == rows => more,
                _ => {
                    // The choice whose number among those that are there is `i`.
                    let k = (0..i).fold(came, |left, _| left & (left - 1)).trailing_zeros() as usize;
                    let row = ctx.load(slots, token * self.top_k() + k);
                    let from = self.output(batch.index, (row / most) as usize, (row % most) as usize, token, k);
                    from.slice(..self.view.output as usize).cast()
                }
            };
            row.at(self.own_rank())
        });
        let dst = ctx.places(1, |_| dst.at(self.own_rank()));
        ctx.fold::<T>(&block, self.view.output as usize, dst, sources, sum, all);
    }

    /// Tells the members that their answers are on their way, and that what was received is read.
    #[inline(always)]
    #[track_caller]
    pub(super) fn send_back(&self, batch: MicroBatch<Received>, answered: bool) -> MicroBatch<Combining> {
        let (index, exchange) = (batch.index, batch.exchange);
        // As in dispatch_send. What blocks have read of the rows is before the signal too, and so before whatever overwrites it.
        self.arrive(index, Gate::Answered, exchange, 0);
        let rows = |member| if answered { self.count(&batch, member) as u32 } else { 0 };
        self.signal(Half::Combine, index, exchange, Gate::Answered, rows);
        self.came_to(batch.next(0))
    }

    /// The last gate of an exchange: when all blocks have come to it, nobody asks for the state that it had.
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn close(&self, batch: MicroBatch<Combining>) -> MicroBatch<Idle> {
        let batch = batch.next::<Idle>(0);
        self.arrive(batch.index, Gate::Ended, batch.exchange, 0);
        if self.block.index() == 0 {
            self.meet(batch.index, Gate::Ended, batch.exchange);
        }
        self.came_to(batch)
    }
}

/// The way back of a row's answers, for a thread of the group that sends them.
#[derive(Clone, Copy)]
struct WayBack<'r> {
    row: &'r Row,
    /// The token's choices that are experts of this PE.
    mine: u32,
    /// Which bytes of them.
    first: usize,
    end: usize,
    rank: usize,
    size: usize,
    /// Where they go, for packs of 16 bytes and for those of 8: what [`towards`](Moe::towards) gives is reached.
    wide: Option<Peer<'r, Pack<u64, 2>>>,
    words: Option<Peer<'r, u64>>,
}

impl WayBack<'_> {
    /// Sends this thread's packs of `N` elements.
    #[inline(always)]
    fn send<T: Number<Acc = f32>, const N: usize, A: Fn(usize) -> [f32; N]>(
        self,
        weight: impl Fn(&Row, usize) -> f32,
        answer: impl Fn(&Row, usize) -> A,
    ) {
        vectorized(Weighed { way: self, weight, answer, of: PhantomData::<(T, A)> });
    }
}

/// What the experts of this PE answered to a row, in packs of `N` elements.
struct Weighed<'r, T, A, W, F, const N: usize> {
    way: WayBack<'r>,
    weight: W,
    answer: F,
    of: PhantomData<(T, A)>,
}

impl<T, A, W, F, const N: usize> Vectorized for Weighed<'_, T, A, W, F, N>
where
    T: Number<Acc = f32>,
    A: Fn(usize) -> [f32; N],
    W: Fn(&Row, usize) -> f32,
    F: Fn(&Row, usize) -> A,
{
    #[inline(always)]
    fn run(self) {
        let WayBack { row, size: step, .. } = self.way;
        let size = size_of::<[T; N]>();
        let (mut at, end) = (self.way.first / size + self.way.rank, self.way.end / size);
        while at < end {
            // Some are on their way together, and what goes for the row is asked for once for these.
            let pack = |v: usize| at + v * step;
            let (mut sums, mut left) = ([[0.0; N]; TOGETHER], self.way.mine);
            while left != 0 {
                let k = left.trailing_zeros() as usize;
                left &= left - 1;
                let (weight, answer) = ((self.weight)(row, k), (self.answer)(row, k));
                for (v, sums) in sums.iter_mut().enumerate() {
                    // Behind the last one, that one again.
                    let more = answer(pack(v).min(end - 1));
                    *sums = array::from_fn(|j| sums[j] + weight * more[j]);
                }
            }
            for (v, sums) in sums.into_iter().enumerate() {
                if pack(v) < end {
                    self.store(pack(v), sums.map(T::from_acc));
                }
            }
            at += TOGETHER * step;
        }
    }
}

impl<T: Number, A, W, F, const N: usize> Weighed<'_, T, A, W, F, N> {
    #[inline(always)]
    fn store(&self, i: usize, pack: [T; N]) {
        match size_of::<[T; N]>() {
            16 => self.way.wide.into_iter().for_each(|wide| wide.store(i, bytemuck::cast(pack))),
            _ => self.way.words.into_iter().for_each(|words| words.store(i, bytemuck::cast(pack))),
        }
    }
}

/// An answer by element as one of `N` elements together.
#[inline(always)]
fn packed<const N: usize>(element: impl Fn(usize) -> f32) -> impl Fn(usize) -> [f32; N] {
    move |i| array::from_fn(|j| element(N * i + j))
}
