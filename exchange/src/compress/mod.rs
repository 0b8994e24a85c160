//! Compression schemes: what a recipe chooses, and the instances that do it.
//!
//! Adding one is a file with a `Config` that implements [`Definition`], its `mod` line below, and
//! one line in the list of `schemes!`. Recipes, `gradwire list`, contract tests and benches take
//! it from there.

mod adaptive;
pub mod aggregation_aware;
pub mod alq;
mod bit_schedule;
pub mod casq;
mod cutoff;
pub mod dense;
pub mod dgc;
pub mod dqsgd;
pub mod ef_signsgd;
mod exceedances;
mod feedback;
pub mod gaussiank;
pub mod half;
mod histogram;
mod ladder;
mod levels;
mod moments;
pub mod natural;
pub mod nonzero;
pub mod nuqsgd;
pub mod onebit;
pub mod optquant;
pub mod powersgd;
pub mod qsgd;
pub mod randomk;
mod ratio;
pub mod redsync;
mod rounding;
mod select;
pub mod sidco;
mod signs;
pub mod signsgd;
pub(crate) mod sparse;
mod sparsifier;
mod special;
pub mod terngrad;
pub mod threshold;
pub mod topk;
pub mod values;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

pub use adaptive::Statistics;
pub use feedback::Feedback;
pub use levels::{Entropy, Norm};
pub use ratio::{Fall, Ratio};
pub use values::{QsgdValues, Quantised, Values};

use std::ops::Range;

use crate::reducer::Reducer;
use crate::wire::{Fault, codes};
use crate::{Error, Gauge, Policy, Result, State};

/// Compresses the gradient of one bucket on one rank, and decodes such messages of any rank.
///
/// Laws, each a test over every scheme: the message holds everything that decoding needs beyond
/// the configuration and the bucket's length; the same seat and the same gradients give the same
/// bytes; any bytes decode to an error or to numbers, without panic and without allocation that
/// the bucket's length does not bound.
pub trait Compressor: Send {
    /// Appends the message for a gradient of the seat's length, all finite unless this
    /// [`checks`](Self::checks) that itself, at `step`, which counts from 1.
    fn encode(&mut self, gradient: &[f32], step: u64, out: &mut Vec<u8>) -> Encoded;

    /// As [`encode`](Self::encode), the same message, of a gradient that is zero outside the blocks of
    /// 64 elements that have a bit in `support`.
    fn encode_within(
        &mut self,
        gradient: &[f32],
        _support: &[u64],
        step: u64,
        out: &mut Vec<u8>,
    ) -> Encoded {
        self.encode(gradient, step, out)
    }

    /// Whether [`encode`](Self::encode) finds out by itself that an element is not finite, and says
    /// [`Encoded::Dense`] then: so nobody needs to look at all of them before.
    fn checks(&self) -> bool {
        false
    }

    /// Adds `weight` times what a message says to `sum`, of the seat's length. Reads only the
    /// configuration and the message.
    ///
    /// # Errors
    /// [`Error::Wire`] when the bytes are not a message; `sum` is then in pieces.
    fn decode_add(&self, wire: &[u8], weight: f32, sum: &mut [f32]) -> Result<()>;

    /// Reads what this compressor learns from every rank's message. Nothing that lasts changes
    /// before [`settle`](Self::settle): a step can still fail after this.
    ///
    /// # Errors
    /// [`Error::Wire`] when a message holds what decoding alone does not look at, and it is wrong.
    fn observe(&mut self, _heard: &Observed<'_>) -> Result<()> {
        Ok(())
    }

    /// Appends what a rank that does not hear the messages must be told about them so as to learn
    /// what [`observe`](Self::observe) reads: a server calls it, and sends that along with the
    /// mean. Nothing by default, for schemes that learn nothing from messages.
    ///
    /// # Errors
    /// As [`observe`](Self::observe).
    fn digest(&mut self, _heard: &Observed<'_>, _out: &mut Vec<u8>) -> Result<()> {
        Ok(())
    }

    /// [`observe`](Self::observe) for a rank that has a digest of the messages in their place.
    ///
    /// # Errors
    /// [`Error::Wire`] when the bytes are not such a digest.
    fn learn(&mut self, digest: &Digest<'_>) -> Result<()> {
        match digest.bytes.len() {
            0 => Ok(()),
            left => Err(Fault::Trailing { left }.into()),
        }
    }

    /// The step has succeeded: what [`observe`](Self::observe) or [`learn`](Self::learn) has read
    /// takes effect, as does what the step itself has shown. This cannot fail, and concludes the
    /// same on every rank, because every rank is told the same.
    fn settle(&mut self, _end: &StepEnd<'_>) {}

    /// [`observe`](Self::observe) and [`settle`](Self::settle), for a step that cannot fail any
    /// more: for whoever drives a compressor without an exchange.
    ///
    /// # Errors
    /// As [`observe`](Self::observe).
    fn take_in(&mut self, heard: &Observed<'_>) -> Result<()> {
        self.observe(heard)?;
        let Observed { step, messages, mean } = *heard;
        self.settle(&StepEnd { step, ranks: messages.len(), mean });
        Ok(())
    }

    /// This compressor as a reader of parts of messages, if their form allows it.
    fn by_parts(&self) -> Option<&dyn ByParts> {
        None
    }

    /// The bytes that every element takes, if each element of a bucket takes as many and a message
    /// has nothing else: then a message can be cut between any two elements.
    fn element_bytes(&self) -> Option<usize> {
        None
    }

    /// This compressor as a reader of which blocks a message speaks of, if that is quicker to know
    /// than what it says of all elements.
    fn by_blocks(&self) -> Option<&dyn ByBlocks> {
        None
    }

    /// The positions, ascending, that the last message speaks of; `None` when it speaks of all.
    fn sent(&self) -> Option<&[u32]> {
        None
    }

    /// Puts everything that later messages depend on into `state`.
    fn save(&self, _state: &mut State) {}

    /// Takes up what [`save`](Self::save) put there.
    ///
    /// # Errors
    /// [`Error::State`] when it does not fit.
    fn restore(&mut self, _state: &State) -> Result<()> {
        Ok(())
    }

    /// What the last message was like, for the record.
    fn gauges(&self) -> &[Gauge] {
        &[]
    }
}

/// Reads a part of a message without the work of reading all of it.
pub trait ByParts {
    /// Adds `weight` times what a message of a bucket of `length` elements says of the elements
    /// `part` to `sum`, of the part's length: bit for bit what [`Compressor::decode_add`] adds
    /// there. The part begins at a multiple of [`PART`].
    ///
    /// # Errors
    /// [`Error::Wire`] when the bytes are not a message, as far as the part shows it; `sum` is
    /// then in pieces.
    fn decode_part(
        &self,
        wire: &[u8],
        length: usize,
        part: Range<usize>,
        weight: f32,
        sum: &mut [f32],
    ) -> Result<()>;
}

/// Reads which blocks of elements a message speaks of; it says zero of all others, and of these what
/// the gradient was, bit for bit.
pub trait ByBlocks {
    /// Elements of a block; the bucket's last may be shorter.
    fn block(&self) -> usize;

    /// Visits the numbers of the blocks that a message of a bucket of `length` elements speaks of, in
    /// ascending order, each once and within the bucket.
    ///
    /// # Errors
    /// [`Error::Wire`] when the bytes are not a message; some may have been visited by then.
    fn each_block(&self, wire: &[u8], length: usize, visit: &mut dyn FnMut(usize)) -> Result<()>;
}

/// Parts of messages begin at multiples of this many elements.
pub const PART: usize = codes::BLOCK;

/// What became of a call of [`Compressor::encode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoded {
    /// The message has been appended.
    Message,
    /// This gradient cannot be said: numbers beyond the range of f32 would arrive. What has been
    /// appended is to be thrown away and the bucket sent as it is.
    Dense,
}

/// One step of one bucket, as every rank that hears the messages knows it after the exchange.
#[derive(Debug, Clone, Copy)]
pub struct Observed<'a> {
    /// The step.
    pub step: u64,
    /// Every rank's message, in order of rank; `None` where the bucket was sent as plain f32.
    pub messages: &'a [Option<&'a [u8]>],
    /// The mean gradient of the bucket.
    pub mean: &'a [f32],
}

/// The end of a successful step of one bucket.
#[derive(Debug, Clone, Copy)]
pub struct StepEnd<'a> {
    /// The step.
    pub step: u64,
    /// The number of ranks whose messages made the mean.
    pub ranks: usize,
    /// The mean gradient of the bucket.
    pub mean: &'a [f32],
}

/// One step of one bucket, as a rank knows it that has heard the mean and a digest of the
/// messages.
#[derive(Debug, Clone, Copy)]
pub struct Digest<'a> {
    /// The step.
    pub step: u64,
    /// The number of ranks whose messages were digested.
    pub ranks: usize,
    /// What [`Compressor::digest`] wrote.
    pub bytes: &'a [u8],
    /// The mean gradient of the bucket.
    pub mean: &'a [f32],
}

/// Where a compressor sits. The same seat and the same gradients give the same messages.
#[derive(Debug, Clone, PartialEq, Eq)]
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
}

impl Seat {
    /// The seat of rank 0 at a bucket that is one parameter of `length` elements.
    pub fn alone(length: usize, seed: u64) -> Self {
        Self {
            length,
            parameters: vec![length],
            shapes: vec![vec![length]],
            rank: 0,
            bucket: 0,
            seed,
        }
    }
}

/// What a scheme is, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct About {
    /// Name in a recipe.
    pub name: &'static str,
    /// What it does, in one line.
    pub line: &'static str,
    /// Who described it: authors, year.
    pub paper: &'static str,
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
    /// Nothing is left unsaid, so that there is nothing to feed back.
    Lossless,
}

impl Soundness {
    /// Refuses error feedback where it does harm.
    ///
    /// # Errors
    /// [`Error::Unsound`] with the reason.
    pub fn check(self, scheme: &'static str, feedback: bool) -> Result<()> {
        match self {
            Soundness::Unsound(reason) if feedback => Err(Error::Unsound { scheme, reason }),
            _ => Ok(()),
        }
    }
}

/// The settings of one scheme in a recipe, and everything that follows from them.
pub trait Definition: Clone + Default + PartialEq + Serialize + DeserializeOwned {
    /// What [`build`](Self::build) gives: `Box<dyn Compressor>`, or `Box<dyn Reducer>`.
    type Instance: Into<Built>;

    /// What the scheme is.
    const ABOUT: About;

    /// How it gets on with error feedback.
    const FEEDBACK: Soundness;

    /// The same under these settings.
    fn soundness(&self) -> Soundness {
        Self::FEEDBACK
    }

    /// Whether these settings ask for error feedback.
    fn feedback(&self) -> bool;

    /// What should surround the scheme unless the recipe says otherwise.
    fn habits(&self) -> Policy {
        Policy::default()
    }

    /// What decoding gives back under these settings.
    fn law(&self) -> Law;

    /// Checks the settings by themselves.
    ///
    /// # Errors
    /// [`Error::Config`] names the setting, its value and what to write instead.
    fn validate(&self) -> Result<()>;

    /// Whether every bucket is sent as plain f32, without an instance.
    fn plain(&self) -> bool {
        false
    }

    /// What reduces one bucket on one rank.
    fn build(&self, seat: &Seat) -> Self::Instance;

    /// Settings worth testing and timing besides the defaults.
    fn specimens() -> Vec<Self> {
        Vec::new()
    }
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

impl From<Box<dyn Compressor>> for Built {
    fn from(compressor: Box<dyn Compressor>) -> Self {
        Built::Codec(compressor)
    }
}

impl From<Box<dyn Reducer>> for Built {
    fn from(reducer: Box<dyn Reducer>) -> Self {
        Built::Reducer(reducer)
    }
}

/// A scheme as an exchange needs it: everything of a [`Definition`] that does not depend on its
/// type. Every definition is one; a type that is read from no recipe may implement just this.
pub trait Method: Send + Sync {
    /// What the scheme is.
    fn about(&self) -> About;

    /// Whether error feedback surrounds it.
    fn feedback(&self) -> bool;

    /// Whether error feedback is valid for it.
    fn soundness(&self) -> Soundness;

    /// What decoding gives back.
    fn law(&self) -> Law;

    /// What reduces one bucket on one rank.
    fn build(&self, seat: &Seat) -> Built;

    /// What should surround the scheme unless the caller says otherwise.
    fn habits(&self) -> Policy {
        Policy::default()
    }

    /// Whether every bucket is sent as plain f32, without an instance.
    fn plain(&self) -> bool {
        false
    }

    /// Checks the settings by themselves.
    ///
    /// # Errors
    /// [`Error::Config`] names the setting, its value and what to write instead.
    fn validate(&self) -> Result<()> {
        Ok(())
    }
}

impl<D: Definition + Send + Sync> Method for D {
    fn about(&self) -> About {
        D::ABOUT
    }

    fn feedback(&self) -> bool {
        Definition::feedback(self)
    }

    fn soundness(&self) -> Soundness {
        Definition::soundness(self)
    }

    fn law(&self) -> Law {
        Definition::law(self)
    }

    fn build(&self, seat: &Seat) -> Built {
        Definition::build(self, seat).into()
    }

    fn habits(&self) -> Policy {
        Definition::habits(self)
    }

    fn plain(&self) -> bool {
        Definition::plain(self)
    }

    fn validate(&self) -> Result<()> {
        Definition::validate(self)
    }
}

macro_rules! schemes {
    ($($variant:ident($module:ident)),* $(,)?) => {
        /// How gradients are compressed: the `[scheme]` of a recipe, by its `kind`.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "kind", rename_all = "kebab-case")]
        pub enum Scheme {
            $(
                #[doc = concat!("See [`", stringify!($module), "`].")]
                $variant($module::Config),
            )*
        }

        // A scheme's module that the crate's root does not re-export does not compile.
        $(const _: Option<crate::$module::Config> = None;)*

        impl Scheme {
            /// Every scheme at its defaults.
            pub fn all() -> Vec<Scheme> {
                vec![$(Scheme::$variant(Default::default())),*]
            }

            /// Every scheme at its defaults and at further settings worth testing and timing.
            pub fn specimens() -> Vec<Scheme> {
                let mut all = Scheme::all();
                $(all.extend($module::Config::specimens().into_iter().map(Scheme::$variant));)*
                all
            }

            /// Those of [`specimens`](Self::specimens) that say everything in one message.
            pub fn codecs() -> Vec<Scheme> {
                let mut all = Scheme::specimens();
                all.retain(|scheme| scheme.codec(&Seat::alone(1, 0)).is_some());
                all
            }

            /// What the scheme is.
            pub fn about(&self) -> About {
                match self {
                    $(Scheme::$variant(_) => <$module::Config as Definition>::ABOUT,)*
                }
            }

            /// Whether error feedback is asked for.
            pub fn feedback(&self) -> bool {
                match self {
                    $(Scheme::$variant(config) => Definition::feedback(config),)*
                }
            }

            /// What should surround the scheme unless the recipe says otherwise.
            pub fn habits(&self) -> Policy {
                match self {
                    $(Scheme::$variant(config) => Definition::habits(config),)*
                }
            }

            /// What decoding gives back.
            pub fn law(&self) -> Law {
                match self {
                    $(Scheme::$variant(config) => Definition::law(config),)*
                }
            }

            /// How the scheme gets on with error feedback.
            pub fn soundness(&self) -> Soundness {
                match self {
                    $(Scheme::$variant(config) => Definition::soundness(config),)*
                }
            }

            /// Checks the settings by themselves.
            ///
            /// # Errors
            /// [`Error::Config`] names the setting, its value and what to write instead.
            pub fn validate(&self) -> Result<()> {
                match self {
                    $(Scheme::$variant(config) => Definition::validate(config),)*
                }
            }

            /// Whether every bucket is sent as plain f32, without an instance.
            pub fn plain(&self) -> bool {
                match self {
                    $(Scheme::$variant(config) => Definition::plain(config),)*
                }
            }

            /// What reduces one bucket on one rank.
            pub fn build(&self, seat: &Seat) -> Built {
                match self {
                    $(Scheme::$variant(config) => Definition::build(config, seat).into(),)*
                }
            }

            /// The same of a scheme that says everything in one message; `None` of others.
            pub fn codec(&self, seat: &Seat) -> Option<Box<dyn Compressor>> {
                match self.build(seat) {
                    Built::Codec(compressor) => Some(compressor),
                    Built::Plain | Built::Reducer(_) => None,
                }
            }
        }

        impl Method for Scheme {
            fn about(&self) -> About {
                self.about()
            }

            fn feedback(&self) -> bool {
                self.feedback()
            }

            fn soundness(&self) -> Soundness {
                self.soundness()
            }

            fn law(&self) -> Law {
                self.law()
            }

            fn build(&self, seat: &Seat) -> Built {
                self.build(seat)
            }

            fn habits(&self) -> Policy {
                self.habits()
            }

            fn plain(&self) -> bool {
                self.plain()
            }

            fn validate(&self) -> Result<()> {
                self.validate()
            }
        }
    };
}

schemes! {
    Dense(dense),
    Half(half),
    Nonzero(nonzero),
    Casq(casq),
    Dqsgd(dqsgd),
    Optquant(optquant),
    Sidco(sidco),
    AggregationAware(aggregation_aware),
    Powersgd(powersgd),
    Topk(topk),
    Randomk(randomk),
    Dgc(dgc),
    Gaussiank(gaussiank),
    Redsync(redsync),
    Threshold(threshold),
    Qsgd(qsgd),
    Terngrad(terngrad),
    Nuqsgd(nuqsgd),
    Alq(alq),
    Natural(natural),
    Signsgd(signsgd),
    EfSignsgd(ef_signsgd),
    Onebit(onebit),
}

impl Default for Scheme {
    /// The scheme that changes nothing: dense.
    fn default() -> Self {
        Scheme::Dense(dense::Config::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Scheme, toml::de::Error> {
        toml::from_str(text)
    }

    #[test]
    fn schemes_read_from_a_recipe_by_their_names() {
        for scheme in Scheme::specimens() {
            let text = toml::to_string(&scheme).unwrap();
            assert!(text.contains(&format!("kind = \"{}\"", scheme.about().name)), "{text}");
            assert_eq!(read(&text).unwrap(), scheme);
            assert_eq!(scheme.validate(), Ok(()));
        }
        for scheme in Scheme::all() {
            assert_eq!(read(&format!("kind = '{}'", scheme.about().name)).unwrap(), scheme);
        }
    }

    #[test]
    fn stray_keys_and_unknown_names_are_refused() {
        for text in [
            "kind = 'dense'\nfeedback = true",
            "kind = 'topk'\nrate = 0.1",
            "kind = 'top-k'",
            "ratio = 0.1",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn unsound_feedback_is_refused_with_its_reason() {
        let unsound = Soundness::Unsound("its variance is fed back");
        let error = unsound.check("qsgd", true).unwrap_err();
        assert!(error.to_string().contains("its variance is fed back"), "{error}");
        assert_eq!(unsound.check("qsgd", false), Ok(()));
        assert_eq!(Soundness::Sound.check("topk", true), Ok(()));
    }
}
