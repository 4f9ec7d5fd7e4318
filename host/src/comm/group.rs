//! Calls that are enqueued together.

use std::cell::RefCell;

use congruent_collectives::{Protocol, Transfer};

use super::enqueue::{Call, Take, Way};
use super::{Comm, TRANSFERS};
use crate::launches::Launcher;
use crate::{LaunchError, Stream};

/// Calls that are enqueued together: collectives in their order, then all sends and receives, those of a communicator as one launch, in
/// which they start together. Made by [`Comm::group`]; calls take it in the place of a stream.
pub struct CallGroup<'g> {
    pending: RefCell<Pending<'g>>,
}

struct Pending<'g> {
    entries: Vec<Entry<'g>>,
    /// Each with its entry's place.
    calls: Vec<(usize, Call)>,
}

/// A communicator, and where its calls go.
struct Entry<'g> {
    comm: &'g Comm,
    stream: &'g Stream,
    transfers: Vec<(Way, Transfer)>,
}

impl Comm {
    /// Enqueues together what `build` calls: what NCCL has ncclGroupStart and ncclGroupEnd for. Where one of the calls is
    /// refused, or `build` gives an error, nothing is enqueued.
    ///
    /// Sends and receives need a group where one of them has to wait for another: `k` sends to a member match its `k` receives
    /// from this one, in their order, in whatever groups these are. Others may come in any order, and a group of none is fine.
    ///
    /// A group has calls of one communicator, and of others that it is given ([`CallGroup::with`]).
    ///
    /// # Errors
    /// What `build` gives; more sends and receives of a communicator than a group holds; parts that are received and overlap others;
    /// sends to this PE itself that are not received in the same group by the same communicator, with the same count; and see
    /// [`LaunchError`]. On a GPU a launch that finds no room beside those of other streams is refused when it comes to it
    /// ([`LaunchError::NotCoresident`]); what the group launched before it stays.
    #[track_caller]
    pub fn group<'g>(
        &'g self,
        stream: &'g Stream,
        build: impl FnOnce(&CallGroup<'g>) -> Result<(), LaunchError>,
    ) -> Result<(), LaunchError> {
        let pending = Pending { entries: Vec::new(), calls: Vec::new() };
        let group = CallGroup { pending: RefCell::new(pending) };
        group.with(self, stream)?;
        build(&group)?;
        let Pending { mut entries, calls } = group.pending.into_inner();
        let all: Vec<_> = entries.iter().flat_map(|entry| entry.transfers.iter().copied()).collect();
        apart(&all)?;
        for Entry { comm, transfers, .. } in &entries {
            comm.matched(transfers)?;
            if transfers.len() > TRANSFERS {
                return Err(LaunchError::GroupFull { fits: TRANSFERS });
            }
        }
        for (at, call) in &calls {
            let Entry { comm, stream, .. } = &entries[*at];
            comm.enqueue(stream, call)?;
        }
        // In one order on all PEs, whichever they gave them in: two that share a stream would wait for each other otherwise. Heaps are
        // alike, so where a communicator has its lists tells it from others.
        entries.sort_by_key(|entry| entry.comm.lists.view().offset());
        for Entry { comm, stream, transfers } in &entries {
            let of = |way: Way| {
                transfers.iter().filter(move |one| one.0 == way).map(|one| one.1.words()).collect::<Vec<_>>()
            };
            if !transfers.is_empty() {
                comm.exchange(stream, &of(Way::Send), &of(Way::Receive), Launcher::call())?;
            }
        }
        Ok(())
    }

    /// Sends to this PE itself are received in the same group.
    fn matched(&self, transfers: &[(Way, Transfer)]) -> Result<(), LaunchError> {
        let own = |way: Way| {
            let of_this_way = move |one: &&(Way, Transfer)| one.0 == way && one.1.peer == self.rank() as u64;
            transfers.iter().filter(of_this_way).map(|one| one.1.count).collect::<Vec<_>>()
        };
        let (sends, receives) = (own(Way::Send), own(Way::Receive));
        let at = sends.iter().zip(&receives).take_while(|(sent, received)| sent == received).count();
        if at == sends.len() && at == receives.len() {
            return Ok(());
        }
        let bytes = |counts: &[u64]| counts.get(at).copied().unwrap_or(0);
        let (sent, received) = (bytes(&sends), bytes(&receives));
        Err(LaunchError::ToItself { sends: sends.len(), receives: receives.len(), sent, received })
    }
}

/// What is received overlaps nothing else.
fn apart(transfers: &[(Way, Transfer)]) -> Result<(), LaunchError> {
    for (i, (way, one)) in transfers.iter().enumerate() {
        for (other_way, other) in &transfers[..i] {
            let writes = *way == Way::Receive || *other_way == Way::Receive;
            let both = one.offset.max(other.offset)..(one.offset + one.count).min(other.offset + other.count);
            if writes && !both.is_empty() {
                return Err(LaunchError::Overlap { call: "a group", instead: "each receive memory of its own" });
            }
        }
    }
    Ok(())
}

impl<'g> CallGroup<'g> {
    /// Lets the group have calls of another communicator of this world too, which go to `stream`: the same as of others in the group, or
    /// another one.
    ///
    /// Every member gives it, also one with nothing to send or to receive. In which order a group is given communicators is nothing to
    /// other members.
    ///
    /// ```
    /// # congruent::local(4, |world| {
    /// // A grid of two rows and two columns: each PE sends along both at once.
    /// let pe = world.pe().raw();
    /// let row = world.comm_split(Some(pe / 2), pe)?.expect("it has a colour");
    /// let column = world.comm_split(Some(pe % 2), pe)?.expect("it has a colour");
    /// let (stream, side) = (world.stream()?, world.stream()?);
    /// let (mine, right, below) = (world.alloc::<u32>(100)?, world.alloc::<u32>(100)?, world.alloc::<u32>(100)?);
    /// mine.fill(pe)?;
    /// row.group(&stream, |group| {
    ///     group.with(&column, &side)?;
    ///     row.send(group, mine.view(), 1 - row.rank())?;
    ///     column.send(group, mine.view(), 1 - column.rank())?;
    ///     row.recv(group, right.view(), 1 - row.rank())?;
    ///     column.recv(group, below.view(), 1 - column.rank())
    /// })?;
    /// world.synchronize(&stream)?;
    /// world.synchronize(&side)?;
    /// assert_eq!((right.to_vec()?, below.to_vec()?), (vec![pe ^ 1; 100], vec![pe ^ 2; 100]));
    /// # Ok::<_, congruent::Error>(())
    /// # })?;
    /// # Ok::<_, congruent::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`LaunchError::ForeignGroup`] where it is of another world; [`LaunchError::GroupStream`] where the group has it on another
    /// stream; and see [`LaunchError`].
    pub fn with(&self, comm: &'g Comm, stream: &'g Stream) -> Result<(), LaunchError> {
        comm.admit(stream, "a group", &[])?;
        let entries = &mut self.pending.borrow_mut().entries;
        if entries.iter().any(|entry| entry.comm.shared.id() != comm.shared.id()) {
            return Err(LaunchError::ForeignGroup);
        }
        if let Some(entry) = entries.iter().find(|entry| std::ptr::eq(entry.comm, comm)) {
            return if entry.stream.id() == stream.id() { Ok(()) } else { Err(LaunchError::GroupStream) };
        }
        // Members use streams for the first time in the same order, so also those that have nothing to do on this one.
        comm.view(stream, Protocol::Simple)?;
        entries.push(Entry { comm, stream, transfers: Vec::new() });
        Ok(())
    }
}

impl Pending<'_> {
    fn place(&self, comm: &Comm) -> Result<usize, LaunchError> {
        let of_this = |entry: &Entry<'_>| std::ptr::eq(entry.comm, comm);
        self.entries.iter().position(of_this).ok_or(LaunchError::ForeignGroup)
    }
}

impl Take for CallGroup<'_> {
    fn stream(&self, comm: &Comm) -> Result<&Stream, LaunchError> {
        let pending = self.pending.borrow();
        Ok(pending.entries[pending.place(comm)?].stream)
    }

    fn take(&self, comm: &Comm, call: Call) -> Result<(), LaunchError> {
        let mut pending = self.pending.borrow_mut();
        let place = pending.place(comm)?;
        pending.calls.push((place, call));
        Ok(())
    }

    fn transfer(&self, comm: &Comm, way: Way, transfer: Transfer) -> Result<(), LaunchError> {
        let mut pending = self.pending.borrow_mut();
        let place = pending.place(comm)?;
        pending.entries[place].transfers.push((way, transfer));
        Ok(())
    }
}
