//! How large an exchange is, and where everything lies in its memory: arithmetic on the host, before anything is allocated.

use core::fmt;
use core::ops::Range;

use congruent_device::{Signal, Sym, TeamView, kernel_arg, opaque, opaque_word};

use super::{MoeView, Own};
use crate::{Needs, Shape};

/// What tokens and experts are like: the same on every PE. Bytes are of memory; what they mean is the program's business.
///
/// ```
/// use congruent_collectives::moe::MoeConfig;
///
/// // 128 tokens of 7168 numbers in fp8, with a scale for each 128 of them; experts answer in bf16.
/// let config = MoeConfig::new(128, 256, 8).payload(7168).scales(7168 / 128 * 4).output(7168 * 2).micro_batches(2);
/// assert!(config.bytes(8, false) <= 43 << 20);
/// assert!(config.bytes(64, false) <= 146 << 20);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoeConfig {
    tokens: u32,
    experts: u32,
    top_k: u32,
    payload: u32,
    scales: u32,
    output: u32,
    micro_batches: u32,
    blocks: u32,
    first_tag: u32,
}

/// Why a [`MoeConfig`] is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MoeConfigError {
    /// A number that has to be 1 or more.
    Zero(&'static str),
    /// More experts for a token than there are, or than [`MoeConfig::MOST_TOP_K`].
    TopK {
        /// Experts of a token.
        asked: u32,
        /// The most.
        most: u32,
    },
    /// A row of an expert's output that is no whole number of words of 8 bytes.
    Output {
        /// Bytes of the row.
        bytes: u32,
    },
    /// More bytes of a token than [`MoeConfig::MOST_BYTES`].
    Large {
        /// Bytes of what.
        what: &'static str,
        /// How many.
        bytes: u32,
    },
    /// More choices of all PEs' tokens than can be numbered, or more than [`MoeConfig::MOST`] experts, blocks or micro-batches.
    TooMany,
}

impl fmt::Display for MoeConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero(what) => write!(f, "an exchange of 0 {what} was asked for; give 1 or more"),
            Self::TopK { asked, most } => write!(f, "a token cannot have {asked} experts; give 1 to {most}"),
            Self::Output { bytes } => {
                write!(f, "an expert's output of {bytes} bytes is no whole number of words; give a multiple of 8")
            }
            Self::Large { what, bytes } => {
                write!(f, "{bytes} bytes of {what} were asked for; give at most {}", MoeConfig::MOST_BYTES)
            }
            Self::TooMany => write!(
                f,
                "PEs, tokens and experts of a token multiply to 2^30 or more, or there are more than {} experts, blocks or \
                 micro-batches; give fewer",
                MoeConfig::MOST
            ),
        }
    }
}

impl core::error::Error for MoeConfigError {}

/// Everything starts on a multiple of this.
const GRAIN: u64 = 128;
/// Signals in [`GRAIN`] bytes.
const LINE: usize = 16;
/// Bytes of a message's header.
pub(super) const HEADER: u32 = MoeConfig::HEADER_BYTES as u32;
/// Words of 8 bytes at the start of a micro-batch: its state, and why it was refused last.
pub(super) const HEAD: u64 = GRAIN;

impl MoeConfig {
    /// The most experts of a token.
    pub const MOST_TOP_K: u32 = 32;
    /// The most bytes of a payload, of its scales, and of an output.
    pub const MOST_BYTES: u32 = 1 << 24;
    /// The most experts, blocks, and micro-batches.
    pub const MOST: u32 = 1 << 20;
    /// Bytes that go with each token besides its payload, its scales, its experts and its weights.
    pub const HEADER_BYTES: u64 = 16;

    /// Up to `tokens` tokens of each PE at a time, and `experts` experts on all PEs together, of which each token has up to `top_k`
    /// different ones. One micro-batch, launches of up to 32 blocks, and nothing to send yet.
    pub const fn new(tokens: u32, experts: u32, top_k: u32) -> Self {
        Self { tokens, experts, top_k, payload: 0, scales: 0, output: 0, micro_batches: 1, blocks: 32, first_tag: 0 }
    }

    /// With so many bytes for each token, which experts are given.
    #[must_use]
    pub const fn payload(self, bytes: u32) -> Self {
        Self { payload: bytes, ..self }
    }

    /// With so many bytes of scales beside each payload.
    #[must_use]
    pub const fn scales(self, bytes: u32) -> Self {
        Self { scales: bytes, ..self }
    }

    /// With so many bytes of each row that experts answer, a multiple of 8.
    #[must_use]
    pub const fn output(self, bytes: u32) -> Self {
        Self { output: bytes, ..self }
    }

    /// With so many micro-batches that may be in flight at once. Each has memory of its own.
    #[must_use]
    pub const fn micro_batches(self, micro_batches: u32) -> Self {
        Self { micro_batches, ..self }
    }

    /// For launches of up to `blocks` blocks.
    #[must_use]
    pub const fn blocks(self, blocks: u32) -> Self {
        Self { blocks, ..self }
    }

    /// Exchanges are numbered from there on, for tests of what happens when the numbers wrap around. `u32::MAX` is none: the number
    /// after it is what fresh memory holds.
    #[doc(hidden)]
    #[must_use]
    pub const fn first_tag(self, first_tag: u32) -> Self {
        Self { first_tag, ..self }
    }

    /// The experts of a PE, of `pes`: each has as many as every other, and of those that are left over one is on each of the first.
    pub const fn experts_of(&self, rank: u32, pes: u32) -> Range<u32> {
        experts_of(rank, self.experts, pes)
    }

    /// Experts on all PEs together.
    pub const fn expert_count(&self) -> usize {
        self.experts as usize
    }

    /// Experts of a token.
    pub const fn top_k(&self) -> usize {
        self.top_k as usize
    }

    /// Bytes of a token's payload.
    pub const fn payload_bytes(&self) -> usize {
        self.payload as usize
    }

    /// Bytes of a token's scales.
    pub const fn scales_bytes(&self) -> usize {
        self.scales as usize
    }

    /// Bytes of a row that experts answer.
    pub const fn output_bytes(&self) -> usize {
        self.output as usize
    }

    /// How many micro-batches may be in flight at once.
    pub const fn in_flight(&self) -> u32 {
        self.micro_batches
    }

    /// The most rows by expert that a PE may have, where those of each expert begin at a multiple of `align` rows. The same on every PE.
    ///
    /// ```
    /// use congruent_collectives::moe::MoeConfig;
    ///
    /// // 2 PEs with 2 of the 4 experts each: at most 2 of a token's 3 experts are on one of them.
    /// assert_eq!(MoeConfig::new(16, 4, 3).most_rows(2, 1), 2 * 16 * 2);
    /// assert_eq!(MoeConfig::new(16, 4, 3).most_rows(2, 8), 2 * 16 * 2 + 2 * 7);
    /// ```
    pub const fn most_rows(&self, pes: u32, align: u32) -> u64 {
        let experts = self.experts.div_ceil(pes);
        let choices = if experts < self.top_k { experts } else { self.top_k };
        let padding = if align > 0 { align - 1 } else { 0 };
        pes as u64 * self.tokens as u64 * choices as u64 + experts as u64 * padding as u64
    }

    /// Bytes of one token on its way: payload and scales, a header, and its experts and weights. This and what follows are sizes of what
    /// [`check`](Self::check) accepts.
    pub const fn message_bytes(&self) -> u32 {
        sixteens(self.payload) + sixteens(self.scales) + HEADER + sixteens(8 * self.top_k)
    }

    /// Bytes that each PE receives tokens in, for one micro-batch.
    pub const fn dispatch_bytes(&self, pes: u32) -> u64 {
        pes as u64 * self.tokens as u64 * self.message_bytes() as u64
    }

    /// Bytes that each PE receives experts' outputs in, for one micro-batch.
    pub const fn combine_bytes(&self, pes: u32, proxied: bool) -> u64 {
        let rows = if self.by_source(pes, proxied) { pes } else { self.top_k };
        rows as u64 * self.tokens as u64 * sixteens(self.output) as u64
    }

    /// Bytes of the heap that an exchange of `pes` PEs takes; more where a proxy serves peers, which is given contiguous memory.
    pub const fn bytes(&self, pes: u32, proxied: bool) -> u64 {
        self.micro_batches as u64 * (self.layout(pes, proxied).batch + 8 * self.signals_of(pes) as u64)
    }

    /// Whether it can be.
    ///
    /// # Errors
    /// The first number that cannot.
    pub const fn check(&self, pes: u32) -> Result<(), MoeConfigError> {
        if self.tokens == 0 {
            return Err(MoeConfigError::Zero("tokens"));
        }
        if self.experts == 0 {
            return Err(MoeConfigError::Zero("experts"));
        }
        if self.payload == 0 {
            return Err(MoeConfigError::Zero("bytes of payload"));
        }
        if self.micro_batches == 0 {
            return Err(MoeConfigError::Zero("micro-batches"));
        }
        if self.blocks == 0 {
            return Err(MoeConfigError::Zero("blocks"));
        }
        let most = if self.experts < Self::MOST_TOP_K { self.experts } else { Self::MOST_TOP_K };
        if self.top_k == 0 || self.top_k > most {
            return Err(MoeConfigError::TopK { asked: self.top_k, most });
        }
        if self.output == 0 || !self.output.is_multiple_of(8) {
            return Err(MoeConfigError::Output { bytes: self.output });
        }
        let sizes = [("payload", self.payload), ("scales", self.scales), ("output", self.output)];
        let mut i = 0;
        while i < sizes.len() {
            let (what, bytes) = sizes[i];
            if bytes > Self::MOST_BYTES {
                return Err(MoeConfigError::Large { what, bytes });
            }
            i += 1;
        }
        if pes == 0 {
            return Err(MoeConfigError::Zero("PEs"));
        }
        let numbers = [self.experts, self.blocks, self.micro_batches];
        let mut i = 0;
        while i < numbers.len() {
            if numbers[i] > Self::MOST {
                return Err(MoeConfigError::TooMany);
            }
            i += 1;
        }
        match (pes as u64 * self.tokens as u64).checked_mul(self.top_k as u64) {
            Some(choices) if choices < 1 << 30 => {}
            _ => return Err(MoeConfigError::TooMany),
        }
        // Of so few choices and experts a micro-batch's bytes are a number; those of all may not be.
        match self.layout(pes, true).batch.checked_mul(self.micro_batches as u64) {
            Some(all) if all < 1 << 62 => Ok(()),
            _ => Err(MoeConfigError::TooMany),
        }
    }

    /// Whether a row that comes back lies by who sends it, in the place that the token had there: so that what one PE sends is
    /// contiguous. Otherwise it lies by which of the token's experts it is of, which is less where PEs are many.
    const fn by_source(&self, pes: u32, proxied: bool) -> bool {
        proxied || pes <= self.top_k
    }

    /// Signals of a micro-batch.
    const fn signals_of(&self, pes: u32) -> usize {
        2 * (pes as usize).next_multiple_of(LINE) + super::GATES * (self.blocks as usize).next_multiple_of(LINE)
    }

    const fn layout(&self, pes: u32, proxied: bool) -> MoeLayout {
        let (tokens, top_k) = (self.tokens as u64, self.top_k as u64);
        let rows = pes as u64 * tokens;
        let slots = HEAD;
        let counts = slots + grains(2 * 4 * tokens * top_k);
        let listed = counts + grains(2 * 4 * (pes as u64 + 1));
        let most = self.experts.div_ceil(pes) as u64;
        let lists = listed + grains(4 * most);
        let places = lists + grains(4 * most * rows);
        let dispatch = places + grains(4 * rows * top_k);
        let combine = dispatch + grains(self.dispatch_bytes(pes));
        let staged_messages = combine + grains(self.combine_bytes(pes, proxied));
        let staged_outputs = staged_messages + if proxied { grains(self.dispatch_bytes(pes)) } else { 0 };
        let batch = staged_outputs + if proxied { grains(self.combine_bytes(pes, proxied)) } else { 0 };
        MoeLayout {
            slots,
            counts,
            listed,
            lists,
            places,
            dispatch,
            combine,
            staged_messages,
            staged_outputs,
            batch,
            message: self.message_bytes(),
            row: sixteens(self.output),
            scales: sixteens(self.payload),
            header: sixteens(self.payload) + sixteens(self.scales),
            by_source: self.by_source(pes, proxied) as u32,
            unused: 0,
        }
    }
}

kernel_arg! {
    /// Where everything lies in the memory of one micro-batch.
    pub(super) struct MoeLayout {
        /// Where each choice of each token goes: two of these, for routes in turn.
        pub(super) slots: u64,
        /// How many tokens go to each PE, and how many there are: two of these.
        pub(super) counts: u64,
        /// How many tokens each expert of this PE has, and which.
        pub(super) listed: u64,
        pub(super) lists: u64,
        /// Which of an expert's rows each choice of each row is.
        pub(super) places: u64,
        /// Messages, by source and slot.
        pub(super) dispatch: u64,
        /// Rows of outputs.
        pub(super) combine: u64,
        /// What a proxy is to take from: as `dispatch` and `combine` are on the peers.
        pub(super) staged_messages: u64,
        pub(super) staged_outputs: u64,
        /// Bytes of all.
        pub(super) batch: u64,
        /// Bytes of a message, and where scales and header begin in it.
        pub(super) message: u32,
        pub(super) scales: u32,
        pub(super) header: u32,
        /// Bytes from one row of outputs to the next.
        pub(super) row: u32,
        pub(super) by_source: u32,
        unused: u32,
    }
}

impl MoeLayout {
    /// The same, of which the compiler knows nothing ([`Moe::opaque`](super::Moe::opaque)).
    #[inline(always)]
    pub(super) fn opaque(self) -> Self {
        Self {
            slots: opaque(self.slots),
            counts: opaque(self.counts),
            listed: opaque(self.listed),
            lists: opaque(self.lists),
            places: opaque(self.places),
            dispatch: opaque(self.dispatch),
            combine: opaque(self.combine),
            staged_messages: opaque(self.staged_messages),
            staged_outputs: opaque(self.staged_outputs),
            batch: opaque(self.batch),
            message: opaque_word(self.message),
            scales: opaque_word(self.scales),
            header: opaque_word(self.header),
            row: opaque_word(self.row),
            by_source: opaque_word(self.by_source),
            unused: self.unused,
        }
    }
}

/// An exchange of a team, for the host's `World::plan`.
#[derive(Clone, Copy, Debug)]
pub struct MoeShape {
    team: TeamView,
    config: MoeConfig,
    proxied: bool,
}

impl MoeShape {
    /// For a team, with a proxy for peers that loads and stores do not reach.
    ///
    /// # Errors
    /// As [`MoeConfig::check`].
    pub fn new(team: TeamView, config: MoeConfig, proxied: bool) -> Result<Self, MoeConfigError> {
        config.check(team.size() as u32)?;
        Ok(Self { team, config, proxied })
    }

    /// What it is an exchange of.
    pub fn config(&self) -> &MoeConfig {
        &self.config
    }

    /// Where in the scratch the word is that says why a micro-batch was refused last; past its end where there is no such micro-batch.
    #[doc(hidden)]
    pub fn refused(&self, micro_batch: usize) -> usize {
        let each = self.config.layout(self.team.size() as u32, self.proxied).batch as usize;
        micro_batch.saturating_mul(each).saturating_add(Own::Refused as usize * 8)
    }
}

impl Shape for MoeShape {
    type View = MoeView;

    fn needs(&self) -> Needs {
        let pes = self.team.size() as u32;
        let batches = self.config.micro_batches as usize;
        Needs {
            signals: batches * self.config.signals_of(pes),
            scratch: batches * self.config.layout(pes, self.proxied).batch as usize,
        }
    }

    fn view(&self, signals: Sym<Signal>, scratch: Sym<u8>) -> MoeView {
        let MoeConfig { tokens, experts, top_k, payload, scales, output, micro_batches, blocks, first_tag } =
            self.config;
        MoeView {
            signals,
            scratch,
            team: self.team,
            layout: self.config.layout(self.team.size() as u32, self.proxied),
            signals_of_peers: (self.team.size() as u32).next_multiple_of(LINE as u32),
            signals_of_blocks: blocks.next_multiple_of(LINE as u32),
            tokens,
            experts,
            top_k,
            payload,
            scales,
            output,
            micro_batches,
            blocks,
            first_tag,
            unused: 0,
        }
    }
}

const fn sixteens(bytes: u32) -> u32 {
    bytes.next_multiple_of(16)
}

const fn grains(bytes: u64) -> u64 {
    bytes.next_multiple_of(GRAIN)
}

/// The experts of a member.
#[inline(always)]
pub(super) const fn experts_of(rank: u32, experts: u32, members: u32) -> Range<u32> {
    let (each, over) = (experts / members, experts % members);
    let start = rank * each + if rank < over { rank } else { over };
    start..start + each + (rank < over) as u32
}

/// The member that has an expert.
#[inline(always)]
pub(super) const fn owner_of(expert: u32, experts: u32, members: u32) -> u32 {
    let (each, over) = (experts / members, experts % members);
    let larger = over * (each + 1);
    if expert < larger { expert / (each + 1) } else { over + (expert - larger) / each }
}

#[cfg(test)]
mod tests {
    use super::*;
    use congruent_device::{Sym, TeamView};
    use proptest::prelude::*;
    use std::vec::Vec;

    /// DeepSeek-V3's decode, in fp8 there and bf16 back, with two micro-batches.
    const DECODE: MoeConfig =
        MoeConfig::new(128, 256, 8).payload(7168).scales(7168 / 128 * 4).output(7168 * 2).micro_batches(2);

    #[test]
    fn memory_is_what_the_payload_needs_and_little_more() {
        const MIB: u64 = 1 << 20;
        assert_eq!(DECODE.message_bytes(), 7168 + 224 + 16 + 64);
        assert!(DECODE.bytes(8, false) <= 43 * MIB, "{}", DECODE.bytes(8, false));
        assert!(DECODE.bytes(64, false) <= 146 * MIB, "{}", DECODE.bytes(64, false));
        // Payload alone: tokens that come, and answers of at most 8 PEs or choices.
        let least = |pes: u64| 2 * 128 * (pes * (7168 + 224) + 8 * 7168 * 2);
        for pes in [8, 64] {
            assert!(DECODE.bytes(pes as u32, false) < least(pes) * 102 / 100, "{pes} PEs");
        }
        assert!(DECODE.bytes(8, true) <= 86 * MIB, "{}", DECODE.bytes(8, true));
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let wrong = |config: MoeConfig| config.check(4).unwrap_err();
        let good = MoeConfig::new(8, 16, 2).payload(64).output(32);
        assert_eq!(good.check(4), Ok(()));
        assert_eq!(wrong(MoeConfig::new(0, 16, 2).payload(1).output(8)), MoeConfigError::Zero("tokens"));
        assert_eq!(wrong(MoeConfig::new(8, 0, 1).payload(1).output(8)), MoeConfigError::Zero("experts"));
        assert_eq!(wrong(good.payload(0)), MoeConfigError::Zero("bytes of payload"));
        assert_eq!(wrong(good.micro_batches(0)), MoeConfigError::Zero("micro-batches"));
        assert_eq!(wrong(good.blocks(0)), MoeConfigError::Zero("blocks"));
        assert_eq!(wrong(MoeConfig::new(8, 3, 4).payload(1).output(8)), MoeConfigError::TopK { asked: 4, most: 3 });
        assert_eq!(wrong(MoeConfig::new(8, 99, 33).payload(1).output(8)), MoeConfigError::TopK { asked: 33, most: 32 });
        assert_eq!(wrong(good.output(12)), MoeConfigError::Output { bytes: 12 });
        assert_eq!(wrong(good.output(0)), MoeConfigError::Output { bytes: 0 });
        let large = MoeConfigError::Large { what: "scales", bytes: u32::MAX };
        assert_eq!(wrong(good.scales(u32::MAX)), large);
        assert_eq!(wrong(MoeConfig::new(u32::MAX, 16, 2).payload(1).output(8)), MoeConfigError::TooMany);
    }

    proptest! {
        #[test]
        fn every_expert_is_of_one_member(experts in 1u32..200, members in 1u32..70) {
            let of_members: Vec<u32> = (0..members).flat_map(|rank| experts_of(rank, experts, members)).collect();
            prop_assert_eq!(&of_members, &(0..experts).collect::<Vec<_>>());
            for rank in 0..members {
                for expert in experts_of(rank, experts, members) {
                    prop_assert_eq!(owner_of(expert, experts, members), rank);
                }
            }
        }

        /// No region reaches into the next one, for any rank.
        #[test]
        fn regions_lie_one_behind_the_other(
            tokens in 1u32..70, experts in 1u32..40, top_k in 1u32..9, payload in 1u32..300, scales in 0u32..40,
            output in 1u32..40, pes in 1u32..20, proxied: bool,
        ) {
            let config = MoeConfig::new(tokens, experts, top_k.min(experts)).payload(payload).scales(scales).output(8 * output);
            config.check(pes)?;
            let l = config.layout(pes, proxied);
            let (rows, top_k) = (u64::from(pes * tokens), u64::from(top_k.min(experts)));
            prop_assert!(l.slots >= HEAD && l.slots + 8 * u64::from(tokens) * top_k <= l.counts);
            prop_assert!(l.counts + 8 * u64::from(pes + 1) <= l.listed);
            let most = (0..pes).map(|rank| config.experts_of(rank, pes).len() as u64).max().unwrap_or(0);
            prop_assert!(l.listed + 4 * most <= l.lists && l.lists + 4 * most * rows <= l.places);
            prop_assert!(l.places + 4 * rows * top_k <= l.dispatch);
            prop_assert!(l.dispatch + rows * u64::from(l.message) <= l.combine);
            let answers = if l.by_source != 0 { rows } else { u64::from(tokens) * top_k } * u64::from(l.row);
            prop_assert!(l.combine + answers <= l.staged_messages && l.staged_outputs <= l.batch);
            if proxied {
                prop_assert!(l.staged_messages + rows * u64::from(l.message) <= l.staged_outputs);
                prop_assert!(l.staged_outputs + rows * u64::from(l.row) <= l.batch);
            }
            prop_assert!(l.message >= l.header + HEADER + 8 * top_k as u32 && l.header >= l.scales + scales && l.scales >= payload);
            prop_assert!([l.slots, l.counts, l.listed, l.lists, l.dispatch, l.combine, l.batch].iter().all(|at| at % 128 == 0));
            prop_assert!(l.message.is_multiple_of(16) && l.row.is_multiple_of(16) && l.header.is_multiple_of(16) && l.scales.is_multiple_of(16));
            let shape = MoeShape::new(TeamView::strided(0, 1, pes, 0, Sym::empty()), config, proxied)?;
            let needs = shape.needs();
            prop_assert_eq!(needs.scratch as u64 + 8 * needs.signals as u64, config.bytes(pes, proxied));
        }
    }
}
