//! NVIDIA's assembler: whether it takes a file, and what the functions in it cost.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::{env, fs};

use crate::builder::read_text;
use crate::cache::cache_folder;
use crate::error::BuildError;
use crate::toolchain::ask;
use crate::usage::generation;

/// The assembler.
#[derive(Clone, Debug)]
pub struct Ptxas {
    /// The program.
    pub path: PathBuf,
    /// Its release, `13.5, V13.5.37`.
    pub version: String,
}

/// An assembled file.
#[derive(Clone, Debug)]
pub struct Assembly {
    /// The GPU generation it was assembled for.
    pub arch: String,
    /// Its kernels, each with the functions that it calls; where the file leaves some to the driver, each by itself.
    pub functions: Vec<FunctionUsage>,
}

/// What one kernel or function needs of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FunctionUsage {
    /// Its name in the PTX.
    pub name: String,
    /// Registers per thread; none for functions that are not kernels.
    pub registers: Option<u32>,
    /// Bytes of stack per thread.
    pub stack: u32,
    /// Bytes stored because registers ran out.
    pub spill_stores: u32,
    /// Bytes loaded because registers ran out.
    pub spill_loads: u32,
    /// Bytes of shared memory per block.
    pub shared: u32,
}

const PTXAS_VARIABLE: &str = "CONGRUENT_PTXAS";

impl Ptxas {
    /// Finds one: the program that `CONGRUENT_PTXAS` names, or that of the [cache](cache_folder), where `install-toolchain` puts
    /// it, of PATH, /usr/local/cuda, or pip's `nvidia-cuda-nvcc`.
    pub fn find() -> Result<Self, BuildError> {
        if let Some(path) = env::var_os(PTXAS_VARIABLE) {
            return Self::at(Path::new(&path));
        }
        candidates().iter().find_map(|path| Self::at(path).ok()).ok_or(BuildError::NoPtxas)
    }

    /// The assembler at `path`.
    pub fn at(path: &Path) -> Result<Self, BuildError> {
        let text = ask(path, &["--version"])?;
        let release = text.lines().find_map(|line| line.split_once("release ")).map_or("unknown", |(_, rest)| rest);
        Ok(Self { path: path.to_path_buf(), version: release.trim().to_owned() })
    }

    /// Those of `archs` that a file can be assembled for; where none are given, the generation that it names.
    pub fn fitting(file: &Path, archs: &[String]) -> Result<Vec<String>, BuildError> {
        let (_, own) = read(file)?;
        let fits = |arch: &&String| generation(arch) >= generation(&own);
        Ok(if archs.is_empty() { vec![own] } else { archs.iter().filter(fits).cloned().collect() })
    }

    /// Assembles `file` for the generation that it names and throws the machine code away.
    pub fn assemble(&self, file: &Path) -> Result<Assembly, BuildError> {
        let (_, own) = read(file)?;
        self.assemble_for(file, &own)
    }

    /// The same for another generation, `sm_100`.
    pub fn assemble_for(&self, file: &Path, arch: &str) -> Result<Assembly, BuildError> {
        self.assemble_to(file, arch, Path::new("/dev/null"))
    }

    /// The same, with the machine code in the file `cubin`.
    pub fn assemble_to(&self, file: &Path, arch: &str, cubin: &Path) -> Result<Assembly, BuildError> {
        let (text, _) = read(file)?;
        // `-c` leaves unresolved functions to the driver, which links `vprintf` and the like. Functions then keep to their calling
        // convention, which costs registers and stack that a program assembled as a whole does not take.
        let parts: &[&str] = if text.contains(".extern .func") { &["-c"] } else { &[] };
        let mut command = Command::new(&self.path);
        command.args(parts).args(["-v", "-arch", arch, "-o"]).arg(cubin).arg("-");
        let output = run(command, &text).map_err(|error| BuildError::Program {
            program: self.path.display().to_string(),
            problem: format!("cannot be started: {error}"),
        })?;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        if !output.status.success() {
            return Err(BuildError::Rejected { path: file.to_path_buf(), message: said.trim().to_owned() });
        }
        Ok(Assembly { arch: arch.to_owned(), functions: parse_verbose(&said, &never_return(&text)) })
    }
}

/// Runs a program that reads `text`.
fn run(mut command: Command, text: &str) -> io::Result<Output> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    // One that ends before it has read everything says why.
    let _written = child.stdin.take().map(|mut input| input.write_all(text.as_bytes()));
    child.wait_with_output()
}

/// A file's text, which may be packed, and the generation that it names.
fn read(file: &Path) -> Result<(String, String), BuildError> {
    let text = read_text(file).map_err(BuildError::io(file))?;
    match target_directive(&text).map(str::to_owned) {
        Some(own) => Ok((text, own)),
        None => Err(BuildError::Rejected { path: file.to_path_buf(), message: "it has no `.target`".to_owned() }),
    }
}

fn target_directive(ptx: &str) -> Option<&str> {
    let rest = ptx.lines().find_map(|line| line.trim().strip_prefix(".target"))?;
    rest.split([',', ' ', '\t']).find(|word| word.starts_with("sm_"))
}

/// Where an assembler may be, in the order they are tried.
fn candidates() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = cache_folder().map(|cache| cache.join("ptx/bin/ptxas")).into_iter().collect();
    found.extend(env::var_os("PATH").iter().flat_map(env::split_paths).map(|folder| folder.join("ptxas")));
    found.push(PathBuf::from("/usr/local/cuda/bin/ptxas"));
    found.extend(pip_location());
    found.retain(|path| path.is_file());
    found
}

/// `nvidia-cuda-nvcc` puts the assembler into a folder of the Python package `nvidia`, named after the CUDA release.
fn pip_location() -> Vec<PathBuf> {
    let script = "import nvidia; print(*nvidia.__path__, sep='\\n')";
    let Ok(folders) = ask(Path::new("python3"), &["-c", script]) else {
        return Vec::new();
    };
    let releases = folders.lines().filter_map(|folder| fs::read_dir(folder).ok()).flatten();
    let mut found: Vec<_> = releases.filter_map(|entry| Some(entry.ok()?.path().join("bin/ptxas"))).collect();
    found.sort();
    found
}

/// Reads what `ptxas -v` says:
/// ```text
/// ptxas info    : Compiling entry function 'k' for 'sm_90'
/// ptxas info    : Function properties for k
///     8 bytes stack frame, 4 bytes spill stores, 0 bytes spill loads
/// ptxas info    : Used 14 registers, used 1 barriers, 8 bytes cumulative stack size, 128 bytes smem
/// ```
/// Functions that are named after a kernel are those that it calls, and counted to it. Those that never return are not counted:
/// who panics has time.
fn parse_verbose(text: &str, never_return: &[&str]) -> Vec<FunctionUsage> {
    let mut functions: Vec<FunctionUsage> = Vec::new();
    let (mut in_kernel, mut counts) = (false, true);
    let named = |name: &str| FunctionUsage { name: name.to_owned(), ..FunctionUsage::default() };
    for line in text.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            functions.extend(rest.split('\'').next().map(named));
            (in_kernel, counts) = (true, true);
        } else if let Some((_, name)) = line.split_once("Function properties for ") {
            counts = !never_return.contains(&name.trim());
            functions.extend((counts && !in_kernel).then(|| named(name.trim())));
        } else if let (Some(last), true) = (functions.last_mut(), counts) {
            last.stack += before(line, " bytes stack frame");
            last.spill_stores += before(line, " bytes spill stores");
            last.spill_loads += before(line, " bytes spill loads");
            if line.contains(" registers") {
                last.registers = Some(before(line, " registers"));
                last.shared = before(line, " bytes smem");
            }
        }
    }
    functions
}

/// The functions of a text that it says never return: `.func NAME`, parameters, `.noreturn`.
fn never_return(ptx: &str) -> Vec<&str> {
    let mut functions = Vec::new();
    let mut last = None;
    for line in ptx.lines() {
        let line = line.trim();
        if line.contains(".func ") {
            let name = line.rsplit(' ').next();
            last = name.map(|name| name.split('(').next().unwrap_or(name));
        } else if line.starts_with(".noreturn") {
            functions.extend(last.filter(|last| !functions.contains(last)));
        }
    }
    functions
}

/// The number in front of `words`, or 0 where the line does not have them.
fn before(line: &str, words: &str) -> u32 {
    let Some((front, _)) = line.split_once(words) else {
        return 0;
    };
    front.rsplit(|c: char| !c.is_ascii_digit()).next().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = "\
ptxas info    : 16 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_90'
ptxas info    : Function properties for k
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 14 registers, used 1 barriers, 8 bytes cumulative stack size, 128 bytes smem, 400 bytes cmem[0]
ptxas info    : Function properties for helper
    16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads
";
    const PARTS: &str = "\
ptxas info    : Function properties for helper
    16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads
ptxas info    : Compiling entry function 'k' for 'sm_90'
ptxas info    : Function properties for k
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 14 registers, used 1 barriers
";

    fn usage(name: &str, registers: Option<u32>, costs: [u32; 4]) -> FunctionUsage {
        let [stack, spill_stores, spill_loads, shared] = costs;
        FunctionUsage { name: name.to_owned(), registers, stack, spill_stores, spill_loads, shared }
    }

    #[test]
    fn a_kernel_costs_what_it_calls() {
        assert_eq!(parse_verbose(WHOLE, &[]), [usage("k", Some(14), [24, 16, 20, 128])]);
        assert_eq!(parse_verbose(WHOLE, &["helper"]), [usage("k", Some(14), [8, 4, 12, 128])]);
        let kernel = usage("k", Some(14), [0; 4]);
        assert_eq!(parse_verbose(PARTS, &[]), [usage("helper", None, [16, 12, 8, 0]), kernel.clone()]);
        assert_eq!(parse_verbose(PARTS, &["helper"]), [kernel]);
    }

    #[test]
    fn the_text_says_what_never_returns() {
        let text = ".func refused\n()\n.noreturn;\n.func  (.param .b32 r) fold(\n.param .b64 a\n)\n;\n.func refused()\n.noreturn\n{\n}\n";
        assert_eq!(never_return(text), ["refused"]);
    }

    #[test]
    fn the_generation_is_read_from_the_text() {
        assert_eq!(target_directive(".version 8.4\n.target sm_90a, debug\n"), Some("sm_90a"));
        assert_eq!(target_directive("nothing"), None);
    }
}
