//! The channels and threads that the loader is made of: crossbeam's and std's, or those of a model
//! checker, which tries out the orders in which threads may run (features `loom` and `shuttle`, for
//! `tests/schedules.rs` alone).

#[cfg(any(feature = "loom", feature = "shuttle"))]
mod checked;

#[cfg(any(feature = "loom", feature = "shuttle"))]
pub(crate) use checked::{Receiver, Sender, bounded, unbounded};
#[cfg(not(any(feature = "loom", feature = "shuttle")))]
pub(crate) use crossbeam::channel::{Receiver, Sender, bounded, unbounded};
#[cfg(feature = "loom")]
pub(crate) use loom::thread;
#[cfg(all(feature = "shuttle", not(feature = "loom")))]
pub(crate) use shuttle::thread;
#[cfg(not(any(feature = "loom", feature = "shuttle")))]
pub(crate) use std::thread;
