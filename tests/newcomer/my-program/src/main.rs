//! Doubles some numbers on two PEs.

use congruent::{Error, Grid};

fn main() -> Result<(), Error> {
    congruent::run(2, |world| {
        let numbers = world.alloc::<f32>(1000)?;
        numbers.fill(world.pe().index() as f32 + 1.0)?;
        let stream = world.stream()?;
        world.run(&stream, my_kernels::double, Grid::one(256), (numbers.view(),))?;
        println!("{} has {}", world.pe(), numbers.to_vec()?[999]);
        Ok::<_, Error>(())
    })?;
    Ok(())
}
