//! What each kernel costs, as a table that is checked in beside the PTX: a change that costs registers or spills shows.

use core::fmt;

use crate::error::BuildError;
use crate::ptxas::{Assembly, FunctionUsage};

/// What the kernels of some files cost, by one assembler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageTable {
    ptxas: String,
    /// Architecture, function: in order of both.
    rows: Vec<(String, FunctionUsage)>,
}

/// How a checked-in table compares with the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UsageVerdict {
    /// The files cost what it says.
    Current,
    /// They cost something else by the same assembler: write the table again, and look at what changed.
    Differs {
        /// Rows of the table that do not hold, and rows that would, with `-` and `+` before them.
        rows: Vec<String>,
    },
    /// Another assembler made it, so it cannot be compared.
    OtherPtxas {
        /// The assembler that made it.
        made_by: String,
        /// The one here.
        here: String,
    },
    /// It is no such table.
    Missing,
}

const HEADER: &str = "\
# What each kernel costs, with the functions that it calls: registers of a thread, bytes of stack, bytes of spill stores and
# loads, bytes of shared memory of a block. Where a file leaves functions to the driver, each by itself, and - for registers of
# what is no kernel. Written by `congruent-build assemble --table`; do not edit.
";
const PTXAS: &str = "# ptxas: ";

impl UsageTable {
    /// The table of assembled files.
    ///
    /// # Errors
    /// [`BuildError::StackFrames`] where a kernel keeps anything on the stack, which is slow memory: locals or spilled registers.
    pub fn new(ptxas: &str, assemblies: impl IntoIterator<Item = Assembly>) -> Result<Self, BuildError> {
        let mut rows: Vec<(String, FunctionUsage)> = Vec::new();
        for Assembly { arch, functions } in assemblies {
            rows.extend(functions.into_iter().map(|usage| (arch.clone(), usage)));
        }
        let framed: Vec<String> = rows.iter().filter(|(_, usage)| usage.stack > 0).map(row).collect();
        if !framed.is_empty() {
            return Err(BuildError::StackFrames { rows: framed.join("\n") });
        }
        rows.sort_by(|(a, one), (b, other)| (generation(a), a, &one.name).cmp(&(generation(b), b, &other.name)));
        Ok(Self { ptxas: ptxas.to_owned(), rows })
    }

    /// Compares with what is checked in.
    pub fn compare(&self, checked_in: &str) -> UsageVerdict {
        let Some(made_by) = checked_in.lines().find_map(|line| line.strip_prefix(PTXAS)) else {
            return UsageVerdict::Missing;
        };
        if made_by != self.ptxas {
            return UsageVerdict::OtherPtxas { made_by: made_by.to_owned(), here: self.ptxas.clone() };
        }
        let fresh: Vec<String> = self.rows.iter().map(row).collect();
        let old: Vec<&str> = checked_in.lines().filter(|line| !line.starts_with('#')).collect();
        let gone = old.iter().filter(|old| !fresh.iter().any(|fresh| fresh == *old)).map(|row| format!("- {row}"));
        let new = fresh.iter().filter(|fresh| !old.contains(&fresh.as_str())).map(|row| format!("+ {row}"));
        let rows: Vec<String> = gone.chain(new).collect();
        if rows.is_empty() { UsageVerdict::Current } else { UsageVerdict::Differs { rows } }
    }
}

impl fmt::Display for UsageTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{HEADER}{PTXAS}{}\n# arch   regs stack stores loads shared kernel\n", self.ptxas)?;
        self.rows.iter().try_for_each(|one| writeln!(f, "{}", row(one)))
    }
}

fn row((arch, usage): &(String, FunctionUsage)) -> String {
    let FunctionUsage { name, registers, stack, spill_stores, spill_loads, shared } = usage;
    let registers = registers.map_or_else(|| "-".to_owned(), |registers| registers.to_string());
    format!("{arch:8} {registers:>4} {stack:>5} {spill_stores:>6} {spill_loads:>5} {shared:>6} {name}")
}

/// The number in `sm_100`, so that it comes after `sm_90`.
pub(crate) fn generation(arch: &str) -> u32 {
    let digits = arch.trim_start_matches("sm_").trim_end_matches(char::is_alphabetic);
    digits.parse().unwrap_or(u32::MAX)
}

impl fmt::Display for UsageVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Current => f.write_str("current"),
            Self::Differs { rows } => {
                write!(f, "the kernels cost something else; see why, then write it again:\n{}", rows.join("\n"))
            }
            Self::OtherPtxas { made_by, here } => {
                write!(f, "WARNING: NOT COMPARED: made with ptxas {made_by}, and here is ptxas {here}")
            }
            Self::Missing => f.write_str("missing; write it without --check"),
        }
    }
}

impl UsageVerdict {
    /// Whether nothing is known to be wrong.
    pub fn is_ok(&self) -> bool {
        matches!(self, Self::Current | Self::OtherPtxas { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assembly(arch: &str, functions: &[(&str, u32)]) -> Assembly {
        let usage = |&(name, registers): &(&str, u32)| FunctionUsage {
            name: name.to_owned(),
            registers: (registers > 0).then_some(registers),
            ..FunctionUsage::default()
        };
        Assembly { arch: arch.to_owned(), functions: functions.iter().map(usage).collect() }
    }

    fn table(registers: u32) -> UsageTable {
        let files = [assembly("sm_100", &[("put", registers)]), assembly("sm_90", &[("put", 30), ("fold", 0)])];
        UsageTable::new("13.5", files).unwrap()
    }

    #[test]
    fn rows_stand_by_generation_and_name() {
        let text = table(32).to_string();
        let rows: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            rows,
            [
                "sm_90       -     0      0     0      0 fold",
                "sm_90      30     0      0     0      0 put",
                "sm_100     32     0      0     0      0 put",
            ]
        );
        assert_eq!(table(32).compare(&text), UsageVerdict::Current);
    }

    #[test]
    fn what_changed_is_told_by_rows() {
        let text = table(32).to_string();
        let UsageVerdict::Differs { rows } = table(40).compare(&text) else { panic!("32 is not 40") };
        assert_eq!(
            rows,
            ["- sm_100     32     0      0     0      0 put", "+ sm_100     40     0      0     0      0 put"]
        );
        let less = UsageTable::new("13.5", [assembly("sm_100", &[("put", 32)])]).unwrap();
        assert!(matches!(less.compare(&text), UsageVerdict::Differs { rows } if rows.len() == 2));
        assert!(!table(40).compare(&text).is_ok());
    }

    #[test]
    fn another_assembler_is_not_compared_and_no_table_is_missing() {
        let other = table(32).to_string().replace("13.5", "12.8");
        let verdict = table(40).compare(&other);
        assert!(verdict.is_ok() && verdict.to_string().contains("NOT COMPARED"), "{verdict}");
        assert_eq!(table(32).compare(""), UsageVerdict::Missing);
        assert!(!UsageVerdict::Missing.is_ok());
    }

    #[test]
    fn a_stack_is_an_error_that_names_the_kernel() {
        let mut file = assembly("sm_90", &[("put", 30), ("get", 20)]);
        assert!(UsageTable::new("13.5", [file.clone()]).is_ok());
        file.functions[1].stack = 8;
        let error = UsageTable::new("13.5", [file]).unwrap_err().to_string();
        assert!(error.contains("get") && !error.contains("put"), "{error}");
    }
}
