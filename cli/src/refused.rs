//! How a command's errors are told.

use anyhow::Error;
use std::fmt;
use std::process::ExitCode;

/// Why a command did not do what was asked, and the exit code that says so.
pub(super) struct Failure {
    pub(super) error: Error,
    pub(super) code: ExitCode,
}

impl Failure {
    /// A refusal of what was asked, before anything was started.
    pub(super) fn refused(error: Error) -> Self {
        Self { error, code: ExitCode::from(2) }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, code: ExitCode::FAILURE }
    }
}

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
