//! Settings of averages of the weights over the steps of a run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which average of the weights is kept beside them, and what becomes of it. Batch norm's running
/// statistics are averaged as the weights are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Config {
    /// None: what is trained is what is evaluated and saved.
    None(Nothing),
    /// An exponential moving average, which is evaluated and saved in place of the weights; training
    /// goes on from the weights themselves (Polyak and Juditsky 1992; Tarvainen and Valpola 2017).
    Ema(Ema),
    /// Slow weights, to which the weights return every few steps (Zhang et al. 2019, algorithm 1).
    Lookahead(Lookahead),
}

/// The settings of [`Config::None`]: there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

settings! {
    /// Settings of [`Config::Ema`].
    #[derive(Copy)]
    pub struct Ema {
        /// What is left of the average at each update, the beginning apart: the first update gives the
        /// weights themselves, as with Adam's running means.
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        pub decay: f64 = 0.999,
        /// Steps between two updates.
        #[schemars(range(min = 1))]
        pub every: u64 = 1,
    }
}

settings! {
    /// Settings of [`Config::Lookahead`].
    #[derive(Copy)]
    pub struct Lookahead {
        /// What is left of the slow weights when the weights return to them, one less the paper's α; with
        /// a ramp at the end of the run.
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        pub decay: f64 = 0.5,
        /// The decay is multiplied by this power of the share of the run that is done; 0 for the same decay
        /// throughout (3 in Jordan 2024, section 3.4).
        #[schemars(range(min = 0.0, max = 100.0))]
        pub ramp: f64 = 0.0,
        /// Steps between two returns.
        #[schemars(range(min = 1))]
        pub every: u64 = 5,
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::None(Nothing {})
    }
}

impl Config {
    /// Whether what is done after a step depends on how many steps the run has.
    pub fn spans_the_run(&self) -> bool {
        matches!(self, Self::Lookahead(Lookahead { ramp, .. }) if *ramp > 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_average_has_no_settings() {
        let text = toml::to_string(&Config::default()).unwrap();
        assert_eq!(text, "kind = \"none\"\n");
        assert_eq!(toml::from_str::<Config>(&text).unwrap(), Config::default());
        assert!(toml::from_str::<Config>(&format!("{text}decay = 0.9")).is_err());
    }
}
