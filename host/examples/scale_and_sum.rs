//! The user's own work and an all-reduce in one kernel: no second launch, no host step between them.
//!
//! The lesson: a collective is a function that your kernel calls, on your data, over a plan that was made once. What is
//! summed here was scaled a moment ago by the same block, and the kernel is launched twice with the same plan.
//!
//! Run it with `cargo run --release --example scale_and_sum`, or with
//! `congruent run -n 4 target/release/examples/scale_and_sum`.

use congruent::collectives::Layout;
use congruent::{Error, Grid};
use congruent_example_kernels::scale_and_sum::scale_and_sum;

fn main() -> Result<(), Error> {
    congruent::run(4, |world| {
        let numbers = world.alloc::<f32>(100_000)?;
        let plan = world.plan(Layout::new(world.team(), 1))?;
        let stream = world.stream()?;
        numbers.fill(world.pe().index() as f32 + 1.0)?;
        // 1 + 2 + ... + n, doubled; the second launch doubles that sum and adds it up over n PEs.
        let n = world.npes() as f32;
        let mut expected = n * (n + 1.0);
        for launch in 1..=2 {
            world.run(&stream, scale_and_sum, Grid::one(256), (numbers.view(), plan.view()))?;
            let values = numbers.to_vec()?;
            assert!(values.iter().all(|&value| value == expected), "launch {launch}: {} is not {expected}", values[0]);
            if world.pe().index() == 0 {
                println!("launch {launch}: every number on every PE is {expected}");
            }
            expected *= 2.0 * n;
        }
        Ok::<_, Error>(())
    })?;
    Ok(())
}
