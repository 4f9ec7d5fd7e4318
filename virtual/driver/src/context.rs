//! Contexts: the primary context of each device and those that programs make, which of them a thread works in, and the fault that
//! ends one.

use std::cell::RefCell;
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::CUresult;

use crate::driver;
use crate::errors::Outcome;
use crate::monitor::{changed, lock};
use crate::stream::{self, Stream};
use crate::{event, memory, module};

/// A context of a device. The primary one lives as long as the device, and is active while somebody retains it; one that a program made
/// is retained until it is destroyed.
pub(crate) struct Context {
    pub(crate) ordinal: i32,
    retained: Mutex<u32>,
    /// Held while the context begins or ends, so that nobody makes anything in it that the end takes away.
    turning: Mutex<()>,
    fault: Mutex<Option<CUresult>>,
    /// The legacy default stream, once it was used.
    legacy: Mutex<Option<Arc<Stream>>>,
    /// Devices whose memory it was allowed to reach.
    peers: Mutex<Vec<i32>>,
}

/// Those that programs have made.
static MADE: Mutex<Vec<Arc<Context>>> = Mutex::new(Vec::new());

thread_local! {
    /// The contexts that this thread pushed, the current one last.
    static STACK: RefCell<Vec<Arc<Context>>> = const { RefCell::new(Vec::new()) };
}

/// The context that this thread works in.
///
/// # Errors
/// `CUDA_ERROR_INVALID_CONTEXT` where there is none
pub(crate) fn current() -> Outcome<Arc<Context>> {
    STACK.with_borrow(|stack| stack.last().cloned()).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
}

/// Makes a context the current one in place of the current one; none leaves the thread with the one below it.
pub(crate) fn set_current(context: Option<Arc<Context>>) {
    STACK.with_borrow_mut(|stack| {
        stack.pop();
        stack.extend(context);
    });
}

/// Makes a context the current one, above the current one.
pub(crate) fn push(context: Arc<Context>) {
    STACK.with_borrow_mut(|stack| stack.push(context));
}

/// Takes the current context off.
///
/// # Errors
/// `CUDA_ERROR_INVALID_CONTEXT` where there is none
pub(crate) fn pop() -> Outcome<Arc<Context>> {
    STACK.with_borrow_mut(Vec::pop).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
}

/// The context of a handle.
///
/// # Errors
/// `CUDA_ERROR_INVALID_CONTEXT`
pub(crate) fn find(handle: u64) -> Outcome<Arc<Context>> {
    let primary = driver::get()?.devices().iter().map(|device| &device.context);
    let made = lock(&MADE);
    let context = primary.chain(&*made).find(|context| context.handle() == handle);
    context.cloned().ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
}

/// Makes a context on a device, beside its primary one.
pub(crate) fn create(ordinal: i32) -> Arc<Context> {
    let context = Context::new(ordinal);
    context.retain();
    lock(&MADE).push(context.clone());
    context
}

/// Ends what [`create`] made.
///
/// # Errors
/// `CUDA_ERROR_INVALID_CONTEXT` for any other, and that of [`memory::show_all`]
pub(crate) fn destroy(handle: u64) -> Outcome {
    let made = lock(&MADE).extract_if(.., |context| context.handle() == handle).next();
    made.ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?.release()
}

impl Context {
    pub(crate) fn new(ordinal: i32) -> Arc<Self> {
        Arc::new(Self {
            ordinal,
            retained: Mutex::new(0),
            turning: Mutex::new(()),
            fault: Mutex::new(None),
            legacy: Mutex::new(None),
            peers: Mutex::new(Vec::new()),
        })
    }

    /// Its handle: where it is in memory, which is nobody else's as long as the process lives.
    pub(crate) fn handle(self: &Arc<Self>) -> u64 {
        Arc::as_ptr(self).addr() as u64
    }

    /// # Errors
    /// `CUDA_ERROR_CONTEXT_IS_DESTROYED` if nobody retains it, and its fault if it has one
    pub(crate) fn check(&self) -> Outcome {
        if *lock(&self.retained) == 0 {
            return Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED);
        }
        self.fault().map_or(Ok(()), Err)
    }

    /// What ended it, if something did.
    pub(crate) fn fault(&self) -> Option<CUresult> {
        *lock(&self.fault)
    }

    /// Ends it: from now on every call gives `code`, for the rest of the process. The first fault stays.
    pub(crate) fn fail(&self, code: CUresult) {
        lock(&self.fault).get_or_insert(code);
        changed();
    }

    pub(crate) fn is_active(&self) -> bool {
        *lock(&self.retained) > 0
    }

    pub(crate) fn retain(&self) {
        let _turn = lock(&self.turning);
        *lock(&self.retained) += 1;
    }

    /// Ends one retention. The last one takes all streams, events, modules and memory of the context with it.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_CONTEXT` if nobody retains it, and that of [`memory::show`]
    pub(crate) fn release(self: &Arc<Self>) -> Outcome {
        let _turn = lock(&self.turning);
        {
            let mut retained = lock(&self.retained);
            *retained = retained.checked_sub(1).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
            if *retained > 0 {
                return Ok(());
            }
        }
        let legacy = lock(&self.legacy).take();
        if let Some(legacy) = legacy {
            legacy.end();
        }
        lock(&self.peers).clear();
        stream::end_all(self);
        event::end_all(self);
        module::end_all(self);
        memory::end_all(self);
        memory::show_all()
    }

    /// The stream of handle 0, made when first asked for.
    ///
    /// # Errors
    /// Those of [`Stream::start`]
    pub(crate) fn legacy(self: &Arc<Self>) -> Outcome<Arc<Stream>> {
        let mut legacy = lock(&self.legacy);
        if let Some(stream) = &*legacy {
            return Ok(stream.clone());
        }
        let stream = Stream::start(self.clone(), 0, 0, true)?;
        *legacy = Some(stream.clone());
        Ok(stream)
    }

    /// The stream of handle 0, if it was ever used.
    pub(crate) fn legacy_if_used(&self) -> Option<Arc<Stream>> {
        lock(&self.legacy).clone()
    }

    /// Lets it reach the memory of another device.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_DEVICE` for its own, `CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED`, and that of [`memory::show`]
    pub(crate) fn reach(&self, peer: i32) -> Outcome {
        let mut peers = lock(&self.peers);
        if peer == self.ordinal {
            return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
        }
        if peers.contains(&peer) {
            return Err(CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
        }
        peers.push(peer);
        drop(peers);
        memory::show_all()
    }

    /// Whether it may reach what was allocated on a device.
    pub(crate) fn reaches(&self, device: i32) -> bool {
        device == self.ordinal || lock(&self.peers).contains(&device)
    }
}
