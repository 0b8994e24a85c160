//! Encode and decode throughput of every scheme, in bytes of f32 gradient, beside a memcpy of the
//! same bytes: Laplace distributed gradients of 2²⁰ elements and of a ResNet-18's 11.2 million.
//!
//! `gradwire bench codecs --gradient FILE` does the same with a recorded gradient.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use gradwire_exchange::wire::floats;
use gradwire_exchange::{Encoded, Scheme, SchemeConfig, Seat, StepMessages};

/// Elements: 4 MiB of gradient, which a second-level cache nearly holds, and a ResNet-18's, which no
/// cache does.
const LENGTHS: [usize; 2] = [1 << 20, 11_173_962];

/// Laplace distributed values (a 64-bit linear congruential generator and the inverse transform).
fn laplace(length: usize) -> Vec<f32> {
    let mut state = 1u64;
    let mut value = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let uniform = (state >> 11) as f64 / (1u64 << 53) as f64 - 0.5;
        (-uniform.signum() * (1.0 - 2.0 * uniform.abs()).max(1e-300).ln()) as f32
    };
    (0..length).map(|_| value()).collect()
}

/// A scheme's name, numbered where several settings are timed.
fn name(scheme: &SchemeConfig, number: usize) -> String {
    match number {
        0 => scheme.about().name.to_string(),
        _ => format!("{} {number}", scheme.about().name),
    }
}

fn timed<'c>(
    criterion: &'c mut Criterion,
    name: &str,
    length: usize,
) -> BenchmarkGroup<'c, criterion::measurement::WallTime> {
    let mut group = criterion.benchmark_group(format!("{name} {length}"));
    group.throughput(Throughput::Bytes(size_of::<f32>() as u64 * length as u64));
    group
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(600));
    group
}

fn memory(criterion: &mut Criterion) {
    for length in LENGTHS {
        let gradient = laplace(length);
        let mut copy = vec![0.0f32; length];
        let mut group = timed(criterion, "memory", length);
        group.bench_function("memcpy", |bencher| {
            bencher.iter(|| black_box(&mut copy).copy_from_slice(black_box(&gradient)));
        });
        group.bench_function("check finite", |bencher| {
            bencher.iter(|| floats::all_finite(black_box(&gradient)));
        });
        let mut wire = Vec::new();
        floats::put(&gradient, &mut wire);
        for ranks in [2, 4, 8] {
            let parts: Vec<_> =
                (0..ranks).filter_map(|_| floats::expect(&wire, length).ok()).collect();
            group.bench_function(format!("dense mean of {ranks}"), |bencher| {
                bencher.iter(|| floats::mean_of(black_box(&parts), 0.5, black_box(&mut copy)));
            });
        }
    }
}

fn schemes(criterion: &mut Criterion) {
    for length in LENGTHS {
        let gradient = laplace(length);
        let mut numbers = std::collections::BTreeMap::<&str, usize>::new();
        for scheme in SchemeConfig::codecs() {
            let number = numbers.entry(scheme.about().name).or_default();
            let name = name(&scheme, *number);
            *number += 1;
            scheme_on(criterion, &name, &scheme, &gradient);
        }
    }
}

fn scheme_on(criterion: &mut Criterion, name: &str, scheme: &SchemeConfig, gradient: &[f32]) {
    let mut compressor = scheme.codec(&Seat::alone(gradient.len(), 0)).expect("a codec");
    let mut wire = Vec::new();
    let mut sum = vec![0.0f32; gradient.len()];
    // Schemes that learn have learnt then.
    for step in 1..=12 {
        wire.clear();
        if compressor.encode(gradient, step, &mut wire) == Encoded::Dense {
            return;
        }
        let heard = StepMessages { step, messages: &[Some(&wire)], mean: gradient };
        compressor.learn_and_commit(&heard).expect("its own message");
    }
    timed(criterion, "encode", gradient.len()).bench_function(name, |bencher| {
        bencher.iter(|| {
            wire.clear();
            compressor.encode(black_box(gradient), 13, &mut wire)
        });
    });
    timed(criterion, "decode", gradient.len()).bench_function(name, |bencher| {
        bencher.iter(|| {
            compressor
                .decode_add(black_box(&wire), 0..sum.len(), 1.0, &mut sum)
                .expect("its own message");
        });
    });
}

criterion_group!(benches, memory, schemes);
criterion_main!(benches);
