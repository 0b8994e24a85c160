//! Where each worker is: published by itself, read by the watch over the run.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

macro_rules! phases {
    ($($phase:ident $words:literal,)*) => {
        /// What a worker is doing.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum Phase {
            $(#[doc = $words] $phase,)*
        }

        impl fmt::Display for Phase {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$phase => $words,)* })
            }
        }
    };
}

phases! {
    Start "start",
    Data "data",
    Forward "forward",
    Backward "backward",
    OverlappedExchange "backward and exchange",
    Exchange "exchange",
    Optimizer "optimizer",
    Replicas "replicas",
    Evaluation "evaluation",
    SavingModel "saving the model",
    WaitingForWriter "waiting for the last checkpoint to be written",
    CopyingState "copying the state for a checkpoint",
    RecordingGradient "recording a gradient",
    Unreported "not heard of since the step before",
}

/// Where a worker is.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// The step, 0 before the first.
    pub step: u64,
    /// What it is doing.
    pub phase: Phase,
    /// Since when, or when it last showed that it goes on.
    pub since: Instant,
}

impl Position {
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

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.step {
            0 => f.write_str("before the first step"),
            step => write!(f, "step {step}, {}", self.phase),
        }
    }
}

/// A worker's position as it changes. Clones show the same worker.
#[derive(Clone)]
pub struct LivePosition {
    rank: usize,
    position: Arc<Mutex<Position>>,
    abandoned: Arc<AtomicBool>,
    /// What is called at the beginning of each step.
    at_step: Option<Arc<dyn Fn(u64) + Send + Sync>>,
}

impl LivePosition {
    /// That of the worker of this rank, before its first step.
    pub fn new(rank: usize) -> Self {
        let position = Arc::new(Mutex::new(Position::start()));
        Self { rank, position, abandoned: Arc::default(), at_step: None }
    }

    /// The same, which calls `at_step` with the number of each step that begins.
    #[must_use]
    pub fn calling(&self, at_step: impl Fn(u64) + Send + Sync + 'static) -> Self {
        Self { at_step: Some(Arc::new(at_step)), ..self.clone() }
    }

    /// The worker's rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The worker begins a step.
    pub fn begin(&self, step: u64) {
        *self.lock() = Position::at(step, Phase::Start);
        if let Some(at_step) = &self.at_step {
            at_step(step);
        }
    }

    /// The worker begins a phase of the step.
    pub fn enter(&self, phase: Phase) {
        let mut position = self.lock();
        *position = Position::at(position.step, phase);
    }

    /// The worker shows that it goes on, in a phase that may take long.
    pub fn beat(&self) {
        self.lock().since = Instant::now();
    }

    /// Tells the worker that the run goes on, or has ended, without it.
    pub fn abandon(&self) {
        self.abandoned.store(true, Ordering::SeqCst);
    }

    /// Whether the run goes on, or has ended, without the worker.
    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::SeqCst)
    }

    /// Where the worker is.
    pub fn get(&self) -> Position {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Position> {
        self.position.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
