//! Doubles numbers on every PE and sums them over all PEs, in one kernel.

use congruent::collectives::Layout;
use congruent::{Error, Grid, World};
use IDENT_kernels::double_and_sum;

fn main() -> Result<(), Error> {
    for line in congruent::run(4, double)? {
        println!("{line}");
    }
    Ok(())
}

/// What a PE does, and says at the end.
fn double(world: &mut World) -> Result<String, Error> {
    let numbers = world.alloc::<f32>(1000)?;
    numbers.fill(world.pe().index() as f32 + 1.0)?;
    let plan = world.plan(Layout::new(world.team(), 1))?;
    let stream = world.stream()?;
    world.run(&stream, double_and_sum, Grid::one(256), (numbers.view(), plan.view()))?;
    Ok(format!("{} of {} has {} ({})", world.pe(), world.npes(), numbers.to_vec()?[999], world.machine()))
}

#[test]
fn numbers_are_doubled_and_summed() {
    for line in congruent::run(3, double).unwrap() {
        // Of 1, 2 and 3.
        assert!(line.contains(" of 3 has 12 "), "{line}");
    }
}
