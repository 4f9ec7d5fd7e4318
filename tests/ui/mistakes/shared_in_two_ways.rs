//! An array of shared memory is used in one way in a phase.
use congruent::device::kernels;

kernels! {
    pub fn both(block, _ctx; shared: ([u32; 64],)) {
        let (row,) = shared.sync(block);
        row.part(block).fill_with(|i| i as u32);
        row.all();
    }
}

fn main() {}
