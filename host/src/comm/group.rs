//! Calls that are enqueued together.

use congruent_collectives::{Protocol, Transfer};
use std::cell::RefCell;

use super::enqueue::{Call, Take, Way};
use super::{Comm, TRANSFERS};
use crate::launches::Launcher;
use crate::{LaunchError, Stream};

/// Calls of one communicator that are enqueued together: collectives in their order, then all sends and receives as one launch,
/// in which they start together. Made by [`Comm::group`]; calls take it in the place of a stream.
pub struct Group<'g> {
    comm: &'g Comm,
    stream: &'g Stream,
    pending: RefCell<Pending>,
}

#[derive(Default)]
struct Pending {
    calls: Vec<Call>,
    transfers: Vec<(Way, Transfer)>,
}

impl Comm {
    /// Enqueues together what `build` calls: what NCCL has ncclGroupStart and ncclGroupEnd for. Where one of the calls is
    /// refused, or `build` gives an error, nothing is enqueued.
    ///
    /// Sends and receives need a group where one of them has to wait for another: `k` sends to a member match its `k` receives
    /// from this one, in their order, in whatever groups these are. Others may come in any order, and a group of none is fine.
    ///
    /// # Errors
    /// What `build` gives; more sends and receives than a group holds; parts that are received and overlap others; sends to
    /// this PE itself that are not received in the same group, with the same count; and see [`LaunchError`].
    #[track_caller]
    pub fn group(
        &self,
        stream: &Stream,
        build: impl FnOnce(&Group<'_>) -> Result<(), LaunchError>,
    ) -> Result<(), LaunchError> {
        self.admit(stream, "a group", &[])?;
        // Members use streams for the first time in the same order, so also those that have nothing to do on this one.
        self.view(stream, Protocol::Simple)?;
        let group = Group { comm: self, stream, pending: RefCell::default() };
        build(&group)?;
        let Pending { calls, transfers } = group.pending.into_inner();
        apart(&transfers)?;
        self.matched(&transfers)?;
        if transfers.len() > TRANSFERS {
            return Err(LaunchError::GroupFull { fits: TRANSFERS });
        }
        for call in &calls {
            self.enqueue(stream, call)?;
        }
        let of =
            |way: Way| transfers.iter().filter(move |one| one.0 == way).map(|one| one.1.words()).collect::<Vec<_>>();
        if transfers.is_empty() {
            return Ok(());
        }
        self.exchange(stream, &of(Way::Send), &of(Way::Receive), Launcher::call())
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

impl Take for Group<'_> {
    fn stream(&self) -> &Stream {
        self.stream
    }

    fn take(&self, comm: &Comm, call: Call) -> Result<(), LaunchError> {
        self.of(comm)?;
        self.pending.borrow_mut().calls.push(call);
        Ok(())
    }

    fn transfer(&self, comm: &Comm, way: Way, transfer: Transfer) -> Result<(), LaunchError> {
        self.of(comm)?;
        self.pending.borrow_mut().transfers.push((way, transfer));
        Ok(())
    }
}

impl Group<'_> {
    fn of(&self, comm: &Comm) -> Result<(), LaunchError> {
        if std::ptr::eq(self.comm, comm) { Ok(()) } else { Err(LaunchError::ForeignGroup) }
    }
}
