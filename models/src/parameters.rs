//! Parameters and settings of norms, activations, LSTMs and encoder layers, whichever arithmetic computes them.

use candle_core::{Result, Tensor, Var};
use serde::{Deserialize, Serialize};

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
    /// Which rows of its text a row attends to.
    pub reach: Reach,
}

/// Which rows of its text a row attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All of them.
    Text,
    /// Itself and those before it (causal attention).
    Past {
        /// Queries and keys are turned by angles that grow with their positions, so that a score depends on the distance
        /// of the two (Su et al. 2021, "RoFormer", section 3.2.2): values `i` and `i + width / 2` of a head at position
        /// `p` by `p · 10000^(−2i / width)`. Heads have an even width.
        rotary: bool,
    },
}

impl Reach {
    /// Whether rows attend to no later ones.
    pub(crate) fn causal(self) -> bool {
        matches!(self, Self::Past { .. })
    }

    /// Whether queries and keys are turned.
    pub(crate) fn rotary(self) -> bool {
        matches!(self, Self::Past { rotary: true })
    }
}

/// Sines and cosines by which [`Reach::Past`] turns heads of an even `width`, `length` positions of `width / 2` each.
pub(crate) fn turns(length: usize, width: usize) -> (Vec<f32>, Vec<f32>) {
    let angles = (0..length).flat_map(|position| {
        let rate = |i: usize| 10_000f64.powf(-2.0 * i as f64 / width as f64);
        (0..width / 2).map(move |i| position as f64 * rate(i))
    });
    angles.map(|angle| (angle.sin() as f32, angle.cos() as f32)).unzip()
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

/// What is applied to each value of feature maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// Nothing.
    Identity,
    /// `max(0, x)`; its derivative at 0 is 0.
    Relu,
    /// GELU in that form.
    Gelu(Gelu),
}

/// The parameters of a batch norm, `[channels]` each.
#[derive(Clone, Copy)]
pub struct Affine<'a> {
    /// What is added before the normalisation, if anything: the bias of the convolution before.
    pub shift: Option<&'a Tensor>,
    /// The scale γ after it; one if there is none.
    pub gamma: Option<&'a Tensor>,
    /// The summand β after it.
    pub beta: &'a Tensor,
}

/// The running statistics of a batch norm, `[channels]` each, and how they move.
///
/// They are bias-corrected exponential averages: with `t` training passes including this one, pass `t` moves them
/// towards the statistics of its batch by `m / (1 − (1 − m)^t)` for the momentum `m`. So the first pass replaces
/// whatever they were, and after every pass they are `Σ (1 − m)^(t − i) · batch i`, divided by the sum of these weights:
/// they have settled from the beginning. PyTorch moves them by `m` at every pass, from a mean of 0 and a variance of 1,
/// whose weight after `t` passes is `(1 − m)^t`: 0.19 after 16 with its momentum of 0.1. The two rules agree once
/// `(1 − m)^t` is nothing.
#[derive(Clone, Debug)]
pub struct Running {
    /// Averages of the batches' means.
    pub mean: Var,
    /// Averages of the batches' unbiased variances.
    pub variance: Var,
    /// The training passes so far, `[]`; PyTorch's `num_batches_tracked`, but f32, as all variables are. It is rounded
    /// when it is read, because a mean over ranks may have left a fraction.
    pub passes: Var,
    /// The weight of a new batch, above 0 and at most 1, in PyTorch's sense (the `m` above).
    pub momentum: f64,
    /// What is added to the variance that normalises.
    pub epsilon: f64,
}

impl Running {
    /// PyTorch's default of [`Running::momentum`].
    pub const MOMENTUM: f64 = 0.1;

    /// PyTorch's default of [`Running::epsilon`].
    pub const EPSILON: f64 = 1e-5;

    /// The number of passes after which the statistics count as settled, whatever the momentum: also the last that f32
    /// tells from the next one.
    pub const SETTLED: f32 = 16_777_216.0;

    /// Statistics that begin with these and no pass, and move with PyTorch's momentum and epsilon.
    ///
    /// # Errors
    /// Those of candle.
    pub fn new(mean: &Tensor, variance: &Tensor) -> Result<Self> {
        Ok(Self {
            mean: Var::from_tensor(mean)?,
            variance: Var::from_tensor(variance)?,
            passes: Var::zeros((), mean.dtype(), mean.device())?,
            momentum: Self::MOMENTUM,
            epsilon: Self::EPSILON,
        })
    }

    /// Counts one more training pass and returns by how much it moves the statistics.
    pub(crate) fn count(&self) -> Result<f64> {
        let before = self.passes.as_detached_tensor().flatten_all()?.get(0)?.to_scalar::<f32>()?;
        let passes = Self::next(before);
        self.passes.set(&Tensor::full(passes, self.passes.shape(), self.passes.device())?)?;
        Ok(Self::weight(self.momentum, passes))
    }

    /// The number of the pass after so many.
    pub(crate) fn next(before: f32) -> f32 {
        before.round().clamp(0., Self::SETTLED - 1.) + 1.
    }

    /// How far the pass of this number, counted from 1, moves the statistics.
    pub(crate) fn weight(momentum: f64, passes: f32) -> f64 {
        if passes <= 1. {
            // Rounding would leave something of large values.
            return 1.;
        }
        momentum / (1. - (1. - momentum).powf(f64::from(passes)))
    }
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

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    fn running(momentum: f64) -> Running {
        let zeros = Tensor::new(&[0f32], &Device::Cpu).unwrap();
        Running { momentum, ..Running::new(&zeros, &zeros).unwrap() }
    }

    #[test]
    fn passes_weigh_as_in_the_corrected_average() {
        for momentum in [0.1, 0.4, 1.0] {
            let running = running(momentum);
            // The first pass leaves nothing of what was there.
            let mut average = 1e3;
            for t in 1..40 {
                let batch = |i: usize| (i as f64 * 1.3).sin();
                let weight = running.count().unwrap();
                average = average * (1. - weight) + batch(t) * weight;
                let weights = |i: usize| (1. - momentum).powi((t - i) as i32);
                let sum: f64 = (1..=t).map(|i| weights(i) * batch(i)).sum();
                let expected = sum / (1..=t).map(weights).sum::<f64>();
                assert!((average - expected).abs() < 1e-12, "{momentum}, pass {t}");
            }
        }
    }

    #[test]
    fn passes_are_rounded_and_stay_countable() {
        let running = running(0.1);
        let set = |value: f32| running.passes.set(&Tensor::new(value, &Device::Cpu).unwrap());
        let passes = || running.passes.to_scalar::<f32>().unwrap();
        for (before, after) in [(2.75, 4.), (-3., 1.), (1e12, Running::SETTLED)] {
            set(before).unwrap();
            running.count().unwrap();
            assert_eq!(passes(), after);
        }
        assert_eq!(running.count().unwrap(), 0.1, "settled");
    }
}
