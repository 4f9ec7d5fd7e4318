//! Compiles the sample kernels for real. Without a device compiler the tests say so and pass.

#![allow(clippy::expect_used, reason = "a test says what it expects")]

use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fs, thread};

use congruent_build::{BuildError, Builder, CoreLibrary, DeviceRustc, Ptxas, Target, Verdict};

/// The compiler, or a loud note that a test checks nothing without it.
fn device_rustc(test: &str) -> Option<DeviceRustc> {
    let found = DeviceRustc::find();
    if let Err(error) = &found {
        eprintln!("SKIPPED {test}: {error}");
    }
    found.ok()
}

fn sample() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sample")
}

fn sm_90() -> Target {
    "sm_90:ptx84".parse().expect("a target")
}

/// A fresh folder below cargo's for tests.
fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a writable target folder");
    folder
}

/// The cache called `name`, which stays for the next run of the tests.
fn cache(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("ptx").join(name)
}

/// A builder of the crate at `manifest`; it keeps the core library that it compiled in the cache of that name.
fn builder(manifest: &Path, rustc: DeviceRustc, cache_name: &str) -> Builder {
    Builder::new(manifest).target_dir(cache(cache_name)).targets([sm_90()]).rustc(rustc)
}

/// A copy of the sample that also depends on a crate outside its workspace.
fn copy_with_dependency(folder: &Path) -> PathBuf {
    let sample_copy = folder.join("shared");
    fs::create_dir_all(sample_copy.join("src")).expect("a writable folder");
    fs::create_dir_all(folder.join("outside/src")).expect("a writable folder");
    let manifest = fs::read_to_string(sample().join("Cargo.toml")).expect("the sample");
    let source = fs::read_to_string(sample().join("src/lib.rs")).expect("the sample");
    let outside = "[package]\nname = \"outside\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[workspace]\n";
    let pick =
        "#![no_std]\n#[inline(never)]\npub fn pick(v: &[u32], i: usize) -> u32 { v[i] + file!().len() as u32 }\n";
    let write = |path: PathBuf, text: &str| fs::write(path, text).expect("a writable folder");
    write(folder.join("outside/Cargo.toml"), outside);
    write(folder.join("outside/src/lib.rs"), pick);
    write(
        sample_copy.join("Cargo.toml"),
        &format!("{manifest}\n[dependencies]\noutside = {{ path = \"../outside\" }}\n"),
    );
    write(
        sample_copy.join("src/lib.rs"),
        &source.replace("values[thread]", "values[thread] + outside::pick(values, 3)"),
    );
    sample_copy
}

#[test]
fn a_plain_library_compiles_checks_and_assembles() {
    let Some(rustc) = device_rustc("a_plain_library_compiles_checks_and_assembles") else { return };
    let out = scratch("plain");
    let builder = builder(&sample(), rustc, "shared").out_dir(&out);
    let files = builder.build().expect("the sample compiles");
    let [file] = files.as_slice() else { panic!("one target, one file: {files:?}") };
    assert_eq!(file.path, out.join("sample_kernels.sm_90.ptx"));

    let text = fs::read_to_string(&file.path).expect("it was written");
    assert!(text.contains(".version 8.4\n.target sm_90\n"), "{text}");
    assert!(text.contains(".visible .entry select("), "{text}");
    assert_eq!(text.matches("bar.sync").count(), 1, "one barrier in the source, one in the text:\n{text}");

    let verdict = |builder: &Builder| builder.check().expect("it compiles again").remove(0).verdict;
    assert_eq!(verdict(&builder), Verdict::Current);
    fs::write(&file.path, text.replace("bar.sync", "bar.wait")).expect("writable");
    assert!(matches!(verdict(&builder), Verdict::Stale { .. }));
    fs::write(&file.path, text.replace("// rustc: ", "// rustc: not ")).expect("writable");
    assert!(matches!(verdict(&builder), Verdict::OtherRustc { .. }));
    fs::remove_file(&file.path).expect("it is there");
    assert_eq!(verdict(&builder), Verdict::Missing);

    let Ok(ptxas) = Ptxas::find() else {
        eprintln!("SKIPPED assembling the sample: no ptxas");
        return;
    };
    fs::write(&file.path, &text).expect("writable");
    let assembly = ptxas.assemble(&file.path).expect("ptxas takes it");
    let select = assembly.functions.iter().find(|function| function.name == "select").expect("the kernel");
    assert_eq!((assembly.arch.as_str(), select.stack), ("sm_90", 0));
    assert!(select.registers.is_some_and(|registers| registers > 0));
    let archs = ["sm_80", "sm_90", "sm_100"].map(str::to_owned);
    assert_eq!(Ptxas::fitting(&file.path, &archs).expect("a file"), archs[1..]);
    assert_eq!(ptxas.assemble_for(&file.path, "sm_100").expect("newer GPUs run it").arch, "sm_100");
    fs::write(&file.path, text.replace("bar.sync", "bar.wait")).expect("writable");
    assert!(matches!(ptxas.assemble(&file.path), Err(BuildError::Rejected { .. })));
}

#[test]
fn the_text_does_not_depend_on_the_folder() {
    let Some(rustc) = device_rustc("the_text_does_not_depend_on_the_folder") else { return };
    let build = |folder: &Path, cache: &str| {
        let manifest = copy_with_dependency(folder);
        let files = builder(&manifest, rustc.clone(), cache).build().expect("the copy compiles");
        fs::read_to_string(&files[0].path).expect("it was written")
    };
    let (one, other) = (scratch("here"), scratch("there/and/deeper"));
    let text = build(&one, "shared");
    assert_eq!(text, build(&other, "elsewhere"));
    assert!(text.contains("pick"), "the dependency's function is to be in the text:\n{text}");
    assert!(!text.contains(&*one.to_string_lossy()), "{text}");
}

#[test]
fn mistakes_are_told_apart() {
    let Some(rustc) = device_rustc("mistakes_are_told_apart") else { return };
    let error =
        builder(&sample(), rustc.clone(), "shared").package("other").build().expect_err("there is no such package");
    assert!(matches!(&error, BuildError::NoPackage { known, .. } if known == "sample-kernels"), "{error}");

    let error = builder(&scratch("mistakes"), rustc.clone(), "shared").build().expect_err("there is no manifest");
    assert!(matches!(error, BuildError::Program { .. }), "{error}");

    let error = builder(&sample(), rustc, "shared").features(["none-such"]).build().expect_err("no such feature");
    assert!(matches!(error, BuildError::Compile { .. }), "{error}");
}

/// A workspace of `my-kernels` and a crate `helper`, whose value stands in a file beside both.
fn workspace(folder: &Path, value: u32) -> PathBuf {
    let write = |path: &str, text: &str| {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().expect("it is in a folder")).expect("a writable folder");
        fs::write(path, text).expect("a writable folder");
    };
    let package = |name: &str| format!("[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n");
    let with_helper = "[dependencies]\nhelper = { path = \"helper\" }\n[workspace]\nmembers = [\"helper\"]\n";
    write("Cargo.toml", &format!("{}{with_helper}", package("my-kernels")));
    write("helper/Cargo.toml", &package("helper"));
    write("value.rs", &value.to_string());
    write(
        "helper/src/lib.rs",
        "#![no_std]\n#[inline(never)]\npub fn value() -> u32 { include!(\"../../value.rs\") }\n",
    );
    write(
        "src/lib.rs",
        "#![no_std]\n#![feature(abi_ptx)]\n\
         #[unsafe(no_mangle)]\npub unsafe extern \"ptx-kernel\" fn set(out: *mut u32) { unsafe { *out = helper::value() } }\n\
         #[panic_handler]\nfn panic(_: &core::panic::PanicInfo) -> ! { loop {} }\n",
    );
    folder.to_path_buf()
}

fn text_of(folder: &Path, rustc: &DeviceRustc) -> String {
    let files = builder(folder, rustc.clone(), "shared").build().expect("the crate compiles");
    fs::read_to_string(&files[0].path).expect("it was written")
}

#[test]
fn crates_of_one_name_never_get_each_others_text() {
    let Some(rustc) = device_rustc("crates_of_one_name_never_get_each_others_text") else { return };
    let folders =
        [1111, 2222].map(|value| (value.to_string(), workspace(&scratch(&format!("namesake-{value}")), value)));
    let right = |(value, folder): &(String, PathBuf)| {
        let text = text_of(folder, &rustc);
        assert!(text.contains(value), "not the text of {}:\n{text}", folder.display());
    };
    folders.iter().chain(&folders).for_each(right);
    thread::scope(|scope| {
        for folder in folders.iter().cycle().take(6) {
            scope.spawn(move || right(folder));
        }
    });
}

#[test]
fn a_crate_put_in_the_place_of_another_is_compiled_anew() {
    let Some(rustc) = device_rustc("a_crate_put_in_the_place_of_another_is_compiled_anew") else { return };
    let folder = workspace(&scratch("replaced"), 3333);
    assert!(text_of(&folder, &rustc).contains("3333"));
    // As a program that unpacks archives leaves files.
    let value = folder.join("value.rs");
    fs::write(&value, "4444").expect("writable");
    fs::File::options().write(true).open(&value).expect("there").set_modified(SystemTime::UNIX_EPOCH).expect("ours");
    assert!(text_of(&folder, &rustc).contains("4444"));
}

#[test]
fn what_has_not_changed_is_not_compiled_again() {
    let Some(rustc) = device_rustc("what_has_not_changed_is_not_compiled_again") else { return };
    // Of names that no other test has, so that nobody else makes cargo forget what is compiled of them.
    let folder = workspace(&scratch("steady"), 5555);
    let replace = |path: &str, from: &str, to: &str| {
        let text = fs::read_to_string(folder.join(path)).expect("there");
        fs::write(folder.join(path), text.replace(from, to)).expect("writable");
    };
    replace("helper/Cargo.toml", "\"helper\"", "\"steady-helper\"");
    replace("Cargo.toml", "my-kernels", "steady-kernels");
    replace("Cargo.toml", "{ path", "{ package = \"steady-helper\", path");
    replace("Cargo.toml", "[dependencies]", "[features]\nother = []\n[dependencies]");
    replace("src/lib.rs", "helper::value()", "helper::value() + if cfg!(feature = \"other\") { 1111 } else { 0 }");
    let written = || {
        let mut found = Vec::new();
        files(&cache("shared"), &|name| name.starts_with("steady-kernels-") && name.ends_with(".ptx"), &mut found);
        found
    };

    let text = text_of(&folder, &rustc);
    let first = written();
    assert!(!first.is_empty() && text.contains("5555"), "{text}");
    assert_eq!((text_of(&folder, &rustc), written()), (text.clone(), first));

    let other = builder(&folder, rustc.clone(), "shared").features(["other"]).out_dir(folder.join("other"));
    let with_feature = || fs::read_to_string(&other.build().expect("the crate compiles")[0].path).expect("written");
    let other_text = with_feature();
    assert!(other_text.contains("6666"), "{other_text}");
    assert_eq!((text_of(&folder, &rustc), with_feature()), (text.clone(), other_text));
    fs::write(folder.join("value.rs"), "7777").expect("writable");
    assert!(text_of(&folder, &rustc).contains("7777") && with_feature().contains("8888"));
}

#[test]
fn a_second_crate_finds_the_core_library_compiled() {
    let Some(rustc) = device_rustc("a_second_crate_finds_the_core_library_compiled") else { return };
    let compiled = |folder: &str| {
        text_of(&workspace(&scratch(folder), 1), &rustc);
        let mut found = Vec::new();
        files(&cache("shared"), &|name| name.starts_with("libcore-") && name.ends_with(".rlib"), &mut found);
        found
    };
    let first = compiled("first");
    assert_eq!(compiled("second"), first);
    assert_eq!(first.is_empty(), rustc.core == CoreLibrary::Prebuilt, "{first:?}");
}

/// The files in a folder whose names are `wanted`, and when they were written.
fn files(folder: &Path, wanted: &impl Fn(&str) -> bool, found: &mut Vec<(PathBuf, SystemTime)>) {
    for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("readable")) {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if path.is_dir() {
            files(&path, wanted, found);
        } else if wanted(&name) {
            found.push((path, entry.metadata().and_then(|about| about.modified()).expect("readable")));
        }
    }
}
