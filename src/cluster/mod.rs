//! The job: the processes that a launcher such as `mpirun` or `srun` has started together, which
//! train one run.
//!
//! Each process is one worker, and its number the worker's rank. Process 0 leads: it alone writes
//! records and checkpoints and shows progress. The others follow: they exchange gradients with all, and
//! send process 0 what they report. Without a launcher a process is a job of its own, leads it, and has
//! all workers as threads.

mod agree;
mod job;
mod messages;

pub use agree::accept;
pub use job::{Job, SLOWEST, control_channel, launched};
pub use messages::{Begin, Bytes, ControlMessage, Hello, decode, encode};
