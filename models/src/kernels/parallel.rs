//! Work on the threads of the pool the caller runs in.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rayon::prelude::*;

/// How long the other threads stay awake for the next jobs: to wake one that sleeps takes longer than many a kernel.
const AWAKE: Duration = Duration::from_micros(200);

thread_local! {
    /// Tells the threads that stay awake for this one that there are jobs.
    static JOBS: RefCell<Arc<AtomicBool>> = RefCell::default();
    /// Whether this thread runs a job: then others have enough to do, and may wait for this one.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Threads that [`each`] spreads its jobs over.
pub(crate) fn threads() -> usize {
    rayon::current_num_threads()
}

/// Runs `work` on every job: one after the other on this thread if the pool has one thread.
pub(crate) fn each<J: Send>(jobs: Vec<J>, work: impl Fn(J) + Sync + Send) {
    if jobs.len() < 2 || threads() == 1 {
        return jobs.into_iter().for_each(work);
    }
    JOBS.take().store(true, Ordering::Relaxed);
    let helpers = if INSIDE.get() { 1 } else { threads().min(jobs.len()) };
    jobs.into_par_iter().for_each(|job| {
        let outer = INSIDE.replace(true);
        work(job);
        INSIDE.set(outer);
    });
    let next = JOBS.with_borrow(Arc::clone);
    for _ in 1..helpers {
        let (next, since) = (next.clone(), Instant::now());
        rayon::spawn(move || {
            while !next.load(Ordering::Relaxed) && since.elapsed() < AWAKE {
                std::thread::yield_now();
            }
        });
    }
}
