//! Collectives of a team on several hosts, made of calls of the teams of each host and of those between hosts: what
//! [`two_level`](congruent_collectives::two_level) says of them.

use congruent_collectives::two_level::SHORT;
use congruent_collectives::{Collective, Op, Reduction, Transfer};
use congruent_device::Sym;

use super::enqueue::Call;
use super::{Comm, TRANSFERS};
use crate::{LaunchError, Stream, SymVec};

/// The communicators of the two levels.
pub(super) struct Levels {
    /// Of this member's host.
    pub(super) host: Box<Comm>,
    /// Of the members with its place on all hosts.
    pub(super) rail: Box<Comm>,
    /// Room for a part of each host, one for each stream.
    scratch: SymVec<u8>,
}

impl Levels {
    pub(super) fn new(host: Comm, rail: Comm, scratch: SymVec<u8>) -> Self {
        Self { host: Box::new(host), rail: Box::new(rail), scratch }
    }

    /// Whether a reduce-scatter of so many bytes has room for its parts between the levels.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        bytes / self.host.size() as u64 <= (self.scratch.len() / super::STREAMS as usize) as u64
    }

    /// The room of a stream.
    fn room(&self, comm: &Comm, stream: &Stream) -> Sym<u8> {
        let each = self.scratch.len() / super::STREAMS as usize;
        let ordinal = comm.streams().iter().position(|known| known.stream == stream.id()).unwrap_or(0);
        self.scratch.view().slice(ordinal * each..(ordinal + 1) * each)
    }

    /// Puts the calls of a collective that both levels make at the end of the stream.
    pub(super) fn enqueue(&self, comm: &Comm, stream: &Stream, call: &Call) -> Result<(), LaunchError> {
        let Self { host, rail, .. } = self;
        let (members, hosts) = (host.size(), rail.size());
        let Call { collective, dst, src, element, .. } = *call;
        let partial = call.reduction.map(Reduction::of_partials);
        let put = |comm: &Comm, collective, dst, src, reduction: Option<Reduction>| {
            let own_scalars = call.own_scalars && reduction.is_some_and(|reduction| reduction.op() == Op::PreMulSum);
            comm.part_of(stream, Call { collective, dst, src, reduction, own_scalars, ..*call })
        };
        // What `members` parts of this length are, of each host.
        let block =
            |whole: Sym<u8>, part: usize, of: usize| whole.slice(of * members * part..(of + 1) * members * part);
        match collective {
            Collective::AllReduce => {
                let count = dst.bytes() / element;
                let part = if dst.bytes() < SHORT { 0 } else { count / members * element };
                let even = part * members;
                if part > 0 {
                    let (all, own) = (dst.slice(..even), dst.slice(host.rank() * part..(host.rank() + 1) * part));
                    put(host, Collective::ReduceScatter, own, src.slice(..even), call.reduction)?;
                    put(rail, Collective::AllReduce, own, own, partial)?;
                    put(host, Collective::AllGather, all, own, None)?;
                }
                if even < dst.bytes() {
                    let rest = dst.slice(even..);
                    put(host, Collective::AllReduce, rest, src.slice(even..), call.reduction)?;
                    put(rail, Collective::AllReduce, rest, rest, partial)?;
                }
                Ok(())
            }
            Collective::ReduceScatter => {
                let part = dst.bytes();
                let room = self.room(comm, stream).slice(..hosts * part);
                for of in 0..hosts {
                    let to = room.slice(of * part..(of + 1) * part);
                    put(host, collective, to, block(src, part, of), call.reduction)?;
                }
                put(rail, collective, dst, room, partial)
            }
            Collective::AllGather => {
                let part = src.bytes();
                let room = self.room(comm, stream);
                // In a logarithm of steps where there is room, or else straight to where it belongs.
                let from = |of: usize| match room.get(of * part..(of + 1) * part) {
                    Some(there) if hosts * part <= room.bytes() => there,
                    _ if of == rail.rank() => src,
                    _ => block(dst, part, of).slice(host.rank() * part..(host.rank() + 1) * part),
                };
                if hosts * part <= room.bytes() {
                    put(rail, collective, room.slice(..hosts * part), src, None)?;
                } else {
                    rail.hand_round(stream, call, src, from)?;
                }
                (0..hosts).try_for_each(|of| put(host, collective, block(dst, part, of), from(of), None))
            }
            _ => {
                let part = dst.bytes() / (members * hosts);
                for of in 0..hosts {
                    put(host, Collective::AllToAll, block(dst, part, of), block(src, part, of), None)?;
                }
                put(rail, Collective::AllToAll, dst, dst, None)
            }
        }
    }
}

impl Comm {
    /// Puts a collective at the end of the stream that is a part of another call.
    fn part_of(&self, stream: &Stream, call: Call) -> Result<(), LaunchError> {
        let Call { dst, src, .. } = call;
        let bytes = dst.bytes().max(src.bytes()) as u64;
        let choice = self.choose(call.collective, bytes, call.operator(), call.own_scalars)?;
        let (algorithm, protocol, grid) = (choice.algorithm, choice.protocol, choice.grid());
        let count = dst.bytes().min(src.bytes()) / call.element;
        self.enqueue(stream, &Call { algorithm, protocol, grid, count, root: 0, ..call })
    }

    /// Gives every member `src`, and has that of member `i` in `to(i)`.
    fn hand_round(
        &self,
        stream: &Stream,
        call: &Call,
        src: Sym<u8>,
        to: impl Fn(usize) -> Sym<u8>,
    ) -> Result<(), LaunchError> {
        let distances: Vec<usize> = (1..self.size()).collect();
        // As many pairs at once as a group may have.
        for some in distances.chunks(TRANSFERS / 2) {
            let with = |peer: usize, what: Sym<u8>| {
                Transfer { peer: peer as u64, offset: what.offset(), count: what.bytes() as u64 }.words()
            };
            let after = |distance: &usize| (self.rank() + distance) % self.size();
            let before = |distance: &usize| (self.rank() + self.size() - distance) % self.size();
            let sends: Vec<_> = some.iter().map(|distance| with(after(distance), src)).collect();
            let receives: Vec<_> = some.iter().map(before).map(|peer| with(peer, to(peer))).collect();
            self.exchange(stream, &sends, &receives, call.by)?;
        }
        Ok(())
    }
}
