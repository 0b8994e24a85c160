//! What happens during a run, as data.
//!
//! Workers send [`Event`]s up a channel; the launching thread hands each one to the
//! [`Record`](super::Record) and to the [`Console`](super::Console). One event is one line of
//! `metrics.jsonl`:
//!
//! ```json
//! {"time":1795237473.25,"event":"step","step":1,"epoch":1,"loss":2.31,…}
//! ```
//!
//! Absent values (`None`) are left out. JSON has no number for what is not finite, so such a value
//! is written as the string `"NaN"`, `"Infinity"` or `"-Infinity"` (protocol buffers' JSON
//! mapping) and read back as what it was.

use super::histogram::Histogram;
use super::number;
use super::summary::{Phases, RuleTraffic, Summary};
use serde::{Deserialize, Serialize};
use std::time::{SystemTime, UNIX_EPOCH};

/// Something that happened, and when.
///
/// Made from any of the kinds with the present time: `Event::from(Step { … })`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Seconds since the Unix epoch, UTC.
    pub time: f64,
    /// What happened.
    #[serde(flatten)]
    pub kind: Kind,
}

/// What happened. In JSON the name is the value of `event`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Kind {
    /// The run is ready to take its first step.
    Started(Started),
    /// One update of the weights.
    Step(Step),
    /// One pass over the training set, and the evaluation after it.
    Epoch(Epoch),
    /// Distributions of gradients and residuals.
    Histograms(Histograms),
    /// Everything the next step depends on has been written down.
    Checkpoint(Checkpoint),
    /// A text worth keeping beside the curves.
    Text(Text),
    /// Something the person should know; the run goes on.
    Warning(Warning),
    /// The run came to its planned end.
    Finished(Finished),
    /// The run was stopped by an error.
    Failed(Failed),
}

/// What is about to be trained.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Started {
    /// Name of the recipe.
    pub recipe: String,
    /// The run's folder, as the person would type it.
    pub folder: String,
    /// Model, in words: `resnet20`.
    pub model: String,
    /// Data set, in words: `cifar10`.
    pub dataset: String,
    /// Exchange scheme, in words: `topk 1 %`.
    pub scheme: String,
    /// Number of workers (world size).
    pub workers: usize,
    /// Compute threads of each worker.
    pub threads: usize,
    /// Trainable parameters of one replica.
    pub parameters: u64,
    /// What a sample is, in the plural: `images`, `texts`; `tokens` of a text that is continued, each a
    /// prediction.
    pub unit: String,
    /// Samples in the training set.
    pub train_samples: u64,
    /// Samples in the test set.
    pub test_samples: u64,
    /// Whether the test set's place is taken by training samples that are held out: then every `test_…` of the record is
    /// about them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub held_out: bool,
    /// Samples of one step over all ranks.
    pub batch: u64,
    /// Epochs the run will end after.
    pub epochs: u64,
    /// Steps of one epoch.
    pub steps_per_epoch: u64,
    /// Steps the run will end after; the last epoch may be cut short.
    pub steps: u64,
    /// The first step this process takes: 1, or more when it continues an earlier run.
    pub first_step: u64,
    /// What the run's steps are ahead of those of a run with this batch from its beginning; not 0
    /// only after it has been continued with another.
    #[serde(default)]
    pub steps_ahead: i64,
    /// Bytes that all ranks have sent before that step; nothing was kept of them until December 2026.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wire_bytes_total: Option<u64>,
    /// The rules of the policy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RuleParameters>,
}

/// Parameters that go by a rule of the policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RuleParameters {
    /// The rule's pattern of names.
    #[serde(rename = "match")]
    pub pattern: String,
    /// Their scheme, in words.
    pub scheme: String,
    /// Their names.
    pub names: Vec<String>,
    /// How many elements they have together.
    pub parameters: u64,
}

/// One step: forward, backward, exchange, update.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The step, counted from 1 over the whole run.
    pub step: u64,
    /// The epoch this step belongs to, counted from 1.
    pub epoch: u64,
    /// Mean training loss over the global batch.
    #[serde(with = "number")]
    pub loss: f64,
    /// Fraction of right answers in training since the epoch began, 0 to 1.
    #[serde(with = "number::option", default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// Learning rate of this update.
    #[serde(with = "number")]
    pub learning_rate: f64,
    /// Samples of this step over all ranks.
    pub samples: u64,
    /// Seconds from the start of this step to its end, as the mean over ranks. They do not end a step
    /// at the same moment over a network; one that is late is early in the next, so that the slowest
    /// of each step would add up to more than what passed.
    pub seconds: f64,
    /// Where those seconds went, likewise.
    pub phases: Phases,
    /// Seconds of the exchange, encoding and decoding included (mean over ranks).
    #[serde(default)]
    pub exchange_seconds: f64,
    /// Seconds of it that the backward pass did not hide (mean over ranks): all, without overlap.
    #[serde(default)]
    pub exposed_seconds: f64,
    /// Bytes one rank sent in this step, headers included (mean over ranks).
    pub wire_bytes: f64,
    /// Bytes all ranks together have sent since the run began.
    pub wire_bytes_total: u64,
    /// Where something is sent back: bytes that all ranks together sent in this step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink_bytes: Option<u64>,
    /// Bytes that were sent back, to all ranks together: by a server, which is what it costs it,
    /// or by the ranks that averaged the shards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub downlink_bytes: Option<u64>,
    /// Where ranks speak in groups: bytes that all ranks together sent within their groups, which are not
    /// among the wire bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_bytes: Option<u64>,
    /// Bytes one rank would have sent in this step as dense fp32.
    pub dense_bytes: u64,
    /// Bits one rank sent for each parameter of the model: 32 times the compression ratio.
    pub bits_per_parameter: f64,
    /// Wire bytes over dense bytes: 0.01 is a hundredth of dense. What is sent at the end of a round of local
    /// steps is compared with the dense bytes of all of them.
    pub compression_ratio: f64,
    /// Euclidean norm of the residual the scheme keeps, where it keeps one.
    #[serde(with = "number::option", default, skip_serializing_if = "Option::is_none")]
    pub residual_norm: Option<f64>,
    /// Euclidean norm of the mean gradient, before clipping.
    #[serde(with = "number::option", default, skip_serializing_if = "Option::is_none")]
    pub gradient_norm: Option<f64>,
    /// What the scheme reports about itself, by name.
    #[serde(with = "number::map", default, skip_serializing_if = "Vec::is_empty")]
    pub gauges: Vec<(String, f64)>,
    /// What of the wire bytes is of the parameters of each of the policy's rules; bits are those of this step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RuleTraffic>,
}

/// The end of an epoch. The test values are absent when the epoch was not evaluated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Epoch {
    /// The epoch, counted from 1.
    pub epoch: u64,
    /// The last step of the epoch.
    pub step: u64,
    /// Mean training loss over the epoch's samples.
    #[serde(with = "number")]
    pub train_loss: f64,
    /// Fraction of right answers in training over the epoch, 0 to 1.
    #[serde(with = "number::option", default, skip_serializing_if = "Option::is_none")]
    pub train_accuracy: Option<f64>,
    /// Mean loss over the test set.
    #[serde(with = "number::option", default, skip_serializing_if = "Option::is_none")]
    pub test_loss: Option<f64>,
    /// Fraction of right answers on the test set, 0 to 1.
    #[serde(with = "number::option", default, skip_serializing_if = "Option::is_none")]
    pub test_accuracy: Option<f64>,
    /// Fraction of the test set whose label is among the five likeliest classes, where there are more than five.
    #[serde(with = "number::option", default, skip_serializing_if = "Option::is_none")]
    pub test_top5_accuracy: Option<f64>,
    /// Of a text that is continued: bits of the test loss for each byte of the text, which compares
    /// texts of different tokens. The perplexity is e to the test loss.
    #[serde(with = "number::option", default, skip_serializing_if = "Option::is_none")]
    pub bits_per_byte: Option<f64>,
    /// Seconds of the epoch's steps, evaluation not included.
    pub seconds: f64,
    /// Seconds of the evaluation.
    pub evaluation_seconds: f64,
    /// Training samples per second over the epoch, all ranks together.
    pub samples_per_second: f64,
}

/// Distributions at one step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Histograms {
    /// The step they belong to.
    pub step: u64,
    /// Each with its tag: `gradient/<parameter>`, `residual/<parameter>`.
    pub entries: Vec<Tagged>,
}

/// A distribution and what it is of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tagged {
    /// `gradient/<parameter>` or `residual/<parameter>`.
    pub tag: String,
    /// The distribution.
    #[serde(flatten)]
    pub histogram: Histogram,
}

/// A checkpoint that has been written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The step it follows.
    pub step: u64,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Seconds that the next step was held up, on the slowest rank.
    pub stall_seconds: f64,
    /// Seconds that writing took in the background, until it had reached the disk.
    pub write_seconds: f64,
}

/// A text beside the curves. TensorBoard shows it as Markdown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Text {
    /// The step it belongs to; 0 is before training.
    pub step: u64,
    /// Its name.
    pub tag: String,
    /// The text, in Markdown.
    pub text: String,
}

/// Something the person should know although the run goes on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Warning {
    /// The step, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// What, where, and what to do.
    pub message: String,
}

/// The planned end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    /// The run in figures.
    pub summary: Summary,
    /// The run's folder.
    pub folder: String,
    /// The folder all runs are under: what TensorBoard is pointed at.
    pub out: String,
}

/// An end that was not planned.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Failed {
    /// The error with its causes.
    pub error: String,
    /// Whether a gradient or a loss was no finite number any more: the same recipe would come to
    /// the same end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub diverged: bool,
}

/// The present, in seconds since the Unix epoch, to the microsecond.
pub(super) fn now() -> f64 {
    // A clock set before 1970 is no reason to stop training.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_micros() as f64 / 1e6)
}

impl Summary {
    /// Adds an event. A step stands for those before it that were not recorded.
    pub fn observe(&mut self, event: &Event) {
        match &event.kind {
            Kind::Started(started) => {
                self.started = event.time - self.seconds;
                self.step = started.first_step.saturating_sub(1);
                self.unit.clone_from(&started.unit);
                self.workers = started.workers;
            }
            Kind::Step(step) => {
                let steps = step.step.saturating_sub(self.step);
                let n = steps as f64;
                self.step = step.step;
                self.steps = self.steps.saturating_add(steps);
                self.samples = self.samples.saturating_add(steps.saturating_mul(step.samples));
                self.step_seconds += n * step.seconds;
                self.phases.add(&step.phases.times(n));
                self.wire_bytes = step.wire_bytes_total;
                let dense = steps.saturating_mul(step.dense_bytes);
                let dense = dense.saturating_mul(self.workers as u64);
                self.dense_bytes = self.dense_bytes.saturating_add(dense);
                self.bits_per_parameter = 32.0 * self.compression_ratio().unwrap_or(0.0);
                let whole = |rule: &RuleTraffic| {
                    let total = [rule.wire_bytes, rule.dense_bytes];
                    RuleTraffic::new(&rule.pattern, total, total)
                };
                self.rules = step.rules.iter().map(whole).collect();
            }
            Kind::Epoch(epoch) => {
                // A run that ended within an epoch and goes on tells of it twice.
                self.epochs = self.epochs.max(epoch.epoch);
                self.evaluation_seconds += epoch.evaluation_seconds;
                self.train_loss = Some(epoch.train_loss);
                self.test_loss = epoch.test_loss.or(self.test_loss);
                self.test_accuracy = epoch.test_accuracy.or(self.test_accuracy);
                self.test_top5_accuracy = epoch.test_top5_accuracy.or(self.test_top5_accuracy);
                self.bits_per_byte = epoch.bits_per_byte.or(self.bits_per_byte);
                // `None` is less than any number.
                let accurate = epoch.test_accuracy > self.best_accuracy;
                if accurate {
                    self.best_accuracy = epoch.test_accuracy;
                }
                let bits = epoch.bits_per_byte;
                let shorter = bits.map(|bits| -bits) > self.best_bits_per_byte.map(|bits| -bits);
                if shorter {
                    self.best_bits_per_byte = bits;
                }
                let better = if bits.is_some() { shorter } else { accurate };
                if better {
                    self.best_epoch = Some(epoch.epoch);
                }
            }
            Kind::Checkpoint(checkpoint) => {
                self.checkpoints += 1;
                self.checkpoint_stall_seconds += checkpoint.stall_seconds;
            }
            Kind::Warning(_) => self.warnings += 1,
            Kind::Histograms(_) | Kind::Text(_) | Kind::Finished(_) | Kind::Failed(_) => {}
        }
        if matches!(event.kind, Kind::Step(_) | Kind::Epoch(_)) {
            self.seconds = (event.time - self.started).max(self.seconds);
        }
    }
}

macro_rules! kinds {
    ($($kind:ident),*) => {$(
        impl From<$kind> for Event {
            fn from(what: $kind) -> Self {
                Self { time: now(), kind: Kind::$kind(what) }
            }
        }
    )*};
}

kinds!(Started, Step, Epoch, Histograms, Checkpoint, Text, Warning, Finished, Failed);

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(event: &Event) -> Event {
        let line = serde_json::to_string(event).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    #[test]
    fn a_step_is_one_flat_object() {
        let event = Event {
            time: 12.5,
            kind: Kind::Step(Step {
                step: 3,
                loss: 0.5,
                gauges: vec![("kept".into(), 0.01)],
                ..Step::default()
            }),
        };
        let line = serde_json::to_string(&event).unwrap();
        assert!(line.starts_with(r#"{"time":12.5,"event":"step","step":3,"#), "{line}");
        assert!(line.ends_with(r#""gauges":{"kept":0.01}}"#), "{line}");
        assert!(!line.contains("residual_norm"), "absent values are left out: {line}");
        assert_eq!(round_trip(&event), event);
    }

    #[test]
    fn what_is_not_finite_keeps_its_meaning() {
        let event = Event::from(Step {
            loss: f64::NEG_INFINITY,
            residual_norm: Some(f64::INFINITY),
            gauges: vec![("a".into(), f64::INFINITY), ("b".into(), 1.0)],
            ..Step::default()
        });
        let line = serde_json::to_string(&event).unwrap();
        assert!(line.contains(r#""loss":"-Infinity""#), "{line}");
        assert_eq!(round_trip(&event), event);

        let event = Event::from(Step { loss: f64::NAN, ..Step::default() });
        let Kind::Step(step) = round_trip(&event).kind else { panic!("another kind") };
        assert!(step.loss.is_nan());
    }
}
