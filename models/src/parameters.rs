//! What batch norm and LSTMs are told, whichever arithmetic computes them.

use candle_core::Tensor;

/// Added to the variance in [`ops::batch_norm`](crate::ops::batch_norm), as PyTorch's default.
pub const BATCH_NORM_EPSILON: f64 = 1e-5;

/// Weight of the new batch in the running statistics of [`ops::batch_norm`](crate::ops::batch_norm), as PyTorch's default.
pub const BATCH_NORM_MOMENTUM: f64 = 0.1;

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
