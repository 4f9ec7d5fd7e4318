//! Host memory is not the kernel's: an argument holds no reference to it.
use congruent::device::{Sym, kernel_arg};

kernel_arg! {
    struct Scaled { numbers: Sym<f32>, by: &'static u32 }
}

fn main() {}
