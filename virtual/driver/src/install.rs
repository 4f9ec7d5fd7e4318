//! Getting the library to where a program finds it, whole or with a function missing.

use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::{env, fs};

use object::elf::{FileHeader64, SHT_DYNSYM};
use object::read::elf::{FileHeader, SectionHeader, Sym};
use object::{Endianness, elf};

/// The names under which programs look for the driver: what it is, and what development files call it.
const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// Bytes of a symbol in a table of a 64-bit ELF file; its name comes first.
const SYMBOL: u64 = size_of::<elf::Sym64<Endianness>>() as u64;

/// The library as cargo built it for the test that calls this: beside the test's program, or one folder up.
///
/// # Errors
/// `NotFound`, with where it was looked for
pub fn built() -> io::Result<PathBuf> {
    let file = format!("{}congruent_virtual_library{}", env::consts::DLL_PREFIX, env::consts::DLL_SUFFIX);
    let program = env::current_exe()?;
    let found = program.ancestors().skip(1).take(2).map(|folder| folder.join(&file)).find(|path| path.is_file());
    found.ok_or_else(|| {
        let why = format!("no {file} near {}: let the test depend on congruent-virtual-library", program.display());
        io::Error::new(io::ErrorKind::NotFound, why)
    })
}

/// Puts a library into a folder under the driver's names. Tests name the folder in `LD_LIBRARY_PATH`.
///
/// Both names are one file: a process that loads it by the one and by the other has it once.
///
/// # Errors
/// Those of the file system; what was there before is replaced
pub fn install(dir: &Path, library: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let [file, link] = NAMES.map(|name| dir.join(name));
    // Copied anew, not over an old file that a process may have mapped.
    for old in [&file, &link] {
        match fs::remove_file(old) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    fs::copy(library, &file)?;
    symlink(NAMES[0], link)
}

/// Writes a copy of a library in which an exported symbol cannot be found: the last part of its name is all that the
/// copy calls it by. The place of a symbol in the hash table goes by its whole name, so it is not found by the rest
/// either.
///
/// # Errors
/// `NotFound` if the library exports no such symbol, `InvalidData` if it is no 64-bit ELF file, and those of the file
/// system
pub fn without_symbol(library: &Path, symbol: &str, to: &Path) -> io::Result<()> {
    let mut bytes = fs::read(library)?;
    let at = name_of_symbol(&bytes, symbol).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    let place = at.and_then(|(at, name)| Some((bytes.get_mut(at..at + 4)?, name)));
    let Some((place, name)) = place else {
        let why = format!("{} exports no {symbol}", library.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, why));
    };
    // The name without its first letter is a text in the file already.
    place.copy_from_slice(&name.wrapping_add(1).to_ne_bytes());
    fs::write(to, bytes)
}

/// Where in a file the name of an exported symbol is told, and what is told: where the text is.
fn name_of_symbol(bytes: &[u8], symbol: &str) -> object::Result<Option<(usize, u32)>> {
    let header = FileHeader64::<Endianness>::parse(bytes)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, bytes)?;
    let symbols = sections.symbols(endian, bytes, SHT_DYNSYM)?;
    let table = sections.section(symbols.section())?.sh_offset(endian);
    for (index, entry) in symbols.enumerate() {
        if !entry.is_undefined(endian) && symbols.symbol_name(endian, entry)? == symbol.as_bytes() {
            let at = table + index.0 as u64 * SYMBOL;
            return Ok(usize::try_from(at).ok().map(|at| (at, entry.st_name(endian))));
        }
    }
    Ok(None)
}
