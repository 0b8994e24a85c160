//! A decoder that continues a text: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), section
//! 2.3 (GPT-2): pre-norm layers whose rows attend to themselves and to those before, a last layer norm, and a head that
//! shares the table of the tokens (Press and Wolf 2017).
//!
//! Reference: `nn.Embedding(V, dim)` plus, with learned positions, `nn.Embedding(length, dim)`, `nn.ModuleList` of
//! `nn.TransformerEncoderLayer(dim, heads, feed_forward, activation="gelu", batch_first=True, norm_first=True)` with a
//! causal mask, `nn.LayerNorm(dim)`, and a linear head without bias, named `tokens`, `positions`, `layers`, `norm` and
//! `head`. With a tied head and 65 characters the default sizes are those of nanoGPT's model for a laptop: 809,856
//! parameters. Weights begin as GPT-2's: N(0, 0.02²), those of projections into the residual stream divided by
//! √(2 · layers); biases at zero.
//!
//! Where we differ from the paper: dropout falls on the rows and on what each half of a layer adds, not on the weights of
//! the attention; `rotary` positions (Su et al. 2021) are a choice in place of learned ones; GELU is exact unless
//! `gelu = "tanh"`.

use candle_core::{Result, Tensor, bail};
use candle_nn::{Init, ModuleT, VarBuilder};
use serde::{Deserialize, Serialize};

use super::layer::{Initial, Layer, StackSizes, norm};
use crate::definition::{About, Definition, Input, InputKind, Model};
use crate::ops::{self, Gelu, Norm, Reach};
use crate::packing::Packing;

/// How a row knows its position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Positions {
    /// By a learned vector for each position of a block, added to its token's.
    #[default]
    Learned,
    /// By turning queries and keys (Su et al. 2021).
    Rotary,
}

settings! {
    /// Settings of `gpt`.
    pub struct Config {
        /// Length of a token's embedding, and the width of the layers.
        #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
        pub dim: usize = 128,
        /// Attention heads of a layer; they divide `dim`.
        #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
        pub heads: usize = 4,
        /// Layers, at most 1024.
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1024)))]
        pub layers: usize = 4,
        /// Inner width of the feed-forward networks; 0 for four times `dim`.
        pub feed_forward: usize = 0,
        /// How a token's position is known: `learned` or `rotary`.
        pub positions: Positions = Positions::Learned,
        /// The head shares the table of the tokens.
        pub tied: bool = true,
        /// The share of values that training drops, 0 to 1 (Srivastava et al. 2014).
        #[cfg_attr(feature = "schema", schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0)))]
        pub dropout: f64 = 0.,
        /// The form of GELU in the feed-forward networks.
        pub gelu: Gelu = Gelu::default(),
    }
}

impl Definition for Config {
    fn about(&self) -> About {
        About {
            name: "gpt",
            line: "sequences; a decoder that continues a text",
            paper: "Radford et al. 2019",
        }
    }

    fn reads(&self) -> InputKind {
        InputKind::Sequence
    }

    fn build(&self, input: &Input, _classes: usize, vb: &VarBuilder) -> Result<Model> {
        let [vocabulary, length] = input.sequence()?;
        let &Self { dim, heads, layers, positions, dropout, gelu, .. } = self;
        let reach = Reach::Past { rotary: positions == Positions::Rotary };
        let feed_forward = match self.feed_forward {
            0 => dim.saturating_mul(4),
            given => given,
        };
        let sizes = StackSizes { dim, heads, layers, feed_forward, gelu, reach };
        sizes.check("gpt")?;
        if positions == Positions::Rotary && (dim / heads) % 2 == 1 {
            bail!(
                "gpt: rotary positions turn pairs of values, and each of its {heads} heads has {}; use an even width, such as a dim of {}",
                dim / heads,
                dim + heads
            );
        }
        if !(0. ..1.).contains(&dropout) {
            bail!("gpt: dropout must lie in [0, 1), got {dropout}");
        }
        let normal = |stdev| Init::Randn { mean: 0., stdev };
        let (weight, zero) = (normal(0.02), Init::Const(0.));
        let residual = normal(0.02 / (2. * layers as f64).sqrt());
        let initial = Initial {
            in_proj: [weight, zero],
            out_proj: [residual, zero],
            linear1: [weight, zero],
            linear2: [residual, zero],
        };
        let tokens = vb.get_with_hints((vocabulary, dim), "tokens.weight", weight)?;
        Ok(Box::new(Gpt {
            positions: match positions {
                Positions::Learned => {
                    Some(vb.get_with_hints((length, dim), "positions.weight", weight)?)
                }
                Positions::Rotary => None,
            },
            head: match self.tied {
                true => tokens.clone(),
                false => vb.get_with_hints((vocabulary, dim), "head.weight", weight)?,
            },
            no_bias: Tensor::zeros(vocabulary, vb.dtype(), vb.device())?,
            tokens,
            layers: sizes.layers(initial, vb)?,
            norm: norm(dim, &vb.pp("norm"))?,
            dropout,
        }))
    }
}

struct Gpt {
    tokens: Tensor,
    positions: Option<Tensor>,
    layers: Vec<Layer>,
    norm: Norm,
    head: Tensor,
    no_bias: Tensor,
    dropout: f64,
}

impl ModuleT for Gpt {
    fn forward_t(&self, ids: &Tensor, train: bool) -> Result<Tensor> {
        let dropout = if train { self.dropout } else { 0. };
        let packing = Packing::whole(ids)?;
        let mut rows = ops::piece_rows(&packing, &self.tokens, self.positions.as_ref())?;
        if dropout > 0. {
            rows = ops::dropout(&rows, dropout)?;
        }
        for layer in &self.layers {
            rows = layer.forward(&rows, &packing, dropout)?;
        }
        let rows = ops::layer_norm(&rows, &self.norm.weight, &self.norm.bias)?;
        ops::linear(&rows, &self.head, &self.no_bias)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::Store;
    use crate::randomness;

    fn built(config: &Config, store: &Store) -> Model {
        let input = Input::Sequence { vocabulary: 65, length: 64 };
        config.build(&input, 65, &store.var_builder()).unwrap()
    }

    fn logits(model: &Model, ids: &[u32], train: bool) -> Vec<Vec<f32>> {
        let ids = Tensor::from_slice(ids, (1, ids.len()), &Device::Cpu).unwrap();
        model.forward_t(&ids, train).unwrap().to_vec2().unwrap()
    }

    #[test]
    fn the_default_is_nano_gpts_model_for_a_laptop() {
        let config = crate::Config::from_name("gpt").unwrap();
        let input = Input::Sequence { vocabulary: 65, length: 64 };
        assert_eq!(config.parameters(&input, 65).unwrap(), 809_856);
    }

    #[test]
    fn a_token_changes_nothing_before_it_and_everything_after() {
        for positions in [Positions::Learned, Positions::Rotary] {
            let store = Store::new(3, &Device::Cpu);
            let model = built(&Config { positions, ..Config::default() }, &store);
            let one = logits(&model, &[0, 1, 2, 3, 0, 5], false);
            let other = logits(&model, &[0, 1, 7, 3, 0, 5], false);
            assert_eq!(one[..2], other[..2]);
            assert!((2..6).all(|row| one[row] != other[row]), "{positions:?}");
            // Equal tokens at other places continue differently.
            assert_ne!(one[0], one[4]);
        }
    }

    #[test]
    fn dropout_depends_on_the_key_alone_and_ends_with_training() {
        let store = Store::new(3, &Device::Cpu);
        let model = built(&Config { dropout: 0.5, ..Config::default() }, &store);
        let with = |key| {
            randomness::begin(key);
            logits(&model, &[1, 2, 3], true)
        };
        let first = with(1);
        assert_eq!(first, with(1));
        assert_ne!(first, with(2));
        assert_eq!(
            logits(&model, &[1, 2, 3], false),
            logits(&built(&Config::default(), &store), &[1, 2, 3], true)
        );
    }
}
