//! RedSync: the elements above a threshold found by bisection between mean and maximum.
//!
//! # Paper
//! Fang, Fu, Yang & Hsieh 2019 ("RedSync: Reducing synchronization bandwidth for distributed deep
//! learning training system"); details from the variant in the SIDCo authors' code.
//!
//! # Idea
//! A threshold mean + t·(max − mean) with t in [0, 1]: bisect t, counting what is above, until
//! between k and 2k elements are, or t is known to a fifth.
//!
//! # Wire
//! A sparse message of as many elements as are strictly above the threshold (`compress/sparse.rs`).
//!
//! # Where we differ
//! Three trials at most, as in the code this was compared with: k̂/k from 0 to 5 was measured for
//! this rule. The paper's exact selection for small layers is what `topk` is for. If nothing is
//! above the threshold, the largest element is sent.

use crate::compress::cutoff::{Cut, Cutoff, Cuts};
use crate::compress::exceedances::{count_above, rounded_down};
use crate::compress::moments;
use crate::compress::ratio::Ratio;
use crate::compress::sparse::Sparsifier;
use crate::compress::values::{QsgdValues, Values};
use crate::compress::{Built, Law, Properties, Seat, Soundness};
use crate::wire::Format;
use crate::{Result, Scheme};

/// The interval of t that is not bisected any more.
const NARROW: f64 = 0.2;

settings! {
    /// The settings of `redsync`.
    pub struct Config {
        /// Share of each bucket's elements that is aimed at, above 0 and at most 1; or a falling one.
        /// Default 0.01.
        pub ratio: Ratio = 0.01.into(),
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
            name: "redsync",
            line: "the elements above a threshold bisected between mean and maximum",
            paper: "Fang et al. 2019",
            law: self.values.law(Law::Contraction, self.feedback),
            soundness: Soundness::Sound,
            feedback: self.feedback,
        }
    }

    fn validate(&self) -> Result<()> {
        self.ratio.validate(self.about().name)?;
        self.values.validate(self.about().name)
    }

    fn build(&self, seat: &Seat) -> Built {
        let select = Cutoff::new(self.clone(), seat);
        Built::codec(Sparsifier::new(select, self.values, self.feedback, seat))
    }

    fn examples() -> Vec<Self> {
        vec![
            Self { ratio: 0.001.into(), feedback: false, ..Self::default() },
            Self { ratio: 0.3.into(), values: Format::F16.into(), ..Self::default() },
            Self { values: QsgdValues::default().into(), ..Self::default() },
        ]
    }
}

/// The last threshold that is tried for `k` elements.
fn threshold(gradient: &[f32], k: usize) -> f32 {
    let count = gradient.len().max(1) as f64;
    let mean = moments::magnitude_sum(gradient) / count;
    let most = f64::from(moments::largest(gradient));
    let (mut low, mut high) = (0.0, 1.0);
    let mut threshold = f32::MAX;
    while high - low > NARROW {
        let t = low + (high - low) / 2.0;
        threshold = rounded_down(mean + t * (most - mean));
        let kept = count_above(gradient, threshold);
        if kept > k && kept < 2 * k {
            break;
        }
        if 2 * kept < k {
            high = t;
        } else {
            low = t;
        }
    }
    threshold
}

impl Cuts for Config {
    fn cut(&self, gradient: &[f32], step: u64) -> Cut {
        let k = self.ratio.count(gradient.len(), step);
        Cut { threshold: threshold(gradient, k), aim: Some(k) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bisection_goes_where_the_elements_are() {
        // 0, 1, … 99 with mean 49.5: t = ½ is 74.25, above which 25 lie.
        let gradient: Vec<f32> = (0..100).map(|i| i as f32).collect();
        assert_eq!(count_above(&gradient, threshold(&gradient, 20)), 25);
        // Too many: t = ¾ is 86.6, above which 13 lie.
        assert_eq!(count_above(&gradient, threshold(&gradient, 10)), 13);
        // Too few at ½, none too few at ¼ (62 up) and the last at ⅜ (68.1).
        assert_eq!(count_above(&gradient, threshold(&gradient, 60)), 31);
    }
}
