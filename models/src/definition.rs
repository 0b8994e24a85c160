//! What a model is to everybody else: the trait that each model's settings implement.

use candle_core::{Result, Tensor, bail};
use candle_nn::{ModuleT, VarBuilder};

pub use gradwire_registry::About;

use crate::store::Store;

/// A network ready to train: `forward_t(inputs, train)` gives logits `[batch, classes]`.
///
/// Image models take `f32 [batch, height, width, channels]`, text models take
/// `u32 [batch, length]` token ids. Models that continue a text take the same without padding, and
/// give logits `[batch · length, vocabulary]`: of the token after each of these.
pub type Model = Box<dyn ModuleT + Send>;

/// The mean loss of a batch, from the model's outputs, its labels (`u32`, one for each row of logits) and the recipe's label
/// smoothing.
pub type Loss = Box<dyn Fn(&Tensor, &Tensor, f64) -> Result<Tensor> + Send>;

/// What one sample looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// An image of `height` × `width` pixels.
    Image {
        /// Colour channels, the fastest dimension.
        channels: usize,
        /// Rows of pixels.
        height: usize,
        /// Columns of pixels.
        width: usize,
    },
    /// A text of token ids, padded at the end with [`PAD`](crate::PAD).
    Text {
        /// Ids lie in `0..vocabulary`.
        vocabulary: usize,
        /// Tokens per text, padding included.
        length: usize,
    },
    /// A piece of a text to continue; id 0 is a token like any other.
    Sequence {
        /// Ids lie in `0..vocabulary`; they are the classes as well.
        vocabulary: usize,
        /// Tokens per piece.
        length: usize,
    },
}

impl Input {
    /// Image, text, or a text to continue.
    pub fn kind(&self) -> InputKind {
        match self {
            Input::Image { .. } => InputKind::Image,
            Input::Text { .. } => InputKind::Text,
            Input::Sequence { .. } => InputKind::Sequence,
        }
    }

    /// Channels, height and width of an image.
    ///
    /// # Errors
    /// When it is none.
    pub fn image(&self) -> Result<[usize; 3]> {
        match *self {
            Input::Image { channels, height, width } => Ok([channels, height, width]),
            _ => bail!("a model for images cannot read {}", self.kind()),
        }
    }

    /// Vocabulary and length of a text.
    ///
    /// # Errors
    /// When it is none.
    pub fn text(&self) -> Result<[usize; 2]> {
        match *self {
            Input::Text { vocabulary, length } => Ok([vocabulary, length]),
            _ => bail!("a model for texts cannot read {}", self.kind()),
        }
    }

    /// Vocabulary and length of a piece of a text to continue.
    ///
    /// # Errors
    /// When it is none.
    pub fn sequence(&self) -> Result<[usize; 2]> {
        match *self {
            Input::Sequence { vocabulary, length } => Ok([vocabulary, length]),
            _ => bail!("a model that continues texts cannot read {}", self.kind()),
        }
    }
}

/// The kinds of sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputKind {
    /// Pixels.
    Image,
    /// Token ids.
    Text,
    /// Token ids, each with the next one as its label.
    Sequence,
}

impl std::fmt::Display for InputKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            InputKind::Image => "images",
            InputKind::Text => "texts",
            InputKind::Sequence => "sequences",
        })
    }
}

/// The settings of a model in a recipe, and everything that follows from them.
pub trait Definition {
    /// What the model is; the line says what it reads, images or texts.
    fn about(&self) -> About;

    /// What it reads.
    fn reads(&self) -> InputKind;

    /// The name of the parameter, `[vocabulary, dim]`, of which a forward pass reads no rows but
    /// those of its inputs' token ids; none unless the model says so.
    fn table(&self) -> Option<&'static str> {
        None
    }

    /// Builds the network for `input`, which is of the kind that it [`reads`](Self::reads) and not
    /// empty, and 2 classes or more, with variables from `vb`.
    ///
    /// # Errors
    /// When a setting is out of range or does not fit the input, or `vb` cannot give a variable of
    /// the name and shape asked for.
    ///
    /// Batch norm is [`ops::batch_norm`](crate::ops::batch_norm), which counts its passes: the running statistics of
    /// candle's own layer are not computed anew before an evaluation (`train.recalibrate`).
    fn build(&self, input: &Input, classes: usize, vb: &VarBuilder) -> Result<Model>;

    /// What is minimised: cross-entropy, unless the model says otherwise.
    fn loss(&self) -> Loss {
        Box::new(crate::ops::cross_entropy)
    }

    /// How many training samples [`prepare`](Self::prepare) wants to see before the first step; none unless the model
    /// says so.
    fn prepares_from(&self) -> usize {
        0
    }

    /// Sets the [fixed variables](Store::fixed) of a network that was built on `store` from the first training samples,
    /// f32 `[n, height, width, channels]`, not augmented. What it sets depends on the samples alone, so that it is the
    /// same on all ranks. Nothing unless the model has such variables.
    ///
    /// # Errors
    /// Samples that do not fit the network, or that nothing follows from.
    fn prepare(&self, _store: &Store, _samples: &Tensor) -> Result<()> {
        Ok(())
    }
}
