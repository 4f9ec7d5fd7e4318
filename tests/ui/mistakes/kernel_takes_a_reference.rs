//! Host memory is not the kernel's: references are no kernel arguments.
use congruent::device::kernels;

kernels! {
    pub fn sum(block, ctx, values: &'static [f32]) {}
}

fn main() {}
