//! Hard threshold: every element whose magnitude is above a fixed number.
//!
//! # Paper
//! Aji & Heafield 2017 use a fixed threshold per step; Sahu, Dutta, Abdelmoniem, Banerjee, Canini
//! & Kalnis 2021 ("Rethinking gradient sparsification as total error minimization") show that one
//! threshold for the whole training minimises the total error for the bytes spent.
//!
//! # Idea
//! With feedback and values in f32, what waits is at most λ an element, whatever the gradient's length;
//! how much is sent follows from the gradient: much at first, little at the end.
//!
//! # Wire
//! A sparse message of as many elements as are strictly above the threshold, which may be none (`compress/sparse.rs`).
//!
//! # Where we differ
//! λ is given, not derived from a budget. The decoded vector is never farther from the gradient
//! than zero is, but nothing forces it to be nearer: what holds, with values in f32, is
//! ‖C(g) − g‖² ≤ n·λ².

use crate::compress::cutoff::{Cut, Cutoff, Cuts};
use crate::compress::exceedances::rounded_down;
use crate::compress::scheme::require;
use crate::compress::sparse::Sparsifier;
use crate::compress::values::{QsgdValues, Values};
use crate::compress::{Built, Law, Properties, Seat, Soundness};
use crate::wire::Format;
use crate::{Result, Scheme};

settings! {
    /// The settings of `threshold`.
    pub struct Config {
        /// Magnitude above which an element is sent, in units of the gradient; 0 sends all that are
        /// not zero. Default 0.01.
        #[cfg_attr(feature = "schema", schemars(range(min = 0.0)))]
        pub lambda: f64 = 0.01,
        /// How the values are sent: `f32`, `f16`, `bf16`, `2bit`, or quantised, such as
        /// `{ kind = "qsgd", levels = 1 }`. Default `f32`.
        pub values: Values = Values::default(),
        /// Whether what is not sent is added to the next gradient. Default true.
        pub feedback: bool = true,
    }
}

impl Scheme for Config {
    fn properties(&self) -> Properties {
        Properties {
            name: "threshold",
            line: "every element whose magnitude is above a fixed number",
            paper: "Aji & Heafield 2017; Sahu et al. 2021",
            law: Law::Biased,
            soundness: Soundness::Sound,
            feedback: self.feedback,
        }
    }

    fn validate(&self) -> Result<()> {
        self.values.validate(self.about().name)?;
        let good = self.lambda >= 0.0 && self.lambda.is_finite();
        let wanted = "write a number that is not negative, such as 0.01";
        require(good, self.about().name, "lambda", self.lambda, wanted)
    }

    fn build(&self, seat: &Seat) -> Built {
        let select = Cutoff::new(self.clone(), seat);
        Built::codec(Sparsifier::new(select, self.values, self.feedback, seat))
    }

    fn examples() -> Vec<Self> {
        vec![
            Self { lambda: 2.0, ..Self::default() },
            Self { lambda: 0.0, feedback: false, values: Format::Bf16.into() },
            Self { lambda: 1.0, values: QsgdValues::default().into(), ..Self::default() },
        ]
    }
}

impl Cuts for Config {
    fn cut(&self, _gradient: &[f32], _step: u64) -> Cut {
        Cut { threshold: rounded_down(self.lambda), aim: None }
    }
}
