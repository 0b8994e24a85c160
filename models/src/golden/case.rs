//! The case that a golden file is about: a model, its sizes, its input.

use candle_core::{Device, Error, Result, Tensor, bail};
use serde::Deserialize;

use super::formula;
use crate::config::Config;
use crate::definition::{Input, InputKind, Model};
use crate::store::Store;

/// What a golden file says before its results.
#[derive(Deserialize)]
pub struct Case {
    /// The model's name.
    pub model: String,
    /// Its settings that are not the defaults.
    #[serde(default)]
    settings: serde_json::Map<String, serde_json::Value>,
    seed: u64,
    classes: usize,
    input: Vec<usize>,
    vocabulary: Option<usize>,
}

impl Case {
    /// The model, its variables in `store`.
    ///
    /// # Errors
    /// When there is no such model, or it cannot read such an input.
    pub fn build(&self, store: &Store) -> Result<Model> {
        self.config()?.build(&self.input()?, self.classes, store.var_builder())
    }

    fn config(&self) -> Result<Config> {
        let mut config = self.settings.clone();
        config.insert("kind".to_owned(), self.model.clone().into());
        serde_json::from_value(config.into()).map_err(Error::wrap)
    }

    fn input(&self) -> Result<Input> {
        let reads = self.config()?.input_kind();
        match (reads, self.vocabulary, self.input.as_slice()) {
            (InputKind::Image, None, &[_, height, width, channels]) => {
                Ok(Input::Image { channels, height, width })
            }
            (InputKind::Text, Some(vocabulary), &[_, length]) => {
                Ok(Input::Text { vocabulary, length })
            }
            (InputKind::Sequence, Some(vocabulary), &[_, length]) => {
                Ok(Input::Sequence { vocabulary, length })
            }
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

    /// Their labels, `u32 [batch]` or one for each token, on `device`.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn labels(&self, device: &Device) -> Result<Tensor> {
        let count = match self.input()? {
            Input::Sequence { length, .. } => self.input[0] * length,
            _ => self.input[0],
        };
        formula::labels(self.seed, count, self.classes)?.to_device(device)
    }
}
