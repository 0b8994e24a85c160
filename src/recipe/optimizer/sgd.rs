//! Stochastic gradient descent with momentum: `torch.optim.SGD` with dampening 0, term for term, unless
//! weight decay is decoupled.
//!
//! With momentum correction (Lin et al. 2018, section 3.1) the gradient's momentum is applied on every
//! rank before compression, and the optimizer has none. Weight decay is no part of what is sent: it
//! has its momentum here, `d = μd + λw; w -= lr·(u + d)`, u being the mean of what ranks sent. When
//! everything is sent, the sum is that of SGD with momentum μ and decay λ, to rounding; without d,
//! decay would act (1 − μ) times as strongly, a tenth with μ = 0.9.

use super::definition::{About, Coasting, DECAY_MOMENTUM, Definition, MOMENTUM, Now, Piece, Rule};
use gradwire_models::kernels::optimizer::{SgdStep, sgd};
use gradwire_models::updates::Update;

settings! {
    /// Settings of `sgd`.
    pub struct Sgd {
        /// The base learning rate, which the schedule multiplies.
        #[schemars(range(min = 0.0))]
        pub learning_rate: f64 = 0.1,
        /// Momentum, 0 to below 1; 0 for none.
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        pub momentum: f64 = 0.9,
        /// Nesterov's form of momentum.
        pub nesterov: bool = false,
        /// Whether weights move by the sign of each element of the mean gradient, 0 for 0 (Bernstein et al. 2018; DeMo,
        /// Peng et al. 2024); without momentum. Weight decay has no part in the sign.
        pub sign: bool = false,
        /// Weight decay: added to the gradient (L2), unless it is decoupled.
        #[schemars(range(min = 0.0))]
        pub weight_decay: f64 = 0.0,
        /// Weight decay decoupled from the gradient and its momentum: weights shrink by the share
        /// learning rate × decay at each step (Loshchilov and Hutter 2019, algorithm 1).
        pub decoupled: bool = false,
        /// What the learning rate of batch norm's shifts is multiplied by, and their weight decay divided
        /// by (64 in Jordan 2024, section 3.3).
        #[schemars(extend("exclusiveMinimum" = 0.0))]
        pub norm_bias_rate: f64 = 1.0,
        /// Whether batch norm's scales and shifts, and biases, decay as well.
        pub decay_norms_and_biases: bool = true,
    }
}

impl Definition for Sgd {
    fn about(&self) -> About {
        About {
            name: "sgd",
            line: "stochastic gradient descent with momentum, plain or Nesterov's",
            paper: "Sutskever et al. 2013",
        }
    }

    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    fn momentum(&self) -> f64 {
        self.momentum
    }

    fn follows_magnitude(&self) -> bool {
        !self.sign
    }

    fn validate(&self) -> Result<(), String> {
        if self.sign && self.momentum > 0.0 {
            return Err(format!(
                "optimizer.sign = true takes the gradient for a momentum already, and optimizer.momentum = {} would be \
                 one of signs; write optimizer.momentum = 0",
                self.momentum
            ));
        }
        if self.nesterov && self.momentum == 0.0 {
            return Err(
                "optimizer.nesterov = true needs optimizer.momentum above 0, such as 0.9; write optimizer.nesterov = false to go without".into()
            );
        }
        Ok(())
    }

    fn follows_correction(&self) -> Result<(), String> {
        Ok(())
    }

    /// With a correction and decay that has a momentum, a rule that gives it one.
    fn rule(&self, correction: f64) -> Box<dyn Rule> {
        match correction > 0.0 && self.weight_decay > 0.0 && !self.decoupled && !self.sign {
            true => Box::new(Corrected { sgd: self.clone(), factor: correction as f32 }),
            false => Box::new(self.clone()),
        }
    }
}

impl Sgd {
    /// The learning rate and the weight decay of a parameter now.
    fn now(&self, now: &Now) -> (f64, f64) {
        let decay = now.decay(self.weight_decay, self.decay_norms_and_biases);
        match now.is_norm_bias {
            true => (now.rate * self.norm_bias_rate, decay / self.norm_bias_rate),
            false => (now.rate, decay),
        }
    }

    fn step(&self, now: &Now) -> SgdStep {
        let (lr, weight_decay) = self.now(now);
        let Self { momentum, nesterov, .. } = *self;
        SgdStep { lr, momentum, nesterov, weight_decay, first: now.step == 1 }
    }
}

impl Rule for Sgd {
    fn vectors(&self) -> &'static [&'static str] {
        if self.momentum == 0.0 { &[] } else { &[MOMENTUM] }
    }

    fn update(&self, piece: Piece<'_>, now: &Now) {
        let Piece { weights, gradient, state } = piece;
        let momentum: &mut [f32] = if self.momentum == 0.0 {
            &mut []
        } else {
            let [momentum] = state.take();
            momentum
        };
        let (lr, mut weight_decay) = self.now(now);
        if self.decoupled && weight_decay > 0.0 {
            let kept = (1.0 - lr * weight_decay) as f32;
            weights.iter_mut().for_each(|weight| *weight *= kept);
            weight_decay = 0.0;
        }
        if self.sign {
            let (lr, decay) = (lr as f32, weight_decay as f32);
            for (weight, gradient) in weights.iter_mut().zip(gradient) {
                let sign = if *gradient == 0.0 { 0.0 } else { gradient.signum() };
                *weight -= lr * (sign + decay * *weight);
            }
            return;
        }
        sgd(weights, gradient, momentum, &SgdStep { weight_decay, ..self.step(now) });
    }

    fn kernel(&self, now: &Now) -> Option<Update> {
        (!self.sign && !self.decoupled).then(|| Update::Sgd(self.step(now)))
    }

    /// Decay moves every row by what it is, and not by its momentum alone.
    fn coasting(&self) -> Option<Coasting> {
        let coasts = self.weight_decay == 0.0 && !self.sign;
        coasts.then_some(Coasting { momentum: self.momentum, nesterov: self.nesterov })
    }
}

/// The rule for gradients to which ranks have applied a momentum of this factor.
struct Corrected {
    sgd: Sgd,
    factor: f32,
}

impl Rule for Corrected {
    fn vectors(&self) -> &'static [&'static str] {
        &[DECAY_MOMENTUM]
    }

    fn update(&self, piece: Piece<'_>, now: &Now) {
        let Piece { weights, gradient, state } = piece;
        let [momentum] = state.take();
        let (rate, decay) = self.sgd.now(now);
        let (rate, decay, factor) = (rate as f32, decay as f32, self.factor);
        for ((weight, gradient), momentum) in weights.iter_mut().zip(gradient).zip(momentum) {
            *momentum = factor * *momentum + decay * *weight;
            *weight -= rate * (gradient + *momentum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::definition::Slices;
    use super::*;

    const WEIGHTS: [f32; 3] = [1.0, -2.0, 0.5];
    const GRADIENTS: [[f32; 3]; 2] = [[0.5, 0.25, -1.0], [-0.5, 1.0, 2.0]];
    const RATE: f64 = 0.1;

    /// Two steps from the weights.
    fn trained(sgd: &Sgd, is_norm_bias: bool) -> [f32; 3] {
        let (mut weights, mut state) = (WEIGHTS, vec![vec![0.0; 3]]);
        for (step, gradient) in (1..).zip(GRADIENTS) {
            let now = Now { rate: RATE, step, name: "bn1.bias", shape: &[3], is_norm_bias };
            let state = Slices::new(&mut state, 0..3);
            sgd.update(Piece { weights: &mut weights, gradient: &gradient, state }, &now);
        }
        weights
    }

    /// The same by a definition of one weight in f64: what a step makes of weight and momentum.
    fn expected(step: impl Fn(f64, f64, f64) -> (f64, f64)) -> [f64; 3] {
        std::array::from_fn(|i| {
            let start = (f64::from(WEIGHTS[i]), 0.0);
            let steps = GRADIENTS.iter().map(|gradient| f64::from(gradient[i]));
            steps.fold(start, |(weight, momentum), gradient| step(weight, momentum, gradient)).0
        })
    }

    fn assert_close(found: [f32; 3], expected: [f64; 3]) {
        for (found, expected) in found.into_iter().zip(expected) {
            assert!((f64::from(found) - expected).abs() < 1e-6, "{found} {expected}");
        }
    }

    #[test]
    fn decoupled_decay_shrinks_weights_and_has_no_momentum() {
        let (momentum, decay) = (0.5, 0.2);
        let sgd = Sgd { momentum, weight_decay: decay, decoupled: true, ..Sgd::default() };
        let shrunk = expected(|weight, velocity, gradient| {
            let velocity = momentum * velocity + gradient;
            (weight * (1.0 - RATE * decay) - RATE * velocity, velocity)
        });
        assert_close(trained(&sgd, false), shrunk);
        let added = expected(|weight, velocity, gradient| {
            let velocity = momentum * velocity + gradient + decay * weight;
            (weight - RATE * velocity, velocity)
        });
        assert_close(trained(&Sgd { decoupled: false, ..sgd }, false), added);
        assert!((shrunk[0] - added[0]).abs() > 1e-3, "the two would be one");
    }

    #[test]
    fn batch_norms_shifts_have_a_rate_of_their_own_and_decay_as_others() {
        let (momentum, weight_decay, factor) = (0.5, 0.2, 64.0);
        let sgd = Sgd { momentum, weight_decay, norm_bias_rate: factor, ..Sgd::default() };
        let by = |factor: f64| {
            expected(|weight, velocity, gradient| {
                let velocity = momentum * velocity + gradient + weight_decay / factor * weight;
                (weight - RATE * factor * velocity, velocity)
            })
        };
        assert_close(trained(&sgd, false), by(1.0));
        let (found, expected) = (trained(&sgd, true), by(factor));
        assert_close(found.map(|w| w / 64.0), expected.map(|w| w / 64.0));
    }

    #[test]
    fn signs_have_no_momentum_and_decay_no_part_in_them() {
        let decay = 0.2;
        let sgd = Sgd { momentum: 0.0, sign: true, weight_decay: decay, ..Sgd::default() };
        let moved = expected(|weight, _, gradient| {
            (weight * (1.0 - RATE * decay) - RATE * gradient.signum(), 0.0)
        });
        for sgd in [sgd.clone(), Sgd { decoupled: true, ..sgd.clone() }] {
            assert_close(trained(&sgd, false), moved);
            assert!(sgd.validate().is_ok() && Rule::coasting(&sgd).is_none());
        }
        let (mut still, gradient, state) = ([1.0, 2.0], [0.0, -0.0], Slices::new(&mut [], 0..2));
        let now = Now { rate: RATE, step: 1, name: "w", shape: &[2], is_norm_bias: false };
        let plain = Sgd { weight_decay: 0.0, ..sgd.clone() };
        plain.update(Piece { weights: &mut still, gradient: &gradient, state }, &now);
        assert_eq!(still, [1.0, 2.0]);
        assert!(Sgd { momentum: 0.9, ..sgd }.validate().unwrap_err().contains("momentum = 0"));
    }
}
