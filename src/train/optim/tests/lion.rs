//! An optimizer for the test of the registry: Lion (Chen et al. 2023, algorithm 2), which remembers
//! one vector and moves every weight by the same amount, up or down.

use crate::recipe::optimizer::{About, Definition, Now, Piece, Rule};
use serde::{Deserialize, Serialize};

/// Settings of Lion.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Lion {
    learning_rate: f64,
    beta1: f32,
    beta2: f32,
}

impl Default for Lion {
    fn default() -> Self {
        Self { learning_rate: 1e-4, beta1: 0.9, beta2: 0.99 }
    }
}

impl Definition for Lion {
    fn about(&self) -> About {
        About { name: "lion", line: "the sign of a momentum", paper: "Chen et al. 2023" }
    }

    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    fn validate(&self) -> Result<(), String> {
        Ok(())
    }

    fn rule(&self, _correction: f64) -> Box<dyn Rule> {
        Box::new(self.clone())
    }
}

impl Rule for Lion {
    fn vectors(&self) -> &'static [&'static str] {
        &["exp_avg"]
    }

    fn update(&self, piece: Piece<'_>, now: &Now) {
        let Piece { weights, gradient, state } = piece;
        let [mean] = state.take();
        for ((weight, g), mean) in weights.iter_mut().zip(gradient).zip(mean) {
            let update = self.beta1 * *mean + (1.0 - self.beta1) * g;
            *weight -= now.rate as f32 * update.signum();
            *mean = self.beta2 * *mean + (1.0 - self.beta2) * g;
        }
    }
}
