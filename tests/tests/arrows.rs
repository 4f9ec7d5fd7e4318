//! Which crate may depend on which, and where a foreign library may appear.
//!
//! The order of the crates is what keeps them understandable one by one: device code and transports never see each
//! other, they meet in `symmetric-heap`. A new arrow is a decision: change the table here and say why in
//! `docs/decisions/`.

use cargo_metadata::{Metadata, MetadataCommand, Package};
use congruent_tests::{repository, sources};

/// What each of our crates may use of the others, in any kind of dependency.
const ARROWS: &[(&str, &[&str])] = &[
    ("congruent-heap", &[]),
    ("congruent-build", &["congruent-verify"]),
    ("congruent-verify", &[]),
    ("congruent-virtual-gpu", &["congruent-build", "congruent-verify"]),
    ("congruent-device", &["congruent-heap"]),
    ("congruent-transports", &["congruent-heap"]),
    ("congruent-collectives", &["congruent-device", "congruent-heap"]),
    ("congruent-kernels", &["congruent-collectives", "congruent-device", "congruent-heap"]),
    ("congruent-moe-kernels", &["congruent-collectives", "congruent-device"]),
    ("congruent-sum-kernels", &["congruent-collectives", "congruent-device"]),
    ("congruent-fused", &["congruent-collectives", "congruent-device"]),
    ("congruent-example-kernels", &["congruent-collectives", "congruent-device", "congruent-fused"]),
    ("congruent-stream-kernels", &["congruent-device"]),
    (
        "congruent",
        &[
            "congruent-collectives",
            "congruent-device",
            "congruent-example-kernels",
            "congruent-fused",
            "congruent-heap",
            "congruent-kernels",
            "congruent-moe-kernels",
            "congruent-stream-kernels",
            "congruent-sum-kernels",
            "congruent-transports",
            "congruent-virtual-driver",
        ],
    ),
    (
        "congruent-program",
        &[
            "congruent",
            "congruent-collectives",
            "congruent-device",
            "congruent-kernels",
            "congruent-verify",
            "congruent-virtual-driver",
        ],
    ),
    ("congruent-test-kernels", &["congruent-collectives", "congruent-device"]),
    ("congruent-newer-test-kernels", &["congruent-collectives", "congruent-device"]),
    (
        "congruent-virtual-driver",
        &["congruent-heap", "congruent-verify", "congruent-virtual-gpu", "congruent-virtual-library"],
    ),
    ("congruent-virtual-library", &["congruent-virtual-driver"]),
    ("congruent-tests", ANYTHING),
    ("congruent-thread-tests", &["congruent-tests"]),
    ("congruent-ui-tests", &["congruent"]),
    ("congruent-benches", ANYTHING),
    ("congruent-weakened", ANYTHING),
];

/// Suites and benches stand above everything.
const ANYTHING: &[&str] = &["*"];

/// Foreign crates that only some of ours may use: they load a vendor's library, or are unsafe by nature.
const FOREIGN: &[(&str, &[&str])] = &[
    ("cudarc", &["congruent", "congruent-virtual-driver"]),
    ("libloading", &["congruent", "congruent-transports", "congruent-virtual-driver", "congruent-tests"]),
    ("ibverbs", &["congruent-transports"]),
    (
        "rustix",
        &[
            "congruent",
            "congruent-program",
            "congruent-transports",
            "congruent-benches",
            "congruent-virtual-driver",
            "congruent-verify",
        ],
    ),
    ("memmap2", &["congruent", "congruent-transports"]),
    ("libc", &["congruent", "congruent-transports"]),
    ("corosensei", &["congruent"]),
    ("anyhow", &[]),
    ("cuda_std", &[]),
];

/// Where memory is mapped.
const MEMORY: &[&str] = &["host/src/shared_memory", "host/src/cuda/", "transports/src/", "virtual/driver/"];

/// Words that may appear in the code of some files only, given by how their paths start.
const PLACES: &[(&str, &[&str])] = &[
    (
        "cudarc",
        &[
            "host/src/cuda/",
            "host/src/lib.rs",
            "host/examples/with_cudarc.rs",
            "tests/beside/",
            "tests/tests/virtual_cudarc.rs",
            "virtual/driver/",
        ],
    ),
    (
        "libloading",
        &[
            "host/src/cuda/",
            "transports/src/fabric/",
            "transports/src/verbs/",
            "virtual/driver/",
            "tests/tests/virtual_support/",
        ],
    ),
    ("ibverbs", &["transports/src/verbs/"]),
    ("asm!", &["device/src/arch/", "verify/tests/fixtures/"]),
    (
        "link_llvm_intrinsics",
        &["device/src/arch/", "device/src/lib.rs", "device/build/tests/", "verify/tests/fixtures/"],
    ),
    ("rustix::mm", MEMORY),
    ("memmap2", MEMORY),
    ("libc", MEMORY),
];

#[test]
fn crates_depend_on_each_other_as_drawn() {
    let metadata = metadata().unwrap();
    let ours: Vec<&str> = metadata.packages.iter().map(|package| package.name.as_str()).collect();
    for &(name, _) in ARROWS {
        assert!(ours.contains(&name), "{name} is in the table but not in the workspace");
    }
    let mut wrong = Vec::new();
    for package in &metadata.packages {
        let Some(&(_, allowed)) = ARROWS.iter().find(|(name, _)| *name == package.name.as_str()) else {
            wrong.push(format!("{} is not in the table", package.name));
            continue;
        };
        let used = dependencies(package).filter(|name| ours.contains(name));
        let extra =
            used.filter(|name| *name != package.name.as_str() && allowed != ANYTHING && !allowed.contains(name));
        wrong.extend(extra.map(|name| format!("{} -> {name}", package.name)));
    }
    assert!(wrong.is_empty(), "arrows that are not drawn: {wrong:#?}");
}

#[test]
fn foreign_crates_stay_where_they_belong() {
    let mut wrong = Vec::new();
    for package in &metadata().unwrap().packages {
        for &(foreign, users) in FOREIGN {
            if dependencies(package).any(|name| name == foreign) && !users.contains(&package.name.as_str()) {
                wrong.push(format!("{} -> {foreign}", package.name));
            }
        }
    }
    assert!(wrong.is_empty(), "foreign crates out of place: {wrong:#?}");
}

#[test]
fn foreign_words_stay_in_their_files() {
    let mut wrong = Vec::new();
    for source in sources().unwrap() {
        for &(word, places) in PLACES {
            let allowed = places.iter().any(|place| source.path.starts_with(place));
            if !allowed && source.lines_with(word) > 0 {
                wrong.push(format!("{} says {word}", source.path));
            }
        }
    }
    assert!(wrong.is_empty(), "words out of place: {wrong:#?}");
}

#[test]
fn crates_without_unsafe_say_so() {
    for lib in ["collectives/src/lib.rs", "verify/src/lib.rs"] {
        let text = std::fs::read_to_string(repository().join(lib)).unwrap();
        assert!(text.contains("#![forbid(unsafe_code)]"), "{lib} must forbid unsafe code");
    }
}

fn metadata() -> cargo_metadata::Result<Metadata> {
    let manifest = repository().join("Cargo.toml");
    MetadataCommand::new().manifest_path(manifest).no_deps().other_options(["--offline".into()]).exec()
}

/// The names of what a package declares, of any kind and for any target.
fn dependencies(package: &Package) -> impl Iterator<Item = &str> {
    package.dependencies.iter().map(|dependency| dependency.name.as_str())
}
