//! Collective calls have one order on each PE, so two threads cannot make them at once.
use congruent::World;

fn race(world: &World) {
    std::thread::scope(|scope| {
        scope.spawn(|| world.alloc::<u32>(1));
        scope.spawn(|| world.alloc::<u64>(1));
    });
}

fn main() {}
