//! Bytes between ranks, carried by an object of Python.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gradwire_exchange::{Awaited, Collective, Error, Payload, Result};
use numpy::{PyArray1, PyArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

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
    /// Messages of other ranks, whose buffers are used again once nobody reads them.
    received: Vec<Payload>,
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
            received: Vec::new(),
        })
    }

    fn call(&mut self, method: &str, messages: &Messages) -> Result<Vec<Payload>> {
        Python::attach(|py| {
            let all = self.carry(py, method, messages);
            all.map_err(|raised| self.blame(py, raised))
        })
    }

    fn carry(
        &mut self,
        py: Python<'_>,
        method: &str,
        messages: &Messages,
    ) -> PyResult<Vec<Payload>> {
        let (argument, own) = match messages {
            Messages::One(message) => (view(py, message)?, message),
            Messages::Each(parts) => {
                let views =
                    parts.iter().map(|part| view(py, part)).collect::<PyResult<Vec<_>>>()?;
                (PyList::new(py, views)?.into_any(), &parts[self.rank])
            }
        };
        let answers = self.object.bind(py).call_method1(method, (argument,))?;
        let mut all = Vec::with_capacity(self.world_size);
        for answer in answers.try_iter()? {
            let answer = answer?;
            // What this rank gave needs no copy.
            let mine = all.len() == self.rank && answer.is_instance_of::<PyArray1<u8>>();
            all.push(if mine { own.clone() } else { self.bytes(&answer)? });
        }
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

    /// A message as the transport gives it: `bytes`, or an array of uint8. The buffers of earlier ones are
    /// used again.
    fn bytes(&mut self, given: &Bound<'_, PyAny>) -> PyResult<Payload> {
        if let Ok(bytes) = given.cast::<PyBytes>() {
            return Ok(self.received(bytes.as_bytes()));
        }
        let Ok(array) = given.cast::<PyArray1<u8>>() else {
            let kind = given.get_type().name()?;
            let words =
                format!("a message is `bytes` or an array of uint8, and this is a `{kind}`");
            return Err(PyTypeError::new_err(words));
        };
        let array = array.try_readonly()?;
        Ok(match array.as_slice() {
            Ok(bytes) => self.received(bytes),
            Err(_) => Payload::from(array.as_array().to_vec()),
        })
    }

    fn received(&mut self, bytes: &[u8]) -> Payload {
        let free = self.received.iter().position(Payload::is_unshared);
        let buffer = free.and_then(|free| self.received.swap_remove(free).reclaim());
        let mut buffer = buffer.unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(bytes);
        let payload = Payload::from(buffer);
        self.received.push(payload.clone());
        if self.received.len() > 2 * self.world_size {
            self.received.remove(0);
        }
        payload
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
    One(Payload),
    /// To each rank, by number.
    Each(Vec<Payload>),
}

/// Bytes that NumPy reads where they are.
#[pyclass(frozen)]
struct Message(Payload);

#[pymethods]
impl Message {
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        const READ_ONLY: bool = true;
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("shape", (self.0.len(),))?;
        interface.set_item("data", (self.0.as_ptr() as usize, READ_ONLY))?;
        Ok(interface)
    }
}

/// A message as an array of uint8 that may only be read.
fn view<'py>(py: Python<'py>, message: &Payload) -> PyResult<Bound<'py, PyAny>> {
    py.import("numpy")?.call_method1("asarray", (Message(message.clone()),))
}

impl Collective for Transport {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world_size
    }

    fn allgather(&mut self, mine: Vec<u8>) -> Result<Vec<Payload>> {
        self.call("allgather", &Messages::One(mine.into()))
    }

    fn divides(&self) -> bool {
        self.divides
    }

    fn alltoall(&mut self, mine: Vec<Vec<u8>>) -> Result<Vec<Payload>> {
        if mine.len() != self.world_size {
            let problem = format!("{} parts for {} ranks", mine.len(), self.world_size);
            return Err(Error::Transport { problem });
        }
        self.call("alltoall", &Messages::Each(mine.into_iter().map(Payload::from).collect()))
    }
}
