//! Cost of drawing a workload.
//!
//! The workload is W1, chat: Poisson arrivals, lognormal prompts (mean 230, median 90, cap 4,096) and outputs (mean
//! 250, median 150, cap 4,096), 10⁶ requests on one thread. Only `Synthetic::draw` (or one of its columns) is timed,
//! including the allocation and first touch of the returned columns. Criterion's `elem/s` are requests per second.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use inferq_core::distributions::{Arrivals, Length, Lengths, Side, Synthetic};
use std::hint::black_box;

const REQUESTS: u64 = 1_000_000;

fn w1() -> (Arrivals, Length, Length) {
    (
        Arrivals::Poisson { rate: 10.0 },
        Length::Lognormal { mean: 230.0, median: 90.0, cap: Some(4096) },
        Length::Lognormal { mean: 250.0, median: 150.0, cap: Some(4096) },
    )
}

fn draw(criterion: &mut Criterion) {
    let (arrivals, prompt, output) = w1();
    let lengths = Lengths::Independent { prompt: prompt.clone(), output };
    let synthetic = Synthetic { requests: REQUESTS, arrivals: arrivals.clone(), lengths };
    let gamma = Arrivals::Gamma { rate: 10.0, cv: 2.0 };
    let geometric = Length::Geometric { mean: 250.0, cap: None };

    let mut group = criterion.benchmark_group("distributions");
    group.throughput(Throughput::Elements(REQUESTS)).sample_size(20);
    group.bench_function("W1", |bencher| bencher.iter(|| black_box(&synthetic).draw(1)));
    group.bench_function("poisson", |bencher| bencher.iter(|| black_box(&arrivals).draw(REQUESTS, 1)));
    group.bench_function("gamma", |bencher| bencher.iter(|| black_box(&gamma).draw(REQUESTS, 1)));
    group.bench_function("lognormal", |bencher| {
        bencher.iter(|| black_box(&prompt).draw(REQUESTS, 1, Side::Prompt));
    });
    group.bench_function("geometric", |bencher| {
        bencher.iter(|| black_box(&geometric).draw(REQUESTS, 1, Side::Output));
    });
    group.finish();
}

criterion_group!(benches, draw);
criterion_main!(benches);
