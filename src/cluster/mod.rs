//! The job: the processes that a launcher such as `mpirun` or `srun` has started together, which
//! train one run.
//!
//! Every process has the same number of workers; rank = process · workers per process + thread.
//! Process 0 leads: it alone writes records and checkpoints and shows progress. The others follow:
//! their workers exchange gradients with all, and what they report, process 0 is written in letters.
//! Without a launcher a process is a job of its own, and leads it.

mod agree;
mod blob;
mod hello;
mod job;
mod letter;

pub use agree::accept;
pub use blob::{Blob, decode, encode};
pub use hello::{Go, Hello, State};
pub use job::{Job, SLOWEST, launched, letterbox};
pub use letter::Letter;
