//! Work on the threads of the pool the caller runs in.

use rayon::prelude::*;

/// Threads that [`each`] spreads its jobs over.
pub(crate) fn threads() -> usize {
    rayon::current_num_threads()
}

/// Runs `work` on every job: one after the other on this thread if the pool has one thread.
pub(crate) fn each<J: Send>(jobs: Vec<J>, work: impl Fn(J) + Sync + Send) {
    if jobs.len() < 2 || threads() == 1 {
        jobs.into_iter().for_each(work);
    } else {
        jobs.into_par_iter().for_each(work);
    }
}
