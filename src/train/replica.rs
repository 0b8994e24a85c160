//! A replica: one worker's copy of the model, what it makes of a batch.

use crate::checkpoint::Score;
use crate::recipe::{self, Recipe, input};
use crate::train::params::Params;
use crate::train::parts::ModelDefinition;
use crate::train::views::{self, View};
use anyhow::{Context, Error, Result};
use candle_core::{DType, Device, Tensor};
use gradwire_datasets::{Batch, Dataset, Features, Shape};
use gradwire_exchange::rng::Stream;
use gradwire_models::{Loss, Model, Store, config, gpu, randomness};
use std::collections::BTreeSet;
use std::ops::Range;

/// A model with its variables.
pub struct Replica {
    /// The variables, trainable and not, by PyTorch's names.
    pub store: Store,
    /// The trainable ones and their places in the flat gradient.
    pub params: Params,
    model: Model,
    loss: Loss,
    device: Device,
    seed: u64,
    label_smoothing: f64,
    /// How an evaluation looks at a sample.
    views: Vec<View>,
}

impl Replica {
    /// The recipe's model, as [`of`](Self::of).
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub fn new(recipe: &Recipe, data: &dyn Dataset, number: usize) -> Result<Self> {
        Self::of(recipe.model.definition(), recipe, (data.shape(), data.classes().len()), number)
    }

    /// A model for samples of that shape and so many classes, initialised from the recipe's seed: all ranks start
    /// from the same bits. `number` counts the workers of this machine from 0. The process rounds matrix
    /// products of GPUs from now on as the recipe says.
    ///
    /// # Errors
    /// When the model cannot read such samples, or there is no such device.
    pub fn of(
        definition: &dyn ModelDefinition,
        recipe: &Recipe,
        (shape, classes): (Shape, usize),
        number: usize,
    ) -> Result<Self> {
        let device = open(recipe.device, number)?;
        gpu::allow_tf32(recipe.tf32);
        let store = Store::new(recipe.seed, &device);
        let model = config::build(definition, &input(shape), classes, store.var_builder())
            .with_context(|| format!("building model {}", definition.about().name))?;
        let loss = definition.loss();
        let params = Params::new(&store);
        let (label_smoothing, views) =
            (recipe.train.label_smoothing, views::views_of(recipe.train.test_views));
        let seed = recipe.seed;
        Ok(Self { store, params, model, loss, device, seed, label_smoothing, views })
    }

    /// Sets what the model computes from training samples before the first step, if anything:
    /// from the first of `data`, as they are, or from all over it where the first are not of all classes.
    ///
    /// # Errors
    /// When nothing follows from them.
    pub fn prepare(&self, definition: &dyn ModelDefinition, data: &dyn Dataset) -> Result<()> {
        let samples = definition.prepares_from().min(data.len());
        if samples == 0 {
            return Ok(());
        }
        let mut indices: Vec<u32> = (0..).take(samples).collect();
        let mut batch = Batch::default();
        data.batch(&indices, None, &mut batch);
        let found = batch.labels.iter().collect::<BTreeSet<_>>().len();
        if found < data.classes().len() {
            // A set that lies class by class begins with one class.
            let evenly =
                |place: &u32| (u64::from(*place) * data.len() as u64 / samples as u64) as u32;
            indices = indices.iter().map(evenly).collect();
            data.batch(&indices, None, &mut batch);
        }
        let samples = self.features(&batch.features, 0..samples)?;
        let prepared = definition.prepare(&self.store, &samples);
        prepared.with_context(|| format!("preparing model {}", definition.about().name))
    }

    /// Forward pass over the samples `part` of `batch` in training mode: their mean loss, still
    /// differentiable, and their score. What is random in the model, such as dropout, follows from
    /// the run's seed and `pass`, words that no other pass of the run has.
    ///
    /// # Errors
    /// When the model fails.
    pub fn forward(
        &self,
        batch: &Batch,
        part: Range<usize>,
        pass: [u64; 3],
    ) -> Result<(Tensor, Score)> {
        let [step, rank, start] = pass;
        let stream = Stream::new(&[self.seed, step, rank, start]);
        randomness::begin(u64::from(stream.bits(0)) << 32 | u64::from(stream.bits(1)));
        let each = batch.features.labels();
        let labels = &batch.labels[part.start * each..part.end * each];
        let logits = self.model.forward_t(&self.features(&batch.features, part)?, true)?;
        self.score(&logits, labels, self.label_smoothing)
    }

    /// The score of a whole batch in evaluation mode, without label smoothing: of the mean of the
    /// logits that the recipe's views of each sample give.
    ///
    /// # Errors
    /// When the model fails.
    pub fn evaluate(&self, batch: &Batch) -> Result<Score> {
        let mut mean: Option<Tensor> = None;
        for view in &self.views {
            let features = self.features(&view.look(&batch.features), 0..batch.len())?;
            // Without what led to them: no gradient follows, and the activations of one view are enough.
            let logits = (self.model.forward_t(&features, false)? * view.weight)?.detach();
            mean = Some(match mean {
                Some(sum) => (sum + logits)?,
                None => logits,
            });
        }
        let logits = mean.context("invariant: a sample has at least one view")?;
        let score = self.score(&logits, &batch.labels, 0.0)?.1;
        let classifies = !matches!(batch.features, Features::Sequences { .. });
        Ok(match classifies && logits.dim(1)? > 5 {
            true => Score { top5: Some(within(&logits, &batch.labels, 5)?), ..score },
            false => score,
        })
    }

    /// The logits of the token after the last of the one sequence of `batch`.
    pub(super) fn last_logits(&self, batch: &Batch) -> Result<Vec<f32>> {
        let features = self.features(&batch.features, 0..batch.len())?;
        let logits = self.model.forward_t(&features, false)?;
        Ok(logits.get(logits.dim(0)? - 1)?.to_vec1()?)
    }

    /// The mean loss, still differentiable, and the score of the samples with these labels.
    fn score(&self, logits: &Tensor, labels: &[u32], smoothing: f64) -> Result<(Tensor, Score)> {
        let targets = Tensor::from_slice(labels, labels.len(), &self.device)?;
        let loss = (self.loss)(logits, &targets, smoothing)?;
        let score = Score {
            loss: f64::from(loss.to_scalar::<f32>()?) * labels.len() as f64,
            correct: within(logits, labels, 1)?,
            top5: None,
            samples: labels.len() as u64,
        };
        Ok((loss, score))
    }

    fn features(&self, features: &Features, part: Range<usize>) -> Result<Tensor> {
        let samples = part.len();
        Ok(match features {
            Features::Images { pixels, height, width, channels } => {
                let size = height * width * channels;
                let pixels = &pixels[part.start * size..part.end * size];
                Tensor::from_slice(pixels, (samples, *height, *width, *channels), &self.device)?
            }
            Features::Tokens { ids, length } | Features::Sequences { ids, length } => {
                let ids = &ids[part.start * length..part.end * length];
                Tensor::from_slice(ids, (samples, *length), &self.device)?
            }
        })
    }
}

/// The device of a machine's worker.
fn open(device: recipe::Device, number: usize) -> Result<Device> {
    let gpus = if device == recipe::Device::Cpu { 0 } else { gpu::count()? };
    Ok(gpu::device(device.gpu(number, gpus).map_err(Error::msg)?)?)
}

/// How many rows of `logits [batch, classes]` have their label among the `first` predicted classes.
fn within(logits: &Tensor, labels: &[u32], first: usize) -> Result<u64> {
    let rows = logits.to_dtype(DType::F32)?.to_vec2::<f32>()?;
    let right = rows.iter().zip(labels).filter(|(row, label)| place(row, **label as usize) < first);
    Ok(right.count() as u64)
}

/// How many classes come before this one in a prediction: those of larger logits, and of several equal ones the
/// first, as `torch.argmax` has it on the CPU. A NaN counts as larger than every number there, and so here.
fn place(logits: &[f32], class: usize) -> usize {
    let own = logits[class];
    let before = |(other, logit): (usize, &f32)| match (logit.is_nan(), own.is_nan()) {
        (true, false) => true,
        (false, true) => false,
        (both, _) => *logit > own || (both || *logit == own) && other < class,
    };
    logits.iter().enumerate().filter(|other| before(*other)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_equal_logits_the_first_is_the_predicted_class() {
        let cases: [(&[f32], usize); 7] = [
            (&[0.5, 2.0, 1.0], 1),
            (&[1.0, 1.0, 1.0], 0),
            (&[0.0, 3.0, 3.0], 1),
            (&[-0.0, 0.0], 0),
            (&[f32::NEG_INFINITY, f32::NEG_INFINITY], 0),
            (&[1.0, f32::NAN, f32::INFINITY, f32::NAN], 1),
            (&[1.0, -f32::NAN], 1),
        ];
        for (logits, class) in cases {
            let mut order: Vec<usize> = (0..logits.len()).collect();
            order.sort_by_key(|class| place(logits, *class));
            assert_eq!(order[0], class, "{logits:?}");
            let places: Vec<usize> = order.iter().map(|class| place(logits, *class)).collect();
            assert!(places.into_iter().eq(0..logits.len()), "{logits:?}");
        }
    }

    /// A model with the same output for every class is right about the samples of the first class,
    /// and about no others.
    #[test]
    fn a_model_without_an_opinion_predicts_the_first_class() {
        let logits = Tensor::zeros((4, 3), DType::F32, &Device::Cpu).unwrap();
        assert_eq!(within(&logits, &[0, 2, 1, 2], 1).unwrap(), 1);
        assert_eq!(within(&logits, &[2, 2, 2, 2], 1).unwrap(), 0);
        assert_eq!(within(&logits, &[0, 2, 1, 2], 2).unwrap(), 2);
    }
}
