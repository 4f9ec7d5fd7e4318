//! What a kernel is lent it has while it runs.
use std::sync::Mutex;

use congruent::device::{Slice, kernels};

static KEPT: Mutex<&[f32]> = Mutex::new(&[]);

kernels! {
    pub fn keep(block, ctx, values: Slice<f32>) {
        *KEPT.lock().unwrap() = values;
    }
}

fn main() {}
