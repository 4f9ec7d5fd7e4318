//! How a PE reaches each of the others: by loads and stores, or through its proxy and a transport.

use std::sync::Arc;
use std::time::Duration;

use congruent_device::abi;
use congruent_heap::abi::Route;
use congruent_transports::{
    Access, Exchange, Fabric, Faults, Faulty, InProcess, Local, Memory, Network, Reach, Shell, Transport, Verbs,
    VerbsOptions,
};

use crate::BuildError;
use crate::bootstrap::{Control, neighbours};
use crate::builder::Emulation;
use crate::tunables::{Key, TextKey, Tunables};

/// What proxies reach peers by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransportKind {
    /// Memory of one host.
    Local = 1,
    /// libfabric.
    Fabric,
    /// RDMA devices.
    Verbs,
}

impl TransportKind {
    /// Reads what `CONGRUENT_TRANSPORT` may say.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "local" => Some(Self::Local),
            "fabric" => Some(Self::Fabric),
            "verbs" => Some(Self::Verbs),
            _ => None,
        }
    }

    /// What is asked for.
    pub(crate) fn asked(tunables: &Tunables) -> Option<Self> {
        tunables.text(TextKey::Transport).and_then(Self::parse)
    }

    /// Collective: what is asked for, or else what joins the PEs.
    fn chosen(control: &Control, tunables: &Tunables) -> Result<Self, BuildError> {
        if let Some(kind) = Self::asked(tunables) {
            return Ok(kind);
        }
        if control.same_host() {
            return Ok(Self::Local);
        }
        let has_device = tunables.get(Key::IbDisable) == 0 && Verbs::find().is_ok();
        let all = control.all_gather(&[u8::from(has_device)])?;
        Ok(if all.iter().all(|one| one[..] == [1]) { Self::Verbs } else { Self::Fabric })
    }
}

/// The routes of a PE that reaches some of its peers through the proxy.
pub(crate) struct Routes {
    table: Vec<Route>,
    kind: TransportKind,
    /// How many PEs before this one are on its host, and the first of these or this one.
    turn: usize,
    host: u32,
    by: String,
}

impl Routes {
    /// Collective: how this PE reaches the others. `None` where it does so by loads and stores alone.
    pub(crate) fn choose(control: &Control, tunables: &Tunables) -> Result<Option<Self>, BuildError> {
        let kind = TransportKind::chosen(control, tunables)?;
        if !control.same_host() && kind == TransportKind::Local {
            // Every PE finds it, so this one leaves in order.
            control.depart();
            return Err(BuildError::SeveralHosts);
        }
        let near = neighbours(control)?;
        let direct = |pe| pe == control.pe() || (tunables.get(Key::P2pDisable) == 0 && near.contains(&pe));
        let route = |pe| if direct(pe) { Route::Direct } else { Route::Proxied };
        let table: Vec<_> = (0..control.npes()).map(route).collect();
        let needed = tunables.get(Key::P2pDisable) == 1 || table.contains(&Route::Proxied);
        let turn = near.iter().filter(|&&pe| pe < control.pe()).count();
        let host = near.first().copied().unwrap_or_else(|| control.pe());
        Ok(needed.then(|| Self { table, kind, turn, host, by: "local".to_owned() }))
    }

    /// The route to each PE.
    pub(crate) fn table(&self) -> &[Route] {
        &self.table
    }

    /// The first PE of this host.
    pub(crate) fn host(&self) -> u32 {
        self.host
    }

    /// What they are, in a few words.
    pub(crate) fn describe(&self) -> String {
        let proxied = self.table.iter().filter(|route| **route == Route::Proxied).count();
        let who = if proxied + 1 == self.table.len() { "every peer" } else { "peers on other hosts" };
        format!("{who} through the proxy, by {}", self.by)
    }

    /// Collective: the transport of the PE that `context` describes, whose heaps are accessed by `access`.
    ///
    /// # Safety
    /// The heaps of the PEs of this host are mapped as `context` says for as long as the transport lives, and kernels access them as
    /// `access` does.
    pub(crate) unsafe fn transport(
        &mut self,
        control: &Control,
        context: abi::Context,
        access: Arc<dyn Access>,
        tunables: &Tunables,
        emulation: Emulation,
    ) -> Result<Box<dyn Transport>, BuildError> {
        // SAFETY: the caller's promise.
        let memory = unsafe { Memory::new(context, access) };
        let mut network: Box<dyn Network> = match (emulation.faults(), self.kind) {
            (Some(faults), _) => {
                self.by = format!("a network with faults by seed {}", faults.seed);
                // SAFETY: PEs of one process are on one host.
                unsafe { faulty(control, memory.clone(), faults)? }
            }
            (None, TransportKind::Local) => {
                // SAFETY: with this transport all PEs are on one host.
                let local = unsafe { Local::new(memory) };
                return Ok(emulation.transport(local));
            }
            (None, TransportKind::Fabric) => {
                // SAFETY: the caller's promise.
                let fabric = unsafe {
                    let provider = tunables.text(TextKey::LibfabricProvider);
                    let interface = tunables.text(TextKey::SocketIfname);
                    Fabric::open(memory.clone(), provider, interface, control.same_host())?
                };
                self.by = format!("libfabric {}", fabric.port());
                Box::new(fabric)
            }
            (None, TransportKind::Verbs) => {
                let options = VerbsOptions {
                    hca: tunables.text(TextKey::IbHca),
                    turn: self.turn,
                    gid_index: tunables.text(TextKey::IbGidIndex).and_then(|index| index.parse().ok()),
                    timeout: tunables.get(Key::IbTimeout) as u8,
                    retries: tunables.get(Key::IbRetryCnt) as u8,
                };
                // SAFETY: the caller's promise.
                let verbs = unsafe { Verbs::open(memory.clone(), &options)? };
                self.by = format!("RDMA on {}", verbs.port());
                Box::new(verbs)
            }
        };
        network.connect(&control.all_gather(&network.card())?)?;
        // Found out together: what one PE's network does not reach, no peer's writes to.
        let each = control.all_gather(&[network.reach() as u8])?;
        let reach = Reach::of_all(each.iter().map(|one| one.first().copied().unwrap_or_default()));
        self.by.push_str(match reach {
            Reach::Nothing => ", staged through the host",
            Reach::Data => "",
            Reach::Atomics => ", NIC atomics",
        });
        Ok(Box::new(Shell::new(network, memory, patience(tunables), reach)))
    }
}

/// How long a peer or a GPU may take.
pub(crate) fn patience(tunables: &Tunables) -> Duration {
    match tunables.get(Key::DeadlineMs) {
        0 => Duration::MAX,
        milliseconds => Duration::from_millis(milliseconds),
    }
}

/// Collective: a network among PEs of one process that goes wrong.
///
/// # Safety
/// The heaps of all PEs are mapped.
unsafe fn faulty(control: &Control, memory: Memory, faults: Faults) -> Result<Box<dyn Network>, BuildError> {
    let pe = memory.pe();
    let commons = control.commons().ok_or(BuildError::SeveralHosts)?;
    if control.pe() == 0 {
        commons.put(Some(Arc::new(Exchange::new(control.npes()))));
    }
    control.all_gather(&[])?;
    let exchange = commons.take::<Exchange>().ok_or(BuildError::SeveralHosts)?;
    control.all_gather(&[])?;
    if control.pe() == 0 {
        commons.put(None);
    }
    // SAFETY: the caller's promise.
    let network = unsafe { InProcess::new(memory, exchange) };
    Ok(Box::new(Faulty::new(network, pe, faults)))
}
