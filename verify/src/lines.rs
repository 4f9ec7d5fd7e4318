//! Which line of its source a line of PTX comes from.
//!
//! PTX is shipped without line directives. Whoever builds it can have a table made beside it (`congruent-build build --lines`),
//! which lies in [the cache](cache_folder) under the hash of the text, and so is found by everyone on the same machine who has
//! the text.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::{env, fs, path};

use sha2::{Digest, Sha256};
use thiserror::Error;

/// Names the folder of the cache, before all others.
const CACHE_VARIABLE: &str = "CONGRUENT_CACHE";
/// The first line of a table.
const HEAD: &str = "congruent lines 1";
/// How the paths of Rust's own libraries begin.
const LIBRARY: &str = "rust/library/";

/// The folder that holds what was compiled, tools and tables of lines; it may be removed while nothing is built.
///
/// It is `CONGRUENT_CACHE`, or `congruent` in `XDG_CACHE_HOME` or in `~/.cache`. `None` where the environment names none of them.
pub fn cache_folder() -> Option<PathBuf> {
    if let Some(folder) = env::var_os(CACHE_VARIABLE).filter(|folder| !folder.is_empty()) {
        return path::absolute(folder).ok();
    }
    // Paths that are not absolute are to be passed over, says the XDG specification.
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|folder| folder.is_absolute());
    let caches = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    Some(caches?.join("congruent"))
}

/// A table of lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    files: Vec<String>,
    places: Vec<Place>,
    known: HashMap<Place, u32>,
    /// From this line of the PTX on, which place it comes from, if any; in order.
    rows: Vec<(u32, Option<u32>)>,
}

/// A line of the source, and the place that it was inlined at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Place {
    file: u32,
    line: u32,
    caller: Option<u32>,
}

/// A text that is no table of lines.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: no row of a table of lines")]
pub struct LinesError {
    /// The line, counted from 1.
    pub line: usize,
}

impl Lines {
    /// A place, once for each line and caller: `caller` is what this gave for the place that it was inlined at.
    pub fn place(&mut self, file: &str, line: u32, caller: Option<u32>) -> u32 {
        let known = self.files.iter().position(|known| known == file);
        let file = known.unwrap_or_else(|| {
            self.files.push(file.to_owned());
            self.files.len() - 1
        });
        let place = Place { file: file as u32, line, caller };
        *self.known.entry(place).or_insert_with(|| {
            self.places.push(place);
            self.places.len() as u32 - 1
        })
    }

    /// Lines of the PTX from this one on, counted from 1, come from a place, or from none; to be called in their order.
    pub fn begin(&mut self, line: u32, place: Option<u32>) {
        if self.rows.last().map_or(place.is_some(), |&(_, last)| last != place) {
            self.rows.push((line, place));
        }
    }

    /// The files and lines that a line of the PTX comes from: first the innermost, then what it was inlined at.
    pub fn at(&self, line: usize) -> impl Iterator<Item = (&str, u32)> {
        let row = self.rows.partition_point(|&(first, _)| first as usize <= line);
        let mut next = row.checked_sub(1).and_then(|row| self.rows[row].1);
        core::iter::from_fn(move || {
            let Place { file, line, caller } = self.places[next? as usize];
            next = caller;
            Some((self.files[file as usize].as_str(), line))
        })
    }

    /// The same as text, without what is in Rust's own libraries, unless there is nothing else.
    pub fn chain(&self, line: usize) -> Vec<String> {
        let ours: Vec<_> = self.at(line).filter(|(file, _)| !file.starts_with(LIBRARY)).collect();
        let shown = if ours.is_empty() { self.at(line).collect() } else { ours };
        shown.iter().map(|(file, line)| format!("{file}:{line}")).collect()
    }

    /// The same in words.
    pub fn describe(&self, line: usize) -> Option<String> {
        let chain = self.chain(line);
        (!chain.is_empty()).then(|| chain.join(", called at "))
    }

    /// The file of the table of a text, in the cache.
    pub fn file(text: &str) -> Option<PathBuf> {
        let hash: String = Sha256::digest(text).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        Some(cache_folder()?.join("lines").join(hash))
    }

    /// The table of a text, where it is in the cache.
    pub fn find(text: &str) -> Option<Self> {
        fs::read_to_string(Self::file(text)?).ok()?.parse().ok()
    }
}

impl fmt::Display for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEAD}")?;
        self.files.iter().try_for_each(|file| writeln!(f, "file {file}"))?;
        for Place { file, line, caller } in &self.places {
            match caller {
                Some(caller) => writeln!(f, "place {file} {line} {caller}"),
                None => writeln!(f, "place {file} {line}"),
            }?;
        }
        self.rows.iter().try_for_each(|(line, place)| match place {
            Some(place) => writeln!(f, "{line} {place}"),
            None => writeln!(f, "{line}"),
        })
    }
}

impl FromStr for Lines {
    type Err = LinesError;

    fn from_str(text: &str) -> Result<Self, LinesError> {
        let mut lines = Self::default();
        for (index, row) in text.lines().enumerate() {
            let read = if index == 0 { (row == HEAD).then_some(()) } else { lines.read(row) };
            read.ok_or(LinesError { line: index + 1 })?;
        }
        Ok(lines)
    }
}

impl Lines {
    /// Takes in a row; a number that it refers to belongs to a row before it.
    fn read(&mut self, row: &str) -> Option<()> {
        if let Some(file) = row.strip_prefix("file ") {
            self.files.push(file.to_owned());
            return Some(());
        }
        let mut numbers = row.strip_prefix("place ").unwrap_or(row).split(' ').map(|word| word.parse::<u32>().ok());
        let first = numbers.next()??;
        if !row.starts_with("place ") {
            let place = numbers.next().map_or(Some(None), |place| place.map(Some))?;
            if place.is_some_and(|place| place as usize >= self.places.len()) {
                return None;
            }
            self.rows.push((first, place));
            return Some(());
        }
        let line = numbers.next()??;
        let caller = numbers.next().map_or(Some(None), |caller| caller.map(Some))?;
        let known = (first as usize) < self.files.len();
        if !known || caller.is_some_and(|caller| caller as usize >= self.places.len()) {
            return None;
        }
        let place = Place { file: first, line, caller };
        self.known.insert(place, self.places.len() as u32);
        self.places.push(place);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Lines {
        let mut lines = Lines::default();
        let kernel = lines.place("k-0.1.0/src/lib.rs", 7, None);
        let put = lines.place("d-0.1.0/src/put.rs", 3, Some(kernel));
        let minimum = lines.place("rust/library/core/src/cmp.rs", 9, Some(put));
        for (line, place) in [(5, None), (10, Some(kernel)), (12, Some(minimum)), (13, Some(minimum)), (20, None)] {
            lines.begin(line, place);
        }
        lines
    }

    #[test]
    fn places_are_given_from_the_inside_out() {
        let lines = table();
        let chain = [("rust/library/core/src/cmp.rs", 9), ("d-0.1.0/src/put.rs", 3), ("k-0.1.0/src/lib.rs", 7)];
        assert_eq!(lines.at(19).collect::<Vec<_>>(), chain);
        assert_eq!(lines.describe(12).as_deref(), Some("d-0.1.0/src/put.rs:3, called at k-0.1.0/src/lib.rs:7"));
        assert_eq!(lines.describe(11).as_deref(), Some("k-0.1.0/src/lib.rs:7"));
        assert_eq!([1, 9, 20, 99].map(|line| lines.describe(line)), [None, None, None, None]);
    }

    #[test]
    fn a_table_is_read_back() {
        let lines = table();
        assert_eq!(lines.to_string().parse::<Lines>(), Ok(lines));
        assert_eq!("other\n".parse::<Lines>(), Err(LinesError { line: 1 }));
        for row in ["place 0 1", "1 0", "file", "one", "place 1", ""] {
            let read = format!("{HEAD}\n{row}\n").parse::<Lines>();
            assert_eq!(read, Err(LinesError { line: 2 }), "{row}");
        }
    }
}
