//! Unsafe code lives in the places that `UNSAFE.md` names and nowhere else; run with `--nocapture` to see the counts.

use congruent_tests::{repository, sources};

/// Files and folders named in the table of `UNSAFE.md`: the first cell of each row, in backticks.
fn places() -> std::io::Result<Vec<String>> {
    let page = std::fs::read_to_string(repository().join("UNSAFE.md"))?;
    let cells = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    Ok(cells.map(|(place, _)| place.to_owned()).collect())
}

#[test]
fn unsafe_code_is_where_the_page_says() {
    let places = places().unwrap();
    let mut counts = vec![0; places.len()];
    let mut strays = Vec::new();
    for source in sources().unwrap() {
        let lines = source.lines_with("unsafe");
        match places.iter().position(|place| source.path.starts_with(place)) {
            _ if lines == 0 => {}
            Some(place) => counts[place] += lines,
            None => strays.push(format!("{}: {lines} lines", source.path)),
        }
    }
    for (place, count) in places.iter().zip(&counts) {
        println!("{count:5}  {place}");
    }
    assert!(strays.is_empty(), "unsafe code outside the places in UNSAFE.md: {strays:#?}");
}

#[test]
fn the_page_names_no_place_in_vain() {
    let sources = sources().unwrap();
    for place in places().unwrap() {
        let used = sources.iter().any(|source| source.path.starts_with(&place) && source.lines_with("unsafe") > 0);
        assert!(used, "UNSAFE.md names {place}, which has no unsafe code");
    }
}
