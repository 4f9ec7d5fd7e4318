//! The way of a request from a kernel to its proxy: how many a second, from one producer and from four, over a network that does
//! everything at once and nothing of it. Beside it the queue of the crate `rtrb`, with values as large as a slot, between two threads
//! that do nothing else.

use std::hint::{black_box, spin_loop};
use std::thread;
use std::time::{Duration, Instant};

use congruent::device::{Group, Pe, Sym, Thread, kernels};
use congruent::{Error, Grid, World};
use congruent_transports::{Local, Operation, PeerState, Progress, Transport, TransportError};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

/// Requests that fit in a ring, as a world has it, and in the queue.
const SLOTS: usize = 256;
/// Requests of a round, of each producer.
const MANY: u64 = 100_000;

kernels! {
    /// One thread of each block of PE 0 puts values to PE 1, and waits for the last.
    pub fn puts(block, ctx, dst: Sym<u64>, rounds: u64) {
        let team = ctx.world();
        if team.me().index() == 0 && block.leader() {
            for round in 0..rounds {
                ctx.put_value(dst.at(team.next()), round);
            }
            ctx.quiet_to(&Thread, team.next());
        }
    }
}

/// Everything is done at once.
struct Nothing(Vec<u64>);

impl Nothing {
    fn over(_: Local) -> Box<dyn Transport> {
        Box::new(Self(Vec::new()))
    }
}

impl Transport for Nothing {
    fn start(&mut self, ticket: u64, _: Pe, _: Operation) -> Result<(), TransportError> {
        self.0.push(ticket);
        Ok(())
    }
    fn poll(&mut self, tell: &mut dyn FnMut(u64, Progress)) -> bool {
        self.0.drain(..).for_each(|ticket| tell(ticket, Progress::Ended(Ok(0))));
        false
    }
    fn state(&self, _: Pe) -> PeerState {
        PeerState::Up
    }
}

/// How long so many rounds take, of so many blocks.
fn requests(blocks: u32, rounds: u64) -> Duration {
    let times = World::builder().heap(4 << 20).proxied_over(Nothing::over).local(2, |world| {
        let (dst, stream) = (world.alloc::<u64>(1)?, world.stream()?);
        world.run(&stream, puts, Grid::new(blocks, 32), (dst.view(), 1000))?;
        world.barrier()?;
        let started = Instant::now();
        if world.pe().raw() == 0 {
            world.run(&stream, puts, Grid::new(blocks, 32), (dst.view(), rounds * MANY))?;
        }
        Ok::<_, Error>(started.elapsed())
    });
    times.map_or_else(|error| panic!("{error}"), |times| times[0])
}

/// How long so many rounds of values take through the queue.
fn values(rounds: u64) -> Duration {
    let (mut producer, mut consumer) = rtrb::RingBuffer::<[u64; 8]>::new(SLOTS);
    let started = Instant::now();
    thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0..rounds * MANY {
                let mut value = [number; 8];
                while let Err(rtrb::PushError::Full(back)) = producer.push(value) {
                    value = back;
                    spin_loop();
                }
            }
        });
        let mut sum = 0;
        for _ in 0..rounds * MANY {
            let value = loop {
                match consumer.pop() {
                    Ok(value) => break value,
                    Err(_) => spin_loop(),
                }
            };
            sum += value[7];
        }
        black_box(sum);
    });
    started.elapsed()
}

fn all(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ring");
    for producers in [1, 4] {
        group.throughput(Throughput::Elements(MANY * u64::from(producers)));
        group.bench_function(format!("requests to the proxy, {producers} producers"), |bencher| {
            bencher.iter_custom(|rounds| requests(producers, rounds));
        });
    }
    group.throughput(Throughput::Elements(MANY));
    group.bench_function("values of 64 bytes through rtrb", |bencher| bencher.iter_custom(values));
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10);
    targets = all
}
criterion_main!(benches);
