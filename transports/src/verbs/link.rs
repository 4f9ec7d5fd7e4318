//! A connection to a peer: what PEs tell each other when they start, and how it is made anew when it has failed.

use std::collections::VecDeque;

use congruent_heap::Pe;

use super::device::{self, Device, Ends, Way};
use super::hello::Hello;
use super::library::{self, Address, Gid, PairAttributes};
use super::requests::Queued;
use super::{Verbs, VerbsError};
use crate::Reconnect;

/// A connection to a peer.
pub(super) struct Link {
    pub(super) ends: Ends,
    /// The slots of its requests that have not ended, in order, the last of which are still to be given to the device.
    pub(super) under_way: VecDeque<usize>,
    pub(super) queued: Vec<Queued>,
    /// Whether the last one has more parts, which nothing may come before.
    pub(super) is_in_parts: bool,
    /// How often it was made anew.
    epoch: u32,
    pub(super) state: LinkState,
    /// The peer's hello of a later epoch, which asks for a new connection.
    asked: Option<Hello>,
    pub(super) port: Option<RemotePort>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LinkState {
    Connected,
    /// Failed: it waits for what was posted, and for the shell to know.
    Broken,
    /// It has new ends, and waits for the peer's.
    Offered,
}

/// Where a peer is, and what it lets be done.
pub(super) struct RemotePort {
    address: Address,
    way: Way,
    hello_pair: u32,
    mtu: i32,
    reads: u8,
    pub(super) key: u32,
    pub(super) base: u64,
}

impl Link {
    /// One whose peer is not known yet.
    pub(super) fn new(ends: Ends) -> Self {
        Self {
            ends,
            under_way: VecDeque::new(),
            queued: Vec::new(),
            is_in_parts: false,
            epoch: 0,
            state: LinkState::Connected,
            asked: None,
            port: None,
        }
    }
}

impl Verbs {
    /// What peers must know: where this port is, what it lets be done, and the ends of the connections to each PE.
    pub(super) fn own_card(&self) -> Vec<u8> {
        let facts = &self.device.facts;
        let mut card = Vec::new();
        card.extend(self.base.to_le_bytes());
        card.extend(self.keys.map_or(0, |(_, key)| key).to_le_bytes());
        card.extend(self.hellos.number().to_le_bytes());
        card.extend(facts.lid.to_le_bytes());
        card.extend([facts.active_mtu as u8, self.device.most_reads]);
        card.extend(self.device.gid);
        for link in &self.links {
            card.extend(link.as_ref().map_or(0, |link| link.ends.number).to_le_bytes());
        }
        card
    }

    /// Connects to the peer whose card this is, or says why not.
    pub(super) fn join(&mut self, pe: usize, card: &[u8]) -> Result<(), String> {
        let own = self.memory.pe().raw() as usize;
        let RemoteCard { base, key, hello_pair, lid, mtu, reads, gid, pair } =
            read_card(card, own).ok_or("its address cannot be read")?;
        let Some(link) = self.links.get_mut(pe).and_then(Option::as_mut) else { return Ok(()) };
        let address = self.device.address(lid, gid);
        let way = self.device.way(address).map_err(|error| error.to_string())?;
        let port = link.port.insert(RemotePort { address, way, hello_pair, mtu, reads, key, base });
        connect(&self.device, &link.ends, port, pair, self.tries).map_err(|error| error.to_string())
    }

    /// Opens the connection to this PE itself, by which its own atomics go, unless it is open. False where that cannot be.
    pub(super) fn has_own_link(&mut self) -> bool {
        let own = self.memory.pe().index();
        if self.links[own].is_none() {
            let Ok(ends) = self.device.open_pair(library::QPT_RC) else { return false };
            self.links[own] = Some(Link::new(ends));
            let card = self.own_card();
            if self.join(own, &card).is_err() {
                self.links[own] = None;
                return false;
            }
        }
        true
    }

    /// How far a failed connection is from being made anew. It is asked again and again.
    pub(super) fn renewed(&mut self, peer: Pe) -> Reconnect {
        let Some(link) = self.links.get(peer.index()).and_then(Option::as_ref) else { return Reconnect::Impossible };
        match link.state {
            LinkState::Connected => return Reconnect::Done,
            LinkState::Broken if !link.under_way.is_empty() => {}
            LinkState::Broken => {
                if !self.renew(peer.raw()) {
                    return Reconnect::Impossible;
                }
            }
            LinkState::Offered => {
                if self.hellos.is_time() {
                    self.greet(peer.raw());
                }
            }
        }
        Reconnect::UnderWay
    }

    /// Makes a broken connection anew where its peer has asked for that, and all that was posted has come back.
    pub(super) fn answer_if_drained(&mut self, peer: u32) {
        let is_drained = |link: &Link| link.state == LinkState::Broken && link.under_way.is_empty();
        if self.links[peer as usize].as_ref().is_some_and(|link| is_drained(link) && link.asked.is_some()) {
            // Where no ends can be opened, the shell asks again.
            let _renewed = self.renew(peer);
        }
    }

    /// Hears what a peer says of its connection to this PE.
    pub(super) fn greeted(&mut self, hello: Hello) {
        let Some(link) = self.links.get_mut(hello.from as usize).and_then(Option::as_mut) else { return };
        if hello.epoch < link.epoch {
            return;
        }
        match link.state {
            // It has not heard of this one's.
            LinkState::Connected if hello.epoch == link.epoch && hello.asks => self.greet(hello.from),
            LinkState::Offered if hello.epoch == link.epoch => self.meet(hello),
            _ if hello.epoch > link.epoch => {
                link.asked = Some(hello);
                self.break_link(hello.from);
                self.answer_if_drained(hello.from);
            }
            _ => {}
        }
    }

    /// Gives a failed connection new ends, and tells the peer. False where none can be opened.
    fn renew(&mut self, peer: u32) -> bool {
        let Ok(ends) = self.device.open_pair(library::QPT_RC) else { return false };
        let Some(link) = &mut self.links[peer as usize] else { return false };
        // From here on nothing arrives by the old ones.
        self.device.end(&link.ends);
        self.replaced.push(std::mem::replace(&mut link.ends, ends));
        let asked = link.asked.take().filter(|hello| hello.epoch > link.epoch);
        link.epoch = asked.map_or(link.epoch + 1, |hello| hello.epoch);
        link.state = LinkState::Offered;
        match asked {
            Some(hello) => self.meet(hello),
            None => self.greet(peer),
        }
        true
    }

    /// Connects the new ends to a peer's, and tells it of these.
    fn meet(&mut self, hello: Hello) {
        self.follow_gid();
        let Some(link) = &mut self.links[hello.from as usize] else { return };
        let Some(port) = &link.port else { return };
        // Where that fails, the shell's patience ends.
        if connect(&self.device, &link.ends, port, hello.pair, self.tries).is_ok() {
            link.state = LinkState::Connected;
        }
        self.greet(hello.from);
    }

    /// Has what is said from here on, and new connections, come from where this port's GID is now.
    fn follow_gid(&mut self) {
        // Ways that datagrams under way have stay open.
        if self.hellos.is_saying() || !self.device.has_moved() {
            return;
        }
        for port in self.links.iter_mut().flatten().filter_map(|link| link.port.as_mut()) {
            port.address = self.device.address(port.address.dlid, port.address.dgid);
            if let Ok(way) = self.device.way(port.address) {
                port.way = way;
            }
        }
    }

    /// Tells a peer of the ends of this epoch, and asks for its own until they are known.
    fn greet(&mut self, peer: u32) {
        self.follow_gid();
        let Some(link) = &self.links[peer as usize] else { return };
        let Some(port) = &link.port else { return };
        let asks = link.state != LinkState::Connected;
        let hello = Hello { from: self.memory.pe().raw(), epoch: link.epoch, pair: link.ends.number, asks };
        self.hellos.say(&self.device, &port.way, port.hello_pair, hello);
    }
}

/// Takes a pair from INIT to RTS, joined with a peer's.
fn connect(
    device: &Device,
    ends: &Ends,
    port: &RemotePort,
    pair: u32,
    (timeout, retries): (u8, u8),
) -> Result<(), VerbsError> {
    let ready = PairAttributes {
        qp_state: library::QPS_RTR,
        path_mtu: device.facts.active_mtu.min(port.mtu),
        dest_qp_num: pair,
        rq_psn: first_number(pair, ends.number),
        ah_attr: port.address,
        max_dest_rd_atomic: device.most_reads,
        // 0.64 ms.
        min_rnr_timer: 12,
        ..device::none()
    };
    let mask = library::QP_STATE
        | library::QP_AV
        | library::QP_PATH_MTU
        | library::QP_DEST_QPN
        | library::QP_RQ_PSN
        | library::QP_MAX_DEST_RD_ATOMIC
        | library::QP_MIN_RNR_TIMER;
    device.modify(ends, ready, mask, "a pair of queues, to RTR")?;
    let ready = PairAttributes {
        qp_state: library::QPS_RTS,
        sq_psn: first_number(ends.number, pair),
        timeout,
        retry_cnt: retries,
        // Without end: a peer that polls has room again, and one that does not is given up by the shell.
        rnr_retry: 7,
        max_rd_atomic: device.most_reads.min(port.reads),
        ..device::none()
    };
    let mask = library::QP_STATE
        | library::QP_SQ_PSN
        | library::QP_TIMEOUT
        | library::QP_RETRY_CNT
        | library::QP_RNR_RETRY
        | library::QP_MAX_QP_RD_ATOMIC;
    device.modify(ends, ready, mask, "a pair of queues, to RTS")
}

/// The number of the first packet from one end to another. Other ends have other ones, so that packets of an earlier connection are not taken.
fn first_number(from: u32, to: u32) -> u32 {
    (from.wrapping_mul(0x9e37_79b1) ^ to.wrapping_mul(0x85eb_ca6b)) >> 8
}

/// What a card says.
struct RemoteCard {
    base: u64,
    key: u32,
    hello_pair: u32,
    lid: u16,
    mtu: i32,
    reads: u8,
    gid: Gid,
    /// The end of the connection to this PE.
    pair: u32,
}

fn read_card(card: &[u8], own: usize) -> Option<RemoteCard> {
    let (base, rest) = card.split_first_chunk()?;
    let (key, rest) = rest.split_first_chunk()?;
    let (hello_pair, rest) = rest.split_first_chunk()?;
    let (lid, rest) = rest.split_first_chunk()?;
    let (&[mtu, reads], rest) = rest.split_first_chunk()?;
    let (&gid, pairs) = rest.split_first_chunk()?;
    let (pair, _) = pairs.get(4 * own..)?.split_first_chunk()?;
    Some(RemoteCard {
        base: u64::from_le_bytes(*base),
        key: u32::from_le_bytes(*key),
        hello_pair: u32::from_le_bytes(*hello_pair),
        lid: u16::from_le_bytes(*lid),
        mtu: mtu.into(),
        reads,
        gid,
        pair: u32::from_le_bytes(*pair),
    })
}
