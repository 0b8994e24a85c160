//! Activations of tensors, composed from candle's operations.

use candle_core::{Result, Tensor};

use crate::parameters::{Activation, Gelu};

/// Applies the activation to each element.
pub(crate) fn activate(xs: &Tensor, activation: Activation) -> Result<Tensor> {
    match activation {
        Activation::Identity => Ok(xs.clone()),
        Activation::Relu => relu(xs),
        Activation::Gelu(form) => gelu(xs, form),
    }
}

/// GELU by its definition: candle's own takes some constants of its derivative with six digits.
pub(crate) fn gelu(xs: &Tensor, form: Gelu) -> Result<Tensor> {
    let below = match form {
        Gelu::Exact => (xs * std::f64::consts::FRAC_1_SQRT_2)?.erf()?,
        Gelu::Tanh => {
            let inner = (xs + (xs.sqr()?.mul(xs)? * 0.044_715)?)?;
            (inner * std::f64::consts::FRAC_2_PI.sqrt())?.tanh()?
        }
    };
    xs * ((below + 1.)? * 0.5)?
}

/// `max(xs, 0)`; the gradient at exactly 0 is 0, as PyTorch's, and NaN stays NaN.
pub(crate) fn relu(xs: &Tensor) -> Result<Tensor> {
    xs.le(0f32)?.where_cond(&xs.zeros_like()?, xs)
}
