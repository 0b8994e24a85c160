//! Where each worker is: told by itself, read by whoever watches over the run.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a worker is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// It has begun the step, or has not begun any.
    Start,
    /// It waits for its batch.
    Data,
    /// The forward pass.
    Forward,
    /// The backward pass.
    Backward,
    /// The backward pass, and the exchange beside it.
    OverlappedExchange,
    /// The exchange.
    Exchange,
    /// The update of the weights.
    Optimizer,
    /// It compares replicas with the others, or evens out what differs.
    Replicas,
    /// It evaluates on the test set.
    Evaluation,
    /// It saves the best or the last model.
    SavingModel,
    /// It waits until an earlier checkpoint is written.
    WaitingForWriter,
    /// It copies its state for a checkpoint.
    CopyingState,
    /// It writes a gradient down.
    RecordingGradient,
    /// It is in another process, which has not told of it since the step before.
    Unheard,
}

impl Phase {
    /// Whether the worker waits for others in an exchange, overlapped or not.
    pub fn is_exchange(self) -> bool {
        matches!(self, Self::Exchange | Self::OverlappedExchange)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Start => "start",
            Self::Data => "data",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::OverlappedExchange => "backward and exchange",
            Self::Exchange => "exchange",
            Self::Optimizer => "optimizer",
            Self::Replicas => "replicas",
            Self::Evaluation => "evaluation",
            Self::SavingModel => "saving the model",
            Self::WaitingForWriter => "waiting for the last checkpoint to be written",
            Self::CopyingState => "copying the state for a checkpoint",
            Self::RecordingGradient => "recording a gradient",
            Self::Unheard => "not heard of since the step before",
        })
    }
}

/// Where a worker is.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The step, 0 before the first.
    pub step: u64,
    /// What it is doing.
    pub phase: Phase,
    /// Since when, or when it last showed that it goes on.
    pub since: Instant,
}

impl Place {
    /// Before the first step.
    pub fn start() -> Self {
        Self::at(0, Phase::Start)
    }

    /// At this phase of this step, from now on.
    pub fn at(step: u64, phase: Phase) -> Self {
        Self { step, phase, since: Instant::now() }
    }

    /// For how long it has shown nothing new.
    pub fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.step {
            0 => f.write_str("before the first step"),
            step => write!(f, "step {step}, {}", self.phase),
        }
    }
}

/// A worker's post, where it can be seen. Clones are the same post.
#[derive(Clone, Debug)]
pub struct Post {
    rank: usize,
    place: Arc<Mutex<Place>>,
    left: Arc<AtomicBool>,
}

impl Post {
    /// The post of the worker of this rank, before its first step.
    pub fn new(rank: usize) -> Self {
        Self { rank, place: Arc::new(Mutex::new(Place::start())), left: Arc::default() }
    }

    /// Whose post it is.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Begins a step.
    pub fn step(&self, step: u64) {
        *self.open() = Place::at(step, Phase::Start);
    }

    /// Begins a phase of the step.
    pub fn phase(&self, phase: Phase) {
        let mut place = self.open();
        *place = Place::at(place.step, phase);
    }

    /// Shows that it goes on, in a phase that may take long.
    pub fn beat(&self) {
        self.open().since = Instant::now();
    }

    /// Tells the worker that the run goes on, or has ended, without it.
    pub fn leave(&self) {
        self.left.store(true, Ordering::SeqCst);
    }

    /// Whether the worker has been left behind.
    pub fn is_left(&self) -> bool {
        self.left.load(Ordering::SeqCst)
    }

    /// Where the worker is.
    pub fn place(&self) -> Place {
        *self.open()
    }

    fn open(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
