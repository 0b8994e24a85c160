//! The pre-norm layers that the encoder and the decoder share: self-attention, then a feed-forward network.

use candle_core::{Result, Tensor, bail};
use candle_nn::{Init, VarBuilder};

use crate::ops::{self, Dense, FeedForward, Gelu, Norm, Reach, SelfAttention};
use crate::packing::Packing;

/// The most layers: each is built to count its parameters, before anybody asks whether a machine has room for them.
const MOST_LAYERS: usize = 1024;

/// Sizes of a stack of layers.
#[derive(Clone, Copy)]
pub(super) struct StackSizes {
    pub(super) dim: usize,
    pub(super) heads: usize,
    pub(super) layers: usize,
    pub(super) feed_forward: usize,
    pub(super) gelu: Gelu,
    pub(super) reach: Reach,
}

/// What the parameters of a layer are at first: weight and bias of each projection.
#[derive(Clone, Copy)]
pub(super) struct Initial {
    pub(super) in_proj: [Init; 2],
    pub(super) out_proj: [Init; 2],
    pub(super) linear1: [Init; 2],
    pub(super) linear2: [Init; 2],
}

/// One layer.
pub(super) struct Layer {
    attention: SelfAttention,
    feed_forward: FeedForward,
}

impl StackSizes {
    /// Refuses what makes no layer of the model `name`, with what to write instead.
    pub(super) fn check(&self, name: &str) -> Result<()> {
        let &Self { dim, heads, layers, feed_forward, .. } = self;
        if dim == 0 || heads == 0 || layers == 0 || feed_forward == 0 {
            bail!("{name}: dim, heads, layers, feed_forward and positions must be at least 1");
        }
        if !dim.is_multiple_of(heads) {
            let fewer = (1..=heads.min(dim).min(1 << 16))
                .rev()
                .find(|heads| dim.is_multiple_of(*heads))
                .unwrap_or(1);
            bail!(
                "{name}: {heads} heads do not divide a dim of {dim}; use {fewer} heads, or a dim that is a multiple of {heads}"
            );
        }
        if layers > MOST_LAYERS {
            bail!(
                "{name}: {layers} layers are more than any machine trains; use at most {MOST_LAYERS}"
            );
        }
        Ok(())
    }

    /// The layers, named as `nn.ModuleList` of `nn.TransformerEncoderLayer`.
    pub(super) fn layers(&self, initial: Initial, vb: &VarBuilder) -> Result<Vec<Layer>> {
        let &Self { dim, heads, feed_forward, gelu, reach, .. } = self;
        let three = dim.saturating_mul(3);
        let layers = (0..self.layers).map(|layer| {
            let vb = vb.pp("layers").pp(layer);
            let [in_weight, in_bias] = initial.in_proj;
            let attention = SelfAttention {
                norm: norm(dim, &vb.pp("norm1"))?,
                in_proj: Dense {
                    weight: vb.get_with_hints(
                        (three, dim),
                        "self_attn.in_proj_weight",
                        in_weight,
                    )?,
                    bias: vb.get_with_hints(three, "self_attn.in_proj_bias", in_bias)?,
                },
                out_proj: dense(dim, dim, initial.out_proj, &vb.pp("self_attn").pp("out_proj"))?,
                heads,
                reach,
            };
            let feed_forward = FeedForward {
                norm: norm(dim, &vb.pp("norm2"))?,
                linear1: dense(dim, feed_forward, initial.linear1, &vb.pp("linear1"))?,
                linear2: dense(feed_forward, dim, initial.linear2, &vb.pp("linear2"))?,
                gelu,
            };
            Ok(Layer { attention, feed_forward })
        });
        layers.collect()
    }
}

impl Layer {
    /// The packed rows after this layer; `dropout`, where it is not 0, drops values of what each half adds to them.
    pub(super) fn forward(&self, rows: &Tensor, packing: &Packing, dropout: f64) -> Result<Tensor> {
        let drop = |before: &Tensor, after: Tensor| match dropout {
            0. => Ok(after),
            rate => before + ops::dropout(&(after - before)?, rate)?,
        };
        let rows = drop(rows, ops::self_attention(rows, packing, &self.attention)?)?;
        drop(&rows, ops::feed_forward(&rows, packing, &self.feed_forward)?)
    }
}

/// γ = 1 and β = 0 at first.
pub(super) fn norm(dim: usize, vb: &VarBuilder) -> Result<Norm> {
    Ok(Norm {
        weight: vb.get_with_hints(dim, "weight", Init::Const(1.))?,
        bias: vb.get_with_hints(dim, "bias", Init::Const(0.))?,
    })
}

fn dense(
    inputs: usize,
    outputs: usize,
    [weight, bias]: [Init; 2],
    vb: &VarBuilder,
) -> Result<Dense> {
    Ok(Dense {
        weight: vb.get_with_hints((outputs, inputs), "weight", weight)?,
        bias: vb.get_with_hints(outputs, "bias", bias)?,
    })
}
