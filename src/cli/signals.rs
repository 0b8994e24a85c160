//! SIGINT and SIGTERM, and SIGUSR1 where a launcher passes that on: the first asks for the end of the run after the step, with a checkpoint; the
//! second ends the process at once, as if nobody had been listening.

use signal_hook::consts::{SIGINT, SIGPIPE, SIGTERM, SIGUSR1};
use signal_hook::flag;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// From now on the program ends, as other programs do, when nobody reads any more what it prints
/// (`gradwire list | head`). Without this the failed print is a panic.
///
/// # Errors
/// When the system does not allow it.
pub(super) fn end_with_the_reader() -> io::Result<()> {
    flag::register_conditional_default(SIGPIPE, Arc::new(AtomicBool::new(true))).map(|_| ())
}

/// What has been heard.
#[derive(Debug)]
pub(super) struct Signals(Arc<AtomicUsize>);

impl Signals {
    /// From now on the first signal sets `stop`. In a job of several processes SIGUSR1 is one: `mpirun`
    /// passes it on, where it answers SIGINT and SIGTERM by ending the job itself.
    ///
    /// # Errors
    /// When the system does not allow it.
    pub(super) fn listen(stop: &Arc<AtomicBool>, in_job: bool) -> io::Result<Self> {
        let last = Arc::new(AtomicUsize::new(0));
        for signal in [SIGINT, SIGTERM].into_iter().chain(in_job.then_some(SIGUSR1)) {
            // In this order: the first signal finds `stop` unset, the second finds it set.
            flag::register_conditional_default(signal, Arc::clone(stop))?;
            flag::register(signal, Arc::clone(stop))?;
            flag::register_usize(signal, Arc::clone(&last), signal.unsigned_abs() as usize)?;
        }
        Ok(Self(last))
    }

    /// The signal that was heard, if one was.
    pub(super) fn heard(&self) -> Option<Signal> {
        match self.0.load(Ordering::SeqCst) as i32 {
            SIGINT => Some(Signal { name: "SIGINT", exit_code: 130 }),
            SIGTERM => Some(Signal { name: "SIGTERM", exit_code: 143 }),
            SIGUSR1 => Some(Signal { name: "SIGUSR1", exit_code: 138 }),
            _ => None,
        }
    }
}

/// A signal that asks for the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Signal {
    /// Its name.
    pub name: &'static str,
    /// What the process ends with: 128 and the signal's number.
    pub exit_code: u8,
}
