//! Whether rustc still makes of the linter's Rust fixtures the PTX that is checked in beside them: three traps and one kernel
//! as it should be. Without a device compiler the test says so and passes.

use std::path::Path;
use std::{env, fs};

use congruent_build::{Builder, DeviceRustc, Target, Verdict};

const FIXTURES: [&str; 4] = ["unqualified_atomic", "divergent_barrier", "non_coherent_load", "put_signal"];

#[test]
fn rustc_still_makes_the_traps() {
    let rustc = match DeviceRustc::find() {
        Ok(rustc) => rustc,
        Err(error) => {
            eprintln!("SKIPPED {} fixtures: {error}", FIXTURES.len());
            return;
        }
    };
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../verify/tests/fixtures");
    // One package in one place for all, so that the core library is compiled once.
    let package = Path::new(env!("CARGO_TARGET_TMPDIR")).join("trap");
    fs::create_dir_all(package.join("src")).expect("a writable target folder");
    let target: Target = "sm_90:ptx84".parse().expect("a target");
    let builder = Builder::new(&package).targets([target]).rustc(rustc).out_dir(&fixtures);
    // The cache that `sample.rs` has for the same target.
    let builder = builder.target_dir(Path::new(env!("CARGO_TARGET_TMPDIR")).join("ptx/shared"));

    for fixture in FIXTURES {
        let manifest = format!(
            "[package]\nname = \"trap\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\
             [lib]\nname = \"{fixture}\"\n[workspace]\n"
        );
        fs::write(package.join("Cargo.toml"), manifest).expect("writable");
        let source = fixtures.join("src").join(fixture).with_extension("rs");
        fs::copy(source, package.join("src/lib.rs")).expect("the fixture");
        if env::var_os("CONGRUENT_BLESS").is_some() {
            builder.build().expect("the fixture compiles");
        }
        let check = builder.check().expect("the fixture compiles").remove(0);
        match check.verdict {
            Verdict::Current => {}
            Verdict::OtherRustc { .. } => eprintln!("SKIPPED {fixture}: {}", check.verdict),
            other => panic!("{fixture}: {other}"),
        }
    }
}
