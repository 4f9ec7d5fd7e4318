//! Images: PTX as a driver takes it in, once driver and device are found to be new enough for it.

use std::sync::{Arc, Mutex};

use congruent_verify::ptx::{self, Function, Module};
use congruent_virtual_gpu::{Global, Outline, Program};
use cudarc::driver::sys::CUresult;
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::errors::{self, Outcome};
use crate::monitor::lock;

/// The newest PTX that a driver takes, by its own version: from `.version` 7.0 of driver 11.0.
const PTX_OF_DRIVERS: &[(u32, (u32, u32))] = &[
    (13020, (9, 2)),
    (13010, (9, 1)),
    (13000, (9, 0)),
    (12090, (8, 8)),
    (12080, (8, 7)),
    (12070, (8, 6)),
    (12050, (8, 5)),
    (12040, (8, 4)),
    (12030, (8, 3)),
    (12020, (8, 2)),
    (12010, (8, 1)),
    (12000, (8, 0)),
    (11080, (7, 8)),
    (11070, (7, 7)),
    (11060, (7, 6)),
    (11050, (7, 5)),
    (11040, (7, 4)),
    (0, (7, 0)),
];

/// Bytes of parameters that a kernel may have, since PTX 8.1 (CUDA C++ Programming Guide, "Technical Specifications").
const MOST_PARAMETERS: u64 = 32_764;
/// What a launch can align parameters to.
const MOST_ALIGNED: u64 = align_of::<u128>() as u64;

/// PTX as the process knows it that has loaded it, without the code of its kernels.
pub(crate) struct Image {
    /// `.version`, major and minor.
    pub(crate) version: (u32, u32),
    /// What the kernels say of themselves.
    pub(crate) entries: Vec<Function>,
    pub(crate) outline: Outline,
}

/// Programs of this process with their texts: several contexts take in the same, and worlds that come one after the other.
static KNOWN: Mutex<Vec<(Arc<str>, Arc<Program>)>> = Mutex::new(Vec::new());

/// How many programs are kept at least, in use or not.
const KEPT: usize = 2;

/// Why an image was not taken in, or a launch came to nothing.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(into = "(u32, String)", from = "(u32, String)")]
pub(crate) struct Refusal {
    pub(crate) code: CUresult,
    /// What the compiler has to say, or the GPU.
    pub(crate) log: String,
}

impl From<Refusal> for (u32, String) {
    fn from(refusal: Refusal) -> Self {
        (refusal.code as u32, refusal.log)
    }
}

impl From<(u32, String)> for Refusal {
    fn from((code, log): (u32, String)) -> Self {
        Self { code: errors::numbered(code), log }
    }
}

impl From<CUresult> for Refusal {
    fn from(code: CUresult) -> Self {
        Self { code, log: String::new() }
    }
}

impl Image {
    /// Takes in an image. `outline` says what its code comes to.
    ///
    /// # Errors
    /// What is wrong with it, or what `outline` says is
    pub(crate) fn of(
        text: &str,
        config: &Config,
        outline: impl FnOnce(&Module) -> Result<Outline, Refusal>,
    ) -> Result<Self, Refusal> {
        // Of a text of megabytes nearly all is code.
        let mut heads = ptx::parse_heads(text).map_err(|error| invalid(error.line, &error.message))?;
        let line = |span: ptx::Span| span.line_column(text).0;
        if heads.version == (0, 0) {
            return Err(invalid(1, "Missing .version directive at start of file"));
        }
        if heads.target.is_empty() {
            return Err(invalid(line(heads.version_span), "Missing .target directive"));
        }
        check_version(heads.version, config.version)
            .map_err(|why| refusal(CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION, line(heads.version_span), &why))?;
        check_target(&heads.target, config.capability).map_err(|why| invalid(line(heads.target_span), &why))?;
        let outline = outline(&heads)?;
        heads.functions.retain(|function| function.is_entry && function.body.is_some());
        for entry in &mut heads.functions {
            check_parameters(entry).map_err(|why| invalid(line(entry.span), &why))?;
            entry.body = None;
        }
        Ok(Self { version: heads.version, entries: heads.functions, outline })
    }

    /// Which of the kernels has a name.
    ///
    /// # Errors
    /// `CUDA_ERROR_NOT_FOUND`
    pub(crate) fn entry(&self, name: &str) -> Outcome<usize> {
        self.entries.iter().position(|entry| entry.name == name).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)
    }

    /// Where the variables are behind each other, and how many bytes they take.
    pub(crate) fn layout(&self) -> (Vec<u64>, u64) {
        let mut end = 0_u64;
        let place = |global: &Global| {
            let start = end.next_multiple_of(global.align);
            end = start + global.bytes;
            start
        };
        (self.outline.globals.iter().map(place).collect(), end)
    }
}

/// Makes a program of PTX that is executed here, or finds it.
///
/// # Errors
/// What is wrong with its code
pub(crate) fn program(text: &str, config: &Config) -> Result<Arc<Program>, Refusal> {
    let mut known = lock(&KNOWN);
    if let Some((_, program)) = known.iter().find(|(known, _)| **known == *text) {
        return Ok(program.clone());
    }
    let mut program = Program::new(text).map_err(|error| invalid(error.line, &error.message))?;
    if let Some(index) = config.mutant.checked_sub(1)
        && let Some(mutant) = program.mutants().get(index as usize)
    {
        program = program.mutated(mutant);
    }
    known.push((text.into(), program.clone()));
    let mut left = known.len();
    known.retain(|(_, program)| {
        left -= 1;
        left < KEPT || Arc::strong_count(program) > 1
    });
    Ok(program)
}

/// The outline of kernels that run natively, of which only the heads are of use.
///
/// # Errors
/// A name that is not defined
pub(crate) fn outline_of_heads(heads: &Module, text: &str) -> Result<Outline, Refusal> {
    let program = Program::of(heads, text).map_err(|error| invalid(error.line, &error.message))?;
    Ok(program.outline())
}

fn invalid(line: usize, why: &str) -> Refusal {
    refusal(CUresult::CUDA_ERROR_INVALID_PTX, line, why)
}

fn refusal(code: CUresult, line: usize, why: &str) -> Refusal {
    Refusal { code, log: format!("ptxas application ptx input, line {line}; error   : {why}") }
}

fn check_version((major, minor): (u32, u32), driver: u32) -> Result<(), String> {
    let newest = PTX_OF_DRIVERS.iter().find(|(version, _)| *version <= driver);
    let (newest_major, newest_minor) = newest.map_or((7, 0), |&(_, newest)| newest);
    if (major, minor) <= (newest_major, newest_minor) {
        return Ok(());
    }
    Err(format!("Unsupported .version {major}.{minor}; current version is '{newest_major}.{newest_minor}'"))
}

fn check_target(target: &str, (major, minor): (u32, u32)) -> Result<(), String> {
    let digits = target.strip_prefix("sm_").unwrap_or_default();
    let number = digits.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    // A letter behind it: it is for this one capability, not for later ones.
    let exact = number != digits;
    let number: u32 = number.parse().map_err(|_| format!("Unknown .target '{target}'"))?;
    let device = 10 * major + minor;
    match number {
        _ if number > device => Err("SM version specified by .target is higher than default SM version assumed"),
        _ if exact && number != device => Err("SM version specified by .target is for another architecture"),
        _ => Ok(()),
    }
    .map_err(str::to_owned)
}

fn check_parameters(entry: &Function) -> Result<(), String> {
    if let Some(odd) = entry.parameters.iter().find(|parameter| parameter.bytes.is_none()) {
        return Err(format!("Parameter '{}' has no size", odd.name));
    }
    if let Some(odd) = entry.parameters.iter().find(|parameter| parameter.align > MOST_ALIGNED) {
        return Err(format!("Parameter '{}' is aligned to more than {MOST_ALIGNED} bytes", odd.name));
    }
    let bytes = parameter_bytes(entry);
    if bytes > MOST_PARAMETERS {
        let needs = format!("{bytes} bytes required, max {MOST_PARAMETERS} bytes allowed");
        return Err(format!("Formal parameter space overflowed ({needs}) in function {}", entry.name));
    }
    Ok(())
}

/// Bytes of all parameters, where they are laid out.
pub(crate) fn parameter_bytes(entry: &Function) -> u64 {
    let mut ends = entry.parameters.iter().zip(entry.parameter_offsets());
    ends.next_back().map_or(0, |(last, offset)| offset.saturating_add(last.bytes.unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Image, Refusal> {
        let config = Config::default();
        Image::of(text, &config, |_| Ok(program(text, &config)?.outline()))
    }

    #[test]
    fn kernels_are_found_and_variables_have_places() {
        let text = ".version 8.4\n.target sm_90\n.address_size 64\n.entry later();\n\
            .visible .global .b8 flag = 1;\n.visible .global .align 8 .u64 counter = 7;\n\
            .visible .entry later()\n{\nret;\n}\n.func help()\n{\nret;\n}\n";
        let image = read(text).unwrap();
        assert_eq!(image.entry("later"), Ok(0));
        assert_eq!(image.entry("help"), Err(CUresult::CUDA_ERROR_NOT_FOUND));
        assert_eq!(image.layout(), (vec![0, 8], 16));
    }

    #[test]
    fn mistakes_have_lines() {
        for (text, said) in [
            ("", "line 1; error   : Missing .version directive at start of file"),
            (".target sm_90\n", "line 1; error   : Missing .version"),
            ("\n.version 8.4\n", "line 2; error   : Missing .target"),
            (".version 8.4\n.target fast", "line 2; error   : Unknown .target 'fast'"),
            (".version 8.4\n.target sm_80\n.visible .entry f()\n{", "line 4; error   : "),
            (".version 8.4\n.target sm_80\n.entry f()\n{\nfrob.b32 %r1;\n}", "line 5; error   : "),
            (
                ".version 8.4\n.target sm_80\n.entry f(.param .b8 p[40000]) {\nret;\n}",
                "line 3; error   : Formal parameter",
            ),
            (
                ".version 8.4\n.target sm_80\n.entry f(.param .align 32 .b8 p[4]) {\nret;\n}",
                "line 3; error   : Parameter 'p'",
            ),
        ] {
            let refusal = read(text).err().expect(text);
            assert_eq!(refusal.code, CUresult::CUDA_ERROR_INVALID_PTX, "{text}");
            assert!(refusal.log.contains(said), "{text}: {}", refusal.log);
        }
    }
}
