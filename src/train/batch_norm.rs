//! Batch norm's running statistics: the same on all ranks, and those of the present weights.

use crate::recipe::BatchNorm;
use crate::train::params::{PASSES, update_buffers};
use crate::train::session::Session;
use crate::train::worker::Worker;
use anyhow::Result;
use gradwire_datasets::{Augment, Batch, Sampler};
use gradwire_models::kernels::flat::update_in_place;

impl Worker {
    /// Computes the running statistics anew, of the weights as they are: the mean over as many forward
    /// passes of each rank over training samples as the recipe says. Returns what they were, with which
    /// training goes on; nothing where the model has none, or the recipe asks for no passes.
    ///
    /// Running statistics are averages over steps, and so of older weights: an evaluation by them is far
    /// off where weights change fast. The samples are drawn from the whole training set, which may lie in order of class:
    /// a function of seed and rank, and of the epoch as far as they are changed at random.
    pub(super) fn recalibrate(&mut self, epoch: u64) -> Result<Option<Vec<f32>>> {
        let recipe = &self.session.recipe;
        let kept = self.statistics()?;
        if kept.is_empty() || recipe.train.recalibrate == 0 {
            return Ok(None);
        }
        let data = &self.session.data.train;
        let augment = recipe.augmentation().map(|how| Augment { seed: recipe.seed, epoch, how });
        let (size, samples) = (recipe.train.batch.min(data.len()), data.len());
        let (mut batch, mut order) = (Batch::default(), Vec::new());
        Sampler::new(recipe.seed, samples, 1, 0, samples)?.indices(1, &mut order);
        let mut sum = vec![0f64; kept.len()];
        for pass in 0..recipe.train.recalibrate {
            // From nothing, so that the statistics are those of this pass.
            for (name, var) in self.replica.store.buffers() {
                if name.ends_with(PASSES) {
                    update_in_place(&var, |passes| passes.fill(0.0))?;
                }
            }
            let rank = self.position.rank();
            let first = (rank * recipe.train.recalibrate + pass) * size;
            data.batch(&wrapped(&order, first, size), augment.as_ref(), &mut batch);
            // Step 0 is nobody's.
            self.replica.forward(&batch, 0..size, [0, rank as u64, pass as u64])?;
            sum.iter_mut().zip(self.statistics()?).for_each(|(sum, one)| *sum += f64::from(one));
            self.position.beat();
        }
        let passes = recipe.train.recalibrate as f64;
        self.set_statistics(&sum.iter().map(|sum| (sum / passes) as f32).collect::<Vec<_>>())?;
        Ok(Some(kept))
    }

    /// All running statistics and counts of passes, one after the other in the order of their names.
    fn statistics(&self) -> Result<Vec<f32>> {
        let mut flat = Vec::new();
        update_buffers(&self.replica.store, |_| true, |elements| flat.extend_from_slice(elements))?;
        Ok(flat)
    }

    /// Sets them to what [`statistics`](Self::statistics) gave.
    pub(super) fn set_statistics(&self, flat: &[f32]) -> Result<()> {
        let mut rest = flat;
        update_buffers(
            &self.replica.store,
            |_| true,
            |elements| {
                let (mine, others) = rest.split_at(elements.len());
                elements.copy_from_slice(mine);
                rest = others;
            },
        )
    }

    /// Whether the ranks average batch norm's running statistics in `step`.
    pub(super) fn synchronises_batch_norm(&self, step: u64) -> bool {
        let Session { recipe, steps, .. } = &*self.session;
        recipe.train.batch_norm == BatchNorm::Synchronised && steps.meets(step)
    }

    /// Makes batch norm's running statistics the same on all ranks, by the recipe's policy.
    pub(super) fn average_batch_norm(&mut self) -> Result<()> {
        let mut flat = self.statistics()?;
        if flat.is_empty() {
            return Ok(());
        }
        match self.session.recipe.train.batch_norm {
            BatchNorm::Averaged | BatchNorm::Synchronised => {
                self.gradient.exchange_mut().collective().mean_f32(&mut flat)?;
            }
            BatchNorm::Rank0 => {
                if self.position.rank() != 0 {
                    flat.fill(0.0);
                }
                let mut sums: Vec<f64> = flat.iter().copied().map(f64::from).collect();
                self.gradient.exchange_mut().collective().sum_f64(&mut sums)?;
                flat.iter_mut().zip(sums).for_each(|(f, s)| *f = s as f32);
            }
        }
        self.set_statistics(&flat)
    }
}

/// So many of the samples in this order from `first` on, and from the beginning again where it ends.
fn wrapped(order: &[u32], first: usize, count: usize) -> Vec<u32> {
    (first..first + count).map(|place| order[place % order.len()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of samples that lie class after class, every pass of every rank has some of most classes, and no two have the same.
    #[test]
    fn passes_see_all_classes_of_a_sorted_set() {
        let (classes, each, size) = (10, 200, 64);
        let samples = classes * each;
        let mut order = Vec::new();
        Sampler::new(7, samples, 1, 0, samples).unwrap().indices(1, &mut order);
        let mut seen = vec![false; samples];
        for pass in 0..16 {
            let batch = wrapped(&order, pass * size, size);
            let mut found: Vec<u32> = batch.iter().map(|index| index / each as u32).collect();
            found.sort_unstable();
            found.dedup();
            assert!(batch.len() == size && found.len() >= classes - 1, "{pass}: {found:?}");
            for index in batch {
                assert!(!std::mem::replace(&mut seen[index as usize], true), "{pass}: {index}");
            }
        }
        assert_eq!(wrapped(&[4, 5, 6], 2, 5), [6, 4, 5, 6, 4]);
    }
}
