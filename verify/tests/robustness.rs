//! Whatever text it gets, the linter answers: with findings or with an error that names a place in the text.

#![allow(clippy::expect_used, reason = "a test says what it expects")]

use std::fs;
use std::path::Path;

use congruent_verify::Report;
use proptest::prelude::*;

fn fixtures() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let paths = fs::read_dir(folder).expect("fixtures").map(|entry| entry.expect("an entry").path());
    let mut paths: Vec<_> = paths.filter(|path| path.is_file()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read_to_string(path).expect("text")).collect()
}

/// Lints and renders; nothing may panic on the way.
fn survive(text: &str) {
    match Report::new("text", text) {
        Ok(report) => {
            report.render(false);
        }
        Err(error) => {
            error.to_string();
        }
    }
}

/// Pieces of the language in no sensible order.
fn word() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        ".entry",
        ".func",
        "k",
        "(",
        ")",
        "{",
        "}",
        "[",
        "]",
        ";",
        ",",
        ":",
        "@",
        "!",
        "|",
        "-",
        "+",
        "<",
        ">",
        "7",
        ".reg",
        ".b32",
        "%r",
        "%r1",
        ".param",
        ".pred",
        "p",
        "bra",
        "ret",
        "bar.sync",
        "ld.global.b32",
        "L",
        "L:",
        ".branchtargets",
        "brx.idx",
        "call",
        "_",
        "0f3F800000",
        ".section",
        ".loc",
        "\n",
        "multimem.st.f32",
        "membar.gl",
        ".shared",
        "//",
        "/*",
    ])
}

proptest! {
    #[test]
    fn any_text(text in any::<String>()) {
        survive(&text);
    }

    #[test]
    fn any_words(words in prop::collection::vec(word(), 0..80)) {
        let text = words.join(" ");
        survive(&text);
        survive(&format!(".entry k() {{ .reg .b32 %r<9>; .reg .pred p; {text} }}"));
    }

    #[test]
    fn a_fixture_with_a_piece_replaced(
        fixture in prop::sample::select(fixtures()), at in any::<prop::sample::Index>(), length in 0_usize..40, piece in word(),
    ) {
        let boundary = |at: usize| (0..=at.min(fixture.len())).rev().find(|&at| fixture.is_char_boundary(at)).unwrap_or(0);
        let start = boundary(at.index(fixture.len() + 1));
        let end = boundary(start + length).max(start);
        survive(&format!("{}{piece}{}", &fixture[..start], &fixture[end..]));
    }
}
