//! Encode and decode throughput of every scheme, in bytes of f32 gradient, beside a memcpy of the
//! same bytes.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use gradwire_exchange::wire::floats;
use gradwire_exchange::{Scheme, Seat};

/// Elements: 4 MiB of gradient.
const LENGTH: usize = 1 << 20;

/// Laplace distributed values (a 64-bit linear congruential generator and the inverse transform).
fn laplace() -> Vec<f32> {
    let mut state = 1u64;
    let mut value = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let uniform = (state >> 11) as f64 / (1u64 << 53) as f64 - 0.5;
        (-uniform.signum() * (1.0 - 2.0 * uniform.abs()).max(1e-300).ln()) as f32
    };
    (0..LENGTH).map(|_| value()).collect()
}

fn name(scheme: &Scheme) -> String {
    match scheme {
        Scheme::Topk(config) => format!("topk {}", config.ratio.at(1)),
        other => other.about().name.to_string(),
    }
}

fn timed<'c>(
    criterion: &'c mut Criterion,
    name: &str,
) -> BenchmarkGroup<'c, criterion::measurement::WallTime> {
    let mut group = criterion.benchmark_group(name);
    group.throughput(Throughput::Bytes(size_of::<f32>() as u64 * LENGTH as u64));
    group
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1));
    group
}

fn memory(criterion: &mut Criterion) {
    let gradient = laplace();
    let mut copy = vec![0.0f32; LENGTH];
    let mut group = timed(criterion, "memory");
    group.bench_function("memcpy", |bencher| {
        bencher.iter(|| black_box(&mut copy).copy_from_slice(black_box(&gradient)));
    });
    group.bench_function("check finite", |bencher| {
        bencher.iter(|| floats::all_finite(black_box(&gradient)));
    });
    let mut wire = Vec::new();
    floats::put(&gradient, &mut wire);
    for ranks in [2, 4, 8] {
        let parts: Vec<_> = (0..ranks).filter_map(|_| floats::expect(&wire, LENGTH).ok()).collect();
        group.bench_function(format!("dense mean of {ranks}"), |bencher| {
            bencher.iter(|| floats::mean_of(black_box(&parts), 0.5, black_box(&mut copy)));
        });
    }
}

fn schemes(criterion: &mut Criterion) {
    let gradient = laplace();
    let seat = Seat::alone(LENGTH, 0);
    let mut specimens = Scheme::specimens();
    specimens.sort_by_key(name);
    specimens.dedup_by_key(|scheme| name(scheme));
    for (direction, encodes) in [("encode", true), ("decode", false)] {
        let mut group = timed(criterion, direction);
        for scheme in &specimens {
            let mut compressor = scheme.build(&seat);
            let mut wire = Vec::new();
            compressor.encode(&gradient, 1, &mut wire);
            let mut sum = vec![0.0f32; LENGTH];
            group.bench_function(name(scheme), |bencher| {
                bencher.iter(|| {
                    if encodes {
                        wire.clear();
                        compressor.encode(black_box(&gradient), 1, &mut wire);
                    } else {
                        compressor
                            .decode_add(black_box(&wire), 1.0, &mut sum)
                            .expect("its own message");
                    }
                });
            });
        }
    }
}

criterion_group!(benches, memory, schemes);
criterion_main!(benches);
