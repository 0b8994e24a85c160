//! Muon: the momentum of a matrix is made orthogonal before it moves the weights, so that every direction
//! moves by as much (Jordan et al. 2024).
//!
//! For a matrix of m rows and n columns, which a convolution's kernel is with one row for each filter, and
//! its gradient G: `M += (1 - μ)(G - M)`; `U = orthogonal(G + μ(M - G))`, or of M without Nesterov's form;
//! `W = (1 - ηλ)W - 0.2·√max(m, n)·ηU`. That is `torch.optim.Muon` with `adjust_lr_fn = "match_rms_adamw"`,
//! in f32 where that has bfloat16. By the factor (Liu et al. 2025, "Muon is Scalable for LLM Training",
//! section 2.2) an update is as large as AdamW's are, so that the two share one learning rate: vectors, and the
//! matrices that stand for classes or tokens, are AdamW's.

use super::definition::{About, Definition, Now, Piece, Rule};
use gradwire_models::kernels::optimizer::{AdamWStep, adamw, orthogonalize};

/// AdamW's settings for what it updates: those that Liu et al. 2025 have beside Muon.
const BETAS: [f64; 2] = [0.9, 0.95];
const EPSILON: f64 = 1e-8;

/// What an orthogonal update is multiplied by beside √max(m, n): about the root mean square of AdamW's.
const LIKE_ADAMW: f64 = 0.2;

/// The most iterations of a recipe: after twenty all singular values that f32 can tell from 0 have come to 1.
const ITERATIONS: u32 = 20;

settings! {
    /// Settings of `muon`.
    pub struct Muon {
        /// The base learning rate, which the schedule multiplies.
        #[schemars(range(min = 0.0))]
        pub learning_rate: f64 = 0.02,
        /// Decay of the running mean of a matrix's gradient.
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        pub momentum: f64 = 0.95,
        /// Nesterov's form of momentum.
        pub nesterov: bool = true,
        /// Iterations that make a matrix orthogonal.
        #[schemars(range(min = 1, max = ITERATIONS))]
        pub iterations: u32 = 5,
        /// What AdamW updates beside all vectors, by the first part of its name: the matrices that stand for classes or
        /// tokens.
        pub adamw: Vec<String> = ["fc", "classifier", "linear", "embedding", "tokens", "head", "positions"]
            .map(String::from).to_vec(),
        /// Weight decay, decoupled from the gradient.
        #[schemars(range(min = 0.0))]
        pub weight_decay: f64 = 0.1,
        /// Whether batch norm's scales and shifts, and biases, decay as well.
        pub decay_norms_and_biases: bool = false,
    }
}

impl Definition for Muon {
    fn about(&self) -> About {
        About {
            name: "muon",
            line: "momentum, of matrices made orthogonal; AdamW for vectors, classes and tokens",
            paper: "Jordan et al. 2024",
        }
    }

    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    fn rule(&self, _correction: f64) -> Box<dyn Rule> {
        Box::new(self.clone())
    }
}

impl Muon {
    /// Whether AdamW updates a parameter.
    fn leaves(&self, now: &Now) -> bool {
        let first = now.name.split('.').next();
        !now.is_matrix() || self.adamw.iter().any(|name| Some(name.as_str()) == first)
    }
}

impl Rule for Muon {
    /// The running mean of the gradient, and of its square, which AdamW alone has.
    fn vectors(&self) -> &'static [&'static str] {
        &["muon_avg", "muon_avg_sq"]
    }

    fn whole(&self) -> bool {
        true
    }

    fn update(&self, piece: Piece<'_>, now: &Now) {
        let Piece { weights, gradient, state } = piece;
        let [mean, square] = state.take();
        let decay = now.decay(self.weight_decay, self.decay_norms_and_biases);
        if self.leaves(now) {
            let [beta1, beta2] = BETAS;
            let (lr, eps, step) = (now.rate, EPSILON, now.step);
            let step = AdamWStep { lr, beta1, beta2, eps, weight_decay: decay, step };
            return adamw(weights, gradient, mean, square, &step);
        }
        let momentum = self.momentum as f32;
        let mut update = gradient.to_vec();
        for (update, mean) in update.iter_mut().zip(mean) {
            *mean += (1.0 - momentum) * (*update - *mean);
            *update = if self.nesterov { *update + momentum * (*mean - *update) } else { *mean };
        }
        let rows = now.shape[0];
        orthogonalize(&mut update, rows, self.iterations);
        let larger = rows.max(weights.len().checked_div(rows).unwrap_or(0));
        let rate = (now.rate * LIKE_ADAMW * (larger as f64).sqrt()) as f32;
        let kept = (1.0 - now.rate * decay) as f32;
        for (weight, update) in weights.iter_mut().zip(update) {
            *weight = kept * *weight - rate * update;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::definition::Slices;
    use super::*;
    use serde_json::Value;

    fn floats(value: &Value) -> Vec<f32> {
        let values = value.as_array().unwrap().iter();
        values.map(|value| value.as_f64().unwrap() as f32).collect()
    }

    #[test]
    fn matrices_and_all_else_move_as_by_the_reference() {
        let golden: Value =
            serde_json::from_str(include_str!("../../../tests/vectors/muon.json")).unwrap();
        for case in golden["cases"].as_array().unwrap() {
            let muon: Muon = serde_json::from_value(case["settings"].clone()).unwrap();
            let name = case["name"].as_str().unwrap();
            let shape: Vec<usize> = serde_json::from_value(case["shape"].clone()).unwrap();
            let mut weights = floats(&case["start"]);
            let mut state = vec![vec![0.0; weights.len()]; 2];
            let steps = case["gradients"].as_array().unwrap().iter();
            for ((step, gradient), after) in (1..).zip(steps).zip(case["after"].as_array().unwrap())
            {
                let rate = muon.learning_rate;
                let now = Now { name, shape: &shape, rate, step, is_norm_bias: false };
                let state = Slices::new(&mut state, 0..weights.len());
                let gradient = &floats(gradient);
                muon.update(Piece { weights: &mut weights, gradient, state }, &now);
                for (ours, theirs) in weights.iter().zip(floats(after)) {
                    let far = (ours - theirs).abs();
                    assert!(far < 2e-5, "{name} {shape:?}, step {step}: {ours} {theirs}");
                }
            }
        }
    }
}
