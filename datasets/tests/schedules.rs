//! The orders in which the loader's thread and its owner may run, tried out: no deadlock, no lost
//! batch, whenever the owner goes.
//!
//! `cargo test -p gradwire-datasets --features shuttle --test schedules` runs every order of the
//! shortest life, and some thousand orders, seeded, of longer ones.
#![cfg(feature = "shuttle")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gradwire_datasets::{Augment, Batch, Dataset, Error, Features, Loader, Plan, Sampler, Shape};

/// Sample i has label i; the poisoned one panics.
struct Numbers {
    poisoned: Option<u32>,
}

const SAMPLES: usize = 8;

impl Dataset for Numbers {
    fn len(&self) -> usize {
        SAMPLES
    }
    fn classes(&self) -> &[String] {
        &[]
    }
    fn shape(&self) -> Shape {
        Shape::Text { vocabulary: SAMPLES, length: 1 }
    }
    fn batch(&self, indices: &[u32], _augment: Option<&Augment>, into: &mut Batch) {
        assert!(self.poisoned.is_none_or(|p| !indices.contains(&p)), "sample is poisoned");
        into.labels.clear();
        into.labels.extend(indices);
        if let Features::Tokens { ids, length } = &mut into.features {
            *length = 1;
            ids.clear();
            ids.extend(indices);
        }
    }
}

/// Takes so many of the plan's batches, giving each back, then goes.
fn life(depth: usize, last_step: u64, takes: u64) {
    let sampler = || Sampler::new(3, SAMPLES, 1, 0, 3).unwrap();
    let plan = Plan { depth, last_step: Some(last_step), ..Plan::default() };
    let mut loader = Loader::new(Arc::new(Numbers { poisoned: None }), sampler(), plan).unwrap();
    let (mut reference, mut indices) = (sampler(), Vec::new());
    for step in 1..=takes {
        match loader.next() {
            Ok(loaded) => {
                reference.indices(step, &mut indices);
                assert_eq!((loaded.step, &loaded.batch.labels), (step, &indices));
                loader.recycle(loaded.batch);
            }
            Err(error) => {
                assert!(step > last_step, "step {step}: {error}");
                assert!(matches!(error, Error::Exhausted { .. }), "{error}");
            }
        }
    }
    // The thread may get anywhere before its owner goes.
    shuttle::thread::yield_now();
}

fn explore(check: impl Fn() + Send + Sync + Clone + 'static) {
    let again = check.clone();
    shuttle::check_random(check, 1500);
    shuttle::check_pct(again, 1500, 3);
}

#[test]
fn the_shortest_life_ends_well_in_every_order() {
    let orders = Arc::new(AtomicUsize::new(0));
    let counted = orders.clone();
    let check = move || {
        counted.fetch_add(1, Ordering::Relaxed);
        life(1, 2, 1);
    };
    shuttle::check_dfs(check, None);
    println!("{} orders", orders.load(Ordering::Relaxed));
}

#[test]
fn every_batch_comes_once_and_in_order() {
    explore(|| life(1, 3, 4));
    explore(|| life(2, 3, 3));
}

#[test]
fn the_thread_ends_whenever_its_owner_goes() {
    for takes in 0..3 {
        explore(move || life(1, 5, takes));
    }
}
