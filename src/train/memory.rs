//! The memory that training needs at least, known before it is allocated.

use crate::machine;
use crate::recipe::{Device, Recipe, average, input};
use crate::train::parts::Parts;
use anyhow::{Result, ensure};
use indicatif::{HumanBytes, HumanCount};

/// How many times the least is taken together with activations, messages and the data set, as a rule:
/// more where batches are large, less where models are.
const USUALLY: u64 = 2;

/// Bytes that `workers` workers of one machine need at least, each with a replica of `parameters`
/// parameters: weights, gradient, the optimizer's vectors, an average of the weights, and what the exchange keeps of
/// each parameter. Activations, messages and the data set come on top.
#[must_use]
pub fn least(recipe: &Recipe, parts: &Parts<'_>, parameters: u64, workers: usize) -> u64 {
    let correction = parts.policy.momentum();
    let corrects = correction > 0.0;
    let rule = parts.optimizer.rule(correction);
    let [weights, gradient] = [1, 1];
    let residual = u64::from(parts.scheme.feedback() || corrects);
    let average = u64::from(recipe.average != average::Config::default());
    let vectors =
        weights + gradient + rule.vectors().len() as u64 + residual + u64::from(corrects) + average;
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
        HumanCount(parameters),
        HumanBytes(least)
    )
}

/// Compares what the workers of this machine need at least with what there is: gives back a warning
/// when what is usual is more than is free.
///
/// # Errors
/// When it is more than the machine has, or than this process may have.
pub fn check(
    recipe: &Recipe,
    parts: &Parts<'_>,
    parameters: u64,
    workers: usize,
) -> Result<Option<String>> {
    let Some(memory) = machine::memory().filter(|_| recipe.device == Device::Cpu) else {
        return Ok(None);
    };
    let least = least(recipe, parts, parameters, workers);
    let needs = words(parameters, workers, least);
    ensure!(
        least <= memory.total,
        "{needs}, and there are {}: write a smaller model, or fewer workers",
        HumanBytes(memory.total)
    );
    Ok((least.saturating_mul(USUALLY) > memory.free).then(|| {
        format!(
            "{needs}, usually {USUALLY} times that, and {} are free: where memory runs out, the system \
             ends the run",
            HumanBytes(memory.free)
        )
    }))
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
        HumanCount(parameters),
        HumanBytes(weights),
        HumanBytes(total)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Source;

    fn recipe(sets: &[&str]) -> Recipe {
        let sets = sets.iter().copied().map(String::from).collect();
        Source { recipe: None, flags: Vec::new(), sets }.load().unwrap()
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
    }

    #[test]
    fn what_no_machine_has_is_refused_with_the_numbers() {
        let recipe = recipe(&["scheme=dense"]);
        let parts = Parts::of(&recipe);
        assert_eq!(check(&recipe, &parts, 10, 2).unwrap(), None);
        let error = check(&recipe, &parts, u64::MAX / 2, 8).unwrap_err().to_string();
        assert!(error.starts_with("8 workers with"), "{error}");
        assert!(error.contains("fewer workers"), "{error}");
        assert!(check_weights(10).is_ok() && check_weights(u64::MAX).is_err());
    }
}
