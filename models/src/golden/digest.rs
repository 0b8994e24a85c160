//! What a golden file keeps of a tensor, and how far another tensor is from it.

use candle_core::{Result, Tensor, bail};
use serde::Deserialize;

use super::formula;

/// What `make.py` keeps of a tensor.
#[derive(Deserialize)]
pub(super) struct Digest {
    shape: Vec<usize>,
    norm: f64,
    sums: Vec<f64>,
    elements: Vec<f64>,
}

impl Digest {
    /// The error of `tensor` relative to the norm: the largest of the norm's, the elements', and
    /// the root mean square of the sums'.
    ///
    /// The square of a sum with hashed signs over the error is on average the square of the
    /// error's norm, wherever it sits; elements say that its place is right.
    pub(super) fn error(&self, name: &str, tensor: &Tensor) -> Result<f64> {
        if tensor.dims() != self.shape {
            bail!("{name} is {:?}, the golden file has {:?}", tensor.dims(), self.shape);
        }
        let values: Vec<f32> = tensor.flatten_all()?.to_vec1()?;
        let values: Vec<f64> = values.into_iter().map(f64::from).collect();
        let norm = values.iter().map(|v| v * v).sum::<f64>().sqrt();
        let squares = self.sums.iter().enumerate().map(|(i, expected)| {
            let signs = formula::hashes(&format!("{name} sign {i}"), values.len());
            let sum: f64 =
                signs.zip(&values).map(|(sign, v)| if sign >> 31 == 1 { -v } else { *v }).sum();
            (sum - expected).powi(2)
        });
        let sums = (squares.sum::<f64>() / self.sums.len() as f64).sqrt();
        let at = formula::hashes(&format!("{name} element"), self.elements.len());
        let elements = at.map(|i| values[i as usize % values.len()]).zip(&self.elements);
        let elements = elements.map(|(found, expected)| (found - expected).abs());
        // `f64::max` would pass over a NaN.
        let larger = |a: f64, b: f64| if b > a || b.is_nan() { b } else { a };
        let largest = elements.fold(larger(sums, (norm - self.norm).abs()), larger);
        Ok(if self.norm == 0. { largest } else { largest / self.norm })
    }
}
