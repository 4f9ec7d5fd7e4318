//! What is used of libibverbs' C interface, as its headers have it, and the library itself, loaded when it is asked for.
//!
//! Posting and polling are inline functions over a table of pointers in a device's context, so that table is here. Objects of which only
//! the address is used are [`Opaque`]. A test compares offsets, sizes and constants with what a C compiler makes of the headers.

use std::ffi::{CStr, c_char, c_int, c_void};

use libloading::Library;

/// An object of the library's, of which nothing is read here: a device, a domain, an address.
#[repr(C)]
pub(super) struct Opaque {
    _nothing: [u8; 0],
}

/// The beginning of `struct ibv_context`.
#[repr(C)]
pub(super) struct Context {
    pub(super) device: *mut Opaque,
    pub(super) ops: ContextOps,
    pub(super) cmd_fd: c_int,
    pub(super) async_fd: c_int,
}

/// `struct ibv_context_ops`.
#[repr(C)]
pub(super) struct ContextOps {
    before_poll_cq: [usize; 11],
    pub(super) poll_cq: unsafe extern "C" fn(*mut Queue, c_int, *mut Completion) -> c_int,
    before_post_srq_recv: [usize; 8],
    pub(super) post_srq_recv: unsafe extern "C" fn(*mut Shared, *mut Receive, *mut *mut Receive) -> c_int,
    before_post_send: [usize; 4],
    pub(super) post_send: unsafe extern "C" fn(*mut Pair, *mut Send, *mut *mut Send) -> c_int,
    pub(super) post_recv: unsafe extern "C" fn(*mut Pair, *mut Receive, *mut *mut Receive) -> c_int,
    after: [usize; 5],
}

/// The beginning of `struct ibv_cq`.
#[repr(C)]
pub(super) struct Queue {
    pub(super) context: *mut Context,
}

/// The beginning of `struct ibv_srq`.
#[repr(C)]
pub(super) struct Shared {
    pub(super) context: *mut Context,
}

/// The beginning of `struct ibv_qp`.
#[repr(C)]
pub(super) struct Pair {
    pub(super) context: *mut Context,
    objects: [usize; 5],
    handle: u32,
    pub(super) qp_num: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
pub(super) struct Region {
    objects: [usize; 3],
    length: usize,
    handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// `union ibv_gid`.
pub(super) type Gid = [u8; 16];

/// `struct ibv_device_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct DeviceAttributes {
    before_max_qp_wr: [u64; 14],
    pub(super) max_qp_wr: c_int,
    device_cap_flags: u32,
    max_sge: [c_int; 2],
    max_cq: c_int,
    pub(super) max_cqe: c_int,
    max_mr: c_int,
    max_pd: c_int,
    pub(super) max_qp_rd_atom: c_int,
    before_max_qp_init_rd_atom: [c_int; 2],
    pub(super) max_qp_init_rd_atom: c_int,
    max_ee_init_rd_atom: c_int,
    pub(super) atomic_cap: c_int,
    before_max_srq_wr: [c_int; 12],
    pub(super) max_srq_wr: c_int,
    max_srq_sge: c_int,
    max_pkeys: u16,
    local_ca_ack_delay: u8,
    pub(super) phys_port_cnt: u8,
}

/// `struct ibv_port_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct PortAttributes {
    pub(super) state: c_int,
    max_mtu: c_int,
    pub(super) active_mtu: c_int,
    pub(super) gid_tbl_len: c_int,
    port_cap_flags: u32,
    pub(super) max_msg_sz: u32,
    counters: [u32; 2],
    pkey_tbl_len: u16,
    pub(super) lid: u16,
    sm_lid: u16,
    before_link_layer: [u8; 8],
    pub(super) link_layer: u8,
    flags: u8,
    port_cap_flags2: u16,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Capacity {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub(super) struct NewPair {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut Queue,
    pub(super) recv_cq: *mut Queue,
    pub(super) srq: *mut Shared,
    pub(super) cap: Capacity,
    pub(super) qp_type: c_int,
    pub(super) sq_sig_all: c_int,
}

/// `struct ibv_srq_init_attr`.
#[repr(C)]
pub(super) struct NewShared {
    pub(super) srq_context: *mut c_void,
    pub(super) max_wr: u32,
    pub(super) max_sge: u32,
    pub(super) srq_limit: u32,
}

/// `struct ibv_ah_attr`, with its `struct ibv_global_route`.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(super) struct Address {
    pub(super) dgid: Gid,
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct PairAttributes {
    pub(super) qp_state: c_int,
    pub(super) cur_qp_state: c_int,
    pub(super) path_mtu: c_int,
    pub(super) path_mig_state: c_int,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: u32,
    pub(super) cap: Capacity,
    pub(super) ah_attr: Address,
    pub(super) alt_ah_attr: Address,
    pub(super) pkey_index: u16,
    pub(super) alt_pkey_index: u16,
    pub(super) en_sqd_async_notify: u8,
    pub(super) sq_draining: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) alt_port_num: u8,
    pub(super) alt_timeout: u8,
    pub(super) rate_limit: u32,
}

/// `struct ibv_sge`.
#[repr(C)]
pub(super) struct Span {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

/// `struct ibv_send_wr`, with what is used of its unions.
#[repr(C)]
pub(super) struct Send {
    pub(super) wr_id: u64,
    pub(super) next: *mut Send,
    pub(super) sg_list: *mut Span,
    pub(super) num_sge: c_int,
    pub(super) opcode: c_int,
    pub(super) send_flags: u32,
    pub(super) imm_data: u32,
    /// `wr.rdma.remote_addr`, or `wr.ud.ah`.
    pub(super) remote: u64,
    /// `wr.rdma.rkey`, or `wr.ud.remote_qpn`.
    pub(super) key_or_pair: u32,
    /// `wr.ud.remote_qkey`.
    pub(super) qkey: u32,
    /// `wr.atomic.swap` and `wr.atomic.rkey`.
    pub(super) swap: u64,
    pub(super) atomic_key: u32,
    rest: [u32; 15],
}

impl Send {
    /// A request for one piece of memory.
    pub(super) fn new(wr_id: u64, opcode: c_int, send_flags: u32, sg_list: *mut Span) -> Self {
        let (remote, key_or_pair, qkey) = (0, 0, 0);
        Self {
            wr_id,
            next: std::ptr::null_mut(),
            sg_list,
            num_sge: 1,
            opcode,
            send_flags,
            imm_data: 0,
            remote,
            key_or_pair,
            qkey,
            swap: 0,
            atomic_key: 0,
            rest: [0; 15],
        }
    }

    /// Makes it an atomic on a word of a peer's: what is added or compared with (`wr.atomic.compare_add`), and what is swapped in.
    pub(super) fn atomic(&mut self, (remote, key): (u64, u32), compare_add: u64, swap: u64) {
        let ([a, b, c, d, e, f, g, h], to) = (compare_add.to_ne_bytes(), u32::from_ne_bytes);
        (self.remote, self.key_or_pair, self.qkey) = (remote, to([a, b, c, d]), to([e, f, g, h]));
        (self.swap, self.atomic_key) = (swap, key);
    }
}

/// `struct ibv_recv_wr`.
#[repr(C)]
pub(super) struct Receive {
    pub(super) wr_id: u64,
    pub(super) next: *mut Receive,
    pub(super) sg_list: *mut Span,
    pub(super) num_sge: c_int,
}

impl Receive {
    /// One into a piece of memory.
    pub(super) fn new(wr_id: u64, piece: &mut Span) -> Self {
        Self { wr_id, next: std::ptr::null_mut(), sg_list: piece, num_sge: 1 }
    }
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Completion {
    pub(super) wr_id: u64,
    pub(super) status: c_int,
    pub(super) opcode: c_int,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    pub(super) imm_data: u32,
    pub(super) qp_num: u32,
    pub(super) src_qp: u32,
    pub(super) wc_flags: u32,
    pub(super) pkey_index: u16,
    pub(super) slid: u16,
    pub(super) sl: u8,
    pub(super) dlid_path_bits: u8,
}

/// `struct ibv_async_event`.
#[repr(C)]
pub(super) struct AsyncEvent {
    pub(super) element: u64,
    pub(super) event_type: c_int,
}

const ACCESS: c_int = ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ;
pub(super) const ACCESS_LOCAL_WRITE: c_int = 1;
const ACCESS_REMOTE_WRITE: c_int = 1 << 1;
const ACCESS_REMOTE_READ: c_int = 1 << 2;
const ACCESS_REMOTE_ATOMIC: c_int = 1 << 3;
const ATOMIC_NONE: c_int = 0;
pub(super) const LINK_LAYER_ETHERNET: u8 = 2;
pub(super) const PORT_ACTIVE: c_int = 4;
pub(super) const QPT_RC: c_int = 2;
pub(super) const QPT_UD: c_int = 4;
pub(super) const QPS_RESET: c_int = 0;
pub(super) const QPS_INIT: c_int = 1;
pub(super) const QPS_RTR: c_int = 2;
pub(super) const QPS_RTS: c_int = 3;
pub(super) const QPS_ERR: c_int = 6;
pub(super) const QP_STATE: c_int = 1;
pub(super) const QP_ACCESS_FLAGS: c_int = 1 << 3;
pub(super) const QP_PKEY_INDEX: c_int = 1 << 4;
pub(super) const QP_PORT: c_int = 1 << 5;
pub(super) const QP_QKEY: c_int = 1 << 6;
pub(super) const QP_AV: c_int = 1 << 7;
pub(super) const QP_PATH_MTU: c_int = 1 << 8;
pub(super) const QP_TIMEOUT: c_int = 1 << 9;
pub(super) const QP_RETRY_CNT: c_int = 1 << 10;
pub(super) const QP_RNR_RETRY: c_int = 1 << 11;
pub(super) const QP_RQ_PSN: c_int = 1 << 12;
pub(super) const QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
pub(super) const QP_MIN_RNR_TIMER: c_int = 1 << 15;
pub(super) const QP_SQ_PSN: c_int = 1 << 16;
pub(super) const QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
pub(super) const QP_DEST_QPN: c_int = 1 << 20;
pub(super) const WR_RDMA_WRITE: c_int = 0;
pub(super) const WR_SEND: c_int = 2;
pub(super) const WR_RDMA_READ: c_int = 4;
pub(super) const WR_ATOMIC_CMP_AND_SWP: c_int = 5;
pub(super) const WR_ATOMIC_FETCH_AND_ADD: c_int = 6;
pub(super) const SEND_SIGNALED: u32 = 1 << 1;
pub(super) const SEND_INLINE: u32 = 1 << 3;
pub(super) const EVENT_CQ_ERR: c_int = 0;
pub(super) const EVENT_DEVICE_FATAL: c_int = 8;
pub(super) const EVENT_SRQ_ERR: c_int = 14;
/// Bytes before a datagram (`struct ibv_grh`).
pub(super) const GRH: usize = 40;

/// `ibv_reg_dmabuf_mr`: a part of a dma-buf, from an offset on, at an address of its own.
pub(super) type RegisterDmaBuf = unsafe extern "C" fn(*mut Opaque, u64, usize, u64, c_int, c_int) -> *mut Region;

impl DeviceAttributes {
    /// Whether it does atomics, at least with its own.
    pub(super) fn has_atomics(&self) -> bool {
        self.atomic_cap != ATOMIC_NONE
    }

    /// What peers may do to a heap by it.
    pub(super) fn access(&self) -> c_int {
        if self.has_atomics() { ACCESS | ACCESS_REMOTE_ATOMIC } else { ACCESS }
    }
}

/// The functions that the library exports.
macro_rules! calls {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        pub(super) struct Calls {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// From rdma-core 34 on.
            pub(super) reg_dmabuf_mr: Option<RegisterDmaBuf>,
        }

        impl Calls {
            /// Loads the library.
            pub(super) fn load() -> Result<Self, libloading::Error> {
                // SAFETY: libibverbs' initializers look at the system and the environment, and ask nothing of who loads it. The
                // functions have the types that its headers give them, and the library stays loaded.
                unsafe {
                    // Its providers start threads of their own.
                    let library = std::mem::ManuallyDrop::new(Library::new("libibverbs.so.1")?);
                    Ok(Self {
                        $($name: *library.get(concat!("ibv_", stringify!($name), "\0").as_bytes())?,)*
                        reg_dmabuf_mr: library.get(b"ibv_reg_dmabuf_mr\0").ok().map(|call| *call),
                    })
                }
            }
        }
    };
}

calls! {
    get_device_list: fn(*mut c_int) -> *mut *mut Opaque;
    free_device_list: fn(*mut *mut Opaque);
    get_device_name: fn(*mut Opaque) -> *const c_char;
    open_device: fn(*mut Opaque) -> *mut Context;
    close_device: fn(*mut Context) -> c_int;
    query_device: fn(*mut Context, *mut DeviceAttributes) -> c_int;
    query_port: fn(*mut Context, u8, *mut PortAttributes) -> c_int;
    query_gid: fn(*mut Context, u8, c_int, *mut Gid) -> c_int;
    get_async_event: fn(*mut Context, *mut AsyncEvent) -> c_int;
    ack_async_event: fn(*mut AsyncEvent);
    alloc_pd: fn(*mut Context) -> *mut Opaque;
    dealloc_pd: fn(*mut Opaque) -> c_int;
    reg_mr: fn(*mut Opaque, *mut c_void, usize, c_int) -> *mut Region;
    dereg_mr: fn(*mut Region) -> c_int;
    create_cq: fn(*mut Context, c_int, *mut c_void, *mut Opaque, c_int) -> *mut Queue;
    destroy_cq: fn(*mut Queue) -> c_int;
    create_srq: fn(*mut Opaque, *mut NewShared) -> *mut Shared;
    destroy_srq: fn(*mut Shared) -> c_int;
    create_qp: fn(*mut Opaque, *mut NewPair) -> *mut Pair;
    modify_qp: fn(*mut Pair, *mut PairAttributes, c_int) -> c_int;
    destroy_qp: fn(*mut Pair) -> c_int;
    create_ah: fn(*mut Opaque, *mut Address) -> *mut Opaque;
    destroy_ah: fn(*mut Opaque) -> c_int;
}

impl Calls {
    /// The name of a device of a list.
    ///
    /// # Safety
    /// It is one.
    pub(super) unsafe fn name(&self, device: *mut Opaque) -> String {
        // SAFETY: the caller's promise; the text lies in the device.
        unsafe { CStr::from_ptr((self.get_device_name)(device)) }.to_string_lossy().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::mem::size_of;

    use super::*;
    use crate::layouts::{self, table};

    const HEADERS: &str = "#include <infiniband/verbs.h>\n";

    #[test]
    fn layouts_are_those_of_the_headers() {
        let mut all = table! {
            "struct ibv_context": Context { device, ops, async_fd }
            "struct ibv_context_ops": ContextOps { poll_cq, post_srq_recv, post_send, post_recv }
            "struct ibv_cq": Queue { context }
            "struct ibv_srq": Shared { context }
            "struct ibv_qp": Pair { context, qp_num }
            "struct ibv_mr": Region { lkey, rkey }
            "struct ibv_device_attr": DeviceAttributes {
                max_qp_wr, max_cqe, max_qp_rd_atom, max_qp_init_rd_atom, atomic_cap, max_srq_wr, phys_port_cnt
            }
            "struct ibv_port_attr": PortAttributes { state, active_mtu, gid_tbl_len, max_msg_sz, lid, link_layer }
            "struct ibv_qp_init_attr": NewPair { send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
            "struct ibv_qp_cap": Capacity { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
            "struct ibv_srq_init_attr": NewShared { srq_context, max_wr = "attr.max_wr", max_sge = "attr.max_sge" }
            "struct ibv_ah_attr": Address {
                dgid = "grh.dgid", sgid_index = "grh.sgid_index", hop_limit = "grh.hop_limit", dlid, is_global, port_num
            }
            "struct ibv_qp_attr": PairAttributes {
                qp_state, path_mtu, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap, ah_attr, alt_ah_attr,
                pkey_index, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry
            }
            "struct ibv_sge": Span { addr, length, lkey }
            "struct ibv_send_wr": Send {
                wr_id, next, sg_list, num_sge, opcode, send_flags, remote = "wr.rdma.remote_addr",
                key_or_pair = "wr.rdma.rkey", qkey = "wr.ud.remote_qkey", key_or_pair = "wr.atomic.compare_add",
                swap = "wr.atomic.swap", atomic_key = "wr.atomic.rkey"
            }
            "struct ibv_recv_wr": Receive { wr_id, next, sg_list, num_sge }
            "struct ibv_wc": Completion { wr_id, status, opcode, vendor_err, byte_len, qp_num, src_qp, wc_flags }
            "struct ibv_async_event": AsyncEvent { element, event_type }
        };
        let constants = [
            ("IBV_ACCESS_LOCAL_WRITE", ACCESS_LOCAL_WRITE as u64),
            ("IBV_ACCESS_REMOTE_WRITE", ACCESS_REMOTE_WRITE as u64),
            ("IBV_ACCESS_REMOTE_READ", ACCESS_REMOTE_READ as u64),
            ("IBV_LINK_LAYER_ETHERNET", LINK_LAYER_ETHERNET.into()),
            ("IBV_PORT_ACTIVE", PORT_ACTIVE as u64),
            ("IBV_QPT_RC", QPT_RC as u64),
            ("IBV_QPT_UD", QPT_UD as u64),
            ("IBV_QPS_RESET", QPS_RESET as u64),
            ("IBV_QPS_INIT", QPS_INIT as u64),
            ("IBV_QPS_RTR", QPS_RTR as u64),
            ("IBV_QPS_RTS", QPS_RTS as u64),
            ("IBV_QPS_ERR", QPS_ERR as u64),
            ("IBV_QP_STATE", QP_STATE as u64),
            ("IBV_QP_ACCESS_FLAGS", QP_ACCESS_FLAGS as u64),
            ("IBV_QP_PKEY_INDEX", QP_PKEY_INDEX as u64),
            ("IBV_QP_PORT", QP_PORT as u64),
            ("IBV_QP_QKEY", QP_QKEY as u64),
            ("IBV_QP_AV", QP_AV as u64),
            ("IBV_QP_PATH_MTU", QP_PATH_MTU as u64),
            ("IBV_QP_TIMEOUT", QP_TIMEOUT as u64),
            ("IBV_QP_RETRY_CNT", QP_RETRY_CNT as u64),
            ("IBV_QP_RNR_RETRY", QP_RNR_RETRY as u64),
            ("IBV_QP_RQ_PSN", QP_RQ_PSN as u64),
            ("IBV_QP_MAX_QP_RD_ATOMIC", QP_MAX_QP_RD_ATOMIC as u64),
            ("IBV_QP_MIN_RNR_TIMER", QP_MIN_RNR_TIMER as u64),
            ("IBV_QP_SQ_PSN", QP_SQ_PSN as u64),
            ("IBV_QP_MAX_DEST_RD_ATOMIC", QP_MAX_DEST_RD_ATOMIC as u64),
            ("IBV_QP_DEST_QPN", QP_DEST_QPN as u64),
            ("IBV_WR_RDMA_WRITE", WR_RDMA_WRITE as u64),
            ("IBV_WR_SEND", WR_SEND as u64),
            ("IBV_WR_RDMA_READ", WR_RDMA_READ as u64),
            ("IBV_WR_ATOMIC_CMP_AND_SWP", WR_ATOMIC_CMP_AND_SWP as u64),
            ("IBV_WR_ATOMIC_FETCH_AND_ADD", WR_ATOMIC_FETCH_AND_ADD as u64),
            ("IBV_ATOMIC_NONE", ATOMIC_NONE as u64),
            ("IBV_ACCESS_REMOTE_ATOMIC", ACCESS_REMOTE_ATOMIC as u64),
            ("IBV_SEND_SIGNALED", SEND_SIGNALED.into()),
            ("IBV_SEND_INLINE", SEND_INLINE.into()),
            ("IBV_EVENT_CQ_ERR", EVENT_CQ_ERR as u64),
            ("IBV_EVENT_DEVICE_FATAL", EVENT_DEVICE_FATAL as u64),
            ("IBV_EVENT_SRQ_ERR", EVENT_SRQ_ERR as u64),
            ("sizeof(struct ibv_grh)", GRH as u64),
            ("sizeof(struct ibv_context_ops)", size_of::<ContextOps>() as u64),
            ("sizeof(struct ibv_device_attr)", size_of::<DeviceAttributes>() as u64),
            ("sizeof(struct ibv_port_attr)", size_of::<PortAttributes>() as u64),
            ("sizeof(struct ibv_ah_attr)", size_of::<Address>() as u64),
            ("sizeof(struct ibv_qp_attr)", size_of::<PairAttributes>() as u64),
            ("sizeof(struct ibv_send_wr)", size_of::<Send>() as u64),
            ("sizeof(struct ibv_recv_wr)", size_of::<Receive>() as u64),
            ("sizeof(struct ibv_wc)", size_of::<Completion>() as u64),
            ("sizeof(struct ibv_async_event)", size_of::<AsyncEvent>() as u64),
        ];
        all.extend(constants.map(|(c, here)| (c.to_owned(), here)));
        layouts::compare("libibverbs", HEADERS, &all);
    }
}
