//! Which model, for which input: the part of a recipe that this crate understands.

use candle_core::{Result, bail};
use candle_nn::{ModuleT, VarBuilder};
use serde::{Deserialize, Serialize};

use crate::{resnet, text, vgg};

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
    /// VGG-16 with batch norm and one linear layer, for images of 32×32 pixels and more.
    Vgg16(vgg::Config),
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
            (
                "vgg16",
                "15 M parameters, images of 32x32 and more; Simonyan and Zisserman 2015 with batch norm and one linear layer",
            ),
            ("fasttext", "texts; mean of word embeddings and one linear layer; Joulin et al. 2017"),
            ("textcnn", "texts; convolutions over 3, 4 and 5 words, maximum over time; Kim 2014"),
            (
                "bilstm",
                "texts; bidirectional LSTM, mean over time; Hochreiter and Schmidhuber 1997",
            ),
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
            Config::Vgg16(_) => "vgg16",
            Config::Fasttext(_) => "fasttext",
            Config::Textcnn(_) => "textcnn",
            Config::Bilstm(_) => "bilstm",
        }
    }

    /// The name of the parameter, `[vocabulary, dim]`, of which a forward pass reads no rows but those
    /// of its inputs' token ids.
    pub fn table(&self) -> Option<&'static str> {
        match self.input_kind() {
            InputKind::Image => None,
            InputKind::Text => Some(text::TABLE),
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
            | Config::Resnet34(_)
            | Config::Vgg16(_) => InputKind::Image,
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
        match *input {
            Input::Image { channels, height, width } if channels * height * width == 0 => {
                bail!("{}: images of {channels} channels, {height}x{width}, are empty", self.name())
            }
            Input::Text { vocabulary, length } if vocabulary < 2 || length == 0 => bail!(
                "{}: texts need a vocabulary of at least 2 (padding and a word) and a length of at least 1, got {vocabulary} and {length}",
                self.name()
            ),
            _ => {}
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
            (Config::Vgg16(config), Input::Image { channels, height, width }) => {
                config.build([channels, height, width], classes, &vb)
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

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use serde_json::json;

    use super::*;
    use crate::Store;

    const IMAGE: Input = Input::Image { channels: 3, height: 8, width: 8 };
    const TEXT: Input = Input::Text { vocabulary: 20, length: 6 };

    fn parse(value: serde_json::Value) -> serde_json::Result<Config> {
        serde_json::from_value(value)
    }

    fn refusal(config: &Config, input: &Input, classes: usize) -> String {
        let store = Store::new(0, &Device::Cpu);
        match config.build(input, classes, store.var_builder()) {
            Ok(_) => panic!("{config:?} was built on {input:?}"),
            Err(e) => e.to_string(),
        }
    }

    #[test]
    fn every_listed_name_parses_to_the_model_of_that_name() {
        for (name, description) in Config::all() {
            let config = parse(json!({"kind": name})).unwrap();
            assert_eq!(config.name(), *name);
            let reads = config.input_kind().to_string();
            assert!(description.contains(&reads), "{name}: {description}");
            assert_eq!(serde_json::to_value(&config).unwrap()["kind"], *name);
        }
    }

    #[test]
    fn an_unknown_name_or_key_is_refused() {
        assert!(parse(json!({"kind": "resnet21"})).is_err());
        assert!(parse(json!({"kind": "resnet20", "depth": 3})).is_err());
        assert!(parse(json!({"kind": "bilstm", "width": 3})).is_err());
        assert!(parse(json!({"kind": "textcnn", "dim": -1})).is_err());
    }

    #[test]
    fn the_wrong_kind_of_input_names_both_kinds() {
        for (name, _) in Config::all() {
            let config = parse(json!({"kind": name})).unwrap();
            let other = if config.input_kind() == InputKind::Image { TEXT } else { IMAGE };
            let message = refusal(&config, &other, 4);
            assert!(message.contains(name), "{message}");
            assert!(message.contains("images") && message.contains("texts"), "{message}");
        }
    }

    #[test]
    fn settings_that_make_no_network_are_refused() {
        let texts = [
            json!({"kind": "fasttext", "dim": 0}),
            json!({"kind": "textcnn", "dim": 0}),
            json!({"kind": "textcnn", "filters": 0}),
            json!({"kind": "textcnn", "widths": []}),
            json!({"kind": "textcnn", "widths": [3, 0]}),
            json!({"kind": "textcnn", "widths": [3, 7]}),
            json!({"kind": "bilstm", "dim": 0}),
            json!({"kind": "bilstm", "hidden": 0}),
        ];
        for value in texts {
            let message = refusal(&parse(value.clone()).unwrap(), &TEXT, 4);
            assert!(message.contains(value["kind"].as_str().unwrap()), "{message}");
        }
        let vgg = parse(json!({"kind": "vgg16"})).unwrap();
        assert!(refusal(&vgg, &IMAGE, 10).contains("32x32"));
        let resnet = parse(json!({"kind": "resnet20"})).unwrap();
        assert!(refusal(&resnet, &IMAGE, 1).contains("2 classes"));
        let empty = Input::Image { channels: 0, height: 8, width: 8 };
        assert!(refusal(&resnet, &empty, 10).contains("channels"));
        let empty = Input::Text { vocabulary: 1, length: 6 };
        let fasttext = parse(json!({"kind": "fasttext"})).unwrap();
        assert!(refusal(&fasttext, &empty, 4).contains("vocabulary"));
    }
}
