//! SIDCo: the elements above a threshold that a fitted law implies, in a few passes.
//!
//! # Paper
//! Abdelmoniem, Elzanaty, Alouini & Canini, MLSys 2021 ("An Efficient Statistical-based Gradient
//! Compression Technique for Distributed Training Systems"); details from the authors' code
//! (sands-lab/SIDCo).
//!
//! # Idea
//! Magnitudes of gradients follow laws that few moments determine; the threshold that a share
//! exceeds comes from the moments, without sorting. One fit misses far in the tail: further
//! stages fit only what exceeds the threshold before, and their number follows from how many
//! elements were really kept.
//!
//! # Wire
//! A sparse message of as many elements as are strictly above the threshold (`compress/sparse.rs`).
//!
//! # State
//! With adaptive stages, of each bucket and rank: the number of stages, the sum and number of k̂/k
//! since it last could change, and with `bounce` the direction that it found.
//!
//! # Where we differ
//! Recipes with one flattened vector are the default, as in the authors' runs. The location of a
//! later stage is the smallest exceedance (the authors' code), not the threshold before it. Gamma
//! thresholds invert the incomplete gamma function; the closed form of the authors' class without
//! feedback is biased by up to a factor of four. Of the authors' three rules of adaptation this
//! is mode −1; the other two oscillate. Where their code fails we go on: a zero gradient is an
//! empty message; magnitudes that no law fits have the exponential law's threshold in the first
//! stage and keep the last one later; if nothing is above the threshold, the largest is sent. A zero
//! gradient counts as one of which nothing was kept: several in a row raise the number of stages.
//! `bounce` and `nonzero` are ours.
//!
//! # What was not read
//! The paper beyond its abstract; the authors' code was.

mod fit;
mod stages;

pub use fit::Fit;
use stages::{StageController, StageShares};
pub use stages::{StageRule, Stages};

use crate::compress::exceedances::{self, Exceedances, keep_above, rounded_down};
use crate::compress::ratio::Ratio;
use crate::compress::scheme::require;
use crate::compress::sparse::{Select, Sparsifier};
use crate::compress::values::{QsgdValues, Values};
use crate::compress::{Built, Law, Properties, Seat, Soundness};
use crate::wire::Format;
use crate::{Gauge, Result, Scheme, State};

settings! {
    /// The settings of `sidco`.
    pub struct Config {
        /// Share of each bucket's elements that the threshold aims at, above 0 and at most 1; or a
        /// falling one. Default 0.01.
        pub ratio: Ratio = 0.01.into(),
        /// The law fitted to magnitudes: `exponential` (the default), `pareto` or `gamma`.
        pub fit: Fit = Fit::default(),
        /// Stages of fitting: a number, `adaptive` (the default) or `chain`.
        pub stages: Stages = Stages::By(StageRule::Adaptive),
        /// Whether an adaptive number of stages that stands at its bound, and is still more than 20 %
        /// off, is changed in the other direction: for heavy tails without feedback. Default false.
        pub bounce: bool = false,
        /// Whether only elements other than zero are fitted, for the ratio that they then need: for
        /// gradients with many exact zeros. Default false.
        pub nonzero: bool = false,
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
            name: "sidco",
            line: "the elements above a threshold from a fitted law; stages follow what was kept",
            paper: "Abdelmoniem et al. 2021",
            law: self.values.law(Law::Contraction, self.feedback),
            soundness: Soundness::Sound,
            feedback: self.feedback,
        }
    }

    fn validate(&self) -> Result<()> {
        self.ratio.validate(self.about().name)?;
        self.values.validate(self.about().name)?;
        let adapts = self.stages == Stages::By(StageRule::Adaptive);
        let wanted = "only an adaptive number of stages can change; write stages = \"adaptive\", or leave this out";
        require(adapts || !self.bounce, self.about().name, "bounce", true, wanted)?;
        self.stages.validate(self.about().name)
    }

    fn build(&self, seat: &Seat) -> Built {
        Built::codec(self.sparsifier(seat))
    }

    fn examples() -> Vec<Self> {
        let with = |fit, ratio: f64| Self { fit, ratio: ratio.into(), ..Self::default() };
        vec![
            with(Fit::Pareto, 0.01),
            with(Fit::Gamma, 0.1),
            Self { stages: Stages::Fixed(3), ..with(Fit::Exponential, 0.001) },
            Self {
                stages: Stages::By(StageRule::Chain),
                values: Format::Bf16.into(),
                ..with(Fit::Gamma, 0.01)
            },
            Self { bounce: true, nonzero: true, feedback: false, ..with(Fit::Gamma, 0.01) },
            with(Fit::Pareto, 1.0),
            Self { values: QsgdValues::default().into(), ..Self::default() },
        ]
    }
}

impl Config {
    fn sparsifier(&self, seat: &Seat) -> Sparsifier<Sidco> {
        let select = Sidco {
            config: self.clone(),
            controller: StageController::default(),
            exceedances: Exceedances::new(seat.length),
            left: Vec::with_capacity(seat.length),
            wanted: 1.0,
            stages: 0,
            kept_ratio: None,
        };
        Sparsifier::new(select, self.values, self.feedback, seat)
    }
}

struct Sidco {
    config: Config,
    controller: StageController,
    exceedances: Exceedances,
    /// Magnitudes above the threshold of the stage before, in ascending order of position.
    left: Vec<f32>,
    /// Elements that were aimed at last, at least one, and the stages it took.
    wanted: f64,
    stages: u32,
    /// k̂/k of a message that the controller has not been told yet.
    kept_ratio: Option<f64>,
}

impl Sidco {
    /// Leaves in `exceedances` what is to be sent, and returns the number of stages it took.
    fn find(&mut self, gradient: &[f32], share: f64) -> u32 {
        let (mut count, mut share) = (gradient.len(), share);
        if self.config.nonzero {
            count = exceedances::count_above(gradient, 0.0);
            share = (share * gradient.len() as f64 / count.max(1) as f64).min(1.0);
        }
        if count == 0 {
            self.exceedances.gather(&[], 0.0);
            return 0;
        }
        let plan = match self.config.stages {
            Stages::Fixed(stages) => StageShares::equal(share, stages),
            Stages::By(StageRule::Adaptive) => StageShares::equal(share, self.controller.stages()),
            Stages::By(StageRule::Chain) => StageShares::chain(share),
        };
        let fit = self.config.fit;
        let mut threshold = rounded_down(fit.first(gradient, count, plan.share(1)));
        let mut stages = 1;
        // A quarter of the elements exceeds the first threshold: the second is found by reading
        // all of them once more, which is faster than gathering so many.
        if plan.count > 1
            && let Some(next) = fit.later(fit.tail(gradient, threshold), plan.share(2))
        {
            threshold = rounded_down(next);
            stages = 2;
        }
        self.exceedances.gather(gradient, threshold);
        if stages > 1 && stages < plan.count {
            // Each further stage reads what exceeded the threshold before it, magnitudes alone;
            // positions follow once the last threshold is known.
            self.left.clear();
            self.left.extend_from_slice(self.exceedances.magnitudes());
            while stages < plan.count {
                let tail = fit.tail(&self.left, threshold);
                let Some(next) = fit.later(tail, plan.share(stages + 1)) else { break };
                threshold = rounded_down(next);
                stages += 1;
                if stages < plan.count {
                    keep_above(&mut self.left, threshold);
                }
            }
            self.exceedances.raise(threshold);
        }
        self.exceedances.or_largest(gradient);
        stages
    }
}

impl Select for Sidco {
    fn select(&mut self, gradient: &[f32], step: u64) {
        let share = self.config.ratio.at(step);
        self.stages = self.find(gradient, share);
        self.wanted = (share * gradient.len() as f64).max(1.0);
        self.kept_ratio = Some(self.positions().len() as f64 / self.wanted);
    }

    fn positions(&self) -> &[u32] {
        self.exceedances.positions()
    }

    fn add_gauges(&self, gauges: &mut Vec<Gauge>) {
        let kept_ratio = self.positions().len() as f64 / self.wanted;
        gauges.push(Gauge::mean("kept_ratio", kept_ratio, self.wanted));
        gauges.push(Gauge::mean("stages", self.stages.into(), self.wanted));
    }

    fn commit(&mut self, step: u64) {
        if let Some(kept_ratio) = self.kept_ratio.take()
            && self.config.stages == Stages::By(StageRule::Adaptive)
        {
            let share = self.config.ratio.at(step);
            self.controller.note(kept_ratio, share, self.config.bounce);
        }
    }

    fn save(&self, state: &mut State) {
        if self.config.stages == Stages::By(StageRule::Adaptive) {
            self.controller.save(state);
        }
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        if self.config.stages == Stages::By(StageRule::Adaptive) {
            self.controller = StageController::restore(state)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
