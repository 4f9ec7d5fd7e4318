//! Mangled names that are the same wherever a crate is built.

use std::collections::HashMap;

/// Renumbers the crate disambiguators in `ptx` in order of appearance.
///
/// A mangled name such as `_RNvCsanIojcP8aaR_4core5panic` tells crates of one name apart by a hash, which for a path
/// dependency outside the workspace depends on where it lies. Renumbering keeps different names different and still
/// readable by demanglers, and makes the text independent of the folder.
pub(crate) fn renumber_crates(ptx: &str) -> String {
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    let mut renumbered = String::with_capacity(ptx.len());
    let mut rest = ptx;
    while let Some((before, name, after)) = next_mangled_name(rest) {
        renumbered.push_str(before);
        let mut name = name;
        while let Some((before, hash, after)) = next_disambiguator(name) {
            let next = numbers.len();
            let number = *numbers.entry(hash).or_insert(next);
            renumbered.push_str(&format!("{before}Cs{number}_"));
            name = after;
        }
        renumbered.push_str(name);
        rest = after;
    }
    renumbered.push_str(rest);
    renumbered
}

/// Splits around the first name of rustc's mangling.
fn next_mangled_name(text: &str) -> Option<(&str, &str, &str)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '.');
    let starts = |&(at, _): &(usize, &str)| !text[..at].ends_with(is_part);
    let (start, _) = text.match_indices("_R").find(starts)?;
    let end = text[start..].find(|c| !is_part(c)).map_or(text.len(), |length| start + length);
    Some((&text[..start], &text[start..end], &text[end..]))
}

/// Splits around the first `Cs<hash>_` that a crate's name follows, which starts with its length.
fn next_disambiguator(name: &str) -> Option<(&str, &str, &str)> {
    name.match_indices("Cs").find_map(|(start, _)| {
        let (hash, after) = name[start + 2..].split_once('_')?;
        let is_hash = !hash.is_empty() && hash.chars().all(|c| c.is_ascii_alphanumeric());
        (is_hash && after.starts_with(|c: char| c.is_ascii_digit())).then_some((&name[..start], hash, after))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_are_numbered_by_appearance() {
        let ptx = "call _RNvCsanIojcP8aaR_4core4pick, (p);\n.func _RINvCs1q_3dep1fNtCsanIojcP8aaR_4core1TE_param_0,";
        let expected = "call _RNvCs0_4core4pick, (p);\n.func _RINvCs1_3dep1fNtCs0_4core1TE_param_0,";
        assert_eq!(renumber_crates(ptx), expected);
    }

    #[test]
    fn other_names_stay() {
        for name in [".entry Cs12_3x(", "my_RNvCs12_3x", "_ZN4core9panicking17h0123456789abcdefE", "_R", ""] {
            assert_eq!(renumber_crates(name), name);
        }
    }
}
