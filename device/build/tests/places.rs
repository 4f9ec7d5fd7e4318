//! Where the command looks for its cache and for what lies there.

#![allow(clippy::expect_used, reason = "a test says what it expects")]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// What `congruent-build doctor` says where only these variables are set.
fn doctor(variables: &[(&str, &Path)]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_congruent-build"));
    let output = command.arg("doctor").env_clear().envs(variables.iter().copied()).output().expect("it starts");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_cache_is_where_the_user_wants_it() {
    let (mine, caches, home) = (Path::new("/mine"), Path::new("/caches"), Path::new("/home/me"));
    let all = [("CONGRUENT_CACHE", mine), ("XDG_CACHE_HOME", caches), ("HOME", home)];
    for (variables, folder) in [
        (&all[..], "/mine"),
        (&all[1..], "/caches/congruent"),
        (&all[2..], "/home/me/.cache/congruent"),
        (&[("XDG_CACHE_HOME", Path::new("relative")), ("HOME", home)], "/home/me/.cache/congruent"),
    ] {
        let said = doctor(variables);
        assert!(said.contains(&format!("cache: {folder}\n")), "{variables:?}: {said}");
    }
    let said = doctor(&[]);
    assert!(said.contains("name one in CONGRUENT_CACHE"), "{said}");
}

#[test]
fn the_installed_assembler_is_found_without_being_named() {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("installed");
    let program = |folder: &Path| {
        fs::create_dir_all(folder).expect("a writable folder");
        let program = folder.join("ptxas");
        fs::write(&program, "#!/bin/sh\necho 'Cuda compilation tools, release 1.2, V1.2.3'\n").expect("writable");
        fs::set_permissions(&program, Permissions::from_mode(0o755)).expect("ours");
        program
    };
    let installed = program(&cache.join("ptx/bin"));
    let said = doctor(&[("CONGRUENT_CACHE", &cache)]);
    assert!(said.contains(&format!("ptxas: {} (1.2, V1.2.3)", installed.display())), "{said}");
    let named = program(&cache.join("named"));
    let said = doctor(&[("CONGRUENT_CACHE", &cache), ("CONGRUENT_PTXAS", &named)]);
    assert!(said.contains(&format!("ptxas: {} (1.2, V1.2.3)", named.display())), "{said}");
}
