//! The signs times the mean magnitude; what they miss waits in the residual.
//!
//! # Paper
//! Karimireddy, Rebjock, Stich & Jaggi 2019 ("Error Feedback Fixes SignSGD and other Gradient
//! Compression Schemes"), algorithm 1: Δ = (‖p‖₁/d) · sign(p), p the gradient plus the residual.
//!
//! # Idea
//! Scaled by its mean magnitude the sign vector is the projection of the gradient on it, so that
//! ‖C(g) − g‖² = ‖g‖² − ‖g‖₁²/d: a contraction, which error feedback turns into the rate of SGD.
//!
//! # Wire
//! | bytes | what |
//! |---|---|
//! | 4 | the mean magnitude ‖g‖₁/n, f32 |
//! | ⌈n/8⌉ | the sign bits |
//!
//! # Where we differ
//! Each rank has its own residual, and the mean of the messages is applied; the paper has one
//! worker. Zeros are sent as their sign bit says, which the identity above allows.
//! As in the paper's experiments each parameter is a bucket, unless the policy says otherwise.

use crate::compress::signs::{Magnitude, Signs};
use crate::compress::{Built, Law, Properties, Seat, Soundness};
use crate::{Bucketing, Policy, Scheme};

settings! {
    /// The settings of `ef-signsgd`.
    pub struct Config {
        /// Whether what the signs miss is added to the next gradient: the paper's method. Default true.
        pub feedback: bool = true,
    }
}

impl Scheme for Config {
    fn properties(&self) -> Properties {
        Properties {
            name: "ef-signsgd",
            line: "the signs times the mean magnitude; what they miss waits in the residual",
            paper: "Karimireddy et al. 2019",
            law: Law::Contraction,
            soundness: Soundness::Sound,
            feedback: self.feedback,
        }
    }

    fn default_policy(&self) -> Policy {
        Policy::from(Bucketing::Parameter)
    }

    fn build(&self, _seat: &Seat) -> Built {
        Built::codec(Signs::new(Magnitude::Mean))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::testing::{round_trip, square, square_error};

    #[test]
    fn the_error_is_what_the_identity_says() {
        let gradient: Vec<f32> = (0..777).map(|i| (i as f32 * 0.7).sin().powi(3)).collect();
        let (wire, decoded) = round_trip(&Config::default(), &gradient, 1);
        assert_eq!(wire.len(), 4 + 98);
        let error = square_error(&decoded, &gradient);
        let first: f64 = gradient.iter().map(|g| f64::from(g.abs())).sum();
        let expected = square(&gradient) - first * first / 777.0;
        assert!((error / expected - 1.0).abs() < 1e-5, "{error} {expected}");
    }
}
