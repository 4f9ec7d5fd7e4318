//! A port of an RDMA device, and what is opened on it.

use std::ffi::c_void;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

use rustix::fd::BorrowedFd;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::library::{self, Address, Calls, Capacity, Context, Gid, NewPair, NewShared, Opaque, Pair, PairAttributes};
use super::library::{PortAttributes, Queue, Region, Shared};
use super::{VerbsError, VerbsOptions};

/// An open port, and its objects, closed in order.
pub(super) struct Device {
    pub(super) calls: Calls,
    pub(super) name: String,
    pub(super) context: *mut Context,
    pub(super) port: u8,
    pub(super) facts: PortAttributes,
    gid_index: u8,
    pub(super) gid: Gid,
    /// Whether that is one of RoCE v2.
    is_v2: bool,
    /// The most requests of a pair, and reads that a peer may have under way at one.
    pub(super) most_requests: u32,
    /// What peers may do to a heap, and whether that is atomics too.
    pub(super) access: i32,
    pub(super) has_atomics: bool,
    pub(super) most_reads: u8,
    pub(super) queue: *mut Queue,
    pub(super) shared: *mut Shared,
    domain: *mut Opaque,
    regions: Vec<*mut Region>,
}

/// A device's list, freed again.
struct List<'c> {
    calls: &'c Calls,
    devices: *mut *mut Opaque,
    count: usize,
}

impl<'c> List<'c> {
    fn new(calls: &'c Calls) -> Self {
        let mut count = 0;
        // SAFETY: it writes the number.
        let devices = unsafe { (calls.get_device_list)(&raw mut count) };
        Self { calls, devices, count: if devices.is_null() { 0 } else { count as usize } }
    }

    fn each(&self) -> impl Iterator<Item = *mut Opaque> + '_ {
        // SAFETY: the list has so many.
        (0..self.count).map(|at| unsafe { *self.devices.add(at) })
    }
}

impl Drop for List<'_> {
    fn drop(&mut self) {
        if !self.devices.is_null() {
            // SAFETY: it came from the library, once; devices that are open stay.
            unsafe { (self.calls.free_device_list)(self.devices) };
        }
    }
}

/// A device and a port of it, as a variable names them: `mlx5_0`, or `mlx5_0:2`.
fn parse(one: &str) -> (&str, Option<u8>) {
    match one.split_once(':') {
        Some((device, port)) => (device, port.parse().ok()),
        None => (one, None),
    }
}

/// Opens the active ports that the options name, in their order or in the library's, and gives those of one PE's turn.
pub(super) fn open(options: &VerbsOptions<'_>) -> Result<Device, VerbsError> {
    let calls = Calls::load().map_err(|error| VerbsError::Library(error.to_string()))?;
    let mut found: Vec<(String, u8)> = Vec::new();
    let mut offered = Vec::new();
    for device in List::new(&calls).each() {
        // SAFETY: one of the list.
        let name = unsafe { calls.name(device) };
        for (port, is_active) in ports(&calls, device) {
            offered.push(format!("{name}:{port}{}", if is_active { "" } else { " (not active)" }));
            if is_active {
                found.push((name.clone(), port));
            }
        }
    }
    if let Some(wanted) = options.hca {
        found = wanted
            .split(',')
            .map(parse)
            .filter_map(|(name, port)| {
                found.iter().find(|(device, at)| device == name && port.is_none_or(|port| port == *at)).cloned()
            })
            .collect();
    }
    let Some((name, port)) = (!found.is_empty()).then(|| found.swap_remove(options.turn % found.len())) else {
        let wanted = options.hca.unwrap_or("any active port").to_owned();
        let offered = if offered.is_empty() { "no device".to_owned() } else { offered.join(", ") };
        return Err(VerbsError::Device { wanted, offered });
    };
    let list = List::new(&calls);
    // SAFETY: devices of the list.
    let device = list.each().find(|&device| unsafe { calls.name(device) } == name);
    // SAFETY: as above.
    let context = device.map_or(ptr::null_mut(), |device| unsafe { (calls.open_device)(device) });
    drop(list);
    if context.is_null() {
        return Err(failed("opening the device"));
    }
    let device = Device {
        calls,
        name,
        context,
        port,
        // SAFETY: integers, for which zero bytes are valid.
        facts: unsafe { std::mem::zeroed() },
        gid_index: 0,
        gid: [0; 16],
        is_v2: false,
        most_requests: 0,
        access: 0,
        has_atomics: false,
        most_reads: 0,
        queue: ptr::null_mut(),
        shared: ptr::null_mut(),
        domain: ptr::null_mut(),
        regions: Vec::new(),
    };
    device.look(options)
}

/// A device's ports, and whether each is active.
fn ports(calls: &Calls, device: *mut Opaque) -> Vec<(u8, bool)> {
    // SAFETY: the device is one of a list; what it opens is closed. The attributes are integers, for which zero bytes are valid.
    unsafe {
        let context = (calls.open_device)(device);
        if context.is_null() {
            return Vec::new();
        }
        let mut facts: library::DeviceAttributes = std::mem::zeroed();
        let known = (calls.query_device)(context, &raw mut facts) == 0;
        let ports = (1..=if known { facts.phys_port_cnt } else { 0 }).map(|port| {
            let mut facts: PortAttributes = std::mem::zeroed();
            let known = (calls.query_port)(context, port, &raw mut facts) == 0;
            (port, known && facts.state == library::PORT_ACTIVE)
        });
        let ports = ports.collect();
        (calls.close_device)(context);
        ports
    }
}

/// What the last call said, in the system's words.
fn failed(doing: &'static str) -> VerbsError {
    VerbsError::Call { doing, reason: io::Error::last_os_error().to_string() }
}

fn check(doing: &'static str, outcome: i32) -> Result<(), VerbsError> {
    if outcome == 0 {
        return Ok(());
    }
    Err(VerbsError::Call { doing, reason: io::Error::from_raw_os_error(outcome.abs()).to_string() })
}

fn opened<T>(doing: &'static str, object: *mut T) -> Result<*mut T, VerbsError> {
    if object.is_null() { Err(failed(doing)) } else { Ok(object) }
}

impl Device {
    /// Asks for what must be known of the port.
    fn look(mut self, options: &VerbsOptions<'_>) -> Result<Self, VerbsError> {
        // SAFETY: the context is open, and there is room for what is written. Integers, for which zero bytes are valid.
        let facts = unsafe {
            let mut facts: library::DeviceAttributes = std::mem::zeroed();
            check("asking for its limits", (self.calls.query_device)(self.context, &raw mut facts))?;
            let asked = (self.calls.query_port)(self.context, self.port, &raw mut self.facts);
            check("asking for its port", asked)?;
            facts
        };
        // SAFETY: the context has it open.
        let events = unsafe { BorrowedFd::borrow_raw((*self.context).async_fd) };
        fcntl_getfl(events)
            .and_then(|flags| fcntl_setfl(events, flags | OFlags::NONBLOCK))
            .map_err(|error| VerbsError::Call { doing: "asking for its events", reason: error.to_string() })?;
        (self.access, self.has_atomics) = (facts.access(), facts.has_atomics());
        self.most_requests = facts.max_qp_wr.clamp(1, super::REQUESTS) as u32;
        self.most_reads = facts.max_qp_rd_atom.min(facts.max_qp_init_rd_atom).clamp(1, super::READS.into()) as u8;
        self.gid_index = match options.gid_index {
            Some(index) => index,
            None if self.is_ethernet() => self.best_gid(),
            None => 0,
        };
        let found = self.gid_at(self.gid_index);
        (self.gid, self.is_v2) = found.ok_or_else(|| VerbsError::Gid {
            device: self.name.clone(),
            port: self.port,
            index: self.gid_index,
        })?;
        Ok(self)
    }

    pub(super) fn is_ethernet(&self) -> bool {
        self.facts.link_layer == library::LINK_LAYER_ETHERNET
    }

    /// The GID that other hosts reach best: of RoCE v2 with an IPv4 address, or else of RoCE v2 that is not link-local, or else any.
    fn best_gid(&self) -> u8 {
        let worth = |&index: &u8| {
            self.gid_at(index).map(|(gid, is_v2)| {
                let is_ipv4 = gid[..10] == [0; 10] && gid[10..12] == [0xff; 2];
                let is_local = gid[..2] == [0xfe, 0x80];
                4 * u8::from(is_v2) + 2 * u8::from(is_ipv4) + u8::from(!is_local)
            })
        };
        // Of equals the first.
        self.gids().rev().max_by_key(worth).unwrap_or(0)
    }

    /// The places that a GID may be at.
    fn gids(&self) -> impl DoubleEndedIterator<Item = u8> + use<> {
        0..self.facts.gid_tbl_len.clamp(0, i32::from(u8::MAX)) as u8
    }

    /// The GID at a place, if there is one, and whether it is of RoCE v2.
    fn gid_at(&self, index: u8) -> Option<(Gid, bool)> {
        let mut gid = [0; 16];
        // SAFETY: the context is open, and there is room for what is written.
        let asked = unsafe { (self.calls.query_gid)(self.context, self.port, i32::from(index), &raw mut gid) };
        let kind = format!("/sys/class/infiniband/{}/ports/{}/gid_attrs/types/{index}", self.name, self.port);
        let is_v2 = || fs::read_to_string(kind).is_ok_and(|kind| kind.trim() == "RoCE v2");
        (asked == 0 && gid != [0; 16]).then(|| (gid, is_v2()))
    }

    /// Looks where the port's GID is, and says whether that is another place: so it is when its address was taken away and has come back.
    pub(super) fn has_moved(&mut self) -> bool {
        let own = Some((self.gid, self.is_v2));
        if self.gid_at(self.gid_index) == own {
            return false;
        }
        let place = self.gids().find(|&index| self.gid_at(index) == own);
        self.gid_index = place.unwrap_or(self.gid_index);
        place.is_some()
    }

    /// Opens the queue that completions come to, and the receives that all pairs share.
    pub(super) fn open_queues(&mut self, completions: usize, receives: u32) -> Result<(), VerbsError> {
        // SAFETY: the context is open, each object is made of those before it, and the attributes are as the headers have them.
        unsafe {
            self.domain = opened("opening a domain", (self.calls.alloc_pd)(self.context))?;
            let queue = (self.calls.create_cq)(self.context, completions as i32, ptr::null_mut(), ptr::null_mut(), 0);
            self.queue = opened("opening a completion queue", queue)?;
            let mut new = NewShared { srq_context: ptr::null_mut(), max_wr: receives, max_sge: 1, srq_limit: 0 };
            let shared = (self.calls.create_srq)(self.domain, &raw mut new);
            self.shared = opened("opening a shared queue of receives", shared)?;
        }
        Ok(())
    }

    /// Registers memory, and gives its keys for here and for peers.
    ///
    /// # Safety
    /// So many bytes are there for as long as this is open.
    pub(super) unsafe fn register(
        &mut self,
        memory: *mut u8,
        bytes: usize,
        access: i32,
    ) -> Result<(u32, u32), VerbsError> {
        // SAFETY: the domain is open, and the memory stays, as the caller promises.
        let region = unsafe { (self.calls.reg_mr)(self.domain, memory.cast::<c_void>(), bytes, access) };
        self.registered(region).ok_or_else(|| {
            let reason = io::Error::last_os_error().to_string();
            VerbsError::Registration { bytes, reason }
        })
    }

    /// Registers a dma-buf as what lies at an address. `None` where library, device or system do not take it.
    pub(super) fn register_dma_buf(&mut self, file: &OwnedFd, address: u64, bytes: usize) -> Option<(u32, u32)> {
        let call = self.calls.reg_dmabuf_mr?;
        // SAFETY: the domain is open. The system looks at what the descriptor is, and keeps that for as long as it is registered.
        let region = unsafe { call(self.domain, 0, bytes, address, file.as_raw_fd(), self.access) };
        self.registered(region)
    }

    /// The keys of what was registered, unless nothing was.
    fn registered(&mut self, region: *mut Region) -> Option<(u32, u32)> {
        if region.is_null() {
            return None;
        }
        self.regions.push(region);
        // SAFETY: it was just registered.
        Some(unsafe { ((*region).lkey, (*region).rkey) })
    }

    /// Opens a pair of queues of one kind, in the state INIT.
    pub(super) fn open_pair(&self, kind: i32) -> Result<Ends, VerbsError> {
        let (is_datagram, shared) = (kind == library::QPT_UD, self.shared);
        let mut inline = super::INLINE;
        let pair = loop {
            let mut new = NewPair {
                qp_context: ptr::null_mut(),
                send_cq: self.queue,
                recv_cq: self.queue,
                srq: if is_datagram { ptr::null_mut() } else { shared },
                cap: Capacity {
                    max_send_wr: self.most_requests,
                    max_recv_wr: if is_datagram { self.most_requests } else { 0 },
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline_data: inline,
                },
                qp_type: kind,
                sq_sig_all: 0,
            };
            // SAFETY: domain and queues are open, and the attributes are as the headers have them.
            let pair = unsafe { (self.calls.create_qp)(self.domain, &raw mut new) };
            if !pair.is_null() || inline == 0 {
                inline = if pair.is_null() { 0 } else { new.cap.max_inline_data };
                break opened("opening a pair of queues", pair)?;
            }
            // Some devices have no room for that.
            inline /= 2;
        };
        // SAFETY: it was just opened.
        let number = unsafe { (*pair).qp_num };
        let ends = Ends { pair, number, inline, close: self.calls.destroy_qp };
        self.initialize(&ends, kind)?;
        Ok(ends)
    }

    /// Takes a pair from RESET to INIT.
    pub(super) fn initialize(&self, ends: &Ends, kind: i32) -> Result<(), VerbsError> {
        let mut new = PairAttributes { qp_state: library::QPS_INIT, port_num: self.port, ..none() };
        let mut mask = library::QP_STATE | library::QP_PKEY_INDEX | library::QP_PORT;
        if kind == library::QPT_UD {
            (new.qkey, mask) = (super::hello::KEY, mask | library::QP_QKEY);
        } else {
            (new.qp_access_flags, mask) = (self.access as u32, mask | library::QP_ACCESS_FLAGS);
        }
        self.modify(ends, new, mask, "a pair of queues, to INIT")
    }

    /// Changes the state of a pair.
    pub(super) fn modify(
        &self,
        ends: &Ends,
        mut attributes: PairAttributes,
        mask: i32,
        doing: &'static str,
    ) -> Result<(), VerbsError> {
        // SAFETY: the pair is open, and the attributes are as the headers have them.
        check(doing, unsafe { (self.calls.modify_qp)(ends.pair, &raw mut attributes, mask) })
    }

    /// Ends what a pair does: what is posted comes back, and nothing arrives any more.
    pub(super) fn end(&self, ends: &Ends) {
        let broken = PairAttributes { qp_state: library::QPS_ERR, ..none() };
        // It may have failed before.
        let _ended = self.modify(ends, broken, library::QP_STATE, "a pair of queues, to ERR");
    }

    /// How a peer's port is reached.
    pub(super) fn address(&self, lid: u16, gid: Gid) -> Address {
        Address {
            dgid: gid,
            flow_label: 0,
            sgid_index: self.gid_index,
            hop_limit: 64,
            traffic_class: 0,
            dlid: lid,
            sl: 0,
            src_path_bits: 0,
            static_rate: 0,
            is_global: u8::from(self.is_ethernet()),
            port_num: self.port,
        }
    }

    /// The same for datagrams.
    pub(super) fn way(&self, mut address: Address) -> Result<Way, VerbsError> {
        // SAFETY: the domain is open, and the attributes are as the headers have them.
        let handle = unsafe { (self.calls.create_ah)(self.domain, &raw mut address) };
        Ok(Way { handle: opened("finding the way to a peer", handle)?, close: self.calls.destroy_ah })
    }

    /// Whether the device has failed, as far as it has said since the last call.
    pub(super) fn has_failed(&self) -> bool {
        let mut failed = false;
        loop {
            let mut event = library::AsyncEvent { element: 0, event_type: 0 };
            // SAFETY: the context is open, and its descriptor does not block. What was got is given back.
            unsafe {
                if (self.calls.get_async_event)(self.context, &raw mut event) != 0 {
                    return failed;
                }
                (self.calls.ack_async_event)(&raw mut event);
            }
            let fatal = [library::EVENT_CQ_ERR, library::EVENT_SRQ_ERR, library::EVENT_DEVICE_FATAL];
            failed |= fatal.contains(&event.event_type);
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: each is open or null, and is closed once, after what was made of it: who has pairs and ways lets go of them before.
        unsafe {
            if !self.shared.is_null() {
                (self.calls.destroy_srq)(self.shared);
            }
            if !self.queue.is_null() {
                (self.calls.destroy_cq)(self.queue);
            }
            for &region in &self.regions {
                (self.calls.dereg_mr)(region);
            }
            if !self.domain.is_null() {
                (self.calls.dealloc_pd)(self.domain);
            }
            (self.calls.close_device)(self.context);
        }
    }
}

/// A pair of queues, and how much of a request lies in itself. Closed before its device.
pub(super) struct Ends {
    pub(super) pair: *mut Pair,
    pub(super) number: u32,
    pub(super) inline: u32,
    close: unsafe extern "C" fn(*mut Pair) -> i32,
}

impl Drop for Ends {
    fn drop(&mut self) {
        // SAFETY: it is open, and closed once.
        let _closed = unsafe { (self.close)(self.pair) };
    }
}

/// How datagrams find a peer. Closed before its device.
pub(super) struct Way {
    pub(super) handle: *mut Opaque,
    close: unsafe extern "C" fn(*mut Opaque) -> i32,
}

impl Drop for Way {
    fn drop(&mut self) {
        // SAFETY: it is open, and closed once.
        let _closed = unsafe { (self.close)(self.handle) };
    }
}

/// Attributes of which none is set.
pub(super) fn none() -> PairAttributes {
    // SAFETY: integers, for which zero bytes are valid.
    unsafe { std::mem::zeroed() }
}
