//! The four steps of an exchange.

use core::array;
use core::marker::PhantomData;

use congruent_device::{Group, Max, Min, Number, Pack, Peer, Signal, Sum, Sym, Thread, Vectorized, refuse, vectorized};

use super::route::{NOWHERE, Tokens};
use super::rows::{EXPERTS, Row, SOURCE, TAG, TOKEN};
use super::{Combining, Dispatched, Gate, Idle, MicroBatch, Moe, Own, Received, Refusal, Refused, Wrong};

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

/// In the upper half of a signal, instead of a count: this, and what is [`Wrong`].
const WRONG: u32 = 1 << 31;
/// In the upper half of a signal, beside a count: rows come by the routes of the exchange before, and only payload and scales are new. No
/// count is as large.
pub(super) const AGAIN: u32 = 1 << 30;
/// In place of the first member with wrong tokens, where there is none: all have sent again.
const ALL_AGAIN: u32 = u32::MAX;
/// The same where some have not.
const SOME_ANEW: u32 = u32::MAX - 1;

/// How many packs of an answer a thread computes together. A GPU has other warps while one waits, and no registers to spare.
const TOGETHER: usize = if cfg!(target_arch = "nvptx64") { 1 } else { 4 };

/// Two regions, which is what a signal is about.
#[derive(Clone, Copy)]
enum Half {
    Dispatch,
    Combine,
}

impl Moe<'_> {
    /// Sends this PE's tokens: each once to each PE that has an expert of it. Returns when they are on their way.
    ///
    /// # Collective
    /// Over the members, each of which has tokens of its own, or none. By all blocks of a launch.
    ///
    /// # Ordering
    /// Release (MM-2): a member that has received them sees what this PE's blocks did before. A payload may be overwritten when the
    /// launch is complete; before that, token `t`'s by the block that sends it, `t` modulo the blocks.
    ///
    /// # Errors
    /// What is wrong with the tokens of any member, [`dispatch_recv`](Moe::dispatch_recv) tells; then nobody's were stored anywhere that
    /// a later exchange would see.
    ///
    /// # Panics
    /// Where payload or scales are shorter than the tokens need.
    #[inline(always)]
    #[track_caller]
    pub fn dispatch_send<E, W>(&self, batch: MicroBatch<Idle>, tokens: &Tokens<E, W>) -> MicroBatch<Dispatched>
    where
        E: Fn(usize) -> i32,
        W: Fn(usize) -> f32,
    {
        self.check(&batch);
        let mut batch = batch.next::<Dispatched>(1);
        batch.table ^= 1;
        let wrong = self.route(&batch, tokens);
        if wrong == 0 {
            let words = EXPERTS + 2 * self.top_k();
            let word = |token, i| self.word(&batch, tokens, token, i);
            self.send_tokens(&batch, tokens.count, tokens.payload, tokens.scales, words, word);
        }
        self.sent(batch, wrong, 0)
    }

    /// Sends payloads, and scales, by the routes of the micro-batch's last exchange: nothing is counted, and experts and weights stay where
    /// they came with it. Row for row the members receive what [`dispatch_send`](Moe::dispatch_send) with the same experts and weights
    /// would have sent, in the same bytes. That exchange was of this launch or an earlier one, with any number of blocks, and may have
    /// sent again itself. `count` is what it was there.
    ///
    /// ```
    /// use congruent_collectives::moe::{Added, MoeView};
    /// use congruent_device::{Sym, kernels};
    ///
    /// kernels! {
    ///     /// Behind a layer in which each token's output is 3 times its weights' sum times the token: gradients of the tokens.
    ///     pub fn backward(block, ctx, moe: MoeView, count: u32, dy: Sym<f32>, dx: Sym<f32>) {
    ///         let moe = moe.enter(block, ctx);
    ///         let sent = moe.dispatch_again(moe.idle(0), count as usize, dy.cast(), Sym::empty());
    ///         let Ok(received) = moe.dispatch_recv(sent) else { return };
    ///         let combining = moe.combine_send_unweighted::<f32, _>(received, |row, k| {
    ///             let (dy, weight) = (row.payload().cast::<f32>(), moe.weight(row, k));
    ///             move |i| 3.0 * weight * ctx.load(dy, i)
    ///         });
    ///         moe.combine_recv(combining, dx, Added::Nothing);
    ///     }
    /// }
    /// ```
    ///
    /// # Collective
    /// As [`dispatch_send`](Moe::dispatch_send). Each member sends again or anew, as it likes.
    ///
    /// # Ordering
    /// As [`dispatch_send`](Moe::dispatch_send).
    ///
    /// # Errors
    /// [`Wrong::NoRoutes`] where there are no such routes: no exchange of the micro-batch came before, the last one was refused, or it was
    /// not of `count` tokens. [`dispatch_recv`](Moe::dispatch_recv) tells all members.
    ///
    /// # Panics
    /// Where payload or scales are shorter than the tokens need.
    #[inline(always)]
    #[track_caller]
    pub fn dispatch_again(
        &self,
        batch: MicroBatch<Idle>,
        count: usize,
        payload: Sym<u8>,
        scales: Sym<u8>,
    ) -> MicroBatch<Dispatched> {
        self.check(&batch);
        let wrong = self.lacks_routes(&batch, count);
        let batch = batch.next::<Dispatched>(1);
        // Nobody meets at this gate: slots are known. Who takes the micro-batch up twice is found here before it stores anything.
        self.arrive(batch.index, Gate::Routed, batch.exchange, 0);
        // This block has heard in the combine before that the members, this one too, have read what rows held then: the two regions need
        // no gate for that. Of the words only the tag is another; the others are there, and in what is staged for a proxy, too.
        if wrong == 0 {
            self.send_tokens(&batch, count, payload, scales, TAG + 1, |_, _| self.tag(batch.exchange));
        }
        self.sent(batch, wrong, AGAIN)
    }

    /// Tells the members that this PE's tokens are on their way, and how, or what is wrong with them.
    #[inline(always)]
    #[track_caller]
    fn sent(&self, batch: MicroBatch<Dispatched>, wrong: u32, how: u32) -> MicroBatch<Dispatched> {
        let (index, exchange, table) = (batch.index, batch.exchange, batch.table);
        // Gate by gate, what every block has stored is before the signal: its release here, the acquire there, and then the signal's
        // own release (MM-2 covers what whoever signals has seen).
        self.arrive(index, Gate::Stored, exchange, 0);
        self.signal(Half::Dispatch, index, exchange, Gate::Stored, |member| match wrong {
            0 => how | self.ctx.load(self.counts(index, table), member),
            wrong => WRONG | wrong,
        });
        // Block 0 signals, and so has met all blocks at the gate: they have taken the micro-batch up.
        self.came_to(batch)
    }

    /// Waits until the tokens of all members are here. Rows are there for every block; which rows each expert has, too.
    ///
    /// # Collective
    /// As [`dispatch_send`](Moe::dispatch_send).
    ///
    /// # Ordering
    /// Acquire (MM-3).
    ///
    /// # Errors
    /// What was wrong with the tokens of a member. Then the exchange is over, on every PE.
    #[inline(always)]
    #[track_caller]
    pub fn dispatch_recv(&self, batch: MicroBatch<Dispatched>) -> Result<MicroBatch<Received>, Refused> {
        self.check(&batch);
        let batch = batch.next::<Received>(0);
        self.hear(self.dispatched(batch.index), batch.exchange);
        let mut first = ALL_AGAIN;
        for source in self.block.strided(self.n()) {
            let told = self.told(&batch, source);
            if told & WRONG != 0 {
                first = first.min(source as u32);
            } else if told & AGAIN == 0 {
                first = first.min(SOME_ANEW);
            }
        }
        let first = self.block.reduce(first, Min);
        if first < SOME_ANEW {
            let told = self.block.uniform(self.told(&batch, first as usize).into()) as u32;
            let why = Wrong::from_raw(told & !WRONG);
            return Err(self.give_up(batch, Refusal { rank: first, why }));
        }
        // Lists are of routes: where all members' are kept, so are they, and only who tells of the step waits until all blocks have taken
        // the micro-batch up.
        if first == SOME_ANEW {
            self.make_lists(&batch);
        }
        self.arrive(batch.index, Gate::Listed, batch.exchange, 0);
        if first == SOME_ANEW || self.block.index() == 0 {
            self.meet(batch.index, Gate::Listed, batch.exchange);
        }
        self.keep_refusal(batch.index, 0);
        Ok(self.came_to(batch))
    }

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
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn send_answers<T: Number<Acc = f32>, A: Fn(usize) -> f32>(
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
        self.check(batch);
        let (blocks, mut before) = (self.block.count(), 0);
        for i in 0..self.n() {
            // Each begins with another one, so that not all send to the same at once.
            let source = self.after(i);
            let count = self.count(batch, source);
            // Rows of all sources together are dealt in turn.
            let mut slot = (self.block.index() + blocks - before % blocks) % blocks;
            while slot < count {
                self.send_answer::<T, N, A>(batch, &self.row_at(batch, source, slot), &weight, &answer);
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
        self.await_answers(&batch);
        self.sum_answers(&batch, dst, &added);
        self.close(batch)
    }

    /// The part of [`combine_recv`](Moe::combine_recv) that waits.
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn await_answers(&self, batch: &MicroBatch<Combining>) {
        self.check(batch);
        self.hear(self.combined(batch.index), batch.exchange);
    }

    /// The part of it that depends on what answers are of.
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn sum_answers<T: Number<Acc = f32>>(&self, batch: &MicroBatch<Combining>, dst: Sym<T>, added: &Added<T>) {
        let count = self.ctx.load(self.counts(batch.index, batch.table), self.n());
        let count = self.block.uniform(count.into()) as usize;
        let mut token = self.block.index();
        while token < count {
            self.sum(batch, token, dst, added);
            token += self.block.count();
        }
    }

    /// Stores this block's tokens where they go, and so many of the words that go with each.
    #[inline(always)]
    #[track_caller]
    fn send_tokens(
        &self,
        batch: &MicroBatch<Dispatched>,
        count: usize,
        payloads: Sym<u8>,
        all_scales: Sym<u8>,
        new_words: usize,
        word: impl Fn(usize, usize) -> u32,
    ) {
        let Self { block, ctx, .. } = *self;
        let slots = self.slots(batch.index, batch.table);
        let (payload, scales, most) = (self.view.payload as usize, self.view.scales as usize, self.view.tokens);
        let mut token = block.index();
        while token < count {
            for k in 0..self.top_k() {
                let row = ctx.load(slots, token * self.top_k() + k);
                if row == NOWHERE {
                    continue;
                }
                let (member, slot) = ((row / most) as usize, (row % most) as usize);
                let there = self.messages(batch.index, self.me(), slot, 1);
                let staged = || self.staged_messages(batch.index, member, slot, 1);
                let (message, at) = self.towards(member, there, staged);
                let (to_payload, to_scales, words) = self.parts(message);
                ctx.put_direct(&block, to_payload.at(at), payloads.slice(token * payload..(token + 1) * payload));
                if scales > 0 {
                    ctx.put_direct(&block, to_scales.at(at), all_scales.slice(token * scales..(token + 1) * scales));
                }
                for i in block.strided(new_words) {
                    ctx.put_value(words.elem(i).at(at), word(token, i));
                }
            }
            token += block.count();
        }
    }

    /// Word `i` of what goes with a token.
    #[inline(always)]
    fn word<E, W>(&self, batch: &MicroBatch<Dispatched>, tokens: &Tokens<E, W>, token: usize, i: usize) -> u32
    where
        E: Fn(usize) -> i32,
        W: Fn(usize) -> f32,
    {
        let weights = EXPERTS + self.top_k();
        match i {
            TAG => self.tag(batch.exchange),
            TOKEN => token as u32,
            SOURCE => self.me() as u32,
            _ if i >= weights => (tokens.weights)(token * self.top_k() + i - weights).to_bits(),
            _ if i >= EXPERTS => (tokens.experts)(token * self.top_k() + i - EXPERTS) as u32,
            _ => 0,
        }
    }

    /// Sends back one row.
    #[inline(always)]
    #[track_caller]
    fn send_answer<T: Number<Acc = f32>, const N: usize, A: Fn(usize) -> [f32; N]>(
        &self,
        batch: &MicroBatch<Received>,
        row: &Row,
        weight: &impl Fn(&Row, usize) -> f32,
        answer: &impl Fn(&Row, usize) -> A,
    ) {
        let (index, source, slot) = (batch.index, row.source(), row.slot());
        let mine = self.mine(row);
        let there = self.output(index, self.me(), slot, self.token(row), mine.trailing_zeros() as usize);
        let staged = || self.outputs(index, self.view.layout.staged_outputs, source, slot, 1);
        let (there, at) = self.towards(source, there, staged);
        let (bytes, size) = (self.view.output as usize, size_of::<[T; N]>());
        let words = there.slice(..bytes).cast::<u64>().at(at);
        let wide = there.slice(..bytes / 16 * 16).cast::<Pack<u64, 2>>().at(at);
        self.ctx.stores_to(&self.block, words);
        // What `towards` gives is reached.
        let (Some(words), Some(wide)) = (self.ctx.direct(words), self.ctx.direct(wide)) else { return };
        vectorized(Weighed {
            moe: self,
            row,
            mine,
            weight,
            answer,
            packs: bytes / size,
            words,
            wide,
            of: PhantomData::<(T, A)>,
        });
    }

    /// Sums what came back for a token.
    #[inline(always)]
    #[track_caller]
    fn sum<T: Number<Acc = f32>>(&self, batch: &MicroBatch<Combining>, token: usize, dst: Sym<T>, added: &Added<T>) {
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
            return ctx.start_fill_at(&block, dst.at(self.own_rank()), T::from_acc(0.0));
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
        ctx.fold::<T>(&block, self.view.output as usize, dst, sources, Sum, all);
    }

    /// Ends an exchange that was refused: nothing comes back, and the members tell each other so, as they would with answers, because
    /// that is what makes the regions free again.
    #[inline(always)]
    #[track_caller]
    fn give_up(&self, batch: MicroBatch<Received>, refusal: Refusal) -> Refused {
        self.keep_refusal(batch.index, refusal.to_word());
        let batch = self.send_back(batch, false);
        self.await_answers(&batch);
        Refused { batch: self.close(batch), refusal }
    }

    /// Keeps why an exchange was refused, or that it was not.
    #[inline(always)]
    fn keep_refusal(&self, batch: u32, word: u64) {
        if self.block.index() == 0 && self.block.leader() {
            self.ctx.store(self.own(batch, Own::Refused), 0, word);
        }
    }

    /// Tells the members that their answers are on their way, and that what was received is read.
    #[inline(always)]
    #[track_caller]
    fn send_back(&self, batch: MicroBatch<Received>, answered: bool) -> MicroBatch<Combining> {
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

    /// What a member told of its tokens.
    #[inline(always)]
    #[track_caller]
    pub(super) fn told(&self, batch: &MicroBatch<Received>, source: usize) -> u32 {
        (self.ctx.signal_seen(self.dispatched(batch.index).elem(source)) >> 32) as u32
    }

    /// The member at distance `i` after this one, which is below their number.
    #[inline(always)]
    fn after(&self, i: usize) -> usize {
        let member = self.me() + i;
        if member < self.n() { member } else { member - self.n() }
    }

    /// Waits for the signals of all members.
    #[inline(always)]
    #[track_caller]
    fn hear(&self, signals: Sym<Signal>, exchange: u64) {
        self.ctx.wait_tags(&self.block, signals, self.tag(exchange), |source| self.rank(source));
    }

    /// Says that this block has come to a gate, and what it found, below 256.
    ///
    /// A gate's words grow with the exchange, and which blocks a launch has does not matter to later ones: those wait for their own.
    #[inline(always)]
    #[track_caller]
    pub(super) fn arrive(&self, batch: u32, gate: Gate, exchange: u64, found: u32) {
        let (word, least) = (self.gate(batch, gate).elem(self.block.index()), exchange << 8);
        // Who has come there before in this exchange is not alone: others may have passed it.
        if !self.ctx.raise_signal(&self.block, word, least, least | u64::from(found)) {
            refuse!("a micro-batch goes through each step once: take it up by one value in one launch at a time");
        }
    }

    /// Waits until all blocks have come to a gate.
    #[inline(always)]
    #[track_caller]
    pub(super) fn meet(&self, batch: u32, gate: Gate, exchange: u64) {
        self.ctx.wait_all(&self.block, self.gate(batch, gate), exchange << 8);
    }

    /// The most that a block found, where all have met.
    #[inline(always)]
    #[track_caller]
    pub(super) fn found(&self, batch: u32, gate: Gate) -> u32 {
        let words = self.gate(batch, gate);
        let of_block = |i| self.ctx.signal_seen(words.elem(i)) as u32 & 0xff;
        self.block.reduce(self.block.strided(words.len()).map(of_block).max().unwrap_or(0), Max)
    }

    /// Signals every member, when all blocks have come to a gate: this exchange, and how many rows there are. Blocks share the members,
    /// and so do their threads. What is staged for a proxy goes there with its signal, as one message.
    #[inline(always)]
    #[track_caller]
    fn signal(&self, half: Half, batch: u32, exchange: u64, gate: Gate, rows: impl Fn(usize) -> u32) {
        let Self { block, ctx, .. } = *self;
        if block.index() >= self.n() {
            return;
        }
        self.meet(batch, gate, exchange);
        let signals = match half {
            Half::Dispatch => self.dispatched(batch),
            Half::Combine => self.combined(batch),
        };
        for i in block.strided((self.n() - block.index()).div_ceil(block.count())) {
            let member = self.after(block.index() + i * block.count());
            let (rank, rows) = (self.rank(member), rows(member));
            let word = u64::from(rows) << 32 | u64::from(self.tag(exchange));
            let notify = signals.elem(self.me()).at(rank).set(word);
            let count = (rows & !AGAIN) as usize;
            if rows & WRONG == 0 && count > 0 && !ctx.reaches(rank) {
                let (there, staged) = match half {
                    Half::Dispatch => {
                        (self.messages(batch, self.me(), 0, count), self.staged_messages(batch, member, 0, count))
                    }
                    Half::Combine => {
                        let at = |start, major| self.outputs(batch, start, major, 0, count);
                        (at(self.view.layout.combine, self.me()), at(self.view.layout.staged_outputs, member))
                    }
                };
                ctx.put_signal(&Thread, there.at(rank), staged, notify);
            } else {
                ctx.notify(&Thread, notify);
            }
        }
    }
}

/// What the experts of this PE answered to a row, on its way back: in packs of `N` elements.
struct Weighed<'r, T, A, W, F, const N: usize> {
    moe: &'r Moe<'r>,
    row: &'r Row,
    mine: u32,
    weight: &'r W,
    answer: &'r F,
    packs: usize,
    /// Where it goes, for packs of 16 bytes and for those of 8.
    wide: Peer<'r, Pack<u64, 2>>,
    words: Peer<'r, u64>,
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
        let (mut at, step) = (self.moe.block.rank(), self.moe.block.size());
        while at < self.packs {
            // Some are on their way together, and what goes for the row is asked for once for these.
            let pack = |v: usize| at + v * step;
            let (mut sums, mut left) = ([[0.0; N]; TOGETHER], self.mine);
            while left != 0 {
                let k = left.trailing_zeros() as usize;
                left &= left - 1;
                let (weight, answer) = ((self.weight)(self.row, k), (self.answer)(self.row, k));
                sums = array::from_fn(|v| {
                    // Behind the last one, that one again.
                    let more = answer(pack(v).min(self.packs - 1));
                    array::from_fn(|j| sums[v][j] + weight * more[j])
                });
            }
            for (v, sums) in sums.into_iter().enumerate() {
                if pack(v) < self.packs {
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
            16 => self.wide.store(i, bytemuck::cast(pack)),
            _ => self.words.store(i, bytemuck::cast(pack)),
        }
    }
}

impl<S> MicroBatch<S> {
    /// The same micro-batch at its next step, so many exchanges on.
    #[inline(always)]
    fn next<N>(self, exchanges: u64) -> MicroBatch<N> {
        MicroBatch {
            of: self.of,
            index: self.index,
            exchange: self.exchange + exchanges,
            table: self.table,
            step: PhantomData,
        }
    }
}

/// An answer by element as one of `N` elements together.
#[inline(always)]
fn packed<const N: usize>(element: impl Fn(usize) -> f32) -> impl Fn(usize) -> [f32; N] {
    move |i| array::from_fn(|j| element(N * i + j))
}
