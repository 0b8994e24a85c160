//! Updates of weights on a GPU, where the gradient and the rule's vectors lie beside them.

use crate::recipe::optimizer::{Now, Rule};
use crate::train::params::{Param, Params};
use anyhow::{Context, Result};
use candle_core::{DType, Device, Tensor};
use gradwire_models::kernels::optimizer::squares_of_tensor;
use std::ops::Range;

/// Vectors beside the flat gradient, on the device of the weights.
pub(super) struct OnDevice {
    pub(super) vectors: Vec<Tensor>,
}

impl OnDevice {
    /// The zero vectors of a rule, if its updates are known to the kernels of `device`.
    pub(super) fn new(rule: &dyn Rule, params: &Params, device: &Device) -> Result<Option<Self>> {
        let known = |param: &Param| rule.kernel(&now(param, 0.0, 1)).is_some();
        if !params.iter().all(known) {
            return Ok(None);
        }
        let zeros = |_: &&str| Tensor::zeros(params.len(), DType::F32, device);
        let vectors = rule.vectors().iter().map(zeros).collect::<Result<_, _>>()?;
        Ok(Some(Self { vectors }))
    }

    /// The values of one of them.
    pub(super) fn values(vector: &Tensor) -> Result<Vec<f32>> {
        vector.to_vec1().context("bringing the optimizer's state to the host")
    }

    /// Replaces all of them.
    pub(super) fn set(&mut self, vectors: &[&[f32]]) -> Result<()> {
        for (own, given) in self.vectors.iter_mut().zip(vectors) {
            assert_eq!(own.elem_count(), given.len(), "optimizer: as many elements as before");
            *own = Tensor::new(*given, own.device())
                .context("bringing the optimizer's state to the GPU")?;
        }
        Ok(())
    }

    /// One update of the parameters that lie `within` this part of the flat gradient, at this rate; the gradient is scaled
    /// down to a norm of `limit` if it is larger, and the result is the norm that it had.
    pub(super) fn step(
        &mut self,
        rule: &dyn Rule,
        params: &Params,
        flat: &[f32],
        (rate, step): (f64, u64),
        (limit, within): (Option<f64>, Range<usize>),
    ) -> Result<f64> {
        let mut gradient = params.send(flat)?.narrow(0, within.start, within.len())?;
        let norm = squares_of_tensor(&gradient)?.sqrt();
        if let Some(factor) = super::factor(norm, limit) {
            gradient = (gradient * f64::from(factor))?;
        }
        for param in params.iter().filter(|param| super::lies_in(&param.range, &within)) {
            let (start, length) = (param.range.start, param.range.len());
            let update =
                rule.kernel(&now(param, rate, step)).context("invariant: the rule has a kernel")?;
            let vectors = self.vectors.iter().map(|vector| vector.narrow(0, start, length));
            let vectors = vectors.collect::<Result<Vec<_>, _>>()?;
            let arrays: Vec<&Tensor> =
                [param.var.as_tensor()].into_iter().chain(&vectors).collect();
            let gradient = gradient.narrow(0, start - within.start, length)?;
            let updated = update.apply(&arrays, Some(&gradient));
            updated.with_context(|| format!("updating {}", param.name))?;
        }
        Ok(norm)
    }
}

/// When an update is, and of which parameter.
pub(super) fn now(param: &Param, rate: f64, step: u64) -> Now<'_> {
    let (name, shape) = (param.name.as_str(), param.var.dims());
    Now { rate, step, name, shape, is_norm_bias: param.is_norm_bias }
}
