//! What norms, activations, LSTMs and encoder layers are told, whichever arithmetic computes them.

use candle_core::Tensor;
use serde::{Deserialize, Serialize};

/// Added to the variance in [`ops::batch_norm`](crate::ops::batch_norm), as PyTorch's default.
pub const BATCH_NORM_EPSILON: f64 = 1e-5;

/// Weight of the new batch in the running statistics of [`ops::batch_norm`](crate::ops::batch_norm), as PyTorch's default.
pub const BATCH_NORM_MOMENTUM: f64 = 0.1;

/// The form of the Gaussian error linear unit of Hendrycks and Gimpel 2016, "Gaussian Error Linear Units (GELUs)",
/// section 2: `x · Φ(x)` with the distribution function Φ of the standard normal distribution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Gelu {
    /// Φ itself, by the error function: PyTorch's default.
    #[default]
    Exact,
    /// The paper's approximation `x/2 · (1 + tanh(√(2/π) · (x + 0.044715 · x³)))`: PyTorch's `approximate="tanh"`.
    Tanh,
}

/// Added to the variance in [`ops::layer_norm`](crate::ops::layer_norm), as PyTorch's default.
pub const LAYER_NORM_EPSILON: f64 = 1e-5;

/// Scale and shift of a layer norm over rows of width `D`.
pub struct Norm {
    /// `[D]`.
    pub weight: Tensor,
    /// `[D]`.
    pub bias: Tensor,
}

/// A dense layer from width `I` to width `O`.
pub struct Dense {
    /// `[O, I]`.
    pub weight: Tensor,
    /// `[O]`.
    pub bias: Tensor,
}

/// Multi-head self-attention of width `D` in `nn.MultiheadAttention`'s layout, with the norm before it.
pub struct SelfAttention {
    /// What normalises the rows.
    pub norm: Norm,
    /// From `D` to queries, keys and values behind one another, `3D`; each of them head after head.
    pub in_proj: Dense,
    /// From the heads' results side by side, `D`, to `D`.
    pub out_proj: Dense,
    /// Heads, a divisor of `D`.
    pub heads: usize,
}

/// A feed-forward network of width `D` and inner width `F`, with the norm before it.
pub struct FeedForward {
    /// What normalises the rows.
    pub norm: Norm,
    /// From `D` to `F`.
    pub linear1: Dense,
    /// From `F` to `D`.
    pub linear2: Dense,
    /// The form of GELU between the two.
    pub gelu: Gelu,
}

/// One direction of an LSTM layer with hidden width `H` on inputs of width `D`, in `nn.LSTM`'s
/// layout: gates input, forget, cell, output.
pub struct Lstm {
    /// `[4H, D]`.
    pub weight_ih: Tensor,
    /// `[4H, H]`.
    pub weight_hh: Tensor,
    /// `[4H]`.
    pub bias_ih: Tensor,
    /// `[4H]`.
    pub bias_hh: Tensor,
}
