//! Softmax cross-entropy with label smoothing: loss and gradient in one pass over the logits.

use candle_core::{Result, Shape, Tensor, bail};

use super::operand::Operand;
use super::profile::{Timed, timed};
use crate::kernels::custom_op::{Backprop, CustomOp, Saved, apply};

/// See [`ops::cross_entropy`](crate::ops::cross_entropy). The simple form, of each row: `-Σ_c q_c log softmax(logits)_c`
/// with `q = (1 - ε)·onehot + ε/C`. The largest logit of a row is subtracted before the exponential, so none overflows; NaN
/// among the logits gives NaN. The error of a target that is no class names its position.
pub(crate) fn cross_entropy(logits: &Tensor, targets: &Tensor, smoothing: f64) -> Result<Tensor> {
    let op = CrossEntropy { smoothing: smoothing as f32, gradient: Saved::nothing() };
    timed(Timed::Linear, 0, || apply(op, [logits, targets]))
}

struct CrossEntropy {
    smoothing: f32,
    /// Of the loss with respect to the logits, from the forward pass.
    gradient: Saved<Vec<f32>>,
}

impl CustomOp<2> for CrossEntropy {
    const NAME: &'static str = "cross-entropy";

    fn forward(&self, [logits, targets]: [Operand; 2]) -> Result<(Vec<f32>, Shape)> {
        let (_, classes) = logits.shape().dims2()?;
        let (logits, targets) = (logits.values()?, targets.values()?);
        let (loss, gradient) = loss_and_gradient(logits, targets, classes, self.smoothing)?;
        self.gradient.set(gradient);
        Ok((vec![loss], Shape::from(())))
    }

    fn backward(&self, [logits, _]: [&Tensor; 2], _: &Tensor, upstream: &Tensor) -> Backprop<2> {
        let upstream = upstream.to_scalar::<f32>()?;
        timed(Timed::Linear, 0, || {
            let gradient = self.gradient.get().iter().map(|g| g * upstream).collect();
            Ok([Some(Tensor::from_vec(gradient, logits.shape(), logits.device())?), None])
        })
    }
}

/// The mean loss over the rows of `logits`, and its gradient.
fn loss_and_gradient(
    logits: &[f32],
    targets: &[u32],
    classes: usize,
    smoothing: f32,
) -> Result<(f32, Vec<f32>)> {
    let scale = 1.0 / targets.len() as f32;
    let (hit, everywhere) = (1.0 - smoothing, smoothing / classes as f32);
    let mut loss = 0.0;
    let mut gradient = vec![0.0; logits.len()];
    let rows = logits.chunks_exact(classes).zip(gradient.chunks_exact_mut(classes));
    for (position, (&target, (logits, gradient))) in targets.iter().zip(rows).enumerate() {
        let Some(&aimed) = logits.get(target as usize) else {
            bail!(
                "cross_entropy: target {target} at position {position} is no class; there are {classes}"
            );
        };
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut sum = 0.0;
        for (g, &x) in gradient.iter_mut().zip(logits) {
            *g = (x - largest).exp();
            sum += *g;
        }
        // `largest - x` first: added to the logarithm, a large logit would swallow it.
        let log_sum = sum.ln();
        let mut row = hit * (largest - aimed + log_sum);
        if smoothing > 0.0 {
            row += everywhere * logits.iter().map(|x| largest - x + log_sum).sum::<f32>();
        }
        loss += f64::from(row);
        for g in gradient.iter_mut() {
            *g = (*g / sum - everywhere) * scale;
        }
        gradient[target as usize] -= hit * scale;
    }
    Ok(((loss / targets.len() as f64) as f32, gradient))
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn huge_logits_stay_finite_and_nan_shows() {
        let targets = Tensor::new(&[0u32], &Device::Cpu).unwrap();
        let loss = |row: [f32; 3]| {
            let logits = Tensor::new(&[row], &Device::Cpu).unwrap();
            cross_entropy(&logits, &targets, 0.1).unwrap().to_scalar::<f32>().unwrap()
        };
        assert!(loss([1e38, -1e38, 0.0]).is_finite());
        assert!(loss([1000.0, 999.0, 0.0]).is_finite());
        assert!(loss([0.0, f32::NAN, 0.0]).is_nan());
    }
}
