//! 1-bit Adam: AdamW of which ranks exchange the momentum, compressed, once the variance has settled (Tang et al.
//! 2021, "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence Speed", arXiv 2102.02888,
//! algorithm 1).
//!
//! The first `warmup_steps` cross as they are, and are AdamW's: `v = β₂v + (1 - β₂)g²`. From then on v stays, and what
//! crosses is the momentum `m = β₁m + (1 - β₁)g`, by any scheme with its error feedback, and on the way back too where
//! the topology compresses that. m on the right is the mean that all ranks took last, so that it is equal on them
//! bit for bit. The exchange makes it (`policy.feedback = { momentum = β₁ }`, which this optimizer brings along with
//! `policy.warmup_steps`), and what is given here as the gradient is m. In the first steps the mean gradient is what m
//! has moved by: `g = (m′ - β₁m)/(1 - β₁)`, to rounding.
//!
//! Where we differ: weights decay as AdamW's, m and v are corrected for their beginning at zero as there, v by as
//! much as at its last step; the paper's algorithm has neither. An element whose gradient was always zero in the first steps
//! stays where it is: its variance says nothing, and one bit cannot say that its momentum is zero.

use super::definition::{About, Definition, Now, Piece, Rule};
use gradwire_exchange::{FeedbackRule, Policy};

settings! {
    /// Settings of `onebit-adam`.
    pub struct OnebitAdam {
        /// The base learning rate, which the schedule multiplies.
        #[schemars(range(min = 0.0))]
        pub learning_rate: f64 = 1e-3,
        /// Steps at the beginning that are sent as they are, at least 1, and fix the variance: the paper has a sixth to
        /// a quarter of a run, and at least those in which the learning rate rises.
        #[schemars(range(min = 1))]
        pub warmup_steps: u64 = 100,
        /// Decay of the momentum.
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        pub beta1: f64 = 0.9,
        /// Decay of the variance.
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

impl Definition for OnebitAdam {
    fn about(&self) -> About {
        About {
            name: "onebit-adam",
            line: "AdamW whose momentum is exchanged, compressed, after first steps that fix the variance",
            paper: "Tang et al. 2021",
        }
    }

    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    fn policy(&self) -> Policy {
        let feedback = Some(FeedbackRule::Momentum(self.beta1));
        Policy { feedback, warmup_steps: Some(self.warmup_steps), ..Policy::default() }
    }

    fn rule(&self, _correction: f64) -> Box<dyn Rule> {
        Box::new(self.clone())
    }
}

impl Rule for OnebitAdam {
    /// The momentum that ranks took last, and the variance, by the names that AdamW has for them.
    fn vectors(&self) -> &'static [&'static str] {
        &["exp_avg", "exp_avg_sq"]
    }

    fn update(&self, piece: Piece<'_>, now: &Now) {
        let Piece { weights, gradient, state } = piece;
        let [mean, square] = state.take();
        let first = now.step <= self.warmup_steps;
        let (beta1, beta2) = (self.beta1 as f32, self.beta2 as f32);
        let new_share = (1.0 - self.beta2) as f32;
        if first {
            for ((square, mean), new) in square.iter_mut().zip(&*mean).zip(gradient) {
                let gradient = (new - beta1 * mean) / (1.0 - beta1);
                *square = beta2 * *square + new_share * (gradient * gradient);
            }
        }
        mean.copy_from_slice(gradient);
        let grown = |beta: f64, steps: u64| 1.0 - beta.powf(steps as f64);
        let rate = (now.rate / grown(self.beta1, now.step)) as f32;
        let root = grown(self.beta2, now.step.min(self.warmup_steps)).sqrt() as f32;
        let decay = now.decay(self.weight_decay, self.decay_norms_and_biases);
        let (kept, epsilon) = ((1.0 - now.rate * decay) as f32, self.epsilon as f32);
        for ((weight, mean), square) in weights.iter_mut().zip(mean).zip(square) {
            let step = if *square > 0.0 { *mean / (square.sqrt() / root + epsilon) } else { 0.0 };
            *weight = kept * *weight - rate * step;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Adamw;
    use super::super::definition::Slices;
    use super::*;
    use gradwire_exchange::{
        Collective, Downlink, Exchange, Layout, Scheme, SchemeConfig, Topology, Wiring, mesh,
    };
    use std::time::Duration;

    #[derive(serde::Deserialize)]
    struct Golden {
        settings: OnebitAdam,
        start: Vec<f32>,
        /// By step and rank.
        gradients: Vec<Vec<Vec<f32>>>,
        after: Vec<Vec<f64>>,
        variance: Vec<f64>,
    }

    /// The weights of a rank after each step, and its vectors at the end.
    type Trained = (Vec<Vec<f32>>, Vec<Vec<f32>>);

    /// What each rank comes to.
    fn train(golden: &Golden, scheme: &SchemeConfig, wiring: Wiring) -> Vec<Trained> {
        let length = golden.start.len();
        let on_rank = |(rank, end): (usize, Box<dyn Collective>)| {
            let layout = Layout::new([("w".to_string(), length)]).unwrap();
            let policy = golden.settings.policy();
            let mut exchange = Exchange::with(scheme, wiring, policy, layout, 1, end).unwrap();
            let (mut weights, mut state) = (golden.start.clone(), vec![vec![0.0; length]; 2]);
            let steps = (1..).zip(&golden.gradients).map(|(step, gradients)| {
                let mut gradient = gradients[rank].clone();
                exchange.allreduce(step, &mut gradient).unwrap();
                let (name, shape, rate) = ("w", &[length][..], golden.settings.learning_rate);
                let now = Now { name, shape, rate, step, is_norm_bias: false };
                let state = Slices::new(&mut state, 0..length);
                let gradient = &gradient;
                golden.settings.update(Piece { weights: &mut weights, gradient, state }, &now);
                weights.clone()
            });
            let after = steps.collect();
            (after, state)
        };
        let ends = mesh(golden.gradients[0].len(), Duration::from_secs(60));
        std::thread::scope(|scope| {
            let start = |end| scope.spawn(|| on_rank(end));
            let ranks: Vec<_> = ends.into_iter().enumerate().map(start).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    fn golden() -> Golden {
        serde_json::from_str(include_str!("../../../tests/vectors/onebit_adam.json")).unwrap()
    }

    /// One bit and error feedback both ways, over a server.
    #[test]
    fn weights_and_variance_are_those_of_the_paper_on_every_rank() {
        let golden = golden();
        let block = gradwire_exchange::schemes::onebit::Config { block: 0, ..Default::default() };
        let downlink = Some(Downlink::Compressed);
        let wiring = Wiring { topology: Topology::Server, downlink };
        let ranks = train(&golden, &SchemeConfig::Onebit(block), wiring);
        for (after, state) in &ranks {
            for (step, (ours, theirs)) in after.iter().zip(&golden.after).enumerate() {
                for (ours, theirs) in ours.iter().zip(theirs) {
                    assert!(
                        (f64::from(*ours) - theirs).abs() < 2e-5,
                        "step {step}: {ours} {theirs}"
                    );
                }
            }
            for (ours, theirs) in state[1].iter().zip(&golden.variance) {
                assert!(
                    (f64::from(*ours) - theirs).abs() < 1e-5 * theirs.max(0.1),
                    "{ours} {theirs}"
                );
            }
            assert_eq!((after, state), (&ranks[0].0, &ranks[0].1));
        }
        let last = golden.start.len() - 1;
        let kept = golden.settings.learning_rate * golden.settings.weight_decay;
        let kept = (1.0 - kept).powi(golden.gradients.len() as i32) as f32;
        assert!(golden.gradients.iter().flatten().all(|gradient| gradient[last] == 0.0));
        assert!((ranks[0].0.last().unwrap()[last] / golden.start[last] - kept).abs() < 1e-6);
    }

    /// In the first steps the weights are AdamW's, by whatever scheme.
    #[test]
    fn the_first_steps_are_those_of_adamw() {
        let golden = golden();
        let OnebitAdam { learning_rate, beta1, beta2, epsilon, weight_decay, .. } = golden.settings;
        let settings =
            Adamw { learning_rate, beta1, beta2, epsilon, weight_decay, ..Adamw::default() };
        let adamw = settings.rule(0.0);
        let found = &train(&golden, &SchemeConfig::default(), Topology::Allgather.into())[0].0;
        let (mut weights, mut state) =
            (golden.start.clone(), vec![vec![0.0; golden.start.len()]; 2]);
        for (step, gradients) in (1..=golden.settings.warmup_steps).zip(&golden.gradients) {
            let sums = gradients.iter().skip(1).fold(gradients[0].clone(), |mut sum, gradient| {
                sum.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += value);
                sum
            });
            let mean: Vec<f32> = sums.iter().map(|sum| sum / gradients.len() as f32).collect();
            let (rate, shape) = (learning_rate, &[golden.start.len()][..]);
            let now = Now { name: "w", shape, rate, step, is_norm_bias: false };
            let state = Slices::new(&mut state, 0..mean.len());
            adamw.update(Piece { weights: &mut weights, gradient: &mean, state }, &now);
            for (ours, theirs) in found[step as usize - 1].iter().zip(&weights) {
                assert!((ours - theirs).abs() < 1e-5, "step {step}: {ours} {theirs}");
            }
        }
    }

    #[test]
    fn it_brings_its_surroundings() {
        let policy = OnebitAdam::default().policy();
        assert!(policy.shares_momentum() && policy.warmup_steps == Some(100));
        for scheme in SchemeConfig::all() {
            let own = scheme.default_policy().feedback.is_some();
            let surrounded = policy.clone().or(scheme.default_policy());
            let corrects = surrounded.momentum() > 0.0;
            assert_eq!(surrounded.validate(&scheme).is_err(), own || corrects, "{scheme:?}");
        }
    }
}
