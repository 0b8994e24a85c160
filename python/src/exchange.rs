//! One rank's exchange.

use std::collections::HashMap;
use std::sync::{Mutex, TryLockError};
use std::time::Duration;

use gradwire_exchange::{Collective, Error, Layout, Parameter, Solo, Traffic as Counted};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping, PyString};

use crate::errors::{InputError, StateError, counts_from_one, exception, is_of_one_step};
use crate::transport::{Cause, Transport};
use crate::{arrays, settings, states};

/// Turns each rank's gradient into the mean over ranks, bit-identical on all of them.
#[pyclass(frozen, module = "gradwire")]
pub(crate) struct Exchange {
    inner: Mutex<Inner>,
    cause: Cause,
    #[pyo3(get)]
    rank: usize,
    #[pyo3(get)]
    world_size: usize,
    /// The parameters of each bucket.
    #[pyo3(get)]
    buckets: Vec<Vec<String>>,
    /// Each parameter's name, and where its elements lie: first, and one after the last.
    #[pyo3(get)]
    layout: Vec<(String, usize, usize)>,
}

struct Inner {
    /// None once an error has broken the group of ranks: dropping it tells the peers.
    exchange: Option<gradwire_exchange::Exchange>,
    /// The words of that error.
    broken: String,
}

#[pymethods]
impl Exchange {
    #[new]
    #[pyo3(signature = (
        parameters, scheme, transport = None, *, seed = 0, bucketing = None, dense_below = None,
        start_step = None, momentum_correction = None, momentum_masking = None, clip_norm = None,
        measure_every = None, feedback = None, rules = None, force = false, **settings
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn new(
        py: Python<'_>,
        parameters: &Bound<'_, PyAny>,
        scheme: &Bound<'_, PyAny>,
        transport: Option<&Bound<'_, PyAny>>,
        seed: u64,
        bucketing: Option<&Bound<'_, PyAny>>,
        dense_below: Option<usize>,
        start_step: Option<u64>,
        momentum_correction: Option<f64>,
        momentum_masking: Option<bool>,
        clip_norm: Option<f64>,
        measure_every: Option<u64>,
        feedback: Option<&Bound<'_, PyAny>>,
        rules: Option<&Bound<'_, PyAny>>,
        force: bool,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let parameters: HashMap<String, Vec<usize>> = states::dict(parameters)?.extract()?;
        let cause = Cause::default();
        let (around, settings) =
            (PyDict::new(py), settings.cloned().unwrap_or_else(|| PyDict::new(py)));
        if let Some(feedback) = feedback {
            // Whether there is any is a setting of the scheme, and in which form one of the policy.
            match feedback.cast::<PyMapping>() {
                Err(_) => settings.set_item("feedback", feedback)?,
                Ok(form) => {
                    around.set_item("feedback", states::dict(feedback)?)?;
                    // A form asks for feedback, but for a momentum that ranks share, which any scheme may have; an object
                    // says itself whether it has any.
                    if scheme.is_instance_of::<PyString>() && !form.contains("momentum")? {
                        settings.set_item("feedback", true)?;
                    }
                }
            }
        }
        around.set_item("rules", rules)?;
        let scheme = settings::any(scheme, Some(&settings), &cause)?;
        around.set_item("bucketing", bucketing)?;
        around.set_item("dense_below", dense_below)?;
        around.set_item("start_step", start_step)?;
        around.set_item("momentum_correction", momentum_correction)?;
        around.set_item("momentum_masking", momentum_masking)?;
        around.set_item("clip_norm", clip_norm)?;
        around.set_item("measure_every", measure_every)?;
        around.set_item("force", force)?;
        let policy = settings::policy(&*scheme, &around)?;
        let mut parameters: Vec<_> = parameters.into_iter().collect();
        parameters.sort();
        let layout = Layout::shaped(parameters).map_err(|error| exception(&error))?;
        let collective: Box<dyn Collective> = match transport {
            Some(object) => Box::new(Transport::new(object, cause.clone())?),
            None => Box::new(Solo),
        };
        let (rank, world_size) = (collective.rank(), collective.world_size());
        let exchange = gradwire_exchange::Exchange::new(&*scheme, policy, layout, seed, collective)
            .map_err(|error| exception(&error))?;
        let parameters = exchange.layout().parameters();
        let name = |one: &Parameter| one.name.clone();
        let buckets = exchange.buckets().iter();
        let names =
            buckets.map(|one| parameters[one.parameters.clone()].iter().map(name).collect());
        let places = parameters.iter().map(|one| (name(one), one.range.start, one.range.end));
        Ok(Self {
            buckets: names.collect(),
            layout: places.collect(),
            rank,
            world_size,
            cause,
            inner: Mutex::new(Inner { exchange: Some(exchange), broken: String::new() }),
        })
    }

    /// Overwrites `gradient`, flat in the order of `layout`, by its mean over ranks.
    fn allreduce(
        &self,
        py: Python<'_>,
        step: u64,
        gradient: &Bound<'_, PyAny>,
    ) -> PyResult<Traffic> {
        counts_from_one(step)?;
        let mut gradient = arrays::writable(gradient)?;
        let values = gradient.as_slice_mut().map_err(PyErr::from)?;
        let counted = self.with(py, move |exchange| exchange.allreduce(step, &mut *values))?;
        Ok(Traffic(counted))
    }

    /// As `allreduce`, of one group of buckets alone: the others sit the step out.
    fn allreduce_group(
        &self,
        py: Python<'_>,
        step: u64,
        group: usize,
        gradient: &Bound<'_, PyAny>,
    ) -> PyResult<Traffic> {
        counts_from_one(step)?;
        let mut gradient = arrays::writable(gradient)?;
        let values = gradient.as_slice_mut().map_err(PyErr::from)?;
        let counted =
            self.with(py, move |exchange| exchange.allreduce_group(step, group, values))?;
        Ok(Traffic(counted))
    }

    /// Begins a step; nothing is sent yet.
    fn begin(&self, py: Python<'_>, step: u64) -> PyResult<()> {
        counts_from_one(step)?;
        self.with(py, |exchange| {
            exchange.begin(step);
            Ok(())
        })
    }

    /// Overwrites the elements of one group's buckets in the flat `gradient` by their mean.
    fn exchange_group(
        &self,
        py: Python<'_>,
        group: usize,
        gradient: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let mut gradient = arrays::writable(gradient)?;
        let values = gradient.as_slice_mut().map_err(PyErr::from)?;
        self.with(py, move |exchange| exchange.exchange_group(group, values))
    }

    /// Ends the step, after every group: residual and compressors take up what it brought.
    fn finish(&self, py: Python<'_>, gradient: &Bound<'_, PyAny>) -> PyResult<Traffic> {
        let gradient = arrays::readable(gradient)?;
        let values = gradient.as_slice().map_err(PyErr::from)?;
        Ok(Traffic(self.with(py, |exchange| exchange.finish(values))?))
    }

    /// What a step cost whose values the transport has averaged by itself in so many seconds, `short` bytes
    /// being those that they lacked of f32.
    fn _averaged(&self, py: Python<'_>, short: u64, seconds: f64) -> PyResult<Traffic> {
        self.with(py, |exchange| {
            let mut counted = Counted::default();
            counted.parameters = exchange.layout().len() as u64;
            counted.dense_bytes = exchange.dense_bytes();
            counted.wire_bytes = counted.dense_bytes.saturating_sub(short);
            counted.wait = Duration::try_from_secs_f64(seconds).unwrap_or_default();
            Ok(Traffic(counted))
        })
    }

    /// Sets the groups of buckets that travel together: each bucket's number in exactly one.
    fn set_groups(&self, py: Python<'_>, groups: Vec<Vec<usize>>) -> PyResult<()> {
        self.with(py, |exchange| exchange.set_groups(groups))
    }

    /// Multiplies the residual, and what else is kept in the gradient's unit, by `factor`.
    fn rescale(&self, py: Python<'_>, factor: f32) -> PyResult<()> {
        if !factor.is_finite() {
            return Err(InputError::new_err(format!(
                "factor = {factor} is not possible; give a finite number"
            )));
        }
        self.with(py, |exchange| {
            exchange.rescale(factor);
            Ok(())
        })
    }

    /// Gives up: every rank's next or present call raises `AbortedError` with this reason.
    fn abort(&self, py: Python<'_>, step: u64, reason: &str) -> PyResult<()> {
        self.with(py, |exchange| Err(exchange.abort(step, reason)))
    }

    /// Everything of this rank that later messages depend on, as arrays by name.
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let state = self.with(py, |exchange| Ok(exchange.save()))?;
        match self.cause.take() {
            None => states::to_dict(py, state),
            Some(raised) => {
                let error = StateError::new_err(format!("there is no state to save: {raised}"));
                error.set_cause(py, Some(raised));
                Err(error)
            }
        }
    }

    /// Takes up what `state` returned.
    fn load_state(&self, py: Python<'_>, state: &Bound<'_, PyAny>) -> PyResult<()> {
        let state = states::from_dict(state)?;
        self.with(py, |exchange| exchange.restore(&state))
    }
}

impl Exchange {
    /// Calls the exchange without Python's lock. One call at a time: a second one, from another
    /// thread or from the transport, is refused and does not wait.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut gradwire_exchange::Exchange) -> Result<R, Error> + Send,
    ) -> PyResult<R> {
        let result = py.detach(|| {
            let mut inner = match self.inner.try_lock() {
                Ok(inner) => inner,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    return Err("the exchange is in another call; call it from one thread, and not \
                                from its transport"
                        .to_string());
                }
            };
            let Some(mut exchange) = inner.exchange.take() else {
                return Err(format!(
                    "the exchange is broken since an earlier error ({}); make a new one on every rank",
                    inner.broken
                ));
            };
            inner.broken = "a call that did not return".to_string();
            let result = call(&mut exchange);
            match &result {
                Err(error) if breaks(error) => inner.broken = error.to_string(),
                _ => inner.exchange = Some(exchange),
            }
            Ok(result)
        });
        result.map_err(InputError::new_err)?.map_err(|error| {
            let raised = exception(&error);
            let cause = self.cause.take();
            match cause {
                // An interruption is the user's, and is not wrapped.
                Some(cause) if !cause.is_instance_of::<pyo3::exceptions::PyException>(py) => cause,
                cause => {
                    raised.set_cause(py, cause);
                    raised
                }
            }
        })
    }
}

/// Whether ranks may stand at different places after this error. What is refused before anything is
/// sent breaks nothing.
fn breaks(error: &Error) -> bool {
    let before = matches!(error, Error::Input { .. } | Error::State { .. });
    !before && !is_of_one_step(error)
}

/// What one step of one rank cost.
#[pyclass(frozen, module = "gradwire")]
pub(crate) struct Traffic(Counted);

#[pymethods]
impl Traffic {
    /// Bytes of this rank's messages, all headers included.
    #[getter]
    fn wire_bytes(&self) -> u64 {
        self.0.wire_bytes
    }

    /// Bytes that this rank sent of means that it made for others.
    #[getter]
    fn downlink_bytes(&self) -> u64 {
        self.0.downlink_bytes
    }

    /// Bytes of the same messages sent as plain f32, all headers included.
    #[getter]
    fn dense_bytes(&self) -> u64 {
        self.0.dense_bytes
    }

    /// Elements of the gradient.
    #[getter]
    fn parameters(&self) -> u64 {
        self.0.parameters
    }

    /// Buckets that were sent as f32 because their compressed form was larger.
    #[getter]
    fn dense_fallbacks(&self) -> u64 {
        self.0.dense_fallbacks
    }

    /// Bits per parameter: 32 times wire bytes over dense bytes, so that plain f32 takes 32.
    #[getter]
    fn bits_per_parameter(&self) -> f64 {
        self.0.bits_per_parameter()
    }

    /// Seconds to check, compress and frame the gradient.
    #[getter]
    fn encode_seconds(&self) -> f64 {
        self.0.encode.as_secs_f64()
    }

    /// Seconds to send, and to wait for the other ranks.
    #[getter]
    fn wait_seconds(&self) -> f64 {
        self.0.wait.as_secs_f64()
    }

    /// Seconds to check, decode and average the messages.
    #[getter]
    fn decode_seconds(&self) -> f64 {
        self.0.decode.as_secs_f64()
    }

    /// What the compressors tell.
    #[getter]
    fn gauges(&self) -> HashMap<String, f64> {
        self.0.gauges.iter().map(|gauge| (gauge.name.to_string(), gauge.value)).collect()
    }

    fn __repr__(&self) -> String {
        let Counted { wire_bytes, dense_bytes, parameters, .. } = self.0;
        let bits = self.bits_per_parameter();
        format!(
            "Traffic(wire_bytes={wire_bytes}, dense_bytes={dense_bytes}, parameters={parameters}, \
             bits_per_parameter={bits:.3})"
        )
    }
}
