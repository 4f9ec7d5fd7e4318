//! `congruent new`: a program with kernels, to start from.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{self, Path, PathBuf};
use std::process::ExitCode;

use super::failure::Failure;
use super::output::print;

/// Write a program with a crate of kernels, to start from
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  congruent new halo
  congruent new ~/codes/halo --congruent ~/congruent")]
pub(super) struct Args {
    /// A folder that is not there yet; its name is the program's
    folder: PathBuf,
    /// Where congruent's sources are [default: where this program was built]
    #[arg(long, value_name = "FOLDER")]
    congruent: Option<PathBuf>,
}

/// The files, in which `NAME` stands for the program's name, `IDENT` for that in Rust, and `CONGRUENT` for the folder of the sources.
const FILES: [(&str, &str); 7] = [
    ("Cargo.toml", include_str!("new/template/Cargo.toml.in")),
    (".gitignore", include_str!("new/template/gitignore")),
    ("src/main.rs", include_str!("new/template/src/main.rs")),
    ("kernels/Cargo.toml", include_str!("new/template/kernels/Cargo.toml.in")),
    ("kernels/build.rs", include_str!("new/template/kernels/build.rs")),
    // There from the start: a folder that cargo watches and does not find has it build all anew each time.
    ("kernels/ptx/.gitkeep", ""),
    ("kernels/src/lib.rs", include_str!("new/template/kernels/src/lib.rs")),
];

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let folder = &args.folder;
    let name = name(folder)?;
    let sources = sources(args.congruent.as_deref())?;
    write(folder, name, &sources).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => Failure::Usage(format!("{} is there already", folder.display())),
        _ => Failure::Failed(format!("cannot write {}: {error}", folder.display())),
    })?;
    print(&format!(
        "{name} is written. In its folder:\n\
         \x20 CONGRUENT_MACHINE=cpu cargo run                    on the CPU, 4 PEs as threads\n\
         \x20 CONGRUENT_MACHINE=cpu cargo test\n\
         \x20 CONGRUENT_MACHINE=cpu congruent run -n 2 -- target/debug/{name}    as processes\n\
         \x20 congruent-build build --manifest-path kernels      writes PTX; then, without a GPU and with one:\n\
         \x20 CONGRUENT_MACHINE=virtual cargo run\n\
         \x20 cargo run\n"
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// The name of a program, as crates may have it: that of the folder.
fn name(folder: &Path) -> Result<&str, Failure> {
    let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let letters = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte));
    // The crates that it uses have names, too, and cargo's folders.
    let is_taken = name == "congruent"
        || name.starts_with("congruent-")
        || ["test", "core", "std", "alloc", "build", "deps", "examples", "incremental"].contains(&name);
    if !letters || !name.starts_with(|first: char| first.is_ascii_lowercase()) || is_taken {
        return Err(Failure::Usage(format!(
            "a program cannot be called '{name}': a name of lowercase letters, digits, - and _, with a letter first, that is no \
             library's and none of cargo's folders"
        )));
    }
    Ok(name)
}

/// The folder of congruent's sources, whole.
fn sources(given: Option<&Path>) -> Result<PathBuf, Failure> {
    // This crate is two folders down.
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    let folder = given.or(here).unwrap_or(Path::new("."));
    let is_there = ["host", "device", "collectives"].iter().all(|part| folder.join(part).join("Cargo.toml").is_file());
    match path::absolute(folder) {
        Ok(folder) if is_there => {
            let is_odd = |letter: char| letter.is_control() || ['"', '\\'].contains(&letter);
            if folder.to_str().is_some_and(|path| !path.contains(is_odd)) {
                return Ok(folder);
            }
            Err(Failure::Usage(format!("the path {folder:?} cannot be written to a manifest")))
        }
        _ => Err(Failure::Usage(format!(
            "congruent's sources are not in {}: say where they are with --congruent",
            folder.display()
        ))),
    }
}

/// Writes all files into a new folder, or leaves nothing there.
fn write(folder: &Path, name: &str, sources: &Path) -> io::Result<()> {
    fs::create_dir(folder)?;
    let (ident, sources) = (name.replace('-', "_"), sources.to_string_lossy());
    let each = |(path, text): (&str, &str)| {
        let file = folder.join(path);
        fs::create_dir_all(file.parent().unwrap_or(folder))?;
        let text = text.replace("NAME", name).replace("IDENT", &ident).replace("CONGRUENT/", &format!("{sources}/"));
        File::create_new(file)?.write_all(text.as_bytes())
    };
    let written = FILES.into_iter().try_for_each(each);
    if written.is_err() {
        // What matters to the user is what could not be written.
        let _removed = fs::remove_dir_all(folder);
    }
    written
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

    use super::*;

    #[test]
    fn names_are_those_of_crates() {
        for good in ["halo", "a", "x-1_y", "some/where/halo", "/halo"] {
            assert_eq!(name(Path::new(good)).unwrap(), good.rsplit('/').next().unwrap());
        }
        for bad in
            ["", "..", "Halo", "1st", "-x", "h\u{e4}", "a b", "a\"", "congruent", "congruent-x", "std", "build", "/"]
        {
            assert!(matches!(name(Path::new(bad)), Err(Failure::Usage(_))), "{bad}");
        }
    }

    #[test]
    fn what_is_there_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str| {
            let args = Args { folder: folder.path().join(name), congruent: None };
            run(&args).map_err(|failure| failure.to_string())
        };
        fs::write(folder.path().join("file"), "mine").unwrap();
        fs::create_dir(folder.path().join("full")).unwrap();
        for there in ["file", "full"] {
            assert!(write(there).unwrap_err().ends_with(&format!("{there} is there already")));
        }
        assert!(write("nowhere/halo").unwrap_err().contains("cannot write"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        write("halo").unwrap();
        assert!(write("halo").is_err());
        assert_eq!(fs::read_to_string(folder.path().join("file")).unwrap(), "mine");
        let sources = sources(Some(folder.path())).unwrap_err().to_string();
        assert!(sources.contains("say where they are with --congruent"), "{sources}");
    }
}
