//! How many lines of PTX are linted in a second, of one kernel that calls many collectives.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

#[path = "../tests/large/mod.rs"]
mod large;

/// An element is a line.
fn lint(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("lint");
    group.sample_size(10);
    for size in [50_000, 100_000, 200_000] {
        let text = large::joined_kernels(size);
        let lines = text.lines().count();
        group.throughput(Throughput::Elements(lines as u64));
        group.bench_with_input(BenchmarkId::from_parameter(lines), &text, |bencher, text| {
            bencher.iter(|| congruent_verify::Report::new("large.ptx", text.as_str()));
        });
    }
    group.finish();
}

criterion_group!(benches, lint);
criterion_main!(benches);
