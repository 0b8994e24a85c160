//! One bit per element: the sign alone.
//!
//! # Paper
//! Bernstein, Wang, Azizzadenesheli & Anandkumar 2018 ("signSGD: Compressed Optimisation for
//! Non-Convex Problems"), algorithms 1 and 2.
//!
//! # Idea
//! Where noise is of the size of the gradient, the sign holds most of what a step can use. It is a
//! method of its own, not an estimate of the gradient: small and large elements move alike.
//!
//! # Wire
//! | bytes | what |
//! |---|---|
//! | 4 | the magnitude of every element, f32 |
//! | ⌈n/8⌉ | the sign bits |
//!
//! # State
//! None.
//!
//! # Where we differ
//! Each parameter is a bucket with a magnitude of its own, unless the policy says
//! otherwise. The mean of the ranks' messages arrives, not the majority's vote: with N ranks and magnitude 1
//! an element arrives as one of N + 1 values between −1 and 1, whose sign is the vote. The magnitude
//! is by default the mean of the magnitudes, so that learning rates of other schemes fit; `unit` is
//! the paper's ±1 and asks for learning rates of Adam's kind. Zeros are sent as plus or minus, as
//! their sign bit says; a gradient of zeros has magnitude 0.

use serde::{Deserialize, Serialize};

use crate::compress::signs::Signs;
use crate::compress::{About, Compressor, Definition, Law, Seat, Soundness};
use crate::{Bucketing, Policy};

pub use crate::compress::signs::Magnitude;

/// The settings of `signsgd`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// What a sign stands for. Default `mean`.
    pub magnitude: Magnitude,
    /// Error feedback, which does harm around plain signs; `ef-signsgd` is the scheme that goes
    /// with it. Default false.
    pub feedback: bool,
}

impl Definition for Config {
    type Instance = Box<dyn Compressor>;

    const ABOUT: About = About {
        name: "signsgd",
        line: "the signs, one bit per element, all of one magnitude",
        paper: "Bernstein et al. 2018",
    };
    const FEEDBACK: Soundness =
        Soundness::Unsound("plain signs are no contraction, so that the residual grows");

    fn feedback(&self) -> bool {
        self.feedback
    }

    fn habits(&self) -> Policy {
        Policy::from(Bucketing::Parameter)
    }

    fn law(&self) -> Law {
        Law::Biased
    }

    fn build(&self, _seat: &Seat) -> Box<dyn Compressor> {
        Box::new(Signs::new(self.magnitude))
    }

    fn specimens() -> Vec<Self> {
        vec![Self { magnitude: Magnitude::Unit, ..Self::default() }]
    }
}
