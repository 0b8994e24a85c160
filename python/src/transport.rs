//! Bytes between ranks, carried by an object of Python.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gradwire_exchange::{Alltoall, Awaited, Collective, Error, Payload, Result};
use numpy::{PyArray1, PyArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::errors::{BaseError, PeerLostError, PeerTimeoutError};

/// Where an exception of the transport or of a scheme waits until the call that met it has returned.
#[derive(Clone, Default)]
pub(crate) struct Cause(Arc<Mutex<Option<PyErr>>>);

impl Cause {
    /// Keeps the exception, the last of several, and says it in words.
    pub(crate) fn note(&self, py: Python<'_>, raised: PyErr) -> String {
        let words = match raised.is_instance_of::<BaseError>(py) {
            true => raised.value(py).to_string(),
            false => raised.to_string(),
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(raised);
        words
    }

    pub(crate) fn take(&self) -> Option<PyErr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A collective whose messages an object of Python carries: `allgather(message)` gives every rank's
/// message, and `alltoall(parts)`, if it has that, what every rank gave this one.
pub(crate) struct Transport {
    rank: usize,
    world_size: usize,
    object: Py<PyAny>,
    divides: bool,
    cause: Cause,
}

impl Transport {
    /// Asks the object for its rank and the number of ranks.
    pub(crate) fn new(object: &Bound<'_, PyAny>, cause: Cause) -> PyResult<Self> {
        Ok(Self {
            rank: object.getattr("rank")?.extract()?,
            world_size: object.getattr("world_size")?.extract()?,
            divides: object.hasattr("alltoall")?,
            object: object.clone().unbind(),
            cause,
        })
    }

    fn call(&self, method: &str, messages: Messages) -> Result<Vec<Payload>> {
        Python::attach(|py| {
            let all = self.carry(py, method, messages);
            all.map_err(|raised| self.blame(py, raised))
        })
    }

    fn carry(&self, py: Python<'_>, method: &str, messages: Messages) -> PyResult<Vec<Payload>> {
        let argument = match messages {
            Messages::One(message) => PyArray1::from_vec(py, message).into_any(),
            Messages::Each(parts) => {
                let parts = parts.into_iter().map(|part| PyArray1::from_vec(py, part));
                PyList::new(py, parts.collect::<Vec<_>>())?.into_any()
            }
        };
        let answers = self.object.bind(py).call_method1(method, (argument,))?;
        let all =
            answers.try_iter()?.map(|answer| bytes(&answer?)).collect::<PyResult<Vec<_>>>()?;
        if all.len() != self.world_size {
            let words = format!(
                "the transport's {method} gave {} messages for {} ranks",
                all.len(),
                self.world_size
            );
            return Err(PyValueError::new_err(words));
        }
        Ok(all)
    }

    /// The error for what the transport raised, which becomes the cause of what the caller sees.
    fn blame(&self, py: Python<'_>, raised: PyErr) -> Error {
        let value = raised.value(py);
        let rank = value.getattr("rank").and_then(|rank| rank.extract::<usize>());
        let (by, awaited) = (self.rank, Awaited::Message);
        let error = match rank {
            Ok(rank) if raised.is_instance_of::<PeerLostError>(py) => {
                Error::PeerLost { rank, by, awaited }
            }
            Ok(rank) if raised.is_instance_of::<PeerTimeoutError>(py) => {
                let after = value.getattr("after").and_then(|after| after.extract::<f64>());
                let after = after.map(Duration::try_from_secs_f64);
                let after = after.ok().and_then(|after| after.ok()).unwrap_or_default();
                Error::Timeout { rank, by, awaited, after }
            }
            _ => Error::Transport { problem: raised.to_string() },
        };
        self.cause.note(py, raised);
        error
    }
}

/// What a rank gives.
enum Messages {
    /// To every rank.
    One(Vec<u8>),
    /// To each rank, by number.
    Each(Vec<Vec<u8>>),
}

/// A message as the transport gives it: `bytes`, or an array of uint8.
fn bytes(given: &Bound<'_, PyAny>) -> PyResult<Payload> {
    if let Ok(bytes) = given.cast::<PyBytes>() {
        return Ok(Payload::from(bytes.as_bytes().to_vec()));
    }
    let Ok(array) = given.cast::<PyArray1<u8>>() else {
        let kind = given.get_type().name()?;
        let words = format!("a message is `bytes` or an array of uint8, and this is a `{kind}`");
        return Err(PyTypeError::new_err(words));
    };
    Ok(Payload::from(array.try_readonly()?.as_array().to_vec()))
}

impl Collective for Transport {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world_size
    }

    fn allgather(&mut self, mine: Vec<u8>) -> Result<Vec<Payload>> {
        self.call("allgather", Messages::One(mine))
    }

    fn alltoall(&mut self) -> Option<&mut dyn Alltoall> {
        if self.divides { Some(self) } else { None }
    }
}

impl Alltoall for Transport {
    fn alltoall(&mut self, mine: Vec<Vec<u8>>) -> Result<Vec<Payload>> {
        if mine.len() != self.world_size {
            let problem = format!("{} parts for {} ranks", mine.len(), self.world_size);
            return Err(Error::Transport { problem });
        }
        self.call("alltoall", Messages::Each(mine))
    }
}
