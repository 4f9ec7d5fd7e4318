//! Dispatch: tokens go to the PEs that have their experts.

use congruent_device::{Group, Min, Sym};

use super::gates::{AGAIN, Half, WRONG};
use super::route::{NOWHERE, Tokens};
use super::rows::{EXPERTS, SOURCE, TAG, TOKEN};
use super::{Dispatched, Gate, Idle, MicroBatch, Moe, Own, Received, Refusal, Refused, Wrong};

/// In place of the first member with wrong tokens, where there is none: all have sent again.
const ALL_AGAIN: u32 = u32::MAX;
/// The same where some have not.
const SOME_ROUTED: u32 = u32::MAX - 1;

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
        self.wait(self.dispatched(batch.index), batch.exchange);
        let mut first = ALL_AGAIN;
        for source in self.block.strided(self.n()) {
            let told = self.told(&batch, source);
            if told & WRONG != 0 {
                first = first.min(source as u32);
            } else if told & AGAIN == 0 {
                first = first.min(SOME_ROUTED);
            }
        }
        let first = self.block.reduce(first, Min);
        if first < SOME_ROUTED {
            let told = self.block.uniform(self.told(&batch, first as usize).into()) as u32;
            let why = Wrong::from_raw(told & !WRONG);
            return Err(self.give_up(batch, Refusal { rank: first, why }));
        }
        // Lists are of routes: where all members' are kept, so are they, and only who tells of the step waits until all blocks have taken
        // the micro-batch up.
        if first == SOME_ROUTED {
            self.make_lists(&batch);
        }
        self.arrive(batch.index, Gate::Listed, batch.exchange, 0);
        if first == SOME_ROUTED || self.block.index() == 0 {
            self.meet(batch.index, Gate::Listed, batch.exchange);
        }
        self.keep_refusal(batch.index, 0);
        Ok(self.came_to(batch))
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

    /// What a member told of its tokens.
    #[inline(always)]
    #[track_caller]
    pub(super) fn told(&self, batch: &MicroBatch<Received>, source: usize) -> u32 {
        (self.ctx.signal_seen(self.dispatched(batch.index).elem(source)) >> 32) as u32
    }
}
