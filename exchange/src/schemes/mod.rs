//! The schemes: one file each, and the list of them.
//!
//! Adding one is a file with a `Config` (`settings!`) that implements [`Scheme`], and two lines below: the
//! module and its place in the list. Recipes, `gradwire list`, contract tests, benches and plots
//! take it from there.
//!
//! Each file says what the paper has and where we differ, the idea, the bytes on the wire, and the
//! state that lasts from step to step: none where nothing is said of it. The residual is the
//! exchange's.

pub mod aggregation_aware;
pub mod alq;
pub mod casq;
pub mod demo;
pub mod dense;
pub mod dgc;
pub mod dqsgd;
pub mod ef_signsgd;
pub mod gaussiank;
pub mod half;
pub mod natural;
pub mod nonzero;
pub mod nuqsgd;
pub mod onebit;
pub mod optquant;
pub(crate) mod policy;
pub mod powersgd;
pub mod qsgd;
pub mod randomk;
pub mod redsync;
pub(crate) mod scheme;
pub mod sidco;
pub mod signsgd;
pub mod terngrad;
pub mod threshold;
pub mod topk;

use crate::compress::{Built, Properties, Seat};
use crate::{Policy, Result, Scheme};

macro_rules! schemes {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident {
            $($variant:ident($module:ident)),* $(,)?
        }
    ) => {
        gradwire_registry::registry! {
            $(#[$meta])*
            $vis enum $name: Scheme {
                $($variant($module::Config),)*
            }
            delegates {
                fn properties(&self) -> Properties;
                fn default_policy(&self) -> Policy;
                fn spans_the_run(&self) -> bool;
                fn validate(&self) -> Result<()>;
                fn plain(&self) -> bool;
                fn build(&self, seat: &Seat) -> Built;
                and fn examples() -> Vec<Self> {
                    let mut all = Vec::new();
                    $(all.extend($module::Config::examples().into_iter().map(Self::$variant));)*
                    all
                }
            }
        }
    };
}

schemes! {
    /// How gradients are compressed: the built-in schemes, by their names.
    ///
    /// Serde reads and writes it as a table of `kind`, the scheme's name, and the scheme's settings.
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    #[non_exhaustive]
    pub enum SchemeConfig {
        Dense(dense),
        Half(half),
        Nonzero(nonzero),
        Casq(casq),
        Dqsgd(dqsgd),
        Optquant(optquant),
        Sidco(sidco),
        AggregationAware(aggregation_aware),
        Powersgd(powersgd),
        Topk(topk),
        Demo(demo),
        Randomk(randomk),
        Dgc(dgc),
        Gaussiank(gaussiank),
        Redsync(redsync),
        Threshold(threshold),
        Qsgd(qsgd),
        Terngrad(terngrad),
        Nuqsgd(nuqsgd),
        Alq(alq),
        Natural(natural),
        Signsgd(signsgd),
        EfSignsgd(ef_signsgd),
        Onebit(onebit),
    }
}

impl SchemeConfig {
    /// Every scheme at its defaults and at further settings worth testing and timing.
    #[doc(hidden)]
    pub fn specimens() -> Vec<Self> {
        [Self::all(), Self::examples()].concat()
    }

    /// Those of [`specimens`](Self::specimens) that say everything in one message.
    #[doc(hidden)]
    pub fn codecs() -> Vec<Self> {
        let mut all = Self::specimens();
        all.retain(|scheme| scheme.codec(&Seat::alone(1, 0)).is_some());
        all
    }
}

impl Default for SchemeConfig {
    /// The scheme that changes nothing: dense.
    fn default() -> Self {
        SchemeConfig::Dense(dense::Config::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part of recorded vectors, as numbers or lists of them.
    pub(super) fn recorded<T: serde::de::DeserializeOwned>(part: &serde_json::Value) -> T {
        serde_json::from_value(part.clone()).unwrap()
    }

    fn read(text: &str) -> Result<SchemeConfig, toml::de::Error> {
        toml::from_str(text)
    }

    #[test]
    fn schemes_read_from_a_recipe_by_their_names() {
        for scheme in SchemeConfig::specimens() {
            let text = toml::to_string(&scheme).unwrap();
            assert!(text.contains(&format!("kind = \"{}\"", scheme.about().name)), "{text}");
            assert_eq!(read(&text).unwrap(), scheme);
            assert_eq!(scheme.validate(), Ok(()));
        }
        for scheme in SchemeConfig::all() {
            assert_eq!(read(&format!("kind = '{}'", scheme.about().name)).unwrap(), scheme);
        }
    }

    #[test]
    fn stray_keys_and_unknown_names_are_refused() {
        for text in [
            "kind = 'dense'\nfeedback = true",
            "kind = 'topk'\nrate = 0.1",
            "kind = 'powersgd'\nrang = 3",
            "kind = 'top-k'",
            "ratio = 0.1",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    /// The first line of each text is what is refused; the others are what it needs beside it.
    #[test]
    fn settings_without_meaning_are_refused_by_name_and_value() {
        for (kind, all) in [
            ("threshold", &["lambda = -1", "lambda = nan", "lambda = inf"][..]),
            ("dgc", &["sample = 0"]),
            ("terngrad", &["clip = -1", "clip = nan"]),
            ("qsgd", &["levels = 0", "levels = 128"]),
            ("optquant", &["bits = 6", "refresh = 0", "memory = 1", "lambda = 0.5"]),
            ("casq", &["bits = 5", "percentile = 100", "refresh = 0", "sample = 0"]),
            ("powersgd", &["rank = 0", "start_step = 0"]),
            ("powersgd", &["min_compression_rate = 0", "min_compression_rate = nan"]),
            ("powersgd", &["factors = 'f16'"]),
            ("demo", &["chunk = 0", "chunk = 129", "k = 0", "decay = 0", "decay = nan"]),
            ("dqsgd", &["alpha = 0", "alpha = nan", "alpha = 1.001"]),
            ("dqsgd", &["gap = 0", "horizon = 0", "window = 0"]),
            ("sidco", &["bounce = true\nstages = 2"]),
            ("dqsgd", &["min_bits = 1", "min_bits = 5\nmax_bits = 4", "max_bits = 9"]),
            ("dqsgd", &["target.bits = 1", "target.k = 0", "target.error = inf"]),
            ("aggregation-aware", &["rule.p = 1.1\nrule.by = 'prev-union'"]),
            ("aggregation-aware", &["rule.p = nan\nrule.by = 'prev-union'"]),
            ("aggregation-aware", &["rule.lambda = -1\nrule.by = 'mix'"]),
            ("aggregation-aware", &["rule.lambda = inf\nrule.by = 'mix'"]),
            ("aggregation-aware", &["rule.h = 0.5\nrule.by = 'hysteresis'"]),
        ] {
            for settings in all {
                let scheme = read(&format!("kind = '{kind}'\n{settings}")).unwrap();
                let error = scheme.validate().unwrap_err().to_string();
                let refused = settings.lines().next().unwrap().replace("nan", "NaN");
                let decoded = format!("scheme `{kind}`: {refused} is not possible");
                assert!(error.starts_with(&decoded), "{error}");
            }
        }
    }
}
