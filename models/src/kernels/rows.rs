//! The gradient of an embedding table, as the rows that a batch touched.

use std::ops::Range;

use candle_core::TensorId;

/// The gradient of an embedding table in the rows that a batch touched: everywhere else it is 0.
#[derive(Clone, Debug, PartialEq)]
pub struct RowGradient {
    pub(super) table: TensorId,
    pub(super) dim: usize,
    pub(super) ids: Vec<u32>,
    pub(super) rows: Vec<f32>,
}

impl RowGradient {
    /// The [`id`](candle_core::Tensor::id) of the table.
    pub fn table(&self) -> TensorId {
        self.table
    }

    /// Row numbers, ascending, each once.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The gradient of row `ids()[i]` in the `i`-th chunk of the table's width.
    pub fn rows(&self) -> &[f32] {
        &self.rows
    }

    /// The rows' elements in the flat gradient of the whole table.
    pub fn places(&self) -> impl Iterator<Item = Range<usize>> {
        self.ids.iter().map(|&id| id as usize * self.dim..(id as usize + 1) * self.dim)
    }

    /// Adds the rows to their places in the flat gradient of the whole table.
    ///
    /// # Panics
    /// When `table` is not of the table's size.
    pub fn add_to(&self, table: &mut [f32]) {
        for (&id, row) in self.ids.iter().zip(self.rows.chunks_exact(self.dim)) {
            let start = id as usize * self.dim;
            for (sum, g) in table[start..start + self.dim].iter_mut().zip(row) {
                *sum += g;
            }
        }
    }
}
