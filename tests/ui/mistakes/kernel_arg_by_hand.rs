//! That a type means the same to a device is a promise: safe code makes it by `kernel_arg!` only.
use congruent::device::KernelArg;

#[derive(Clone, Copy)]
struct P(&'static u32);

impl KernelArg for P {
    fn fits(&self, _heap_bytes: u64) -> bool {
        true
    }
}

fn main() {}
