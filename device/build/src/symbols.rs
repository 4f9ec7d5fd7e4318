//! Text that is the same wherever a crate is built, and no longer than a driver and a reader need.

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

/// Without what a compiler writes for itself: comments in lines of their own, the numbers of calls, traps behind an `exit`, and the name of
/// a function in those of its parameters. What an instruction's own comment says stays.
pub(crate) fn without_notes(ptx: &str) -> String {
    let mut short = String::with_capacity(ptx.len());
    let (mut function, mut last, mut in_comment) = ("", "", false);
    for line in ptx.lines() {
        let code = line.trim();
        let is_comment = code.starts_with("//")
            || code.strip_prefix("/*").and_then(|rest| rest.find("*/")).is_some_and(|end| end + 4 == code.len());
        let is_reached = code != "trap; exit;" || last != "exit;";
        if !in_comment && (is_comment || !is_reached) {
            continue;
        }
        if line.starts_with('.') && line.contains(".func") {
            function = next_mangled_name(line).map_or("", |(_, name, _)| name);
        }
        let kept = line.split_once("// callseq").map_or(line, |(code, _)| code.trim_end());
        push_with_short_parameters(&mut short, kept, function);
        short.push('\n');
        // One that goes over several lines is an author's.
        in_comment = match (line.rfind("/*"), line.rfind("*/")) {
            (None, None) => in_comment,
            (begins, ends) => begins > ends,
        };
        last = code;
    }
    short
}

/// Appends a line of a function's code. A parameter has a name in its function only.
fn push_with_short_parameters(text: &mut String, line: &str, function: &str) {
    let mut rest = line;
    while let Some((before, name, after)) = next_mangled_name(rest) {
        let number = name.strip_prefix(function).and_then(|rest| rest.strip_prefix("_param_"));
        text.push_str(before);
        match number.filter(|_| !function.is_empty()) {
            Some(number) => text.extend(["param_", number]),
            None => text.push_str(name),
        }
        rest = after;
    }
    text.push_str(rest);
}

/// Splits around the first name of rustc's mangling.
fn next_mangled_name(text: &str) -> Option<(&str, &str, &str)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '.');
    // A table of a function has the function's name behind its own.
    let starts = |&(at, _): &(usize, &str)| !text[..at].ends_with(is_part) || text[..at].ends_with("_$_");
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
        assert_eq!(renumber_crates("switch_$_table_$__RNvCs1q_3dep1f[2]"), "switch_$_table_$__RNvCs0_3dep1f[2]");
    }

    #[test]
    fn notes_of_the_compiler_go_and_code_stays() {
        let ptx = ".func _RNvCs0_4core4pick(\n\t.param .b64 _RNvCs0_4core4pick_param_0\n)\n{\n\t// begin inline asm\n\t/* %rd1 */\n\
            \t// end inline asm\n\tld.param.b64 \t%rd1, [_RNvCs0_4core4pick_param_0+8];\n\t{ // callseq 0, 0\n\
            \tcall.uni _RNvCs0_4core4pick, (param0);\n\t} // callseq 0\n\tmov.u64 %rd1, %globaltimer; // span\n\texit;\n\ttrap; exit;\n}\n";
        let expected = ".func _RNvCs0_4core4pick(\n\t.param .b64 param_0\n)\n{\n\tld.param.b64 \t%rd1, [param_0+8];\n\t{\n\
            \tcall.uni _RNvCs0_4core4pick, (param0);\n\t}\n\tmov.u64 %rd1, %globaltimer; // span\n\texit;\n}\n";
        assert_eq!(without_notes(ptx), expected);
        for code in [
            "ld.param.b64 %rd1, [add_param_0];\n",
            ".func _RNvCs0_3dep11set_param_0(\n\tcall.uni _RNvCs0_3dep11get_param_0, (param0);\n",
            "/* one */ mov.u32 %r1, %laneid; /* two */\n",
            "/* of several\n// lines */ mov.u32 %r1, %laneid;\n",
            "@%p1\texit;\n\ttrap; exit;\n",
        ] {
            assert_eq!(without_notes(code), code);
        }
    }

    #[test]
    fn other_names_stay() {
        for name in [".entry Cs12_3x(", "my_RNvCs12_3x", "_ZN4core9panicking17h0123456789abcdefE", "_R", ""] {
            assert_eq!(renumber_crates(name), name);
        }
    }
}
