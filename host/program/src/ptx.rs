//! `congruent ptx`: shows the PTX of the kernels that the library brings.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use congruent::{fixed_kernels, moe_kernels, sum_kernels};
use congruent_device::Module;

use super::failure::Failure;
use super::output::print;
use congruent::program::Functions;

/// Show the PTX of the kernels that the library brings
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  congruent ptx                          the kernels
  congruent ptx all_reduce_ring          what one of them consists of, with the functions that it calls
  congruent ptx --write ptx              all of them, as files for `congruent verify` and `congruent-build assemble`")]
pub(super) struct Args {
    /// A kernel
    #[arg(conflicts_with = "folder")]
    kernel: Option<String>,
    /// Write each image to a file in this folder
    #[arg(long = "write", value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    match (&args.kernel, &args.folder) {
        (Some(kernel), _) => print(&show(kernel)?)?,
        (None, Some(folder)) => write(folder)?,
        (None, None) => print(&list())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Each image's crate, architecture and text.
fn images() -> impl Iterator<Item = (String, &'static str, &'static str)> {
    let modules = [&fixed_kernels::PTX, &fixed_kernels::MULTIMEM, &moe_kernels::PTX, &sum_kernels::PTX];
    modules.into_iter().flat_map(|Module { name, images }| {
        let of = name.split(' ').next().unwrap_or(name).replace('-', "_");
        images.iter().map(move |&(arch, text)| (of.clone(), arch, text))
    })
}

fn list() -> String {
    let kernels = |(_, arch, text)| {
        let mut names: Vec<_> = Functions::of(text).entries().collect();
        names.sort_unstable();
        names.into_iter().map(move |name| format!("{arch:6} {name}\n"))
    };
    images().flat_map(kernels).collect()
}

fn show(kernel: &str) -> Result<String, Failure> {
    let found = images().find_map(|(_, _, text)| Functions::of(text).program(kernel));
    found.ok_or_else(|| {
        Failure::Usage(format!("there is no kernel {kernel}; `congruent ptx` lists those that there are"))
    })
}

fn write(folder: &Path) -> Result<(), Failure> {
    let failed = |path: &Path, error| Failure::Failed(format!("cannot write {}: {error}", path.display()));
    fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
    for (of, arch, text) in images() {
        let path = folder.join(format!("{of}.{arch}.ptx"));
        fs::write(&path, text).map_err(|error| failed(&path, error))?;
        print(&format!("{}\n", path.display()))?;
    }
    Ok(())
}
