//! Claims: what a paper says, as a measure, a comparison and bounds.

use crate::measured::INFINITE;
use crate::results::{ClaimKind, Unit};
use crate::scale::Scale;
use anyhow::{Context, Result, ensure};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How much worse still counts as being as good.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Margin {
    /// The size: of an accuracy as a fraction.
    pub size: f64,
    /// Why this and no other.
    pub why: String,
}

/// A sentence of a paper's abstract, in our words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sentence {
    /// A word to name it by.
    pub name: String,
    /// What it says.
    pub says: String,
    /// The sentence whose claims test this one, too, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub like: Option<String>,
    /// Why no claim tests it, or what of it none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub untested: Option<String>,
}

/// Something that a paper says, and how it is put to the test here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The claim in words.
    pub claim: String,
    /// Where it is made: paper, table or section. Empty for a question of one's own.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// What kind of sentence it is: what readme and pages count apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<ClaimKind>,
    /// The sentence of the paper's abstract that it tests, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sentence: Option<String>,
    /// Claims of one group repeat each other, and count once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The task it is tested on, by its whole name. Needed, unless there is `best_of`.
    pub task: Option<String>,
    /// In place of `task`: several tasks, of which the best counts. "Up to" in a paper means this.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub best_of: Vec<String>,
    /// The arm it is about, by its whole name.
    pub arm: String,
    /// The arm that it is compared with.
    pub against: Option<String>,
    /// What is measured.
    pub measure: Measure,
    /// The gauge, for `measure = "gauge"`.
    pub gauge: Option<String>,
    /// The link, for times that are asked on one alone. Without it they are asked on every link of the runs,
    /// and on one of infinite bandwidth.
    pub link: Option<String>,
    /// How both are compared.
    #[serde(default)]
    pub compare: Compare,
    /// How the numbers are written.
    #[serde(default)]
    pub unit: Unit,
    /// Bits that a parameter of the other arm's messages is charged on the link, in place of those that
    /// it sent: what the time would be if they were as long. A hypothesis, and no run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub charged_bits: Option<f64>,
    /// The number claimed, where there is one.
    pub claimed: Option<f64>,
    /// Whether it says that the arm does as well as the other: not worse by more than the experiment's
    /// margin for what is measured, which stands for the bound.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_worse: bool,
    /// The least that counts as reproduced.
    pub at_least: Option<f64>,
    /// The most that counts as reproduced.
    pub at_most: Option<f64>,
    /// The scales that can test it; absent for all.
    pub scales: Option<Vec<Scale>>,
    /// Why the others cannot.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub otherwise: String,
    /// The fewest seeds that can test it: 1 for what no seed changes.
    #[serde(default = "two")]
    pub seeds: usize,
}

fn two() -> usize {
    2
}

impl Claim {
    /// The tasks that it is tested on.
    pub fn tasks(&self) -> impl Iterator<Item = &String> {
        self.task.iter().chain(&self.best_of)
    }

    /// Whether it is about this arm on this task.
    pub fn is_about(&self, task: &str, arm: &str) -> bool {
        self.arm == arm && self.tasks().any(|name| name == task)
    }

    /// Whether this scale can test it.
    pub fn applies_at(&self, scale: &Scale) -> bool {
        self.scales.as_ref().is_none_or(|scales| scales.contains(scale))
    }

    /// Puts the margin in the place of the bound that `no_worse` leaves open.
    ///
    /// # Errors
    /// When there is no margin for what is measured, or a bound of another size beside it.
    pub(super) fn fill_in(&mut self, margins: &BTreeMap<Measure, Margin>) -> Result<()> {
        if !self.no_worse {
            return Ok(());
        }
        let key = self.measure.words();
        let margin = margins.get(&self.measure);
        let size = margin.with_context(|| format!("`no_worse` needs a margin for {key}"))?.size;
        ensure!(
            self.compare == Compare::Difference,
            "`no_worse` goes with compare = \"difference\""
        );
        ensure!(
            self.measure != Measure::Gauge,
            "`no_worse` does not know which way a gauge is better: write at_least or at_most"
        );
        let more_is_better = self.measure.is_fraction() || self.measure == Measure::Reduction;
        let bounds = if more_is_better { [Some(-size), None] } else { [None, Some(size)] };
        let given = [self.at_least, self.at_most];
        ensure!(
            given == [None; 2] || given == bounds,
            "`no_worse` stands for the bound: leave at_least and at_most out"
        );
        [self.at_least, self.at_most] = bounds;
        Ok(())
    }

    /// Checks what no type can express, for an experiment of these tasks, arms and links.
    ///
    /// # Errors
    /// Names the key and what to write instead.
    pub(super) fn validate(
        &self,
        tasks: &[String],
        arms: &[String],
        links: &[String],
    ) -> Result<()> {
        for task in self.tasks() {
            ensure!(tasks.contains(task), "there is no task {task:?}");
        }
        ensure!(
            self.task.is_some() == self.best_of.is_empty(),
            "`task` must name the task that it is tested on, or else `best_of` several"
        );
        ensure!(
            self.best_of.is_empty() || (self.at_least.is_some() && self.at_most.is_none()),
            "`best_of` goes with at_least alone: the best task is the one with the largest number"
        );
        let mut others = self.best_of.iter().enumerate();
        ensure!(
            others.all(|(place, task)| !self.best_of[..place].contains(task)),
            "`best_of` names a task twice"
        );
        ensure!(
            self.against.as_ref() != Some(&self.arm),
            "`against` names the arm itself: write another one"
        );
        for arm in [Some(&self.arm), self.against.as_ref()].into_iter().flatten() {
            ensure!(arms.contains(arm), "there is no arm {arm:?}");
        }
        ensure!(
            match &self.link {
                Some(link) => links.contains(link) || (link == INFINITE && !links.is_empty()),
                None => !self.measure.needs_link() || !links.is_empty(),
            },
            "`link` must be one of the experiment's `links`: {}, or {INFINITE:?}",
            links.join(", ")
        );
        ensure!(
            (self.measure == Measure::Gauge) == self.gauge.is_some(),
            "`gauge` goes with measure = \"gauge\""
        );
        ensure!(
            !self.measure.is_to_loss() || self.against.is_some(),
            "`against` must name an arm: seconds and steps are counted to the training loss that both end \
             below"
        );
        ensure!(
            (self.compare == Compare::Value) == self.against.is_none() || self.measure.is_to_loss(),
            "`compare` and `against` go together"
        );
        ensure!(
            self.charged_bits.is_none_or(|bits| bits > 0.0 && bits <= 32.0)
                && (self.charged_bits.is_none() || self.measure == Measure::SecondsToLoss),
            "`charged_bits` goes with measure = \"seconds-to-loss\": bits of a parameter, above 0, at most 32"
        );
        ensure!(
            self.at_least.is_some() || self.at_most.is_some(),
            "at_least or at_most must define what counts as reproduced"
        );
        self.validate_numbers()
    }

    /// Whether the unit can be that of the number, and its bounds can be reached by it.
    fn validate_numbers(&self) -> Result<()> {
        let Self { measure, compare, unit, .. } = self;
        let is_fraction = measure.is_fraction();
        let is_factor = matches!(compare, Compare::SpeedUp | Compare::Ratio);
        let fits = match unit {
            Unit::Points => is_fraction && *compare == Compare::Difference,
            Unit::Percent => *compare != Compare::Difference,
            Unit::Factor => is_factor || *measure == Measure::Reduction,
            Unit::Number => true,
        };
        ensure!(
            fits,
            "`unit` does not go with `measure` and `compare`: points are for a difference of accuracies, \
             percent for fractions and savings, factor for speed-ups and ratios"
        );
        // The least and the most that the number can be, and how far its bounds may be.
        let [least, most] = match (compare, is_fraction) {
            (Compare::Difference, true) => [-1.0, 1.0],
            (Compare::Value, true) => [0.0, 1.0],
            (Compare::Saving, _) => [f64::NEG_INFINITY, 1.0],
            (Compare::Difference, false) => [f64::NEG_INFINITY, f64::INFINITY],
            (Compare::Value | Compare::SpeedUp | Compare::Ratio, _) => [0.0, f64::INFINITY],
        };
        let numbers =
            [("claimed", self.claimed), ("at_least", self.at_least), ("at_most", self.at_most)];
        for (key, number) in numbers {
            let Some(number) = number else { continue };
            let hint = match unit {
                Unit::Points => "; it is a fraction: one point is 0.01",
                Unit::Percent => "; it is a fraction: one percent is 0.01",
                _ => "",
            };
            ensure!(
                least < number && number < most,
                "{key} = {number} must lie between {least} and {most}{hint}"
            );
        }
        if let (Some(least), Some(most)) = (self.at_least, self.at_most) {
            ensure!(least < most, "at_least = {least} is not less than at_most = {most}");
        }
        Ok(())
    }
}

const SECONDS: &[&str] = &["s", "second", "seconds"];

/// What is measured of a run.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// Fraction of right answers on the test set after the last step.
    #[default]
    Accuracy,
    /// The best of all evaluations.
    BestAccuracy,
    /// Training loss, the mean over the last tenth of the run.
    Loss,
    /// The test loss at the end: what a model that continues a text is judged by.
    TestLoss,
    /// Bits one rank sent for each parameter and step.
    BitsPerParameter,
    /// How many times fewer bytes than dense were sent.
    Reduction,
    /// Median seconds of a step on the link.
    StepSeconds,
    /// Seconds on the link to the training loss that both end below.
    SecondsToLoss,
    /// Steps to the training loss that both end below.
    StepsToLoss,
    /// Seconds of encoding the last gradient of the arm's own runs: both schemes in turns, one thread,
    /// medians.
    EncodeSeconds,
    /// The same of decoding one message and adding it up.
    DecodeSeconds,
    /// Mean of a gauge over the recorded steps.
    Gauge,
    /// Bytes that a step sent back to all ranks together.
    DownlinkBytes,
}

impl Measure {
    /// Every measure with its name in questions, none where it cannot be asked for, what it is in words, and the
    /// words of its unit.
    pub(super) const ALL: [(Self, &str, &str, &[&str]); 13] = [
        (Self::Accuracy, "accuracy", "test accuracy", &[]),
        (Self::BestAccuracy, "best accuracy", "best test accuracy", &[]),
        (Self::Loss, "loss", "final training loss", &[]),
        (Self::TestLoss, "test loss", "test loss", &[]),
        (Self::BitsPerParameter, "bits per parameter", "bits per parameter", &["bit", "bits"]),
        (Self::Reduction, "reduction", "reduction of bytes", &[]),
        (Self::StepSeconds, "step seconds", "seconds per step", SECONDS),
        (Self::SecondsToLoss, "seconds to loss", "seconds to the same training loss", SECONDS),
        (Self::StepsToLoss, "steps to loss", "steps to the same training loss", &["step", "steps"]),
        (Self::EncodeSeconds, "encode seconds", "seconds of encoding its last gradient", SECONDS),
        (Self::DecodeSeconds, "decode seconds", "seconds of decoding its last gradient", SECONDS),
        (Self::Gauge, "", "mean over the recorded steps", &[]),
        (Self::DownlinkBytes, "downlink bytes", "bytes sent back per step", &["byte", "bytes"]),
    ];

    /// In words.
    pub fn words(self) -> &'static str {
        Self::ALL.iter().find(|(of, ..)| *of == self).map_or("", |(_, _, words, _)| words)
    }

    /// Whether it is a time.
    pub fn is_seconds(self) -> bool {
        self.needs_link() || self.is_timed()
    }

    /// Whether schemes are timed for it on a gradient that the arm's runs recorded.
    pub fn is_timed(self) -> bool {
        matches!(self, Self::EncodeSeconds | Self::DecodeSeconds)
    }

    /// Whether it is counted to a loss that both runs reach.
    pub fn is_to_loss(self) -> bool {
        matches!(self, Self::SecondsToLoss | Self::StepsToLoss)
    }

    /// Whether it tells how well or how fast a run learned, rather than what its steps cost.
    pub fn is_of_learning(self) -> bool {
        self.is_to_loss() || self.is_fraction() || matches!(self, Self::Loss | Self::TestLoss)
    }

    /// Whether it is a fraction of right answers.
    pub fn is_fraction(self) -> bool {
        matches!(self, Self::Accuracy | Self::BestAccuracy)
    }

    /// Whether the two numbers of a seed are a pair whatever else their runs have in common: seconds to
    /// a loss that both runs reach, schemes on one gradient.
    pub fn is_measured_in_pairs(self) -> bool {
        self.is_to_loss() || self.is_timed()
    }

    /// Whether it is a time on a link.
    pub fn needs_link(self) -> bool {
        matches!(self, Self::StepSeconds | Self::SecondsToLoss)
    }
}

/// How an arm is compared with the one that it stands against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Compare {
    /// Not at all: the measured number itself.
    #[default]
    Value,
    /// Its number minus the other's.
    Difference,
    /// The other's number over its own: how many times as fast.
    SpeedUp,
    /// Its number over the other's.
    Ratio,
    /// What part of the other's number it saves.
    Saving,
}

impl Compare {
    /// In words, between the measure and the arm it is compared with.
    pub fn words(self) -> &'static str {
        match self {
            Self::Value => "",
            Self::Difference => "minus that of",
            Self::SpeedUp => "how many times as fast as",
            Self::Ratio => "over that of",
            Self::Saving => "saved against",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A claim on several tasks asks for the largest number. Without a second arm there is no loss to
    /// count the seconds to, and no run would measure it.
    #[test]
    fn claims_that_nothing_can_test_are_refused() {
        let refused = |rest: &str| {
            let claim: Claim = toml::from_str(&format!("claim = 'c'\narm = 'a'\n{rest}")).unwrap();
            let [tasks, arms, links] = [&["t", "u"][..], &["a", "b"], &["1gbit"]]
                .map(|names| names.iter().map(ToString::to_string).collect::<Vec<_>>());
            claim.validate(&tasks, &arms, &links).err().map(|error| error.to_string())
        };
        let (both, loss) = ("best_of = ['t', 'u']", "task = 't'\nlink = '1gbit'\nat_most = 60.0");
        for (measure, rest, more, part) in [
            ("accuracy", both, "at_least = 0.5", None),
            ("accuracy", both, "at_most = 0.5", Some("at_least alone")),
            ("accuracy", both, "at_least = 0.1\nat_most = 0.5", Some("at_least alone")),
            ("accuracy", "best_of = ['t', 'v']", "at_least = 0.5", Some("there is no task \"v\"")),
            ("accuracy", "best_of = ['t', 't']", "at_least = 0.5", Some("twice")),
            (
                "accuracy",
                "task = 't'\nbest_of = ['u']",
                "at_least = 0.5",
                Some("or else `best_of`"),
            ),
            ("accuracy", "", "at_least = 0.5", Some("`task` must name")),
            ("seconds-to-loss", loss, "", Some("`against` must name an arm")),
            ("seconds-to-loss", loss, "compare = 'difference'", Some("`against` must name an arm")),
            ("seconds-to-loss", loss, "against = 'b'", None),
            ("seconds-to-loss", loss, "against = 'b'\ncompare = 'difference'", None),
        ] {
            let error = refused(&format!("measure = '{measure}'\n{rest}\n{more}"));
            let expected = part.is_none_or(|part| error.as_ref().is_some_and(|e| e.contains(part)));
            assert!(expected && part.is_some() == error.is_some(), "{rest}, {more}: {error:?}");
        }
    }
}
