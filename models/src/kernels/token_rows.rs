//! Packed rows of texts: from tokens, and back to one row for each text.

use candle_core::{Result, Shape, Tensor};

use super::embedding::{Gather, Gathered, Means, inside, table_gradient};
use super::handover::gradient;
use super::operand::{Operand, borrow};
use super::profile::{Timed, timed};
use super::simd::{Isa, Kernel, Simd};
use crate::kernels::custom_op::{Backprop, CustomOp, apply};
use crate::packing::Packing;

/// See [`ops::token_rows`](crate::ops::token_rows). The error of an id outside the table names its position.
pub(crate) fn token_rows(
    isa: Isa,
    packing: &Packing,
    table: &Tensor,
    positions: &Tensor,
) -> Result<Tensor> {
    let op = TokenRows { isa, packing: packing.clone() };
    timed(Timed::Embedding, 0, || apply(op, [table, positions]))
}

/// See [`ops::text_mean`](crate::ops::text_mean).
pub(crate) fn text_mean(isa: Isa, xs: &Tensor, packing: &Packing) -> Result<Tensor> {
    let op = TextMean { isa, packing: packing.clone() };
    timed(Timed::LayerNorm, 0, || apply(op, [xs]))
}

struct TokenRows {
    isa: Isa,
    packing: Packing,
}

impl CustomOp<2> for TokenRows {
    const NAME: &'static str = "token-rows";

    fn forward(&self, [table, positions]: [Operand; 2]) -> Result<(Vec<f32>, Shape)> {
        let (vocabulary, dim) = table.shape().dims2()?;
        let (table, positions): (&[f32], &[f32]) = (table.values()?, positions.values()?);
        let (ids, length) = (self.packing.ids(), self.packing.length());
        let places = self.packing.places();
        inside(ids, vocabulary, |row| (places[row] / length, places[row] % length))?;
        let mut rows = Vec::with_capacity(ids.len() * dim);
        for (&id, position) in ids.iter().zip(self.packing.positions()) {
            let token = &table[id as usize * dim..][..dim];
            let position = &positions[position * dim..][..dim];
            rows.extend(token.iter().zip(position).map(|(token, position)| token + position));
        }
        Ok((rows, (ids.len(), dim).into()))
    }

    fn backward(
        &self,
        [table, positions]: [&Tensor; 2],
        _: &Tensor,
        upstream: &Tensor,
    ) -> Backprop<2> {
        timed(Timed::EmbeddingBackward, 0, || {
            let (dim, ids, upstream) = (table.dim(1)?, self.packing.ids(), &borrow(upstream)?);
            let (length, mut gathered) = (ids.len(), Gathered::default());
            let to = &mut gathered;
            let gather = Gather { ids, length, mean: false, upstream, dim, to };
            self.isa.run(gather);
            let dpositions = gradient(positions, |sums| {
                sums.fill(0.0);
                self.isa.run(Scatter { packing: &self.packing, upstream, dim, sums });
                Ok(())
            })?;
            Ok([table_gradient(table, gathered)?, dpositions])
        })
    }
}

/// Adds each row up in that of its position. This loop is the simple form: compiled for an instruction set, it is vectors.
struct Scatter<'a> {
    packing: &'a Packing,
    upstream: &'a [f32],
    dim: usize,
    sums: &'a mut [f32],
}

impl Kernel for Scatter<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for (position, row) in self.packing.positions().zip(self.upstream.chunks_exact(self.dim)) {
            let sums = &mut self.sums[position * self.dim..][..self.dim];
            sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
        }
    }
}

struct TextMean {
    isa: Isa,
    packing: Packing,
}

impl CustomOp<1> for TextMean {
    const NAME: &'static str = "text-mean";

    fn forward(&self, [xs]: [Operand; 1]) -> Result<(Vec<f32>, Shape)> {
        let (_, dim) = xs.shape().dims2()?;
        let mut means = vec![0.0; self.packing.batch() * dim];
        let (rows, texts) = (xs.values()?, self.packing.texts());
        self.isa.run(Means { rows, dim, texts, means: &mut means });
        Ok((means, (self.packing.batch(), dim).into()))
    }

    fn backward(&self, [xs]: [&Tensor; 1], _: &Tensor, upstream: &Tensor) -> Backprop<1> {
        timed(Timed::LayerNormBackward, 0, || {
            let (dim, upstream) = (xs.dim(1)?, borrow::<f32>(upstream)?);
            let mut dxs = Vec::with_capacity(xs.elem_count());
            for ((rows, weight), mean) in self.packing.texts().zip(upstream.chunks_exact(dim)) {
                let row = mean.iter().map(|g| g * weight).collect::<Vec<f32>>();
                rows.for_each(|_| dxs.extend_from_slice(&row));
            }
            Ok([Some(Tensor::from_vec(dxs, xs.shape(), xs.device())?)])
        })
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Var;

    use super::*;
    use crate::kernels::handover::{Contribution, deliver};
    use crate::kernels::testing::{flat, packing, wave};

    #[test]
    fn the_table_s_gradient_is_handed_over_as_the_rows_of_the_tokens() {
        let packing = packing(vec![5, 0, 2, 5], 2);
        let (table, positions) = (wave(&[7, 3], 0.7), wave(&[2, 3], 0.3));
        let rows = token_rows(Isa::best(), &packing, &table, &positions).unwrap();
        let loss = rows.sum_all().unwrap();
        let (store, contributions) = deliver(Some, || loss.backward().unwrap());
        assert!(store.get(&table).is_none() && store.get(&positions).is_none());
        let of = |variable: &Var| {
            let id = variable.id();
            contributions.iter().find(|contribution| contribution.variable() == id).unwrap()
        };
        let Contribution::Rows(rows) = of(&table) else {
            panic!("a table's gradient comes as rows")
        };
        assert_eq!((rows.ids(), rows.rows()), (&[2, 5][..], &[1.0, 1.0, 1.0, 2.0, 2.0, 2.0][..]));
        let mut sum = [0.0; 6];
        of(&positions).add_to(&mut sum);
        assert_eq!(sum, [2.0, 2.0, 2.0, 1.0, 1.0, 1.0]);
    }

    #[test]
    fn nothing_but_padding_gives_zeros_and_no_gradient() {
        let packing = packing(vec![0; 4], 2);
        let (table, positions) = (wave(&[3, 2], 0.7), wave(&[2, 2], 0.3));
        for isa in Isa::available() {
            let rows = token_rows(isa, &packing, &table, &positions).unwrap();
            let means = text_mean(isa, &rows, &packing).unwrap();
            assert_eq!(flat(&means), [0.0; 4]);
            let grads = means.sum_all().unwrap().backward().unwrap();
            assert_eq!(flat(grads.get(&table).unwrap()), [0.0; 6]);
            assert_eq!(flat(grads.get(&positions).unwrap()), [0.0; 4]);
        }
    }
}
