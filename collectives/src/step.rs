//! What a step of members' blocks is: over which links it goes, and what it does with what goes there.

use core::iter::from_fn;
use core::num::NonZero;

/// One of the links that a session has open.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link(pub(crate) u32);

impl Link {
    pub(crate) const A: Self = Self(0);
    pub(crate) const B: Self = Self(1);
    pub(crate) const C: Self = Self(2);

    #[inline(always)]
    pub(crate) fn index(self) -> usize {
        // There are three, which the compiler does not know.
        (self.0 as usize).min(2)
    }

    /// For each choice of links, the number of the first one, of the second and of the third, of two bits each. A GPU looks it up in a
    /// few instructions.
    const NTH: u64 = {
        let (mut all, mut of) = (0, 0_u32);
        while of < 8 {
            let (mut rest, mut i) = (of, 0);
            while rest != 0 {
                all |= (rest.trailing_zeros() as u64) << (6 * of + 2 * i);
                (rest, i) = (rest & (rest - 1), i + 1);
            }
            of += 1;
        }
        all
    };

    /// Link number `i` of those whose bits are set.
    #[inline(always)]
    pub(crate) const fn nth(i: usize, of: u32) -> Self {
        Self((Self::NTH >> (6 * of + 2 * i as u32)) as u32 & 3)
    }

    /// Those whose bits are set.
    #[inline(always)]
    pub(crate) fn each(of: u32) -> impl Iterator<Item = Self> {
        let mut rest = of;
        from_fn(move || {
            let first = NonZero::new(rest)?;
            rest &= rest - 1;
            Some(Self(first.trailing_zeros()))
        })
    }
}

/// What a step does: from which links it receives, to which it sends, and with what of this member's.
#[derive(Clone, Copy)]
pub(crate) struct Step(u32);

impl Step {
    const RECEIVES: u32 = 0;
    const SENDS: u32 = 3;
    /// This member's source takes part.
    pub(crate) const SRC: u32 = 1 << 6;
    /// ... before what is received, and not after it.
    pub(crate) const SRC_FIRST: u32 = 1 << 7;
    /// ... as a partial result.
    pub(crate) const SRC_PARTIAL: u32 = 1 << 8;
    /// What is received is as members contributed it, and no partial result.
    pub(crate) const CONTRIBUTIONS: u32 = 1 << 9;
    /// The result is stored in this member's destination.
    pub(crate) const DST: u32 = 1 << 10;
    /// It is the result of all members.
    pub(crate) const FINISHED: u32 = 1 << 11;
    pub(crate) const DIRECT_RECEIVE: u32 = 1 << 12;
    pub(crate) const DIRECT_SEND: u32 = 1 << 13;
    /// All that is sent are elements of this member, as they are.
    pub(crate) const SENDS_OWN: u32 = 1 << 14;

    /// Nothing yet.
    pub(crate) const NEW: Self = Self(0);

    #[inline(always)]
    pub(crate) const fn recv(self, link: Link) -> Self {
        Self(self.0 | 1 << (Self::RECEIVES + link.0))
    }
    #[inline(always)]
    pub(crate) const fn send(self, link: Link) -> Self {
        Self(self.0 | 1 << (Self::SENDS + link.0))
    }
    #[inline(always)]
    pub(crate) const fn reduce(self) -> Self {
        Self(self.0 | Self::SRC)
    }
    /// This member's source comes first.
    #[inline(always)]
    pub(crate) const fn reduce_into(self) -> Self {
        Self(self.0 | Self::SRC | Self::SRC_FIRST)
    }
    #[inline(always)]
    pub(crate) const fn copy(self) -> Self {
        Self(self.0 | Self::DST)
    }
    #[inline(always)]
    pub(crate) const fn finish(self) -> Self {
        Self(self.0 | Self::FINISHED)
    }
    #[inline(always)]
    pub(crate) const fn direct_recv(self, link: Link) -> Self {
        Self(self.recv(link).0 | Self::DIRECT_RECEIVE)
    }
    #[inline(always)]
    pub(crate) const fn direct_send(self, link: Link) -> Self {
        Self(self.send(link).0 | Self::DIRECT_SEND)
    }
    /// This member's source is a partial result.
    #[inline(always)]
    pub(crate) const fn partial(self) -> Self {
        Self(self.0 | Self::SRC_PARTIAL)
    }
    /// What is received is as a member contributed it.
    #[inline(always)]
    pub(crate) const fn contributions(self) -> Self {
        Self(self.0 | Self::CONTRIBUTIONS)
    }

    /// Whether this member's source takes part.
    #[inline(always)]
    pub(crate) const fn reduces(self) -> bool {
        self.has(Self::SRC)
    }

    /// The same where no operator changes what goes.
    #[inline(always)]
    pub(crate) const fn unchanged(self) -> Self {
        Self(self.0 | if self.receives() == 0 { Self::SENDS_OWN } else { 0 })
    }

    #[inline(always)]
    pub(crate) const fn has(self, bits: u32) -> bool {
        self.0 & bits != 0
    }
    /// A bit for each link.
    #[inline(always)]
    pub(crate) const fn receives(self) -> u32 {
        self.0 >> Self::RECEIVES & 7
    }
    #[inline(always)]
    pub(crate) const fn sends(self) -> u32 {
        self.0 >> Self::SENDS & 7
    }
}
