//! What the host did to a machine and when, so that a run can be had again. With the seed, that is all that a run depends on, but
//! for what the host writes into memory that a kernel reads meanwhile, and processes that end before their kernels.

use std::collections::VecDeque;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Something that did not come from the machine itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A launch began: in words.
    Launch(String),
    /// Everybody waited, for so many nanoseconds by a clock on the wall.
    Idle(u64),
    /// Everybody waited, and the devices' own time leapt.
    Leap,
}

/// A record that is being made, an event a line: its word, in which round of the machine, and what else there is to it.
pub(crate) struct Recorder(File);

impl Recorder {
    /// An empty record of a machine that is described in one line.
    ///
    /// # Errors
    /// Those of the file
    pub(crate) fn new(path: &Path, machine: &str) -> io::Result<Self> {
        // What is there may be one that a machine still writes.
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(of(path, &error)),
            _ => {}
        }
        let file = File::create(path).and_then(|mut file| writeln!(file, "{machine}").map(|()| Self(file)));
        file.map_err(|error| of(path, &error))
    }

    /// Adds a line. It is in the file at once, whatever becomes of the process. Without room for it the record ends here.
    pub(crate) fn note(&mut self, round: u64, event: Event) {
        let line = Recorded { line: 0, round, event };
        // A run is not worse for a record that is too short.
        let _written = self.0.write_all(format!("{line}\n").as_bytes());
    }
}

/// An event of a record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    /// Its line, counted from 1.
    pub(crate) line: usize,
    pub(crate) round: u64,
    pub(crate) event: Event,
}

impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { round, event, .. } = self;
        match event {
            Event::Launch(launch) => write!(f, "launch {round} {launch}"),
            Event::Idle(time) => write!(f, "idle {round} {time}"),
            Event::Leap => write!(f, "leap {round}"),
        }
    }
}

/// A record that is followed: what is still to come.
pub(crate) struct Replay(VecDeque<Recorded>);

impl Replay {
    /// Reads a record of a machine like this one.
    ///
    /// # Errors
    /// Those of the file, a record of another machine, and a line that is none of a record
    pub(crate) fn new(path: &Path, machine: &str) -> io::Result<Self> {
        let text = fs::read_to_string(path).map_err(|error| of(path, &error))?;
        Self::parse(&text, machine).map_err(|why| of(path, &why))
    }

    fn parse(text: &str, machine: &str) -> Result<Self, String> {
        let mut lines = (1..).zip(text.lines());
        let (_, first) = lines.next().ok_or("an empty record")?;
        if first != machine {
            return Err(format!("it was recorded on another machine:\n  {first}\n  and not\n  {machine}"));
        }
        let event = |(line, text): (usize, &str)| {
            let mut parts = text.splitn(3, ' ');
            let word = parts.next().unwrap_or_default();
            let round = parts.next().and_then(|round| round.parse().ok());
            let event = match (word, parts.next()) {
                ("launch", Some(launch)) => Some(Event::Launch(launch.to_owned())),
                ("idle", Some(time)) => time.parse().ok().map(Event::Idle),
                ("leap", None) => Some(Event::Leap),
                _ => None,
            };
            let recorded = round.zip(event).map(|(round, event)| Recorded { line, round, event });
            recorded.ok_or_else(|| format!("line {line}: `{text}` is no line of a record"))
        };
        lines.map(event).collect::<Result<_, _>>().map(Self)
    }

    /// What comes next.
    pub(crate) fn next(&self) -> Option<&Recorded> {
        self.0.front()
    }

    /// It has come.
    pub(crate) fn advance(&mut self) {
        self.0.pop_front();
    }

    /// Whether such a launch is still to come.
    pub(crate) fn has(&self, launch: &str) -> bool {
        self.0.iter().any(|recorded| matches!(&recorded.event, Event::Launch(other) if other == launch))
    }
}

fn of(path: &Path, error: &impl ToString) -> io::Error {
    io::Error::other(format!("the record {}: {}", path.display(), error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_is_read_again() {
        let path = std::env::temp_dir().join(format!("congruent-record-{}", std::process::id()));
        let events = [Event::Launch("k of PE 1".to_owned()), Event::Idle(25_000), Event::Leap];
        let mut recorder = Recorder::new(&path, "a machine").unwrap();
        events.iter().zip(7..).for_each(|(event, round)| recorder.note(round, event.clone()));
        let replay = Replay::new(&path, "a machine");
        let other = Replay::new(&path, "another").err().unwrap().to_string();
        fs::remove_file(&path).unwrap();
        let expected: Vec<_> = events.into_iter().zip(0..).collect();
        let expected: VecDeque<_> =
            expected.into_iter().map(|(event, at)| Recorded { line: 2 + at, round: 7 + at as u64, event }).collect();
        assert_eq!(replay.unwrap().0, expected);
        assert!(other.contains("a machine\n") && other.contains("another"), "{other}");
    }

    #[test]
    fn what_is_no_record_is_told_with_its_line() {
        for (text, part) in [
            ("", "empty"),
            ("m\nlaunch 1", "line 2: `launch 1`"),
            ("m\nleap 1\nidle x 7", "line 3: `idle x 7`"),
            ("m\nleap 1 2", "line 2"),
            ("m\nnothing 1 2", "line 2"),
        ] {
            let why = Replay::parse(text, "m").err().unwrap();
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
