//! Memory: none proportional to the gradient in steady state, none that hostile bytes ask for.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use gradwire_exchange::Scheme;
use std::alloc::{GlobalAlloc, Layout as Block, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{Random, each_rank, parameters, seat};
use gradwire_exchange::{
    Alone, BucketGradient, Bucketing, Built, Downlink, Exchange, Next, SchemeConfig, StepMessages,
    Topology, Wiring, mesh,
};

/// The system's allocator, remembering the largest block asked for, and how many.
struct Watching;

static LARGEST: AtomicUsize = AtomicUsize::new(0);
static COUNT: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, block: Block) -> *mut u8 {
        LARGEST.fetch_max(block.size(), Ordering::Relaxed);
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(block) }
    }

    unsafe fn dealloc(&self, at: *mut u8, block: Block) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(at, block) }
    }

    unsafe fn realloc(&self, at: *mut u8, block: Block, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Ordering::Relaxed);
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(at, block, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

/// The largest block asked for while `work` runs.
fn largest_during(work: impl FnOnce()) -> usize {
    LARGEST.store(0, Ordering::Relaxed);
    work();
    LARGEST.load(Ordering::Relaxed)
}

// One test, because the allocator is everybody's.
#[test]
fn memory_stays_bounded() {
    steady_steps_allocate_nothing_proportional_to_the_gradient();
    steady_messages_allocate_nothing();
    steady_rounds_allocate_nothing();
    hostile_bytes_allocate_nothing();
}

/// Encoding, decoding and learning from messages reuse their memory, whatever they compute at
/// intervals.
fn steady_messages_allocate_nothing() {
    const LENGTH: usize = 5_000;
    for scheme in SchemeConfig::codecs() {
        let mut compressor = scheme.codec(&seat(LENGTH)).expect("a codec");
        let gradient = Random(1).laplaces(LENGTH);
        let mut mean = vec![0.0; LENGTH];
        let mut wire = Vec::with_capacity(8 * LENGTH);
        let mut step = |number: u64| {
            wire.clear();
            mean.fill(0.0);
            compressor.encode(&gradient, number, &mut wire);
            compressor.decode_add(&wire, 0, 1.0, &mut mean).unwrap();
            let messages = [Some(&wire[..])];
            compressor
                .learn_and_commit(&StepMessages { step: number, messages: &messages, mean: &mean })
                .unwrap();
        };
        (1..=250).for_each(&mut step);
        let before = COUNT.load(Ordering::Relaxed);
        (251..=460).for_each(&mut step);
        let count = COUNT.load(Ordering::Relaxed) - before;
        assert_eq!(count, 0, "{scheme:?} allocates in steady state");
    }
}

/// So do the rounds of reducers.
fn steady_rounds_allocate_nothing() {
    let shapes = [vec![16, 3, 3, 3], vec![16], vec![9, 130], vec![70, 21]];
    let length = shapes.iter().map(|shape| shape.iter().product::<usize>()).sum();
    let parameters = shapes.iter().map(|shape| shape.iter().product()).collect();
    let mut seat = seat(length);
    (seat.parameters, seat.shapes) = (parameters, shapes.to_vec());
    for scheme in SchemeConfig::specimens() {
        let Built::Reducer(mut reducer) = scheme.build(&seat) else { continue };
        let gradient = Random(1).laplaces(length);
        let (mut values, mut residual) = (gradient.clone(), gradient.clone());
        let mut alone = Alone::default();
        let mut step = |number: u64| {
            values.copy_from_slice(&gradient);
            residual.copy_from_slice(&gradient);
            let mut bucket = BucketGradient::new(&mut values, Some(&mut residual));
            while alone.turn(&mut *reducer, number, &mut bucket).unwrap() == Next::Again {}
            reducer.commit();
        };
        (1..=3).for_each(&mut step);
        let before = COUNT.load(Ordering::Relaxed);
        (4..=20).for_each(&mut step);
        let count = COUNT.load(Ordering::Relaxed) - before;
        assert_eq!(count, 0, "{scheme:?} allocates in steady state");
    }
}

fn steady_steps_allocate_nothing_proportional_to_the_gradient() {
    let compressed = Wiring { topology: Topology::Server, downlink: Some(Downlink::Compressed) };
    let wirings = common::FLAT.iter().map(|topology| Wiring::from(*topology)).chain([compressed]);
    for wiring in wirings {
        for scheme in SchemeConfig::all() {
            // What a server has left pending grows for long: where thresholds decide, so do messages.
            let settled = ["topk", "randomk", "optquant", "qsgd", "signsgd", "half", "casq"];
            let steady = wiring != compressed || settled.contains(&scheme.about().name);
            if steady && wiring.validate(&scheme, &Bucketing::Whole.into()).is_ok() {
                steady_steps_of(wiring, &scheme);
            }
        }
    }
}

fn steady_steps_of(wiring: Wiring, scheme: &SchemeConfig) {
    const LENGTH: usize = 200_000;
    let ends = mesh(3, Duration::from_secs(20));
    each_rank(ends, |rank, end| {
        let layout = parameters(&[LENGTH]);
        let mut exchange =
            Exchange::with(scheme, wiring, Bucketing::Whole, layout, 0, end).unwrap();
        let fresh = Random(rank as u64).laplaces(LENGTH);
        let mut gradient = fresh.clone();
        for step in 1..=12 {
            gradient.copy_from_slice(&fresh);
            exchange.collective().barrier().unwrap();
            if step == 7 && rank == 0 {
                LARGEST.store(0, Ordering::Relaxed);
            }
            exchange.collective().barrier().unwrap();
            exchange.allreduce(step, &mut gradient).unwrap();
        }
        exchange.collective().barrier().unwrap();
        let largest = LARGEST.load(Ordering::Relaxed);
        assert!(largest < LENGTH / 10, "{scheme:?} over {wiring:?}: a block of {largest} bytes");
    });
}

fn hostile_bytes_allocate_nothing() {
    let mut random = Random(77);
    for scheme in SchemeConfig::codecs() {
        for length in [9, 1025, 100_003] {
            let compressor = scheme.codec(&seat(length)).expect("a codec");
            let mut sum = vec![0.0; length];
            for _ in 0..300 {
                let mut wire: Vec<u8> =
                    (0..random.below(64)).map(|_| random.bits() as u8).collect();
                if let Some(first) = wire.first_mut() {
                    *first |= 0xf0 * (random.below(2) as u8);
                }
                let largest = largest_during(|| {
                    let _ = compressor.decode_add(&wire, 0, 1.0, &mut sum);
                });
                assert!(largest <= 4 * length + 1024, "{scheme:?}: a block of {largest} bytes");
            }
        }
    }
}
