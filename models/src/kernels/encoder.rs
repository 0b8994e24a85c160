//! The two halves of a pre-norm encoder layer over packed rows: self-attention and the feed-forward network, each with
//! the layer norm before it and the residual around it as one operation.

mod attention;
mod block;
mod feed_forward;

use candle_core::{Result, Tensor};

use super::handover::Linked;
use super::profile::Timed;
use super::simd::Isa;
use crate::packing::Packing;
use crate::parameters::{Dense, FeedForward, Norm, SelfAttention};
use attention::Attention;
use block::block;
use feed_forward::Activation;

/// See [`ops::self_attention`](crate::ops::self_attention): `xs + out_proj(attention(in_proj(norm(xs))))`.
pub(crate) fn self_attention(
    isa: Isa,
    xs: &Tensor,
    packing: &Packing,
    of: &SelfAttention,
) -> Result<Tensor> {
    let middle = Attention::new(isa, xs.dim(1)?, packing.length(), of);
    let kinds = [Timed::Attention, Timed::AttentionBackward];
    block(isa, xs, packing, parameters(&of.norm, &of.in_proj, &of.out_proj)?, middle, kinds)
}

/// See [`ops::feed_forward`](crate::ops::feed_forward): `xs + linear2(gelu(linear1(norm(xs))))`.
pub(crate) fn feed_forward(
    isa: Isa,
    xs: &Tensor,
    packing: &Packing,
    of: &FeedForward,
) -> Result<Tensor> {
    let middle = Activation::new(isa, of.linear2.weight.dim(1)?, of.gelu);
    let kinds = [Timed::FeedForward, Timed::FeedForwardBackward];
    block(isa, xs, packing, parameters(&of.norm, &of.linear1, &of.linear2)?, middle, kinds)
}

/// The parameters in the order of [`block`].
fn parameters(norm: &Norm, first: &Dense, second: &Dense) -> Result<Linked> {
    let [first, second] = [first, second].map(|dense| [&dense.weight, &dense.bias]);
    Linked::new([&norm.weight, &norm.bias, first[0], first[1], second[0], second[1]])
}

#[cfg(test)]
mod tests;
