//! Mean of word embeddings, one linear layer: Joulin et al., "Bag of Tricks for Efficient Text
//! Classification" (EACL 2017), without n-grams and with a plain softmax.
//!
//! Reference: `nn.EmbeddingBag(V, dim, mode="mean", padding_idx=0)` and `nn.Linear`, named
//! `embedding` and `fc`. Padding counts for nothing; a text of nothing but padding is the zero
//! vector.

use candle_core::{Result, Tensor, bail};
use candle_nn::{ModuleT, VarBuilder};

use crate::definition::{About, Definition, Input, InputKind, Model};
use crate::layers::Linear;
use crate::ops;

settings! {
    /// Settings of `fasttext`.
    pub struct Config {
        /// Length of a word's embedding.
        #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
        pub dim: usize = 128,
    }
}

impl Definition for Config {
    fn about(&self) -> About {
        About {
            name: "fasttext",
            line: "texts; mean of word embeddings and one linear layer",
            paper: "Joulin et al. 2017",
        }
    }

    fn reads(&self) -> InputKind {
        InputKind::Text
    }

    fn table(&self) -> Option<&'static str> {
        Some(super::TABLE)
    }

    fn build(&self, input: &Input, classes: usize, vb: &VarBuilder) -> Result<Model> {
        let [vocabulary, _] = input.text()?;
        if self.dim == 0 {
            bail!("fasttext: dim must be at least 1");
        }
        let embedding = super::embedding(vocabulary, self.dim, vb)?;
        Ok(Box::new(Fasttext { embedding, fc: Linear::new(self.dim, classes, &vb.pp("fc"))? }))
    }
}

struct Fasttext {
    embedding: Tensor,
    fc: Linear,
}

impl ModuleT for Fasttext {
    fn forward_t(&self, ids: &Tensor, _train: bool) -> Result<Tensor> {
        self.fc.forward(&ops::embedding_mean(ids, &self.embedding)?)
    }
}
