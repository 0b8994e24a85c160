//! A scheme and what surrounds it, from Python's keyword arguments.

use gradwire_exchange::{Bucketing, Law, Policy, Scheme, SchemeConfig, Seat, Soundness};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::{Map, Value, json};

use crate::errors::{SettingError, exception};
use crate::own::Own;
use crate::transport::Cause;

/// Of each scheme by the name of its file, its settings and what their definitions say of them.
const DOCS: &[(&str, &[(&str, &str)])] = include!(concat!(env!("OUT_DIR"), "/docs.rs"));

/// Everything about every scheme, as JSON.
#[pyfunction]
pub(crate) fn describe_schemes() -> PyResult<String> {
    let all: Vec<Value> = SchemeConfig::all().iter().map(describe).collect::<PyResult<_>>()?;
    Ok(Value::from(all).to_string())
}

fn describe(scheme: &SchemeConfig) -> PyResult<Value> {
    let about = scheme.about();
    let defaults = serde_json::to_value(scheme).map_err(|error| refuse(about.name, error))?;
    let file = about.name.replace('-', "_");
    let docs = DOCS.iter().find(|(of, _)| *of == file).map_or(&[][..], |(_, docs)| docs);
    let setting = |(name, doc): &(&str, &str)| json!({ "name": name, "default": defaults.get(name), "doc": doc });
    let (feedback, reason) = match scheme.properties().soundness {
        Soundness::Sound => ("sound", None),
        Soundness::Unsound(reason) => ("unsound", Some(reason)),
        Soundness::Lossless => ("lossless", None),
    };
    let law = match scheme.properties().law {
        Law::Exact => "exact",
        Law::Unbiased => "unbiased",
        Law::Contraction => "contraction",
        Law::Biased => "biased",
    };
    Ok(json!({
        "name": about.name,
        "line": about.line,
        "paper": about.paper,
        "law": law,
        "feedback": feedback,
        "feedback_reason": reason,
        "one_message": scheme.codec(&Seat::alone(1, 0)).is_some(),
        "settings": docs.iter().map(setting).collect::<Vec<_>>(),
    }))
}

/// The scheme of this name with these settings, or one that is an object.
pub(crate) fn any(
    given: &Bound<'_, PyAny>,
    settings: Option<&Bound<'_, PyDict>>,
    cause: &Cause,
) -> PyResult<Box<dyn Scheme>> {
    if let Ok(name) = given.extract::<String>() {
        return Ok(Box::new(scheme(&name, settings)?));
    }
    let own = Own::new(given, cause.clone(), false)?;
    if let Some((name, _)) = settings.and_then(|settings| settings.iter().next()) {
        let words = format!(
            "scheme `{}` has no setting `{name}`; give it to the object itself",
            own.about().name
        );
        return Err(SettingError::new_err(words));
    }
    Ok(Box::new(own))
}

/// The scheme of this name with these settings.
pub(crate) fn scheme(name: &str, settings: Option<&Bound<'_, PyDict>>) -> PyResult<SchemeConfig> {
    let mut table = match settings {
        Some(settings) => table(settings, |problem| refuse(name, problem))?,
        None => Map::new(),
    };
    table.insert("kind".to_string(), name.into());
    serde_json::from_value(table.into()).map_err(|error| refuse(name, error))
}

fn refuse(scheme: &str, problem: impl std::fmt::Display) -> PyErr {
    SettingError::new_err(format!(
        "scheme `{scheme}`: {problem}; `gradwire.schemes()` lists names and settings"
    ))
}

/// What surrounds the scheme, from the keyword arguments that were given, where `bucketing` may be a
/// number of bytes and `start_step` stands for the uncompressed steps before it.
pub(crate) fn policy(scheme: &dyn Scheme, given: &Bound<'_, PyDict>) -> PyResult<Policy> {
    let refuse = |problem: String| SettingError::new_err(format!("policy: {problem}"));
    let mut table = table(given, refuse)?;
    table.retain(|_, value| !value.is_null());
    if let Some(bytes) = table.get("bucketing").and_then(Value::as_u64) {
        table.insert("bucketing".to_string(), json!({ "bytes": bytes }));
    }
    for rule in table.get_mut("rules").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(scheme) = rule.get_mut("scheme").filter(|scheme| scheme.is_string()) {
            *scheme = json!({ "kind": scheme.take() });
        }
    }
    if let Some(step) = table.remove("start_step") {
        let Some(step) = step.as_u64().filter(|step| *step > 0) else {
            return Err(refuse(format!("start_step = {step} is not possible; steps count from 1")));
        };
        table.insert("warmup_steps".to_string(), (step - 1).into());
    }
    let policy: Policy =
        serde_json::from_value(table.into()).map_err(|error| refuse(error.to_string()))?;
    let policy = policy.or(scheme.default_policy());
    policy.validate(scheme).map_err(|error| exception(&error))?;
    Ok(Policy { bucketing: policy.bucketing.or(Some(Bucketing::Whole)), ..policy })
}

/// Keyword arguments as JSON has them.
fn table(
    given: &Bound<'_, PyDict>,
    refuse: impl Fn(String) -> PyErr,
) -> PyResult<Map<String, Value>> {
    let py = given.py();
    let strict = PyDict::new(py);
    strict.set_item("allow_nan", false)?;
    // NumPy's numbers are settings, too.
    strict.set_item("default", py.import("operator")?.call_method1("methodcaller", ("item",))?)?;
    let text = py.import("json")?.call_method("dumps", (given,), Some(&strict));
    let text: String = text.map_err(|error| refuse(error.value(py).to_string()))?.extract()?;
    serde_json::from_str(&text).map_err(|error| refuse(error.to_string()))
}
