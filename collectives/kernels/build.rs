//! Unpacks the PTX that the crate embeds.

use std::path::Path;
use std::{env, fs, io};

use ruzstd::decoding::StreamingDecoder;

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=ptx");
    let variable = |name| env::var_os(name).ok_or_else(|| io::Error::other(format!("cargo gives no {name}")));
    // What is compiled for a GPU becomes the PTX, and embeds none.
    if variable("CARGO_CFG_TARGET_ARCH")? == "nvptx64" {
        return Ok(());
    }
    let folder = variable("OUT_DIR")?;
    for file in fs::read_dir("ptx")? {
        let path = file?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".zst")) else { continue };
        let mut packed = StreamingDecoder::new(fs::File::open(&path)?).map_err(io::Error::other)?;
        io::copy(&mut packed, &mut fs::File::create(Path::new(&folder).join(name))?)?;
    }
    Ok(())
}
