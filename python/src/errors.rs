//! What goes wrong, as exceptions of the package.

use gradwire_exchange::Error;
use pyo3::import_exception;
use pyo3::prelude::*;

import_exception!(gradwire._errors, AbortedError);
import_exception!(gradwire._errors, InputError);
import_exception!(gradwire._errors, MessageError);
import_exception!(gradwire._errors, NonFiniteError);
import_exception!(gradwire._errors, OutOfStepError);
import_exception!(gradwire._errors, PeerLostError);
import_exception!(gradwire._errors, PeerTimeoutError);
import_exception!(gradwire._errors, SettingError);
import_exception!(gradwire._errors, StateError);
import_exception!(gradwire._errors, TransportError);
import_exception!(gradwire._errors, ViolationError);

/// `gradwire.Error`, under a name that is not that of the exchange's own.
pub(crate) mod base {
    pyo3::import_exception!(gradwire._errors, Error);
}
pub(crate) use base::Error as BaseError;

/// The exception for an error of the exchange: its words, and what programs ask for (the rank, the
/// step, the parameter, the element, how long a silent peer was waited for).
pub(crate) fn exception(error: &Error) -> PyErr {
    let words = error.to_string();
    match error {
        Error::NonFinite { rank, step, parameter, index, .. } => {
            NonFiniteError::new_err((words, *rank, *step, parameter.clone(), *index))
        }
        Error::NonFiniteMean { step, parameter, index } => {
            NonFiniteError::new_err((words, None::<usize>, *step, parameter.clone(), *index))
        }
        Error::Aborted { rank, step, .. } => AbortedError::new_err((words, *rank, *step)),
        Error::PeerLost { rank, .. } => PeerLostError::new_err((words, *rank)),
        Error::Timeout { rank, after, .. } => {
            let (step, parameter, index) = (None::<u64>, None::<&str>, None::<usize>);
            let after = (!after.is_zero()).then_some(after.as_secs_f64());
            PeerTimeoutError::new_err((words, *rank, step, parameter, index, after))
        }
        Error::OutOfStep { found, .. } => OutOfStepError::new_err((words, found.rank, found.step)),
        Error::Message { rank, .. } => MessageError::new_err((words, *rank)),
        Error::Wire(_) => MessageError::new_err(words),
        Error::State { .. } => StateError::new_err(words),
        Error::Input { .. } => InputError::new_err(words),
        Error::Transport { .. } => TransportError::new_err(words),
        _ => SettingError::new_err(words),
    }
}

/// Whether a group of ranks can go on after an error: every rank has the same one, and nothing has
/// been applied.
pub(crate) fn is_of_one_step(error: &Error) -> bool {
    matches!(error, Error::NonFinite { .. } | Error::NonFiniteMean { .. } | Error::Aborted { .. })
}

/// Refuses a step 0.
pub(crate) fn counts_from_one(step: u64) -> PyResult<()> {
    match step {
        0 => Err(InputError::new_err("step = 0 is not possible; steps count from 1")),
        _ => Ok(()),
    }
}
