//! Padding bytes are uninitialised, so a type that has them is not plain data.
use congruent::World;

#[derive(Clone, Copy)]
#[repr(C)]
struct Padded {
    small: u8,
    large: u32,
}

fn allocate(world: &mut World) {
    let _ = world.alloc::<Padded>(1);
}

fn main() {}
