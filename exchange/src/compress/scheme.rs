//! The types that the trait `Scheme` (`schemes/scheme.rs`) speaks in: `Run` and `Seat` (what a scheme knows), `Law`, `Soundness`
//! and `Properties` (what it promises), `Built` (what it makes).

use super::Compressor;
use crate::reducer::Reducer;
use crate::rng::Stream;
use crate::{Error, Result};

/// What a scheme may know of a run before its first step. A seed alone is a run whose length nobody knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// What everything random follows from.
    pub seed: u64,
    /// Exchanges that each bucket is planned to have, from the first to the last: steps, but for [local steps](crate::Turn).
    /// `None` where that is not known.
    pub steps: Option<u64>,
}

impl From<u64> for Run {
    fn from(seed: u64) -> Self {
        Self { seed, steps: None }
    }
}

/// Where a compressor sits. The same seat and the same gradients give the same messages.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Seat {
    /// Elements of the bucket.
    pub length: usize,
    /// Elements of each parameter in it, end to end: together `length`.
    pub parameters: Vec<usize>,
    /// The shape of each of these parameters, outermost dimension first; that of a parameter whose
    /// shape nobody gave is its number of elements.
    pub shapes: Vec<Vec<usize>>,
    /// The rank it compresses for.
    pub rank: usize,
    /// The bucket's number.
    pub bucket: usize,
    /// The run's seed.
    pub seed: u64,
    /// Exchanges that the run is planned to have, where that is known.
    pub steps: Option<u64>,
    /// Whether it is a server's, or that of an owner of shards: what it compresses is the mean of decoded messages.
    pub of_means: bool,
}

impl Seat {
    /// The seat of rank 0 at a bucket that is one parameter of `length` elements, in a run of any length.
    pub fn alone(length: usize, seed: u64) -> Self {
        Self {
            length,
            parameters: vec![length],
            shapes: vec![vec![length]],
            rank: 0,
            bucket: 0,
            seed,
            steps: None,
            of_means: false,
        }
    }
}

impl Stream {
    /// The stream of a rank's own message at `step`.
    pub fn at(seat: &Seat, step: u64) -> Self {
        Self::new(&[seat.seed, 1 + seat.rank as u64, seat.bucket as u64, step])
    }

    /// A stream that every rank has at `step`: its key holds no rank.
    pub fn shared(seat: &Seat, step: u64) -> Self {
        Self::new(&[seat.seed, 0, seat.bucket as u64, step])
    }
}

/// What decoding gives back, as a law that can be tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Law {
    /// The gradient, bit for bit.
    Exact,
    /// The gradient in expectation over the random stream.
    Unbiased,
    /// A vector nearer to the gradient than zero is: ‖C(g) − g‖ ≤ ‖g‖, and strictly nearer for
    /// gradients as they occur.
    Contraction,
    /// None of these.
    Biased,
}

/// How a scheme gets on with error feedback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Soundness {
    /// Feedback converges: what is sent is a contraction of what should have been.
    Sound,
    /// Feedback does harm; the reason.
    Unsound(&'static str),
    /// Nothing is left pending, so that there is nothing to feed back.
    Lossless,
}

impl Soundness {
    /// Refuses error feedback where it does harm.
    pub(crate) fn check(self, scheme: &'static str, feedback: bool) -> Result<()> {
        match self {
            Soundness::Unsound(reason) if feedback => Err(Error::Unsound { scheme, reason }),
            _ => Ok(()),
        }
    }
}

/// What a scheme is, and what holds of it under its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Properties {
    /// Its name, by which recipes choose it.
    pub name: &'static str,
    /// What it does, in one line.
    pub line: &'static str,
    /// The paper that it comes from.
    pub paper: &'static str,
    /// What decoding gives back.
    pub law: Law,
    /// Whether error feedback is valid for it.
    pub soundness: Soundness,
    /// Whether error feedback surrounds it.
    pub feedback: bool,
}

/// Refuses the `value` of a setting unless it is `good`.
pub(crate) fn require(
    good: bool,
    scheme: &'static str,
    key: &'static str,
    value: impl std::fmt::Display,
    wanted: &'static str,
) -> Result<()> {
    let (scheme, value) = (Some(scheme), value.to_string());
    if good { Ok(()) } else { Err(Error::Config { scheme, key, value, wanted }) }
}

/// What reduces one bucket on one rank.
pub enum Built {
    /// Nothing: the bucket is sent as plain f32.
    Plain,
    /// One message of every rank.
    Codec(Box<dyn Compressor>),
    /// Any number of rounds.
    Reducer(Box<dyn Reducer>),
}

impl Built {
    /// A codec.
    pub(crate) fn codec(compressor: impl Compressor + 'static) -> Self {
        Built::Codec(Box::new(compressor))
    }

    /// A reducer.
    pub(crate) fn reducer(reducer: impl Reducer + 'static) -> Self {
        Built::Reducer(Box::new(reducer))
    }
}
