//! The end of an epoch: evaluation, batch norm's running statistics, the best and the last model.

use super::{Epoch, Report, Worker};
use crate::checkpoint;
use crate::recipe::BatchNorm;
use crate::replica::{Replica, Score};
use anyhow::{Context, Result};
use gradwire_datasets::{Batch, Dataset, Shard};
use gradwire_models::kernels::optimizer::update_in_place;
use std::time::Instant;

impl Worker {
    /// Evaluates if it is time, saves models, tells of the epoch. Returns the test set's score, and
    /// whether it is the best so far.
    pub(super) fn finish_epoch(&mut self, step: u64, last: bool) -> Result<(Option<Score>, bool)> {
        let epoch = self.course.epoch_of(step);
        let began = Instant::now();
        let due = last || epoch.is_multiple_of(self.recipe.train.evaluate_every);
        self.optimizer.show(&self.params, None)?;
        self.post.phase("evaluation");
        let test = if due { Some(self.evaluate()?) } else { None };
        let evaluation_seconds = began.elapsed().as_secs_f64();
        self.post.phase("saving the model");
        let accuracy = test.map(|test| test.accuracy());
        let best = accuracy.is_some_and(|now| self.best.is_none_or(|best| now > best));
        if best {
            self.best = accuracy;
        }
        if self.rank == 0 {
            if best {
                self.save_as(checkpoint::BEST, step, accuracy)?;
            }
            if last {
                self.save_as(checkpoint::LAST, step, accuracy)?;
            }
            self.report(Report::Epoch(Epoch { epoch, step, test, evaluation_seconds }))?;
        }
        Ok((test, best))
    }

    /// The test set's score: every rank takes its share, the sums are added in rank order.
    fn evaluate(&mut self) -> Result<Score> {
        self.settle_batch_norm()?;
        let test: &dyn Dataset = &*self.data.test;
        let world_size = self.exchange.collective().world_size();
        let size = self.recipe.train.evaluation_batch;
        let beat = || self.post.beat();
        let mine = evaluate_share(&self.replica, test, world_size, self.rank, size, beat)?;
        let mut sums = [mine.loss, mine.correct as f64, mine.samples as f64];
        self.exchange.collective().sum_f64(&mut sums)?;
        Ok(Score { loss: sums[0], correct: sums[1] as u64, samples: sums[2] as u64 })
    }

    /// Makes batch norm's running statistics the same on all ranks, by the recipe's policy.
    pub(super) fn settle_batch_norm(&mut self) -> Result<()> {
        let buffers = self.replica.store.buffers();
        if buffers.is_empty() {
            return Ok(());
        }
        let mut flat = Vec::new();
        for (_, var) in &buffers {
            update_in_place(var, |elements| flat.extend_from_slice(elements))?;
        }
        match self.recipe.train.batch_norm {
            BatchNorm::Averaged | BatchNorm::Synchronised => {
                self.exchange.collective().mean_f32(&mut flat)?;
            }
            BatchNorm::Rank0 => {
                if self.rank != 0 {
                    flat.fill(0.0);
                }
                let mut sums: Vec<f64> = flat.iter().copied().map(f64::from).collect();
                self.exchange.collective().sum_f64(&mut sums)?;
                flat.iter_mut().zip(sums).for_each(|(f, s)| *f = s as f32);
            }
        }
        let mut rest = flat.as_slice();
        for (_, var) in &buffers {
            update_in_place(var, |elements| {
                let (mine, others) = rest.split_at(elements.len());
                elements.copy_from_slice(mine);
                rest = others;
            })?;
        }
        Ok(())
    }

    fn save_as(&self, which: &str, step: u64, accuracy: Option<f64>) -> Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let (folder, store) = (folder.join(which), &self.replica.store);
        checkpoint::save(&self.disk, &folder, store, &self.recipe, step, accuracy)
            .with_context(|| format!("saving the {which} model"))
    }
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
