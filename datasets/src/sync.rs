//! The channels and threads that the loader is made of: std's, or those of a model checker, which
//! tries out the orders in which threads may run (feature `shuttle`, for `tests/schedules.rs` alone).

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::{sync::mpsc, thread};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::{sync::mpsc, thread};
