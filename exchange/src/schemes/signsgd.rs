//! One bit per element: the sign alone.
//!
//! # Paper
//! Bernstein, Wang, Azizzadenesheli & Anandkumar 2018 ("signSGD: Compressed Optimisation for
//! Non-Convex Problems"), algorithms 1 and 2; with `vote = "majority"` algorithm 3, and Bernstein,
//! Zhao, Azizzadenesheli & Anandkumar 2019 ("signSGD with Majority Vote is Communication Efficient
//! and Fault Tolerant"), algorithm 1 without its momentum.
//!
//! # Idea
//! Where noise is of the size of the gradient, the sign holds most of what a step can use. It is a
//! method of its own, not an estimate of the gradient: small and large elements move alike. In the
//! majority's vote every rank has one voice on every element, however large its gradient.
//!
//! # Wire
//! | bytes | what |
//! |---|---|
//! | 4 | the magnitude of every element, f32 |
//! | ⌈n/8⌉ | the sign bits |
//!
//! The same with either `vote`; for the majority's it is what each rank gives to all others in the
//! one round of a [`Reducer`](crate::Reducer).
//!
//! # Where we differ
//! Each parameter is a bucket with a magnitude of its own, unless the policy says otherwise. The
//! papers' own is `magnitude = "unit"` with `vote = "majority"`: ±1, which asks for learning rates
//! of Adam's kind. The defaults are the mean of the magnitudes, so that learning rates of other
//! schemes fit, and the mean of the ranks' messages: with N ranks and magnitude 1 an element
//! arrives as one of N + 1 values between −1 and 1, whose sign is the vote.
//! A vote whose ranks say different magnitudes has the mean of those. A rank whose bucket has nothing
//! but zeros has magnitude 0 and abstains.
//! The papers leave open what a tie is: 0 here, or `ties = "plus"` as in GRACE's code (Xu et al. 2021),
//! where, with eight ranks and nothing but noise, 27 % of the elements would be ties that all go up.
//! They leave open what the sign of zero is, too. Its sign bit says plus, so that an element with a
//! gradient of zero on every rank arrives as plus in every step: in a model of words, most rows of the
//! table. With `zeros = "by-turns"` zeros are plus on one half of the ranks and minus on the other,
//! which is a tie, and the halves swap from step to step.
//! The papers' server counts, and sends one bit back; here every rank counts, which over
//! the topology `server` brings every rank's bits to all.

mod vote;

use crate::compress::scheme::require;
use crate::compress::signs::Signs;
use crate::compress::{Built, Law, Properties, Seat, Soundness};
use crate::{Bucketing, Policy, Result, Scheme};

pub use crate::compress::signs::{Magnitude, Zeros};
use vote::Majority;
pub use vote::{Ties, Vote};

settings! {
    /// The settings of `signsgd`.
    pub struct Config {
        /// What a sign stands for. Default `mean`.
        pub magnitude: Magnitude = Magnitude::Mean,
        /// What becomes of the ranks' signs. Default `mean`.
        pub vote: Vote = Vote::Mean,
        /// What arrives where the majority's vote is a tie. Default `zero`.
        pub ties: Ties = Ties::Zero,
        /// How an element that is zero votes: one bit has no zero. Default `sign-bit`.
        pub zeros: Zeros = Zeros::SignBit,
        /// Error feedback, which does harm around signs of magnitude 1 and around a vote. With the others
        /// it makes `ef-signsgd` of this. Default false.
        pub feedback: bool = false,
    }
}

impl Scheme for Config {
    fn properties(&self) -> Properties {
        // What `ef-signsgd` sends: the gradient's projection on its signs, whatever those of zeros are.
        let is_projection = self.magnitude == Magnitude::Mean && self.vote == Vote::Mean;
        Properties {
            name: "signsgd",
            line: "the signs, one bit per element, all of one magnitude",
            paper: "Bernstein et al. 2018",
            law: if is_projection { Law::Contraction } else { Law::Biased },
            soundness: match is_projection {
                true => Soundness::Sound,
                false => Soundness::Unsound(
                    "signs of magnitude 1, or of a vote, are no contraction, so that the residual grows",
                ),
            },
            feedback: self.feedback,
        }
    }

    fn default_policy(&self) -> Policy {
        Policy::from(Bucketing::Parameter)
    }

    fn validate(&self) -> Result<()> {
        let good = self.vote == Vote::Majority || self.ties == Ties::Zero;
        let wanted = "only a vote can be a tie; write vote = \"majority\", or leave this out";
        require(good, self.about().name, "ties", "plus", wanted)
    }

    fn build(&self, seat: &Seat) -> Built {
        let signs = Signs::new(self.magnitude).with(self.zeros, seat.rank);
        match self.vote {
            Vote::Mean => Built::codec(signs),
            Vote::Majority => Built::reducer(Majority::new(signs, self.ties, seat)),
        }
    }

    fn examples() -> Vec<Self> {
        let majority = Self { vote: Vote::Majority, ..Self::default() };
        vec![
            Self { magnitude: Magnitude::Unit, ..Self::default() },
            majority.clone(),
            Self { zeros: Zeros::ByTurns, ..majority.clone() },
            Self { magnitude: Magnitude::Unit, ties: Ties::Plus, ..majority },
        ]
    }
}

#[cfg(test)]
mod tests;
