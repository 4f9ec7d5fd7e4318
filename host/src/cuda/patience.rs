//! Whether a kernel can wait, by its PTX.
//!
//! Every wait of the library has a deadline, and so looks at the clock (`device/src/arch/nvptx/`, `Backoff`); a loop of a program's
//! own that pauses sleeps. A kernel that does neither, nor calls what does, ends by itself, however many of its blocks run at once.

use std::collections::{HashMap, HashSet};

/// How PTX looks at the clock, and how it sleeps.
const SIGNS: [&str; 2] = ["%globaltimer", "nanosleep"];

/// Whether the entry, or what it calls, may wait. What the text does not tell counts as a wait.
pub(super) fn waits(text: &str, entry: &str) -> bool {
    let functions = functions(text);
    let (mut seen, mut next) = (HashSet::from([entry]), vec![entry]);
    while let Some(name) = next.pop() {
        let Some(lines) = functions.get(name) else { return true };
        for line in lines {
            if SIGNS.iter().any(|sign| line.contains(sign)) {
                return true;
            }
            if !words(line).any(|word| word == "call") {
                continue;
            }
            let mut callees = words(line).filter(|word| functions.contains_key(word)).peekable();
            // By a pointer, or of what is defined elsewhere.
            if callees.peek().is_none() {
                return true;
            }
            next.extend(callees.filter(|callee| seen.insert(callee)));
        }
    }
    false
}

/// The lines of each function that has a body.
fn functions(text: &str) -> HashMap<&str, Vec<&str>> {
    let mut all: HashMap<&str, Vec<&str>> = HashMap::new();
    let (mut name, mut inside) = (None, false);
    for line in text.lines() {
        let begins = [".entry", ".func"].iter().find_map(|word| Some(line.split_once(word)?.1));
        if let Some(rest) = begins.filter(|_| line.starts_with('.')) {
            // What a function returns stands before its name.
            let rest = rest.trim_start();
            let rest = if rest.starts_with('(') { rest.split_once(')').map_or("", |(_, rest)| rest) } else { rest };
            (name, inside) = (words(rest).next(), false);
        }
        // A declaration ends before there is a body.
        match name {
            Some(name) if inside || line.contains('{') => {
                inside = true;
                all.entry(name).or_default().push(line);
            }
            Some(_) if line.trim_end().ends_with(';') => name = None,
            _ => {}
        }
    }
    all
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || "_$%".contains(c))).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = ".version 8.0\n\
        .func  (.param .b64 func_retval0) clock\n(\n.param .b64 clock_param_0\n)\n;\n\
        .func deep\n()\n{\ncall.uni (retval0), clock, (param0);\nret;\n}\n\
        .func  (.param .b64 func_retval0) clock\n(\n.param .b64 clock_param_0\n)\n{\nmov.u64 %rd1, %globaltimer;\nret;\n}\n\
        .func again\n()\n{\ncall.uni again, ();\nret;\n}\n\
        .visible .entry by_others(.param .u64 p)\n{\ncall.uni deep, ();\nret;\n}\n\
        .visible .entry itself()\n{\nmov.u64 %rd1, %globaltimer;\nret;\n}\n\
        .visible .entry never(\n.param .u64 p\n)\n{\ncall.uni again, ();\nst.u64 [p], 1;\nret;\n}\n\
        .visible .entry by_a_pointer()\n{\n{ // callseq 0\n@%p1 call (retval0), %rd5, (param0), prototype_0;\nret;\n}\n\
        .visible .entry pauses()\n{\nnanosleep.u32 100;\nret;\n}\n\
        .visible .entry one_line() { ret; }\n";

    #[test]
    fn kernels_that_look_at_the_clock_or_pause_may_wait() {
        let told = |name| waits(TEXT, name);
        assert!(told("itself") && told("pauses") && told("by_others") && told("by_a_pointer") && told("not_there"));
        assert!(!told("never") && !told("one_line"));
    }

    #[test]
    fn the_fixed_kernels_all_may_wait() {
        for (arch, text) in congruent_kernels::PTX.images {
            for name in ["all_reduce_direct", "all_reduce_one_shot", "barrier", "meet", "send_recv_direct"] {
                assert!(waits(text, name), "{arch} {name}");
            }
        }
    }
}
