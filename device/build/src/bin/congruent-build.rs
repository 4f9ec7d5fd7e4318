//! The command `congruent-build`: compile, check and assemble device code from a shell.

use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, thread};

use clap::{Args, Parser, Subcommand};
use congruent_build::{
    Assembly, BuildError, Builder, DeviceRustc, Ptxas, Target, UsageTable, UsageVerdict, cache_folder,
};

/// Compiles kernels written in Rust to PTX.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Compile a kernels crate and write its PTX.
    Build {
        /// Compile a second time, so that reports of virtual GPUs name lines of the source.
        #[arg(long)]
        lines: bool,
        #[command(flatten)]
        selection: Selection,
    },
    /// Compile again and compare with the PTX already there; exit with 1 if it is out of date.
    Check(Selection),
    /// Run ptxas on PTX files; show registers, stack and spills.
    Assemble {
        /// Write them to this file as a table; kernels that use the stack are an error.
        #[arg(long)]
        table: Option<PathBuf>,
        /// Compare with the table instead of writing it; exit with 1 if it differs.
        #[arg(long, requires = "table")]
        check: bool,
        /// What to assemble for, instead of what each file names; repeat for several. A file goes without those older than its own.
        #[arg(long = "for", value_name = "ARCH")]
        archs: Vec<String>,
        /// PTX files, packed or not.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// List the compiler, the assembler and the cache found.
    Doctor,
}

#[derive(Args)]
struct Selection {
    /// The package to compile, if not the manifest's own.
    #[arg(short, long)]
    package: Option<String>,
    /// Its Cargo.toml, or that of its workspace.
    #[arg(long, default_value = "Cargo.toml")]
    manifest_path: PathBuf,
    /// The folder of the PTX files; `ptx` beside the manifest if not given.
    #[arg(long)]
    out: Option<PathBuf>,
    /// What to compile for, as `sm_90:ptx84`, instead of what the manifest says; repeat for several.
    #[arg(long = "target")]
    targets: Vec<Target>,
    /// Features of the package to turn on.
    #[arg(long, value_delimiter = ',')]
    features: Vec<String>,
    /// The folder for intermediate files, instead of the cache that all crates share.
    #[arg(long)]
    target_dir: Option<PathBuf>,
}

impl Selection {
    fn builder(self) -> Builder {
        let mut builder = Builder::new(self.manifest_path).features(self.features);
        if let Some(package) = self.package {
            builder = builder.package(package);
        }
        if let Some(out) = self.out {
            builder = builder.out_dir(out);
        }
        if let Some(folder) = self.target_dir {
            builder = builder.target_dir(folder);
        }
        if self.targets.is_empty() { builder } else { builder.targets(self.targets) }
    }
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Task::Build { lines, selection } => build(&selection.builder().lines(lines)),
        Task::Check(selection) => check(&selection.builder()),
        Task::Assemble { table, check, archs, files } => assemble(&files, &archs, table.as_deref(), check),
        Task::Doctor => Ok(doctor()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn build(builder: &Builder) -> Result<bool, BuildError> {
    for file in builder.build()? {
        println!("{}", file.path.display());
    }
    Ok(true)
}

fn check(builder: &Builder) -> Result<bool, BuildError> {
    let checks = builder.check()?;
    for check in &checks {
        println!("{}: {}", check.path.display(), check.verdict);
    }
    Ok(checks.iter().all(|check| check.verdict.is_ok()))
}

fn assemble(files: &[PathBuf], archs: &[String], table: Option<&Path>, check: bool) -> Result<bool, BuildError> {
    let ptxas = Ptxas::find()?;
    let mut assemblies = Vec::new();
    let mut jobs = Vec::new();
    for file in files {
        let archs = Ptxas::fitting(file, archs)?;
        jobs.extend(archs.into_iter().map(|arch| (file, arch)));
    }
    // An assembler uses one core.
    let at_once = thread::available_parallelism().map_or(1, usize::from);
    for jobs in jobs.chunks(at_once) {
        let done: Vec<_> = thread::scope(|scope| {
            let ptxas = &ptxas;
            let started = jobs.iter().map(|(file, arch)| scope.spawn(move || ptxas.assemble_for(file, arch)));
            let started: Vec<_> = started.collect();
            started.into_iter().map(|one| one.join().unwrap_or_else(|thrown| resume_unwind(thrown))).collect()
        });
        for ((file, _), assembly) in jobs.iter().zip(done) {
            let assembly = assembly?;
            println!("{}: ptxas {} accepts it for {}", file.display(), ptxas.version, assembly.arch);
            if table.is_none() {
                show(&assembly);
            }
            assemblies.push(assembly);
        }
    }
    let Some(path) = table else { return Ok(true) };
    let usage = UsageTable::new(&ptxas.version, assemblies)?;
    let io = |source| BuildError::Io { path: path.to_path_buf(), source };
    if !check {
        fs::write(path, usage.to_string()).map_err(io)?;
        println!("{}", path.display());
        return Ok(true);
    }
    let verdict = match fs::read_to_string(path) {
        Ok(text) => usage.compare(&text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => UsageVerdict::Missing,
        Err(error) => return Err(io(error)),
    };
    println!("{}: {verdict}", path.display());
    Ok(verdict.is_ok())
}

fn show(assembly: &Assembly) {
    for function in &assembly.functions {
        let registers = function.registers.map_or_else(|| "function".to_owned(), |n| format!("{n} registers"));
        println!(
            "  {}: {registers}, {} B stack, {} B spill stores, {} B spill loads, {} B shared",
            function.name, function.stack, function.spill_stores, function.spill_loads, function.shared
        );
    }
}

fn doctor() -> bool {
    let place = |path: &Path| path.display().to_string();
    let rustc = DeviceRustc::find();
    match &rustc {
        Ok(rustc) => {
            println!("device rustc: {} ({}, LLVM {}, {})", place(&rustc.path), rustc.version, rustc.llvm, rustc.core)
        }
        Err(error) => println!("device rustc: {error}"),
    }
    match Ptxas::find() {
        Ok(ptxas) => println!("ptxas: {} ({})", place(&ptxas.path), ptxas.version),
        Err(error) => println!("ptxas: {error}"),
    }
    match cache_folder() {
        Ok(folder) => println!("cache: {}", place(&folder)),
        Err(error) => println!("cache: {error}"),
    }
    rustc.is_ok()
}
