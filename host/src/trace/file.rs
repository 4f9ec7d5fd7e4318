//! Which file a process's trace goes to, and when it is written.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::recorder::MOST_EVENTS;
use super::{Recorder, TraceError};

/// A world's part in the trace of its process. When the last one of a file is dropped, the file is written.
#[derive(Debug)]
pub(crate) struct Session {
    recorder: Arc<Recorder>,
    path: PathBuf,
}

/// A trace of this process, with all that worlds told it, also those that are gone.
struct Open {
    recorder: Arc<Recorder>,
    sessions: usize,
}

static OPEN: Mutex<BTreeMap<PathBuf, Open>> = Mutex::new(BTreeMap::new());

impl Session {
    /// Takes part in the trace that `name` asks for (`CONGRUENT_TRACE`), and writes an empty one if it is the first to.
    /// `first_pe` is the least PE of this process: 0 where PEs are threads, else the PE.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub(crate) fn join(name: &str, first_pe: u32) -> Result<Self, TraceError> {
        let path = path(name, first_pe);
        let mut open = open();
        if let Some(trace) = open.get_mut(&path) {
            trace.sessions += 1;
            return Ok(Self { recorder: Arc::clone(&trace.recorder), path });
        }
        let recorder = Arc::new(Recorder::new(MOST_EVENTS));
        recorder.write(&path)?;
        open.insert(path.clone(), Open { recorder: Arc::clone(&recorder), sessions: 1 });
        Ok(Self { recorder, path })
    }

    /// Where to tell of events.
    pub(crate) fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let mut open = open();
        let Some(trace) = open.get_mut(&self.path) else { return };
        trace.sessions -= 1;
        if trace.sessions == 0
            && let Err(error) = self.recorder.write(&self.path)
        {
            tracing::error!("{error}");
        }
    }
}

/// The file of the process whose least PE this is, as the module says.
fn path(name: &str, first_pe: u32) -> PathBuf {
    let path = name.replace("%p", &first_pe.to_string());
    PathBuf::from(if first_pe == 0 || path != name { path } else { format!("{path}.pe{first_pe}") })
}

fn open() -> MutexGuard<'static, BTreeMap<PathBuf, Open>> {
    // Each change of it is one step, so a panic elsewhere left it whole.
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::trace::{Event, Session, TraceEvent, read};

    /// A name of this test's own, and no file by that name afterwards.
    struct Name(PathBuf);

    impl Name {
        fn new(what: &str) -> Self {
            Self(std::env::temp_dir().join(format!("congruent-trace-{}-{what}.json", std::process::id())))
        }

        fn join(&self) -> Session {
            Session::join(self.0.to_str().unwrap(), 0).unwrap()
        }

        fn read(&self) -> Vec<TraceEvent> {
            read(&std::fs::read_to_string(&self.0).unwrap()).unwrap()
        }
    }

    impl Drop for Name {
        fn drop(&mut self) {
            std::fs::remove_file(&self.0).unwrap();
        }
    }

    fn kernel(pe: u32) -> Event {
        let (track, name) = ("stream 0".into(), "kernel".into());
        Event { pe, track, block: None, name, begin_ns: 1, end_ns: 2, args: Vec::new() }
    }

    #[test]
    fn names_tell_processes_apart() {
        for (name, pe, expected) in [
            ("t.json", 0, "t.json"),
            ("t.json", 3, "t.json.pe3"),
            ("%p/t-%p.json", 12, "12/t-12.json"),
            ("t-%p", 0, "t-0"),
            ("100%", 1, "100%.pe1"),
        ] {
            assert_eq!(path(name, pe), Path::new(expected), "{name} of PE {pe}");
        }
    }

    #[test]
    fn the_file_is_valid_from_the_start_and_has_all_worlds_in_the_end() {
        let name = Name::new("worlds");
        let (first, second) = (name.join(), name.join());
        assert_eq!(name.read(), []);
        first.recorder().add(kernel(0));
        second.recorder().add(kernel(1));
        drop(first);
        assert_eq!(name.read(), [], "one is still to tell");
        drop(second);
        assert_eq!(name.read().iter().map(|event| event.pe).collect::<Vec<_>>(), [0, 1]);
        let third = name.join();
        third.recorder().add(kernel(2));
        drop(third);
        assert_eq!(name.read().len(), 3);
    }

    #[test]
    fn a_panic_writes_what_there_is() {
        let name = Name::new("panic");
        let session = name.join();
        let thread = std::thread::spawn(move || {
            session.recorder().add(kernel(0));
            panic!("as this test wants it");
        });
        assert!(thread.join().is_err());
        assert_eq!(name.read().len(), 1);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_known_at_once() {
        let folder = std::env::temp_dir();
        let refused = Session::join(folder.to_str().unwrap(), 0).unwrap_err().to_string();
        assert!(refused.contains(&*folder.to_string_lossy()) && refused.contains("CONGRUENT_TRACE"), "{refused}");
        assert!(Session::join("", 0).is_err());
    }
}
