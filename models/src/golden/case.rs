//! The case that a golden file is about: a model, its sizes, its input.

use candle_core::{Device, Error, Result, Tensor, bail};
use serde::Deserialize;

use super::formula;
use crate::config::Config;
use crate::definition::{Input, Model};
use crate::store::Store;

/// What a golden file says before its results.
#[derive(Deserialize)]
pub struct Case {
    /// The model's name.
    pub model: String,
    seed: u64,
    classes: usize,
    input: Vec<usize>,
    vocabulary: Option<usize>,
}

impl Case {
    /// The model with its default settings, its variables in `store`.
    ///
    /// # Errors
    /// When there is no such model, or it cannot read such an input.
    pub fn build(&self, store: &Store) -> Result<Model> {
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

    /// The inputs on `device`: `f32 [batch, height, width, channels]` or `u32 [batch, length]`.
    ///
    /// # Errors
    /// When the sizes are those of no input, or the device refuses.
    pub fn inputs(&self, device: &Device) -> Result<Tensor> {
        formula::inputs(self.seed, self.input[0], self.input()?)?.to_device(device)
    }

    /// Their labels `u32 [batch]` on `device`.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn labels(&self, device: &Device) -> Result<Tensor> {
        formula::labels(self.seed, self.input[0], self.classes)?.to_device(device)
    }
}
