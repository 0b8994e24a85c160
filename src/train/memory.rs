//! The memory that training needs at least, known before it is allocated.

use crate::machine::{self, Memory};
use crate::recipe::{Device, Recipe, average, input};
use crate::text::{bytes, grouped};
use crate::train::parts::Parts;
use crate::train::replica::Replica;
use crate::train::session::Session;
use anyhow::{Result, ensure};
use gradwire_datasets::Batch;
use gradwire_models::kernels;

/// How many times the least is taken together with activations, messages and the data set, as a rule:
/// more where batches are large, less where models are.
const USUALLY: u64 = 2;

/// Bytes that `workers` workers of one machine need at least, each with a replica of `parameters`
/// parameters: weights, gradient, the optimizers' vectors, an average of the weights, and what the exchange keeps of
/// each parameter. Activations, messages and the data set come on top.
pub fn least(recipe: &Recipe, parts: &Parts<'_>, parameters: u64, workers: usize) -> u64 {
    let correction = parts.policy.momentum();
    let corrects = correction > 0.0;
    let rule = parts.optimizer.rule(correction);
    let [weights, gradient] = [1, 1];
    let feeds_back = parts.policy.schemes(parts.scheme).any(|scheme| scheme.feedback());
    let residual = u64::from(feeds_back || corrects || parts.policy.shares_momentum());
    let average = u64::from(recipe.average != average::Config::default());
    let outer = match recipe.is_local() {
        true => {
            let outer = recipe.outer.unwrap_or_default();
            1 + u64::from(outer.momentum > 0.0) + u64::from(outer.delay > 0)
        }
        false => 0,
    };
    let rule = rule.vectors().len() as u64;
    let estimate = 2 * u64::from(parts.policy.efsgdm() > 0.0 || parts.policy.shares_momentum());
    let kept = residual + u64::from(corrects) + estimate;
    let vectors = weights + gradient + rule + kept + average + outer;
    let each = (size_of::<f32>() as u64 * vectors).saturating_mul(parameters);
    each.saturating_mul(workers as u64)
}

/// What the recipe needs at least on one machine, in words, as far as is known before its data
/// set is read whole: with the largest vocabulary that it may have; or why that is not known.
///
/// # Errors
/// When the recipe makes no network.
pub fn in_words(recipe: &Recipe, workers: usize) -> Result<String> {
    let form = match recipe.dataset.form() {
        Ok(form) => form,
        Err(error) => {
            return Ok(format!("the memory that it needs follows from its data: {error}"));
        }
    };
    let parameters = recipe.model.parameters(&input(form.shape), form.classes)?;
    Ok(words(parameters, workers, least(recipe, &Parts::of(recipe), parameters, workers)))
}

fn words(parameters: u64, workers: usize, least: u64) -> String {
    format!(
        "{workers} workers with {} parameters each need at least {} of memory",
        grouped(parameters),
        bytes(least as f64)
    )
}

/// Bytes of activations of a sample above which it is worth a look how many they are: more than most models keep.
const MUCH: u64 = 64 << 20;

/// Growth of this process from which the activations of a sample can be told.
const TELLING: u64 = 16 << 20;

/// Samples of the largest pass that is tried for it.
const MOST_TRIED: usize = 512;

/// Compares what the workers of this machine need with what there is: weights and what belongs to them by their number,
/// activations, where they may be many, as a few small forward passes show them. Gives back a warning when it is more
/// than is free.
///
/// # Errors
/// When it is more than the machine has, or than this process may have; when the model cannot be tried.
pub fn check(session: &Session, parameters: u64, workers: usize) -> Result<Option<String>> {
    let recipe = &session.recipe;
    let Some(memory) = machine::memory().filter(|_| recipe.device == Device::Cpu) else {
        return Ok(None);
    };
    let share = session.data.train.len().div_ceil(recipe.workers.max(1));
    let mut need = Need {
        least: least(recipe, &session.parts(), parameters, workers),
        sample: 0,
        batch: recipe.train.batch.min(share) as u64,
        workers: workers as u64,
    };
    let needs = words(parameters, workers, need.least);
    let warning = need.compare(&needs, memory)?;
    if need.samples().saturating_mul(MUCH) <= memory.free {
        return Ok(warning);
    }
    need.sample = kernels::with(session.kernels, || activations(session))?.unwrap_or(0);
    need.compare(&needs, memory)
}

/// What the workers of a machine need, in bytes.
struct Need {
    /// Of all of them without activations.
    least: u64,
    /// Activations of a sample between its forward and its backward pass; 0 where that is not known.
    sample: u64,
    /// Samples of a worker in one forward pass.
    batch: u64,
    workers: u64,
}

impl Need {
    fn samples(&self) -> u64 {
        self.batch.saturating_mul(self.workers)
    }

    /// A warning when it is more than is free; `needs` is the least in words.
    fn compare(&self, needs: &str, memory: Memory) -> Result<Option<String>> {
        let Self { least, sample, batch, workers } = *self;
        ensure!(
            least <= memory.total,
            "{needs}, and there are {}: write a smaller model, or fewer workers",
            bytes(memory.total as f64)
        );
        if sample == 0 {
            return Ok((least.saturating_mul(USUALLY) > memory.free).then(|| {
                format!(
                    "{needs}, usually {USUALLY} times that, and {} are free: where memory runs out, the \
                     system ends the run",
                    bytes(memory.free as f64)
                )
            }));
        }
        let activations = self.samples().saturating_mul(sample);
        let all = least.saturating_add(activations);
        // A fifth is left for messages, batches and whatever else runs.
        let room = (memory.free / 5 * 4).saturating_sub(least);
        let fits = room / sample.saturating_mul(workers);
        let remedy = match fits {
            0 => "write fewer workers, or a smaller model".into(),
            fits => format!(
                "write train.batch = {fits} and train.accumulate = {}, which is the same step in parts, \
                 or fewer workers",
                batch.div_ceil(fits)
            ),
        };
        let told = format!(
            "{needs}, and {} more for the activations of {workers} × {batch} samples, as a small batch shows",
            bytes(activations as f64)
        );
        ensure!(all <= memory.total, "{told}; there are {}: {remedy}", bytes(memory.total as f64));
        Ok((all > memory.free).then(|| {
            format!(
                "{told}; {} are free, and where memory runs out, the system ends the run: {remedy}",
                bytes(memory.free as f64)
            )
        }))
    }
}

/// Bytes that the model takes for a sample in a step: what it keeps between its forward and its backward pass, by how this process
/// grows with ever larger passes, and a quarter more for the backward pass itself (ResNet-20: 1.3 and 1.6 MB). None where
/// they are too few to be told, or the system does not tell how large the process is.
fn activations(session: &Session) -> Result<Option<u64>> {
    let Session { recipe, data, .. } = session;
    let train = &*data.train;
    let replica =
        Replica::of(session.parts().model, recipe, (train.shape(), train.classes().len()), 0)?;
    let mut kept = Vec::new();
    let mut samples = 2.min(train.len());
    loop {
        let indices: Vec<u32> = (0..).take(samples).collect();
        let mut batch = Batch::default();
        train.batch(&indices, None, &mut batch);
        let before = machine::resident_memory();
        kept.push(replica.forward(&batch, 0..samples, [0, 0, 0])?);
        let Some((before, after)) = before.zip(machine::resident_memory()) else { return Ok(None) };
        let grown = after.saturating_sub(before);
        // The first pass also makes what all have in common.
        if kept.len() > 1 && grown >= TELLING {
            return Ok(Some(grown / samples as u64 / 4 * 5));
        }
        if samples >= MOST_TRIED.min(train.len()) {
            return Ok(None);
        }
        samples = (2 * samples).min(train.len());
    }
}

/// Compares what the weights of a model take with what there is.
///
/// # Errors
/// When it is more than the machine has, or than this process may have.
pub fn check_weights(parameters: u64) -> Result<()> {
    let weights = parameters.saturating_mul(size_of::<f32>() as u64);
    let total = machine::memory().map_or(u64::MAX, |memory| memory.total);
    ensure!(
        weights <= total,
        "a model of {} parameters takes {} of memory, and there are {}: was it trained elsewhere, or is its \
         file damaged?",
        grouped(parameters),
        bytes(weights as f64),
        bytes(total as f64)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Source;

    fn recipe(sets: &[&str]) -> Recipe {
        Source::of(sets.iter().copied()).load().unwrap()
    }

    #[test]
    fn every_vector_is_counted() {
        let least = |set: [&str; 2]| {
            let recipe = recipe(&set);
            least(&recipe, &Parts::of(&recipe), 1000, 2)
        };
        // Weights, gradient, momentum; for top-k a residual; AdamW has two means.
        assert_eq!(least(["scheme=dense", "optimizer.kind=sgd"]), 3 * 4 * 1000 * 2);
        assert_eq!(least(["scheme=topk", "optimizer.kind=sgd"]), 4 * 4 * 1000 * 2);
        assert_eq!(least(["scheme=dense", "optimizer={kind=\"adamw\"}"]), 4 * 4 * 1000 * 2);
        // A residual and the momentum twice, once for the step under way.
        assert_eq!(least(["scheme=topk", "optimizer={kind=\"onebit-adam\"}"]), 7 * 4 * 1000 * 2);
    }

    #[test]
    fn what_no_machine_has_is_refused_with_the_numbers() {
        let memory = Memory { total: 1000, free: 500 };
        let compare = |least, sample, batch| {
            let need = Need { least, sample, batch, workers: 2 };
            need.compare("2 workers need much", memory).map_err(|error| error.to_string())
        };
        assert_eq!(compare(100, 0, 64), Ok(None));
        assert!(compare(300, 0, 64).unwrap().unwrap().contains("usually 2 times that"));
        assert!(compare(1001, 0, 64).unwrap_err().contains("fewer workers"));
        assert_eq!(compare(100, 2, 64), Ok(None));
        let warning = compare(100, 3, 100).unwrap().unwrap();
        assert!(
            warning.contains("600 B more") && warning.contains("train.batch = 50"),
            "{warning}"
        );
        let error = compare(100, 3, 1000).unwrap_err();
        assert!(error.contains("train.batch = 50 and train.accumulate = 20"), "{error}");
        assert!(compare(400, 200, 10).unwrap_err().contains("fewer workers, or a smaller model"));
        assert!(check_weights(10).is_ok() && check_weights(u64::MAX).is_err());
    }

    /// The activations of ResNet-20 are some two megabytes for each picture.
    #[test]
    fn activations_are_told_by_a_small_batch() {
        let of = |sets: &[&str]| {
            let recipe = recipe(sets);
            let out = tempfile::tempdir().unwrap();
            let recipe = recipe.with("record.out", out.path().to_str().unwrap()).unwrap();
            let data = crate::train::session::load(&recipe, None).unwrap();
            activations(&Session::new(recipe, data).unwrap()).unwrap()
        };
        let resnet = of(&[]).unwrap();
        assert!((1 << 20..8 << 20).contains(&resnet), "{resnet}");
    }
}
