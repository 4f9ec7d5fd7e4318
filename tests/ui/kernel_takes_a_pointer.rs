//! A pointer is no kernel argument: nobody would keep what it points to.
use congruent::device::kernels;

kernels! {
    pub fn sum(block, ctx, values: *const f32) {}
}

fn main() {}
