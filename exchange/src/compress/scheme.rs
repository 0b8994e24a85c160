//! What a scheme is: its settings, its laws, and what it builds for a bucket.

use gradwire_registry::About;

use super::Compressor;
use crate::reducer::Reducer;
use crate::rng::Stream;
use crate::{Error, Policy, Result};

/// What a scheme may know of a run before its first step. A seed alone is a run whose length nobody knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// What everything random follows from.
    pub seed: u64,
    /// Steps that it is planned to have, from its first to its last; `None` where that is not known.
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
    /// Steps that the run is planned to have, where that is known.
    pub steps: Option<u64>,
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

/// A scheme: its settings, and everything that follows from them.
///
/// An exchange takes any type that implements this; [`contract::check`](crate::contract::check) tries
/// its laws.
pub trait Scheme: Send + Sync {
    /// What the scheme is, and what holds of it under these settings.
    fn properties(&self) -> Properties;

    /// Its name, and what it does.
    fn about(&self) -> About {
        let Properties { name, line, paper, .. } = self.properties();
        About { name, line, paper }
    }

    /// Whether error feedback surrounds it under these settings.
    fn feedback(&self) -> bool {
        self.properties().feedback
    }

    /// What should surround the scheme unless the caller says otherwise.
    fn default_policy(&self) -> Policy {
        Policy::default()
    }

    /// Checks the settings by themselves.
    ///
    /// # Errors
    /// [`Error::Config`] names the setting, its value and what to write instead.
    fn validate(&self) -> Result<()> {
        Ok(())
    }

    /// Whether every bucket is sent as plain f32, without an instance.
    fn plain(&self) -> bool {
        false
    }

    /// What reduces one bucket on one rank.
    fn build(&self, seat: &Seat) -> Built;

    /// The codec of one bucket, of a scheme that says everything in one message; `None` of others.
    fn codec(&self, seat: &Seat) -> Option<Box<dyn Compressor>> {
        match self.build(seat) {
            Built::Codec(compressor) => Some(compressor),
            Built::Plain | Built::Reducer(_) => None,
        }
    }

    /// Settings worth testing and timing besides the defaults.
    #[doc(hidden)]
    fn examples() -> Vec<Self>
    where
        Self: Sized,
    {
        Vec::new()
    }
}

/// Refuses the `value` of a setting unless it is `good`.
pub(crate) fn require(
    good: bool,
    scheme: &'static str,
    key: &'static str,
    value: impl std::fmt::Display,
    wanted: &'static str,
) -> Result<()> {
    if good { Ok(()) } else { Err(Error::Config { scheme, key, value: value.to_string(), wanted }) }
}

/// What reduces one bucket on one rank.
pub enum Built {
    /// Nothing: the bucket is sent as plain f32.
    Plain,
    /// One message of every rank, which all of them decode.
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

impl Policy {
    /// Checks the scheme, these settings, and whether they go together.
    ///
    /// # Errors
    /// What [`Scheme::validate`] refuses; [`Error::Bucketing`]; [`Error::Unsound`] unless forced; [`Error::Policy`] names the setting, its value and what to write instead.
    pub fn validate(&self, scheme: &dyn Scheme) -> Result<()> {
        scheme.validate()?;
        if !self.force {
            scheme.properties().soundness.check(scheme.about().name, scheme.feedback())?;
        }
        if let Some(bucketing) = &self.bucketing {
            bucketing.validate()?;
        }
        let refuse = |key, value: f64, wanted| Err(Error::Policy { key, value, wanted });
        let momentum = self.momentum();
        if !(0.0..1.0).contains(&momentum) {
            return refuse(
                "momentum_correction",
                momentum,
                "write a factor of at least 0 and below 1",
            );
        }
        if momentum > 0.0 && !scheme.feedback() {
            let wanted = "it corrects what error feedback delays; switch the scheme's feedback on, \
                          or write 0 here";
            return refuse("momentum_correction", momentum, wanted);
        }
        let clip = self.clip_norm.unwrap_or(0.0);
        if !(clip >= 0.0 && clip.is_finite()) {
            return refuse("clip_norm", clip, "write a norm above 0, or 0 for none");
        }
        Ok(())
    }
}
