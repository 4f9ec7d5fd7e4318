//! Whether a kernel can wait, by its PTX.
//!
//! Every wait of the library has a deadline, and so looks at the clock (`device/src/arch/nvptx/`, `Backoff`); a loop of a program's
//! own that pauses sleeps. A kernel that does neither, nor calls what does, ends by itself, however many of its blocks run at once.

use std::collections::HashSet;

use super::functions::Functions;

/// How PTX looks at the clock, and how it sleeps.
const SIGNS: [&str; 2] = ["%globaltimer", "nanosleep"];

/// How a look at the clock ends that only tells a trace when it was.
const SPAN: &str = "// span";

/// Whether the entry, or what it calls, may wait. What the text does not tell counts as a wait.
pub(super) fn waits(functions: &Functions<'_>, entry: &str) -> bool {
    let (mut seen, mut next) = (HashSet::from([entry]), vec![entry]);
    while let Some(name) = next.pop() {
        let Some(function) = functions.get(name) else { return true };
        if function.lines().any(|line| SIGNS.iter().any(|sign| line.contains(sign)) && !line.ends_with(SPAN)) {
            return true;
        }
        for callees in functions.calls(function) {
            if callees.is_empty() {
                return true;
            }
            next.extend(callees.into_iter().filter(|&callee| seen.insert(callee)));
        }
    }
    false
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
        .visible .entry tells()\n{\nmov.u64 %rd1, %globaltimer; // span\nret;\n}\n\
        .visible .entry one_line() { ret; }\n";

    #[test]
    fn kernels_that_look_at_the_clock_or_pause_may_wait() {
        let functions = Functions::find(TEXT);
        let told = |name| waits(&functions, name);
        assert!(told("itself") && told("pauses") && told("by_others") && told("by_a_pointer") && told("not_there"));
        assert!(!told("never") && !told("tells") && !told("one_line"));
    }

    #[test]
    fn what_others_may_wait_for_waits_for_nothing() {
        for (arch, text) in congruent_stream_kernels::PTX.images {
            let functions = Functions::find(text);
            assert!(!waits(&functions, "atomic") && waits(&functions, "notify"), "{arch}");
        }
    }

    #[test]
    fn the_fixed_kernels_all_may_wait() {
        for (arch, text) in congruent_kernels::PTX.images {
            let functions = Functions::find(text);
            for name in ["all_reduce_direct", "all_reduce_one_shot", "barrier", "meet", "send_recv_direct"] {
                assert!(waits(&functions, name), "{arch} {name}");
            }
        }
        for (arch, text) in congruent_sum_kernels::PTX.images {
            let functions = Functions::find(text);
            let waiting = functions.entries().filter(|name| waits(&functions, name)).count();
            assert_eq!((waiting, functions.entries().count()), (18, 18), "{arch}");
        }
    }
}
