//! One codec without an exchange: arrays to bytes and back.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gradwire_exchange::wire::frame::{Frame, Header, Kind};
use gradwire_exchange::wire::{Reader, floats};
use gradwire_exchange::{
    Compressor as Codec, Encoded, Entry, Error, Feedback, Policy, Result, Scheme, SchemeConfig,
    Seat, State, StepMessages,
};
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict};

use crate::errors::{InputError, MessageError, SettingError, counts_from_one, exception};
use crate::{arrays, settings, states};

/// Elements that an array may have, so that its message is surely shorter than 4 GiB.
const MOST: usize = 1 << 29;

/// Compresses the gradients of one rank, and reads the messages of all ranks.
#[pyclass(frozen, module = "gradwire")]
pub(crate) struct Compressor {
    scheme: SchemeConfig,
    /// The scheme's settings as JSON has them: what two compressors must agree on.
    settings: String,
    seed: u64,
    rank: u16,
    inner: Mutex<Option<Fitted>>,
}

/// What a compressor becomes with its first array: one for so many elements.
struct Fitted {
    length: usize,
    codec: Box<dyn Codec>,
    /// With error feedback, what has not been sent.
    feedback: Option<Feedback>,
    fingerprint: u32,
}

#[pymethods]
impl Compressor {
    #[new]
    #[pyo3(signature = (scheme, *, seed = 0, rank = 0, force = false, **settings))]
    fn new(
        scheme: &str,
        seed: u64,
        rank: u16,
        force: bool,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let scheme = settings::scheme(scheme, settings)?;
        let policy = Policy { force, ..Policy::default() };
        policy.validate(&scheme).map_err(|error| exception(&error))?;
        let name = scheme.about().name;
        if scheme.codec(&Seat::alone(1, seed)).is_none() {
            return Err(SettingError::new_err(format!(
                "scheme `{name}` takes several rounds of messages and is no codec; use \
                 `gradwire.Exchange` or `gradwire.torch.State`"
            )));
        }
        let settings = serde_json::to_string(&scheme)
            .map_err(|error| SettingError::new_err(format!("scheme `{name}`: {error}")))?;
        Ok(Self { scheme, settings, seed, rank, inner: Mutex::new(None) })
    }

    /// The scheme's name.
    #[getter]
    fn scheme(&self) -> &'static str {
        self.scheme.about().name
    }

    /// The elements that it is for; None before the first array or message.
    #[getter]
    fn length(&self, py: Python<'_>) -> Option<usize> {
        py.detach(|| self.lock().as_ref().map(|fitted| fitted.length))
    }

    /// The message for an array, at a step that counts from 1. With error feedback, what was not sent
    /// before is added, and what is not sent now is kept.
    fn encode<'py>(
        &self,
        py: Python<'py>,
        array: &Bound<'py, PyAny>,
        step: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        counts_from_one(step)?;
        let array = arrays::readable(array)?;
        let values = array.as_slice().map_err(PyErr::from)?;
        let message =
            py.detach(|| self.with(values.len(), |fitted| fitted.encode(self.rank, values, step)));
        Ok(PyBytes::new(py, &message.map_err(Refused::into_exception)?))
    }

    /// The array that a message stands for: one of `length` elements.
    #[pyo3(signature = (message, length))]
    fn decode<'py>(
        &self,
        py: Python<'py>,
        message: PyBackedBytes,
        length: usize,
    ) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let values = py.detach(|| self.with(length, |fitted| fitted.decode(&message)));
        Ok(PyArray1::from_vec(py, values.map_err(Refused::into_exception)?))
    }

    /// Learns from one step: every rank's message in order of rank, and their mean. For schemes
    /// that adapt to what was sent, which stay as they are in their first step without it.
    fn learn(
        &self,
        py: Python<'_>,
        messages: Vec<PyBackedBytes>,
        mean: &Bound<'_, PyAny>,
        step: u64,
    ) -> PyResult<()> {
        let mean = arrays::readable(mean)?;
        let mean = mean.as_slice().map_err(PyErr::from)?;
        let learnt =
            py.detach(|| self.with(mean.len(), |fitted| fitted.learn(&messages, mean, step)));
        learnt.map_err(Refused::into_exception)
    }

    /// Everything that later messages depend on, as arrays by name.
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        states::to_dict(py, py.detach(|| self.saved()))
    }

    /// Takes up what `state` returned; nothing changes when it does not fit.
    fn load_state(&self, py: Python<'_>, state: &Bound<'_, PyAny>) -> PyResult<()> {
        let state = states::from_dict(state)?;
        py.detach(|| {
            let restored = match state.is_empty() {
                true => None,
                false => Some(self.restored(&state)?),
            };
            *self.lock() = restored;
            Ok(())
        })
        .map_err(Refused::into_exception)
    }

    /// What the last message was like.
    #[getter]
    fn gauges(&self, py: Python<'_>) -> BTreeMap<String, f64> {
        py.detach(|| {
            let inner = self.lock();
            let gauges = inner.as_ref().map_or(&[][..], |fitted| fitted.codec.gauges());
            gauges.iter().map(|gauge| (gauge.name.to_string(), gauge.value)).collect()
        })
    }

    /// Another one that goes on from the same state.
    fn __deepcopy__(&self, py: Python<'_>, _memo: &Bound<'_, PyAny>) -> PyResult<Self> {
        let inner = py.detach(|| match self.saved() {
            state if state.is_empty() => Ok(None),
            state => self.restored(&state).map(Some),
        });
        let inner = Mutex::new(inner.map_err(Refused::into_exception)?);
        Ok(Self { scheme: self.scheme.clone(), settings: self.settings.clone(), inner, ..*self })
    }

    fn __repr__(&self) -> String {
        format!("Compressor({}, seed={}, rank={})", self.settings, self.seed, self.rank)
    }
}

/// Why a call was refused.
enum Refused {
    /// By the exchange's own error.
    Error(Error),
    /// An array or a length that does not fit.
    Input(String),
    /// Bytes that are not for this compressor.
    Message(String),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Refused::Error(error)
    }
}

impl From<gradwire_exchange::wire::Fault> for Refused {
    fn from(fault: gradwire_exchange::wire::Fault) -> Self {
        Refused::Error(fault.into())
    }
}

impl Refused {
    fn into_exception(self) -> PyErr {
        match self {
            Refused::Error(error) => exception(&error),
            Refused::Input(words) => InputError::new_err(words),
            Refused::Message(words) => MessageError::new_err(words),
        }
    }
}

impl Compressor {
    /// What it has become. A call that panicked has left nothing half-done that matters: what is
    /// learnt or kept changes last.
    fn lock(&self) -> MutexGuard<'_, Option<Fitted>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `work` with the codec for `length` elements. The first call that succeeds settles the length.
    fn with<T>(
        &self,
        length: usize,
        work: impl FnOnce(&mut Fitted) -> Result<T, Refused>,
    ) -> Result<T, Refused> {
        let mut inner = self.lock();
        if let Some(fitted) = inner.as_ref().filter(|fitted| fitted.length != length) {
            return Err(Refused::Input(format!(
                "this compressor is for {} elements, as its first array had, and this has {length}; \
                 make a compressor for each array",
                fitted.length
            )));
        }
        if let Some(fitted) = inner.as_mut() {
            return work(fitted);
        }
        let mut fitted = self.fresh(length)?;
        let done = work(&mut fitted)?;
        *inner = Some(fitted);
        Ok(done)
    }

    fn fresh(&self, length: usize) -> Result<Fitted, Refused> {
        if length > MOST {
            let words = format!("{length} elements are more than {MOST}; compress them in parts");
            return Err(Refused::Input(words));
        }
        let mut seat = Seat::alone(length, self.seed);
        seat.rank = self.rank.into();
        let codec = self.scheme.codec(&seat).ok_or_else(|| {
            Refused::Input(format!("scheme `{}` is no codec", self.scheme.about().name))
        })?;
        let form = self.scheme.default_policy().feedback;
        let feedback = self.scheme.feedback().then(|| Feedback::of(form, 0.0, length));
        let fingerprint = self.fingerprint(length);
        Ok(Fitted { length, codec, feedback, fingerprint })
    }

    /// What stands in the place of a bucket's number: 24 bits of a checksum of all that a reader has
    /// to have in common with the writer.
    fn fingerprint(&self, length: usize) -> u32 {
        let mut checksum = crc32fast::Hasher::new();
        checksum.update(self.settings.as_bytes());
        checksum.update(&self.seed.to_le_bytes());
        checksum.update(&(length as u64).to_le_bytes());
        checksum.finalize() >> 8
    }

    fn saved(&self) -> State {
        let mut state = State::default();
        if let Some(fitted) = self.lock().as_ref() {
            fitted.codec.save(&mut state);
            state.insert("length", Entry::U64(vec![fitted.length as u64]));
            if let Some(feedback) = &fitted.feedback {
                state.insert("residual", Entry::F32(feedback.residual().to_vec()));
            }
        }
        state
    }

    fn restored(&self, state: &State) -> Result<Fitted, Refused> {
        let length = state.u64s("length", 1)?[0];
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let mut fitted = self.fresh(length)?;
        match &mut fitted.feedback {
            Some(feedback) => feedback.set(state.f32s("residual", length)?, &[]),
            None if state.contains("residual") => {
                return Err(Refused::Error(Error::State {
                    entry: "residual".to_string(),
                    problem: "would be lost: this compressor has no error feedback".to_string(),
                }));
            }
            None => {}
        }
        fitted.codec.restore(state)?;
        Ok(fitted)
    }
}

impl Fitted {
    fn encode(&mut self, rank: u16, values: &[f32], step: u64) -> Result<Vec<u8>, Refused> {
        if let Some(index) = floats::first_non_finite(values) {
            return Err(Refused::Input(format!(
                "element {index} of the array is {}; nothing has been encoded",
                values[index]
            )));
        }
        let due = match &mut self.feedback {
            None => values,
            Some(feedback) => {
                if !feedback.begin(0..values.len(), values, 1.0) {
                    return Err(Refused::Input(
                        "the array plus what was not sent before is not finite; nothing has been \
                         encoded"
                            .to_string(),
                    ));
                }
                feedback.due()
            }
        };
        let world_size = rank.saturating_add(1);
        let header =
            Header { kind: Kind::Compressed, rank, world_size, step, bucket: self.fingerprint };
        let mut message = Vec::new();
        let open = header.open(&mut message);
        let begin = open.payload_at();
        let encoded = self.codec.encode(due, step, &mut message);
        let mut kind = Kind::Compressed;
        if encoded == Encoded::Dense || message.len() - begin > size_of_val(due) {
            kind = Kind::Dense;
            message.truncate(begin);
            floats::put(due, &mut message);
        }
        open.close(kind, &mut message);
        if let Some(feedback) = &mut self.feedback {
            match kind {
                Kind::Dense => feedback.due_mut().fill(0.0),
                _ => {
                    let unsent = feedback.due_mut();
                    self.codec.decode_add(&message[begin..], 0, -1.0, unsent)?;
                }
            }
            feedback.commit();
        }
        Ok(message)
    }

    /// The frame of a message that is for this compressor.
    fn open<'a>(&self, message: &'a [u8]) -> Result<Frame<'a>, Refused> {
        let mut reader = Reader::new(message);
        let frame = Frame::read(&mut reader)?;
        reader.finish()?;
        let gradient = matches!(frame.header.kind, Kind::Compressed | Kind::Dense);
        if !gradient || frame.header.bucket != self.fingerprint {
            return Err(Refused::Message(format!(
                "the message is not for this compressor: scheme, settings, seed and length ({}) have to \
                 be those that it was encoded with",
                self.length
            )));
        }
        Ok(frame)
    }

    fn decode(&self, message: &[u8]) -> Result<Vec<f32>, Refused> {
        let frame = self.open(message)?;
        let mut values = vec![0.0; self.length];
        match frame.compressed() {
            Some(payload) => self.codec.decode_add(payload, 0, 1.0, &mut values)?,
            None => floats::add(floats::expect(frame.payload, self.length)?, 1.0, &mut values),
        }
        match floats::first_non_finite(&values) {
            None => Ok(values),
            Some(index) => Err(Refused::Message(format!(
                "the message says {} of element {index}, which no compressor writes",
                values[index]
            ))),
        }
    }

    fn learn(
        &mut self,
        messages: &[PyBackedBytes],
        mean: &[f32],
        step: u64,
    ) -> Result<(), Refused> {
        if let Some(index) = floats::first_non_finite(mean) {
            let words = format!("element {index} of the mean is {}", mean[index]);
            return Err(Refused::Input(words));
        }
        let frames = messages.iter().map(|message| self.open(message));
        let frames = frames.collect::<Result<Vec<_>, Refused>>()?;
        let payloads: Vec<_> = frames.iter().map(Frame::compressed).collect();
        Ok(self.codec.learn_and_commit(&StepMessages { step, messages: &payloads, mean })?)
    }
}
