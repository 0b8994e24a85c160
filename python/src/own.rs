//! A scheme that is an object of Python: `encode(gradient, step)` gives bytes, `decode(bytes, length)` an array.
//!
//! The object that is given is a template: each bucket of each exchange has a deep copy of it. So one
//! object may serve several exchanges, and what is learnt from one bucket stays there.
//!
//! A bucket takes two rounds: messages; then the checksum of the mean that each rank made of them, so that a
//! `decode` that fails on one rank, or depends on more than the message, is found before anything is applied. A message that is not shorter than plain f32 becomes plain f32: of the gradient,
//! or of what the message stands for, where the object reckons with just that (it has `combine` or `state`).

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use gradwire_exchange::wire::{Fault, floats};
use gradwire_exchange::{
    BucketGradient, Built, Compressor, Encoded, Error, Law, Next, Properties, Reducer, Result,
    Round, Scheme, Seat, Soundness, State, StepEnd,
};
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyType};

use crate::errors::SettingError;
use crate::transport::Cause;
use crate::{arrays, states};

/// How many times as long as plain f32 a message may be before it is taken for a mistake.
const LONGEST: usize = 16;
/// What is allowed beside that: headers of short messages.
const SLACK: usize = 1 << 16;

/// The scheme.
pub(crate) struct Own {
    template: Py<PyAny>,
    properties: Properties,
    stateful: bool,
    combines: bool,
    /// Whether each bucket is a codec, for the laws of messages, and not a reducer.
    codec: bool,
    cause: Cause,
}

impl Own {
    /// Looks at the object: it has the methods, and can be copied. What it raises later goes to `cause`.
    pub(crate) fn new(object: &Bound<'_, PyAny>, cause: Cause, codec: bool) -> PyResult<Self> {
        let kind = object.get_type().name()?.to_string();
        let refuse = |words: String| Err(SettingError::new_err(words));
        if let Ok(class) = object.cast::<PyType>() {
            let name = class.name()?;
            return refuse(format!(
                "the scheme is the class `{name}`; give an object of it: `{name}()`"
            ));
        }
        let has = |name: &str| object.getattr(name).is_ok_and(|method| method.is_callable());
        if let Some(missing) = ["encode", "decode"].into_iter().find(|name| !has(name)) {
            return refuse(format!(
                "a scheme is a name of `gradwire.schemes()` or an object with `encode(gradient, step)` and \
                 `decode(message, length)`, and this `{kind}` has no `{missing}`"
            ));
        }
        let stateful = has("state");
        if stateful != has("load_state") {
            return refuse(format!(
                "scheme `{kind}` has one of `state` and `load_state` and not the other; write both, or \
                 neither where no message depends on an earlier one"
            ));
        }
        if let Err(error) = copy(object) {
            let words = format!(
                "scheme `{kind}`: each bucket has a copy, and copy.deepcopy raises {error}"
            );
            return refuse(words);
        }
        let law = match object.getattr("law") {
            Err(_) => Law::Biased,
            Ok(law) => match law.extract::<String>().as_deref() {
                Ok("exact") => Law::Exact,
                Ok("unbiased") => Law::Unbiased,
                Ok("contraction") => Law::Contraction,
                Ok("biased") => Law::Biased,
                _ => {
                    return refuse(format!(
                        "scheme `{kind}`: its law is {law}; write \"exact\", \"unbiased\", \"contraction\" \
                         or \"biased\""
                    ));
                }
            },
        };
        let feedback = match object.getattr("feedback") {
            Err(_) => true,
            Ok(feedback) => feedback.extract().map_err(|_| {
                SettingError::new_err(format!(
                    "scheme `{kind}`: its feedback is {feedback}; write True or False"
                ))
            })?,
        };
        let (name, soundness) = (forever(kind), Soundness::Sound);
        let properties =
            Properties { name, line: "a scheme in Python", paper: "", law, soundness, feedback };
        let (template, combines) = (object.clone().unbind(), has("combine"));
        Ok(Self { template, properties, stateful, combines, codec, cause })
    }

    fn copy_for(&self, seat: &Seat) -> ObjectCopy {
        let made = Python::attach(|py| {
            let object =
                copy(self.template.bind(py)).map_err(|raised| self.cause.note(py, raised))?;
            let kept = if self.stateful { saved(&object) } else { Ok(State::default()) };
            Ok((object.unbind(), kept.map_err(|raised| self.cause.note(py, raised))?))
        });
        let (object, kept) = match made {
            Ok((object, kept)) => (Ok(object), kept),
            Err(words) => (Err(words), State::default()),
        };
        ObjectCopy {
            name: self.properties.name,
            object,
            stateful: self.stateful,
            combines: self.combines,
            kept,
            moved: false,
            length: seat.length,
            cause: self.cause.clone(),
        }
    }
}

/// A name that stays, the same one each time.
fn forever(name: String) -> &'static str {
    static NAMES: LazyLock<Mutex<HashMap<String, &'static str>>> = LazyLock::new(Mutex::default);
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    names.entry(name).or_insert_with_key(|name| name.clone().leak())
}

fn copy<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    object.py().import("copy")?.call_method1("deepcopy", (object,))
}

/// What the object's `state` returns.
fn saved(object: &Bound<'_, PyAny>) -> PyResult<State> {
    let state = object.call_method0("state")?;
    let Ok(state) = state.cast::<PyDict>() else {
        let kind = state.get_type().name()?;
        return Err(SettingError::new_err(format!(
            "state returned a `{kind}`; return a dict of arrays"
        )));
    };
    states::from_dict(state)
}

impl Scheme for Own {
    fn properties(&self) -> Properties {
        self.properties
    }

    fn build(&self, seat: &Seat) -> Built {
        let copy = self.copy_for(seat);
        match self.codec {
            true => Built::Codec(Box::new(copy)),
            false => Built::Reducer(Box::new(Bucket { copy, mean: Vec::new() })),
        }
    }
}

/// The object's copy for one bucket.
struct ObjectCopy {
    name: &'static str,
    /// The object; or why there is none, which fails every step.
    object: Result<Py<PyAny>, String>,
    stateful: bool,
    combines: bool,
    /// Its state after the last step that ended well.
    kept: State,
    /// Whether it has encoded since: a step that failed is taken back before the next.
    moved: bool,
    length: usize,
    cause: Cause,
}

impl ObjectCopy {
    /// What `call` returns of the object; what it raises is noted, and comes as words.
    fn with<R>(
        &self,
        call: impl FnOnce(Python<'_>, &Bound<'_, PyAny>) -> PyResult<R>,
    ) -> Result<R, String> {
        let object = self.object.as_ref().map_err(String::clone)?;
        Python::attach(|py| {
            call(py, object.bind(py)).map_err(|raised| {
                let words = self.cause.note(py, raised);
                format!("scheme `{}`: {words}", self.name)
            })
        })
    }

    fn encode(&mut self, gradient: &[f32], step: u64) -> Result<Vec<u8>, String> {
        if self.moved && self.stateful {
            self.load(&self.kept)?;
        }
        self.moved = true;
        let most = size_of_val(gradient) * LONGEST + SLACK;
        self.with(|py, object| {
            let message = object.call_method1("encode", (PyArray1::from_slice(py, gradient), step))?;
            let Ok(message) = message.cast::<PyBytes>() else {
                let kind = message.get_type().name()?;
                return Err(SettingError::new_err(format!(
                    "encode returned a `{kind}`; return `bytes`, which nobody can change afterwards"
                )));
            };
            let message = message.as_bytes();
            if message.len() > most {
                return Err(SettingError::new_err(format!(
                    "encode returned {} bytes for a gradient of {}; more than {most} are taken for a mistake",
                    message.len(),
                    size_of_val(gradient),
                )));
            }
            Ok(message.to_vec())
        })
    }

    /// Calls `take` with what a message stands for.
    fn decode<R>(&self, message: &[u8], take: impl FnOnce(&[f32]) -> R) -> Result<R, String> {
        self.with(|py, object| {
            let decoded =
                object.call_method1("decode", (PyBytes::new(py, message), self.length))?;
            read("decode", &decoded, self.length, take)
        })
    }

    fn load(&self, state: &State) -> Result<(), String> {
        self.with(|py, object| {
            object.call_method1("load_state", (states::to_dict(py, state.clone())?,))?;
            Ok(())
        })
    }

    /// The step has succeeded.
    fn settle(&mut self) {
        if self.stateful && self.moved {
            match self.with(|_, object| saved(object)) {
                Ok(state) => self.kept = state,
                Err(words) => self.object = Err(words),
            }
        }
        self.moved = false;
    }

    fn put(&self, state: &mut State) {
        if let Err(words) = &self.object {
            Python::attach(|py| self.cause.note(py, SettingError::new_err(words.clone())));
        }
        self.kept.clone().into_entries().for_each(|(name, entry)| state.insert(name, entry));
    }

    fn take_up(&mut self, state: &State) -> Result<()> {
        if self.stateful {
            let refuse = |problem| Error::State { entry: self.name.to_string(), problem };
            // What a failure leaves half loaded is taken back before the next message.
            self.moved = true;
            self.load(state).map_err(refuse)?;
            self.kept = state.clone();
        }
        self.moved = false;
        Ok(())
    }
}

/// Calls `take` with the numbers that a method returned: `length` of them, all finite.
fn read<R>(
    method: &str,
    returned: &Bound<'_, PyAny>,
    length: usize,
    take: impl FnOnce(&[f32]) -> R,
) -> PyResult<R> {
    let refuse =
        |problem: String| Err(SettingError::new_err(format!("{method} returned {problem}")));
    let array = match arrays::readable(returned) {
        Ok(array) => array,
        Err(error) => return refuse(format!("what does not fit: {}", error.value(returned.py()))),
    };
    let values = array.as_slice().map_err(PyErr::from)?;
    if values.len() != length {
        return refuse(format!("{} elements, and the gradient has {length}", values.len()));
    }
    match floats::first_non_finite(values) {
        Some(at) => refuse(format!("{} as element {at}", values[at])),
        None => Ok(take(values)),
    }
}

/// A bucket of an exchange.
struct Bucket {
    copy: ObjectCopy,
    mean: Vec<f32>,
}

impl Bucket {
    /// Posts this rank's message.
    fn say(&mut self, due: &[f32], round: &mut Round<'_>) -> Result<(), String> {
        let message = self.copy.encode(due, round.step())?;
        if message.len() < size_of_val(due) {
            round.allgather(&message);
            return Ok(());
        }
        let mut plain = Vec::with_capacity(size_of_val(due));
        if self.copy.combines || self.copy.stateful {
            self.copy.decode(&message, |values| floats::put(values, &mut plain))?;
        } else {
            floats::put(due, &mut plain);
        }
        round.allgather(&plain);
        Ok(())
    }

    /// Takes the mean of all ranks' messages, and of this rank's what it leaves unsent.
    fn hear(&mut self, residual: Option<&mut [f32]>, round: &Round<'_>) -> Result<(), String> {
        let mut residual = residual;
        self.mean.clear();
        self.mean.resize(self.copy.length, 0.0);
        for (rank, message) in round.messages().enumerate() {
            let (mean, mine) =
                (&mut self.mean, residual.as_deref_mut().filter(|_| rank == round.rank()));
            let add = |values: &[f32]| {
                mean.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
                if let Some(left) = mine {
                    left.iter_mut().zip(values).for_each(|(left, value)| *left -= value);
                }
            };
            let blame = |problem| format!("the message of rank {rank}: {problem}");
            if message.len() < self.copy.length * size_of::<f32>() {
                self.copy.decode(message, add).map_err(blame)?;
            } else {
                let mut plain = vec![0.0; self.copy.length];
                let values = floats::expect(message, plain.len())
                    .map_err(|fault| blame(fault.to_string()))?;
                floats::add(values, 1.0, &mut plain);
                add(&plain);
            }
        }
        let share = 1.0 / round.world_size() as f32;
        self.mean.iter_mut().for_each(|value| *value *= share);
        self.combine(round.step())
    }

    /// Lets a scheme that has `combine(mean, step)` say what the mean of the messages stands for.
    fn combine(&mut self, step: u64) -> Result<(), String> {
        if !self.copy.combines {
            return Ok(());
        }
        self.mean = self.copy.with(|py, object| {
            let combined =
                object.call_method1("combine", (PyArray1::from_slice(py, &self.mean), step))?;
            read("combine", &combined, self.mean.len(), <[f32]>::to_vec)
        })?;
        Ok(())
    }

    /// Posts a checksum of the mean.
    fn vouch(&self, round: &mut Round<'_>) {
        let mut checksum = crc32fast::Hasher::new();
        self.mean.iter().for_each(|value| checksum.update(&value.to_bits().to_le_bytes()));
        round.allgather(&checksum.finalize().to_le_bytes());
    }

    /// Compares the ranks' checksums.
    fn compare(&self, round: &Round<'_>) -> Result<(), String> {
        let mut checksums = round.messages();
        let first = checksums.next();
        match checksums.position(|other| Some(other) != first) {
            None => Ok(()),
            Some(at) => Err(format!(
                "scheme `{}`: the same messages are another mean on rank {} than on rank 0; decode must \
                 depend on the message, the length and what all ranks have in common, and on nothing else",
                self.copy.name,
                at + 1
            )),
        }
    }
}

impl Reducer for Bucket {
    fn reduce(&mut self, bucket: &mut BucketGradient<'_>, round: &mut Round<'_>) -> Result<Next> {
        let (rank, step) = (round.rank(), round.step());
        let give_up = |reason| Error::Aborted { rank, step, reason };
        match round.number() {
            0 => {
                self.say(bucket.due(), round).map_err(give_up)?;
                return Ok(Next::Again);
            }
            1 => {
                self.hear(bucket.parts_mut().1, round).map_err(give_up)?;
                self.vouch(round);
                return Ok(Next::Again);
            }
            _ => self.compare(round).map_err(give_up)?,
        }
        bucket.parts_mut().0.copy_from_slice(&self.mean);
        Ok(Next::Done)
    }

    fn commit(&mut self) {
        self.copy.settle();
    }

    fn save(&self, state: &mut State) {
        self.copy.put(state);
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        self.copy.take_up(state)
    }
}

/// A bucket for the laws of messages.
impl Compressor for ObjectCopy {
    fn encode(&mut self, gradient: &[f32], step: u64, out: &mut Vec<u8>) -> Encoded {
        match ObjectCopy::encode(self, gradient, step) {
            Ok(message) => out.extend(message),
            // No copy decodes this, so that the law is broken that is looked at.
            Err(words) => self.object = Err(words),
        }
        Encoded::Message
    }

    fn decode_add(&self, wire: &[u8], _start: usize, weight: f32, sum: &mut [f32]) -> Result<()> {
        let add = |values: &[f32]| {
            sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += weight * value);
        };
        let fault = |_| Error::Wire(Fault::Field { field: "message", found: wire.len() as u64 });
        self.decode(wire, add).map_err(fault)
    }

    fn commit(&mut self, _end: &StepEnd<'_>) {
        self.settle();
    }

    fn save(&self, state: &mut State) {
        self.put(state);
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        self.take_up(state)
    }
}
