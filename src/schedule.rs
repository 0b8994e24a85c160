//! Learning-rate schedules: the base rate times a factor that depends on the step alone.

use serde::{Deserialize, Serialize};

/// The shape of the learning rate over training. Lengths are in epochs, fractions allowed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Config {
    /// The base rate throughout.
    Constant(Constant),
    /// Multiplied by `factor` every `every` epochs.
    Step(Step),
    /// Multiplied by `factor` at each epoch of `at` (He et al. 2016 divide by ten twice).
    MultiStep(MultiStep),
    /// Half a cosine from the base rate down to `floor` times it (Loshchilov & Hutter 2017, eq. 5).
    Cosine(Cosine),
}

/// Settings of [`Config::Constant`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Constant {
    /// Epochs of linear warm-up from zero; 0 for none.
    pub warmup: f64,
}

/// Settings of [`Config::Step`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Epochs between two cuts.
    pub every: f64,
    /// What a cut multiplies the rate by.
    #[serde(default = "tenth")]
    pub factor: f64,
    /// Epochs of linear warm-up from zero; 0 for none.
    #[serde(default)]
    pub warmup: f64,
}

/// Settings of [`Config::MultiStep`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MultiStep {
    /// The epochs after which the rate is cut, ascending.
    pub at: Vec<f64>,
    /// What a cut multiplies the rate by.
    #[serde(default = "tenth")]
    pub factor: f64,
    /// Epochs of linear warm-up from zero; 0 for none.
    #[serde(default)]
    pub warmup: f64,
}

/// Settings of [`Config::Cosine`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cosine {
    /// The last rate as a share of the base rate.
    pub floor: f64,
    /// Epochs of linear warm-up from zero; 0 for none.
    pub warmup: f64,
}

fn tenth() -> f64 {
    0.1
}

impl Default for Config {
    fn default() -> Self {
        Self::Cosine(Cosine::default())
    }
}

impl Config {
    /// The names that a recipe may use for `schedule.kind`.
    pub const NAMES: [&'static str; 4] = ["constant", "step", "multi-step", "cosine"];

    fn warmup(&self) -> f64 {
        match self {
            Self::Constant(c) => c.warmup,
            Self::Step(c) => c.warmup,
            Self::MultiStep(c) => c.warmup,
            Self::Cosine(c) => c.warmup,
        }
    }

    /// Checks the settings against the run's length.
    ///
    /// # Errors
    /// A sentence that names the key and what to write instead.
    pub fn validate(&self, epochs: f64) -> Result<(), String> {
        let warmup = self.warmup();
        if !(0.0..=epochs).contains(&warmup) {
            return Err(format!(
                "schedule.warmup = {warmup} is not within the run of {epochs} epochs; \
                 write a number from 0 to {epochs}"
            ));
        }
        let factor = |factor: f64| {
            if factor > 0.0 && factor.is_finite() {
                Ok(())
            } else {
                Err(format!("schedule.factor = {factor} must be a positive number, such as 0.1"))
            }
        };
        match self {
            Self::Constant(_) => Ok(()),
            Self::Step(c) => {
                if c.every.is_nan() || c.every <= 0.0 {
                    return Err(format!("schedule.every = {} must be more than 0 epochs", c.every));
                }
                factor(c.factor)
            }
            Self::MultiStep(c) => {
                if c.at.is_empty()
                    || c.at.iter().any(|e| e.is_nan() || *e < 0.0)
                    || c.at.windows(2).any(|w| w[0] >= w[1])
                {
                    return Err(format!(
                        "schedule.at = {:?} must be epochs in ascending order, such as [80, 120]",
                        c.at
                    ));
                }
                factor(c.factor)
            }
            Self::Cosine(c) => {
                if (0.0..=1.0).contains(&c.floor) {
                    Ok(())
                } else {
                    Err(format!(
                        "schedule.floor = {} must be a share from 0 to 1 of the base rate",
                        c.floor
                    ))
                }
            }
        }
    }
}

/// A schedule bound to a run's length.
#[derive(Clone, Debug)]
pub struct Schedule {
    config: Config,
    base: f64,
    steps_per_epoch: f64,
    total_steps: f64,
}

impl Schedule {
    /// The schedule `config` for `total_steps` steps from the rate `base`.
    pub fn new(config: Config, base: f64, steps_per_epoch: u64, total_steps: u64) -> Self {
        Self {
            config,
            base,
            steps_per_epoch: steps_per_epoch as f64,
            total_steps: total_steps as f64,
        }
    }

    /// The learning rate of `step` (1-based).
    pub fn at(&self, step: u64) -> f64 {
        let done = step.saturating_sub(1) as f64;
        let warmup = self.config.warmup() * self.steps_per_epoch;
        if done < warmup {
            return self.base * (done + 1.0) / warmup.max(1.0);
        }
        let epoch = done / self.steps_per_epoch;
        let factor = match &self.config {
            Config::Constant(_) => 1.0,
            Config::Step(c) => c.factor.powf((epoch / c.every).floor()),
            Config::MultiStep(c) => {
                let cuts = c.at.iter().filter(|&&at| epoch >= at).count();
                c.factor.powi(i32::try_from(cuts).unwrap_or(i32::MAX))
            }
            Config::Cosine(c) => {
                let progress = (done - warmup) / (self.total_steps - warmup).max(1.0);
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

    fn rates(config: Config, steps_per_epoch: u64, epochs: u64) -> Vec<f64> {
        let total = steps_per_epoch * epochs;
        let schedule = Schedule::new(config, 1.0, steps_per_epoch, total);
        (1..=total).map(|step| schedule.at(step)).collect()
    }

    #[test]
    fn step_cuts_every_so_many_epochs() {
        let c = Step { every: 1.0, factor: 0.5, warmup: 0.0 };
        assert_eq!(rates(Config::Step(c), 2, 3), [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]);
    }

    #[test]
    fn multi_step_cuts_after_the_named_epochs() {
        let c = MultiStep { at: vec![1.0, 2.0], factor: 0.5, warmup: 0.0 };
        assert_eq!(rates(Config::MultiStep(c), 2, 3), [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]);
    }

    #[test]
    fn warm_up_is_linear_and_ends_at_the_base_rate() {
        let c = Constant { warmup: 1.0 };
        assert_eq!(rates(Config::Constant(c), 4, 2)[..5], [0.25, 0.5, 0.75, 1.0, 1.0]);
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

    #[test]
    fn impossible_settings_are_refused_with_the_key() {
        let bad = [
            Config::Constant(Constant { warmup: 9.0 }),
            Config::Step(Step { every: 0.0, factor: 0.1, warmup: 0.0 }),
            Config::MultiStep(MultiStep { at: vec![2.0, 1.0], factor: 0.1, warmup: 0.0 }),
            Config::MultiStep(MultiStep { at: vec![1.0], factor: f64::NAN, warmup: 0.0 }),
            Config::Cosine(Cosine { floor: 1.5, warmup: 0.0 }),
        ];
        for config in bad {
            let message = config.validate(3.0).unwrap_err();
            assert!(message.starts_with("schedule."), "{message}");
        }
    }
}
