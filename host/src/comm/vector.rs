//! Collectives with parts of any length, and sends and receives.

use congruent_collectives::exchange::Parts;
use congruent_collectives::{Collective, Listed, Transfer};
use congruent_device::{Pod, Sym};

use super::Comm;
use super::calls::apart;
use super::enqueue::{Call, Queue, Way};
use crate::launches::Launcher;
use crate::{LaunchError, Stream};

impl Comm {
    /// Part `i` of member `j`'s `src` becomes part `j` of member `i`'s `dst`. The parts are as MPI has them: a count and a
    /// displacement for each member, in elements, in this PE's copy of the lists when the kernel runs.
    ///
    /// ```
    /// use congruent::collectives::exchange::Parts;
    /// # congruent::local(2, |world| {
    /// let (comm, stream) = (world.comm(world.team())?, world.stream()?);
    /// let (src, dst, lists) = (world.alloc::<u8>(8)?, world.alloc::<u8>(8)?, world.alloc::<u64>(8)?);
    /// // Each member keeps one byte and sends the other member three.
    /// let (mine, other) = (comm.rank(), 1 - comm.rank());
    /// for (at, counts) in [(0, [1, 3]), (4, [1, 3])] {
    ///     lists.write(at, &[counts[mine], counts[other], 0, counts[mine]])?;
    /// }
    /// let list = |at: usize| lists.view().slice(2 * at..2 * at + 2);
    /// let (receives, sends) = (Parts::new(list(0), list(1)), Parts::new(list(2), list(3)));
    /// comm.all_to_all_v(&stream, dst.view(), src.view(), receives, sends)?;
    /// # world.synchronize(&stream)?;
    /// # Ok::<_, congruent::Error>(())
    /// # })?;
    /// # Ok::<_, congruent::Error>(())
    /// ```
    ///
    /// # Collective
    /// Over the team, with the same type. What one member sends another, that one receives: where counts differ, both get a
    /// fault that says so before they send anything. Buffers and lists may differ from member to member.
    ///
    /// # Errors
    /// Where lists do not have one entry for each member or the buffers overlap, and see [`LaunchError`].
    #[track_caller]
    pub fn all_to_all_v<T: Pod>(
        &self,
        queue: &impl Queue,
        dst: Sym<T>,
        src: Sym<T>,
        receives: Parts,
        sends: Parts,
    ) -> Result<(), LaunchError> {
        self.each_member("receive counts", "receive displacements", &receives)?;
        self.each_member("send counts", "send displacements", &sends)?;
        apart("all-to-all-v", "a destination apart from the source", dst, src)?;
        self.with_parts(queue, Collective::AllToAllV, dst, src, (receives, sends))
    }

    /// Member `j`'s `src` becomes part `j` of every member's `dst`. The parts are as in
    /// [`all_to_all_v`](Comm::all_to_all_v); `src` may be this member's part.
    ///
    /// # Collective
    /// Over the team, with the same type and the same counts; a fault says where they differ. Displacements may differ.
    ///
    /// # Errors
    /// As [`all_to_all_v`](Comm::all_to_all_v). Whether `src` is this member's part of `dst` only the kernel can see: where it
    /// overlaps `dst` otherwise, it panics.
    #[track_caller]
    pub fn all_gather_v<T: Pod>(
        &self,
        queue: &impl Queue,
        dst: Sym<T>,
        src: Sym<T>,
        parts: Parts,
    ) -> Result<(), LaunchError> {
        self.each_member("counts", "displacements", &parts)?;
        self.with_parts(queue, Collective::AllGatherV, dst, src, (parts, parts))
    }

    /// Sends `src` to a member, which receives it. Alone it is a [group](Comm::group) of one.
    ///
    /// It returns at once; on the stream it is complete when the data has left `src`, for which the member must have started to
    /// receive. So members that send to each other do it in groups.
    ///
    /// # Errors
    /// Where there is no such member, and see [`LaunchError`].
    #[track_caller]
    pub fn send<T: Pod>(&self, queue: &impl Queue, src: Sym<T>, peer: usize) -> Result<(), LaunchError> {
        self.transfer(queue, Way::Send, src, peer)
    }

    /// Receives what a member sends to `dst`. Alone it is a [group](Comm::group) of one.
    ///
    /// # Errors
    /// As [`send`](Comm::send).
    #[track_caller]
    pub fn recv<T: Pod>(&self, queue: &impl Queue, dst: Sym<T>, peer: usize) -> Result<(), LaunchError> {
        self.transfer(queue, Way::Receive, dst, peer)
    }

    /// Sends parts of `memory` and receives to parts of it, as lists on the heap say when the kernel runs: so a kernel before may write
    /// them, and the launches of a graph may differ. Offsets and counts are in bytes. [`send`](Comm::send) and [`recv`](Comm::recv) are
    /// this with lists from the host.
    ///
    /// ```
    /// use congruent::collectives::{Listed, Transfer};
    /// # congruent::local(2, |world| {
    /// let (comm, stream) = (world.comm(world.team())?, world.stream()?);
    /// let (memory, lists) = (world.alloc::<u8>(20)?, world.alloc::<[u64; 3]>(2)?);
    /// memory.fill(7 + comm.rank() as u8)?;
    /// let peer = 1 - comm.rank() as u64;
    /// // Five bytes from the beginning to the other member, and its five bytes behind them.
    /// let [send, receive] = [0, 10].map(|offset| Transfer { peer, offset, count: 5 }.words());
    /// lists.write(0, &[send, receive])?;
    /// let transfers = Listed { sends: lists.view().slice(..1), receives: lists.view().slice(1..) };
    /// comm.send_recv(&stream, memory.view(), transfers)?;
    /// world.synchronize(&stream)?;
    /// assert_eq!(memory.to_vec()?[10..15], [8 - comm.rank() as u8; 5]);
    /// # Ok::<_, congruent::Error>(())
    /// # })?;
    /// # Ok::<_, congruent::Error>(())
    /// ```
    ///
    /// # Collective
    /// Over the members that have something for each other, in one order with their other sends and receives on the stream: each
    /// transfer is in the lists of both, with the same count.
    ///
    /// # Errors
    /// See [`LaunchError`]. What lists say only the kernel can see: where there is no such member, a part reaches past `memory` or one that
    /// is received overlaps another, it panics; where counts differ, both members get a fault.
    #[track_caller]
    pub fn send_recv(&self, stream: &Stream, memory: Sym<u8>, transfers: Listed) -> Result<(), LaunchError> {
        self.admit(stream, Collective::SendRecv.name(), &[&memory, &transfers])?;
        self.launch_transfers(stream, memory, transfers, Launcher::call())
    }

    #[track_caller]
    fn transfer<T: Pod>(&self, queue: &impl Queue, way: Way, buffer: Sym<T>, peer: usize) -> Result<(), LaunchError> {
        if peer >= self.size() {
            return Err(LaunchError::Peer { peer, size: self.size() });
        }
        self.admit(queue.stream(self)?, Collective::SendRecv.name(), &[&buffer])?;
        let bytes = buffer.bytes() as u64;
        self.chosen(Collective::SendRecv, bytes, None)?;
        queue.transfer(self, way, Transfer { peer: peer as u64, offset: buffer.offset(), count: bytes })
    }

    #[track_caller]
    fn with_parts<T: Pod>(
        &self,
        queue: &impl Queue,
        collective: Collective,
        dst: Sym<T>,
        src: Sym<T>,
        (receives, sends): (Parts, Parts),
    ) -> Result<(), LaunchError> {
        self.admit(queue.stream(self)?, collective.name(), &[&dst, &src, &receives, &sends])?;
        // The buffers' lengths may differ from member to member, so the choice is not by them.
        let choice = self.chosen(collective, 0, None)?;
        let element = size_of::<T>();
        let parts = Some((receives.in_units_of(element), sends.in_units_of(element)));
        queue.take(
            self,
            Call {
                collective,
                algorithm: choice.algorithm,
                protocol: choice.protocol,
                // As many on every member, whose lengths differ.
                grid: self.grid(),
                reduction: None,
                own_scalars: false,
                dst: dst.cast(),
                src: src.cast(),
                root: 0,
                parts,
                count: 0,
                element,
                by: Launcher::call(),
            },
        )
    }

    fn each_member(&self, counts: &'static str, displacements: &'static str, parts: &Parts) -> Result<(), LaunchError> {
        let size = self.size();
        for (what, len) in [(counts, parts.counts().len()), (displacements, parts.displacements().len())] {
            if len != size {
                return Err(LaunchError::Counts { what, len, size });
            }
        }
        Ok(())
    }
}
