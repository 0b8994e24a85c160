//! Which steps a run takes, and to which epochs they belong.
//!
//! A run that goes on with another global batch keeps counting its steps, but an epoch now has
//! another number of them. So a step has two numbers: its own, which records and the exchange use,
//! and its *scheduled* number, that of the same moment in a run that had this global batch from the
//! beginning, which the sampler and the schedule use.

use crate::checkpoint::{Planned, Progress};
use crate::recipe::Recipe;
use anyhow::{Result, ensure};
use gradwire_datasets::Sampler;
use gradwire_exchange::Turn;
use std::ops::Range;

/// The steps that this process takes of a run, and their epochs.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    /// Where this process begins.
    pub from: Progress,
    samples: u64,
    global_batch: u64,
    /// The steps of a whole epoch.
    pub steps_per_epoch: u64,
    /// By how much a step's own number exceeds its scheduled one: how many steps the run has taken more than it would
    /// have with this global batch from its beginning; negative for fewer.
    pub ahead: i64,
    /// Whether `train.max_steps` ends the run, and not its epochs.
    bounded: bool,
    /// Scheduled steps of the learning rate's warm-up.
    warmup: f64,
    planned: Planned,
    /// The run's last step. Below [`first_step`](Self::first_step) when nothing is left to do.
    pub last_step: u64,
    rounds: Option<Rounds>,
}

/// What a rate that falls until the run's end goes by. `train.max_steps` counts a run's own steps, whatever batch they had,
/// and its epochs scheduled ones: by those, too, nothing jumps where a run goes on with another global batch.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// How much more than its scheduled number a step counts.
    pub ahead: i64,
    /// All steps, counted so.
    pub total: f64,
    /// Those of the learning rate's warm-up, counted so.
    pub warmup: f64,
}

impl Span {
    /// What scheduled `steps` count.
    pub fn count(&self, steps: f64) -> f64 {
        steps + self.ahead as f64
    }
}

/// Where ranks exchange weights after rounds of local steps.
#[derive(Clone, Copy, Debug)]
struct Rounds {
    /// The last step that exchanges gradients.
    after: u64,
    /// Steps of a round.
    steps: u64,
    /// Fragments of the weights, each of which is exchanged once in a round.
    fragments: u64,
    /// Steps from an exchange's beginning to the update by its mean.
    delay: u64,
}

impl Rounds {
    /// The last step before `step` at which a fragment is exchanged, or `after`; a step that exchanges gradients
    /// where that is earlier.
    fn sent_before(&self, step: u64) -> u64 {
        let Self { after, steps, fragments, .. } = *self;
        let before = step.saturating_sub(1);
        if before <= after {
            return before;
        }
        // The last of the places ⌊p·H/P⌋ of a round that is not beyond this one.
        let place = (before - after) % steps;
        let p = (u128::from(place + 1) * u128::from(fragments)).div_ceil(u128::from(steps)) - 1;
        before - place + (p * u128::from(steps) / u128::from(fragments)) as u64
    }

    /// The fragment that is exchanged in `step`, the run's last left aside.
    fn fragment(&self, step: u64) -> Option<usize> {
        let due = step > self.after && self.sent_before(step + 1) == step;
        let place = (step.saturating_sub(self.after) % self.steps) as u128;
        let p = (place * u128::from(self.fragments)).div_ceil(u128::from(self.steps));
        due.then(|| (p + u128::from(self.fragments) - 1) as usize % self.fragments as usize)
    }
}

impl Steps {
    /// The steps of `recipe` over `samples` training samples, going on `from` there.
    ///
    /// # Errors
    /// When there is no sample, or `from` lies beyond the data.
    pub fn new(recipe: &Recipe, samples: usize, from: Progress) -> Result<Self> {
        let mut sampler =
            Sampler::new(recipe.seed, samples, recipe.workers, 0, recipe.local_batch())?;
        ensure!(
            from.epoch >= 1 && (from.position as usize) < samples,
            "epoch {}, sample {} does not lie within epochs of {samples} samples",
            from.epoch,
            from.position
        );
        let steps_per_epoch = sampler.steps_per_epoch();
        let first_scheduled = sampler.continue_at(from.epoch, from.position as usize)?;
        let ahead = from.step as i64 - (first_scheduled as i64 - 1);
        let all = recipe.train.epochs.saturating_mul(steps_per_epoch).min(i64::MAX as u64 / 2);
        let all = (all as i64 + ahead).max(0) as u64;
        let max = recipe.train.max_steps;
        let warmup = recipe.schedule.warmup() * steps_per_epoch as f64;
        // A warm-up that is over ended where it did; one that goes on ends after as many samples as planned.
        let warm = from.planned.filter(|_| (first_scheduled - 1) as f64 >= warmup);
        let warm_after = warm.map_or(warmup + ahead as f64, |planned| planned.warmup);
        let mut steps = Self {
            from,
            warmup,
            planned: Planned { warmup: warm_after, exchanges: 0 },
            samples: samples as u64,
            global_batch: (recipe.workers * recipe.local_batch()) as u64,
            steps_per_epoch,
            ahead,
            bounded: max.is_some_and(|max| max < all),
            last_step: max.map_or(all, |max| max.min(all)),
            rounds: recipe
                .is_local()
                .then(|| (recipe.local, recipe.outer.unwrap_or_default()))
                .map(|(local, outer)| Rounds {
                    after: local.after,
                    steps: local.steps,
                    fragments: outer.fragments,
                    delay: outer.delay,
                }),
        };
        let exchanges = steps.turn(steps.last_step).exchange;
        steps.planned.exchanges = from.planned.map_or(exchanges, |planned| planned.exchanges);
        Ok(steps)
    }

    /// Exchanges of the whole run, as they were planned when it began: what spreads over them does not jump where the run
    /// goes on with another global batch.
    pub fn exchanges(&self) -> u64 {
        self.planned.exchanges
    }

    /// The first step that this process takes.
    pub fn first_step(&self) -> u64 {
        self.from.step + 1
    }

    /// The scheduled number of `step`: as if the run had had this global batch from the beginning.
    pub fn scheduled(&self, step: u64) -> u64 {
        (step as i64 - self.ahead).max(0) as u64
    }

    /// The run's length, for what spans it.
    pub fn span(&self) -> Span {
        let (ahead, last, warmup) = match self.bounded {
            true => (self.ahead, self.last_step, self.planned.warmup),
            false => (0, self.scheduled(self.last_step), self.warmup),
        };
        Span { ahead, total: last as f64, warmup }
    }

    /// The epoch of `step`, 1-based.
    pub fn epoch_of(&self, step: u64) -> u64 {
        self.scheduled(step).saturating_sub(1) / self.steps_per_epoch + 1
    }

    /// Whether a rank takes `step` by itself, and updates its weights by its own gradient.
    pub fn is_local(&self, step: u64) -> bool {
        self.rounds.is_some_and(|rounds| step > rounds.after)
    }

    /// Whether ranks exchange how far each step has taken them.
    pub fn in_rounds_of_one(&self) -> bool {
        self.rounds.is_some_and(|rounds| rounds.steps == 1)
    }

    /// The fragments whose progress leaves this rank at the end of `step`: at the run's last all.
    pub fn leaves(&self, step: u64) -> Option<Range<usize>> {
        let rounds = self.rounds.filter(|rounds| step > rounds.after)?;
        if step == self.last_step {
            return Some(0..rounds.fragments as usize);
        }
        rounds.fragment(step).map(|fragment| fragment..fragment + 1)
    }

    /// Steps from `step`, in which something leaves this rank, to the update by what comes of it.
    pub fn delay(&self, step: u64) -> u64 {
        let rounds = self.rounds.filter(|rounds| rounds.fragment(step).is_some());
        rounds.map_or(0, |rounds| rounds.delay.min(self.last_step.saturating_sub(step)))
    }

    /// The fragment by whose mean the weights are updated in `step`, delayed from an earlier step.
    pub fn arrives(&self, step: u64) -> Option<usize> {
        let rounds = self.rounds.filter(|rounds| rounds.delay > 0)?;
        let sent = rounds.sent_before(step);
        (sent + self.delay(sent) == step).then(|| rounds.fragment(sent)).flatten()
    }

    /// Whether something leaves this rank in `step`: its gradient, or how far it has come.
    pub fn sends(&self, step: u64) -> bool {
        !self.is_local(step) || self.leaves(step).is_some()
    }

    /// The last step before `step` in which something left this rank, or 0.
    pub fn sent_before(&self, step: u64) -> u64 {
        self.rounds.map_or(step.saturating_sub(1), |rounds| rounds.sent_before(step))
    }

    /// What an exchange that begins in `step` is called with: compressors count in exchanges of a bucket, of which
    /// a round has one. The last step exchanges everything once more.
    pub fn turn(&self, step: u64) -> Turn {
        let rounds = self.rounds.filter(|rounds| step > rounds.after);
        let exchange = rounds.map_or(step, |Rounds { after, steps, fragments, .. }| {
            after
                + (step - after).div_ceil(steps)
                + u64::from(fragments > 1 && step == self.last_step)
        });
        Turn { step, exchange, before: self.sent_before(step) }
    }

    /// Whether `step` ends with the ranks having exchanged something: gradients, or how far they have come.
    pub fn meets(&self, step: u64) -> bool {
        step == self.last_step
            || self.arrives(step).is_some()
            || (self.sends(step) && self.delay(step) == 0)
    }

    /// The last step before `step` that [meets](Self::meets), or 0.
    pub fn met_before(&self, step: u64) -> u64 {
        let Some(rounds) = self.rounds else { return step.saturating_sub(1) };
        match rounds.sent_before(step.saturating_sub(rounds.delay)) {
            sent if sent > rounds.after => sent + rounds.delay,
            _ => rounds.after.min(step.saturating_sub(1)),
        }
    }

    /// Whether all ranks have the outer weights after `step`.
    pub fn is_whole(&self, step: u64) -> bool {
        let streams = self.rounds.filter(|rounds| rounds.fragments > 1 || rounds.delay > 0);
        streams.map_or(self.meets(step), |rounds| step <= rounds.after || step == self.last_step)
    }

    /// The step that all ranks agree on what to do after, by what rank 0 has decided before its part in the
    /// exchange that begins in `step`.
    pub fn agrees_on(&self, step: u64) -> Option<u64> {
        let then = step + self.delay(step);
        (self.sends(step) && (then < self.last_step || step == self.last_step)).then_some(then)
    }

    /// Whether what is to be done every so many steps, where ranks meet, is due in `step`; 0 for never.
    pub fn is_due(&self, every: u64, step: u64) -> bool {
        every > 0 && self.meets(step) && step / every > self.met_before(step) / every
    }

    /// Whether what is to be told every so many steps is due in `step`, the first of them in which something
    /// leaves this rank.
    pub fn is_told(&self, every: u64, step: u64) -> bool {
        every > 0 && self.sends(step) && step / every > self.sent_before(step) / every
    }

    /// Whether `step` is its epoch's last.
    pub fn ends_epoch(&self, step: u64) -> bool {
        self.scheduled(step).is_multiple_of(self.steps_per_epoch)
    }

    /// How far the run has come after `step`.
    pub fn after(&self, step: u64) -> Progress {
        let (epoch, planned) = (self.epoch_of(step), Some(self.planned));
        if self.ends_epoch(step) {
            return Progress { step, epoch: epoch + 1, position: 0, planned };
        }
        let (steps, position) = if epoch == self.from.epoch {
            (step.saturating_sub(self.from.step), self.from.position)
        } else {
            (self.scheduled(step) % self.steps_per_epoch, 0)
        };
        let position = (position + steps * self.global_batch).min(self.samples);
        Progress { step, epoch, position, planned }
    }

    /// Where it begins, and how the data is dealt from there.
    pub fn in_words(&self) -> String {
        let Self { from, samples, global_batch, .. } = self;
        format!(
            "epoch {} goes on after {} of its {samples} samples, {global_batch} a step",
            from.epoch, from.position
        )
    }

    /// A rank's share of the samples of these steps, and the scheduled number of the first.
    ///
    /// # Errors
    /// When the recipe's batch is impossible.
    pub fn sampler(&self, recipe: &Recipe, rank: usize) -> Result<(Sampler, u64)> {
        let (workers, batch) = (recipe.workers, recipe.local_batch());
        let mut sampler = Sampler::new(recipe.seed, self.samples as usize, workers, rank, batch)?;
        let first = sampler.continue_at(self.from.epoch, self.from.position as usize)?;
        Ok((sampler, first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Source;

    fn recipe(workers: usize, batch: usize, epochs: u64) -> Recipe {
        let mut recipe = Source::default().load().unwrap();
        (recipe.workers, recipe.train.batch, recipe.train.epochs) = (workers, batch, epochs);
        (recipe.train.accumulate, recipe.train.max_steps) = (1, None);
        recipe
    }

    #[test]
    fn the_same_batch_goes_on_where_it_was() {
        let recipe = recipe(4, 8, 3);
        let whole = Steps::new(&recipe, 100, Progress::START).unwrap();
        assert_eq!((whole.steps_per_epoch, whole.last_step), (4, 12));
        for step in 1..12 {
            let then = whole.after(step);
            let rest = Steps::new(&recipe, 100, then).unwrap();
            assert_eq!((rest.ahead, rest.first_step(), rest.last_step), (0, step + 1, 12));
            for later in step + 1..=12 {
                assert_eq!(rest.after(later), whole.after(later), "{step}, {later}");
                assert_eq!(rest.epoch_of(later), whole.epoch_of(later));
                assert_eq!(rest.ends_epoch(later), whole.ends_epoch(later));
            }
        }
    }

    /// Every round exchanges each fragment once, and what is asked of the steps agrees with that.
    #[test]
    fn fragments_take_turns() {
        for (steps, fragments, delay, after) in [
            (1, 1, 0, 0),
            (7, 1, 0, 5),
            (6, 2, 2, 0),
            (7, 3, 1, 4),
            (5, 5, 0, 3),
            (16, 4, 3, 1),
            (9, 1, 8, 0),
        ] {
            let case = format!("{steps} {fragments} {delay} {after}");
            let mut recipe = recipe(1, 1, 1);
            recipe.local.steps = steps;
            recipe.local.after = after;
            recipe.outer =
                Some(crate::recipe::local::Outer { fragments, delay, ..Default::default() });
            recipe.train.max_steps = Some(61);
            let all = Steps::new(&recipe, 100, Progress::START).unwrap();
            let last = all.last_step;
            // From what the settings say: at which step which fragment leaves, and when its mean is taken.
            let rounds = (0..).map(|round| after + round * steps).take_while(|start| *start < last);
            let sent = rounds.flat_map(|start| {
                (0..fragments).map(move |p| (start + (p + 1) * steps / fragments, p as usize))
            });
            let sent: Vec<(u64, usize)> = sent.filter(|(step, _)| *step < last).collect();
            let (mut left, mut met) = (0, 0);
            let mut exchanges = vec![0; fragments as usize];
            for step in 1..=last {
                let now = sent.iter().find(|(at, _)| *at == step).map(|(_, p)| *p..*p + 1);
                let leaves = if step == last { Some(0..fragments as usize) } else { now };
                assert_eq!(
                    all.leaves(step),
                    leaves.clone().filter(|_| step > after),
                    "{case}: {step}"
                );
                let arriving =
                    |(at, _): &&(u64, usize)| delay > 0 && (at + delay).min(last) == step;
                let arrives = sent.iter().find(arriving).map(|(_, p)| *p);
                assert_eq!(all.arrives(step), arrives, "{case}: {step}");
                let meets = step <= after
                    || step == last
                    || if delay > 0 { arrives.is_some() } else { leaves.is_some() };
                assert_eq!(all.meets(step), meets, "{case}: {step}");
                assert_eq!(
                    (all.sent_before(step), all.met_before(step)),
                    (left, met),
                    "{case}: {step}"
                );
                if step <= after || leaves.is_some() {
                    // Each fragment's exchanges are counted; at the end the others may be one behind.
                    let turn = all.turn(step);
                    assert_eq!((turn.step, turn.before), (step, left), "{case}");
                    let those = if step <= after {
                        0..fragments as usize
                    } else {
                        leaves.clone().unwrap_or(0..0)
                    };
                    for count in &mut exchanges[those] {
                        let more = turn.exchange - *count;
                        assert!(
                            more == 1 || (more == 2 && step == last && fragments > 1),
                            "{case}: {step}"
                        );
                        *count = turn.exchange;
                    }
                    left = step;
                    let then = all.agrees_on(step);
                    assert!(then.is_none_or(|then| all.meets(then)), "{case}: {step}");
                    assert!(then.is_some() || step + delay >= last, "{case}: {step}");
                } else {
                    assert_eq!(all.agrees_on(step), None, "{case}: {step}");
                }
                met = if meets { step } else { met };
                let streams = fragments > 1 || delay > 0;
                let whole = step <= after || step == last || (!streams && meets);
                assert_eq!(all.is_whole(step), whole, "{case}: {step}");
            }
        }
    }

    #[test]
    fn another_batch_ends_the_epoch_and_the_run_with_every_sample_used() {
        for (workers, steps_left) in [(2, 3 + 7), (8, 1 + 2), (3, 2 + 5)] {
            // After two steps of the second of three epochs: 64 of 100 samples.
            let before = Steps::new(&recipe(4, 8, 3), 100, Progress::START).unwrap();
            let then = before.after(6);
            assert_eq!((then.step, then.epoch, then.position), (6, 2, 64));
            let after = Steps::new(&recipe(workers, 8, 3), 100, then).unwrap();
            let left = 36u64.div_ceil(8 * workers as u64);
            assert!((7..6 + left).all(|step| after.epoch_of(step) == 2 && !after.ends_epoch(step)));
            assert!(after.ends_epoch(6 + left));
            let then = after.after(6 + left);
            assert_eq!((then.step, then.epoch, then.position), (6 + left, 3, 0));
            assert_eq!(after.exchanges(), before.last_step);
            assert_eq!(after.epoch_of(7 + left), 3);
            assert_eq!(after.last_step, 6 + steps_left, "{workers}");
            // And again: a second continuation begins where the first one would be.
            let again = Steps::new(&recipe(workers, 8, 3), 100, after.after(7)).unwrap();
            assert_eq!(again.last_step, after.last_step);
            assert_eq!(again.after(8), after.after(8));
        }
    }
}
