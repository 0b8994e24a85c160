//! Evaluates a saved model on the test set of its own recipe, or of another data set.

use crate::checkpoint::{self, Saved, Score};
use crate::machine;
use crate::train::replica::Replica;
use crate::train::session;
use anyhow::{Context, Result};
use gradwire_datasets::{Batch, Dataset, Shard};
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
    let data = session::load(recipe, vocabulary.as_deref())?;
    let evaluate = || -> Result<Score> {
        let replica = Replica::new(recipe, &*data.test, 0)?;
        checkpoint::load(saved, &replica.store)?;
        evaluate_share(&replica, &*data.test, 1, 0, recipe.train.evaluation_batch, || ())
    };
    ThreadPoolBuilder::new().num_threads(machine::cores()).build()?.install(evaluate)
}

/// The score of one rank's share of `data`; calls `beat` after each batch.
///
/// # Errors
/// When the model fails.
pub fn evaluate_share(
    replica: &Replica,
    data: &dyn Dataset,
    world_size: usize,
    rank: usize,
    size: usize,
    beat: impl Fn(),
) -> Result<Score> {
    let mut total = Score::default();
    let mut batch = Batch::default();
    for indices in Shard::new(data.len(), world_size, rank, size) {
        data.batch(&indices, None, &mut batch);
        total.add(&replica.evaluate(&batch)?);
        beat();
    }
    Ok(total)
}
