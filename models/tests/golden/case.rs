//! The case that a golden file is about: a model, its sizes, its input.

use candle_core::{Error, Result, Tensor, bail};
use gradwire_models::{Config, Input, Model, Store};
use serde::Deserialize;

use crate::formula;

/// What a golden file says before its results.
#[derive(Deserialize)]
pub(crate) struct Case {
    /// The model's name.
    pub(crate) model: String,
    seed: u64,
    classes: usize,
    input: Vec<usize>,
    vocabulary: Option<usize>,
}

impl Case {
    /// The model with its default settings, its variables in `store`.
    pub(crate) fn build(&self, store: &Store) -> Result<Model> {
        let config = serde_json::json!({"kind": self.model});
        let config: Config = serde_json::from_value(config).map_err(Error::wrap)?;
        config.build(&self.input()?, self.classes, store.var_builder())
    }

    fn input(&self) -> Result<Input> {
        match (self.vocabulary, self.input.as_slice()) {
            (Some(vocabulary), &[_, length]) => Ok(Input::Text { vocabulary, length }),
            (None, &[_, height, width, channels]) => Ok(Input::Image { channels, height, width }),
            other => bail!("{}: no input is {other:?}", self.model),
        }
    }

    /// The inputs.
    pub(crate) fn inputs(&self) -> Result<Tensor> {
        formula::inputs(self.seed, self.input[0], self.input()?)
    }

    /// Their labels.
    pub(crate) fn labels(&self) -> Result<Tensor> {
        formula::labels(self.seed, self.input[0], self.classes)
    }
}
