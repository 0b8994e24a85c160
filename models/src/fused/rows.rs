//! Rows of a table picked by number, and the gradient of the table.
//!
//! candle's own gradient, `index_add`, has a thread for each column, which goes through all picks one after the other.
//! Here the picks are sorted by the row they took, on the host, and each row has a block of threads.

use candle_core::{Result, Shape, Tensor, bail};

#[cfg(feature = "cuda")]
use super::launch::{Array, Gpu, View};
use super::operation::{FusedOperation, apply};
use crate::kernels::custom_op::Backprop;

/// The rows of `table [R, D]` with these numbers: `[numbers.len(), D]`. Gradient flows back from the picks at the places
/// `giving` alone. What [`composed`](crate::composed) takes on the processor too.
///
/// # Errors
/// A number that no row has, and a place that no pick has.
pub(crate) fn picked(table: &Tensor, numbers: Vec<u32>, giving: Vec<u32>) -> Result<Tensor> {
    let (rows, width) = table.dims2()?;
    if let Some(number) = numbers.iter().find(|number| **number as usize >= rows) {
        bail!("row {number} is asked for, of a table of {rows}");
    }
    if let Some(place) = giving.iter().find(|place| **place as usize >= numbers.len()) {
        bail!("the gradient of pick {place} is asked for, of {}", numbers.len());
    }
    apply(Pick { rows, width, numbers, giving }, [table])
}

/// See [`picked`].
struct Pick {
    rows: usize,
    width: usize,
    numbers: Vec<u32>,
    giving: Vec<u32>,
}

impl FusedOperation<1> for Pick {
    const NAME: &'static str = "rows";

    fn shape(&self) -> Shape {
        (self.numbers.len(), self.width).into()
    }

    fn cpu(&self, operands: &[&[f32]]) -> Vec<f32> {
        let mut rows = Vec::with_capacity(self.numbers.len() * self.width);
        for number in &self.numbers {
            rows.extend_from_slice(&operands[0][*number as usize * self.width..][..self.width]);
        }
        rows
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &Gpu, operands: &[View]) -> Result<Array> {
        gpu.pick_rows(&operands[0], &self.numbers, self.width)
    }

    fn gradients(&self, _: [Tensor; 1], _: Tensor, gradient: Tensor) -> Backprop<1> {
        Ok([Some(apply(SumRows::gradient_of(self), [&gradient])?)])
    }
}

/// The gradient of a table: each row is the sum of the gradients of its picks, in their order.
struct SumRows {
    rows: usize,
    width: usize,
    /// The rows that something was picked from, ascending.
    numbers: Vec<u32>,
    /// Where the picks of each begin among `picks`, and the end of the last.
    starts: Vec<u32>,
    /// The picks, row after row.
    picks: Vec<u32>,
}

impl SumRows {
    fn gradient_of(Pick { rows, width, numbers, giving }: &Pick) -> Self {
        let row = |pick: &u32| numbers[*pick as usize];
        let mut picks = giving.clone();
        picks.sort_by_key(row);
        let (mut taken, mut starts) = (Vec::new(), vec![0]);
        let mut end = 0;
        for group in picks.chunk_by(|a, b| row(a) == row(b)) {
            taken.push(row(&group[0]));
            end += group.len() as u32;
            starts.push(end);
        }
        Self { rows: *rows, width: *width, numbers: taken, starts, picks }
    }
}

impl FusedOperation<1> for SumRows {
    const NAME: &'static str = "row sums";

    fn shape(&self) -> Shape {
        (self.rows, self.width).into()
    }

    fn cpu(&self, operands: &[&[f32]]) -> Vec<f32> {
        let mut to = vec![0.; self.rows * self.width];
        for (number, ends) in self.numbers.iter().zip(self.starts.windows(2)) {
            let to = &mut to[*number as usize * self.width..][..self.width];
            for pick in &self.picks[ends[0] as usize..ends[1] as usize] {
                let gradient = &operands[0][*pick as usize * self.width..][..self.width];
                to.iter_mut().zip(gradient).for_each(|(to, x)| *to += x);
            }
        }
        to
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &Gpu, operands: &[View]) -> Result<Array> {
        let lists = [&*self.numbers, &*self.starts, &*self.picks];
        gpu.sum_rows(self.width, lists, &operands[0], self.rows * self.width)
    }
}
