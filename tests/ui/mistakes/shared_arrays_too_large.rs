//! A kernel's arrays of known length have at most 46 KiB together.
use congruent::device::kernels;

kernels! {
    pub fn just_right(block, _ctx; shared: ([u64; 4096], [u32; 3584])) {
        shared.sync(block);
    }

    pub fn too_large(block, _ctx; shared: ([u64; 4096], [u32; 3585])) {
        shared.sync(block);
    }
}

fn main() {}
