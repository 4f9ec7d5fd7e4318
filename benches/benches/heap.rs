//! The offset allocator under 10^6 mixed calls with 10^3 live objects: time per call, and fragmentation at the end.
//!
//! Sizes are log-uniform from 8 B to 1 MiB. One heap is mostly empty; the other holds about 80 % of its bytes, where good
//! fits are rare and some requests are refused.

use std::hint::black_box;

use congruent_heap::Allocator;
use criterion::{BatchSize, Criterion, Throughput};

/// Live objects throughout.
const LIVE: usize = 1_000;
/// Calls a run: one half frees, the other allocates.
const CALLS: usize = 1_000_000;

fn main() {
    let mut criterion = Criterion::default().sample_size(10).configure_from_args();
    let mut group = criterion.benchmark_group("heap");
    group.throughput(Throughput::Elements(CALLS as u64));
    for (name, capacity) in [("mixed/roomy", 1 << 30), ("mixed/tight", 112 << 20)] {
        let script = Script::new();
        let filled = script.fill(capacity);
        group.bench_function(name, |bench| {
            bench.iter_batched(|| filled.clone(), |mut run| run.play(&script), BatchSize::PerIteration);
        });
        let mut run = filled.clone();
        run.play(&script);
        let stats = run.heap.stats();
        println!(
            "heap/{name}: {} live, {:.0} % used, fragmentation {:.3}, {} of {} allocations refused",
            stats.live,
            100.0 * stats.used as f64 / capacity as f64,
            stats.fragmentation(),
            run.refused,
            CALLS / 2,
        );
    }
    group.finish();
    criterion.final_summary();
}

/// Which object each step replaces, and by how many bytes at which alignment.
struct Script {
    steps: Vec<(usize, u64, u64)>,
}

/// A heap in the middle of a script.
#[derive(Clone)]
struct Run {
    heap: Allocator,
    objects: Vec<Option<u64>>,
    refused: usize,
}

impl Script {
    fn new() -> Self {
        let mut random = Xorshift(0x9E37_79B9_7F4A_7C15);
        let mut step = || {
            let log = random.below(18) + 3;
            let bytes = (1 << log) + random.below(1 << log);
            let align = if random.below(16) == 0 { 4096 } else { 16 };
            (random.below(LIVE as u64) as usize, bytes.min(1 << 20), align)
        };
        Self { steps: (0..CALLS / 2).map(|_| step()).collect() }
    }

    /// A heap of `capacity` bytes with as many objects as the script replaces.
    fn fill(&self, capacity: u64) -> Run {
        let mut heap = Allocator::new(0, capacity);
        let objects = self.steps[..LIVE].iter().map(|&(_, bytes, align)| heap.alloc(bytes, align).ok()).collect();
        Run { heap, objects, refused: 0 }
    }
}

impl Run {
    fn play(&mut self, script: &Script) {
        for &(object, bytes, align) in &script.steps {
            if let Some(offset) = self.objects[object].take() {
                self.heap.free(black_box(offset)).ok();
            }
            self.objects[object] = self.heap.alloc(black_box(bytes), align).ok();
            self.refused += usize::from(self.objects[object].is_none());
        }
    }
}

/// The same sequence on every machine.
struct Xorshift(u64);

impl Xorshift {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}
