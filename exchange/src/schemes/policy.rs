//! What surrounds a scheme: which parameters it is for, from which step on, and what is done to
//! gradients before it sees them.

use glob::Pattern;
use serde::{Deserialize, Serialize};

use crate::compress::{FeedbackRule, Law};
use crate::layout::Bucketing;
use crate::{Error, Result, Scheme, SchemeConfig};

/// What is done to the gradient around the scheme. A setting that is left out takes the value of the scheme's
/// [`Scheme::default_policy`](crate::Scheme::default_policy), or the default named here where that has none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// Which stretches of the gradient are encoded as one; default the scheme's own, else
    /// `whole`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bucketing: Option<Bucketing>,
    /// Parameters of fewer elements (biases, norms) are sent as they are, all of them in one
    /// bucket; default the scheme's own, else 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dense_below: Option<usize>,
    /// How many steps at the beginning are sent as they are; default the scheme's own, else 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup_steps: Option<u64>,
    /// Momentum correction (Lin et al. 2018, section 3.1): the factor of a momentum that every
    /// rank applies before compression, in place of the optimizer's; 0 for none. Default the scheme's own, else 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0)))]
    pub momentum_correction: Option<f64>,
    /// Momentum factor masking (section 3.2): the momentum of an element that has been sent
    /// starts again from zero; default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub momentum_masking: Option<bool>,
    /// What becomes of a residual: `{ decay = 0.95 }` or `{ efsgdm = 0.1 }`; left out, all of it is added
    /// to the next gradient. For schemes with feedback. With `{ momentum = 0.9 }`, for any scheme, ranks send
    /// a momentum that they share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub feedback: Option<FeedbackRule>,
    /// Local gradient clipping (section 3.2): every rank scales its gradient down to a norm of at
    /// most this over √N, before it joins the residual; 0, the default, for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0)))]
    pub clip_norm: Option<f64>,
    /// Steps between two measurements of the compression error, each of which costs one more
    /// decoding; 0, the default, for never. Of a scheme of several rounds without feedback it is what the mean lacks of a
    /// rank's own gradient, in which the ranks differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measure_every: Option<u64>,
    /// Runs error feedback around schemes for which it is unsound. For experiments.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
    /// Parameters that go by another scheme, chosen by their names. The first rule that a name matches counts,
    /// before `dense_below`; all else is as this policy says, also where the rule's scheme has another default.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
}

/// Parameters by name, and the scheme that they go by.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Their names, such as `fc.*`: `*` stands for any letters, `?` for one, `[0-3]` for one of these.
    #[serde(rename = "match")]
    pub pattern: String,
    /// Their scheme: a name, or a table as `scheme` is.
    #[cfg_attr(feature = "schema", schemars(schema_with = "any_scheme"))]
    pub scheme: SchemeConfig,
}

/// What a scheme's own keys may be stands where the scheme of all parameters does.
#[cfg(feature = "schema")]
fn any_scheme(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": ["string", "object"] })
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
            feedback: self.feedback.or(default.feedback),
            clip_norm: self.clip_norm.or(default.clip_norm),
            measure_every: self.measure_every.or(default.measure_every),
            force: self.force || default.force,
            rules: if self.rules.is_empty() { default.rules } else { self.rules },
        }
    }

    /// The scheme of the policy, and those of its rules.
    pub fn schemes<'a>(&'a self, scheme: &'a dyn Scheme) -> impl Iterator<Item = &'a dyn Scheme> {
        let of_rules = self.rules.iter().map(|rule| &rule.scheme as &dyn Scheme);
        std::iter::once(scheme).chain(of_rules)
    }

    /// The number of the rule that each of the parameters with these names goes by; `None` of those that go by none.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a pattern that cannot be read, and for a rule that no parameter goes by: with the
    /// nearest names, or the rule before it that takes its parameters. Where there are no names, every rule is fine.
    pub fn rules_of(&self, names: &[&str]) -> Result<Vec<Option<usize>>> {
        let patterns = self.rules.iter().map(|rule| {
            let pattern = Pattern::new(&rule.pattern);
            pattern.map_err(|error| {
                rule.refuse(&format!("is no pattern: {}, at letter {}", error.msg, error.pos))
            })
        });
        let patterns = patterns.collect::<Result<Vec<Pattern>>>()?;
        let of = |name: &&str| patterns.iter().position(|pattern| pattern.matches(name));
        let rules: Vec<Option<usize>> = names.iter().map(of).collect();
        for (number, rule) in self.rules.iter().enumerate() {
            if rules.contains(&Some(number)) || names.is_empty() {
                continue;
            }
            let named = (0..names.len()).find(|place| patterns[number].matches(names[*place]));
            return Err(rule.refuse(&match named.and_then(|place| rules[place]) {
                Some(taker) => format!(
                    "has no parameter left: the rule `{}` before it takes what it matches; write it first, or leave it out",
                    self.rules[taker].pattern
                ),
                None => format!("matches no parameter; {}", nearest(&rule.pattern, names)),
            }));
        }
        Ok(rules)
    }

    /// The factor of momentum correction, 0 for none.
    pub fn momentum(&self) -> f64 {
        self.momentum_correction.unwrap_or(0.0)
    }

    /// The share of a new gradient in EF21's running mean, 0 without.
    pub fn efsgdm(&self) -> f64 {
        match self.feedback {
            Some(FeedbackRule::Efsgdm(share)) => share,
            _ => 0.0,
        }
    }

    /// What is left of a residual from step to step: 1 unless it fades.
    pub fn decay(&self) -> f64 {
        match self.feedback {
            Some(FeedbackRule::Decay(decay)) => decay,
            _ => 1.0,
        }
    }

    /// Whether ranks send a momentum that they share.
    pub fn shares_momentum(&self) -> bool {
        matches!(self.feedback, Some(FeedbackRule::Momentum(_)))
    }

    /// Checks the scheme, these settings, and whether they go together.
    ///
    /// # Errors
    /// What [`Scheme::validate`] refuses; [`Error::Invalid`]; [`Error::Unsound`] unless forced; [`Error::Config`] names the setting, its value and what to write instead.
    pub fn validate(&self, scheme: &dyn Scheme) -> Result<()> {
        let check = |scheme: &dyn Scheme| {
            scheme.validate()?;
            match self.force {
                true => Ok(()),
                false => {
                    scheme.properties().soundness.check(scheme.about().name, scheme.feedback())
                }
            }
        };
        check(scheme)?;
        for rule in &self.rules {
            check(&rule.scheme).map_err(|error| rule.refuse(&format!("does not go: {error}")))?;
            let first_steps =
                |scheme: &dyn Scheme| scheme.default_policy().warmup_steps.unwrap_or(0);
            let (own, all) =
                (first_steps(&rule.scheme), self.warmup_steps.unwrap_or(first_steps(scheme)));
            if own > 0 && own != all {
                return Err(rule.refuse(&format!(
                    "has a scheme that leaves the first {own} steps uncompressed, and such steps are those of the whole \
                     gradient; leave that setting out, and write policy.warmup_steps = {own} for all of it"
                )));
            }
        }
        if let Some(bucketing) = &self.bucketing {
            bucketing.validate()?;
        }
        let refuse = |key, value: f64, wanted| Err(Self::refuse(key, value, wanted));
        let momentum = self.momentum();
        // Vectors are multiplied by it as f32.
        if !(0.0..1.0).contains(&momentum) || momentum as f32 == 1.0 {
            return refuse(
                "momentum_correction",
                momentum,
                "write a factor of at least 0 and below 1",
            );
        }
        if momentum > 0.0 && !self.schemes(scheme).any(Scheme::feedback) {
            let wanted = "it corrects what error feedback delays; switch the scheme's feedback on, \
                          or write 0 here";
            return refuse("momentum_correction", momentum, wanted);
        }
        self.check_feedback(scheme)?;
        let clip = self.clip_norm.unwrap_or(0.0);
        if !(clip >= 0.0 && clip.is_finite()) {
            return refuse("clip_norm", clip, "write a norm above 0, or 0 for none");
        }
        Ok(())
    }

    /// Checks the form of error feedback.
    fn check_feedback(&self, scheme: &dyn Scheme) -> Result<()> {
        let chosen = self.feedback.or(scheme.default_policy().feedback);
        for one in self.schemes(scheme) {
            let own = one.default_policy().feedback;
            if own.is_some() && (own != chosen || self.momentum() > 0.0) {
                let name = one.about().name;
                return Err(Error::Invalid {
                    problem: format!(
                        "the residual of scheme `{name}` is its momentum, which fades by the scheme's `decay`, and \
                         another form of feedback, or a momentum correction, is to surround it; leave \
                         `feedback` and `momentum_correction` out, or for `{name}` in a rule write the same \
                         feedback = {{ decay = … }}"
                    ),
                });
            }
        }
        let (key, share, wanted) = match self.feedback {
            None => return Ok(()),
            Some(FeedbackRule::Decay(share)) => {
                ("feedback.decay", share, "write a share above 0 and at most 1, such as 0.95")
            }
            Some(FeedbackRule::Efsgdm(share)) => {
                ("feedback.efsgdm", share, "write a share above 0 and at most 1, such as 0.1")
            }
            Some(FeedbackRule::Momentum(share)) => {
                ("feedback.momentum", share, "write a share of at least 0 and below 1, such as 0.9")
            }
        };
        let shares = self.shares_momentum();
        let used = share as f32;
        let good = match shares {
            true => (0.0..1.0).contains(&share) && used < 1.0,
            false => share <= 1.0 && used > 0.0,
        };
        let ef21 = self.efsgdm() > 0.0;
        let contracts = scheme.properties().law == Law::Contraction || self.force;
        let wanted = if !good {
            wanted
        } else if !shares && !self.schemes(scheme).any(Scheme::feedback) {
            "it is a form of error feedback; switch the scheme's feedback on, or leave it out"
        } else if ef21 && !contracts {
            "EF21 needs a contraction, and this scheme is none under these settings; write \
             feedback = { decay = 1 }, or another scheme, such as `topk`"
        } else if (ef21 || shares) && self.momentum() > 0.0 {
            "it has a momentum of its own; write momentum_correction = 0 beside it"
        } else if ef21 && !self.rules.is_empty() {
            "EF21 is for all parameters; leave the rules out, or write feedback = { decay = 0.95 }"
        } else {
            return Ok(());
        };
        Err(Self::refuse(key, share, wanted))
    }

    fn refuse(key: &'static str, value: f64, wanted: &'static str) -> Error {
        Error::Config { scheme: None, key, value: value.to_string(), wanted }
    }
}

impl Rule {
    fn refuse(&self, problem: &str) -> Error {
        Error::Invalid { problem: format!("the policy's rule `{}` {problem}", self.pattern) }
    }
}

/// Which names there are, for a pattern that none matches: what they begin with, and those that begin and end most as
/// it does.
fn nearest(pattern: &str, names: &[&str]) -> String {
    let same =
        |one: &mut dyn Iterator<Item = (char, char)>| one.take_while(|(a, b)| a == b).count();
    let likeness = |name: &str| {
        let ends = &mut pattern.chars().rev().zip(name.chars().rev());
        same(&mut pattern.chars().zip(name.chars())) + same(ends)
    };
    let mut near: Vec<&str> = names.iter().copied().filter(|name| likeness(name) > 0).collect();
    near.sort_by_key(|name| std::cmp::Reverse(likeness(name)));
    let mut parts: Vec<&str> = names.iter().filter_map(|name| name.split('.').next()).collect();
    parts.dedup();
    parts.truncate(12);
    let near = near.into_iter().take(3).collect::<Vec<_>>().join(", ");
    let near = if near.is_empty() { near } else { format!("near it are {near}; ") };
    format!("{near}the names begin with {}", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schemes::{qsgd, topk};

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

    fn rules(patterns: &[&str]) -> Policy {
        let rule =
            |pattern: &&str| Rule { pattern: pattern.to_string(), scheme: SchemeConfig::default() };
        Policy { rules: patterns.iter().map(rule).collect(), ..Policy::default() }
    }

    #[test]
    fn the_first_rule_that_a_name_matches_counts() {
        let names = ["conv1.weight", "fc.bias", "fc.weight", "layer1.0.conv1.weight"];
        let of = |patterns: &[&str]| rules(patterns).rules_of(&names).map_err(|e| e.to_string());
        assert_eq!(of(&[]), Ok(vec![None; 4]));
        assert_eq!(of(&["*.bias", "fc.*"]), Ok(vec![None, Some(0), Some(1), None]));
        assert_eq!(of(&["layer[1-3].?.conv*", "*"]), Ok(vec![Some(1), Some(1), Some(1), Some(0)]));
        assert!(rules(&["fx.*"]).rules_of(&[]).unwrap().is_empty());
        for (patterns, said) in [
            (
                &["head*"][..],
                "`head*` matches no parameter; the names begin with conv1, fc, layer1",
            ),
            (&["fc.wieght"][..], "rule `fc.wieght` matches no parameter; near it are fc.weight"),
            (
                &["fc.*", "fc.weight"],
                "rule `fc.weight` has no parameter left: the rule `fc.*` before it",
            ),
            (&["fc.*", "fc.*"], "rule `fc.*` has no parameter left: the rule `fc.*` before it"),
            (&["fc.[a"], "rule `fc.[a` is no pattern: "),
        ] {
            let error = of(patterns).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn rules_are_read_and_checked_as_schemes_are() {
        let text = "[[rules]]\nmatch = 'fc.*'\nscheme = { kind = 'topk', ratio = 7.0 }";
        let policy: Policy = toml::from_str(text).unwrap();
        assert_eq!(toml::from_str::<Policy>(&toml::to_string(&policy).unwrap()).unwrap(), policy);
        let refused = policy.validate(&SchemeConfig::default()).unwrap_err().to_string();
        assert!(refused.contains("rule `fc.*` does not go: scheme `topk`: ratio = 7"), "{refused}");
        assert!(toml::from_str::<Policy>(&text.replace("match", "name")).is_err());
        // Somebody has to feed back what momentum correction corrects.
        let corrects = Policy { momentum_correction: Some(0.9), ..rules(&["*"]) };
        assert!(corrects.validate(&SchemeConfig::default()).is_err());
        assert_eq!(corrects.validate(&SchemeConfig::Topk(topk::Config::default())), Ok(()));
    }

    #[test]
    fn settings_that_mean_nothing_are_refused_by_name() {
        let topk = SchemeConfig::Topk(topk::Config::default());
        let plain = SchemeConfig::Topk(topk::Config { feedback: false, ..Default::default() });
        let momentum = |factor| Policy { momentum_correction: Some(factor), ..Policy::default() };
        let feeds = |rule| Policy { feedback: Some(rule), ..Policy::default() };
        let quantised = SchemeConfig::Qsgd(qsgd::Config { feedback: true, ..Default::default() });
        for good in [FeedbackRule::Decay(0.95), FeedbackRule::Efsgdm(1.0)] {
            assert_eq!(feeds(good).validate(&topk), Ok(()));
            let text = toml::to_string(&feeds(good)).unwrap();
            assert_eq!(toml::from_str::<Policy>(&text).unwrap(), feeds(good), "{text}");
        }
        let rule = Rule { pattern: "fc.*".into(), scheme: topk.clone() };
        assert_eq!(momentum(0.9).validate(&topk), Ok(()));
        for (policy, scheme) in [
            (feeds(FeedbackRule::Decay(0.0)), &topk),
            (feeds(FeedbackRule::Decay(f64::NAN)), &topk),
            (feeds(FeedbackRule::Decay(0.95)), &plain),
            (feeds(FeedbackRule::Efsgdm(1.1)), &topk),
            (feeds(FeedbackRule::Efsgdm(0.1)), &plain),
            (Policy { feedback: Some(FeedbackRule::Efsgdm(0.1)), ..momentum(0.9) }, &topk),
            (Policy { rules: vec![rule], ..feeds(FeedbackRule::Efsgdm(0.1)) }, &topk),
            (momentum(1.0), &topk),
            (momentum(f64::NAN), &topk),
            (momentum(0.9), &plain),
            (Policy { clip_norm: Some(-1.0), ..Policy::default() }, &topk),
        ] {
            assert!(
                matches!(policy.validate(scheme), Err(Error::Config { scheme: None, .. })),
                "{policy:?}"
            );
        }
        assert!(Policy::from(Bucketing::Bytes(1)).validate(&topk).is_err());
        let unsound = feeds(FeedbackRule::Efsgdm(0.1));
        assert!(matches!(unsound.validate(&quantised), Err(Error::Unsound { .. })));
    }
}
