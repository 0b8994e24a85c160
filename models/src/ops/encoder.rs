//! Encoder layers over packed rows of texts: `[rows, D]`, one row for each token, as [`Packing`] has them.

use candle_core::{Result, Tensor, bail};

use crate::composed;
use crate::fused;
use crate::kernels::counts::{fits, some};
use crate::kernels::{self, Native, native};
use crate::packing::Packing;
use crate::parameters::{Dense, FeedForward, Norm, SelfAttention};
use crate::randomness;

/// For each row of `packing` the sum of its token's row in `table [V, D]` and its position's in `positions [P, D]`:
/// `[rows, D]`.
///
/// As `nn.Embedding(padding_idx = 0)` the table's row of [`PAD`](crate::PAD) receives no gradient.
/// Fails when the texts are longer than there are positions, and on ids outside the table.
pub fn token_rows(packing: &Packing, table: &Tensor, positions: &Tensor) -> Result<Tensor> {
    let ((_, dim), (places, _)) = (table.dims2()?, positions.dims2()?);
    some("token_rows: table", table)?;
    fits("token_rows: positions", positions, &[places, dim])?;
    if packing.length() > places {
        bail!("token_rows: texts of {} tokens have more than {places} positions", packing.length());
    }
    by_kernel!(table, token_rows::token_rows(packing, table, positions))
}

/// [`token_rows`] of pieces of a text to continue, [whole](Packing::whole): every row of the table receives gradient. Without
/// `positions` the tokens' rows alone.
///
/// Fails when the pieces are longer than there are positions, and on ids outside the table.
pub fn piece_rows(packing: &Packing, table: &Tensor, positions: Option<&Tensor>) -> Result<Tensor> {
    some("piece_rows: table", table)?;
    let all: Vec<u32> = (0..packing.rows() as u32).collect();
    let tokens = fused::picked(table, packing.ids().to_vec(), all.clone())?;
    let Some(positions) = positions else { return Ok(tokens) };
    let (places, dim) = positions.dims2()?;
    fits("piece_rows: positions", positions, &[places, table.dim(1)?.max(dim)])?;
    if packing.length() > places {
        bail!(
            "piece_rows: pieces of {} tokens have more than {places} positions",
            packing.length()
        );
    }
    let at = packing.positions().map(|position| position as u32).collect();
    tokens + fused::picked(positions, at, all)?
}

/// Layer normalisation of each row of `xs [rows, D]` with its own mean and biased variance, times `gamma [D]`, plus
/// `beta [D]`, as `nn.LayerNorm`, with [`LAYER_NORM_EPSILON`](super::LAYER_NORM_EPSILON).
pub fn layer_norm(xs: &Tensor, gamma: &Tensor, beta: &Tensor) -> Result<Tensor> {
    let (_, dim) = xs.dims2()?;
    some("layer_norm: input", xs)?;
    fits("layer_norm: gamma", gamma, &[dim])?;
    fits("layer_norm: beta", beta, &[dim])?;
    by_kernel!(xs, layer_norm::layer_norm(xs, gamma, beta))
}

/// The first half of a pre-norm encoder layer on packed rows `xs [rows, D]`: `xs` plus the multi-head self-attention of
/// the [normalised](layer_norm) rows, each row attending to rows of its text as [`SelfAttention::reach`] says: `[rows, D]`.
///
/// A head's attention is `softmax(Q · Kᵀ / √width) · V` (Vaswani et al., "Attention Is All You Need", 2017, section
/// 3.2), padding being no row at all. As `nn.MultiheadAttention` in `nn.TransformerEncoderLayer(norm_first = True)`.
pub fn self_attention(xs: &Tensor, packing: &Packing, of: &SelfAttention) -> Result<Tensor> {
    let (_, dim) = rows("self_attention: input", xs, packing)?;
    let heads = of.heads;
    if heads == 0 || !dim.is_multiple_of(heads) {
        bail!("self_attention: {heads} heads do not divide a width of {dim}");
    }
    if of.reach.rotary() && (dim / heads) % 2 == 1 {
        bail!(
            "self_attention: rotary positions turn pairs of values, and {heads} heads of a width of {dim} have {} each",
            dim / heads
        );
    }
    let three = dim.saturating_mul(3);
    norm("self_attention: norm", &of.norm, dim)?;
    dense("self_attention: in_proj", &of.in_proj, [three, dim])?;
    dense("self_attention: out_proj", &of.out_proj, [dim, dim])?;
    by_kernel!(xs, encoder::self_attention(xs, packing, of))
}

/// The second half of a pre-norm encoder layer on packed rows `xs [rows, D]`: `xs` plus a feed-forward network with GELU
/// (Hendrycks and Gimpel 2016) of the [normalised](layer_norm) rows: `[rows, D]`.
pub fn feed_forward(xs: &Tensor, packing: &Packing, of: &FeedForward) -> Result<Tensor> {
    let (_, dim) = rows("feed_forward: input", xs, packing)?;
    let (inner, _) = of.linear1.weight.dims2()?;
    norm("feed_forward: norm", &of.norm, dim)?;
    dense("feed_forward: linear1", &of.linear1, [inner, dim])?;
    dense("feed_forward: linear2", &of.linear2, [dim, inner])?;
    match native(xs)? {
        Some(Native { isa, .. }) => kernels::encoder::feed_forward(isa, xs, packing, of),
        None => composed::feed_forward(xs, of),
    }
}

/// `xs`, of which a share of `rate` values, drawn by [`randomness`], is 0, and the others are divided by `1 − rate`
/// (Srivastava et al. 2014).
///
/// Fails for a rate outside of `[0, 1)`, and before [`randomness::begin`].
pub fn dropout(xs: &Tensor, rate: f64) -> Result<Tensor> {
    if !(0. ..1.).contains(&rate) {
        bail!("dropout: the rate must lie in [0, 1), got {rate}");
    }
    let (key, kept) = (randomness::next()?, (1. / (1. - rate)) as f32);
    let mask = (0..xs.elem_count() as u64)
        .map(|place| if f64::from(randomness::uniform(key, place)) < rate { 0. } else { kept });
    xs * Tensor::from_iter(mask, xs.device())?.reshape(xs.shape())?
}

/// Mean over each text's tokens of their packed rows `xs [rows, D]`: `[B, D]`.
///
/// A text of nothing but padding gives zeros.
pub fn text_mean(xs: &Tensor, packing: &Packing) -> Result<Tensor> {
    rows("text_mean: input", xs, packing)?;
    by_kernel!(xs, token_rows::text_mean(xs, packing))
}

/// Rows and width of `xs`, which has the rows of `packing`.
fn rows(argument: &str, xs: &Tensor, packing: &Packing) -> Result<(usize, usize)> {
    let (_, dim) = xs.dims2()?;
    fits(argument, xs, &[packing.rows(), dim])?;
    Ok((packing.rows(), dim))
}

/// Refuses a norm of rows of another width.
fn norm(argument: &str, Norm { weight, bias }: &Norm, dim: usize) -> Result<()> {
    fits(&format!("{argument}.weight"), weight, &[dim])?;
    fits(&format!("{argument}.bias"), bias, &[dim])
}

/// Refuses a dense layer of another shape.
fn dense(argument: &str, Dense { weight, bias }: &Dense, shape: [usize; 2]) -> Result<()> {
    fits(&format!("{argument}.weight"), weight, &shape)?;
    fits(&format!("{argument}.bias"), bias, &shape[..1])
}
