//! A reference means nothing on another PE, so it cannot live on the symmetric heap.
use congruent::World;

fn allocate(world: &mut World) {
    let _ = world.alloc::<&'static u32>(1);
}

fn main() {}
