//! Where what PEs print goes.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use super::wire::{self, Report, Stream};

/// A line of output longer than this is passed on in pieces.
const LONGEST_LINE: u64 = 64 * 1024;

/// Where the PEs' output goes.
#[derive(Clone)]
pub(super) enum Output {
    /// Where the launcher's own goes: they write there themselves.
    Own,
    /// The same, each line with its PE.
    Labelled,
    /// Here, each line with its PE.
    Kept(Kept),
    /// To a launcher on another host, which has it labelled or not.
    Sent {
        /// Whether each line is with its PE.
        label: bool,
    },
}

/// Lines, in the order in which they were written.
#[derive(Clone, Default)]
pub(super) struct Kept(pub(super) Arc<Mutex<Vec<u8>>>);

impl Kept {
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Threads that pass output on.
pub(super) struct Passing {
    each: Each,
    ended: mpsc::Receiver<()>,
}

/// What each of them has.
#[derive(Clone)]
pub(super) struct Each {
    counts: Arc<Mutex<Counts>>,
    /// Goes with the last of them.
    ends: mpsc::Sender<()>,
}

#[derive(Default)]
struct Counts {
    /// How many are writing: whoever reads that may be slow.
    writing: u32,
    /// How often something was written.
    written: u64,
}

impl Passing {
    pub(super) fn new() -> Self {
        let (ends, ended) = mpsc::channel();
        Self { each: Each { counts: Arc::default(), ends }, ended }
    }

    /// Whether something is still passed on after so long. A daemon that has left its group may have the output open, and print nothing.
    pub(super) fn goes_on(&mut self, limit: Duration) -> bool {
        self.each.ends = mpsc::channel().0;
        let before = self.each.counts().written;
        let ended = self.ended.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Disconnected);
        let Counts { writing, written } = *self.each.counts();
        !ended && (writing > 0 || written != before)
    }

    /// What a thread has.
    pub(super) fn each(&self) -> Each {
        self.each.clone()
    }
}

impl Each {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, mut to: impl Write, lines: &[u8]) -> io::Result<()> {
        self.counts().writing += 1;
        let done = to.write_all(lines);
        let mut counts = self.counts();
        (counts.writing, counts.written) = (counts.writing - 1, counts.written + 1);
        done
    }
}

impl Output {
    /// Passes on what a PE prints.
    pub(super) fn forward(&self, index: u32, child: &mut Child, passing: &Passing) {
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let (done, done_too) = (passing.each(), passing.each());
        match self.clone() {
            Self::Own => {}
            Self::Labelled => {
                std::thread::spawn(move || copy(Some(index), out, io::stdout, done));
                std::thread::spawn(move || copy(Some(index), err, io::stderr, done_too));
            }
            Self::Kept(kept) => {
                let kept_too = kept.clone();
                std::thread::spawn(move || copy(Some(index), out, || kept.clone(), done));
                std::thread::spawn(move || copy(Some(index), err, || kept_too.clone(), done_too));
            }
            Self::Sent { label } => {
                let label = label.then_some(index);
                std::thread::spawn(move || copy(label, out, || Stream::Out, done));
                std::thread::spawn(move || copy(label, err, || Stream::Err, done_too));
            }
        }
    }

    /// What the launcher itself has to say of the job.
    pub(super) fn tell(&self, text: &str) {
        match self {
            Self::Own | Self::Labelled => tell(text),
            Self::Kept(kept) => _ = writeln!(kept.clone(), "congruent run: {text}"),
            Self::Sent { .. } => wire::report(&Report::Tells { text: text.to_owned() }),
        }
    }

    /// That a PE failed, before any was signalled or after.
    pub(super) fn tell_failure(&self, pe: u32, status: ExitStatus, unsignalled: bool) {
        match self {
            Self::Sent { .. } => wire::report(&Report::failed(pe, status, unsignalled)),
            _ if unsignalled => self.tell(&format!("PE {pe} failed, {status}")),
            _ => {}
        }
    }
}

/// Says it as the launcher. Nobody may be there to hear it.
pub(super) fn tell(text: &str) {
    let _unheard = writeln!(io::stderr(), "congruent run: {text}");
}

/// Passes lines on whole, with a label or without, so that PEs do not cut each other's; and those that came at once at once, so that what a
/// PE prints does not cut the report that its driver writes.
pub(super) fn copy<W: Write>(label: Option<u32>, from: Option<impl Read>, to: impl Fn() -> W, each: Each) {
    let Some(from) = from else { return };
    let mut from = BufReader::new(from);
    let mut lines = Vec::new();
    loop {
        if let Some(index) = label {
            let _ = write!(lines, "[{index}] ");
        }
        let begin = lines.len();
        match from.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut lines) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if label.is_some() && lines[begin..].last() != Some(&b'\n') {
            lines.push(b'\n');
        }
        if from.buffer().contains(&b'\n') && (lines.len() as u64) < LONGEST_LINE {
            continue;
        }
        if each.write(to(), &lines).is_err() {
            return;
        }
        lines.clear();
    }
}
