//! The tuning table: measured times that stand over the model.
//!
//! A text file that people can read and edit. The first line tells the version that measured; lines that begin with `#`
//! are comments; the rest are columns with commas between them, which no field has within:
//!
//! ```text
//! # congruent 0.1.0 tuning table, format 1
//! machine,collective,members,up_to_bytes,algorithm,protocol,blocks,ns
//! cpu/2-cores/width-1/direct,all-reduce,2,1024,one-shot,ll,1,121.5
//! cpu/2-cores/width-1/direct,all-reduce,2,67108864,direct,simple,1,4150000
//! ```
//!
//! A row holds for its number of members and of blocks, and for sizes up to its own, from that of the row before; the
//! largest holds for all beyond. Several rows of one size are alternatives: the fastest that is possible is taken. Where
//! none is, the model decides. Tables are of the library's own algorithms.

mod error;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use std::str::FromStr;

use congruent_collectives::{Algorithm, Collective, Descriptor, Protocol};

pub use error::{TableError, TableProblem};

use super::circumstances::Circumstances;
use super::refusal::names;

/// The version of the file's layout.
const FORMAT: u32 = 1;

const COLUMNS: [&str; 8] = ["machine", "collective", "members", "up_to_bytes", "algorithm", "protocol", "blocks", "ns"];

/// Measured times.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TuningTable {
    rows: Vec<Measured>,
}

/// One measured time.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// The machine, as [`Parameters::name`](super::Parameters::name): without commas and line breaks.
    pub machine: String,
    /// What it does.
    pub collective: Collective,
    /// Members of the team.
    pub members: usize,
    /// The bytes that were measured, as [`Circumstances::bytes`](super::Circumstances::bytes), and up to which the row
    /// holds.
    pub up_to_bytes: u64,
    /// Along which paths.
    pub algorithm: Algorithm,
    /// How data and signals travel.
    pub protocol: Protocol,
    /// Blocks that shared the call.
    pub blocks: u32,
    /// Nanoseconds that it took.
    pub ns: f64,
}

impl TuningTable {
    /// A table of these rows, in the order in which they are written.
    pub fn new(rows: Vec<Measured>) -> Self {
        Self { rows }
    }

    /// Reads a file that `machine` is to be tuned by.
    ///
    /// # Errors
    /// See [`TableError`]: a file that cannot be read, a line that is wrong, or no row for this machine.
    pub fn read(path: &Path, machine: &str) -> Result<Self, TableError> {
        let read = std::fs::read_to_string(path);
        let text = read.map_err(|error| TableError::Read { path: path.to_owned(), error })?;
        let table =
            Self::parse(&text).map_err(|(line, problem)| TableError::Line { path: path.to_owned(), line, problem })?;
        if table.rows.iter().any(|row| row.machine == machine) {
            return Ok(table);
        }
        let machines: BTreeSet<&str> = table.rows.iter().map(|row| &*row.machine).collect();
        let found = if machines.is_empty() { "nothing".to_owned() } else { names(machines) };
        Err(TableError::OtherMachine { path: path.to_owned(), found, machine: machine.to_owned() })
    }

    /// Reads the text of a table.
    ///
    /// # Errors
    /// The first line that is wrong, from 1, and what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, (u64, TableProblem)> {
        version(text.lines().next().unwrap_or_default()).map_err(|problem| (1, problem))?;
        let mut rows: Vec<Measured> = Vec::new();
        let mut has_columns = false;
        for (line, number) in
            text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty() && !line.starts_with('#'))
        {
            let fields: Vec<&str> = line.split(',').map(str::trim).collect();
            if !has_columns {
                has_columns = fields == COLUMNS;
                if !has_columns {
                    return Err((number, TableProblem::Columns));
                }
                continue;
            }
            let row = Measured::parse(&fields).map_err(|problem| (number, problem))?;
            if rows.iter().any(|earlier| earlier.is_of_same_call(&row)) {
                return Err((number, TableProblem::Twice));
            }
            rows.push(row);
        }
        Ok(Self { rows })
    }

    /// Writes the file, in place of one that is there.
    ///
    /// # Errors
    /// [`TableError::Write`].
    pub fn write(&self, path: &Path) -> Result<(), TableError> {
        std::fs::write(path, self.to_text()).map_err(|error| TableError::Write { path: path.to_owned(), error })
    }

    /// The file's text.
    pub fn to_text(&self) -> String {
        let mut text = format!("{}\n{}\n", first_line(), COLUMNS.join(","));
        for row in &self.rows {
            let Measured { machine, collective, members, up_to_bytes, algorithm, protocol, blocks, ns } = row;
            // Writing to a string does not fail.
            let _ =
                writeln!(text, "{machine},{collective},{members},{up_to_bytes},{algorithm},{protocol},{blocks},{ns}");
        }
        text
    }

    /// The rows, in the order of the file.
    pub fn rows(&self) -> &[Measured] {
        &self.rows
    }

    /// The rows that hold for a call, which takes so many blocks if it goes as a row says: those of the smallest size that is not
    /// smaller, or of the largest there is.
    pub(super) fn nearest(
        &self,
        machine: &str,
        collective: Collective,
        call: &Circumstances,
        blocks: impl Fn(&Measured) -> u32 + Copy,
    ) -> impl Iterator<Item = &Measured> {
        let Circumstances { members, bytes, .. } = *call;
        let of = move |row: &&Measured| {
            row.machine == machine && (row.collective, row.members, row.blocks) == (collective, members, blocks(row))
        };
        let sizes = || self.rows.iter().filter(of).map(|row| row.up_to_bytes);
        let size = sizes().filter(|size| *size >= bytes).min().or_else(|| sizes().max());
        self.rows.iter().filter(of).filter(move |row| Some(row.up_to_bytes) == size)
    }
}

impl Measured {
    fn parse(fields: &[&str]) -> Result<Self, TableProblem> {
        let &[machine, collective, members, up_to_bytes, algorithm, protocol, blocks, ns] = fields else {
            return Err(TableProblem::Fields { found: fields.len() });
        };
        let name = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let time = |text: &str| text.parse().ok().filter(|ns: &f64| ns.is_finite() && *ns > 0.0);
        let row = Self {
            machine: field("machine", machine, "the name of a machine", name)?,
            collective: field("collective", collective, &names(Collective::ALL), Collective::named)?,
            members: field("members", members, "a number from 1", positive)?,
            up_to_bytes: field("up_to_bytes", up_to_bytes, "a whole number", |text| text.parse().ok())?,
            algorithm: field("algorithm", algorithm, &names(Algorithm::ALL), Algorithm::named)?,
            protocol: field("protocol", protocol, &names(Protocol::ALL), Protocol::named)?,
            blocks: field("blocks", blocks, "a number from 1", positive)?,
            ns: field("ns", ns, "nanoseconds above 0", time)?,
        };
        let Self { collective, algorithm, protocol, .. } = row;
        match Descriptor::of(collective, algorithm) {
            Some(known) if known.protocols.contains(&protocol) => Ok(row),
            _ => Err(TableProblem::NoSuchWay { collective, algorithm, protocol }),
        }
    }

    fn is_of_same_call(&self, other: &Self) -> bool {
        let key = |row: &Self| (row.collective, row.members, row.up_to_bytes, row.algorithm, row.protocol, row.blocks);
        self.machine == other.machine && key(self) == key(other)
    }
}

fn field<T>(
    column: &'static str,
    value: &str,
    expected: &str,
    read: impl Fn(&str) -> Option<T>,
) -> Result<T, TableProblem> {
    read(value).ok_or_else(|| TableProblem::Field { column, value: value.to_owned(), expected: expected.to_owned() })
}

fn positive<T: FromStr + PartialOrd + From<u8>>(text: &str) -> Option<T> {
    text.parse().ok().filter(|number| *number >= T::from(1))
}

fn first_line() -> String {
    format!("# congruent {} tuning table, format {FORMAT}", env!("CARGO_PKG_VERSION"))
}

fn version(line: &str) -> Result<(), TableProblem> {
    let line = line.trim_end();
    if line == first_line() {
        return Ok(());
    }
    let parts = line.strip_prefix("# congruent ").and_then(|rest| rest.split_once(" tuning table, format "));
    Err(match parts {
        Some((version, format)) => TableProblem::Version { version: version.to_owned(), format: format.to_owned() },
        None => TableProblem::NoTable { expected: first_line() },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: &str = "cpu/2-cores/width-1/direct";

    fn measured(up_to_bytes: u64, algorithm: Algorithm, protocol: Protocol, ns: f64) -> Measured {
        let (machine, collective) = (MACHINE.to_owned(), Collective::AllReduce);
        Measured { machine, collective, members: 2, up_to_bytes, algorithm, protocol, blocks: 1, ns }
    }

    fn example() -> TuningTable {
        TuningTable::new(vec![
            measured(1024, Algorithm::ONE_SHOT, Protocol::Ll, 121.5),
            measured(1024, Algorithm::RING, Protocol::Simple, 289.0),
            measured(1 << 20, Algorithm::DIRECT, Protocol::Simple, 30_000.25),
        ])
    }

    fn parse_with(lines: &[&str]) -> Result<TuningTable, (u64, TableProblem)> {
        let columns = COLUMNS.join(",");
        TuningTable::parse(&[&[&*first_line(), "# by hand", &columns], lines].concat().join("\n"))
    }

    #[test]
    fn what_is_written_is_read_again() {
        let table = example();
        let text = table.to_text();
        assert_eq!(TuningTable::parse(&text), Ok(table));
        assert!(text.contains("\ncpu/2-cores/width-1/direct,all-reduce,2,1024,one-shot,ll,1,121.5\n"), "{text}");
        assert_eq!(TuningTable::parse(&text.replace('\n', "\r\n")), Ok(example()));
    }

    #[test]
    fn people_may_comment_and_align() {
        let line = format!("{MACHINE} , AllReduce,  2, 1024, one_shot, LL, 1, 121.5");
        let table = parse_with(&["", "# small ones", &line, ""]).unwrap();
        assert_eq!(table.rows(), &example().rows()[..1]);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let good = "m,all-reduce,2,1024,ring,simple,1,10";
        for (line, expected) in [
            ("m,all-reduce,2,1024,ring,simple,1", "7 fields; expected machine,"),
            ("m,all-redoce,2,1024,ring,simple,1,10", "collective is `all-redoce`; expected barrier"),
            ("m,all-reduce,0,1024,ring,simple,1,10", "members is `0`; expected a number from 1"),
            ("m,all-reduce,2,1K,ring,simple,1,10", "up_to_bytes is `1K`"),
            ("m,all-reduce,2,1024,rung,simple,1,10", "algorithm is `rung`; expected ring"),
            ("m,all-reduce,2,1024,ring,simpel,1,10", "protocol is `simpel`"),
            ("m,all-reduce,2,1024,ring,simple,1,-3", "ns is `-3`; expected nanoseconds above 0"),
            ("m,all-reduce,2,1024,ring,simple,1,NaN", "ns is `NaN`"),
            (",all-reduce,2,1024,ring,simple,1,10", "machine is ``"),
            ("m,all-to-all,2,1024,ring,simple,1,10", "there is no ring all-to-all with simple"),
            (good, "an earlier line has a time for the same call"),
        ] {
            let (at, problem) = parse_with(&[good, "# with a mistake", line]).unwrap_err();
            assert_eq!(at, 6, "{line}");
            assert!(problem.to_string().contains(expected), "{problem}");
        }
    }

    #[test]
    fn other_versions_and_other_files_are_refused() {
        let other = example().to_text().replacen(env!("CARGO_PKG_VERSION"), "0.0.9", 1);
        let (line, problem) = TuningTable::parse(&other).unwrap_err();
        assert_eq!((line, &problem), (1, &TableProblem::Version { version: "0.0.9".into(), format: "1".into() }));
        assert!(problem.to_string().contains("measure again"));
        for text in ["", "hello", "machine,collective"] {
            assert!(matches!(TuningTable::parse(text), Err((1, TableProblem::NoTable { .. }))), "{text}");
        }
        let columns = format!("{}\na,b\n", first_line());
        assert_eq!(TuningTable::parse(&columns), Err((2, TableProblem::Columns)));
    }

    #[test]
    fn a_file_of_another_machine_is_refused_by_name() {
        let path = std::env::temp_dir().join(format!("congruent-tuning-{}.csv", std::process::id()));
        example().write(&path).unwrap();
        let read = TuningTable::read(&path, MACHINE);
        let other = TuningTable::read(&path, "cuda/pcie").unwrap_err().to_string();
        std::fs::write(&path, example().to_text() + "m,all-reduce,x\n").unwrap();
        let corrupt = TuningTable::read(&path, MACHINE).unwrap_err().to_string();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read.unwrap(), example());
        assert!(other.contains("about cpu/2-cores/width-1/direct, not about this machine, cuda/pcie"), "{other}");
        assert!(corrupt.contains(".csv:6: 3 fields"), "{corrupt}");
        let unwritten = example().write(&path.join("below")).unwrap_err().to_string();
        assert!(unwritten.starts_with("cannot write the tuning table"), "{unwritten}");
        let missing = TuningTable::read(&path, MACHINE).unwrap_err().to_string();
        assert!(
            missing.starts_with("cannot read the tuning table") && missing.contains("CONGRUENT_TUNING"),
            "{missing}"
        );
    }

    #[test]
    fn the_nearest_rows_are_those_of_the_next_size() {
        let table = example();
        let of = |machine, call| table.nearest(machine, Collective::AllReduce, &call, |_| call.blocks).count();
        let count = |bytes| of(MACHINE, Circumstances::plain(2, bytes));
        assert_eq!([0, 1024, 1025, 1 << 20, 1 << 30].map(count), [2, 2, 1, 1, 1]);
        assert_eq!(of(MACHINE, Circumstances::plain(4, 8)), 0);
        assert_eq!(of(MACHINE, Circumstances { blocks: 4, ..Circumstances::plain(2, 8) }), 0);
        assert_eq!(of("cuda/pcie", Circumstances::plain(2, 8)), 0);
    }
}
