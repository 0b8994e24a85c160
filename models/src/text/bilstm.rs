//! A bidirectional LSTM over word embeddings, mean over time, one linear layer.
//!
//! Reference: `nn.Embedding(V, dim, padding_idx=0)`, `nn.LSTM(dim, hidden, batch_first=True,
//! bidirectional=True)` on packed sequences, `nn.Linear(2 · hidden, classes)`, named `embedding`,
//! `lstm` and `fc`. Padding never reaches the LSTM, so a text's logits do not depend on how far
//! it was padded; the mean runs over its words, and a text of nothing but padding gives zeros.

use candle_core::{Result, Tensor, bail};
use candle_nn::{ModuleT, VarBuilder};

use crate::definition::{About, Definition, Input, InputKind, Model};
use crate::layers::{Linear, uniform};
use crate::ops::{self, Lstm};

settings! {
    /// Settings of `bilstm`.
    pub struct Config {
        /// Length of a word's embedding.
        #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
        pub dim: usize = 128,
        /// Width of the hidden state of each direction.
        #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
        pub hidden: usize = 128,
    }
}

impl Definition for Config {
    fn about(&self) -> About {
        About {
            name: "bilstm",
            line: "texts; bidirectional LSTM, mean over time",
            paper: "Hochreiter and Schmidhuber 1997",
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
        if self.dim == 0 || self.hidden == 0 {
            bail!("bilstm: dim and hidden must be at least 1");
        }
        let embedding = super::embedding(vocabulary, self.dim, vb)?;
        Ok(Box::new(Bilstm {
            embedding,
            forward: self.direction("", &vb.pp("lstm"))?,
            reverse: self.direction("_reverse", &vb.pp("lstm"))?,
            fc: Linear::new(self.hidden.saturating_mul(2), classes, &vb.pp("fc"))?,
        }))
    }
}

impl Config {
    /// One direction's variables, U(±1/√hidden) as `nn.LSTM`'s.
    fn direction(&self, suffix: &str, vb: &VarBuilder) -> Result<Lstm> {
        let gates = self.hidden.saturating_mul(4);
        let init = uniform(self.hidden);
        let name = |part: &str| format!("{part}_l0{suffix}");
        Ok(Lstm {
            weight_ih: vb.get_with_hints((gates, self.dim), &name("weight_ih"), init)?,
            weight_hh: vb.get_with_hints((gates, self.hidden), &name("weight_hh"), init)?,
            bias_ih: vb.get_with_hints(gates, &name("bias_ih"), init)?,
            bias_hh: vb.get_with_hints(gates, &name("bias_hh"), init)?,
        })
    }
}

struct Bilstm {
    embedding: Tensor,
    forward: Lstm,
    reverse: Lstm,
    fc: Linear,
}

impl ModuleT for Bilstm {
    fn forward_t(&self, ids: &Tensor, _train: bool) -> Result<Tensor> {
        let words = ops::embedding(ids, &self.embedding)?;
        self.fc.forward(&ops::bilstm(&words, ids, &self.forward, &self.reverse)?)
    }
}
