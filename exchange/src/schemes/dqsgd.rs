//! DQ-SGD: as many levels as the course of the run makes worth their bits.
//!
//! # Paper
//! Yan, Huang, Lan & Song 2021 ("DQ-SGD: Dynamic Quantization in SGD for Communication-Efficient
//! Distributed Learning", IEEE MASS; earlier "DQSGD", submitted to ICLR 2021). Quantiser: equations
//! 3 and 4; schedules: equations 18 (strongly convex) and 20 (non-convex) of the submission.
//! Reconstruction from the submission's main body and the authors' code of the follow-up, AC-SGD;
//! the appendices and the text of the MASS paper were not within our reach.
//!
//! # Idea
//! An error made early is forgotten, by α per step; one made late stays. The bits that minimise the
//! final error for a budget are B = log2(k·α^((N−n)/2)·‖g‖ + 1) + 1: more for large gradients and
//! for late steps. k sets the level, ‖g‖ is the norm of recent mean gradients, which every rank has.
//! k is one number for the whole run: it is what lets the bits follow the norm.
//!
//! # Wire
//! | bytes | what |
//! |---|---|
//! | 1 | B, bits per element, 2 to 8 |
//!
//! and then for each parameter of n > 0 elements in the bucket:
//!
//! | bytes | what |
//! |---|---|
//! | 4 | the scale: largest magnitude or L2 norm, f32 |
//! | ⌈n·B/8⌉ | a sign and a level of s = 2^(B−1) − 1 each |
//!
//! # State
//! The norms of the last `window` mean gradients, the bits planned, k and whether the budget has
//! been solved for it, and the bits spent so far; all from what every rank sees, so that nothing
//! more is sent.
//!
//! # Where we differ
//! * The MASS paper minimises the communication cost under a bound of the error, and the submission the
//!   error under a budget. Both have the same schedule, and differ in what gives k. The default here is the
//!   submission's: a budget of mean bits is held. `target = { error = … }` is the other.
//! * The paper leaves the norm that scales open, and the published table is only possible with the
//!   largest magnitude: that is the default.
//! * "Global L2 norm of the aggregated gradient": of the bucket's, which is the global one where
//!   the whole gradient is one bucket (the default, and `policy.bucketing = "whole"`); each
//!   parameter of it is quantised by a scale of its own all the same, as in the authors' code. With
//!   a bucket for each parameter, every parameter has its own norm, k and bits.
//! * Until the first norms are known every element has `max_bits`; the authors start from a
//!   constant.
//! * The paper knows all norms before it solves for k, and the authors' code sets k by hand. For a
//!   target of mean bits k is solved for once, at the first gap, as if the norm stayed, and then
//!   corrected slowly by what was spent (`CORRECTION`): bits follow the norm at once, and
//!   what that costs or saves is made up for over a quarter of the steps left. Holding k
//!   altogether would follow the paper to the letter and miss the budget: by 1.2 bits where the
//!   norm falls tenfold half way, by 2 where it falls a hundredfold. Solving for k anew at every
//!   gap would meet it and cancel the norm, since the bits depend on k·‖g‖ alone.
//! * N is the run's length where the caller [tells it](crate::Run), and the authors' 6000 otherwise.
//! * α is a property of the objective and the learning rate. Without a setting it is the authors'
//!   0.999 for their 6000 steps and α^N the same for other lengths, so that a constant norm gets
//!   4.3 bits more at the end than at the start, however long the run. `gap` and `window` scale with N
//!   likewise: the authors' 100 and 50 of 6000 steps. With 100 steps of a run of 600 k would be corrected
//!   so fast that the norm cancels out.
//! * The schedule knows nothing of the learning rate, which is constant in the authors' code. Under one
//!   that falls, the few bits go to the steps that move the weights most.
//! * The dither between two widths is ours; the authors' code rounds up.
//! * The symmetric range without a zero level that later citations describe is not offered.

mod controller;
use serde::{Deserialize, Serialize};

use controller::Controller;

use crate::compress::bit_schedule::Course;
use crate::compress::ladder::Uniform;
use crate::compress::levels::{self, Norm, Quantiser};
use crate::compress::scheme::require;
use crate::compress::{
    Built, Compressor, Encoded, Law, Properties, Seat, Soundness, StepEnd, StepMessages,
};
use crate::rng::Stream;
use crate::wire::{Fault, Reader, codes, floats};
use crate::{Gauge, Result, Scheme, State};

/// The widest code.
const MAX_BITS: u8 = 8;

/// α in the authors' code.
const AUTHORS_ALPHA: f64 = 0.999;

/// Steps of a run, the same code's N.
const AUTHORS_STEPS: u64 = 6000;

/// Steps between two decisions of such a run.
const AUTHORS_GAP: u64 = 100;

/// Steps of such a run whose norms are averaged.
const AUTHORS_WINDOW: u64 = 50;

/// The longest window of norms: what a setting can make a rank hold.
const MAX_WINDOW: usize = 1 << 20;

/// What the schedule is to reach.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// Mean bits per element over the run: `{ bits = 4.5 }`.
    Bits(#[cfg_attr(feature = "schema", schemars(range(min = 2.0, max = 8.0)))] f64),
    /// The paper's factor k (t for non-convex objectives) itself: `{ k = 41.5 }`.
    K(#[cfg_attr(feature = "schema", schemars(extend("exclusiveMinimum" = 0.0)))] f64),
    /// The weighted quantisation error Σ α^(N−1−n) ‖g_n‖²/s_n²: `{ error = 0.05 }`. Theorem 1 bounds
    /// what quantisation adds to the objective by L·d·η²/12 times it.
    Error(#[cfg_attr(feature = "schema", schemars(extend("exclusiveMinimum" = 0.0)))] f64),
}

/// How a planned number of bits becomes a whole one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Rounding {
    /// Up, as in the authors' code.
    Ceil,
    /// Up or down at each step, by a random number that all ranks share, so that the mean is what
    /// was planned.
    Dither,
}

settings! {
    /// The settings of `dqsgd`.
    pub struct Config {
        /// What each parameter is scaled by. Default `linf`.
        pub norm: Norm = Norm::Linf,
        /// α, above 0 and at most 1: the convex schedule; 1 gives the non-convex one. Default
        /// 0.999^(6000/`horizon`), which is the authors' 0.999 for their 6000 steps.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0)))]
        pub alpha: Option<f64> = None,
        /// Steps of the run, N; later steps count as the last. Default the run's length, or the authors' 6000 where that
        /// is not known.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
        pub horizon: Option<u64> = None,
        /// Steps between two decisions; with as many as `horizon` all have `max_bits`. Default a sixtieth of `horizon`, which is the authors' 100 of 6000.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
        pub gap: Option<u64> = None,
        /// Steps whose norms are averaged. Default half of a sixtieth of `horizon`, the authors' 50 of 6000.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = MAX_WINDOW)))]
        pub window: Option<usize> = None,
        /// Fewest bits per element, from 2. Default 2.
        #[cfg_attr(feature = "schema", schemars(range(min = 2, max = MAX_BITS)))]
        pub min_bits: u8 = 2,
        /// Most bits per element, up to 8; also those of the first `gap` steps. Default 8.
        #[cfg_attr(feature = "schema", schemars(range(min = 2, max = MAX_BITS)))]
        pub max_bits: u8 = MAX_BITS,
        /// How bits become whole. Default `ceil`.
        pub rounding: Rounding = Rounding::Ceil,
        /// Error feedback, which does harm here: its variance is fed back. Default false.
        pub feedback: bool = false,
        /// What the schedule is to reach; unless said, a mean of 4.5 bits, the paper's on CIFAR-10.
        pub target: Target = Target::Bits(4.5),
    }
}

impl Config {
    /// Equation 18's α and N in a run of so many `steps`: N as it is set, else the run's length, else the authors'; α
    /// as it is set, else the authors' for a run of N steps.
    fn course(&self, steps: Option<u64>) -> Course {
        let horizon = self.horizon.or(steps).unwrap_or(AUTHORS_STEPS).max(1);
        let per_step = || AUTHORS_ALPHA.powf(AUTHORS_STEPS as f64 / horizon as f64);
        Course { alpha: self.alpha.unwrap_or_else(per_step), horizon }
    }

    /// Steps between two decisions of a run of `horizon` steps.
    fn gap(&self, horizon: u64) -> u64 {
        self.gap.unwrap_or_else(|| share_of(AUTHORS_GAP, horizon))
    }

    /// Steps of a run of `horizon` steps whose norms are averaged.
    fn window(&self, horizon: u64) -> usize {
        let share = || (share_of(AUTHORS_WINDOW, horizon) as usize).min(MAX_WINDOW);
        self.window.unwrap_or_else(share)
    }
}

/// What so many of the authors' steps are of a run of `horizon` steps, rounded, at least 1.
fn share_of(steps: u64, horizon: u64) -> u64 {
    let share = u128::from(steps) * u128::from(horizon) + u128::from(AUTHORS_STEPS) / 2;
    ((share / u128::from(AUTHORS_STEPS)) as u64).max(1)
}

impl Scheme for Config {
    fn properties(&self) -> Properties {
        Properties {
            name: "dqsgd",
            line: "levels rounded at random, as many as the course of the run makes worth their bits",
            paper: "Yan et al. 2021",
            law: Law::Unbiased,
            soundness: Soundness::Unsound("its rounding is unbiased, and its variance is fed back"),
            feedback: self.feedback,
        }
    }

    fn validate(&self) -> Result<()> {
        let Self { alpha, horizon, gap, window, min_bits, max_bits, .. } = *self;
        let scheme = self.about().name;
        if let Some(alpha) = alpha {
            let wanted = "write a number above 0, at most 1, or leave it to the horizon";
            require(alpha > 0.0 && alpha <= 1.0, scheme, "alpha", alpha, wanted)?;
        }
        for (key, value) in [("horizon", horizon), ("gap", gap)] {
            let value = value.unwrap_or(AUTHORS_STEPS);
            require(value > 0, scheme, key, value, "write a number of steps, at least 1")?;
        }
        let wanted = "write a number of steps, 1 to 1048576";
        let window = window.unwrap_or(1);
        require((1..=MAX_WINDOW).contains(&window), scheme, "window", window, wanted)?;
        require((2..=MAX_BITS).contains(&max_bits), scheme, "max_bits", max_bits, "write 2 to 8")?;
        let fits = (2..=max_bits).contains(&min_bits);
        require(fits, scheme, "min_bits", min_bits, "write 2 to max_bits")?;
        let positive = |key, value: f64| {
            let good = value > 0.0 && value.is_finite();
            require(good, scheme, key, value, "write a number above 0")
        };
        match self.target {
            Target::Bits(bits) => {
                let reach = f64::from(min_bits)..=f64::from(max_bits);
                let wanted = "write bits per element from min_bits to max_bits";
                require(reach.contains(&bits), scheme, "target.bits", bits, wanted)
            }
            Target::K(k) => positive("target.k", k),
            Target::Error(error) => positive("target.error", error),
        }
    }

    fn spans_the_run(&self) -> bool {
        self.horizon.is_none()
    }

    fn build(&self, seat: &Seat) -> Built {
        Built::codec(Dqsgd {
            controller: Controller::new(self, self.course(seat.steps)),
            config: self.clone(),
            seat: seat.clone(),
            quantiser: Quantiser::default(),
            gauges: Vec::with_capacity(3),
            spent: 0.0,
        })
    }

    fn examples() -> Vec<Self> {
        vec![
            Self { norm: Norm::L2, target: Target::K(40.0), horizon: Some(100), ..Self::default() },
            Self {
                alpha: Some(1.0),
                horizon: Some(300),
                gap: Some(2),
                window: Some(3),
                rounding: Rounding::Dither,
                ..Self::default()
            },
            Self { gap: Some(1), max_bits: 6, target: Target::Error(0.2), ..Self::default() },
        ]
    }
}

struct Dqsgd {
    config: Config,
    seat: Seat,
    controller: Controller,
    quantiser: Quantiser,
    gauges: Vec<Gauge>,
    /// Bits of an element in the step under way, as the mean over the ranks' messages.
    spent: f64,
}

/// The levels of `bits` bits: s = 2^(bits − 1) − 1.
fn ladder(bits: u8) -> Uniform {
    Uniform((1u8 << (bits - 1)) - 1)
}

/// Bits of an element, as the mean over the ranks' messages.
fn mean_bits(round: &StepMessages<'_>) -> f64 {
    /// Bits of an element of a bucket that was sent as it is.
    const DENSE: f64 = 32.0;
    let bits = |message: &Option<&[u8]>| match message {
        Some([bits, ..]) => f64::from(*bits),
        _ => DENSE,
    };
    let ranks = round.messages.len().max(1) as f64;
    round.messages.iter().map(bits).sum::<f64>() / ranks
}

impl Compressor for Dqsgd {
    fn encode(&mut self, gradient: &[f32], step: u64, out: &mut Vec<u8>) -> Encoded {
        let dither = Stream::shared(&self.seat, step).uniform(0);
        let bits = self.controller.whole_bits(f64::from(dither));
        out.push(bits);
        let norm = self.config.norm;
        let stream = Stream::at(&self.seat, step);
        let mut rest = gradient;
        for (number, length) in self.seat.parameters.iter().enumerate() {
            let (parameter, others) = rest.split_at(*length);
            let stream = Stream::new(&[stream.key(), number as u64]);
            self.quantiser.put_scales(parameter, 0, |some| norm.scale(some), out);
            self.quantiser.put_codes(parameter, 0, ladder(bits), stream, out);
            rest = others;
        }
        let weight = gradient.len() as f64;
        self.gauges.clear();
        self.gauges.extend([
            Gauge::mean("bits", f64::from(bits), weight),
            Gauge::mean("norm", self.controller.norm, weight),
            Gauge::mean("k", self.controller.k, weight),
        ]);
        Encoded::Message
    }

    fn decode_add(&self, wire: &[u8], _start: usize, weight: f32, sum: &mut [f32]) -> Result<()> {
        let mut reader = Reader::new(wire);
        let bits = reader.u8()?;
        if !(2..=MAX_BITS).contains(&bits) {
            Err(Fault::Field { field: "bits", found: bits.into() })?;
        }
        let mut rest = sum;
        for length in &self.seat.parameters {
            let (parameter, others) = rest.split_at_mut(*length);
            let scale = if parameter.is_empty() { 0 } else { size_of::<f32>() };
            let wire = reader.take(scale + codes::bytes(*length, bits.into()))?;
            levels::add(wire, 0, ladder(bits), weight, parameter)?;
            rest = others;
        }
        Ok(reader.finish()?)
    }

    fn learn_from_messages(&mut self, round: &StepMessages<'_>) -> Result<()> {
        self.spent = mean_bits(round);
        Ok(())
    }

    /// The mean number of bits, an f64.
    fn summarise(&mut self, round: &StepMessages<'_>, out: &mut Vec<u8>) -> Result<()> {
        out.extend(mean_bits(round).to_le_bytes());
        Ok(())
    }

    fn learn_from_summary(&mut self, _step: u64, summary: &[u8], _mean: &[f32]) -> Result<()> {
        let mut reader = Reader::new(summary);
        let spent = f64::from_bits(reader.u64()?);
        reader.finish()?;
        if !(0.0..=32.0).contains(&spent) {
            return Err(Fault::Field { field: "mean bits", found: spent.to_bits() }.into());
        }
        self.spent = spent;
        Ok(())
    }

    fn commit(&mut self, end: &StepEnd<'_>) {
        self.controller.note(end.step, floats::norm(end.mean), self.spent);
    }

    fn rescale(&mut self, factor: f32) {
        self.controller.rescale(factor.into());
    }

    fn save(&self, state: &mut State) {
        self.controller.save(state);
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        self.controller.restore(state)
    }

    fn gauges(&self) -> &[Gauge] {
        &self.gauges
    }
}

#[cfg(test)]
mod tests;
