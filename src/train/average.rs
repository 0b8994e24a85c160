//! The average of a replica's weights over the steps of a run, beside the weights.
//!
//! Batch norm's running statistics are averaged as the weights are: those of the weights alone would not
//! be those of the average.

use crate::recipe::average::{Config, Ema, Lookahead};
use crate::train::beside::Beside;
use crate::train::params::is_statistic;
use crate::train::replica::Replica;
use anyhow::Result;
use gradwire_models::updates::Update;

/// An average, of one replica.
pub(super) struct Average {
    config: Config,
    /// Of each parameter, in the flat gradient's layout.
    pub(super) weights: Beside,
    /// Of each running statistic, in the order of their names.
    pub(super) buffers: Beside,
    /// How often it was updated.
    pub(super) updates: u64,
}

impl Average {
    /// The average that the recipe asks for, if it does: at first the weights as they are.
    pub(super) fn new(config: Config, replica: &Replica) -> Result<Option<Self>> {
        if config == Config::default() {
            return Ok(None);
        }
        let weights = replica.params.iter().map(|param| param.var.clone());
        let buffers = replica.store.buffers().into_iter();
        // How many passes the statistics are of stays as it is.
        let buffers = buffers.filter(|(name, _)| is_statistic(name)).map(|(_, var)| var);
        let (weights, buffers) = (Beside::new(weights.collect())?, Beside::new(buffers.collect())?);
        Ok(Some(Self { config, weights, buffers, updates: 0 }))
    }

    /// Whether [`after_step`](Self::after_step) is to be called after the step at `place`, when it could
    /// last be called at `before`.
    pub(super) fn is_due(&self, before: u64, place: u64) -> bool {
        match self.config {
            Config::None(_) => false,
            Config::Ema(Ema { every, .. }) | Config::Lookahead(Lookahead { every, .. }) => {
                place / every > before / every
            }
        }
    }

    /// Whether [`after_step`](Self::after_step) changes the weights, and does not only read them.
    pub(super) fn changes_weights(&self) -> bool {
        matches!(self.config, Config::Lookahead(_))
    }

    /// Takes up the weights after the step at `place` of a run of `steps` steps, and gives them back
    /// changed where the rule says so.
    pub(super) fn after_step(&mut self, place: f64, steps: f64) -> Result<()> {
        self.updates += 1;
        if self.updates == 1 {
            // Statistics begin as those of nothing: no average is to remember that.
            self.buffers.begin()?;
        }
        match self.config {
            Config::None(_) => Ok(()),
            Config::Ema(Ema { decay, .. }) => {
                // With this share the average is Σ d^(n−i)·θ_i / Σ d^(n−i) over the updates i = 1…n.
                let updates = i32::try_from(self.updates).unwrap_or(i32::MAX);
                let share = ((1.0 - decay) / (1.0 - decay.powi(updates))) as f32;
                self.each(&Update::Average { share, back: false })
            }
            Config::Lookahead(Lookahead { decay, ramp, .. }) => {
                let done = place / steps.max(1.0);
                let share = (1.0 - decay * done.min(1.0).powf(ramp)) as f32;
                self.each(&Update::Average { share, back: true })
            }
        }
    }

    /// Exchanges the weights and the average, which is what is evaluated and saved; called again it puts
    /// them back.
    pub(super) fn swap(&self) -> Result<()> {
        // Before its first update the average is what training began with.
        if self.updates == 0 { Ok(()) } else { self.each(&Update::Swap) }
    }

    /// Changes each average and what it is the average of.
    fn each(&self, update: &Update) -> Result<()> {
        self.weights.each(update)?;
        self.buffers.each(update)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::{Recipe, Source};
    use crate::train::params::update_buffers;
    use crate::train::session;

    fn each_weight(replica: &Replica, mut visit: impl FnMut(&mut [f32])) {
        replica.params.update(|_, values| visit(values)).unwrap();
    }

    fn each_statistic(replica: &Replica, visit: impl FnMut(&mut [f32])) {
        update_buffers(&replica.store, is_statistic, visit).unwrap();
    }

    fn replica(average: &str) -> (tempfile::TempDir, Recipe, Replica) {
        let folder = tempfile::tempdir().unwrap();
        let out = format!("record.out={:?}", folder.path());
        let sets =
            ["dataset=synthetic-cifar10", "samples.train=8", "samples.test=2", &out, average];
        let recipe = Source::of(sets).load().unwrap();
        let data = session::load(&recipe, None).unwrap();
        let replica = Replica::new(&recipe, &*data.train, 0).unwrap();
        (folder, recipe, replica)
    }

    fn set(replica: &Replica, value: f32) {
        each_weight(replica, |values| values.fill(value));
        update_buffers(&replica.store, |_| true, |values| values.fill(value)).unwrap();
    }

    /// The value that all weights have, and that of all statistics.
    fn get(replica: &Replica) -> [f32; 2] {
        let (mut weights, mut statistics) = (Vec::new(), Vec::new());
        each_weight(replica, |values| weights.extend_from_slice(values));
        each_statistic(replica, |values| statistics.extend_from_slice(values));
        [weights, statistics].map(|all| {
            assert!(all.iter().all(|value| *value == all[0]));
            all[0]
        })
    }

    fn assert_close(found: [f32; 2], expected: [f32; 2]) {
        let close = found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-4);
        assert!(close, "{found:?} {expected:?}");
    }

    #[test]
    fn an_exponential_average_is_what_its_definition_says() {
        let decay = 0.75;
        let (_folder, recipe, replica) =
            replica(&format!("average={{kind='ema',decay={decay},every=2}}"));
        set(&replica, 100.0);
        let mut average = Average::new(recipe.average, &replica).unwrap().unwrap();
        let (mut sum, mut weights) = (0.0, 0.0);
        for place in 1..=8u64 {
            let value = (place * place) as f32;
            set(&replica, value);
            assert_eq!(average.is_due(place - 1, place), place % 2 == 0);
            if average.is_due(place - 1, place) {
                average.after_step(place as f64, 8.0).unwrap();
                assert_eq!(get(&replica), [value; 2], "training goes on from the weights");
                (sum, weights) = (decay * sum + f64::from(value), decay * weights + 1.0);
            }
        }
        assert_eq!(average.updates, 4);
        average.swap().unwrap();
        assert_close(get(&replica), [(sum / weights) as f32; 2]);
        average.swap().unwrap();
        assert_eq!(get(&replica), [64.0; 2]);
    }

    #[test]
    fn passes_are_counted_and_not_averaged() {
        let (_folder, recipe, replica) = replica("average={kind='lookahead',every=1}");
        let mut average = Average::new(recipe.average, &replica).unwrap().unwrap();
        let passes = |name: &str| !is_statistic(name);
        for place in 1..=3u64 {
            update_buffers(&replica.store, passes, |count| count[0] += 1.0).unwrap();
            average.after_step(place as f64, 3.0).unwrap();
            average.swap().unwrap();
            let mut counts = Vec::new();
            update_buffers(&replica.store, passes, |count| counts.push(count[0])).unwrap();
            assert!(!counts.is_empty() && counts.iter().all(|count| *count == place as f32));
        }
    }

    #[test]
    fn weights_return_every_few_steps_to_slow_ones_which_are_evaluated() {
        let (_folder, recipe, replica) =
            replica("average={kind='lookahead',decay=0.5,ramp=1,every=2}");
        set(&replica, 0.0);
        let mut average = Average::new(recipe.average, &replica).unwrap().unwrap();
        let mut slow = [0.0f32; 2];
        for place in 1..=5u64 {
            let fast = get(&replica)[0] + 1.0;
            set(&replica, fast);
            if average.is_due(place - 1, place) {
                average.after_step(place as f64, 5.0).unwrap();
                let share = 1.0 - 0.5 * place as f32 / 5.0;
                // Statistics have no beginning that an average could return to.
                let before = if place == 2 { [0.0, fast] } else { slow };
                slow = before.map(|slow| slow + share * (fast - slow));
                assert_close(get(&replica), slow);
            }
            let trained = get(&replica);
            average.swap().unwrap();
            assert_close(get(&replica), if place == 1 { [fast; 2] } else { slow });
            average.swap().unwrap();
            assert_eq!(get(&replica), trained, "training goes on from the weights");
        }
        assert_close(get(&replica), [slow[0] + 1.0; 2]);
    }

    #[test]
    fn without_a_word_there_is_no_average() {
        let (_folder, recipe, replica) = replica("seed=1");
        assert!(Average::new(recipe.average, &replica).unwrap().is_none());
    }
}
