//! What workers report to the launching thread.

use crate::checkpoint::{Part, Score};
use crate::record::{Histograms, Phases};
use anyhow::{Result, ensure};
use gradwire_exchange::Traffic;
use gradwire_models::kernels::profile::Profile;
use serde::{Deserialize, Serialize};

/// What a worker reports. What only rank 0 reports is never sent to another process, and comes last, so that the others
/// are numbered alike where they are written and read.
#[derive(Serialize, Deserialize)]
pub enum Report {
    /// It has taken a step.
    Step(Box<RankStep>),
    /// Something that does not stop the run, and of which step.
    Warning(Option<u64>, String),
    /// A rank's part of a checkpoint, after everything else that it reports of the step.
    Part(Box<Part>),
    /// Distributions on this rank.
    #[serde(skip)]
    Histograms(Histograms),
    /// All ranks have finished an epoch; rank 0 reports it.
    #[serde(skip)]
    Epoch(EndOfEpoch),
}

/// One rank's part in a step.
#[derive(Default, Serialize, Deserialize)]
pub struct RankStep {
    /// The rank.
    pub rank: usize,
    /// The step, 1-based.
    pub step: u64,
    /// The epoch, 1-based.
    pub epoch: u64,
    /// What came of the rank's samples.
    pub score: Score,
    /// The learning rate.
    pub learning_rate: f64,
    /// From the step's beginning to its end.
    pub seconds: f64,
    /// Where they went.
    pub phases: Phases,
    /// What this worker computed in each phase but those of the exchange ([`own`](crate::train::timer::StepTimer::own)).
    pub own: Phases,
    /// How much of the backward pass was over when the gradient of each group of buckets was
    /// final, 0 to 1, in the order of the traffic's legs; empty when the exchange followed it.
    pub ready: Vec<f64>,
    /// With overlap, of each group: the seconds that the exchanging thread computed to lay the group's
    /// gradient into the flat one; empty without.
    pub laid: Vec<f64>,
    /// What the model's kernels did meanwhile; not sent to other processes.
    #[serde(skip)]
    pub profile: Profile,
    /// What crossed the wire.
    pub traffic: Traffic,
    /// Seconds of the exchange that the backward pass did not hide.
    pub exposed: f64,
    /// Euclidean norm of the mean gradient before clipping.
    pub gradient_norm: f64,
}

impl RankStep {
    /// Refuses numbers that no step comes to and no record can hold: another process may send any.
    ///
    /// # Errors
    /// With the rank and the step.
    pub fn check(&self) -> Result<()> {
        const LARGEST: f64 = 1e60;
        const MOST: u64 = 1 << 48;
        let Self { rank, step, score, traffic, .. } = self;
        let sizes = [self.learning_rate, self.seconds, self.exposed, score.loss];
        let mut numbers = sizes.into_iter().chain(self.phases.seconds());
        let bytes = [traffic.wire_bytes, traffic.downlink_bytes, traffic.local_bytes];
        let counts = [*step, score.correct, score.samples, score.top5.unwrap_or(0)];
        let mut counts = counts.iter().chain(&bytes).chain(traffic.rules.iter().flatten());
        ensure!(
            numbers.all(|number| number.abs() < LARGEST) && counts.all(|count| *count < MOST),
            "worker {rank} reports of step {step} what no step comes to"
        );
        Ok(())
    }
}

/// The end of an epoch.
pub struct EndOfEpoch {
    /// The epoch, 1-based.
    pub epoch: u64,
    /// Its last step.
    pub step: u64,
    /// The test set's score over all ranks, if this epoch was evaluated.
    pub test: Option<Score>,
    /// Seconds that the evaluation took.
    pub evaluation_seconds: f64,
}
