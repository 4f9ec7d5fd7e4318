//! Keeps the library in a process that closes it, like the driver it stands for: its threads still run its code.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
