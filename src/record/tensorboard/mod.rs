//! TensorBoard's event file: a view of `metrics.jsonl`.
//!
//! While a run goes on, every event is shown as it is recorded. When a run is resumed the file is
//! written anew from the log, so that nothing ever reads one.
//!
//! `tensorboard-rs` gives the messages and their framing; its `SummaryWriter` is not used, because
//! its `flush` does not wait, two of its writers may share a file, and it panics where a file
//! cannot be written. Here the file is ours, every event is written before the call returns, and
//! failures are errors.

mod curves;
mod file;
mod hparams;
mod layout;
mod values;

pub(super) use file::TensorBoard;
pub(super) use hparams::Trial;
