//! Moves numbers on from PE to PE; with an argument, in order.

use congruent::{Error, Grid};

const TIMES: u32 = 3;

fn main() -> Result<(), Error> {
    let in_order = std::env::args().len() > 1;
    congruent::run(2, |world| {
        let (numbers, inbox, stream) = (world.alloc::<u32>(64)?, world.alloc::<u32>(64)?, world.stream()?);
        numbers.fill(world.pe().raw())?;
        let args = (numbers.view(), inbox.view(), TIMES);
        match in_order {
            true => world.run(&stream, my_kernels::shift_in_order, Grid::one(64), args)?,
            false => world.run(&stream, my_kernels::shift, Grid::one(64), args)?,
        }
        Ok::<_, Error>(())
    })?;
    Ok(())
}
