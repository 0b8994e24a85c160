//! SIGINT and SIGTERM, and SIGUSR1 where a launcher passes that on: the first asks for the end of the run after the step, with a checkpoint; the
//! second ends the process at once, as if nobody had been listening.

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGPIPE, SIGTERM, SIGUSR1};
use signal_hook::{flag, iterator};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::{io, panic, process};

/// Whether the program ends when nobody reads what it prints: until it makes a run.
static ENDS_WITH_THE_READER: LazyLock<Arc<AtomicBool>> =
    LazyLock::new(|| Arc::new(AtomicBool::new(true)));

/// From now on the program ends, as other programs do, when nobody reads any more what it prints
/// (`gradwire list | head`), unless it makes a run. Without this the failed print is a panic.
///
/// # Errors
/// When the system does not allow it.
pub(super) fn end_with_the_reader() -> io::Result<()> {
    flag::register_conditional_default(SIGPIPE, Arc::clone(&ENDS_WITH_THE_READER)).map(|_| ())
}

/// From now on the program ends with a sentence and exit code 1 when what it prints cannot be written, as
/// on a full disk: `println!` knows no other end than a panic.
pub(super) fn end_with_the_output() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let said = info.payload().downcast_ref::<String>();
        match said.and_then(|said| said.strip_prefix("failed printing to stdout: ")) {
            Some(why) => {
                // Where both go to one full disk there is nobody to tell, and a panic here would be an abort.
                let _ = writeln!(io::stderr(), "error: cannot write to standard output: {why}");
                process::exit(1);
            }
            None => usual(info),
        }
    }));
}

/// What has been heard.
#[derive(Debug)]
pub(super) struct Signals(Arc<AtomicUsize>);

impl Signals {
    /// From now on the first signal sets `stop`, and what becomes of it, `then`, is said on the
    /// terminal. In a job of several processes SIGUSR1 is one: `mpirun` passes it on, where it answers
    /// SIGINT and SIGTERM by ending the job itself.
    ///
    /// # Errors
    /// When the system does not allow it.
    pub(super) fn listen(
        stop: &Arc<AtomicBool>,
        in_job: bool,
        then: Option<&'static str>,
    ) -> Result<Self> {
        ENDS_WITH_THE_READER.store(false, Ordering::SeqCst);
        let signals = Self::register(stop, in_job);
        let answered = signals.and_then(|signals| {
            then.map_or(Ok(()), answer)?;
            Ok(signals)
        });
        answered.context("listening to SIGINT and SIGTERM")
    }

    fn register(stop: &Arc<AtomicBool>, in_job: bool) -> io::Result<Self> {
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

/// Says on the terminal, at the first signal, what becomes of it.
fn answer(then: &'static str) -> io::Result<()> {
    let mut heard = iterator::Signals::new([SIGINT, SIGTERM])?;
    thread::Builder::new().name("signals".into()).spawn(move || {
        if heard.forever().next().is_some() {
            eprintln!("\nending after this step{then}; once more ends at once");
        }
    })?;
    Ok(())
}

/// A signal that asks for the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Signal {
    /// Its name.
    pub name: &'static str,
    /// What the process ends with: 128 and the signal's number.
    pub exit_code: u8,
}
