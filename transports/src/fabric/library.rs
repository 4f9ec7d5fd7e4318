//! What is used of libfabric's C interface, as its headers have it, and the library itself, loaded when it is asked for.
//!
//! Most of that interface is inline functions over tables of pointers, so the tables are here. Pointers to functions that are not
//! called are addresses. A test compares offsets, sizes and constants with what a C compiler makes of the headers.

use std::ffi::{CStr, c_char, c_int, c_void};

use libloading::Library;

/// `fid_t`: what every object begins with.
#[repr(C)]
pub(super) struct Fid {
    pub(super) fclass: usize,
    pub(super) context: *mut c_void,
    pub(super) ops: *const FidOps,
}

/// `struct fi_ops`.
#[repr(C)]
pub(super) struct FidOps {
    pub(super) size: usize,
    pub(super) close: unsafe extern "C" fn(*mut Fid) -> c_int,
    pub(super) bind: unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int,
    pub(super) control: unsafe extern "C" fn(*mut Fid, c_int, *mut c_void) -> c_int,
}

/// `struct fi_info`.
#[repr(C)]
pub(super) struct Info {
    pub(super) next: *mut Info,
    pub(super) caps: u64,
    pub(super) mode: u64,
    pub(super) addr_format: u32,
    pub(super) src_addrlen: usize,
    pub(super) dest_addrlen: usize,
    pub(super) src_addr: *mut c_void,
    pub(super) dest_addr: *mut c_void,
    pub(super) handle: *mut Fid,
    pub(super) tx_attr: *mut c_void,
    pub(super) rx_attr: *mut c_void,
    pub(super) ep_attr: *mut EndpointAttributes,
    pub(super) domain_attr: *mut DomainAttributes,
    pub(super) fabric_attr: *mut FabricAttributes,
}

/// The beginning of `struct fi_ep_attr`.
#[repr(C)]
pub(super) struct EndpointAttributes {
    pub(super) kind: c_int,
    pub(super) protocol: u32,
    pub(super) protocol_version: u32,
    pub(super) max_msg_size: usize,
}

/// The beginning of `struct fi_domain_attr`.
#[repr(C)]
pub(super) struct DomainAttributes {
    pub(super) domain: *mut c_void,
    pub(super) name: *mut c_char,
    pub(super) threading: c_int,
    pub(super) control_progress: c_int,
    pub(super) data_progress: c_int,
    pub(super) resource_mgmt: c_int,
    pub(super) av_type: c_int,
    pub(super) mr_mode: c_int,
    pub(super) mr_key_size: usize,
    pub(super) cq_data_size: usize,
}

/// The beginning of `struct fi_fabric_attr`.
#[repr(C)]
pub(super) struct FabricAttributes {
    pub(super) fabric: *mut c_void,
    pub(super) name: *mut c_char,
    pub(super) prov_name: *mut c_char,
}

/// `struct fid_fabric`.
#[repr(C)]
pub(super) struct FabricObject {
    pub(super) fid: Fid,
    pub(super) ops: *const FabricOps,
}

/// `struct fi_ops_fabric`.
#[repr(C)]
pub(super) struct FabricOps {
    pub(super) size: usize,
    pub(super) domain: unsafe extern "C" fn(*mut FabricObject, *mut Info, *mut *mut Domain, *mut c_void) -> c_int,
}

/// `struct fid_domain`.
#[repr(C)]
pub(super) struct Domain {
    pub(super) fid: Fid,
    pub(super) ops: *const DomainOps,
    pub(super) mr: *const MemoryOps,
}

/// `struct fi_ops_domain`.
#[repr(C)]
pub(super) struct DomainOps {
    pub(super) size: usize,
    pub(super) av_open:
        unsafe extern "C" fn(*mut Domain, *mut AddressAttributes, *mut *mut Addresses, *mut c_void) -> c_int,
    pub(super) cq_open: unsafe extern "C" fn(*mut Domain, *mut QueueAttributes, *mut *mut Queue, *mut c_void) -> c_int,
    pub(super) endpoint: unsafe extern "C" fn(*mut Domain, *mut Info, *mut *mut Endpoint, *mut c_void) -> c_int,
}

/// `struct fi_ops_mr`.
#[repr(C)]
pub(super) struct MemoryOps {
    pub(super) size: usize,
    pub(super) reg: unsafe extern "C" fn(
        *mut Fid,
        *const c_void,
        usize,
        u64,
        u64,
        u64,
        u64,
        *mut *mut Region,
        *mut c_void,
    ) -> c_int,
}

/// `struct fid_mr`.
#[repr(C)]
pub(super) struct Region {
    pub(super) fid: Fid,
    pub(super) mem_desc: *mut c_void,
    pub(super) key: u64,
}

/// `struct fi_av_attr`.
#[repr(C)]
pub(super) struct AddressAttributes {
    pub(super) kind: c_int,
    pub(super) rx_ctx_bits: c_int,
    pub(super) count: usize,
    pub(super) ep_per_node: usize,
    pub(super) name: *const c_char,
    pub(super) map_addr: *mut c_void,
    pub(super) flags: u64,
}

/// `struct fid_av`.
#[repr(C)]
pub(super) struct Addresses {
    pub(super) fid: Fid,
    pub(super) ops: *const AddressOps,
}

/// `struct fi_ops_av`.
#[repr(C)]
pub(super) struct AddressOps {
    pub(super) size: usize,
    pub(super) insert: unsafe extern "C" fn(*mut Addresses, *const c_void, usize, *mut u64, u64, *mut c_void) -> c_int,
}

/// `struct fi_cq_attr`.
#[repr(C)]
pub(super) struct QueueAttributes {
    pub(super) size: usize,
    pub(super) flags: u64,
    pub(super) format: c_int,
    pub(super) wait_obj: c_int,
    pub(super) signaling_vector: c_int,
    pub(super) wait_cond: c_int,
    pub(super) wait_set: *mut c_void,
}

/// `struct fid_cq`.
#[repr(C)]
pub(super) struct Queue {
    pub(super) fid: Fid,
    pub(super) ops: *const QueueOps,
}

/// `struct fi_ops_cq`.
#[repr(C)]
pub(super) struct QueueOps {
    pub(super) size: usize,
    pub(super) read: unsafe extern "C" fn(*mut Queue, *mut c_void, usize) -> isize,
    pub(super) readfrom: usize,
    pub(super) readerr: unsafe extern "C" fn(*mut Queue, *mut QueueError, u64) -> isize,
}

/// `struct fi_cq_data_entry`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct QueueEntry {
    pub(super) context: *mut c_void,
    pub(super) flags: u64,
    pub(super) len: usize,
    pub(super) buf: *mut c_void,
    pub(super) data: u64,
}

/// `struct fi_cq_err_entry`.
#[repr(C)]
pub(super) struct QueueError {
    pub(super) context: *mut c_void,
    pub(super) flags: u64,
    pub(super) len: usize,
    pub(super) buf: *mut c_void,
    pub(super) data: u64,
    pub(super) tag: u64,
    pub(super) olen: usize,
    pub(super) err: c_int,
    pub(super) prov_errno: c_int,
    pub(super) err_data: *mut c_void,
    pub(super) err_data_size: usize,
    /// Newer libraries write more.
    pub(super) room: [u64; 8],
}

/// `struct fid_ep`.
#[repr(C)]
pub(super) struct Endpoint {
    pub(super) fid: Fid,
    pub(super) ops: *const c_void,
    pub(super) cm: *const NameOps,
    pub(super) msg: *const MessageOps,
    pub(super) rma: *const RemoteOps,
}

/// The beginning of `struct fi_ops_cm`.
#[repr(C)]
pub(super) struct NameOps {
    pub(super) size: usize,
    pub(super) setname: usize,
    pub(super) getname: unsafe extern "C" fn(*mut Fid, *mut c_void, *mut usize) -> c_int,
}

/// The beginning of `struct fi_ops_msg`.
#[repr(C)]
pub(super) struct MessageOps {
    pub(super) size: usize,
    pub(super) recv: unsafe extern "C" fn(*mut Endpoint, *mut c_void, usize, *mut c_void, u64, *mut c_void) -> isize,
    pub(super) recvv: usize,
    pub(super) recvmsg: usize,
    pub(super) send: unsafe extern "C" fn(*mut Endpoint, *const c_void, usize, *mut c_void, u64, *mut c_void) -> isize,
}

/// The beginning of `struct fi_ops_rma`.
#[repr(C)]
pub(super) struct RemoteOps {
    pub(super) size: usize,
    pub(super) read:
        unsafe extern "C" fn(*mut Endpoint, *mut c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> isize,
    pub(super) readv: usize,
    pub(super) readmsg: usize,
    pub(super) write: usize,
    pub(super) writev: usize,
    pub(super) writemsg: unsafe extern "C" fn(*mut Endpoint, *const RemoteMessage, u64) -> isize,
}

/// `struct fi_msg_rma`.
#[repr(C)]
pub(super) struct RemoteMessage {
    pub(super) msg_iov: *const Span,
    pub(super) desc: *mut *mut c_void,
    pub(super) iov_count: usize,
    pub(super) addr: u64,
    pub(super) rma_iov: *const RemoteSpan,
    pub(super) rma_iov_count: usize,
    pub(super) context: *mut c_void,
    pub(super) data: u64,
}

/// `struct iovec`.
#[repr(C)]
pub(super) struct Span {
    pub(super) base: *mut c_void,
    pub(super) len: usize,
}

/// `struct fi_rma_iov`.
#[repr(C)]
pub(super) struct RemoteSpan {
    pub(super) addr: u64,
    pub(super) len: usize,
    pub(super) key: u64,
}

/// `FI_VERSION(1, 11)`: what every library since 2020 offers.
pub(super) const VERSION: u32 = 1 << 16 | 11;
pub(super) const MSG: u64 = 1 << 1;
pub(super) const RMA: u64 = 1 << 2;
pub(super) const READ: u64 = 1 << 8;
pub(super) const WRITE: u64 = 1 << 9;
pub(super) const RECV: u64 = 1 << 10;
pub(super) const TRANSMIT: u64 = 1 << 11;
pub(super) const REMOTE_READ: u64 = 1 << 12;
pub(super) const REMOTE_WRITE: u64 = 1 << 13;
pub(super) const REMOTE_CQ_DATA: u64 = 1 << 17;
pub(super) const COMPLETION: u64 = 1 << 24;
pub(super) const DELIVERY_COMPLETE: u64 = 1 << 28;
/// `FI_CONTEXT` and `FI_CONTEXT2`: a context has room for the library.
pub(super) const CONTEXTS: u64 = 1 << 59 | 1 << 52;
pub(super) const EP_RDM: c_int = 3;
pub(super) const SOCKADDR_IN6: u32 = 3;
pub(super) const MR_LOCAL: c_int = 1 << 2;
pub(super) const MR_VIRT_ADDR: c_int = 1 << 4;
pub(super) const MR_ALLOCATED: c_int = 1 << 5;
pub(super) const MR_PROV_KEY: c_int = 1 << 6;
pub(super) const MR_ENDPOINT: c_int = 1 << 9;
pub(super) const THREAD_DOMAIN: c_int = 3;
pub(super) const CQ_FORMAT_DATA: c_int = 3;
pub(super) const AV_TABLE: c_int = 2;
pub(super) const ENABLE: c_int = 6;
pub(super) const ADDR_UNSPEC: u64 = u64::MAX;
pub(super) const EAGAIN: isize = 11;
pub(super) const EOPNOTSUPP: isize = 95;
pub(super) const EADDRINUSE: c_int = 98;
pub(super) const EAVAIL: isize = 259;

/// The functions that the library exports.
pub(super) struct Calls {
    pub(super) getinfo:
        unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const Info, *mut *mut Info) -> c_int,
    pub(super) freeinfo: unsafe extern "C" fn(*mut Info),
    pub(super) dupinfo: unsafe extern "C" fn(*const Info) -> *mut Info,
    pub(super) fabric: unsafe extern "C" fn(*mut FabricAttributes, *mut *mut FabricObject, *mut c_void) -> c_int,
    strerror: unsafe extern "C" fn(c_int) -> *const c_char,
}

impl Calls {
    /// Loads the library.
    pub(super) fn load() -> Result<Self, libloading::Error> {
        // SAFETY: libfabric's initializers look at the system and the environment, and ask nothing of who loads it. The functions
        // have the types that its headers give them, and the library stays loaded.
        unsafe {
            // Its providers leave functions to be called when threads and the process end.
            let library = std::mem::ManuallyDrop::new(Library::new("libfabric.so.1")?);
            Ok(Self {
                getinfo: *library.get(b"fi_getinfo\0")?,
                freeinfo: *library.get(b"fi_freeinfo\0")?,
                dupinfo: *library.get(b"fi_dupinfo\0")?,
                fabric: *library.get(b"fi_fabric\0")?,
                strerror: *library.get(b"fi_strerror\0")?,
            })
        }
    }

    /// What an error means, in the library's words.
    pub(super) fn explain(&self, error: isize) -> String {
        // SAFETY: it takes any number, and gives a text that stays.
        let text = unsafe { CStr::from_ptr((self.strerror)(error.unsigned_abs() as c_int)) };
        text.to_string_lossy().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::mem::size_of;

    use super::*;
    use crate::layouts::{self, table};

    const HEADERS: &str = "#include <sys/uio.h>\n#include <rdma/fabric.h>\n\
        #include <rdma/fi_domain.h>\n#include <rdma/fi_endpoint.h>\n#include <rdma/fi_cm.h>\n#include <rdma/fi_rma.h>\n";

    fn expressions() -> Vec<(String, u64)> {
        let mut all = table! {
            "struct fid": Fid { fclass, context, ops }
            "struct fi_ops": FidOps { close, bind, control }
            "struct fi_info": Info {
                next, caps, mode, addr_format, src_addrlen, src_addr, handle, ep_attr, domain_attr, fabric_attr
            }
            "struct fi_ep_attr": EndpointAttributes { kind = "type", max_msg_size }
            "struct fi_domain_attr": DomainAttributes { name, threading, mr_mode, cq_data_size }
            "struct fi_fabric_attr": FabricAttributes { name, prov_name }
            "struct fid_fabric": FabricObject { fid, ops }
            "struct fi_ops_fabric": FabricOps { domain }
            "struct fid_domain": Domain { ops, mr }
            "struct fi_ops_domain": DomainOps { av_open, cq_open, endpoint }
            "struct fi_ops_mr": MemoryOps { reg }
            "struct fid_mr": Region { key }
            "struct fi_av_attr": AddressAttributes { kind = "type", count, flags }
            "struct fid_av": Addresses { ops }
            "struct fi_ops_av": AddressOps { insert }
            "struct fi_cq_attr": QueueAttributes { size, flags, format, wait_obj, wait_set }
            "struct fid_cq": Queue { ops }
            "struct fi_ops_cq": QueueOps { read, readerr }
            "struct fi_cq_data_entry": QueueEntry { context = "op_context", flags, len, data }
            "struct fi_cq_err_entry": QueueError { context = "op_context", err, prov_errno, err_data_size }
            "struct fid_ep": Endpoint { ops, cm, msg, rma }
            "struct fi_ops_cm": NameOps { getname }
            "struct fi_ops_msg": MessageOps { recv, send }
            "struct fi_ops_rma": RemoteOps { read, writemsg }
            "struct fi_msg_rma": RemoteMessage { msg_iov, iov_count, addr, rma_iov, rma_iov_count, context, data }
            "struct iovec": Span { base = "iov_base", len = "iov_len" }
            "struct fi_rma_iov": RemoteSpan { addr, len, key }
        };
        let constants = [
            ("FI_VERSION(1, 11)", u64::from(VERSION)),
            ("FI_MSG", MSG),
            ("FI_RMA", RMA),
            ("FI_READ", READ),
            ("FI_WRITE", WRITE),
            ("FI_RECV", RECV),
            ("FI_TRANSMIT", TRANSMIT),
            ("FI_REMOTE_READ", REMOTE_READ),
            ("FI_REMOTE_WRITE", REMOTE_WRITE),
            ("FI_REMOTE_CQ_DATA", REMOTE_CQ_DATA),
            ("FI_COMPLETION", COMPLETION),
            ("FI_DELIVERY_COMPLETE", DELIVERY_COMPLETE),
            ("FI_CONTEXT | FI_CONTEXT2", CONTEXTS),
            ("FI_EP_RDM", EP_RDM as u64),
            ("FI_SOCKADDR_IN6", SOCKADDR_IN6.into()),
            ("FI_MR_LOCAL", MR_LOCAL as u64),
            ("FI_MR_VIRT_ADDR", MR_VIRT_ADDR as u64),
            ("FI_MR_ALLOCATED", MR_ALLOCATED as u64),
            ("FI_MR_PROV_KEY", MR_PROV_KEY as u64),
            ("FI_MR_ENDPOINT", MR_ENDPOINT as u64),
            ("FI_THREAD_DOMAIN", THREAD_DOMAIN as u64),
            ("FI_CQ_FORMAT_DATA", CQ_FORMAT_DATA as u64),
            ("FI_AV_TABLE", AV_TABLE as u64),
            ("FI_ENABLE", ENABLE as u64),
            ("FI_ADDR_UNSPEC", ADDR_UNSPEC),
            ("FI_EAGAIN", EAGAIN as u64),
            ("FI_EAVAIL", EAVAIL as u64),
            ("FI_EOPNOTSUPP", EOPNOTSUPP as u64),
            ("FI_EADDRINUSE", EADDRINUSE as u64),
            ("sizeof(struct fi_cq_data_entry)", size_of::<QueueEntry>() as u64),
            ("sizeof(struct fi_cq_attr)", size_of::<QueueAttributes>() as u64),
            ("sizeof(struct fi_msg_rma)", size_of::<RemoteMessage>() as u64),
            ("sizeof(struct fi_context2) <= 64", 1),
            ("sizeof(struct fi_cq_err_entry) <= 144", u64::from(size_of::<QueueError>() == 144)),
        ];
        all.extend(constants.map(|(c, here)| (c.to_owned(), here)));
        all
    }

    #[test]
    fn layouts_are_those_of_the_headers() {
        layouts::compare("libfabric", HEADERS, &expressions());
    }
}
