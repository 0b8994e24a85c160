//! What a caller hands over: the flat gradient, and where it may be other than zero.

use crate::Support;

/// A gradient that an exchange reads and overwrites by the mean, with what is known about zeros.
///
/// A slice or a vector of f32 turns into one by itself: `exchange.allreduce(step, &mut values)`.
#[derive(Debug)]
pub struct Gradient<'a> {
    /// In: this rank's gradient. Out: the mean over ranks.
    pub values: &'a mut [f32],
    /// In: the gradient is zero outside of it. Out: the mean is. Without one nothing is known.
    pub support: Option<&'a mut Support>,
}

impl<'a> Gradient<'a> {
    /// A gradient that is zero outside `support`, which the exchange overwrites by that of the
    /// mean.
    ///
    /// # Panics
    /// When `support` is of a gradient of another length.
    pub fn within(values: &'a mut [f32], support: &'a mut Support) -> Self {
        assert_eq!(support.len(), values.len(), "a support of another gradient");
        Self { values, support: Some(support) }
    }

    /// The same gradient for a shorter time.
    pub fn reborrow(&mut self) -> Gradient<'_> {
        Gradient { values: self.values, support: self.support.as_deref_mut() }
    }
}

impl<'a> From<&'a mut [f32]> for Gradient<'a> {
    fn from(values: &'a mut [f32]) -> Self {
        Self { values, support: None }
    }
}

impl<'a> From<&'a mut Vec<f32>> for Gradient<'a> {
    fn from(values: &'a mut Vec<f32>) -> Self {
        Self { values, support: None }
    }
}

impl<'a, const N: usize> From<&'a mut [f32; N]> for Gradient<'a> {
    fn from(values: &'a mut [f32; N]) -> Self {
        Self { values, support: None }
    }
}
