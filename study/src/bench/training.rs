//! `gradwire bench`: how fast this machine trains, on random samples that cost nothing to read.
//!
//! The samples are those of the usual comparison: images of 32 × 32 pixels, texts of 64 tokens out
//! of 30,000. Everything else is the trainer's own step: loader, model, exchange, optimizer.

use crate::statistics::median;
use anyhow::{Result, bail};
use gradwire::cluster::Job;
use gradwire::machine;
use gradwire::recipe::{Device, Recipe};
use gradwire::record::Phases;
use gradwire::train::report::{RankStep, Report};
use gradwire::train::session::Session;
use gradwire::train::workers::run_workers;
use gradwire_datasets::{Augment, Batch, Data, Dataset, Features, Shape};
use gradwire_models::InputKind;
use gradwire_models::kernels::{Precision, peak, profile};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Steps that are not counted, while caches and buffers fill.
const WARM: u64 = 4;

/// What measuring a core's peak may take.
const PEAK_BUDGET: Duration = Duration::from_millis(300);

/// What was measured. Times are medians over steps, of the slowest rank.
#[derive(Clone, Debug, Serialize)]
pub struct TrainingSpeed {
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
    /// Where replicas computed.
    pub device: Device,
    /// Whether GPUs rounded the factors of matrix products to TF32.
    pub tf32: bool,
    /// What products were computed in.
    pub precision: Precision,
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
    /// Milliseconds per step and kind of kernel, mean over ranks, by the kind's name;
    /// forward and backward hold them. Empty on kernels that are not ours.
    pub kernels_ms: BTreeMap<&'static str, f64>,
    /// Effective GFLOP/s over all ranks and the whole step: what [`profile`] counts. Absent on kernels that are not
    /// ours.
    pub gflops: Option<f64>,
    /// GFLOP/s of a large matrix product on one core, in bf16 if the model's are, times the cores that compute.
    pub peak_gflops: f64,
    /// The share of the peak that the whole step reached; 1 is all of it.
    pub share_of_peak: Option<f64>,
    /// The most memory that the process has held, in MB; absent where the system does not report it.
    pub memory_mb: Option<f64>,
}

/// Takes `steps` steps of `recipe`'s model with `threads` threads per worker, the data set being
/// [`random`] samples.
///
/// # Errors
/// When a worker fails, or when there are no steps to count.
pub fn measure(
    recipe: &Recipe,
    threads: usize,
    steps: u64,
    like: Option<(Shape, usize)>,
) -> Result<TrainingSpeed> {
    if steps == 0 {
        bail!("0 steps leave nothing to measure");
    }
    let mut recipe = recipe.clone();
    recipe.train.epochs = 1;
    recipe.train.max_steps = Some(WARM + steps);
    recipe.exchange.compare_replicas_every = 0;
    recipe.record.histograms_every = 0;
    let checkpoint = &mut recipe.checkpoint;
    (checkpoint.keep_last, checkpoint.keep_best, checkpoint.every_steps) = (0, false, 0);
    // Nothing is recorded, so no step measures its compression error.
    recipe.record.every = u64::MAX;
    let global = recipe.workers * recipe.local_batch();
    let samples = global * (WARM + steps) as usize;
    let data = random(&recipe, samples, like);
    let mut taken: BTreeMap<u64, Vec<RankStep>> = BTreeMap::new();
    let session = Session::new(recipe.clone(), data)?;
    run_workers(&Job::alone(), &Arc::new(session), threads, None, |report| {
        if let Report::Step(step) = report
            && step.step > WARM
        {
            taken.entry(step.step).or_default().push(*step);
        }
        Ok(())
    })?;
    let memory_mb = machine::peak_memory();
    let cores = (recipe.workers * threads).min(machine::cores());
    let of_core = match recipe.precision {
        Precision::Bf16 => peak::bf16_gflops(PEAK_BUDGET),
        _ => None,
    };
    let of_core = of_core.unwrap_or_else(|| peak::sgemm_gflops(PEAK_BUDGET));
    let peak_gflops = of_core * cores as f64;
    let slowest = |ranks: &Vec<RankStep>| ranks.iter().map(|r| r.seconds).fold(0.0, f64::max);
    let step_ms = 1e3 * median(taken.values().map(slowest)).unwrap_or(f64::NAN);
    let mean_ms = |seconds: &dyn Fn(&RankStep) -> f64| {
        let mean =
            |ranks: &Vec<RankStep>| ranks.iter().map(seconds).sum::<f64>() / ranks.len() as f64;
        1e3 * median(taken.values().map(mean)).unwrap_or(f64::NAN)
    };
    let phases_ms = Phases::NAMES.into_iter().enumerate();
    let phases_ms = phases_ms.map(|(i, name)| (name, mean_ms(&|rank| rank.phases.seconds()[i])));
    let kernels_ms = profile::Timed::ALL.iter().filter_map(|kind| {
        let ms = mean_ms(&|rank| rank.profile.time(*kind).as_secs_f64());
        (ms > 0.0).then(|| (kind.name(), ms))
    });
    let operations =
        |ranks: &Vec<RankStep>| ranks.iter().map(|r| r.profile.operations as f64).sum();
    let operations = median(taken.values().map(operations)).unwrap_or(0.0);
    let gflops = (operations > 0.0).then(|| operations / step_ms / 1e6);
    let parameters = taken.values().next().map_or(0, |ranks| ranks[0].traffic.parameters);
    Ok(TrainingSpeed {
        model: recipe.model.name().into(),
        scheme: recipe.scheme_in_words(),
        workers: recipe.workers,
        threads,
        batch: recipe.local_batch(),
        device: recipe.device,
        tf32: recipe.tf32,
        precision: recipe.precision,
        parameters,
        steps: taken.len(),
        step_ms,
        samples_per_s: 1e3 * global as f64 / step_ms,
        phases_ms: phases_ms.collect(),
        kernels_ms: kernels_ms.collect(),
        gflops,
        peak_gflops,
        share_of_peak: gflops.map(|gflops| gflops / peak_gflops),
        memory_mb,
    })
}

/// As many random samples as the model reads: of a shape and so many classes, or of those of CIFAR-10's images, AG News'
/// texts, the characters of Shakespeare.
pub fn random(recipe: &Recipe, samples: usize, like: Option<(Shape, usize)>) -> Data {
    let (shape, classes) = like.unwrap_or(match recipe.model.input_kind() {
        InputKind::Image => (Shape::Image { height: 32, width: 32, channels: 3 }, 10),
        InputKind::Text => (Shape::Text { vocabulary: 30_000, length: 64 }, 4),
        InputKind::Sequence => (Shape::Sequence { vocabulary: 65, length: 64 }, 65),
    });
    let classes: Vec<_> = (0..classes).map(|c| format!("class {c}")).collect();
    let set = |samples| Arc::new(Random::new(shape, classes.clone(), samples));
    Data {
        train: set(samples),
        test: set(recipe.workers),
        files: Vec::new(),
        altered: Vec::new(),
        vocabulary: None,
        normalisation: None,
        warnings: Vec::new(),
    }
}

/// Samples that cost no more than copying them: each a window, its own, of numbers drawn beforehand.
struct Random {
    shape: Shape,
    classes: Vec<String>,
    samples: usize,
    pixels: Vec<f32>,
    ids: Vec<u32>,
}

/// Numbers that samples begin at.
const WINDOWS: u32 = 1 << 16;

impl Random {
    fn new(shape: Shape, classes: Vec<String>, samples: usize) -> Self {
        let uniform = |i| f64::from(hash(i, u32::MAX)) / f64::from(u32::MAX);
        let (mut pixels, mut ids) = (Vec::new(), Vec::new());
        match shape {
            Shape::Image { height, width, channels } => {
                let count = WINDOWS + (height * width * channels) as u32;
                pixels.extend((0..count).map(|i| 4.0 * uniform(i) as f32 - 2.0));
            }
            Shape::Text { vocabulary, length } | Shape::Sequence { vocabulary, length } => {
                // As words occur: the r-th most frequent with a frequency of 1/r (Zipf 1935).
                let vocabulary = vocabulary as f64;
                let id = |i| vocabulary.powf(uniform(i)).min(vocabulary - 1.0) as u32;
                ids.extend((0..=WINDOWS + length as u32).map(id));
            }
        }
        Self { shape, classes, samples, pixels, ids }
    }
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
        let label = |i: &u32| hash(*i, 0) % self.classes.len() as u32;
        let mut labels: Vec<u32> = indices.iter().map(label).collect();
        let windows = indices.iter().map(|i| (hash(*i, 1) % WINDOWS) as usize);
        let features = std::mem::take(into).features;
        into.features = match (self.shape, features) {
            (Shape::Image { height, width, channels }, features) => {
                let mut pixels = match features {
                    Features::Images { pixels, .. } => pixels,
                    Features::Tokens { .. } | Features::Sequences { .. } => Vec::new(),
                };
                fill(&mut pixels, &self.pixels, windows, height * width * channels);
                Features::Images { pixels, height, width, channels }
            }
            (Shape::Text { length, .. }, features) => {
                let mut ids = features.into_ids();
                fill(&mut ids, &self.ids, windows, length);
                Features::Tokens { ids, length }
            }
            (Shape::Sequence { length, .. }, features) => {
                let mut ids = features.into_ids();
                fill(&mut labels, &self.ids, windows.clone().map(|start| start + 1), length);
                fill(&mut ids, &self.ids, windows, length);
                Features::Sequences { ids, length }
            }
        };
        into.labels = labels;
    }
}

/// The windows of `size` numbers, one after the other.
fn fill<T: Copy>(into: &mut Vec<T>, from: &[T], windows: impl Iterator<Item = usize>, size: usize) {
    into.clear();
    windows.for_each(|start| into.extend_from_slice(&from[start..start + size]));
}

/// A well-mixed number for a pair (the finaliser of `MurmurHash3`, public domain, by A. Appleby).
fn hash(i: u32, j: u32) -> u32 {
    let mut h = i.wrapping_mul(0x9e37_79b9) ^ j.wrapping_mul(0x85eb_ca6b);
    h = (h ^ (h >> 16)).wrapping_mul(0x85eb_ca6b);
    h = (h ^ (h >> 13)).wrapping_mul(0xc2b2_ae35);
    h ^ (h >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gradwire::recipe::Source;
    use toml::Value;

    #[test]
    fn everything_is_measured_and_adds_up() {
        let text = |path, value: &str| (path, Value::String(value.into()));
        let flags = vec![
            text("model", "resnet20"),
            text("dataset", "synthetic-cifar10"),
            ("workers", Value::Integer(2)),
            ("train.batch", Value::Integer(2)),
        ];
        let recipe = Source { recipe: None, flags, sets: Vec::new() }.load().unwrap();
        let measured = measure(&recipe, 1, 2, None).unwrap();
        assert_eq!((measured.steps, measured.parameters), (2, 269_722));
        let sum: f64 = measured.phases_ms.values().sum();
        assert!(sum > 0.0 && sum < 2.0 * measured.step_ms, "{measured:?}");
        assert!((measured.samples_per_s * measured.step_ms / 1e3 - 4.0).abs() < 1e-6);
        assert!(measured.peak_gflops > 0.0);
        assert_eq!(measured.memory_mb.is_some(), cfg!(target_os = "linux"));
        if let Some(gflops) = measured.gflops {
            assert!(measured.kernels_ms.contains_key("convolution"));
            assert_eq!(measured.share_of_peak, Some(gflops / measured.peak_gflops));
        }
    }
}
