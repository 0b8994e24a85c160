//! How a command's errors are told.

use anyhow::Error;
use std::fmt;
use std::process::ExitCode;

/// A refusal of what was asked, before anything was started.
pub(super) struct Refused(pub(super) Error);

/// Tells an error, unless it has been told; the exit code that is given.
pub(super) fn tell(error: &Error, code: ExitCode) -> ExitCode {
    if error.downcast_ref::<Told>().is_none() {
        eprintln!("error: {error:#}");
    }
    code
}

/// On an error that has been told already.
#[derive(Debug)]
pub(super) struct Told;

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("told before")
    }
}
