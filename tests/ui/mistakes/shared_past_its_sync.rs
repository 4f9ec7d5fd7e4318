//! What a sync of shared memory gave ends at the next one.
use congruent::device::kernels;

kernels! {
    pub fn keeps(block, _ctx; shared: ([u32; 64],)) {
        let (row,) = shared.sync(block);
        let row = row.all();
        let (next,) = shared.sync(block);
        next.part(block).fill_with(|_| row.get(0));
    }
}

fn main() {}
