//! Convolutions of several widths over word embeddings, maximum over time, one linear layer:
//! Kim, "Convolutional Neural Networks for Sentence Classification" (EMNLP 2014).
//!
//! Reference: `nn.Embedding(V, dim, padding_idx=0)`, `nn.ModuleList` of `nn.Conv1d(dim, filters,
//! width)`, `nn.Linear(len(widths) · filters, classes)`, named `embedding`, `convs` and `fc`.
//! Padding takes part in the convolutions with its row of the table, which starts at zero and
//! receives no gradient.
//!
//! Where we differ from the paper: no dropout and no norm constraint on the output layer
//! (regularise by weight decay), and no pre-trained word vectors.

use candle_core::{Result, Tensor, bail};
use candle_nn::{ModuleT, VarBuilder};

use crate::definition::{About, Definition, Input, InputKind, Model};
use crate::layers::{Linear, uniform};
use crate::ops;

settings! {
    /// Settings of `textcnn`.
    pub struct Config {
        /// Length of a word's embedding.
        #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
        pub dim: usize = 128,
        /// Filters of each width.
        #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
        pub filters: usize = 100,
        /// Words that a filter spans.
        #[cfg_attr(feature = "schema", schemars(length(min = 1), inner(range(min = 1))))]
        pub widths: Vec<usize> = vec![3, 4, 5],
    }
}

impl Definition for Config {
    fn about(&self) -> About {
        About {
            name: "textcnn",
            line: "texts; convolutions over 3, 4 and 5 words, maximum over time",
            paper: "Kim 2014",
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
        if self.dim == 0 || self.filters == 0 {
            bail!("textcnn: dim and filters must be at least 1");
        }
        if self.widths.is_empty() || self.widths.contains(&0) {
            bail!("textcnn: widths must name at least one width, each at least 1");
        }
        if let Some(width) = self.widths.iter().find(|width| **width > length) {
            bail!(
                "textcnn: a filter of width {width} does not fit texts of length {length}; lengthen the texts or leave the width out"
            );
        }
        let embedding = super::embedding(vocabulary, self.dim, vb)?;
        let convs = self.widths.iter().enumerate().map(|(i, &width)| {
            let vb = vb.pp("convs").pp(i);
            let init = uniform(self.dim.saturating_mul(width));
            Ok(Conv1d {
                weight: vb.get_with_hints((self.filters, self.dim, width), "weight", init)?,
                bias: vb.get_with_hints(self.filters, "bias", init)?,
            })
        });
        let convs = convs.collect::<Result<Vec<_>>>()?;
        let fc =
            Linear::new(self.widths.len().saturating_mul(self.filters), classes, &vb.pp("fc"))?;
        Ok(Box::new(Textcnn { embedding, convs, fc }))
    }
}

struct Conv1d {
    weight: Tensor,
    bias: Tensor,
}

struct Textcnn {
    embedding: Tensor,
    convs: Vec<Conv1d>,
    fc: Linear,
}

impl ModuleT for Textcnn {
    fn forward_t(&self, ids: &Tensor, _train: bool) -> Result<Tensor> {
        let words = ops::embedding(ids, &self.embedding)?;
        let filters: Vec<_> = self.convs.iter().map(|conv| (&conv.weight, &conv.bias)).collect();
        self.fc.forward(&ops::convs1d_relu_max(&words, Some(ids), &filters)?)
    }
}
