//! What the host can measure of kernels: launches, and in-kernel operations of two PEs as threads.

use std::time::Instant;

use congruent::collectives::{Layout, Op, Reduction};
use congruent::device::{Kernel, Semaphore};
use congruent::{Arguments, Error, Grid, World, fixed_kernels};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

/// Times `args_for(rounds)` of a kernel on two PEs; criterion chooses the rounds.
fn measure<K: Kernel>(
    criterion: &mut Criterion,
    name: &str,
    bytes: u64,
    kernel: K,
    prepare: impl Fn(&mut World) -> Result<Box<dyn Fn(u64) -> K::Args>, Error> + Sync,
) where
    K::Args: Arguments<K::Args>,
{
    let mut group = criterion.benchmark_group("kernels");
    if bytes > 0 {
        group.throughput(Throughput::Bytes(bytes));
    }
    group.bench_function(name, |bencher| {
        bencher.iter_custom(|rounds| {
            let times = World::builder().heap(256 << 20).local(2, |world| {
                let args_for = prepare(world)?;
                let stream = world.stream()?;
                world.run(&stream, kernel, Grid::one(256), args_for(1))?;
                world.barrier()?;
                let started = Instant::now();
                world.run(&stream, kernel, Grid::one(256), args_for(rounds))?;
                Ok::<_, Error>(started.elapsed())
            });
            times.map_or_else(|error| panic!("{error}"), |times| times.into_iter().max().unwrap_or_default())
        });
    });
    group.finish();
}

fn all(criterion: &mut Criterion) {
    measure(criterion, "launch of an empty kernel", 0, fixed_kernels::perf_barrier, |_| Ok(Box::new(|_| (0,))));
    measure(criterion, "barrier", 0, fixed_kernels::perf_barrier, |_| Ok(Box::new(|rounds| (rounds,))));
    measure(criterion, "ping-pong of 8 B, round trip", 0, fixed_kernels::perf_ping_pong, |world| {
        let (inbox, outbox, turn) = (world.alloc(8)?, world.alloc(8)?, world.alloc::<Semaphore>(1)?);
        Ok(Box::new(move |rounds| (inbox.view(), outbox.view(), turn.view(), rounds)))
    });
    for bytes in [64 << 10, 4 << 20] {
        measure(criterion, &format!("put of {} KiB", bytes >> 10), bytes, fixed_kernels::perf_put, |world| {
            let (dst, src) = (world.alloc(bytes as usize)?, world.alloc(bytes as usize)?);
            Ok(Box::new(move |rounds| (dst.view(), src.view(), 1, rounds)))
        });
        measure(
            criterion,
            &format!("all-reduce of {} KiB", bytes >> 10),
            bytes,
            fixed_kernels::all_reduce_ring,
            |world| {
                let (dst, src, team) = (world.alloc(bytes as usize)?, world.alloc(bytes as usize)?, world.team());
                let plan = world.plan(Layout::new(team, 1))?;
                let sum = Reduction::new::<f32>(Op::Sum, None).unwrap_or_else(|| panic!("floats have a sum"));
                Ok(Box::new(move |rounds| {
                    let rounds =
                        u32::try_from(rounds).unwrap_or_else(|error| panic!("{error}: shorten the measurement"));
                    (dst.view(), src.view(), sum, 0, plan.view(), rounds)
                }))
            },
        );
    }
}

criterion_group!(benches, all);
criterion_main!(benches);
