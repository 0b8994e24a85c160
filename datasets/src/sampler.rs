//! Which samples a rank sees at a step.

use crate::error::{Error, Result};
use crate::rng::{Purpose, RandomStream};

/// Deals the samples of each epoch to N ranks in batches.
///
/// Every epoch has one permutation of the whole set, drawn from (seed, epoch) and the same on
/// every rank. Rank r takes its positions r, r + N, r + 2N, …; a step takes the next `local_batch`
/// of them. So at a step, the ranks together see one contiguous block of N · `local_batch`
/// positions, exactly the batch a single rank with that batch size would see.
///
/// **The tail.** An epoch has ⌈len / (N · `local_batch`)⌉ steps, each sample in exactly one of
/// them: none is dropped, none repeated. The last step has the t samples that are left; rank r
/// gets ⌈(t − r) / N⌉ of them, so shares differ by at most one and may be 0. A rank without
/// samples still takes part in the step with an empty batch, so no rank waits for one that is not
/// coming. For the mean over the global batch, weigh each rank's mean gradient by its number of
/// samples over [`global_samples`](Self::global_samples).
///
/// **Going on.** An epoch that other ranks, or ranks with another batch, have begun is taken up at
/// the sample where they left it ([`continue_at`](Self::continue_at)): its remainder is dealt
/// anew, and still every sample is used once.
///
/// Steps and epochs count from 1.
#[derive(Debug, Clone)]
pub struct Sampler {
    seed: u64,
    len: usize,
    world_size: usize,
    rank: usize,
    local_batch: usize,
    /// The order of `epoch`, drawn when first asked for.
    order: Vec<u32>,
    epoch: u64,
    begun: Option<Begun>,
}

/// An epoch whose first samples have been used already.
#[derive(Debug, Clone, Copy)]
struct Begun {
    epoch: u64,
    /// The number of samples used.
    position: usize,
    /// Steps before the first of the remainder, counted from the epoch's beginning.
    before: usize,
}

impl Sampler {
    /// Deals `len` samples to `world_size` ranks, `local_batch` a step; this is `rank`'s hand.
    ///
    /// # Errors
    /// [`Error::Setting`] when `len`, `world_size` or `local_batch` is 0, `rank` is not below
    /// `world_size`, or there are more than `u32::MAX` samples or samples per step.
    pub fn new(
        seed: u64,
        len: usize,
        world_size: usize,
        rank: usize,
        local_batch: usize,
    ) -> Result<Self> {
        for (field, value) in [("samples", len), ("workers", world_size), ("batch", local_batch)] {
            if value == 0 {
                return Err(Error::setting(field, &0, "must be at least 1"));
            }
        }
        if u32::try_from(len).is_err() {
            return Err(Error::setting("samples", &len, "must fit 32 bits"));
        }
        if rank >= world_size {
            let problem = format!("must be below the number of workers, {world_size}");
            return Err(Error::setting("rank", &rank, problem));
        }
        if world_size.checked_mul(local_batch).is_none_or(|global| u32::try_from(global).is_err()) {
            let problem = format!("times {world_size} workers must fit 32 bits");
            return Err(Error::setting("batch", &local_batch, problem));
        }
        Ok(Self {
            seed,
            len,
            world_size,
            rank,
            local_batch,
            order: Vec::new(),
            epoch: 0,
            begun: None,
        })
    }

    /// Goes on within `epoch` after its first `position` samples; returns the first step. The
    /// remainder takes ⌈(len − position) / (N · local batch)⌉ steps, which are the last ones of
    /// the epoch; steps before them are not to be asked for any more.
    ///
    /// # Errors
    /// [`Error::Setting`] when `epoch` is 0 or too large for its steps to be counted, or no sample is left.
    pub fn continue_at(&mut self, epoch: u64, position: usize) -> Result<u64> {
        if epoch == 0 {
            return Err(Error::setting("epoch", &0, "must be at least 1"));
        }
        if position >= self.len {
            let problem = format!("leaves none of {} samples", self.len);
            return Err(Error::setting("position", &position, problem));
        }
        let steps = self.steps_per_epoch();
        let left = (self.len - position).div_ceil(self.global_batch()) as u64;
        let before = (epoch - 1).checked_mul(steps);
        let first = before.and_then(|before| before.checked_add(steps - left + 1));
        let first = first.ok_or_else(|| {
            let problem = format!("with {steps} steps in each, its steps cannot be counted");
            Error::setting("epoch", &epoch, problem)
        })?;
        self.begun = Some(Begun { epoch, position, before: (steps - left) as usize });
        Ok(first)
    }

    /// The rank whose share this is.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of steps of an epoch: ⌈len / (N · local batch)⌉.
    pub fn steps_per_epoch(&self) -> u64 {
        self.len.div_ceil(self.global_batch()) as u64
    }

    /// The epoch that `step` belongs to.
    pub fn epoch_of(&self, step: u64) -> u64 {
        step.saturating_sub(1) / self.steps_per_epoch() + 1
    }

    /// The number of samples that all ranks together see at `step`: N · local batch, or what is
    /// left at the last step of an epoch.
    pub fn global_samples(&self, step: u64) -> usize {
        let (start, end) = self.block(step);
        end - start
    }

    /// Replaces `into` by the numbers of the samples that this rank sees at `step`.
    pub fn indices(&mut self, step: u64, into: &mut Vec<u32>) {
        let epoch = self.epoch_of(step);
        if self.epoch != epoch {
            let len = u32::try_from(self.len).expect("invariant: checked when made");
            self.order.clear();
            self.order.extend(0..len);
            RandomStream::keyed(Purpose::Shuffle, self.seed, epoch, 0).shuffle(&mut self.order);
            self.epoch = epoch;
        }
        let (start, end) = self.block(step);
        into.clear();
        into.extend(self.order[start..end].iter().skip(self.rank).step_by(self.world_size));
    }

    fn global_batch(&self) -> usize {
        self.world_size * self.local_batch
    }

    /// The positions of the epoch's permutation that `step` takes.
    fn block(&self, step: u64) -> (usize, usize) {
        let within = (step.saturating_sub(1) % self.steps_per_epoch()) as usize;
        let start = match self.begun {
            Some(begun) if within >= begun.before && begun.epoch == self.epoch_of(step) => {
                begun.position + (within - begun.before) * self.global_batch()
            }
            _ => within * self.global_batch(),
        };
        (start, (start + self.global_batch()).min(self.len))
    }
}

/// A rank's share of a set in the set's own order, for evaluation: samples r, r + N, r + 2N, …
/// in batches. Every sample is in exactly one rank's share; shares differ by at most one sample.
///
/// ```
/// use gradwire_datasets::Shard;
///
/// let batches: Vec<Vec<u32>> = Shard::new(8, 3, 1, 2).collect();
/// assert_eq!(batches, [vec![1, 4], vec![7]]);
/// ```
#[derive(Debug, Clone)]
pub struct Shard {
    next: usize,
    len: usize,
    world_size: usize,
    batch: usize,
}

impl Shard {
    /// The share of `rank` of `world_size` in `len` samples, `batch` at a time. A `world_size` or
    /// `batch` of 0 counts as 1.
    pub fn new(len: usize, world_size: usize, rank: usize, batch: usize) -> Self {
        Self { next: rank, len, world_size: world_size.max(1), batch: batch.max(1) }
    }
}

impl Iterator for Shard {
    type Item = Vec<u32>;

    fn next(&mut self) -> Option<Vec<u32>> {
        let indices: Vec<u32> = (self.next..self.len)
            .step_by(self.world_size)
            .take(self.batch)
            .map(|index| index as u32)
            .collect();
        self.next = self.next.saturating_add(indices.len().saturating_mul(self.world_size));
        (!indices.is_empty()).then_some(indices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn share(sampler: &mut Sampler, step: u64) -> Vec<u32> {
        let mut indices = vec![99];
        sampler.indices(step, &mut indices);
        indices
    }

    proptest! {
        #[test]
        fn every_sample_exactly_once_an_epoch(
            len in 1usize..400, world in 1usize..9, batch in 1usize..40, seed: u64, epoch in 1u64..4,
        ) {
            let mut seen = vec![0u32; len];
            for rank in 0..world {
                let mut sampler = Sampler::new(seed, len, world, rank, batch).unwrap();
                let steps = sampler.steps_per_epoch();
                for step in (epoch - 1) * steps + 1..=epoch * steps {
                    prop_assert_eq!(sampler.epoch_of(step), epoch);
                    let indices = share(&mut sampler, step);
                    prop_assert!(indices.len() <= batch);
                    indices.iter().for_each(|&index| seen[index as usize] += 1);
                }
            }
            prop_assert!(seen.iter().all(|&count| count == 1));
        }

        #[test]
        fn ranks_together_see_what_one_rank_would(
            len in 1usize..400, world in 1usize..9, batch in 1usize..40, seed: u64, step in 1u64..50,
        ) {
            let mut one = Sampler::new(seed, len, 1, 0, world * batch).unwrap();
            let shares: Vec<Vec<u32>> = (0..world)
                .map(|rank| share(&mut Sampler::new(seed, len, world, rank, batch).unwrap(), step))
                .collect();
            let dealt: Vec<u32> = (0..batch)
                .flat_map(|i| shares.iter().filter_map(move |share| share.get(i).copied()))
                .collect();
            prop_assert_eq!(&dealt, &share(&mut one, step));
            prop_assert_eq!(dealt.len(), one.global_samples(step));
            let most = shares.iter().map(Vec::len).max().unwrap();
            let least = shares.iter().map(Vec::len).min().unwrap();
            prop_assert!(most - least <= 1);
        }

        #[test]
        fn an_epoch_goes_on_with_other_ranks(
            len in 1usize..400, before in (1usize..9, 1usize..40), after in (1usize..9, 1usize..40),
            seed: u64, steps in 0u64..60,
        ) {
            let mut seen = vec![0u32; len];
            let mut count = |samplers: &mut [Sampler], step| {
                samplers.iter_mut().for_each(|sampler| {
                    share(sampler, step).iter().for_each(|&index| seen[index as usize] += 1);
                });
            };
            let group = |(world, batch): (usize, usize)| -> Vec<Sampler> {
                let one = |rank| Sampler::new(seed, len, world, rank, batch).unwrap();
                (0..world).map(one).collect()
            };
            let mut first = group(before);
            let steps = steps % first[0].steps_per_epoch();
            (1..=steps).for_each(|step| count(&mut first, step));
            let position = (steps as usize * before.0 * before.1).min(len);
            let mut second = group(after);
            let begin = |sampler: &mut Sampler| sampler.continue_at(1, position).unwrap();
            let begins: Vec<u64> = second.iter_mut().map(begin).collect();
            let end = second[0].steps_per_epoch();
            (begins[0]..=end).for_each(|step| count(&mut second, step));
            prop_assert!(seen.iter().all(|&count| count == 1));
            // The next epoch is whole again.
            prop_assert_eq!(share(&mut second[0], end + 1), share(&mut group(after)[0], end + 1));
            if before.0 * before.1 == after.0 * after.1 {
                prop_assert_eq!(begins[0], steps + 1);
            }
        }

        #[test]
        fn shards_cover_the_set(len in 0usize..300, world in 1usize..9, batch in 1usize..40) {
            let mut seen: Vec<u32> =
                (0..world).flat_map(|rank| Shard::new(len, world, rank, batch).flatten()).collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..len as u32).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_step_can_be_asked_for_out_of_order() {
        let mut sampler = Sampler::new(3, 100, 2, 1, 8).unwrap();
        let later = share(&mut sampler, 20);
        let first = share(&mut sampler, 1);
        assert_eq!(later, share(&mut sampler, 20));
        assert_eq!(first, share(&mut Sampler::new(3, 100, 2, 1, 8).unwrap(), 1));
    }

    #[test]
    fn numbers_at_their_ends_do_not_wrap() {
        let mut sampler = Sampler::new(3, 100, 1, 0, 8).unwrap();
        let error = sampler.continue_at(u64::MAX, 8).unwrap_err().to_string();
        assert!(error.contains("`epoch` is 18446744073709551615"), "{error}");
        assert_eq!(Shard::new(3, usize::MAX, 1, 2).collect::<Vec<_>>(), [[1]]);
    }

    #[test]
    fn epochs_and_seeds_differ() {
        let mut sampler = Sampler::new(3, 64, 1, 0, 64).unwrap();
        assert_ne!(share(&mut sampler, 1), share(&mut sampler, 2));
        assert_ne!(share(&mut sampler, 1), share(&mut Sampler::new(4, 64, 1, 0, 64).unwrap(), 1));
    }

    #[test]
    fn the_tail_may_leave_ranks_empty() {
        // 9 samples, 4 ranks of 2: the second step has one sample, for rank 0.
        let shares: Vec<usize> = (0..4)
            .map(|rank| share(&mut Sampler::new(0, 9, 4, rank, 2).unwrap(), 2).len())
            .collect();
        assert_eq!(shares, [1, 0, 0, 0]);
    }

    #[test]
    fn impossible_settings_are_refused() {
        for (len, world, rank, batch) in [
            (0, 1, 0, 1),
            (1, 0, 0, 1),
            (1, 1, 0, 0),
            (1, 2, 2, 1),
            (1, 1 << 31, 0, 2),
            (1, usize::MAX, 0, 2),
        ] {
            assert!(matches!(Sampler::new(0, len, world, rank, batch), Err(Error::Setting { .. })));
        }
    }
}
