//! The library's objects behind an endpoint: which endpoint is chosen, how it is opened, and what is registered with it.

use std::ffi::{CStr, CString};
use std::ptr;

use super::library::{self, Addresses, Calls, Domain, Endpoint, FabricObject, Fid, Info, Queue, Region};
use super::{FabricError, RECEIVES, SENDS};
use crate::Shell;

/// The interface that reaches this host alone.
const LOOPBACK: &str = "lo";
/// How often an endpoint is opened: the library binds it to a free port and listens later, and somebody else may listen there by then.
const TRIES: usize = 8;

/// The library's objects, closed in order. One that is not open is null; the regions are, until they are registered.
pub(super) struct Objects {
    calls: Calls,
    info: *mut Info,
    fabric: *mut FabricObject,
    domain: *mut Domain,
    pub(super) queue: *mut Queue,
    pub(super) addresses: *mut Addresses,
    pub(super) region: *mut Region,
    pub(super) buffers_region: *mut Region,
    pub(super) endpoint: *mut Endpoint,
}

impl Drop for Objects {
    fn drop(&mut self) {
        let mut all: [*mut Fid; 7] = [
            self.endpoint.cast(),
            self.buffers_region.cast(),
            self.region.cast(),
            self.addresses.cast(),
            self.queue.cast(),
            self.domain.cast(),
            self.fabric.cast(),
        ];
        if self.binds_regions() {
            // They are closed before the endpoint.
            all.swap(0, 2);
        }
        for object in all.into_iter().filter(|object| !object.is_null()) {
            // SAFETY: each was opened, begins with its Fid, and is closed once, before what it was made of.
            let _closed = unsafe { ((*(*object).ops).close)(object) };
        }
        if !self.info.is_null() {
            // SAFETY: it came from the library, once.
            unsafe { (self.calls.freeinfo)(self.info) };
        }
    }
}

impl Objects {
    /// Opens an endpoint, and what it stands on, of the provider that [`Fabric::open`](super::Fabric::open) says.
    pub(super) fn open(
        provider: &str,
        interface: Option<&str>,
        same_host: bool,
        npes: u32,
    ) -> Result<Self, FabricError> {
        let mut objects = Self {
            calls: load()?,
            info: ptr::null_mut(),
            fabric: ptr::null_mut(),
            domain: ptr::null_mut(),
            queue: ptr::null_mut(),
            addresses: ptr::null_mut(),
            region: ptr::null_mut(),
            buffers_region: ptr::null_mut(),
            endpoint: ptr::null_mut(),
        };
        objects.info = choose(&objects.calls, provider, interface, same_host)?;
        // SAFETY: the info is the library's, and nothing else is open.
        unsafe { objects.open_all(npes)? };
        Ok(objects)
    }

    /// The interface that the endpoint is on.
    pub(super) fn interface(&self) -> String {
        // SAFETY: the attributes are the library's, which lives as long as this.
        unsafe { text((*(*self.info).domain_attr).name) }
    }

    /// Whether peers name a place in a region by its address, not by its distance from the region's begin.
    pub(super) fn is_by_address(&self) -> bool {
        // SAFETY: as above.
        unsafe { (*(*self.info).domain_attr).mr_mode & library::MR_VIRT_ADDR != 0 }
    }

    /// How many bytes of a number a write carries to its peer's completion queue.
    pub(super) fn carried(&self) -> usize {
        // SAFETY: as above.
        unsafe { (*(*self.info).domain_attr).cq_data_size }
    }

    /// Whether memory is registered with the endpoint.
    fn binds_regions(&self) -> bool {
        // SAFETY: an info that is there is the library's, with attributes.
        !self.info.is_null() && unsafe { (*(*self.info).domain_attr).mr_mode & library::MR_ENDPOINT != 0 }
    }

    pub(super) fn check(&self, doing: &'static str, outcome: i32) -> Result<(), FabricError> {
        if outcome == 0 {
            return Ok(());
        }
        Err(FabricError::Call { doing, reason: self.calls.explain(outcome as isize) })
    }

    /// Opens everything.
    ///
    /// # Safety
    /// `info` is the library's, and nothing else is open.
    unsafe fn open_all(&mut self, npes: u32) -> Result<(), FabricError> {
        // SAFETY: each object is opened from those before it, which are open, with attributes as the headers have them; the
        // pointers to tables are the library's own, set when it opened the object.
        unsafe {
            let info = self.info;
            let opened = (self.calls.fabric)((*info).fabric_attr, &raw mut self.fabric, ptr::null_mut());
            self.check("opening a fabric", opened)?;
            let opened = ((*(*self.fabric).ops).domain)(self.fabric, info, &raw mut self.domain, ptr::null_mut());
            self.check("opening a domain", opened)?;
            let ops = (*self.domain).ops;
            let mut attributes = library::QueueAttributes {
                size: 2 * (RECEIVES + SENDS),
                flags: 0,
                format: library::CQ_FORMAT_DATA,
                wait_obj: 0,
                signaling_vector: 0,
                wait_cond: 0,
                wait_set: ptr::null_mut(),
            };
            let opened = ((*ops).cq_open)(self.domain, &raw mut attributes, &raw mut self.queue, ptr::null_mut());
            self.check("opening a completion queue", opened)?;
            let mut attributes = library::AddressAttributes {
                kind: library::AV_TABLE,
                rx_ctx_bits: 0,
                count: npes as usize,
                ep_per_node: 0,
                name: ptr::null_mut(),
                map_addr: ptr::null_mut(),
                flags: 0,
            };
            let opened = ((*ops).av_open)(self.domain, &raw mut attributes, &raw mut self.addresses, ptr::null_mut());
            self.check("opening a table of addresses", opened)?;
            let mut enabled = 0;
            for _ in 0..TRIES {
                enabled = self.open_endpoint()?;
                if enabled != -library::EADDRINUSE {
                    break;
                }
            }
            self.check("enabling an endpoint", enabled)
        }
    }

    /// Registers memory, by this key where the provider has none of its own.
    ///
    /// # Safety
    /// The memory is mapped for as long as the region is open.
    pub(super) unsafe fn register(
        &self,
        at: *mut u8,
        bytes: u64,
        access: u64,
        key: u64,
    ) -> Result<*mut Region, FabricError> {
        // SAFETY: domain and endpoint are open since `open`, and the memory is mapped, as the caller says. A region that is of no use is
        // closed again, once.
        unsafe {
            let (reg, domain) = ((*(*self.domain).mr).reg, self.domain.cast());
            let mut region = ptr::null_mut();
            let opened = reg(domain, at.cast(), bytes as usize, access, 0, key, 0, &raw mut region, ptr::null_mut());
            self.check("registering memory", opened)?;
            if self.binds_regions() {
                let ops = (*region).fid.ops;
                let mut enabled = ((*ops).bind)(region.cast(), self.endpoint.cast(), 0);
                if enabled == 0 {
                    enabled = ((*ops).control)(region.cast(), library::ENABLE, ptr::null_mut());
                }
                if enabled != 0 {
                    let _closed = ((*ops).close)(region.cast());
                }
                self.check("registering memory with an endpoint", enabled)?;
            }
            Ok(region)
        }
    }

    /// Opens the endpoint, and gives what the library says of enabling it. Where its port was taken, it is closed again.
    ///
    /// # Safety
    /// Fabric, domain, queue and table of addresses are open, and there is no endpoint.
    unsafe fn open_endpoint(&mut self) -> Result<i32, FabricError> {
        // SAFETY: as the caller says, with attributes as the headers have them. What is closed is not used again.
        unsafe {
            let ops = (*self.domain).ops;
            let opened = ((*ops).endpoint)(self.domain, self.info, &raw mut self.endpoint, ptr::null_mut());
            self.check("opening an endpoint", opened)?;
            let endpoint: *mut Fid = self.endpoint.cast();
            let (bind, control, close) =
                ((*(*endpoint).ops).bind, (*(*endpoint).ops).control, (*(*endpoint).ops).close);
            self.check("binding", bind(endpoint, self.addresses.cast(), 0))?;
            self.check("binding", bind(endpoint, self.queue.cast(), library::TRANSMIT | library::RECV))?;
            let enabled = control(endpoint, library::ENABLE, ptr::null_mut());
            if enabled == -library::EADDRINUSE {
                self.endpoint = ptr::null_mut();
                self.check("closing an endpoint", close(endpoint))?;
            }
            Ok(enabled)
        }
    }
}

/// The library, where it is installed.
pub(super) fn load() -> Result<Calls, FabricError> {
    Calls::load().map_err(|error| FabricError::Library(error.to_string()))
}

/// Asks the library for endpoints that do what is needed, and gives the one on the interface.
fn choose(calls: &Calls, provider: &str, interface: Option<&str>, same_host: bool) -> Result<*mut Info, FabricError> {
    let name = CString::new(provider)
        .map_err(|error| FabricError::Provider { provider: provider.to_owned(), reason: error.to_string() })?;
    // SAFETY: an info without a source is a fresh one, with attributes; the provider's name is taken out again before it is freed,
    // since the library would free it, too. Lists and texts in them are the library's until freed, and what is kept is a copy.
    unsafe {
        let hints = (calls.dupinfo)(ptr::null());
        if hints.is_null() {
            return Err(FabricError::Call { doing: "asking for endpoints", reason: "no memory".into() });
        }
        (*hints).caps = library::MSG | library::RMA;
        (*hints).mode = library::CONTEXTS;
        (*(*hints).ep_attr).kind = library::EP_RDM;
        (*(*hints).domain_attr).threading = library::THREAD_DOMAIN;
        (*(*hints).domain_attr).mr_mode = library::MR_LOCAL
            | library::MR_VIRT_ADDR
            | library::MR_ALLOCATED
            | library::MR_PROV_KEY
            | library::MR_ENDPOINT;
        (*(*hints).fabric_attr).prov_name = name.as_ptr().cast_mut();
        let mut list = ptr::null_mut();
        let found = (calls.getinfo)(library::VERSION, ptr::null(), ptr::null(), 0, hints, &raw mut list);
        (*(*hints).fabric_attr).prov_name = ptr::null_mut();
        (calls.freeinfo)(hints);
        if found != 0 {
            let reason = calls.explain(found as isize);
            return Err(FabricError::Provider { provider: provider.to_owned(), reason });
        }
        let (mut offered, mut chosen, mut next) = (Vec::new(), ptr::null_mut::<Info>(), list);
        let mut loops = ptr::null_mut::<Info>();
        while !next.is_null() {
            let name = text((*(*next).domain_attr).name);
            // Of a network that has addresses of both kinds, the one with shorter ones.
            let fits =
                (*next).addr_format != library::SOCKADDR_IN6 && (*(*next).ep_attr).max_msg_size >= Shell::MESSAGE;
            if fits && interface.is_none_or(|wanted| wanted == name) {
                let place = if name == LOOPBACK { &mut loops } else { &mut chosen };
                *place = if place.is_null() { next } else { *place };
            }
            if fits && !offered.contains(&name) {
                offered.push(name);
            }
            next = (*next).next;
        }
        chosen = if chosen.is_null() && (same_host || interface.is_some()) { loops } else { chosen };
        if !chosen.is_null() {
            chosen = (calls.dupinfo)(chosen);
        }
        (calls.freeinfo)(list);
        if chosen.is_null() {
            let wanted = interface.unwrap_or("any that leads to other hosts").to_owned();
            let provider = provider.split(';').next().unwrap_or_default().to_owned();
            return Err(FabricError::Interface { provider, wanted, offered: offered.join(", ") });
        }
        Ok(chosen)
    }
}

/// A text of the library's.
///
/// # Safety
/// It is null, or a text.
unsafe fn text(text: *const std::ffi::c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
