//! Compares declarations of a C interface with what a C compiler makes of its headers.

use std::io::Write;
use std::process::{Command, Stdio};

/// Offsets of fields as C says them, and as they are here.
macro_rules! table {
    ($($c:literal: $struct:ty { $($field:ident $(= $name:literal)?),* $(,)? })*) => {
        vec![$($((
            format!("offsetof({}, {})", $c, [stringify!($field) $(, $name)?].last().unwrap()),
            std::mem::offset_of!($struct, $field) as u64,
        ),)*)*]
    };
}
pub(crate) use table;

/// Checks that C expressions over the headers of a library are what is said of each. Without the headers there is nothing to compare with:
/// `./check tools` installs them.
pub(crate) fn compare(library: &str, headers: &str, expressions: &[(String, u64)]) {
    let headers = format!("#include <stdio.h>\n#include <stddef.h>\n{headers}");
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("layouts");
    let compile = |source: &str| {
        let mut cc = Command::new("cc");
        let piped = cc.args(["-x", "c", "-", "-o"]).arg(&program).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut cc = piped.spawn().unwrap();
        cc.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
        cc.wait_with_output().unwrap()
    };
    if !compile(&format!("{headers}int main(void) {{ return 0; }}")).status.success() {
        // Past the harness, which hides what passing tests print.
        let _ = writeln!(std::io::stderr(), "SKIPPED layouts_are_those_of_the_headers: no headers of {library}");
        return;
    }
    let prints: String =
        expressions.iter().map(|(c, _)| format!("printf(\"%llu\\n\", (unsigned long long)({c}));\n")).collect();
    let compiled = compile(&format!("{headers}int main(void) {{\n{prints}return 0;\n}}\n"));
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let told = Command::new(&program).output().unwrap();
    let told = String::from_utf8(told.stdout).unwrap();
    let told: Vec<u64> = told.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(told.len(), expressions.len());
    for ((c, here), there) in expressions.iter().zip(told) {
        assert_eq!(*here, there, "{c}");
    }
}
