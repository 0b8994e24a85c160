//! `gradwire bench`: how fast this machine trains, on random samples that cost nothing to read.
//!
//! The samples are those of the usual comparison: images of 32 × 32 pixels, texts of 64 tokens out
//! of 30,000. Everything else is the trainer's own step: loader, model, exchange, optimizer.

use crate::launch::run_workers;
use crate::recipe::Recipe;
use crate::record::Phases;
use crate::worker::{Report, Step};
use anyhow::{Result, bail};
use gradwire_datasets::{Augment, Batch, Data, Dataset, Features, Shape};
use gradwire_models::InputKind;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Steps that are not counted, while caches and buffers fill.
const WARM: u64 = 4;

/// What was measured. Times are medians over steps, of the slowest rank.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// The model's name.
    pub model: String,
    /// The scheme with its settings.
    pub scheme: String,
    /// World size.
    pub workers: usize,
    /// Compute threads per worker.
    pub threads: usize,
    /// Samples per rank and step.
    pub batch: usize,
    /// Parameters of a replica.
    pub parameters: u64,
    /// Steps that were counted.
    pub steps: usize,
    /// Milliseconds per step.
    pub step_ms: f64,
    /// Samples per second over all ranks.
    pub samples_per_s: f64,
    /// Milliseconds per step and phase, mean over ranks.
    pub phases_ms: BTreeMap<&'static str, f64>,
}

/// Takes `steps` steps of `recipe`'s model with `threads` threads per worker, the data set being
/// random samples.
///
/// # Errors
/// When a worker fails, or when there are no steps to count.
pub fn train(recipe: &Recipe, threads: usize, steps: u64) -> Result<Measured> {
    if steps == 0 {
        bail!("0 steps leave nothing to measure");
    }
    let mut recipe = recipe.clone();
    recipe.train.epochs = 1;
    recipe.train.max_steps = Some(WARM + steps);
    recipe.exchange.compare_replicas_every = 0;
    recipe.record.histograms_every = 0;
    let global = recipe.workers * recipe.local_batch();
    let samples = global * (WARM + steps) as usize;
    let data = random(&recipe, samples);
    let mut taken: BTreeMap<u64, Vec<Step>> = BTreeMap::new();
    run_workers(&recipe, &data, threads, None, |report| {
        if let Report::Step(step) = report
            && step.step > WARM
        {
            taken.entry(step.step).or_default().push(*step);
        }
        Ok(())
    })?;
    let slowest = |ranks: &Vec<Step>| ranks.iter().map(|r| r.seconds).fold(0.0, f64::max);
    let step_ms = 1e3 * median(taken.values().map(slowest));
    let phase = |i: usize| {
        let mean = |ranks: &Vec<Step>| {
            ranks.iter().map(|r| r.phases.seconds()[i]).sum::<f64>() / ranks.len() as f64
        };
        1e3 * median(taken.values().map(mean))
    };
    let parameters = taken.values().next().map_or(0, |ranks| ranks[0].traffic.parameters);
    Ok(Measured {
        model: recipe.model.name().into(),
        scheme: recipe.scheme_in_words(),
        workers: recipe.workers,
        threads,
        batch: recipe.local_batch(),
        parameters,
        steps: taken.len(),
        step_ms,
        samples_per_s: 1e3 * global as f64 / step_ms,
        phases_ms: Phases::NAMES.into_iter().enumerate().map(|(i, n)| (n, phase(i))).collect(),
    })
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

/// As many random samples as the model reads.
fn random(recipe: &Recipe, samples: usize) -> Data {
    let text = recipe.model.input_kind() == InputKind::Text;
    let shape = if text {
        Shape::Text { vocabulary: 30_000, length: 64 }
    } else {
        Shape::Image { height: 32, width: 32, channels: 3 }
    };
    let classes = (0..if text { 4 } else { 10 }).map(|c| format!("class {c}")).collect();
    let set = |samples| Arc::new(Random { shape, classes: Vec::clone(&classes), samples });
    Data {
        train: set(samples),
        test: set(recipe.workers),
        files: Vec::new(),
        vocabulary: None,
        normalisation: None,
    }
}

/// Samples made up as they are asked for, each from its own number.
struct Random {
    shape: Shape,
    classes: Vec<String>,
    samples: usize,
}

impl Dataset for Random {
    fn len(&self) -> usize {
        self.samples
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn shape(&self) -> Shape {
        self.shape
    }

    fn batch(&self, indices: &[u32], _augment: Option<&Augment>, into: &mut Batch) {
        into.labels.clear();
        into.labels.extend(indices.iter().map(|i| hash(*i, u32::MAX) % self.classes.len() as u32));
        into.features = match self.shape {
            Shape::Image { height, width, channels } => {
                let value = |i: u32, j: u32| hash(i, j) as f32 / u32::MAX as f32 * 4.0 - 2.0;
                let size = (height * width * channels) as u32;
                let pixels = indices.iter().flat_map(|&i| (0..size).map(move |j| value(i, j)));
                Features::Images { pixels: pixels.collect(), height, width, channels }
            }
            Shape::Text { vocabulary, length } => {
                let id = |i: u32, j: u32| hash(i, j) % vocabulary as u32;
                let ids = indices.iter().flat_map(|&i| (0..length as u32).map(move |j| id(i, j)));
                Features::Tokens { ids: ids.collect(), length }
            }
        };
    }
}

/// A well-mixed number for a pair (the finaliser of `MurmurHash3`, public domain, by A. Appleby).
fn hash(i: u32, j: u32) -> u32 {
    let mut h = i.wrapping_mul(0x9e37_79b9) ^ j.wrapping_mul(0x85eb_ca6b);
    h = (h ^ (h >> 16)).wrapping_mul(0x85eb_ca6b);
    h = (h ^ (h >> 13)).wrapping_mul(0xc2b2_ae35);
    h ^ (h >> 16)
}
