//! Launch bounds of kernels, which rustc has no words for.
//!
//! `kernels!` says them by the name of a variable, `congruent_bounds$KERNEL$threads$128$blocks$3`; in the PTX that is shipped the kernel
//! has them as directives, and the variable is gone.

/// What such a variable's name begins with.
const MARK: &str = "congruent_bounds$";

/// `ptx` with directives in the place of variables.
pub(crate) fn with_directives(ptx: &str) -> String {
    let (marks, text): (Vec<_>, Vec<_>) = ptx.lines().partition(|line| mark(line).is_some());
    let marks: Vec<_> = marks.into_iter().filter_map(mark).collect();
    let mut bounds = None;
    let mut written = String::with_capacity(ptx.len());
    for line in text {
        if let Some(head) = line.strip_prefix(".visible .entry ") {
            bounds =
                marks.iter().find(|(kernel, _)| head.strip_prefix(kernel).is_some_and(|rest| rest.starts_with('(')));
        } else if line == "{"
            && let Some((_, directives)) = bounds.take()
        {
            written.push_str(directives);
        }
        written.push_str(line);
        written.push('\n');
    }
    written
}

/// The kernel of a variable's line, and its directives.
fn mark(line: &str) -> Option<(&str, String)> {
    let name = line.strip_prefix(".visible .global ")?.split_whitespace().find_map(|word| word.strip_prefix(MARK))?;
    let mut words = name.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '$').next()?.split('$');
    let kernel = words.next()?;
    let mut directives = String::new();
    while let (Some(what), Some(number)) = (words.next(), words.next()) {
        let number: u32 = number.parse().ok()?;
        directives.push_str(&match what {
            "threads" => format!(".maxntid {number}\n"),
            "warps" => format!(".reqntid {}\n", 32 * number),
            "blocks" => format!(".minnctapersm {number}\n"),
            _ => return None,
        });
    }
    Some((kernel, directives))
}

#[cfg(test)]
mod tests {
    use super::with_directives;

    #[test]
    fn kernels_have_what_variables_say() {
        let ptx = ".visible .global .align 1 .b8 congruent_bounds$add$threads$128$blocks$3[1];\n\
                   .visible .global .align 1 .b8 congruent_bounds$add_all$warps$2 = {0};\n\
                   .visible .entry add(\n\t.param .u64 x\n)\n{\n\tret;\n}\n\
                   .visible .entry other()\n{\n\tret;\n}\n\
                   .visible .entry add_all()\n{\n\tret;\n}\n";
        let expected = ".visible .entry add(\n\t.param .u64 x\n)\n.maxntid 128\n.minnctapersm 3\n{\n\tret;\n}\n\
                        .visible .entry other()\n{\n\tret;\n}\n\
                        .visible .entry add_all()\n.reqntid 64\n{\n\tret;\n}\n";
        assert_eq!(with_directives(ptx), expected);
    }
}
