//! A test as threads of events: what its instructions do to memory, and how they order it.

use core::ops::Range;

use super::rule::Rule;

/// How an operation orders, from the weakest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Weak,
    Relaxed,
    Acquire,
    Release,
    AcquireRelease,
    /// Of fences alone.
    Sequential,
}

/// With whose operations one may be morally strong, from the narrowest (PTX 8.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scope {
    Cta,
    Cluster,
    Gpu,
    System,
}

/// The method of an access (PTX 8.6). That two addresses of one location act like two proxies is looked at apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proxy {
    Generic,
    Async,
}

/// Where a thread is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Thread {
    pub(super) name: String,
    /// None of the host's.
    pub(super) gpu: Option<u32>,
    pub(super) cluster: u32,
    pub(super) cta: u32,
    pub(super) warp: u32,
}

impl Thread {
    /// Whether an operation of this thread with `scope` reaches `other`.
    pub(super) fn reaches(&self, other: &Self, scope: Scope) -> bool {
        let host = self.gpu.is_none() || other.gpu.is_none();
        match scope {
            Scope::System => true,
            _ if host => false,
            Scope::Gpu => self.gpu == other.gpu,
            Scope::Cluster => self.gpu == other.gpu && self.cluster == other.cluster,
            Scope::Cta => self.is_in_cta_of(other),
        }
    }

    pub(super) fn is_in_cta_of(&self, other: &Self) -> bool {
        self.gpu.is_some() && (self.gpu, self.cluster, self.cta) == (other.gpu, other.cluster, other.cta)
    }
}

/// One operation of a thread.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) thread: usize,
    /// Which instruction of its thread it belongs to. The scalars of a vector share one and are not ordered.
    pub(super) instruction: usize,
    pub(super) kind: Kind,
    /// The loads that decide whether the thread comes here: those named in `assume` lines before.
    pub(super) depends: Vec<Register>,
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    Access(Access),
    Fence {
        order: Order,
        scope: Scope,
    },
    AliasFence,
    ProxyFence(Proxy),
    /// The meeting it takes part in, whether it tells the others of what was before it, and whether it hears of it.
    Barrier {
        meeting: Meeting,
        tells: bool,
        hears: bool,
    },
    /// The end of a wait for the asynchronous copies so far; of their reads only, if `sources`.
    AsyncWait {
        sources: bool,
    },
}

/// Threads that meet at a barrier: the same words of it, the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Meeting {
    /// CTA, warp or cluster.
    pub(super) group: String,
    /// How often the thread has been there before.
    pub(super) time: usize,
}

/// A read, a write, or both at once, of a scalar.
#[derive(Clone, Debug)]
pub(super) struct Access {
    pub(super) order: Order,
    pub(super) scope: Scope,
    pub(super) proxy: Proxy,
    /// The name it goes by, of a location or of an alias or multicast address; and the first byte.
    pub(super) address: (String, u32),
    /// Bytes.
    pub(super) size: u32,
    /// The cells of memory that it covers: parts of locations that no access cuts.
    pub(super) cells: Vec<usize>,
    pub(super) reads: bool,
    /// A reduction reads, but is no read operation (PTX 8.4).
    pub(super) returns: bool,
    /// The value written.
    pub(super) writes: Option<Written>,
}

/// What a write leaves in memory.
#[derive(Clone, Debug)]
pub(super) enum Written {
    Value(Value),
    /// What was read and the value, by the operation.
    Update(Update, Value),
    /// Compare and swap: the first is compared, the second written; nothing is written unless they are equal.
    Swap(Value, Value),
    /// What this event, the read of an asynchronous copy, has read.
    Copy(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Update {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Exchange,
    Increment,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Constant(u64),
    Register(Register),
}

/// What fills a register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Register {
    /// The reads: several if one instruction reduces over the members of a multicast address.
    pub(super) reads: Vec<usize>,
    /// What makes one value of them.
    pub(super) by: Update,
}

/// A part of a location that no access cuts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) location: String,
    pub(super) bytes: Range<u32>,
}

/// What the hardware does beyond PTX, if a test says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Promises {
    /// What one instruction of a warp stores to a line of 128 bytes arrives in the order of addresses.
    pub(super) ordered_lines: bool,
    /// Vectors of 16 bytes are single-copy atomic.
    pub(super) atomic_vectors: bool,
}

/// What a test's threads do.
#[derive(Clone, Debug, Default)]
pub(super) struct Program {
    pub(super) threads: Vec<Thread>,
    pub(super) events: Vec<Event>,
    /// The text of each instruction of each thread.
    pub(super) texts: Vec<Vec<String>>,
    pub(super) cells: Vec<Cell>,
    /// Other names of locations.
    pub(super) aliases: Vec<(String, String)>,
    /// Multicast addresses and their members.
    pub(super) multicasts: Vec<(String, Vec<String>)>,
    /// The text of the condition.
    pub(super) asked: String,
    pub(super) promises: Promises,
    /// Each has to be true.
    pub(super) assumed: Vec<Comparison>,
    /// One of these has to be true altogether.
    pub(super) condition: Vec<Vec<Comparison>>,
}

/// `r0 == 1`, `[x] == 2`.
#[derive(Clone, Debug)]
pub(super) struct Comparison {
    pub(super) left: Term,
    pub(super) is: Is,
    pub(super) right: u64,
}

#[derive(Clone, Debug)]
pub(super) enum Term {
    Register(Register),
    /// What these cells hold in the end.
    Final(Vec<usize>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Is {
    Equal,
    Different,
    Less,
    AtMost,
    Greater,
    AtLeast,
}

impl Is {
    pub(super) fn holds(self, left: u64, right: u64) -> bool {
        match self {
            Self::Equal => left == right,
            Self::Different => left != right,
            Self::Less => left < right,
            Self::AtMost => left <= right,
            Self::Greater => left > right,
            Self::AtLeast => left >= right,
        }
    }
}

impl Update {
    /// What it leaves of `old`, in a scalar of `size` bytes. Arithmetic is on unsigned integers, whatever the type.
    pub(super) fn apply(self, old: u64, operand: u64, size: u32) -> u64 {
        let new = match self {
            Self::Add => old.wrapping_add(operand),
            Self::Min => old.min(operand),
            Self::Max => old.max(operand),
            Self::And => old & operand,
            Self::Or => old | operand,
            Self::Xor => old ^ operand,
            Self::Exchange => operand,
            Self::Increment if old >= operand => 0,
            Self::Increment => old.wrapping_add(1),
        };
        new & mask(size)
    }

    /// Whether the result follows from what was there.
    pub(super) fn needs_old(self) -> bool {
        self != Self::Exchange
    }
}

/// The bits of so many bytes.
pub(super) fn mask(bytes: u32) -> u64 {
    u64::MAX.checked_shr(u64::BITS.saturating_sub(8 * bytes)).unwrap_or(0)
}

impl Access {
    /// Whether it covers a byte that `other` covers, by whatever addresses.
    pub(super) fn meets(&self, other: &Self) -> bool {
        self.cells.iter().any(|cell| other.cells.contains(cell))
    }

    /// Whether they go by one address, at least in part: they overlap (PTX 8.2.1).
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.address.0 == other.address.0 && self.meets(other)
    }

    /// Whether they overlap completely.
    pub(super) fn is_at(&self, other: &Self) -> bool {
        (&self.address, self.size) == (&other.address, other.size) && self.cells == other.cells
    }
}

impl Event {
    pub(super) fn access(&self) -> Option<&Access> {
        match &self.kind {
            Kind::Access(access) => Some(access),
            _ => None,
        }
    }
}

impl Event {
    /// Whether it is a memory operation with an order, or a fence (PTX 8.4).
    pub(super) fn is_strong(&self) -> bool {
        match &self.kind {
            Kind::Access(access) => access.order != Order::Weak,
            Kind::Fence { .. } => true,
            _ => false,
        }
    }

    pub(super) fn is_strong_write(&self) -> bool {
        self.is_strong() && self.access().is_some_and(|access| access.writes.is_some())
    }

    /// Reductions do not count (PTX 8.8).
    pub(super) fn is_strong_read(&self) -> bool {
        self.is_strong() && self.access().is_some_and(|access| access.returns)
    }

    pub(super) fn releases(&self) -> bool {
        match &self.kind {
            Kind::Access(access) => {
                access.writes.is_some() && matches!(access.order, Order::Release | Order::AcquireRelease)
            }
            Kind::Fence { order, .. } => *order != Order::Acquire,
            _ => false,
        }
    }

    pub(super) fn acquires(&self) -> bool {
        match &self.kind {
            Kind::Access(access) => access.returns && matches!(access.order, Order::Acquire | Order::AcquireRelease),
            Kind::Fence { order, .. } => *order != Order::Release,
            _ => false,
        }
    }

    pub(super) fn is_fence_sc(&self) -> bool {
        matches!(self.kind, Kind::Fence { order: Order::Sequential, .. })
    }

    fn scope(&self) -> Option<Scope> {
        match &self.kind {
            Kind::Access(Access { scope, .. }) | Kind::Fence { scope, .. } => Some(*scope),
            _ => None,
        }
    }

    fn proxy(&self) -> Proxy {
        self.access().map_or(Proxy::Generic, |access| access.proxy)
    }
}

impl Program {
    /// Program order (PTX 8.9.1), and what is known of the order of asynchronous copies, which are not part of it (8.9.1.1):
    /// they come after what was before them, and before what is after a wait for them.
    pub(super) fn comes_before(&self, first: usize, second: usize) -> bool {
        let (a, b) = (&self.events[first], &self.events[second]);
        let in_order = a.thread == b.thread && a.instruction < b.instruction;
        let copied = |event: &Event| event.proxy() == Proxy::Async;
        match &b.kind {
            Kind::AsyncWait { sources } if copied(a) => {
                in_order && (!sources || a.access().is_some_and(|access| access.reads))
            }
            Kind::Access(Access { writes: Some(Written::Copy(read)), .. }) if copied(a) => *read == first,
            _ => in_order && !copied(a),
        }
    }

    /// PTX 8.7.
    pub(super) fn are_morally_strong(&self, first: usize, second: usize) -> bool {
        let (a, b) = (&self.events[first], &self.events[second]);
        let (Some(a_scope), Some(b_scope)) = (a.scope(), b.scope()) else { return false };
        let (a_thread, b_thread) = (&self.threads[a.thread], &self.threads[b.thread]);
        let is_ordered = self.comes_before(first, second) || self.comes_before(second, first);
        let reach = || a_thread.reaches(b_thread, a_scope) && b_thread.reaches(a_thread, b_scope);
        let overlap = match (a.access(), b.access()) {
            (Some(a), Some(b)) => a.is_at(b),
            _ => true,
        };
        first != second
            && (is_ordered || (a.is_strong() && b.is_strong() && reach()))
            && a.proxy() == b.proxy()
            && overlap
    }

    /// The same program where one of the limits of the model is not there.
    pub(super) fn unlimited(&self, limit: Rule) -> Self {
        let mut program = self.clone();
        for event in &mut program.events {
            match (&mut event.kind, limit) {
                (Kind::Access(Access { scope, .. }) | Kind::Fence { scope, .. }, Rule::ScopesLimit) => {
                    *scope = Scope::System;
                }
                (Kind::Access(access), Rule::WeakOrdersNothing) if access.order == Order::Weak => {
                    (access.order, access.scope) = (Order::Relaxed, Scope::System);
                }
                (Kind::Access(access), Rule::RelaxedOrdersNothing) if access.order != Order::Weak => {
                    access.order = Order::AcquireRelease;
                }
                (Kind::Access(access), Rule::ReductionsAcquireNothing) => access.returns = access.reads,
                (Kind::Access(access), Rule::AddressesAreProxies) => {
                    if let Some(cell) = access.cells.first().map(|&cell| &program.cells[cell]) {
                        access.address = (cell.location.clone(), cell.bytes.start);
                    }
                    access.proxy = Proxy::Generic;
                }
                (Kind::Fence { order, .. }, Rule::OnlyScFencesMeet) => *order = Order::Sequential,
                _ => {}
            }
        }
        program
    }
}
