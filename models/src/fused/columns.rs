//! What batch norm reads and writes: rows of channels.

use candle_core::{Result, Tensor};

/// The rows of a table of batch norm.
pub(super) const ROWS: usize = 5;

/// Rows of channels.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    pub(super) rows: usize,
    pub(super) channels: usize,
}

impl Columns {
    pub(super) fn new(xs: &Tensor) -> Result<Self> {
        let channels = xs.dim(xs.rank() - 1)?;
        Ok(Self { rows: xs.elem_count() / channels, channels })
    }

    /// Σ over the rows of what `summand` makes of a channel and the place of its element.
    pub(super) fn sums(self, summand: impl Fn(usize, usize) -> f64) -> Vec<f64> {
        let sum = |channel: usize| {
            let places = (0..self.rows).map(|row| row * self.channels + channel);
            places.map(|place| summand(channel, place)).sum()
        };
        (0..self.channels).map(sum).collect()
    }
}
