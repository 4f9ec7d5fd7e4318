//! Lines that kernels print.

use congruent_device::{Group, kernels, print};

kernels! {
    /// Each block prints so many lines.
    pub fn print_lines(block, ctx, count: u32) {
        for i in 0..count {
            if block.leader() {
                print!(ctx, "{} of {}: {}, -{}, {}", i, count, i as f32 / 2.0 + 0.1, i as i16, i % 2 == 0);
            }
        }
    }
}
