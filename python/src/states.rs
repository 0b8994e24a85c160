//! Saved state as a dictionary of NumPy arrays.

use gradwire_exchange::{Entry, State};
use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::StateError;

/// Each entry as an array: bytes as uint8, numbers as float32, counters as uint64.
pub(crate) fn to_dict(py: Python<'_>, state: State) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    for (name, entry) in state.into_entries() {
        match entry {
            Entry::Bytes(values) => dict.set_item(name, PyArray1::from_vec(py, values))?,
            Entry::F32(values) => dict.set_item(name, PyArray1::from_vec(py, values))?,
            Entry::U64(values) => dict.set_item(name, PyArray1::from_vec(py, values))?,
        }
    }
    Ok(dict)
}

/// Any mapping as a dictionary.
pub(crate) fn dict<'py>(mapping: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
    match mapping.cast::<PyDict>() {
        Ok(dict) => Ok(dict.clone()),
        Err(_) => Ok(mapping.py().get_type::<PyDict>().call1((mapping,))?.cast_into::<PyDict>()?),
    }
}

/// What [`to_dict`] made, in any mapping.
pub(crate) fn from_dict(mapping: &Bound<'_, PyAny>) -> PyResult<State> {
    let mut state = State::default();
    for (name, value) in dict(mapping)? {
        let Ok(name) = name.extract::<String>() else {
            return Err(StateError::new_err(format!("saved state: {name} is no entry's name")));
        };
        let entry = entry(&value).ok_or_else(|| {
            StateError::new_err(format!(
                "saved state: entry `{name}` is no one-dimensional array of uint8, float32 or uint64"
            ))
        })?;
        state.insert(name, entry);
    }
    Ok(state)
}

fn entry(value: &Bound<'_, PyAny>) -> Option<Entry> {
    fn values<T: numpy::Element + Copy>(value: &Bound<'_, PyAny>) -> Option<Vec<T>> {
        value.cast::<PyArray1<T>>().ok()?.try_readonly().ok()?.as_array().to_vec().into()
    }
    values(value)
        .map(Entry::Bytes)
        .or_else(|| values(value).map(Entry::F32))
        .or_else(|| values(value).map(Entry::U64))
}
