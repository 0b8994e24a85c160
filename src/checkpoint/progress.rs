//! How far a run has come, and the sums that its record goes on with.

use serde::{Deserialize, Serialize};

/// How far a run has come.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Steps taken.
    pub step: u64,
    /// The epoch to go on with, 1-based.
    pub epoch: u64,
    /// Samples of it that have been used, over all ranks.
    pub position: u64,
    /// What the run goes by to its end; nothing where none has begun.
    #[serde(default)]
    pub planned: Option<Planned>,
}

/// What a run goes by to its end, whatever batch it goes on with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Planned {
    /// The steps of the run's own after which the learning rate has warmed up.
    pub warmup: f64,
    /// Exchanges of the whole run, by which schemes spread their bits.
    pub exchanges: u64,
}

impl Progress {
    /// Nothing done yet.
    pub const START: Self = Self { step: 0, epoch: 1, position: 0, planned: None };
}

impl Default for Progress {
    fn default() -> Self {
        Self::START
    }
}

/// What came of some samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// Sum of the samples' losses.
    pub loss: f64,
    /// Samples whose largest logit is that of their label.
    pub correct: u64,
    /// Samples the logit of whose label is among the five largest; absent where it was not looked at.
    #[serde(default)]
    pub top5: Option<u64>,
    /// Samples.
    pub samples: u64,
}

impl Score {
    /// Adds other samples.
    pub fn add(&mut self, other: &Self) {
        self.loss += other.loss;
        self.correct += other.correct;
        self.top5 = [self.top5, other.top5].into_iter().flatten().reduce(|one, other| one + other);
        self.samples += other.samples;
    }

    /// Mean loss over the samples.
    pub fn mean_loss(&self) -> f64 {
        self.loss / self.samples as f64
    }

    /// Share of right answers, 0 to 1.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.samples as f64
    }

    /// Share of samples whose label is among the five likeliest classes, 0 to 1.
    pub fn top5_accuracy(&self) -> Option<f64> {
        self.top5.map(|top5| top5 as f64 / self.samples as f64)
    }
}

/// What a run's record adds up over steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sums {
    /// The running epoch's training samples so far.
    pub train: Score,
    /// The seconds of its steps.
    pub seconds: f64,
    /// Bytes that all ranks have sent since the run began.
    pub wire_bytes_total: u64,
    /// Of each of the policy's rules, what its parameters have of these, and what they would as dense fp32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<[u64; 2]>,
}
