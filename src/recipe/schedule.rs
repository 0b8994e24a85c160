//! Settings of learning-rate schedules: the base rate times a factor that depends on the step alone.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The shape of the learning rate over training. Lengths are in epochs, fractions allowed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Config {
    /// The base rate throughout.
    Constant(Constant),
    /// Multiplied by `factor` every `every` epochs.
    Step(Step),
    /// Multiplied by `factor` at each epoch of `at` (He et al. 2016 divide by ten twice).
    MultiStep(MultiStep),
    /// A straight line up to the base rate and another one down, one cycle in the run (Smith and Topin
    /// 2018).
    Triangular(Triangular),
    /// Half a cosine from the base rate down to `floor` times it (Loshchilov & Hutter 2017, eq. 5).
    Cosine(Cosine),
}

/// Settings of [`Config::Constant`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Constant {
    /// Epochs of linear warm-up from zero; 0 for none.
    #[schemars(range(min = 0.0))]
    pub warmup: f64,
}

/// Settings of [`Config::Step`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Epochs between two cuts.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub every: f64,
    /// What a cut multiplies the rate by.
    #[serde(default = "tenth")]
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub factor: f64,
    /// Epochs of linear warm-up from zero; 0 for none.
    #[serde(default)]
    #[schemars(range(min = 0.0))]
    pub warmup: f64,
}

/// Settings of [`Config::MultiStep`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MultiStep {
    /// The epochs after which the rate is cut, ascending.
    #[schemars(length(min = 1), inner(range(min = 0.0)))]
    pub at: Vec<f64>,
    /// What a cut multiplies the rate by.
    #[serde(default = "tenth")]
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub factor: f64,
    /// Epochs of linear warm-up from zero; 0 for none.
    #[serde(default)]
    #[schemars(range(min = 0.0))]
    pub warmup: f64,
}

/// Settings of [`Config::Cosine`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Cosine {
    /// The last rate as a share of the base rate.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub floor: f64,
    /// Epochs of linear warm-up from zero; 0 for none.
    #[schemars(range(min = 0.0))]
    pub warmup: f64,
}

settings! {
    /// Settings of [`Config::Triangular`].
    pub struct Triangular {
        /// The first rate as a share of the base rate.
        #[schemars(range(min = 0.0, max = 1.0))]
        pub start: f64 = 0.2,
        /// The share of the run's steps after which the rate is the base rate.
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        pub peak: f64 = 0.25,
        /// The share of the base rate that the rate comes down to after the last step.
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        pub end: f64 = 0.0,
    }
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
    /// Whether the rate of a step depends on how many steps the run has.
    pub fn spans_the_run(&self) -> bool {
        match self {
            Self::Constant(_) | Self::Step(_) | Self::MultiStep(_) => false,
            Self::Triangular(_) | Self::Cosine(_) => true,
        }
    }

    /// Epochs of linear warm-up.
    pub fn warmup(&self) -> f64 {
        match self {
            Self::Constant(c) => c.warmup,
            Self::Step(c) => c.warmup,
            Self::MultiStep(c) => c.warmup,
            Self::Cosine(c) => c.warmup,
            Self::Triangular(_) => 0.0,
        }
    }

    /// Checks what bounds of single numbers do not say.
    pub(super) fn validate(&self, epochs: f64) -> Result<(), String> {
        let warmup = self.warmup();
        if warmup > epochs {
            return Err(format!(
                "schedule.warmup = {warmup} is not within the run of {epochs} epochs; \
                 write a number from 0 to {epochs}"
            ));
        }
        match self {
            Self::MultiStep(c) if c.at.is_empty() || c.at.windows(2).any(|w| w[0] >= w[1]) => {
                Err(format!(
                    "schedule.at = {:?} must be epochs in ascending order, such as [80, 120]",
                    c.at
                ))
            }
            _ => Ok(()),
        }
    }
}
