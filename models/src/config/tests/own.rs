//! A model for the test of the registry: one linear layer over the pixels.

use candle_core::{D, Result, Tensor};
use candle_nn::{ModuleT, VarBuilder};
use serde::{Deserialize, Serialize};

use crate::definition::{About, Definition, Input, InputKind, Model};

/// Settings of the linear model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Config {
    /// Whether classes have a bias.
    bias: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { bias: true }
    }
}

impl Definition for Config {
    fn about(&self) -> About {
        About { name: "linear", line: "images; one linear layer over the pixels", paper: "nobody" }
    }

    fn reads(&self) -> InputKind {
        InputKind::Image
    }

    fn build(&self, input: &Input, classes: usize, vb: &VarBuilder) -> Result<Model> {
        let pixels = input.image()?.iter().product();
        let layer = if self.bias { candle_nn::linear } else { candle_nn::linear_no_bias };
        Ok(Box::new(Linear(layer(pixels, classes, vb.pp("fc"))?)))
    }
}

struct Linear(candle_nn::Linear);

impl ModuleT for Linear {
    fn forward_t(&self, xs: &Tensor, _train: bool) -> Result<Tensor> {
        self.0.forward_t(&xs.flatten(1, D::Minus1)?, true)
    }
}
