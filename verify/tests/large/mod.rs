//! Large texts to lint.
#![allow(clippy::expect_used, reason = "part of tests and benches: what fails here fails them")]

use std::fs::File;
use std::io;
use std::path::Path;

use ruzstd::decoding::StreamingDecoder;

/// One kernel of at least `lines` lines: the bodies of the shipped kernels, one after another, as if all were inlined into one.
pub(crate) fn joined_kernels(lines: usize) -> String {
    let shipped =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../collectives/kernels/ptx/congruent_kernels.sm_80.ptx.zst");
    let packed = StreamingDecoder::new(File::open(shipped).expect("the shipped PTX")).expect("a frame");
    let text = io::read_to_string(packed).expect("PTX");
    let entries = text.split(".visible .entry ").skip(1).map(|entry| {
        let parameters = between(entry, "(", "\n)");
        let body = between(entry, "\n{", "\n}");
        (parameters, body)
    });
    let entries: Vec<_> = entries.collect();
    let (mut parameters, mut bodies, mut written) = (Vec::new(), String::new(), 0);
    for (number, (own, body)) in entries.iter().cycle().enumerate() {
        if written >= lines {
            break;
        }
        if number < entries.len() {
            parameters.push(own.trim());
        }
        // A return of one ends only its own part.
        let body = body.replace("ret;", &format!("bra $END{number};"));
        bodies += &format!("{{{body}\n}}\n$END{number}:\n");
        written += body.lines().count() + 2;
    }
    kernel(&format!("{bodies}\tret;"), &parameters.join(",\n\t"))
}

/// A kernel with this body; `%r1` and `%p1` differ from thread to thread.
pub(crate) fn kernel(body: &str, parameters: &str) -> String {
    format!(
        ".version 8.4\n.target sm_90\n.address_size 64\n.visible .entry large({parameters})\n{{\n\
         .reg .b32 %r<9>;\n.reg .pred %p<9>;\nmov.u32 %r1, %tid.x;\nsetp.eq.b32 %p1, %r1, 0;\n{body}\nret;\n}}\n"
    )
}

fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
    let from = text.find(start).expect("a start") + start.len();
    let length = text[from..].find(end).expect("an end");
    &text[from..from + length]
}
