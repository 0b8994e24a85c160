//! The one seam between architectures and arithmetic.
//!
//! Architectures call these functions and nothing else. Images are NHWC, weights are in
//! PyTorch's layout, and every function has a right gradient for each floating-point argument
//! unless its text says otherwise. None computes on nothing: an argument without elements, such as
//! an empty batch, is an error.

/// The kernel for the tensor `$xs`, or where there is none the composition of the same name and arguments.
macro_rules! by_kernel {
    ($xs:ident, $kernel:ident::$operation:ident($($argument:expr),*)) => {
        match native($xs)? {
            Some(Native { isa, .. }) => kernels::$kernel::$operation(isa, $($argument),*),
            None => composed::$operation($($argument),*),
        }
    };
}

/// What the maps `$xs` become, by the kernels or of a tensor; `$other` maps have to be of the same form.
macro_rules! become_maps {
    ($xs:ident $(and $other:ident)?, $by_kernels:expr, $of_tensor:expr) => {
        Ok(Maps(match &$xs.0 {
            Carrier::Native($xs) => become_maps!(@ Native, $by_kernels $(, $other)?),
            Carrier::Rounded($xs) => become_maps!(@ Rounded, $by_kernels $(, $other)?),
            Carrier::Tensor($xs) => become_maps!(@ Tensor, $of_tensor $(, $other)?),
        }))
    };
    (@ $form:ident, $operation:expr $(, $other:ident)?) => {{
        $(let $other = match $other {
            None => None,
            Some(Maps(Carrier::$form(other))) => Some(other),
            Some(_) => bail!("the input and its {} were made for different kernels", stringify!($other)),
        };)?
        Carrier::$form($operation?)
    }};
}

mod encoder;

use candle_core::{DType, Result, Tensor, bail};

use crate::composed;
use crate::fused;
use crate::kernels::conv_sizes::Sizes;
use crate::kernels::counts::{self, fits, some};
use crate::kernels::{self, Native, native};
use crate::maps::{Carrier, Maps};

pub use crate::parameters::{
    Activation, Affine, Dense, FeedForward, Gelu, LAYER_NORM_EPSILON, Lstm, Norm, Reach, Running,
    SelfAttention,
};
pub use encoder::{
    dropout, feed_forward, layer_norm, piece_rows, self_attention, text_mean, token_rows,
};

/// 2-d cross-correlation of `xs [B, H, W, I]` with `weight [O, I, KH, KW]`, zero padding on all
/// sides: `[B, H', W', O]` with `H' = (H + 2·padding − KH) / stride + 1`.
///
/// `input_gradient = false` says that nobody needs the gradient of `xs` (the first layer): none
/// flows to it.
pub fn conv2d(
    xs: &Maps,
    weight: &Tensor,
    stride: usize,
    padding: usize,
    input_gradient: bool,
) -> Result<Maps> {
    Sizes::new(xs.dims()?, weight.dims4()?, stride, padding)?;
    become_maps!(
        xs,
        kernels::conv::conv2d(xs, weight, stride, padding, input_gradient),
        convolved(xs, weight, stride, padding, input_gradient)
    )
}

/// [`conv2d`] of a tensor.
fn convolved(
    xs: &Tensor,
    weight: &Tensor,
    stride: usize,
    padding: usize,
    input_gradient: bool,
) -> Result<Tensor> {
    let conv2d = if fused::takes(xs) { fused::conv2d } else { composed::conv2d };
    conv2d(xs, weight, stride, padding, input_gradient)
}

/// [`conv2d`] of stride 1, with a gradient for `xs`, then [`max_pool`] of `size`×`size` pixels, as one operation: the
/// maps between the two need no memory.
pub fn conv2d_max_pool(xs: &Maps, weight: &Tensor, padding: usize, size: usize) -> Result<Maps> {
    let sizes = Sizes::new(xs.dims()?, weight.dims4()?, 1, padding)?;
    window_fits(sizes.out_height(), sizes.out_width(), size)?;
    become_maps!(
        xs,
        kernels::conv::conv2d_max_pool(xs, weight, padding, size),
        composed::max_pool(&convolved(xs, weight, 1, padding, true)?, size)
    )
}

/// Batch normalisation of `xs [B, H, W, C]`, plus [`Affine::shift`] if there is one, over all dimensions but the last,
/// then `+ residual` (same shape as `xs`), then the activation.
///
/// With `train` the batch's own mean and biased variance normalise, and the running statistics
/// move towards its mean and unbiased variance as [`Running`] says; without, the running
/// statistics normalise and stay. They receive no gradient. What `train` gives does not depend on
/// the shift: only the running mean sees it, and its gradient is zero.
/// Fails when training on a single value per channel, which has no variance, and with a momentum that is none.
pub fn batch_norm(
    xs: &Maps,
    affine: Affine,
    running: &Running,
    residual: Option<&Maps>,
    activation: Activation,
    train: bool,
) -> Result<Maps> {
    let (batch, height, width, channels) = xs.dims()?;
    let Running { mean, variance, passes, momentum, epsilon } = running;
    let named = [("shift", affine.shift), ("gamma", affine.gamma), ("beta", Some(affine.beta))];
    let named = named.into_iter().filter_map(|(name, tensor)| Some((name, tensor?)));
    let statistics = [("running mean", mean.as_tensor()), ("running variance", variance)];
    for (name, tensor) in named.chain(statistics) {
        fits(&format!("batch_norm: {name}"), tensor, &[channels])?;
    }
    fits("batch_norm: passes", passes, &[])?;
    if !(*momentum > 0. && *momentum <= 1. && *epsilon >= 0.) {
        bail!(
            "batch_norm: the momentum must lie in (0, 1] and epsilon be 0 or more, got {momentum} and {epsilon}"
        );
    }
    if let Some(residual) = residual
        && residual.dims()? != xs.dims()?
    {
        bail!("batch_norm: residual is {:?}, the input {:?}", residual.dims()?, xs.dims()?);
    }
    if batch * height * width < 2 && train {
        bail!(
            "batch_norm: training needs more than one value per channel, got input {:?}; use larger images, or a train.batch and \
             a number of workers with which no part of an epoch's last batch is a single sample",
            xs.dims()?
        );
    }
    become_maps!(
        xs and residual,
        kernels::batch_norm::batch_norm(xs, affine, running, residual, activation, train),
        {
            let fused = fused::takes(xs);
            let batch_norm = if fused { fused::batch_norm } else { composed::batch_norm };
            batch_norm(xs, affine, running, residual, activation, train)
        }
    )
}

/// `xs [B, H, W, C]` plus `bias [C]`, then the activation.
pub fn bias(xs: &Maps, bias: &Tensor, activation: Activation) -> Result<Maps> {
    let (_, _, _, channels) = xs.dims()?;
    fits("bias", bias, &[channels])?;
    become_maps!(
        xs,
        kernels::batch_norm::bias(xs, bias, activation),
        composed::bias(xs, bias, activation)
    )
}

/// Mean over height and width: `[B, H, W, C]` to `[B, C]`.
pub fn global_average_pool(xs: &Maps) -> Result<Tensor> {
    match &xs.0 {
        Carrier::Native(xs) => kernels::pool::global_average_pool(xs),
        Carrier::Rounded(xs) => kernels::pool::global_average_pool(xs),
        Carrier::Tensor(xs) => composed::global_average_pool(xs),
    }
}

/// The largest of each `size`×`size` pixels of `xs [B, H, W, C]`, stride `size`: `[B, ⌊H/size⌋, ⌊W/size⌋, C]`. NaN is
/// larger than anything. Rows and columns at the end that fill no window are cut off.
///
/// Of equal maxima the first, row by row, receives the gradient, as with `F.max_pool2d`.
/// Fails on maps that hold no window, and for other sizes than 2 and 3.
pub fn max_pool(xs: &Maps, size: usize) -> Result<Maps> {
    let (_, height, width, _) = xs.dims()?;
    window_fits(height, width, size)?;
    become_maps!(xs, kernels::max_pool::max_pool(xs, size), composed::max_pool(xs, size))
}

/// The parameter-free shortcut of He et al. 2016 (option A): every second row and column of
/// `xs [B, H, W, C]`, new channels zero, half of them on either side: `[B, ⌈H/2⌉, ⌈W/2⌉, channels]`.
pub fn shortcut_a(xs: &Maps, channels: usize) -> Result<Maps> {
    let (batch, height, width, inputs) = xs.dims()?;
    if channels < inputs {
        bail!("shortcut_a: {channels} channels cannot hold the {inputs} of the input");
    }
    let shape = [batch, height.div_ceil(2), width.div_ceil(2), channels];
    if counts::elements(&shape).is_none() {
        bail!("shortcut_a: no memory has the elements of {shape:?}");
    }
    become_maps!(xs, kernels::pool::shortcut_a(xs, channels), composed::shortcut_a(xs, channels))
}

/// `xs [B, I]` times `weight [O, I]` transposed, plus `bias [O]`.
pub fn linear(xs: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let (_, inputs) = xs.dims2()?;
    let (outputs, _) = weight.dims2()?;
    some("linear: input", xs)?;
    fits("linear: weight", weight, &[outputs, inputs])?;
    fits("linear: bias", bias, &[outputs])?;
    by_kernel!(xs, linear::linear(xs, weight, bias))
}

/// Rows of `table [V, D]` for `ids u32 [B, L]`: `[B, L, D]`.
///
/// As `nn.Embedding(padding_idx = 0)`: row [`PAD`](crate::PAD) is read like any other and
/// receives no gradient.
pub fn embedding(ids: &Tensor, table: &Tensor) -> Result<Tensor> {
    some("embedding: ids", ids)?;
    some("embedding: table", table)?;
    by_kernel!(table, embedding::embedding(ids, table))
}

/// Mean over each text's tokens of their rows in `table [V, D]`, for `ids u32 [B, L]`: `[B, D]`.
///
/// As `nn.EmbeddingBag(mode = "mean", padding_idx = 0)`: padding counts for nothing, and a text
/// of nothing but padding gives zeros.
pub fn embedding_mean(ids: &Tensor, table: &Tensor) -> Result<Tensor> {
    some("embedding_mean: ids", ids)?;
    some("embedding_mean: table", table)?;
    by_kernel!(table, embedding::embedding_mean(ids, table))
}

/// Cross-correlation of `xs [B, L, D]` over time with `weight [F, D, K]` plus `bias [F]`, no
/// padding, ReLU, then the maximum over time: `[B, F]`.
///
/// Only the first position of a maximum receives gradient, as with `F.max_pool1d`.
pub fn conv1d_relu_max(xs: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    convs1d_relu_max(xs, None, &[(weight, bias)])
}

/// [`conv1d_relu_max`] of `xs [B, L, D]` with every pair of `weight [F, D, K]` and `bias [F]`,
/// side by side: `[B, ΣF]`. At least one pair.
///
/// `ids u32 [B, L]`, if given, promise that rows of `xs` with equal ids are equal, as words looked up
/// in a table are: work on a word is then done once for all its places.
pub fn convs1d_relu_max(
    xs: &Tensor,
    ids: Option<&Tensor>,
    filters: &[(&Tensor, &Tensor)],
) -> Result<Tensor> {
    let (batch, length, inputs) = xs.dims3()?;
    some("conv1d_relu_max: input", xs)?;
    if let Some(ids) = ids {
        fits("conv1d_relu_max: ids", ids, &[batch, length])?;
    }
    for (weight, bias) in filters {
        let (filters, expected, width) = weight.dims3()?;
        some("conv1d_relu_max: weight", weight)?;
        fits("conv1d_relu_max: bias", bias, &[filters])?;
        if inputs != expected || length < width {
            bail!(
                "conv1d_relu_max: a filter of {width} positions of {expected} does not fit an input of {length} positions of {inputs}"
            );
        }
    }
    if filters.is_empty() {
        bail!("convs1d_relu_max: there are no filters");
    }
    match native(xs)? {
        Some(Native { isa, .. }) => kernels::text_conv::conv1d_relu_max(isa, xs, ids, filters),
        None => {
            let each = filters.iter().map(|(w, b)| composed::conv1d_relu_max(xs, w, b));
            Tensor::cat(&each.collect::<Result<Vec<_>>>()?, 1)
        }
    }
}

/// Hidden states of a bidirectional LSTM over `xs [B, L, D]`, averaged over each text's tokens:
/// `[B, 2H]`, forward direction first.
///
/// `ids u32 [B, L]` says where the padding is. At padding both hidden and cell state are zero, so
/// that with padding at the end both directions equal an LSTM on packed sequences. A text of
/// nothing but padding gives zeros.
pub fn bilstm(xs: &Tensor, ids: &Tensor, forward: &Lstm, reverse: &Lstm) -> Result<Tensor> {
    let (batch, length, inputs) = xs.dims3()?;
    some("bilstm: input", xs)?;
    fits("bilstm: ids", ids, &[batch, length])?;
    let (gates, hidden) = forward.weight_hh.dims2()?;
    if hidden.checked_mul(4) != Some(gates) {
        bail!("bilstm: weight_hh is {:?}, not four gates by one", forward.weight_hh.dims());
    }
    for Lstm { weight_ih, weight_hh, bias_ih, bias_hh } in [forward, reverse] {
        fits("bilstm: weight_hh", weight_hh, &[gates, hidden])?;
        fits("bilstm: weight_ih", weight_ih, &[gates, inputs])?;
        fits("bilstm: bias_ih", bias_ih, &[gates])?;
        fits("bilstm: bias_hh", bias_hh, &[gates])?;
    }
    by_kernel!(xs, lstm::bilstm(xs, ids, forward, reverse))
}

/// Mean over the batch of the cross-entropy between `softmax(logits [B, C])` and `targets u32 [B]`:
/// a scalar.
///
/// `smoothing` ε in `[0, 1)` is PyTorch's `label_smoothing`: the target distribution is
/// `(1 − ε)·onehot + ε/C`.
///
/// ```
/// use candle_core::{Device, Tensor};
/// let logits = Tensor::new(&[[0f32, 0.]], &Device::Cpu)?;
/// let targets = Tensor::new(&[1u32], &Device::Cpu)?;
/// let loss = gradwire_models::cross_entropy(&logits, &targets, 0.)?.to_scalar::<f32>()?;
/// assert!((loss - 2f32.ln()).abs() < 1e-6);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn cross_entropy(logits: &Tensor, targets: &Tensor, smoothing: f64) -> Result<Tensor> {
    let (batch, _) = logits.dims2()?;
    if batch == 0 {
        bail!("cross_entropy: the mean over an empty batch is undefined; skip the step instead");
    }
    fits("cross_entropy: targets", targets, &[batch])?;
    if targets.dtype() != DType::U32 {
        bail!("cross_entropy: targets must be u32, got {:?}", targets.dtype());
    }
    some("cross_entropy: logits", logits)?;
    if !(0. ..1.).contains(&smoothing) {
        bail!("cross_entropy: label smoothing must lie in [0, 1), got {smoothing}");
    }
    match native(logits)? {
        Some(_) => kernels::cross_entropy::cross_entropy(logits, targets, smoothing),
        None => composed::cross_entropy(logits, targets, smoothing),
    }
}

/// Refuses windows of max-pooling that there are no kernels for, and maps that hold none.
fn window_fits(height: usize, width: usize, size: usize) -> Result<()> {
    if !(2..=3).contains(&size) {
        bail!("max_pool: there are windows of 2x2 and 3x3 pixels, not of {size}x{size}");
    }
    if height < size || width < size {
        bail!("max_pool: no {size}x{size} window fits a {height}x{width} input");
    }
    Ok(())
}
