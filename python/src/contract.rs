//! The laws of schemes, run over one.

use gradwire_exchange::contract;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{ViolationError, exception};
use crate::own::Own;
use crate::settings;
use crate::transport::Cause;

/// Runs the laws over a scheme; a law that is broken is a `ViolationError`.
#[pyfunction]
#[pyo3(signature = (scheme, **settings))]
pub(crate) fn check_contract(
    py: Python<'_>,
    scheme: &Bound<'_, PyAny>,
    settings: Option<&Bound<'_, PyDict>>,
) -> PyResult<()> {
    let cause = Cause::default();
    let mut forms = vec![settings::any(scheme, settings, &cause)?];
    if !scheme.is_instance_of::<pyo3::types::PyString>() && !scheme.hasattr("combine")? {
        // Of a scheme whose mean is that of its messages the messages have laws of their own.
        forms.push(Box::new(Own::new(scheme, cause.clone(), true)?));
    }
    for form in forms {
        form.validate().map_err(|error| exception(&error))?;
        if let Err(violation) = py.detach(|| contract::check(&*form)) {
            let error = ViolationError::new_err(violation.to_string());
            error.set_cause(py, cause.take());
            return Err(error);
        }
    }
    Ok(())
}
