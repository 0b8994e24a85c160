//! The operations of [`ops`](crate::ops) composed from candle operations whose gradients were
//! checked against PyTorch: the reference for the kernels, and the path on every device that has
//! none.
//!
//! candle 0.11.1 operations that return wrong or no gradients in training are absent on purpose:
//! `conv1d`, `conv2d` at uneven strides, `max` with ties, `relu` at zero, `softmax_last_dim`,
//! `layer_norm`. Rows of tables are picked by the operation of `fused.rs` on every device: the gradient of
//! `index_select` is slow on a GPU.

use candle_core::{DType, Result, Tensor, Var};
use candle_nn::ops::sigmoid;

use crate::PAD;
use crate::activations::{activate, gelu, relu};
use crate::fused;
use crate::packing::Packing;
use crate::parameters::{
    Activation, Affine, Dense, FeedForward, LAYER_NORM_EPSILON, Lstm, Norm, Running, SelfAttention,
    turns,
};

/// See [`ops::conv2d`](crate::ops::conv2d). Windows are laid out as rows of a matrix, then
/// multiplied with the weights: right for every shape, stride and padding.
pub(crate) fn conv2d(
    xs: &Tensor,
    weight: &Tensor,
    stride: usize,
    padding: usize,
    input_gradient: bool,
) -> Result<Tensor> {
    let (outputs, inputs, kh, kw) = weight.dims4()?;
    let xs = if input_gradient { xs.clone() } else { xs.detach() };
    let xs = xs.pad_with_zeros(1, padding, padding)?.pad_with_zeros(2, padding, padding)?;
    let windows = taps(&taps(&xs, 2, kw, stride)?, 1, kh, stride)?;
    let (batch, height, width, taps) = windows.dims4()?;
    let weight = weight.permute((2, 3, 1, 0))?.reshape((kh * kw * inputs, outputs))?;
    windows
        .reshape((batch * height * width, taps))?
        .matmul(&weight)?
        .reshape((batch, height, width, outputs))
}

/// Every window of `kernel` positions along `dim`, the positions of one window side by side in
/// the last dimension.
fn taps(xs: &Tensor, dim: usize, kernel: usize, stride: usize) -> Result<Tensor> {
    let count = (xs.dim(dim)? - kernel) / stride + 1;
    let shifted = (0..kernel)
        .map(|start| every(xs, dim, start, stride, count)?.contiguous())
        .collect::<Result<Vec<_>>>()?;
    Tensor::cat(&shifted, xs.rank() - 1)
}

/// `count` positions along `dim`: `start`, `start + stride`, …
fn every(xs: &Tensor, dim: usize, start: usize, stride: usize, count: usize) -> Result<Tensor> {
    if stride == 1 {
        return xs.narrow(dim, start, count);
    }
    let positions: Vec<u32> = (0..count).map(|i| (start + i * stride) as u32).collect();
    xs.index_select(&Tensor::new(positions, xs.device())?, dim)
}

/// See [`ops::batch_norm`](crate::ops::batch_norm).
pub(crate) fn batch_norm(
    xs: &Tensor,
    affine: Affine,
    running: &Running,
    residual: Option<&Tensor>,
    activation: Activation,
    train: bool,
) -> Result<Tensor> {
    let channels = affine.beta.dim(0)?;
    let rows = xs.reshape(((), channels))?;
    let rows = match affine.shift {
        Some(shift) => rows.broadcast_add(shift)?,
        None => rows,
    };
    let (centred, variance) = if train {
        let count = rows.dim(0)? as f64;
        let mean = rows.mean_keepdim(0)?;
        let centred = rows.broadcast_sub(&mean)?;
        let variance = centred.sqr()?.mean_keepdim(0)?;
        let unbiased = (variance.detach().squeeze(0)? * (count / (count - 1.)))?;
        let weight = running.count()?;
        track(&running.mean, &mean.detach().squeeze(0)?, weight)?;
        track(&running.variance, &unbiased, weight)?;
        (centred, variance)
    } else {
        let mean = running.mean.as_detached_tensor();
        (rows.broadcast_sub(&mean)?, running.variance.as_detached_tensor().unsqueeze(0)?)
    };
    let deviation = (variance + running.epsilon)?.sqrt()?;
    let ys = centred.broadcast_div(&deviation)?;
    let ys = match affine.gamma {
        Some(gamma) => ys.broadcast_mul(gamma)?,
        None => ys,
    };
    let ys = ys.broadcast_add(affine.beta)?.reshape(xs.shape())?;
    let ys = match residual {
        Some(residual) => (ys + residual)?,
        None => ys,
    };
    activate(&ys, activation)
}

/// Moves a running statistic towards the batch's, which gets that weight.
fn track(running: &Var, batch: &Tensor, weight: f64) -> Result<()> {
    let kept = (running.as_detached_tensor() * (1. - weight))?;
    running.set(&(kept + (batch * weight)?)?)
}

/// See [`ops::bias`](crate::ops::bias).
pub(crate) fn bias(xs: &Tensor, bias: &Tensor, activation: Activation) -> Result<Tensor> {
    activate(&xs.broadcast_add(bias)?, activation)
}

/// See [`ops::global_average_pool`](crate::ops::global_average_pool).
pub(crate) fn global_average_pool(xs: &Tensor) -> Result<Tensor> {
    xs.flatten(1, 2)?.mean(1)
}

/// See [`ops::max_pool`](crate::ops::max_pool).
pub(crate) fn max_pool(xs: &Tensor, size: usize) -> Result<Tensor> {
    let (_, height, width, _) = xs.dims4()?;
    let (rows, columns) = (height / size, width / size);
    let pixel = |y, x| every(&every(xs, 1, y, size, rows)?, 2, x, size, columns);
    let mut best = pixel(0, 0)?;
    for (y, x) in (0..size).flat_map(|y| (0..size).map(move |x| (y, x))).skip(1) {
        let next = pixel(y, x)?;
        // At most one of the two holds: nothing is larger than NaN, nor NaN than anything.
        let taken = (next.gt(&best)? + next.ne(&next)?)?;
        best = taken.where_cond(&next, &best)?;
    }
    Ok(best)
}

/// See [`ops::shortcut_a`](crate::ops::shortcut_a).
pub(crate) fn shortcut_a(xs: &Tensor, channels: usize) -> Result<Tensor> {
    let (_, height, width, inputs) = xs.dims4()?;
    let xs = every(xs, 1, 0, 2, height.div_ceil(2))?;
    let xs = every(&xs, 2, 0, 2, width.div_ceil(2))?;
    let left = (channels - inputs) / 2;
    xs.pad_with_zeros(3, left, channels - inputs - left)
}

/// See [`ops::linear`](crate::ops::linear).
pub(crate) fn linear(xs: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    xs.matmul(&weight.t()?)?.broadcast_add(bias)
}

/// See [`ops::embedding`](crate::ops::embedding).
pub(crate) fn embedding(ids: &Tensor, table: &Tensor) -> Result<Tensor> {
    let (batch, length) = ids.dims2()?;
    embedded(ids.flatten_all()?.to_vec1()?, table)?.reshape((batch, length, ()))
}

/// See [`ops::embedding_mean`](crate::ops::embedding_mean).
pub(crate) fn embedding_mean(ids: &Tensor, table: &Tensor) -> Result<Tensor> {
    let weights = token_weights(ids)?.unsqueeze(1)?;
    weights.matmul(&embedding(ids, table)?)?.squeeze(1)
}

/// The rows of a table for these tokens, `[ids.len(), D]`; no gradient flows from padding.
fn embedded(ids: Vec<u32>, table: &Tensor) -> Result<Tensor> {
    let tokens = (0..).zip(&ids).filter(|(_, id)| **id != PAD).map(|(place, _)| place).collect();
    fused::picked(table, ids, tokens)
}

/// For `ids [B, L]`: 1 / (number of tokens) at each token, 0 at padding, as f32.
fn token_weights(ids: &Tensor) -> Result<Tensor> {
    let is_token = ids.ne(PAD)?.to_dtype(DType::F32)?;
    let count = is_token.sum_keepdim(1)?.maximum(1f32)?;
    is_token.broadcast_div(&count)
}

/// See [`ops::conv1d_relu_max`](crate::ops::conv1d_relu_max).
pub(crate) fn conv1d_relu_max(xs: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let (filters, inputs, width) = weight.dims3()?;
    let windows = taps(xs, 1, width, 1)?;
    let (batch, positions, taps) = windows.dims3()?;
    let weight = weight.permute((2, 1, 0))?.reshape((width * inputs, filters))?;
    let ys = windows.reshape((batch * positions, taps))?.matmul(&weight)?;
    let ys = relu(&ys.broadcast_add(bias)?)?.reshape((batch, positions, filters))?;
    let first_max = ys.argmax_keepdim(1)?;
    ys.gather(&first_max, 1)?.squeeze(1)
}

/// See [`ops::bilstm`](crate::ops::bilstm).
pub(crate) fn bilstm(xs: &Tensor, ids: &Tensor, forward: &Lstm, reverse: &Lstm) -> Result<Tensor> {
    let length = xs.dim(1)?;
    let xs = xs.transpose(0, 1)?.contiguous()?;
    let is_token = ids.ne(PAD)?.to_dtype(DType::F32)?;
    let weights = token_weights(ids)?;
    Tensor::cat(
        &[
            lstm_mean(&xs, &is_token, &weights, forward, 0..length)?,
            lstm_mean(&xs, &is_token, &weights, reverse, (0..length).rev())?,
        ],
        1,
    )
}

/// One direction over `xs [L, B, D]` in the order of `times`: the sum of the hidden states, each
/// times its entry of `weights [B, L]`.
fn lstm_mean(
    xs: &Tensor,
    is_token: &Tensor,
    weights: &Tensor,
    lstm: &Lstm,
    times: impl Iterator<Item = usize>,
) -> Result<Tensor> {
    let (weight_ih, weight_hh) = (lstm.weight_ih.t()?, lstm.weight_hh.t()?);
    let bias = (&lstm.bias_ih + &lstm.bias_hh)?;
    let shape = (xs.dim(1)?, weight_hh.dim(0)?);
    let mut hidden = Tensor::zeros(shape, xs.dtype(), xs.device())?;
    let (mut cell, mut sum) = (hidden.clone(), hidden.clone());
    for t in times {
        let gates = xs.get(t)?.matmul(&weight_ih)?.add(&hidden.matmul(&weight_hh)?)?;
        let gates = gates.broadcast_add(&bias)?.chunk(4, 1)?;
        let [input, forget, output] = [0, 1, 3].map(|gate| sigmoid(&gates[gate]));
        let kept = ((forget? * &cell)? + (input? * gates[2].tanh()?)?)?;
        let is_token = is_token.narrow(1, t, 1)?;
        cell = kept.broadcast_mul(&is_token)?;
        hidden = (output? * cell.tanh()?)?;
        sum = (sum + hidden.broadcast_mul(&weights.narrow(1, t, 1)?)?)?;
    }
    Ok(sum)
}

/// See [`ops::token_rows`](crate::ops::token_rows).
pub(crate) fn token_rows(packing: &Packing, table: &Tensor, positions: &Tensor) -> Result<Tensor> {
    let places = packing.positions().map(|at| at as u32).collect();
    let positions = fused::picked(positions, places, all(packing))?;
    embedded(packing.ids().to_vec(), table)? + positions
}

/// The numbers of the packed rows.
fn all(packing: &Packing) -> Vec<u32> {
    (0..packing.rows() as u32).collect()
}

/// Where the packed rows stand among `[B, L]`.
fn places(packing: &Packing) -> Vec<u32> {
    packing.places().iter().map(|&place| place as u32).collect()
}

/// See [`ops::text_mean`](crate::ops::text_mean).
pub(crate) fn text_mean(xs: &Tensor, packing: &Packing) -> Result<Tensor> {
    let (texts, _) = padded(xs, packing)?;
    let mut weights = vec![0f32; packing.batch() * packing.length()];
    for (rows, weight) in packing.texts() {
        packing.places()[rows].iter().for_each(|&place| weights[place] = weight);
    }
    let weights = Tensor::from_vec(weights, (packing.batch(), 1, packing.length()), xs.device())?;
    weights.matmul(&texts)?.squeeze(1)
}

/// Packed rows as `[B, L, D]`, where padding repeats the first row and gives it no gradient, and for `[B, L]` a row of zeros with −1e30 at
/// padding: added to a score, it leaves none of it.
fn padded(xs: &Tensor, packing: &Packing) -> Result<(Tensor, Tensor)> {
    let shape = (packing.batch(), packing.length());
    let (mut numbers, mut mask) =
        (vec![0u32; shape.0 * shape.1], vec![-1e30f32; shape.0 * shape.1]);
    for (row, &place) in packing.places().iter().enumerate() {
        (numbers[place], mask[place]) = (row as u32, 0.);
    }
    let texts = fused::picked(xs, numbers, places(packing))?;
    Ok((texts.reshape((shape.0, shape.1, ()))?, Tensor::from_vec(mask, shape, xs.device())?))
}

/// See [`ops::layer_norm`](crate::ops::layer_norm).
pub(crate) fn layer_norm(xs: &Tensor, gamma: &Tensor, beta: &Tensor) -> Result<Tensor> {
    let centred = xs.broadcast_sub(&xs.mean_keepdim(1)?)?;
    let deviation = (centred.sqr()?.mean_keepdim(1)? + LAYER_NORM_EPSILON)?.sqrt()?;
    centred.broadcast_div(&deviation)?.broadcast_mul(gamma)?.broadcast_add(beta)
}

/// See [`ops::self_attention`](crate::ops::self_attention).
pub(crate) fn self_attention(xs: &Tensor, packing: &Packing, of: &SelfAttention) -> Result<Tensor> {
    let dim = xs.dim(1)?;
    let rows = project(&normalise(xs, &of.norm)?, &of.in_proj)?;
    let (texts, mask) = padded(&rows, packing)?;
    let (batch, length, _) = texts.dims3()?;
    let heads = texts.reshape((batch, length, 3, of.heads, dim / of.heads))?;
    let heads = heads.permute((2, 0, 3, 1, 4))?.contiguous()?;
    let (query, key, value) = (heads.get(0)?, heads.get(1)?, heads.get(2)?);
    let (query, key) = match of.reach.rotary() {
        true => (turned(&query)?, turned(&key)?),
        false => (query, key),
    };
    let scale = 1. / ((dim / of.heads) as f64).sqrt();
    let scores = (query.matmul(&key.transpose(2, 3)?.contiguous()?)? * scale)?;
    let mut scores = scores.broadcast_add(&mask.reshape((batch, 1, 1, length))?)?;
    if of.reach.causal() {
        let later = (0..length).flat_map(|row| (0..length).map(move |at| at > row));
        let later: Vec<f32> = later.map(|later| if later { -1e30 } else { 0. }).collect();
        let later = Tensor::from_vec(later, (1, 1, length, length), xs.device())?;
        scores = scores.broadcast_add(&later)?;
    }
    let powers = scores.broadcast_sub(&scores.max_keepdim(3)?.detach())?.exp()?;
    let weights = powers.broadcast_div(&powers.sum_keepdim(3)?)?;
    let mixed = weights.matmul(&value)?.transpose(1, 2)?.contiguous()?;
    let mixed = mixed.reshape((batch * length, dim))?;
    let mixed = fused::picked(&mixed, places(packing), all(packing))?;
    xs + project(&mixed, &of.out_proj)?
}

/// Queries or keys `[B, heads, L, width]`, turned by their positions.
fn turned(xs: &Tensor) -> Result<Tensor> {
    let (_, _, length, width) = xs.dims4()?;
    let (sines, cosines) = turns(length, width);
    let shape = (length, width / 2);
    let [sines, cosines] = [sines, cosines].map(|all| Tensor::from_vec(all, shape, xs.device()));
    let (sines, cosines) = (sines?, cosines?);
    let (first, second) = (xs.narrow(3, 0, width / 2)?, xs.narrow(3, width / 2, width / 2)?);
    let turned_first = (first.broadcast_mul(&cosines)? - second.broadcast_mul(&sines)?)?;
    let turned_second = (second.broadcast_mul(&cosines)? + first.broadcast_mul(&sines)?)?;
    Tensor::cat(&[turned_first, turned_second], 3)
}

/// See [`ops::feed_forward`](crate::ops::feed_forward).
pub(crate) fn feed_forward(xs: &Tensor, of: &FeedForward) -> Result<Tensor> {
    let inner = gelu(&project(&normalise(xs, &of.norm)?, &of.linear1)?, of.gelu)?;
    xs + project(&inner, &of.linear2)?
}

fn normalise(xs: &Tensor, norm: &Norm) -> Result<Tensor> {
    layer_norm(xs, &norm.weight, &norm.bias)
}

fn project(xs: &Tensor, dense: &Dense) -> Result<Tensor> {
    linear(xs, &dense.weight, &dense.bias)
}

/// See [`ops::cross_entropy`](crate::ops::cross_entropy).
pub(crate) fn cross_entropy(logits: &Tensor, targets: &Tensor, smoothing: f64) -> Result<Tensor> {
    let shifted = logits.broadcast_sub(&logits.max_keepdim(1)?.detach())?;
    let log_sum = shifted.exp()?.sum_keepdim(1)?.log()?;
    let log_probabilities = shifted.broadcast_sub(&log_sum)?;
    let target = log_probabilities.gather(&targets.unsqueeze(1)?, 1)?.mean_all()?;
    if smoothing == 0. {
        return target.neg();
    }
    let uniform = log_probabilities.mean_all()?;
    (target * (smoothing - 1.))? - (uniform * smoothing)?
}
