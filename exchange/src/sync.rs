//! The locks that ranks meet at: std's, or those of a model checker, which tries out the orders in
//! which threads may run (features `loom` and `shuttle`, for `tests/schedules.rs` alone).

#[cfg(feature = "loom")]
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(all(feature = "shuttle", not(feature = "loom")))]
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(any(feature = "loom", feature = "shuttle")))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
