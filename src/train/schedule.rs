//! Learning rates, by the recipe's schedule.

use crate::recipe::schedule::Config;
use crate::train::steps::Span;

/// A schedule bound to a run's length.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    config: Config,
    base: f64,
    steps_per_epoch: f64,
    span: Span,
}

impl Schedule {
    /// The schedule `config` for a run of this length from the rate `base`.
    pub(super) fn new(config: Config, base: f64, steps_per_epoch: u64, span: Span) -> Self {
        Self { config, base, steps_per_epoch: steps_per_epoch as f64, span }
    }

    /// The learning rate of the scheduled `step` (1-based).
    pub(super) fn at(&self, step: u64) -> f64 {
        let done = step.saturating_sub(1) as f64;
        let warmup = self.config.warmup() * self.steps_per_epoch;
        if done < warmup {
            // A warm-up may end within a step.
            return self.base * ((done + 1.0) / warmup).min(1.0);
        }
        let epoch = done / self.steps_per_epoch;
        let (counted, total) = (self.span.count(done), self.span.total);
        let factor = match &self.config {
            Config::Constant(_) => 1.0,
            // A cut falls on its step, though 0.3 / 0.1 is rounded to less than 3.
            Config::Step(c) => c.factor.powf((epoch / c.every + 1e-9).floor()),
            Config::MultiStep(c) => {
                let cuts = c.at.iter().filter(|&&at| epoch >= at).count();
                c.factor.powi(i32::try_from(cuts).unwrap_or(i32::MAX))
            }
            Config::Triangular(c) => {
                let peak = (total * c.peak).floor();
                let between = |from: f64, to: f64, share: f64| from + (to - from) * share.min(1.0);
                match counted < peak {
                    true => between(c.start, 1.0, counted / peak),
                    false => between(1.0, c.end, (counted - peak) / (total - peak).max(1.0)),
                }
            }
            Config::Cosine(c) => {
                let warmup = self.span.warmup;
                let progress = (counted - warmup) / (total - warmup).max(1.0);
                let cosine = 0.5 * (1.0 + (std::f64::consts::PI * progress.min(1.0)).cos());
                c.floor + (1.0 - c.floor) * cosine
            }
        };
        self.base * factor
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::schedule::{Constant, Cosine, MultiStep, Step, Triangular};

    fn rates(config: Config, steps_per_epoch: u64, epochs: u64) -> Vec<f64> {
        let total = steps_per_epoch * epochs;
        let warmup = config.warmup() * steps_per_epoch as f64;
        let span = Span { ahead: 0, total: total as f64, warmup };
        let schedule = Schedule::new(config, 1.0, steps_per_epoch, span);
        (1..=total).map(|step| schedule.at(step)).collect()
    }

    #[test]
    fn rates_are_those_of_each_shape() {
        let triangular = |start, peak, end| Config::Triangular(Triangular { start, peak, end });
        let constant = |warmup| Config::Constant(Constant { warmup });
        let step = Step { every: 1.0, factor: 0.5, warmup: 0.0 };
        let often = Step { every: 0.1, factor: 0.5, warmup: 0.0 };
        let halves: Vec<f64> = (0..10).map(|cuts| 0.5f64.powi(cuts)).collect();
        let multi_step = MultiStep { at: vec![1.0, 2.0], factor: 0.5, warmup: 0.0 };
        let cuts = [1.0, 1.0, 0.5, 0.5, 0.25, 0.25];
        for (config, steps_per_epoch, epochs, expected) in [
            (Config::Step(step), 2, 3, &cuts[..]),
            (Config::Step(often), 10, 1, &halves),
            (Config::MultiStep(multi_step), 2, 3, &cuts),
            // A warm-up ends at the base rate, even within a step.
            (constant(1.0), 4, 2, &[0.25, 0.5, 0.75, 1.0, 1.0]),
            (constant(0.5), 5, 1, &[0.4, 0.8, 1.0, 1.0]),
            (
                triangular(0.2, 0.4, 0.1),
                5,
                2,
                &[0.2, 0.4, 0.6, 0.8, 1.0, 0.85, 0.7, 0.55, 0.4, 0.25],
            ),
            (triangular(0.5, 0.0, 0.0), 4, 1, &[1.0, 0.75, 0.5, 0.25]),
        ] {
            let found = rates(config, steps_per_epoch, epochs);
            let close = found.iter().zip(expected).all(|(a, b)| (a - b).abs() <= f64::EPSILON);
            assert!(close && found.len() >= expected.len(), "{found:?} {expected:?}");
        }
    }

    /// Step 100 of 200 by four workers of 25 samples; then by two, or by eight.
    #[test]
    fn no_rate_jumps_where_a_run_of_so_many_steps_goes_on_with_another_batch() {
        let cosine = |warmup| Config::Cosine(Cosine { floor: 0.0, warmup });
        let schedules = [
            cosine(0.0),
            cosine(1.0),
            cosine(4.0),
            Config::Triangular(Triangular { start: 0.1, peak: 0.2, end: 0.0 }),
        ];
        for (schedule, workers) in schedules.into_iter().flat_map(|s| [(s.clone(), 2), (s, 8)]) {
            let run = |workers, from| {
                let mut recipe = crate::recipe::Source::default().load().unwrap();
                (recipe.workers, recipe.train.batch, recipe.train.accumulate) = (workers, 25, 1);
                (recipe.train.epochs, recipe.train.max_steps) = (10, Some(200));
                recipe.schedule = schedule.clone();
                let steps = crate::train::steps::Steps::new(&recipe, 4000, from).unwrap();
                let per_epoch = steps.steps_per_epoch;
                let rates = Schedule::new(schedule.clone(), 1.0, per_epoch, steps.span());
                move |step| (rates.at(steps.scheduled(step)), steps.after(step))
            };
            let whole = run(4, crate::checkpoint::Progress::START);
            let rest = run(workers, whole(100).1);
            let again = run(workers, rest(150).1);
            let mut before = whole(100).0;
            for step in 101..=200 {
                let [then, now] = [whole(step).0, rest(step).0];
                let as_planned = schedule.warmup() > 2.0 || (then - now).abs() < 1e-9;
                assert!(as_planned, "{schedule:?} {workers} {step}: {then} {now}");
                assert!((now - before).abs() < 0.03, "{schedule:?} {workers} {step}: {now}");
                assert!(step <= 150 || again(step).0.to_bits() == now.to_bits(), "{step}");
                before = now;
            }
        }
    }

    #[test]
    fn cosine_falls_from_the_base_to_the_floor() {
        let c = Cosine { floor: 0.1, warmup: 0.0 };
        let rates = rates(Config::Cosine(c), 50, 2);
        assert_eq!(rates[0], 1.0);
        assert!((rates[50] - 0.55).abs() < 1e-12);
        assert!(rates.windows(2).all(|w| w[1] < w[0]));
        assert!(rates[99] > 0.1 && rates[99] < 0.11);
    }
}
