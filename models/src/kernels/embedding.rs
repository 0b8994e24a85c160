//! Embedding tables: rows looked up by token, and a gradient in the touched rows only.

use candle_core::{Result, Shape, Tensor, bail};

use super::handover::{Contribution, hand_over};
use super::operand::{Operand, borrow};
use super::profile::{Timed, timed};
use super::rows::RowGradient;
use super::simd::{Isa, Kernel, Simd};
use crate::PAD;
use crate::kernels::custom_op::{Backprop, CustomOp, apply};

/// See [`ops::embedding`](crate::ops::embedding). The error of an id outside the table names its position.
pub(crate) fn embedding(isa: Isa, ids: &Tensor, table: &Tensor) -> Result<Tensor> {
    look_up(isa, ids, table, false)
}

/// See [`ops::embedding_mean`](crate::ops::embedding_mean), and for errors [`embedding`].
pub(crate) fn embedding_mean(isa: Isa, ids: &Tensor, table: &Tensor) -> Result<Tensor> {
    look_up(isa, ids, table, true)
}

fn look_up(isa: Isa, ids: &Tensor, table: &Tensor, mean: bool) -> Result<Tensor> {
    timed(Timed::Embedding, 0, || apply(LookUp { isa, mean }, [table, ids]))
}

/// Refuses `ids` outside a table of so many rows, naming text and position, which `place` tells.
pub(super) fn inside(
    ids: &[u32],
    vocabulary: usize,
    place: impl Fn(usize) -> (usize, usize),
) -> Result<()> {
    if let Some(at) = ids.iter().position(|&id| id as usize >= vocabulary) {
        let (id, (text, position)) = (ids[at], place(at));
        bail!(
            "embedding: token {id} at position {position} of text {text} is outside the table of {vocabulary} rows"
        );
    }
    Ok(())
}

struct LookUp {
    isa: Isa,
    mean: bool,
}

impl CustomOp<2> for LookUp {
    const NAME: &'static str = "embedding";

    fn forward(&self, [table, ids]: [Operand; 2]) -> Result<(Vec<f32>, Shape)> {
        let (vocabulary, dim) = table.shape().dims2()?;
        let (batch, length) = ids.shape().dims2()?;
        let (table, ids): (&[f32], &[u32]) = (table.values()?, ids.values()?);
        inside(ids, vocabulary, |at| (at / length, at % length))?;
        if !self.mean {
            let mut rows = Vec::with_capacity(ids.len() * dim);
            for &id in ids {
                rows.extend_from_slice(&table[id as usize * dim..][..dim]);
            }
            return Ok((rows, (batch, length, dim).into()));
        }
        let mut means = vec![0.0; batch * dim];
        let texts = ids.chunks_exact(length).map(|text| {
            let tokens = text.iter().filter(|&&id| id != PAD).map(|&id| id as usize);
            (tokens, token_weight(text))
        });
        self.isa.run(Means { rows: table, dim, texts, means: &mut means });
        Ok((means, (batch, dim).into()))
    }

    fn backward(&self, [table, ids]: [&Tensor; 2], _: &Tensor, upstream: &Tensor) -> Backprop<2> {
        timed(Timed::EmbeddingBackward, 0, || {
            let (dim, length) = (table.dim(1)?, ids.dim(1)?);
            let (ids, upstream) = (&borrow(ids)?, &borrow(upstream)?);
            let mut gathered = Gathered::default();
            let (mean, to) = (self.mean, &mut gathered);
            self.isa.run(Gather { ids, length, mean, upstream, dim, to });
            Ok([table_gradient(table, gathered)?, None])
        })
    }
}

/// What an operation returns to candle as the gradient of a table that is `rows` at `ids`, ascending, and 0 elsewhere:
/// nothing if the rows could be [handed over](hand_over).
pub(super) fn table_gradient(table: &Tensor, (ids, rows): Gathered) -> Result<Option<Tensor>> {
    let (vocabulary, dim) = table.dims2()?;
    let gradient = RowGradient { table: table.id(), dim, ids, rows };
    let Some(Contribution::Rows(gradient)) = hand_over(table, Contribution::Rows(gradient)) else {
        return Ok(None);
    };
    // Fresh zeros of this size come from the system as untouched pages.
    let mut dense = vec![0.0; vocabulary * dim];
    gradient.add_to(&mut dense);
    Tensor::from_vec(dense, table.shape(), table.device()).map(Some)
}

/// `1 / number of tokens` of a text, 0 without any.
#[inline(always)]
fn token_weight(text: &[u32]) -> f32 {
    match text.iter().filter(|&&id| id != PAD).count() {
        0 => 0.0,
        count => 1.0 / count as f32,
    }
}

/// Means over zeros: the sums of the rows of each text, whose numbers `texts` says, then the multiplication by its weight.
/// These loops are the simple form: compiled for an instruction set, they are vectors.
pub(super) struct Means<'a, T> {
    pub rows: &'a [f32],
    pub dim: usize,
    pub texts: T,
    pub means: &'a mut [f32],
}

impl<N: Iterator<Item = usize>, T: Iterator<Item = (N, f32)>> Kernel for Means<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for ((numbers, weight), mean) in self.texts.zip(self.means.chunks_exact_mut(self.dim)) {
            for number in numbers {
                let row = &self.rows[number * self.dim..][..self.dim];
                mean.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
            }
            mean.iter_mut().for_each(|sum| *sum *= weight);
        }
    }
}

/// Ids, ascending, and a row for each.
pub(super) type Gathered = (Vec<u32>, Vec<f32>);

/// Gathers the gradient of every token into one row per id. The simple form: `dtable[ids[t]] += weight · upstream[t]` for
/// one token t after another, over zeros for the whole table. Here no memory is touched but that of the rows that are used.
///
/// The tokens of an id are added in the order of the batch, so the sums do not depend on how the
/// sort works.
pub(super) struct Gather<'a> {
    pub ids: &'a [u32],
    /// Tokens of a text.
    pub length: usize,
    /// Whether a text has one gradient, that of the mean over its tokens, or each token its own.
    pub mean: bool,
    pub upstream: &'a [f32],
    pub dim: usize,
    /// Where they go.
    pub to: &'a mut Gathered,
}

impl Kernel for Gather<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { ids: tokens, length, mean, upstream, dim, to } = self;
        let weights: Vec<f32> = match length {
            0 => Vec::new(),
            _ => tokens.chunks_exact(length).map(token_weight).collect(),
        };
        // Id and position in one integer: sorted by id, then by position.
        let tokens = tokens.iter().zip(0u32..).filter(|(id, _)| **id != PAD);
        let mut order: Vec<u64> =
            tokens.map(|(&id, at)| u64::from(id) << 32 | u64::from(at)).collect();
        order.sort_unstable();
        let (mut ids, mut rows) = (Vec::<u32>::new(), Vec::<f32>::with_capacity(order.len() * dim));
        for &token in &order {
            let (id, at) = ((token >> 32) as u32, token as u32 as usize);
            let (source, weight) =
                if mean { (at / length, weights[at / length]) } else { (at, 1.0) };
            let source = &upstream[source * dim..][..dim];
            if ids.last() == Some(&id) {
                let start = rows.len() - dim;
                for (sum, g) in rows[start..].iter_mut().zip(source) {
                    *sum += weight * g;
                }
            } else {
                ids.push(id);
                rows.extend(source.iter().map(|g| weight * g));
            }
        }
        *to = (ids, rows);
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;
    use crate::kernels::handover::deliver;
    use crate::kernels::testing::flat;

    fn ids(ids: &[u32], shape: (usize, usize)) -> Tensor {
        Tensor::from_slice(ids, shape, &Device::Cpu).unwrap()
    }

    /// What a backward pass returns, and the rows that were handed over meanwhile.
    fn rows_of<T>(backward: impl FnOnce() -> T) -> (T, Vec<RowGradient>) {
        let (out, contributions) = deliver(Some, backward);
        let rows = contributions.into_iter().map(|contribution| match contribution {
            Contribution::Rows(rows) => rows,
            Contribution::Dense { .. } => panic!("a table's gradient comes as rows"),
        });
        (out, rows.collect())
    }

    #[test]
    fn a_computed_table_and_a_second_look_up_keep_their_gradients() {
        let table = Var::new(&[[1f32], [2.0], [3.0]], &Device::Cpu).unwrap();
        let tokens = ids(&[1, 2], (1, 2));
        let computed =
            embedding(Isa::best(), &tokens, &(table.as_tensor() * 2.0).unwrap()).unwrap();
        let (store, rows) = rows_of(|| computed.sum_all().unwrap().backward().unwrap());
        assert_eq!((flat(store.get(&table).unwrap()), rows.len()), (vec![0.0, 2.0, 2.0], 0));

        let direct = || embedding(Isa::best(), &tokens, &table).unwrap();
        let twice = (direct() + direct()).unwrap().sum_all().unwrap();
        let (_, rows) = rows_of(|| twice.backward().unwrap());
        let mut sum = vec![0.0; 3];
        rows.iter().for_each(|row| row.add_to(&mut sum));
        assert_eq!(sum, [0.0, 2.0, 2.0]);
        assert!(
            flat(direct().sum_all().unwrap().backward().unwrap().get(&table).unwrap())
                == [0.0, 1.0, 1.0]
        );
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let tokens: Vec<u32> = (0..60u32).map(|i| i * i % 7).collect();
        let tokens = ids(&tokens, (5, 12));
        let table: Vec<f32> = (0..7 * 19).map(|i| (i as f32).cos()).collect();
        let table = Var::from_vec(table, (7, 19), &Device::Cpu).unwrap();
        let runs = Isa::available().map(|isa| {
            let means = embedding_mean(isa, &tokens, &table).unwrap();
            let loss = means.sqr().unwrap().sum_all().unwrap();
            let (_, rows) = rows_of(|| loss.backward().unwrap());
            (flat(&means), rows)
        });
        let runs: Vec<_> = runs.collect();
        assert!(runs.windows(2).all(|pair| pair[0] == pair[1]));
    }
}
