//! Where each worker is: told by itself, read by whoever watches over the run.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Where a worker is.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The step, 0 before the first.
    pub step: u64,
    /// What it is doing.
    pub phase: &'static str,
    /// Since when, or when it last showed that it goes on.
    pub since: Instant,
}

impl Place {
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

/// The name of a phase that was told by another process, kept for ever: there are about a dozen, and
/// not many more are taken.
pub(crate) fn phase_of(name: String) -> &'static str {
    static PHASES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut phases = PHASES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = phases.get(name.as_str()) {
        return known;
    }
    if phases.len() >= 64 || name.len() > 64 {
        return "at work";
    }
    let name: &'static str = name.leak();
    phases.insert(name);
    name
}

/// A worker's post, where it can be seen. Clones are the same post.
#[derive(Clone, Debug)]
pub struct Post {
    place: Arc<Mutex<Place>>,
    left: Arc<AtomicBool>,
}

impl Default for Post {
    fn default() -> Self {
        let place = Place { step: 0, phase: "start", since: Instant::now() };
        Self { place: Arc::new(Mutex::new(place)), left: Arc::default() }
    }
}

impl Post {
    /// Begins a step.
    pub fn step(&self, step: u64) {
        *self.open() = Place { step, phase: "start", since: Instant::now() };
    }

    /// Begins a phase of the step.
    pub fn phase(&self, phase: &'static str) {
        let mut place = self.open();
        *place = Place { phase, since: Instant::now(), ..*place };
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
