//! What surrounds a scheme: which parameters it is for, from which step on, and what is done to
//! gradients before it sees them.

use serde::{Deserialize, Serialize};

use crate::layout::Bucketing;

/// What is done to the gradient around the scheme. A setting that is left out takes the value of the scheme's
/// [`Scheme::default_policy`](crate::Scheme::default_policy), or the default named here where that has none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// Which stretches of the gradient are encoded as one; default `whole`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bucketing: Option<Bucketing>,
    /// Parameters of fewer elements (biases, norms) are sent as they are, all of them in one
    /// bucket; default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dense_below: Option<usize>,
    /// How many steps at the beginning are sent as they are; default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup_steps: Option<u64>,
    /// Momentum correction (Lin et al. 2018, section 3.1): the factor of a momentum that every
    /// rank applies before compression, in place of the optimizer's; 0, the default, for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0)))]
    pub momentum_correction: Option<f64>,
    /// Momentum factor masking (section 3.2): the momentum of an element that has been sent
    /// starts again from zero; default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub momentum_masking: Option<bool>,
    /// Local gradient clipping (section 3.2): every rank scales its gradient down to a norm of at
    /// most this over √N, before it joins the residual; 0, the default, for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0)))]
    pub clip_norm: Option<f64>,
    /// Steps between two measurements of the compression error, each of which costs one more
    /// decoding; 0, the default, for never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measure_every: Option<u64>,
    /// Runs error feedback around schemes for which it is unsound. For experiments.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

impl From<Bucketing> for Policy {
    fn from(bucketing: Bucketing) -> Self {
        Self { bucketing: Some(bucketing), ..Self::default() }
    }
}

impl Policy {
    /// This policy, with `default` where it is silent.
    #[must_use]
    pub fn or(self, default: Self) -> Self {
        Self {
            bucketing: self.bucketing.or(default.bucketing),
            dense_below: self.dense_below.or(default.dense_below),
            warmup_steps: self.warmup_steps.or(default.warmup_steps),
            momentum_correction: self.momentum_correction.or(default.momentum_correction),
            momentum_masking: self.momentum_masking.or(default.momentum_masking),
            clip_norm: self.clip_norm.or(default.clip_norm),
            measure_every: self.measure_every.or(default.measure_every),
            force: self.force || default.force,
        }
    }

    /// The factor of momentum correction, 0 for none.
    pub fn momentum(&self) -> f64 {
        self.momentum_correction.unwrap_or(0.0)
    }

    /// Whether the compression error is measured at `step`.
    pub(crate) fn measures(&self, step: u64) -> bool {
        let every = self.measure_every.unwrap_or(0);
        every > 0 && (step == 1 || step.is_multiple_of(every))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schemes::topk;
    use crate::{Error, SchemeConfig};

    #[test]
    fn what_is_left_out_is_the_schemes_default() {
        let default =
            Policy { warmup_steps: Some(500), dense_below: Some(1000), ..Policy::default() };
        let given = Policy { warmup_steps: Some(0), ..Policy::from(Bucketing::Parameter) };
        let policy = given.or(default);
        assert_eq!(policy.warmup_steps, Some(0));
        assert_eq!(policy.dense_below, Some(1000));
        assert_eq!(policy.bucketing, Some(Bucketing::Parameter));
        assert_eq!(toml::from_str::<Policy>(&toml::to_string(&policy).unwrap()).unwrap(), policy);
        assert!(toml::from_str::<Policy>("warmup = 3").is_err());
    }

    #[test]
    fn settings_that_mean_nothing_are_refused_by_name() {
        let topk = SchemeConfig::Topk(topk::Config::default());
        let plain = SchemeConfig::Topk(topk::Config { feedback: false, ..Default::default() });
        let momentum = |factor| Policy { momentum_correction: Some(factor), ..Policy::default() };
        assert_eq!(momentum(0.9).validate(&topk), Ok(()));
        for (policy, scheme) in [
            (momentum(1.0), &topk),
            (momentum(f64::NAN), &topk),
            (momentum(0.9), &plain),
            (Policy { clip_norm: Some(-1.0), ..Policy::default() }, &topk),
        ] {
            assert!(matches!(policy.validate(scheme), Err(Error::Policy { .. })), "{policy:?}");
        }
        assert!(Policy::from(Bucketing::Bytes(1)).validate(&topk).is_err());
    }
}
