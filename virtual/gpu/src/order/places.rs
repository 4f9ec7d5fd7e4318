//! Where accesses were made, and what that says of two of them: whether one comes before the other, and whether they race.

use std::sync::Arc;

use super::clocks::{Clocks, Knowledge};
use super::{Access, Event, Kind, MULTICAST, Mark, NONCOHERENT, Past};
use crate::fault::{Cause, Party};
use crate::instruction::Scope;
use crate::program::Program;

/// Where a warp is among all.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) program: Arc<Program>,
    pub(super) kernel: String,
    pub(super) process: u64,
    pub(super) pe: Option<u32>,
    pub(super) device: u32,
    /// One number for each block of all launches.
    pub(super) block: u64,
    pub(super) index: [u32; 3],
    pub(super) warp: u32,
    pub(super) stream: u32,
    /// When its launch ended, in launches that had.
    pub(super) ended: Option<u32>,
    /// What its launch knew as it began.
    pub(super) began: Arc<Knowledge>,
}

impl Place {
    /// Whether a scope of this warp's includes another one.
    pub(super) fn includes(&self, scope: Scope, other: &Self) -> bool {
        match scope {
            Scope::System => true,
            Scope::Device => self.device == other.device,
            Scope::Block => self.block == other.block,
        }
    }
}

/// Those whose fences of sequential consistency are morally strong with each other (8.9.3): all of a block, those of a device
/// whose scope is at least the device, and all whose scope is the system.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Among {
    Block(u64),
    Device(u32),
    System,
}

/// All warps that there were, by number.
#[derive(Default)]
pub(super) struct Places(pub(super) Vec<Place>);

impl Places {
    /// With whom a warp's fences of sequential consistency come one after the other.
    pub(super) fn among(&self, past: &Past, scope: Scope) -> impl Iterator<Item = Among> + use<> {
        let Place { block, device, .. } = self.0[past.id as usize];
        let all = [
            (Scope::Block, Among::Block(block)),
            (Scope::Device, Among::Device(device)),
            (Scope::System, Among::System),
        ];
        all.into_iter().filter(move |(least, _)| *least <= scope).map(|(_, among)| among)
    }

    fn named(&self, mark: &Mark, kind: Kind) -> Party {
        let place = &self.0[mark.warp as usize];
        let (function, instruction) = place.program.numbered(mark.instruction);
        let (line, text, source) = place.program.place(instruction);
        Party {
            kernel: place.kernel.clone(),
            function: function.to_owned(),
            line,
            instruction: text,
            source,
            pe: place.pe,
            device: place.device,
            block: place.index,
            warp: place.warp,
            lane: u32::from(mark.lane),
            what: match kind {
                Kind::Read => "read",
                Kind::Write => "write",
                Kind::Change | Kind::Reduce => "atomic",
            },
        }
    }

    /// A race of two accesses, the later one last.
    pub(super) fn race(&self, one: (&Mark, Kind), other: (&Mark, Kind)) -> Cause {
        let parties = [one, other].map(|(mark, kind)| self.named(mark, kind));
        Cause::Race { parties: Box::new(parties), missing: self.missing(one.0, other.0) }
    }

    /// What would order two accesses.
    fn missing(&self, one: &Mark, other: &Mark) -> &'static str {
        let [place, others] = [one, other].map(|mark| &self.0[mark.warp as usize]);
        if [one.alias, other.alias].contains(&NONCOHERENT) {
            "a load that is coherent (.nc reads what nobody writes while its kernel runs)"
        } else if self.are_aliases((one.warp, one.alias), (other.warp, other.alias)) {
            "a fence.proxy.alias, beside a release and an acquire (they use two addresses of the place)"
        } else if one.warp == other.warp {
            "a barrier of the warp (bar.warp.sync) or of the block (bar.sync) between them"
        } else if place.includes(Scope::Block, others) {
            "a barrier of the block (bar.sync) between them, or a release and an acquire of scope cta or wider"
        } else if place.includes(Scope::Device, others) {
            "a release behind the first, seen by an acquire ahead of the second, of scope gpu or wider"
        } else {
            "a release behind the first, seen by an acquire ahead of the second, of scope sys"
        }
    }

    /// Whether what a mark stands for comes before what a lane does now, by addresses of the alias given.
    pub(super) fn is_before(&self, mark: &Mark, past: &Past, lane: usize, alias: u32) -> bool {
        let known = &past.lanes[lane].known;
        let (known, is_own) = match self.are_aliases((mark.warp, mark.alias), (past.id, alias)) {
            false => (&known.all, mark.warp == past.id && mark.lane as usize == lane),
            true => (&known.aliased, false),
        };
        let is_coherent = ![mark.alias, alias].contains(&NONCOHERENT);
        if is_coherent && (is_own || known.knows(mark.warp, mark.lane, mark.clock)) {
            return true;
        }
        let known = if is_coherent { known } else { &self.0[past.id as usize].began.all };
        self.has_ended(mark.warp, known)
    }

    /// Whether it is known that the launch of a warp has ended.
    pub(super) fn has_ended(&self, warp: u32, known: &Clocks) -> bool {
        let Place { stream, ended, .. } = self.0[warp as usize];
        ended.is_some_and(|ended| known.knows(stream, 0, ended))
    }

    /// Whether a launch began in the same stream as an earlier one after that had ended.
    pub(super) fn is_launched_behind(&self, later: &Mark, earlier: &Mark) -> bool {
        let [place, before] = [later, earlier].map(|mark| &self.0[mark.warp as usize]);
        place.stream == before.stream && self.has_ended(earlier.warp, &place.began.all)
    }

    /// Whether a write comes before what a lane does now, in causality order: by itself, or because a read does that has
    /// observed it (8.9.5).
    pub(super) fn is_known(&self, event: &Event, past: &Past, access: &Access) -> bool {
        let is_before = |mark: &Mark| self.is_before(mark, past, access.lane, access.alias);
        event.mark.as_ref().is_none_or(is_before) || event.observed.iter().any(is_before)
    }

    /// Whether a write and an access are morally strong; what was there before any write is with nothing.
    pub(super) fn is_strong_with(&self, event: &Event, mark: &Mark) -> bool {
        event.mark.is_some_and(|other| self.are_morally_strong(&other, mark))
    }

    /// Whether two warps use different addresses for one place. Addresses of different processes do not compare: a device has
    /// caches and page tables for each. Multicast is another way to memory for all of them.
    fn are_aliases(&self, (one, at): (u32, u32), (other, others): (u32, u32)) -> bool {
        let of = |warp: u32| self.0[warp as usize].process;
        at != others && (at == MULTICAST || others == MULTICAST || of(one) == of(other))
    }

    pub(super) fn are_morally_strong(&self, one: &Mark, other: &Mark) -> bool {
        let (Some(scope), Some(others)) = (one.strong, other.strong) else { return false };
        let (place, others_place) = (&self.0[one.warp as usize], &self.0[other.warp as usize]);
        let overlap_whole = one.width == other.width && one.bytes == other.bytes;
        overlap_whole
            && !self.are_aliases((one.warp, one.alias), (other.warp, other.alias))
            && place.includes(scope, others_place)
            && others_place.includes(others, place)
    }
}
