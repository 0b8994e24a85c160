//! A whole run in figures.

use super::number;
use serde::{Deserialize, Serialize};

/// A run in figures, added up from its events.
///
/// A run continued from a checkpoint goes on with the summary that was saved there: it covers the
/// whole run, without what was done and lost after the checkpoint and without the pause.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The last step taken.
    pub step: u64,
    /// Steps taken.
    pub steps: u64,
    /// Epochs completed.
    pub epochs: u64,
    /// What a sample is, in the plural.
    pub unit: String,
    /// Number of workers.
    pub workers: usize,
    /// Samples trained on, over all ranks.
    pub samples: u64,
    /// Seconds from [`Kind::Started`](super::Kind::Started) to the end of the last step or evaluation.
    pub seconds: f64,
    /// Seconds within steps.
    pub step_seconds: f64,
    /// Seconds of evaluation.
    pub evaluation_seconds: f64,
    /// Seconds of the steps by phase.
    pub phases: Phases,
    /// Bytes sent by all ranks.
    pub wire_bytes: u64,
    /// Bytes all ranks would have sent as dense fp32.
    pub dense_bytes: u64,
    /// Bits one rank sent for each parameter and step, on average: 32 times the compression ratio.
    pub bits_per_parameter: f64,
    /// What of it is of the parameters of each of the policy's rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RuleTraffic>,
    /// The last epoch's mean training loss.
    #[serde(with = "number::option", default, skip_serializing_if = "Option::is_none")]
    pub train_loss: Option<f64>,
    /// The last evaluation's loss.
    #[serde(with = "number::option", default, skip_serializing_if = "Option::is_none")]
    pub test_loss: Option<f64>,
    /// The last evaluation's fraction of right answers.
    #[serde(with = "number::option", default, skip_serializing_if = "Option::is_none")]
    pub test_accuracy: Option<f64>,
    /// The last evaluation's fraction of labels among the five likeliest classes, where there are more than five.
    #[serde(with = "number::option", default, skip_serializing_if = "Option::is_none")]
    pub test_top5_accuracy: Option<f64>,
    /// The last evaluation's bits for each byte of a text that is continued.
    #[serde(with = "number::option", default, skip_serializing_if = "Option::is_none")]
    pub bits_per_byte: Option<f64>,
    /// The fewest bits for each byte of a text that is continued.
    #[serde(with = "number::option", default, skip_serializing_if = "Option::is_none")]
    pub best_bits_per_byte: Option<f64>,
    /// The most right answers of an evaluation, as a fraction.
    #[serde(with = "number::option", default, skip_serializing_if = "Option::is_none")]
    pub best_accuracy: Option<f64>,
    /// The first epoch that reached it; of a text the one with fewest bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_epoch: Option<u64>,
    /// Warnings given.
    pub warnings: u64,
    /// Checkpoints written.
    #[serde(default)]
    pub checkpoints: u64,
    /// Seconds that they held training up.
    #[serde(default)]
    pub checkpoint_stall_seconds: f64,
    /// When the run started, in seconds since the Unix epoch; of a continued run, when it would
    /// have without the pause.
    pub started: f64,
}

/// What was sent of the parameters of a rule of the policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RuleTraffic {
    /// The rule's pattern of names.
    #[serde(rename = "match")]
    pub pattern: String,
    /// Bits that one rank sent for each of them and step.
    pub bits_per_parameter: f64,
    /// Bytes that all ranks have sent since the run began, headers included.
    pub wire_bytes: u64,
    /// Bytes that they would have sent as dense fp32.
    pub dense_bytes: u64,
}

impl RuleTraffic {
    /// Of bytes `[sent, as dense]` the bits, and such bytes since the run began.
    #[must_use]
    pub fn new(pattern: &str, [sent, dense]: [u64; 2], total: [u64; 2]) -> Self {
        Self {
            pattern: pattern.into(),
            bits_per_parameter: if dense > 0 { 32.0 * sent as f64 / dense as f64 } else { 0.0 },
            wire_bytes: total[0],
            dense_bytes: total[1],
        }
    }
}

/// Seconds spent in each phase of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phases {
    /// Waiting for the next batch.
    pub data: f64,
    /// Forward pass and loss.
    pub forward: f64,
    /// Backward pass.
    pub backward: f64,
    /// Compressing the gradient. Of this and the next two what the backward pass did not hide.
    pub encode: f64,
    /// Waiting for the messages of the other ranks.
    pub wait: f64,
    /// Decoding and summing the messages.
    pub decode: f64,
    /// Clipping and updating the weights.
    pub optimizer: f64,
}

impl From<[f64; 7]> for Phases {
    /// Seconds in the order of [`Phases::NAMES`].
    fn from(seconds: [f64; 7]) -> Self {
        let [data, forward, backward, encode, wait, decode, optimizer] = seconds;
        Self { data, forward, backward, encode, wait, decode, optimizer }
    }
}

impl Phases {
    /// Names, in the order of the step; [`Phases::seconds`] follows the same order.
    pub const NAMES: [&'static str; 7] =
        ["data", "forward", "backward", "encode", "wait", "decode", "optimizer"];

    /// The seconds, in the order of [`Phases::NAMES`].
    pub fn seconds(&self) -> [f64; 7] {
        let Self { data, forward, backward, encode, wait, decode, optimizer } = *self;
        [data, forward, backward, encode, wait, decode, optimizer]
    }

    /// The phases with their names.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, f64)> {
        Self::NAMES.into_iter().zip(self.seconds())
    }

    /// The seconds of a rank where these are of `n` ranks together.
    #[must_use]
    pub fn over(&self, n: f64) -> Self {
        Self::from(self.seconds().map(|seconds| seconds / n))
    }

    /// The seconds of `factor` such steps.
    #[must_use]
    pub fn times(&self, factor: f64) -> Self {
        Self::from(self.seconds().map(|seconds| factor * seconds))
    }

    /// Adds another step's seconds.
    pub fn add(&mut self, other: &Self) {
        let (own, other) = (self.seconds(), other.seconds());
        *self = Self::from(std::array::from_fn(|phase| own[phase] + other[phase]));
    }
}

impl Summary {
    /// Training samples per second of step time, all ranks together; 0 before the first step.
    pub fn samples_per_second(&self) -> f64 {
        if self.step_seconds > 0.0 { self.samples as f64 / self.step_seconds } else { 0.0 }
    }

    /// Wire bytes over dense bytes; absent where nothing would have been sent at all.
    pub fn compression_ratio(&self) -> Option<f64> {
        (self.dense_bytes > 0).then(|| self.wire_bytes as f64 / self.dense_bytes as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::{Epoch, Event, Started, Step};
    use super::*;

    fn at(time: f64, what: impl Into<Event>) -> Event {
        Event { time, ..what.into() }
    }

    #[test]
    fn steps_add_up() {
        let mut summary = Summary::default();
        assert_eq!((summary.samples_per_second(), summary.compression_ratio()), (0.0, None));
        summary.observe(&at(
            100.0,
            Started { workers: 3, unit: "texts".into(), ..Started::default() },
        ));
        // Of a run that records every other step.
        for step in [2, 4] {
            summary.observe(&at(
                100.0 + step as f64,
                Step {
                    step,
                    samples: 30,
                    seconds: 0.5,
                    phases: Phases { forward: 0.25, wait: 0.125, ..Phases::default() },
                    wire_bytes: 1000.0 + 1.0 / 3.0,
                    wire_bytes_total: 3001 * step,
                    dense_bytes: 4000,
                    ..Step::default()
                },
            ));
        }
        assert_eq!((summary.step, summary.steps, summary.samples), (4, 4, 120));
        assert_eq!((summary.seconds, summary.step_seconds), (4.0, 2.0));
        assert_eq!(summary.samples_per_second(), 60.0);
        assert_eq!((summary.phases.forward, summary.phases.wait), (1.0, 0.5));
        assert_eq!((summary.wire_bytes, summary.dense_bytes), (4 * 3001, 4 * 12_000));
        assert_eq!(summary.bits_per_parameter, 32.0 * 3001.0 / 12_000.0);
    }

    #[test]
    fn a_run_that_goes_on_is_one_run() {
        let step = |step| Step { step, samples: 30, seconds: 0.5, ..Step::default() };
        let begin = Started { workers: 3, ..Started::default() };
        let mut summary = Summary::default();
        summary.observe(&at(100.0, begin.clone()));
        summary.observe(&at(104.0, step(1)));
        // Saved here; an hour passes.
        summary.observe(&at(3700.0, Started { first_step: 2, ..begin }));
        summary.observe(&at(3703.0, step(2)));
        assert_eq!((summary.steps, summary.samples, summary.seconds), (2, 60, 7.0));
    }

    #[test]
    fn the_best_epoch_is_the_first_that_reached_it() {
        let mut summary = Summary::default();
        for (epoch, test_accuracy) in
            (1..).zip([Some(0.5), Some(0.75), None, Some(0.75), Some(0.6)])
        {
            summary.observe(&at(1.0, Epoch { epoch, test_accuracy, ..Epoch::default() }));
        }
        assert_eq!(summary.epochs, 5);
        assert_eq!((summary.best_accuracy, summary.best_epoch), (Some(0.75), Some(2)));
        assert_eq!(summary.test_accuracy, Some(0.6));

        let mut text = Summary::default();
        let evaluations = [(2.5, 0.3), (2.25, 0.4), (2.5, 0.5)];
        for (epoch, (bits, accuracy)) in (1..).zip(evaluations) {
            let (test_accuracy, bits_per_byte) = (Some(accuracy), Some(bits));
            text.observe(&at(
                1.0,
                Epoch { epoch, test_accuracy, bits_per_byte, ..Epoch::default() },
            ));
        }
        assert_eq!((text.best_bits_per_byte, text.best_epoch), (Some(2.25), Some(2)));
    }
}
