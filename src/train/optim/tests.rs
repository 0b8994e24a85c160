use super::*;
use crate::checkpoint::{Checkpoint, Manifest, Tensors};
use crate::recipe::optimizer::{Adamw, Config, Sgd};
use candle_core::Device;
use gradwire_models::kernels::optimizer::{AdamWStep, adamw, sgd};
use gradwire_models::{Input, Store, text};

/// A new optimizer is a file and a line: `lion` is the file, and this list has the line.
mod lion;

gradwire_registry::registry! {
    /// The optimizers, and one more.
    enum WithOwn: Definition {
        Sgd(Sgd),
        Lion(lion::Lion),
        Adamw(Adamw),
    }
}

const TABLE: Option<&str> = Some("embedding.weight");

/// fastText with a table of 70 rows.
fn fasttext() -> Store {
    let store = Store::new(5, &Device::Cpu);
    let input = Input::Text { vocabulary: 70, length: 4 };
    let model = gradwire_models::Config::Fasttext(text::fasttext::Config::default());
    model.build(&input, 3, store.var_builder()).unwrap();
    store
}

fn elements(param: &Param) -> Vec<f32> {
    param.update(|v| v.to_vec()).unwrap()
}

fn everywhere(params: &Params) -> Support {
    let mut support = Support::nothing(params.len());
    support.fill();
    support
}

#[test]
fn piece_by_piece_is_the_same_update_and_tells_the_norm() {
    let configs = [
        Config::default(),
        Config::Sgd(Sgd { momentum: 0.0, ..Sgd::default() }),
        Config::Adamw(Adamw::default()),
    ];
    for (config, table) in configs.into_iter().flat_map(|c| [None, TABLE].map(|t| (c.clone(), t))) {
        let params = Params::new(&fasttext());
        let flat: Vec<f32> = (0..params.len()).map(|i| (i as f32 * 0.3).sin()).collect();
        let before: Vec<Vec<f32>> = params.iter().map(elements).collect();
        let mut optimizer = Optimizer::new(config.definition(), &params, table);
        let found = optimizer.step(&params, &mut flat.clone(), &everywhere(&params), 0.1).unwrap();
        assert!((found / norm(&flat) - 1.0).abs() < 1e-6);
        for (param, mut weights) in params.iter().zip(before) {
            let grad = &flat[param.range.clone()];
            let (mut first, mut second) = (vec![0.0; grad.len()], vec![0.0; grad.len()]);
            match &config {
                Config::Sgd(c) => {
                    let step = SgdStep {
                        lr: 0.1,
                        momentum: c.momentum,
                        nesterov: c.nesterov,
                        weight_decay: c.weight_decay,
                        first: true,
                    };
                    sgd(&mut weights, grad, &mut first, &step);
                }
                Config::Adamw(c) => {
                    let step = AdamWStep {
                        lr: 0.1,
                        beta1: c.beta1,
                        beta2: c.beta2,
                        eps: c.epsilon,
                        weight_decay: c.weight_decay,
                        step: 1,
                    };
                    adamw(&mut weights, grad, &mut first, &mut second, &step);
                }
            }
            assert_eq!(weights, elements(param), "{}", param.name);
        }
    }
}

/// Some steps of an optimizer; in the middle the state moves to another one through a checkpoint.
fn train(definition: &dyn Definition, moves: bool) -> (Vec<f32>, Vec<Vec<f32>>) {
    let params = Params::new(&fasttext());
    let mut optimizer = Optimizer::new(definition, &params, TABLE);
    for step in 1..=6u32 {
        let mut flat: Vec<f32> =
            (0..params.len() as u32).map(|i| ((i * step) as f32 * 0.3).sin()).collect();
        optimizer.step(&params, &mut flat, &everywhere(&params), 0.01).unwrap();
        if moves && step == 3 {
            let waiting = optimizer.waiting(&params).unwrap();
            let checkpoint = saved(&optimizer);
            optimizer = Optimizer::new(definition, &params, TABLE);
            let vectors = checkpoint.optimizer_vectors(optimizer.names(), params.len()).unwrap();
            optimizer.set(&vectors, checkpoint.manifest.updates);
            if let Some(waiting) = waiting {
                optimizer.resume(&params, &waiting).unwrap();
            }
        }
    }
    optimizer.catch_up(&params, None).unwrap();
    let state = optimizer.vectors().map(|(_, values)| values.to_vec()).collect();
    (params.iter().flat_map(elements).collect(), state)
}

/// A checkpoint with the optimizer's state.
fn saved(optimizer: &Optimizer) -> Checkpoint {
    let mut tensors = Tensors::default();
    optimizer.vectors().for_each(|(name, values)| tensors.insert_flat(name, values));
    let manifest = Manifest { updates: optimizer.steps(), ..Manifest::default() };
    Checkpoint {
        folder: "here".into(),
        manifest,
        model: Tensors::default(),
        optimizer: Tensors::decode(&tensors.encode(None).unwrap()).unwrap(),
        ranks: Vec::new(),
    }
}

#[test]
fn an_optimizer_of_ones_own_is_a_file_and_a_line() {
    let names: Vec<&str> = WithOwn::all().iter().map(|o| o.definition().about().name).collect();
    assert_eq!(names, ["sgd", "lion", "adamw"]);
    let config: WithOwn = toml::from_str("kind = 'lion'\nbeta2 = 0.5").unwrap();
    assert_eq!(toml::from_str::<WithOwn>(&toml::to_string(&config).unwrap()).unwrap(), config);
    assert!(toml::from_str::<WithOwn>("kind = 'lion'\nmomentum = 0.5").is_err());
    // It has gone six steps of 0.01 up or down, whatever the gradient.
    let before = Params::new(&fasttext());
    let (weights, state) = train(config.definition(), false);
    for (was, is) in before.iter().flat_map(elements).zip(&weights) {
        let steps = (is - was) / 0.01;
        assert!((steps - steps.round()).abs() < 1e-3 && steps.abs() < 6.1, "{was} {is}");
    }
    assert!(state.len() == 1 && state[0].len() == weights.len());
}

#[test]
fn every_optimizers_state_goes_through_a_checkpoint_by_name() {
    for config in WithOwn::all() {
        let name = config.definition().about().name;
        let (weights, state) = train(config.definition(), false);
        assert!(state.iter().all(|vector| vector.iter().any(|v| *v != 0.0)), "{name}");
        assert_eq!(train(config.definition(), true), (weights, state), "{name}");
    }
}

#[test]
fn the_state_of_another_optimizer_is_refused() {
    let params = Params::new(&fasttext());
    let of = |config: &Config| Optimizer::new(config.definition(), &params, TABLE);
    let refusal = |from: &Config, to: &Config| {
        let checkpoint = saved(&of(from));
        let found = checkpoint.optimizer_vectors(of(to).names(), params.len());
        found.map(|_| ()).unwrap_err().to_string()
    };
    let (sgd, adamw) = (Config::default(), Config::Adamw(Adamw::default()));
    let told = refusal(&sgd, &adamw);
    assert!(told.contains("holds momentum where exp_avg, exp_avg_sq is needed"), "{told}");
    let told = refusal(&adamw, &sgd);
    assert!(told.contains("holds exp_avg, exp_avg_sq where momentum is needed"), "{told}");
    // A rule without memory takes nothing.
    let plain = Config::Sgd(Sgd { momentum: 0.0, ..Sgd::default() });
    let checkpoint = saved(&of(&adamw));
    assert!(refusal(&plain, &adamw).contains("holds no vectors"));
    assert!(checkpoint.optimizer_vectors(of(&plain).names(), params.len()).unwrap().is_empty());
}
