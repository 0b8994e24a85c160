//! Adam with decoupled weight decay: `torch.optim.AdamW`, term for term.

use super::definition::{About, Definition, Now, Piece, Rule};
use gradwire_models::kernels::optimizer::{AdamWStep, adamw};
use gradwire_models::updates::Update;

settings! {
    /// Settings of `adamw`.
    pub struct Adamw {
        /// The base learning rate, which the schedule multiplies.
        #[schemars(range(min = 0.0))]
        pub learning_rate: f64 = 1e-3,
        /// Decay of the gradient's running mean.
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        pub beta1: f64 = 0.9,
        /// Decay of the squared gradient's running mean.
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        pub beta2: f64 = 0.999,
        /// Added to the denominator.
        #[schemars(range(min = 0.0))]
        pub epsilon: f64 = 1e-8,
        /// Weight decay, decoupled from the gradient.
        #[schemars(range(min = 0.0))]
        pub weight_decay: f64 = 0.01,
        /// Whether batch norm's scales and shifts, and biases, decay as well.
        pub decay_norms_and_biases: bool = true,
    }
}

impl Definition for Adamw {
    fn about(&self) -> About {
        About {
            name: "adamw",
            line: "Adam with weight decay decoupled from the gradient, algorithm 2",
            paper: "Loshchilov and Hutter 2019",
        }
    }

    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    fn rule(&self, _correction: f64) -> Box<dyn Rule> {
        Box::new(self.clone())
    }
}

impl Adamw {
    fn step(&self, now: &Now) -> AdamWStep {
        AdamWStep {
            lr: now.rate,
            beta1: self.beta1,
            beta2: self.beta2,
            eps: self.epsilon,
            weight_decay: now.decay(self.weight_decay, self.decay_norms_and_biases),
            step: now.step,
        }
    }
}

impl Rule for Adamw {
    /// The running means of the gradient and of its square, by PyTorch's names.
    fn vectors(&self) -> &'static [&'static str] {
        &["exp_avg", "exp_avg_sq"]
    }

    fn update(&self, piece: Piece<'_>, now: &Now) {
        let Piece { weights, gradient, state } = piece;
        let [mean, square] = state.take();
        adamw(weights, gradient, mean, square, &self.step(now));
    }

    fn kernel(&self, now: &Now) -> Option<Update> {
        Some(Update::AdamW(self.step(now)))
    }
}
