//! Which model, for which input: the part of a recipe that this crate understands.
//!
//! Adding a model is a file with its settings, which implement [`Definition`], the file's `mod`
//! line, and one line in the list below.

use std::ops::Deref;

use candle_core::{Result, bail};
use candle_nn::VarBuilder;

use crate::definition::{About, Definition, Input, InputKind, Model};
use crate::store::count_trainable;
use crate::text::{bilstm, fasttext, gpt, textcnn, transformer};
use crate::{airbench, resnet, vgg};

gradwire_registry::registry! {
    /// A model and its settings; in a recipe `kind = "resnet20"` picks the variant.
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    pub enum Config: Definition {
        Resnet(resnet::Config),
        Resnet8(resnet::Resnet8),
        Resnet20(resnet::Resnet20),
        Resnet32(resnet::Resnet32),
        Resnet44(resnet::Resnet44),
        Resnet56(resnet::Resnet56),
        Resnet110(resnet::Resnet110),
        Resnet18(resnet::Resnet18),
        Resnet34(resnet::Resnet34),
        Vgg16(vgg::Config),
        Airbench(airbench::Config),
        Fasttext(fasttext::Config),
        Textcnn(textcnn::Config),
        Bilstm(bilstm::Config),
        Transformer(transformer::Config),
        Gpt(gpt::Config),
    }
}

impl Deref for Config {
    type Target = dyn Definition;

    /// The settings, and everything that follows from them.
    fn deref(&self) -> &Self::Target {
        self.definition()
    }
}

impl Config {
    /// The model of that name with its defaults.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|config| config.name() == name)
    }

    /// What the model is.
    pub fn about(&self) -> About {
        self.definition().about()
    }

    /// The name in recipes, e.g. `resnet20`.
    pub fn name(&self) -> &'static str {
        self.about().name
    }

    /// What the model reads.
    pub fn input_kind(&self) -> InputKind {
        self.reads()
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
    /// let resnet = Config::Resnet20(resnet::Resnet20::default());
    /// assert!(resnet.build(&words, 4, store.var_builder()).is_err());
    /// ```
    pub fn build(&self, input: &Input, classes: usize, vb: VarBuilder) -> Result<Model> {
        build(self.definition(), input, classes, vb)
    }

    /// The number of trainable parameters of the network that [`build`](Self::build) would make,
    /// without making it: nothing is allocated for them.
    ///
    /// # Errors
    /// As [`build`](Self::build), and when there are more than a `u64` can count.
    ///
    /// ```
    /// use gradwire_models::{Config, Input};
    /// let images = Input::Image { channels: 3, height: 32, width: 32 };
    /// let model = Config::from_name("resnet20").unwrap();
    /// assert_eq!(model.parameters(&images, 10).unwrap(), 269_722);
    /// ```
    pub fn parameters(&self, input: &Input, classes: usize) -> Result<u64> {
        parameters(self.definition(), input, classes)
    }
}

/// As [`Config::parameters`], for any model.
///
/// # Errors
/// As [`Config::parameters`].
pub fn parameters(model: &dyn Definition, input: &Input, classes: usize) -> Result<u64> {
    Ok(trainable(model, input, classes)?.into_iter().map(|(_, elements)| elements).sum())
}

/// The trainable variables that they are, in order of name, each with the number of its elements.
///
/// # Errors
/// As [`Config::parameters`].
pub fn trainable(
    model: &dyn Definition,
    input: &Input,
    classes: usize,
) -> Result<Vec<(String, u64)>> {
    count_trainable(|vb| build(model, input, classes, vb))
}

/// As [`Config::build`], for any model.
///
/// # Errors
/// As [`Config::build`].
#[expect(clippy::needless_pass_by_value, reason = "candle's builders are handed over by value")]
pub fn build(
    model: &dyn Definition,
    input: &Input,
    classes: usize,
    vb: VarBuilder,
) -> Result<Model> {
    let (name, reads) = (model.about().name, model.reads());
    if classes < 2 {
        bail!("{name}: a classifier needs at least 2 classes, got {classes}");
    }
    if input.kind() != reads {
        bail!(
            "{name} reads {reads}, but the data set holds {}; choose a model for {}",
            input.kind(),
            input.kind(),
        );
    }
    match *input {
        Input::Image { channels, height, width } if channels * height * width == 0 => {
            bail!("{name}: images of {channels} channels, {height}x{width}, are empty")
        }
        Input::Text { vocabulary, length } | Input::Sequence { vocabulary, length }
            if vocabulary < 2 || length == 0 =>
        {
            bail!(
                "{name}: {} need a vocabulary of at least 2 tokens and a length of at least 1, got {vocabulary} and {length}",
                input.kind()
            )
        }
        Input::Sequence { vocabulary, .. } if vocabulary != classes => {
            bail!("{name}: the classes are the {vocabulary} tokens, got {classes}")
        }
        _ => model.build(input, classes, &vb),
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use serde_json::json;

    use super::*;
    use crate::store::Store;

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
        for listed in Config::all() {
            let About { name, line, .. } = listed.about();
            let config = parse(json!({"kind": name})).unwrap();
            assert_eq!(config, listed);
            assert_eq!(config.name(), name);
            let reads = config.input_kind().to_string();
            assert!(line.contains(&reads), "{name}: {line}");
            assert_eq!(serde_json::to_value(&config).unwrap()["kind"], name);
        }
    }

    #[test]
    fn what_no_machine_holds_is_counted_or_refused_at_once() {
        let image = Input::Image { channels: 3, height: 32, width: 32 };
        let huge = parse(json!({"kind": "airbench", "widths": [1u64 << 30, 1, 1]})).unwrap();
        assert!(huge.parameters(&image, 10).unwrap() > 9 << 60);
        let huge = parse(json!({"kind": "resnet", "width": 1u64 << 62})).unwrap();
        assert!(huge.parameters(&image, 10).unwrap_err().to_string().contains("more elements"));
    }

    #[test]
    fn shorthands_of_resnet_are_networks_of_its_depths() {
        let parameters =
            |model: serde_json::Value| parse(model).unwrap().parameters(&IMAGE, 10).unwrap();
        for depth in [8, 20, 32, 44, 56, 110, 18, 34] {
            let shorthand = parameters(json!({"kind": format!("resnet{depth}")}));
            assert_eq!(parameters(json!({"kind": "resnet", "depth": depth})), shorthand, "{depth}");
        }
        // Convolutions of stages twice as wide have four times the weights.
        let wide = parameters(json!({"kind": "resnet", "width": 32}));
        assert!((3.9..4.0).contains(&(wide as f64 / 269_722.)), "{wide}");
    }

    #[test]
    fn an_unknown_name_or_key_is_refused() {
        assert!(parse(json!({"kind": "resnet21"})).is_err());
        assert!(parse(json!({"kind": "resnet20", "depth": 20})).is_err());
        assert!(parse(json!({"kind": "bilstm", "width": 3})).is_err());
        assert!(parse(json!({"kind": "textcnn", "dim": -1})).is_err());
    }

    #[test]
    fn the_wrong_kind_of_input_names_both_kinds() {
        for config in Config::all() {
            let name = config.name();
            let other = if config.input_kind() == InputKind::Image { TEXT } else { IMAGE };
            let message = refusal(&config, &other, 4);
            assert!(message.contains(name), "{message}");
            for kind in [config.input_kind(), other.kind()] {
                assert!(message.contains(&kind.to_string()), "{message}");
            }
        }
    }

    /// What the schema of an editor says of a setting's least value is what building refuses.
    #[cfg(feature = "schema")]
    #[test]
    fn least_values_are_those_of_the_checks() {
        let schema = schemars::SchemaGenerator::default().into_root_schema_for::<Config>();
        let mut tested = 0;
        for model in schema.as_value()["oneOf"].as_array().unwrap() {
            for (key, of) in model["properties"].as_object().unwrap() {
                let list = of["items"].is_object();
                let least = (if list { &of["items"] } else { of })["minimum"].as_u64();
                // A minimum of 0 is that of the type.
                let Some(least) = least.filter(|least| *least > 0) else { continue };
                // What else the least value of a setting asks for.
                let one_head = key == "dim" && !model["properties"]["heads"].is_null();
                let words = if key == "positions" { 1 } else { 6 };
                let length = of["minItems"].as_u64().unwrap_or(1) as usize;
                let built = |value: u64| {
                    let value = if list { json!(vec![value; length]) } else { json!(value) };
                    let mut config = json!({ "kind": model["properties"]["kind"]["const"] });
                    if one_head {
                        config["heads"] = json!(1);
                    }
                    config[key] = value;
                    let config = parse(config).unwrap();
                    let input = match config.input_kind() {
                        InputKind::Image => Input::Image { channels: 3, height: 32, width: 32 },
                        InputKind::Text => Input::Text { vocabulary: 20, length: words },
                        InputKind::Sequence => Input::Sequence { vocabulary: 4, length: words },
                    };
                    config.build(&input, 4, Store::new(0, &Device::Cpu).var_builder()).is_ok()
                };
                assert!(built(least) && !built(least - 1), "{key}: {of}");
                tested += 1;
            }
        }
        assert_eq!(tested, 16);
    }

    /// But for those that are less than the least.
    #[test]
    fn what_makes_no_network_is_refused_with_what_would() {
        let image =
            |side: usize, channels| Input::Image { channels, height: side.min(32), width: side };
        let block = Input::Sequence { vocabulary: 65, length: 64 };
        let word = Input::Text { vocabulary: 1, length: 6 };
        let positions = "raise positions to 6 or shorten the texts";
        let odd = json!({"kind": "gpt", "dim": 12, "heads": 4, "positions": "rotary"});
        for (config, input, classes, told) in [
            (json!({"kind": "textcnn", "widths": []}), TEXT, 4, "textcnn"),
            (json!({"kind": "textcnn", "widths": [3, 7]}), TEXT, 4, "textcnn"),
            (json!({"kind": "transformer", "heads": 3}), TEXT, 4, "transformer"),
            (json!({"kind": "transformer", "heads": 7}), TEXT, 4, "of 128; use 4 heads"),
            (json!({"kind": "transformer", "heads": 1u64 << 60}), TEXT, 4, "use 128 heads"),
            (json!({"kind": "transformer", "layers": 1u64 << 40}), TEXT, 4, "at most 1024"),
            (json!({"kind": "transformer", "positions": 5}), TEXT, 4, positions),
            (json!({"kind": "vgg16"}), IMAGE, 10, "32x32"),
            (json!({"kind": "airbench"}), image(24, 3), 10, "resnet18"),
            (json!({"kind": "airbench"}), image(49, 3), 10, "resnet18"),
            (json!({"kind": "airbench", "widths": [64, 0, 64]}), image(32, 3), 10, "must be"),
            (json!({"kind": "airbench", "scale": 0}), image(32, 3), 10, "must be"),
            (json!({"kind": "airbench", "scale": -1}), image(32, 3), 10, "must be"),
            (json!({"kind": "resnet", "depth": 21}), IMAGE, 10, "use 20 or 26"),
            (json!({"kind": "resnet", "depth": 0}), IMAGE, 10, "use 8 or 14"),
            (json!({"kind": "resnet", "depth": 9999}), IMAGE, 10, "use 1202 or"),
            (json!({"kind": "resnet20"}), IMAGE, 1, "2 classes"),
            (json!({"kind": "resnet20"}), image(8, 0), 10, "channels"),
            (json!({"kind": "fasttext"}), word, 4, "vocabulary"),
            (odd, block, 65, "even width"),
            (json!({"kind": "gpt", "dropout": 1.0}), block, 65, "[0, 1)"),
            (json!({"kind": "gpt", "heads": 3}), block, 65, "use 2 heads"),
        ] {
            let message = refusal(&parse(config.clone()).unwrap(), &input, classes);
            assert!(message.contains(told), "{config}: {message}");
        }
    }
}
