//! A store under real models: seeds, published parameter counts, files.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{Device, Tensor};
use gradwire_models::{Config, Input, InputKind, Model, Store};

const IMAGE: Input = Input::Image { channels: 3, height: 32, width: 32 };
const TEXT: Input = Input::Text { vocabulary: 50, length: 8 };

fn build(name: &str, store: &Store) -> (Model, Input) {
    let config = Config::from_name(name).unwrap();
    let input = match config.input_kind() {
        InputKind::Image => IMAGE,
        InputKind::Text => TEXT,
        InputKind::Sequence => Input::Sequence { vocabulary: 10, length: 8 },
    };
    (config.build(&input, 10, store.var_builder()).unwrap(), input)
}

fn bits(store: &Store) -> BTreeMap<String, Vec<u32>> {
    let all = store.trainable().into_iter().chain(store.buffers()).chain(store.fixed());
    all.map(|(name, var)| (name, floats(&var).into_iter().map(f32::to_bits).collect())).collect()
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

#[test]
fn parameter_counts_are_the_published_ones() {
    let published = [
        // Counted by hand: the paper has none of this depth.
        ("resnet8", 75_290),
        ("resnet20", 269_722),
        ("resnet32", 464_154),
        ("resnet44", 658_586),
        ("resnet56", 853_018),
        ("resnet110", 1_727_962),
        ("resnet18", 11_173_962),
        ("resnet34", 21_282_122),
        ("vgg16", 14_728_266),
        // Without the 288 weights of the whitening, which are fixed.
        ("airbench", 568_728),
    ];
    for (name, count) in published {
        let store = Store::new(0, &Device::Cpu);
        build(name, &store);
        let found: usize = store.trainable().iter().map(|(_, var)| var.elem_count()).sum();
        assert_eq!(found, count, "{name}");
    }
}

#[test]
fn one_seed_gives_one_model_and_another_seed_another() {
    for name in ["resnet20", "fasttext", "textcnn", "bilstm", "transformer"] {
        let stores = [7, 7, 8].map(|seed| {
            let store = Store::new(seed, &Device::Cpu);
            build(name, &store);
            bits(&store)
        });
        assert!(stores[0] == stores[1], "{name}");
        for (parameter, values) in &stores[0] {
            let constant = values.iter().all(|v| *v == values[0]);
            assert_eq!(stores[2][parameter] == *values, constant, "{name}: {parameter}");
        }
    }
}

#[test]
fn a_saved_store_loads_into_another_and_gives_the_same_logits() {
    let scratch = tempfile::tempdir().unwrap();
    for name in ["resnet20", "airbench", "bilstm", "transformer"] {
        let path = scratch.path().join(format!("{name}.safetensors"));
        let (first, second) = (Store::new(1, &Device::Cpu), Store::new(2, &Device::Cpu));
        let (model, input) = build(name, &first);
        let inputs = match input {
            Input::Image { channels, height, width } => {
                Tensor::randn(0f32, 1., (4, height, width, channels), &Device::Cpu).unwrap()
            }
            Input::Text { .. } | Input::Sequence { .. } => {
                Tensor::new(&[[3u32, 4, 5, 6, 7, 8], [49, 2, 0, 0, 0, 0]], &Device::Cpu).unwrap()
            }
        };
        model.forward_t(&inputs, true).unwrap();
        std::fs::write(&path, first.to_safetensors().unwrap()).unwrap();
        let (loaded, _) = build(name, &second);
        second.load(&path).unwrap();
        assert!(bits(&first) == bits(&second), "{name}");
        let logits = |model: &Model| -> Vec<Vec<f32>> {
            model.forward_t(&inputs, false).unwrap().to_vec2().unwrap()
        };
        assert_eq!(logits(&model), logits(&loaded), "{name}");
    }
}

#[test]
fn files_that_do_not_fit_are_refused_by_name() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("model.safetensors");
    let store = Store::new(1, &Device::Cpu);
    build("resnet20", &store);
    let message = |path: &Path| store.load(path).unwrap_err().to_string();

    assert!(message(&path).contains("model.safetensors"), "{}", message(&path));

    let other = Store::new(1, &Device::Cpu);
    build("resnet32", &other);
    std::fs::write(&path, other.to_safetensors().unwrap()).unwrap();
    let misfit = message(&path);
    assert!(misfit.contains("layer1.3.bn1.bias is not in the model"), "{misfit}");

    let whole = std::fs::read(&path).unwrap();
    for cut in [0, 7, 100, whole.len() - 1] {
        std::fs::write(&path, &whole[..cut]).unwrap();
        assert!(message(&path).contains("cannot read"), "{cut}: {}", message(&path));
    }

    let mut hostile = whole;
    hostile[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    std::fs::write(&path, &hostile).unwrap();
    assert!(message(&path).contains("cannot read"));
}
