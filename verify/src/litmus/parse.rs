//! The text of tests. Instructions are read by the PTX parser.

use super::error::Error;
use super::instructions::Builder;
use super::outcome::{Test, Verdict};
use super::program::Thread;

/// A line that begins here, and its number.
#[derive(Clone, Copy)]
pub(super) struct Line<'a> {
    pub(super) number: usize,
    pub(super) text: &'a str,
}

/// A test as it is written.
#[derive(Clone)]
pub(super) struct Draft<'a> {
    name: String,
    line: usize,
    pub(super) threads: Vec<(Thread, Vec<Line<'a>>)>,
    /// Another name, and the location.
    pub(super) aliases: Vec<(&'a str, &'a str)>,
    /// A multicast address, and its members.
    pub(super) multicasts: Vec<(&'a str, Vec<&'a str>)>,
    /// A location, and into pieces of how many bytes it may be torn.
    pub(super) pieces: Vec<(&'a str, u32)>,
    pub(super) promises: super::program::Promises,
    pub(super) condition: Option<Line<'a>>,
    expected: Option<Verdict>,
    clauses: Vec<String>,
    /// Whether instructions may follow: the last line was a thread's or an instruction, and this is no variant.
    is_in_thread: bool,
    pub(super) is_variant: bool,
}

impl Line<'_> {
    pub(super) fn error(&self, message: impl Into<String>) -> Error {
        Error { line: self.number, message: message.into() }
    }
}

/// Reads the tests of a file.
pub fn parse(text: &str) -> Result<Vec<Test>, Error> {
    let mut drafts: Vec<Draft<'_>> = Vec::new();
    let mut base = None;
    for (index, whole) in text.lines().enumerate() {
        let text = whole.split(['#']).next().unwrap_or_default().trim().trim_end_matches(';').trim_end();
        let line = Line { number: index + 1, text };
        let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let rest = rest.trim();
        match (word, drafts.last_mut()) {
            ("", _) => {}
            ("test", _) => {
                base = Some(drafts.len());
                drafts.push(Draft::new(rest, line)?);
            }
            ("variant", _) => {
                let base = base.and_then(|base: usize| drafts.get(base));
                let base = base.ok_or_else(|| line.error("there is no test before this variant"))?;
                drafts.push(base.variant(rest, line));
            }
            (_, Some(draft)) => draft.line(word, rest, line)?,
            (_, None) => return Err(line.error("expected `test NAME`")),
        }
    }
    drafts.iter().map(Draft::build).collect()
}

impl<'a> Draft<'a> {
    fn new(name: &str, line: Line<'_>) -> Result<Self, Error> {
        if name.is_empty() {
            return Err(line.error("a test needs a name"));
        }
        Ok(Self {
            name: name.to_owned(),
            line: line.number,
            threads: Vec::new(),
            aliases: Vec::new(),
            multicasts: Vec::new(),
            pieces: Vec::new(),
            promises: Default::default(),
            condition: None,
            expected: None,
            clauses: Vec::new(),
            is_in_thread: false,
            is_variant: false,
        })
    }

    fn variant(&self, name: &str, line: Line<'_>) -> Self {
        let name = format!("{}/{name}", self.name);
        let clauses = Vec::new();
        Self { name, line: line.number, expected: None, clauses, is_in_thread: false, is_variant: true, ..self.clone() }
    }

    fn line(&mut self, word: &'a str, rest: &'a str, line: Line<'a>) -> Result<(), Error> {
        let was_in_thread = core::mem::take(&mut self.is_in_thread);
        let words: Vec<&str> = rest.split_whitespace().collect();
        match (word, words.as_slice()) {
            ("thread", [name, place @ ..]) => self.thread(name, place, line)?,
            ("alias", [name, of]) => self.aliases.push((name, of)),
            ("multimem", [name, members @ ..]) if !members.is_empty() => {
                self.multicasts.push((name, members.to_vec()));
            }
            ("pieces", [location, bytes]) => {
                let bytes = bytes.parse().ok().filter(|bytes| matches!(bytes, 1 | 2 | 4));
                self.pieces.push((location, bytes.ok_or_else(|| line.error("pieces are of 1, 2 or 4 bytes"))?));
            }
            ("promise", ["ll128_128b_ordered"]) => self.promises.ordered_lines = true,
            ("promise", ["v4_16b_atomic"]) => self.promises.atomic_vectors = true,
            ("exists", [_, ..]) => self.condition = Some(Line { text: rest, ..line }),
            ("expect", ["allowed"]) => self.expected = Some(Verdict::Allowed),
            ("expect", ["forbidden"]) => self.expected = Some(Verdict::Forbidden),
            ("expect", ["void"]) => self.expected = Some(Verdict::Void),
            ("rules", clauses) => self.clauses = clauses.iter().map(|clause| (*clause).to_owned()).collect(),
            _ if self.is_variant && line.text.contains("=>") => self.change(line)?,
            _ if was_in_thread => {
                self.is_in_thread = true;
                if let Some((_, lines)) = self.threads.last_mut() {
                    lines.push(line);
                }
            }
            _ => return Err(line.error(format!("`{}` is not understood here", line.text))),
        }
        Ok(())
    }

    /// Declares a thread, or, in a variant, moves one.
    fn thread(&mut self, name: &str, place: &[&str], line: Line<'_>) -> Result<(), Error> {
        let mut thread = Thread { name: name.to_owned(), gpu: Some(0), cluster: 0, cta: 0, warp: 0 };
        let mut words = place.iter();
        while let Some(&what) = words.next() {
            if what == "host" {
                thread.gpu = None;
                continue;
            }
            let number = words.next().and_then(|number| number.parse().ok());
            let number = number.ok_or_else(|| line.error(format!("`{what}` needs a number")))?;
            match what {
                "gpu" => thread.gpu = Some(number),
                "cluster" => thread.cluster = number,
                "cta" => thread.cta = number,
                "warp" => thread.warp = number,
                _ => return Err(line.error(format!("`{what}` is no place; places are gpu, cluster, cta, warp, host"))),
            }
        }
        match self.threads.iter_mut().find(|(own, _)| own.name == name) {
            Some((own, _)) if self.is_variant => *own = thread,
            Some(_) => return Err(line.error(format!("there are two threads `{name}`"))),
            None if self.is_variant => return Err(line.error(format!("there is no thread `{name}`"))),
            None => {
                self.threads.push((thread, Vec::new()));
                self.is_in_thread = true;
            }
        }
        Ok(())
    }

    /// `P0: OLD => NEW`, `P0/2: OLD => NEW; NEW`.
    fn change(&mut self, line: Line<'a>) -> Result<(), Error> {
        let parts = line.text.split_once("=>").and_then(|(old, new)| Some((old.split_once(": ")?, new)));
        let ((thread, old), new) = parts.ok_or_else(|| line.error("expected `THREAD: OLD => NEW`"))?;
        let (thread, which) = thread.split_once('/').unwrap_or((thread, ""));
        let own = self.threads.iter_mut().find(|(own, _)| own.name == thread.trim());
        let (_, lines) = own.ok_or_else(|| line.error(format!("there is no thread `{thread}`")))?;
        let same = |text: &str| text.split_whitespace().eq(old.split_whitespace());
        let alike: Vec<usize> = (0..lines.len()).filter(|&at| same(lines[at].text)).collect();
        let found = match which.parse::<usize>() {
            Ok(which) => which.checked_sub(1).and_then(|which| alike.get(which)),
            Err(_) if alike.len() == 1 => alike.first(),
            Err(_) => None,
        };
        let at = *found.ok_or_else(|| {
            line.error(format!("`{}` is {} times in {thread}; say which as in `{thread}/2:`", old.trim(), alike.len()))
        })?;
        let new = new.split(';').map(str::trim).filter(|text| !text.is_empty());
        lines.splice(at..=at, new.map(|text| Line { text, ..line }));
        Ok(())
    }

    fn build(&self) -> Result<Test, Error> {
        let line = Line { number: self.line, text: "" };
        let expected = self.expected.ok_or_else(|| line.error(format!("`{}` expects nothing", self.name)))?;
        let condition = self.condition.ok_or_else(|| line.error(format!("`{}` asks for no outcome", self.name)))?;
        let program = Builder::new(self).program(condition)?;
        Ok(Test { name: self.name.clone(), line: self.line, expected, clauses: self.clauses.clone(), program })
    }
}
