//! Tells `src/lib.rs` whether `congruent-build build` has written PTX.

fn main() {
    println!("cargo::rerun-if-changed=ptx");
    println!("cargo::rustc-check-cfg=cfg(has_ptx)");
    if std::path::Path::new("ptx/IDENT_kernels.sm_80.ptx").exists() {
        println!("cargo::rustc-cfg=has_ptx");
    }
}
