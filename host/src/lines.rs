//! The lines that kernels print ([`print!`](congruent_device::print)), and the spans that kernels of a GPU tell a trace of.
#![allow(clippy::disallowed_types, reason = "the consumer's side of the lines that kernels write")]

use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use congruent_device::Pe;
use congruent_device::abi::{Control, PrintLine, Printed, Prints};

use crate::World;
use crate::cuda::Trace;
use crate::shared::Shared;

/// A line that a kernel has printed, or what there is to say of lost ones.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelLine {
    /// The PE.
    pub pe: Pe,
    /// The kernel, where it is known.
    pub kernel: Option<&'static str>,
    /// The block, in its launch.
    pub block: u32,
    /// The thread, in its block.
    pub thread: u32,
    /// What it says.
    pub text: String,
}

/// What becomes of lines.
#[derive(Default)]
pub(crate) struct Lines {
    printer: Mutex<Option<Printer>>,
}

/// How long who waits for a kernel waits for its lines to be printed.
const PATIENCE: Duration = Duration::from_secs(1);

type Printer = Box<dyn FnMut(&KernelLine) + Send>;

impl World {
    /// Has lines that kernels of this PE print ([`print!`](congruent_device::print)) given to `printer`, in place of standard error: from a
    /// thread of the library's, while kernels run. Who waits for a kernel goes on when its lines have been given, so a printer waits for
    /// nobody.
    pub fn on_print(&self, printer: impl FnMut(&KernelLine) + Send + 'static) {
        *self.shared().lines().printer.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(printer));
    }
}

impl Lines {
    /// Takes the lines that are there, unless another thread does.
    pub(crate) fn take(&self, shared: &Shared) {
        let machine = shared.machine();
        if machine.trace().is_none() && !(Taken { first: machine.control() }).has_any() {
            return;
        }
        match self.printer.try_lock() {
            Ok(printer) => take_by(printer, shared),
            Err(TryLockError::Poisoned(poisoned)) => take_by(poisoned.into_inner(), shared),
            Err(TryLockError::WouldBlock) => {}
        }
    }

    /// Takes the lines that are there, of kernels that are complete: behind another thread that does, so that all have been given to the
    /// printer. For a while only, as that may wait for this thread.
    pub(crate) fn take_all(&self, shared: &Shared) {
        let began = Instant::now();
        loop {
            match self.printer.try_lock() {
                Ok(printer) => return take_by(printer, shared),
                Err(TryLockError::Poisoned(poisoned)) => return take_by(poisoned.into_inner(), shared),
                Err(TryLockError::WouldBlock) if began.elapsed() < PATIENCE => thread::sleep(Duration::from_micros(50)),
                Err(TryLockError::WouldBlock) => return,
            }
        }
    }

    /// Tells the trace what kernels of a GPU have told, all of which are complete: another thread may have begun to before they were.
    pub(crate) fn finish(&self, shared: &Shared) {
        if shared.machine().trace().is_some() {
            take_by(self.printer.lock().unwrap_or_else(PoisonError::into_inner), shared);
        }
    }
}

/// Takes the lines that are there.
fn take_by(mut printer: MutexGuard<'_, Option<Printer>>, shared: &Shared) {
    let (prints, trace) = (Taken { first: shared.machine().control() }, shared.machine().trace());
    // All that kernels have told which are known to be complete now is there.
    let complete = trace.map(Trace::complete).unwrap_or_default();
    let mut print = |line: &KernelLine| match printer.as_mut() {
        Some(printer) => printer(line),
        None => _ = writeln!(io::stderr(), "{line}"),
    };
    while let Some(line) = prints.next() {
        match trace {
            _ if line.kinds != PrintLine::SPAN => print(&KernelLine::new(shared, &line)),
            Some(trace) => trace.told(&line),
            None => {}
        }
    }
    if let Some(trace) = trace {
        trace.tell(&complete, prints.word(offset_of!(Prints, lost_spans)).swap(0, Ordering::Relaxed));
    }
    let lost = prints.word(offset_of!(Prints, lost)).swap(0, Ordering::Relaxed);
    if lost > 0 {
        let text = format!("{lost} lines more are lost: kernels printed faster than they were read");
        print(&KernelLine { pe: Pe::new(shared.pe()), kernel: None, block: 0, thread: 0, text });
    }
}

/// The consumer's side, of whoever has the lock.
struct Taken {
    first: *mut Control,
}

impl Taken {
    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the control block lives as long as the machine, and with it `Shared`, which the caller has; its words are accessed
        // atomically.
        unsafe { AtomicU64::from_ptr(self.first.byte_add(offset_of!(Control, prints) + offset).cast()) }
    }

    fn has_any(&self) -> bool {
        let reserved = self.word(offset_of!(Prints, reserved)).load(Ordering::Relaxed);
        reserved != self.word(offset_of!(Prints, taken)).load(Ordering::Relaxed)
    }

    /// The next line, once it is there. Its place is given back.
    fn next(&self) -> Option<PrintLine> {
        let taken = self.word(offset_of!(Prints, taken));
        let number = taken.load(Ordering::Relaxed);
        let slot = offset_of!(Prints, slots) + number as usize % Prints::SLOTS * size_of::<PrintLine>();
        if self.word(slot + offset_of!(PrintLine, ready)).load(Ordering::Acquire) != number + 1 {
            return None;
        }
        // SAFETY: as for `word`; its producer is done with it, as the acquire load has seen, and the next one waits for `taken`.
        let line = unsafe { self.first.byte_add(offset_of!(Control, prints) + slot).cast::<PrintLine>().read() };
        taken.store(number + 1, Ordering::Release);
        Some(line)
    }
}

impl KernelLine {
    fn new(shared: &Shared, line: &PrintLine) -> Self {
        let kernel = shared.launches().of(line.launch).map(|launched| launched.kernel);
        let (pe, block, thread) = (Pe::new(shared.pe()), line.block, line.thread);
        Self { pe, kernel, block, thread, text: text(line) }
    }
}

/// The text with its values.
fn text(line: &PrintLine) -> String {
    let (template, mut text) = (String::from_utf8_lossy(line.said()), String::new());
    let mut parts = template.split("{}");
    text.push_str(parts.next().unwrap_or_default());
    for (i, part) in parts.enumerate() {
        let bits = line.values.get(i).copied().unwrap_or(0);
        let _into_a_string = match Printed::of(line.kinds, i) {
            Some(Printed::Unsigned) => write!(text, "{bits}"),
            Some(Printed::Signed) => write!(text, "{}", bits as i64),
            Some(Printed::Float) => write!(text, "{:?}", f64::from_bits(bits)),
            Some(Printed::Short) => write!(text, "{:?}", f32::from_bits(bits as u32)),
            Some(Printed::Bool) => write!(text, "{}", bits != 0),
            None => write!(text, "{{}}"),
        };
        text.push_str(part);
    }
    text
}

impl fmt::Display for KernelLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pe, kernel, block, thread, text } = self;
        write!(f, "{pe}")?;
        if let Some(kernel) = kernel {
            write!(f, ", {kernel}, block {block}, thread {thread}")?;
        }
        write!(f, ": {text}")
    }
}
