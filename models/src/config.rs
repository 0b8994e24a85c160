//! Which model, for which input: the part of a recipe that this crate understands.

use candle_core::{Result, bail};
use candle_nn::{ModuleT, VarBuilder};
use serde::{Deserialize, Serialize};

use crate::{resnet, text};

/// A network ready to train: `forward_t(inputs, train)` gives logits `[batch, classes]`.
///
/// Image models take `f32 [batch, height, width, channels]`, text models take
/// `u32 [batch, length]` token ids.
pub type Model = Box<dyn ModuleT + Send>;

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
}

impl Input {
    /// Image or text.
    pub fn kind(&self) -> InputKind {
        match self {
            Input::Image { .. } => InputKind::Image,
            Input::Text { .. } => InputKind::Text,
        }
    }
}

/// The two kinds of sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputKind {
    /// Pixels.
    Image,
    /// Token ids.
    Text,
}

impl std::fmt::Display for InputKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            InputKind::Image => "images",
            InputKind::Text => "texts",
        })
    }
}

/// A model and its settings; in a recipe `kind = "resnet20"` picks the variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Config {
    /// Three stages of 3 blocks (He et al. 2016, §4.2).
    Resnet20(resnet::Config),
    /// Three stages of 5 blocks (He et al. 2016, §4.2).
    Resnet32(resnet::Config),
    /// Three stages of 7 blocks (He et al. 2016, §4.2).
    Resnet44(resnet::Config),
    /// Three stages of 9 blocks (He et al. 2016, §4.2).
    Resnet56(resnet::Config),
    /// Three stages of 18 blocks (He et al. 2016, §4.2).
    Resnet110(resnet::Config),
    /// Four stages of 2 blocks with a 3×3 stem.
    Resnet18(resnet::Config),
    /// Four stages of 3, 4, 6 and 3 blocks with a 3×3 stem.
    Resnet34(resnet::Config),
    /// Mean of embeddings, one linear layer (Joulin et al. 2017).
    Fasttext(text::fasttext::Config),
    /// Convolutions over words, maximum over time (Kim 2014).
    Textcnn(text::textcnn::Config),
    /// A bidirectional LSTM, mean over time.
    Bilstm(text::bilstm::Config),
}

impl Config {
    /// Every model: its name in recipes and one line on what it is.
    pub const fn all() -> &'static [(&'static str, &'static str)] {
        &[
            (
                "resnet20",
                "0.27 M parameters, images; He et al. 2016, section 4.2, option A shortcuts",
            ),
            ("resnet32", "0.46 M parameters, images; as resnet20, 5 blocks per stage"),
            ("resnet44", "0.66 M parameters, images; as resnet20, 7 blocks per stage"),
            ("resnet56", "0.85 M parameters, images; as resnet20, 9 blocks per stage"),
            ("resnet110", "1.7 M parameters, images; as resnet20, 18 blocks per stage"),
            ("resnet18", "11 M parameters, images; He et al. 2016 with a 3x3 stem and no max-pool"),
            ("resnet34", "21 M parameters, images; as resnet18, 3-4-6-3 blocks"),
            ("fasttext", "texts; mean of word embeddings and one linear layer; Joulin et al. 2017"),
        ]
    }

    /// The name in recipes, e.g. `resnet20`.
    pub fn name(&self) -> &'static str {
        match self {
            Config::Resnet20(_) => "resnet20",
            Config::Resnet32(_) => "resnet32",
            Config::Resnet44(_) => "resnet44",
            Config::Resnet56(_) => "resnet56",
            Config::Resnet110(_) => "resnet110",
            Config::Resnet18(_) => "resnet18",
            Config::Resnet34(_) => "resnet34",
            Config::Fasttext(_) => "fasttext",
            Config::Textcnn(_) => "textcnn",
            Config::Bilstm(_) => "bilstm",
        }
    }

    /// What the model reads.
    pub fn input_kind(&self) -> InputKind {
        match self {
            Config::Resnet20(_)
            | Config::Resnet32(_)
            | Config::Resnet44(_)
            | Config::Resnet56(_)
            | Config::Resnet110(_)
            | Config::Resnet18(_)
            | Config::Resnet34(_) => InputKind::Image,
            Config::Fasttext(_) | Config::Textcnn(_) | Config::Bilstm(_) => InputKind::Text,
        }
    }

    /// Builds the network for `input` and `classes` output classes, taking its variables from
    /// `vb` (usually [`Store::var_builder`](crate::Store::var_builder)).
    ///
    /// Fails when the model cannot read such an input, when a setting is out of range, or when
    /// `vb` cannot give a variable of the name and shape asked for.
    ///
    /// ```
    /// use gradwire_models::{Config, Input, Store, resnet};
    /// let store = Store::new(0, &candle_core::Device::Cpu);
    /// let words = Input::Text { vocabulary: 100, length: 16 };
    /// let refused = Config::Resnet20(resnet::Config {}).build(&words, 4, store.var_builder());
    /// assert!(refused.is_err());
    /// ```
    #[expect(clippy::needless_pass_by_value, reason = "candle's builders are handed over by value")]
    pub fn build(&self, input: &Input, classes: usize, vb: VarBuilder) -> Result<Model> {
        if classes < 2 {
            bail!("{}: a classifier needs at least 2 classes, got {classes}", self.name());
        }
        if input.kind() != self.input_kind() {
            bail!(
                "{} reads {}, but the data set holds {}; choose a model for {}",
                self.name(),
                self.input_kind(),
                input.kind(),
                input.kind(),
            );
        }
        match (self, *input) {
            (Config::Resnet20(_), Input::Image { channels, .. }) => {
                resnet::cifar(3, channels, classes, &vb)
            }
            (Config::Resnet32(_), Input::Image { channels, .. }) => {
                resnet::cifar(5, channels, classes, &vb)
            }
            (Config::Resnet44(_), Input::Image { channels, .. }) => {
                resnet::cifar(7, channels, classes, &vb)
            }
            (Config::Resnet56(_), Input::Image { channels, .. }) => {
                resnet::cifar(9, channels, classes, &vb)
            }
            (Config::Resnet110(_), Input::Image { channels, .. }) => {
                resnet::cifar(18, channels, classes, &vb)
            }
            (Config::Resnet18(_), Input::Image { channels, .. }) => {
                resnet::wide([2, 2, 2, 2], channels, classes, &vb)
            }
            (Config::Resnet34(_), Input::Image { channels, .. }) => {
                resnet::wide([3, 4, 6, 3], channels, classes, &vb)
            }
            (Config::Fasttext(config), Input::Text { vocabulary, .. }) => {
                config.build(vocabulary, classes, &vb)
            }
            (Config::Textcnn(config), Input::Text { vocabulary, length }) => {
                config.build(vocabulary, length, classes, &vb)
            }
            (Config::Bilstm(config), Input::Text { vocabulary, .. }) => {
                config.build(vocabulary, classes, &vb)
            }
            _ => bail!("{} cannot read {}", self.name(), input.kind()),
        }
    }
}
