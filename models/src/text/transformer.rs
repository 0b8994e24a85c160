//! A transformer encoder over words and their positions, mean over each text's words, one linear layer: Vaswani et al.,
//! "Attention Is All You Need" (NeurIPS 2017), section 3, with the norms before each half of a layer: Xiong et al., "On
//! Layer Normalization in the Transformer Architecture" (ICML 2020), section 3.
//!
//! Reference: `nn.Embedding(V, dim, padding_idx=0)` plus `nn.Embedding(positions, dim)`, `nn.ModuleList` of
//! `nn.TransformerEncoderLayer(dim, heads, feed_forward, dropout=0, activation="gelu", batch_first=True,
//! norm_first=True)` with `src_key_padding_mask`, `nn.LayerNorm(dim)`, the mean over the words, `nn.Linear(dim,
//! classes)`, named `embedding`, `positions`, `layers`, `norm` and `fc`. Padding is never computed, so a text's logits do
//! not depend on how far it was padded; a text of nothing but padding has the mean of nothing, zeros.
//!
//! Where we differ from the papers: the encoder alone, with a classifier on its mean; learned positions, which Vaswani et
//! al. found as good as sinusoids (table 3, row E); GELU (Hendrycks and Gimpel 2016) where they have ReLU; no dropout
//! (regularise by weight decay); the table is not multiplied by √dim.

use candle_core::{Result, Tensor, bail};
use candle_nn::{Init, ModuleT, VarBuilder};

use super::layer::{Initial, Layer, StackSizes, norm};
use crate::definition::{About, Definition, Input, InputKind, Model};
use crate::layers::{Linear, uniform};
use crate::ops::{self, Gelu, Norm, Reach};
use crate::packing::Packing;

settings! {
    /// Settings of `transformer`.
    pub struct Config {
        /// Length of a word's embedding, and the width of the layers.
        #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
        pub dim: usize = 128,
        /// Attention heads of a layer; they divide `dim`.
        #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
        pub heads: usize = 4,
        /// Encoder layers, at most 1024.
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1024)))]
        pub layers: usize = 2,
        /// Inner width of the feed-forward networks.
        #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
        pub feed_forward: usize = 256,
        /// Positions that have an embedding: the longest text, in tokens.
        #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
        pub positions: usize = 64,
        /// The form of GELU in the feed-forward networks.
        pub gelu: Gelu = Gelu::default(),
    }
}

impl Definition for Config {
    fn about(&self) -> About {
        About {
            name: "transformer",
            line: "texts; pre-norm encoder layers, mean over the words",
            paper: "Vaswani et al. 2017",
        }
    }

    fn reads(&self) -> InputKind {
        InputKind::Text
    }

    fn table(&self) -> Option<&'static str> {
        Some(super::TABLE)
    }

    fn build(&self, input: &Input, classes: usize, vb: &VarBuilder) -> Result<Model> {
        let [vocabulary, length] = input.text()?;
        let &Self { dim, heads, layers, feed_forward, positions, gelu } = self;
        let sizes = StackSizes { dim, heads, layers, feed_forward, gelu, reach: Reach::Text };
        sizes.check("transformer")?;
        if positions == 0 {
            bail!("transformer: dim, heads, layers, feed_forward and positions must be at least 1");
        }
        if length > positions {
            bail!(
                "transformer: texts of length {length} are longer than its {positions} positions; raise positions to {length} or shorten the texts"
            );
        }
        let embedding = super::embedding(vocabulary, dim, vb)?;
        let init = Init::Randn { mean: 0., stdev: 0.1 };
        let positions = vb.get_with_hints((positions, dim), "positions.weight", init)?;
        let (zero, inner) = (Init::Const(0.), feed_forward);
        let initial = Initial {
            in_proj: [glorot(dim, dim.saturating_mul(3)), zero],
            out_proj: [uniform(dim), zero],
            linear1: [uniform(dim); 2],
            linear2: [uniform(inner); 2],
        };
        let layers = sizes.layers(initial, vb)?;
        let norm = norm(dim, &vb.pp("norm"))?;
        let fc = Linear::new(dim, classes, &vb.pp("fc"))?;
        Ok(Box::new(Transformer { embedding, positions, layers, norm, fc }))
    }
}

/// U(±√(6 / (in + out))), Glorot and Bengio 2010, as `nn.MultiheadAttention` has it for its input projection.
fn glorot(inputs: usize, outputs: usize) -> Init {
    let bound = (6. / (inputs + outputs) as f64).sqrt();
    Init::Uniform { lo: -bound, up: bound }
}

struct Transformer {
    embedding: Tensor,
    positions: Tensor,
    layers: Vec<Layer>,
    norm: Norm,
    fc: Linear,
}

impl ModuleT for Transformer {
    fn forward_t(&self, ids: &Tensor, _train: bool) -> Result<Tensor> {
        let packing = Packing::new(ids)?;
        let mut rows = ops::token_rows(&packing, &self.embedding, &self.positions)?;
        for layer in &self.layers {
            rows = layer.forward(&rows, &packing, 0.)?;
        }
        let rows = ops::layer_norm(&rows, &self.norm.weight, &self.norm.bias)?;
        self.fc.forward(&ops::text_mean(&rows, &packing)?)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::Store;

    fn built(config: &Config, length: usize, store: &Store) -> Result<Model> {
        config.build(&Input::Text { vocabulary: 20, length }, 4, &store.var_builder())
    }

    #[test]
    fn logits_depend_on_the_order_of_words_and_not_on_padding() {
        let store = Store::new(3, &Device::Cpu);
        let model = built(&Config::default(), 6, &store).unwrap();
        let logits = |texts: &[[u32; 6]; 3]| {
            let ids = Tensor::new(texts, &Device::Cpu).unwrap();
            model.forward_t(&ids, false).unwrap().to_vec2::<f32>().unwrap()
        };
        let tight = Tensor::new(&[[5u32, 6, 7]], &Device::Cpu).unwrap();
        let tight = model.forward_t(&tight, false).unwrap().to_vec2::<f32>().unwrap();
        let padded = logits(&[[5, 6, 7, 0, 0, 0], [7, 6, 5, 0, 0, 0], [0; 6]]);
        assert_eq!(padded[0], tight[0]);
        assert_ne!(padded[0], padded[1]);
        let bias = store.trainable().into_iter().find(|(name, _)| name == "fc.bias").unwrap().1;
        assert_eq!(padded[2], bias.to_vec1::<f32>().unwrap());
    }
}
