//! A whole run in figures.

use serde::{Deserialize, Serialize};

use super::event::{Event, Kind, Phases};
use super::number;

/// A run in figures, added up from its events.
///
/// It covers what this process did: a run continued from a checkpoint is summed from there.
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
    /// Seconds from [`Kind::Started`] to the last event: steps, evaluations and what lies between.
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
    /// Bits one rank sent for each parameter and step, on average.
    pub bits_per_parameter: f64,
    /// The last epoch's mean training loss.
    #[serde(with = "number::option", default, skip_serializing_if = "Option::is_none")]
    pub train_loss: Option<f64>,
    /// The last evaluation's loss.
    #[serde(with = "number::option", default, skip_serializing_if = "Option::is_none")]
    pub test_loss: Option<f64>,
    /// The last evaluation's fraction of right answers.
    #[serde(with = "number::option", default, skip_serializing_if = "Option::is_none")]
    pub test_accuracy: Option<f64>,
    /// The best evaluation's fraction of right answers.
    #[serde(with = "number::option", default, skip_serializing_if = "Option::is_none")]
    pub best_accuracy: Option<f64>,
    /// The first epoch that reached it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_epoch: Option<u64>,
    /// Warnings given.
    pub warnings: u64,
    /// When the run started, in seconds since the Unix epoch.
    pub started: f64,
}

impl Summary {
    /// Adds an event.
    pub fn observe(&mut self, event: &Event) {
        match &event.kind {
            Kind::Started(started) => {
                self.started = event.time;
                self.unit.clone_from(&started.unit);
                self.workers = started.workers;
            }
            Kind::Step(step) => {
                self.step = step.step;
                self.steps += 1;
                self.samples += step.samples;
                self.step_seconds += step.seconds;
                self.phases.add(&step.phases);
                self.wire_bytes += (step.wire_bytes * self.workers as f64).round() as u64;
                self.dense_bytes += step.dense_bytes * self.workers as u64;
                self.bits_per_parameter = 32.0 * self.compression_ratio().unwrap_or(0.0);
            }
            Kind::Epoch(epoch) => {
                self.epochs += 1;
                self.evaluation_seconds += epoch.evaluation_seconds;
                self.train_loss = Some(epoch.train_loss);
                self.test_loss = epoch.test_loss.or(self.test_loss);
                self.test_accuracy = epoch.test_accuracy.or(self.test_accuracy);
                if epoch
                    .test_accuracy
                    .is_some_and(|now| self.best_accuracy.is_none_or(|best| now > best))
                {
                    self.best_accuracy = epoch.test_accuracy;
                    self.best_epoch = Some(epoch.epoch);
                }
            }
            Kind::Warning(_) => self.warnings += 1,
            Kind::Histograms(_) | Kind::Text(_) | Kind::Finished(_) | Kind::Failed(_) => {}
        }
        if self.started > 0.0 {
            self.seconds = (event.time - self.started).max(self.seconds);
        }
    }

    /// Training samples per second of step time, all ranks together; 0 before the first step.
    #[must_use]
    pub fn samples_per_second(&self) -> f64 {
        if self.step_seconds > 0.0 { self.samples as f64 / self.step_seconds } else { 0.0 }
    }

    /// Wire bytes over dense bytes; absent where nothing would have been sent at all.
    #[must_use]
    pub fn compression_ratio(&self) -> Option<f64> {
        (self.dense_bytes > 0).then(|| self.wire_bytes as f64 / self.dense_bytes as f64)
    }
}
