//! What both halves of an exchange have in common: signals to the members, and the gates where the blocks of a PE meet.

use congruent_device::{Group, Max, Signal, Sym, Thread, opaque_word, refuse};

use super::{Gate, Moe};

/// In the upper half of a signal, instead of a count: this, and what is [`Wrong`].
pub(super) const WRONG: u32 = 1 << 31;
/// In the upper half of a signal, beside a count: rows come by the routes of the exchange before, and only payload and scales are new. No
/// count is as large.
pub(super) const AGAIN: u32 = 1 << 30;

/// Two regions, which is what a signal is about.
#[derive(Clone, Copy)]
pub(super) enum Half {
    Dispatch,
    Combine,
}

impl Moe<'_> {
    /// The member at distance `i` after this one, which is below their number.
    #[inline(always)]
    pub(super) fn after(&self, i: usize) -> usize {
        let member = self.me() + i;
        if member < self.n() { member } else { member - self.n() }
    }

    /// Waits for the signals of all members.
    #[inline(always)]
    #[track_caller]
    pub(super) fn wait(&self, signals: Sym<Signal>, exchange: u64) {
        self.ctx.wait_tags(&self.block, signals, self.tag(exchange), |source| self.rank(source));
    }

    /// Says that this block has come to a gate, and what it found, below 256.
    ///
    /// A gate's words grow with the exchange, and which blocks a launch has does not matter to later ones: those wait for their own.
    #[inline(always)]
    #[track_caller]
    pub(super) fn arrive(&self, batch: u32, gate: Gate, exchange: u64, found: u32) {
        let index = opaque_word(self.block.index() as u32) as usize;
        let (word, least) = (self.gate(batch, gate).elem(index), exchange << 8);
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
    pub(super) fn signal(&self, half: Half, batch: u32, exchange: u64, gate: Gate, rows: impl Fn(usize) -> u32) {
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
