//! NumPy arrays as slices: what is refused, and in which words.

use numpy::{
    PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyReadwriteArrayDyn, PyUntypedArray,
    PyUntypedArrayMethods,
};
use pyo3::prelude::*;

use crate::errors::InputError;

/// An array of f32, to be read.
pub(crate) fn readable<'py>(given: &Bound<'py, PyAny>) -> PyResult<PyReadonlyArrayDyn<'py, f32>> {
    let array = of_floats(given)?;
    array.try_readonly().map_err(|_| busy())
}

/// An array of f32, to be written.
pub(crate) fn writable<'py>(given: &Bound<'py, PyAny>) -> PyResult<PyReadwriteArrayDyn<'py, f32>> {
    let array = of_floats(given)?;
    array.try_readwrite().map_err(|_| {
        let read_only = "the array is read-only, and the mean is written to it; give a copy";
        let writable = array.as_untyped().getattr("flags").and_then(|f| f.getattr("writeable"));
        match writable.and_then(|writable| writable.is_truthy()) {
            Ok(true) => busy(),
            _ => InputError::new_err(read_only),
        }
    })
}

fn busy() -> PyErr {
    InputError::new_err("the array is in use by another call; give each call an array of its own")
}

/// `given` as an array of f32 whose elements lie end to end.
fn of_floats<'a, 'py>(given: &'a Bound<'py, PyAny>) -> PyResult<&'a Bound<'py, PyArrayDyn<f32>>> {
    let Ok(untyped) = given.cast::<PyUntypedArray>() else {
        let kind = given.get_type().name()?;
        let words = format!("a NumPy array of float32 is needed, and this is of type `{kind}`");
        return Err(InputError::new_err(words));
    };
    let Ok(array) = given.cast::<PyArrayDyn<f32>>() else {
        let words = format!(
            "the array's dtype is {}; convert it with `array.astype(numpy.float32)`",
            untyped.dtype()
        );
        return Err(InputError::new_err(words));
    };
    if !array.is_c_contiguous() {
        let words =
            "the array's elements do not lie end to end; give `numpy.ascontiguousarray(array)`";
        return Err(InputError::new_err(words));
    }
    Ok(array)
}
