//! Evaluates a saved model on the test set of its own recipe, or of another data set.

use crate::checkpoint::{self, Saved};
use crate::launch;
use crate::replica::{Replica, Score};
use crate::worker::evaluate_share;
use anyhow::{Context, Result};
use rayon::ThreadPoolBuilder;
use std::fs;

/// The score of a saved model on the test set of `saved.recipe`.
///
/// # Errors
/// When the data is missing or damaged, or the file's variables are not the model's.
pub fn evaluate(saved: &Saved) -> Result<Score> {
    let recipe = &saved.recipe;
    let vocabulary = match &saved.vocabulary {
        Some(file) => Some(
            fs::read_to_string(file)
                .with_context(|| format!("reading the vocabulary {}", file.display()))?,
        ),
        None => None,
    };
    let data = launch::load(recipe, vocabulary.as_deref())?;
    let cores = launch::cores();
    let evaluate = || -> Result<Score> {
        let replica = Replica::new(recipe, &*data.test, 0)?;
        checkpoint::load(saved, &replica)?;
        evaluate_share(&replica, &*data.test, 1, 0, recipe.train.evaluation_batch, || ())
    };
    ThreadPoolBuilder::new().num_threads(cores).build()?.install(evaluate)
}
