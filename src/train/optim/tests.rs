use super::*;
use crate::checkpoint::Tensors;
use crate::recipe::optimizer::{Adamw, Config, Muon, OnebitAdam, Sgd};
use candle_core::Device;
use gradwire_models::kernels::optimizer::{AdamWStep, adamw, sgd};
use gradwire_models::{Input, Store, text};

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
        Config::Muon(Muon { adamw: Vec::new(), ..Muon::default() }),
        Config::OnebitAdam(OnebitAdam::default()),
    ];
    for (config, table) in configs.into_iter().flat_map(|c| [None, TABLE].map(|t| (c.clone(), t))) {
        let params = Params::new(&fasttext());
        let flat: Vec<f32> = (0..params.len()).map(|i| (i as f32 * 0.3).sin()).collect();
        let before: Vec<Vec<f32>> = params.iter().map(elements).collect();
        let mut optimizer = Optimizer::new(config.definition(), 0.0, &params, table).unwrap();
        let found =
            optimizer.step(&params, &mut flat.clone(), &everywhere(&params), 0.1, None).unwrap();
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
                other => {
                    let (name, shape) = (param.name.as_str(), param.var.dims());
                    let now = Now { rate: 0.1, step: 1, name, shape, is_norm_bias: false };
                    let mut state = [first, second];
                    let state = Slices::new(&mut state, 0..grad.len());
                    let rule = other.definition().rule(0.0);
                    rule.update(Piece { weights: &mut weights, gradient: grad, state }, &now);
                }
            }
            assert_eq!(weights, elements(param), "{}", param.name);
        }
    }
}

/// Some steps of an optimizer; in the middle the state moves to another one through a checkpoint.
fn train(definition: &dyn Definition, moves: bool) -> (Vec<f32>, Vec<Vec<f32>>) {
    let params = Params::new(&fasttext());
    let mut optimizer = Optimizer::new(definition, 0.0, &params, TABLE).unwrap();
    for step in 1..=6u32 {
        let mut flat: Vec<f32> =
            (0..params.len() as u32).map(|i| ((i * step) as f32 * 0.3).sin()).collect();
        optimizer.step(&params, &mut flat, &everywhere(&params), 0.01, None).unwrap();
        if moves && step == 3 {
            let waiting = optimizer.waiting(&params).unwrap();
            let (checkpoint, updates) = (saved(&optimizer), optimizer.steps());
            optimizer = Optimizer::new(definition, 0.0, &params, TABLE).unwrap();
            let vectors = checkpoint.vectors("", optimizer.names(), params.len()).unwrap();
            optimizer.set(&vectors, updates).unwrap();
            if let Some(waiting) = waiting {
                optimizer.resume(&params, &waiting).unwrap();
            }
        }
    }
    optimizer.catch_up(&params, None).unwrap();
    let state =
        optimizer.vectors().unwrap().into_iter().map(|(_, values)| values.to_vec()).collect();
    (params.iter().flat_map(elements).collect(), state)
}

/// Weights that are changed between steps, as Lookahead changes them, are what the next step begins with, of
/// rows that waited too.
#[test]
fn rows_that_have_settled_may_be_changed() {
    let train = |table| {
        let params = Params::new(&fasttext());
        let sgd = Config::Sgd(Sgd { momentum: 0.9, ..Sgd::default() });
        let mut optimizer = Optimizer::new(sgd.definition(), 0.0, &params, table).unwrap();
        let embedding = params.iter().find(|param| Some(param.name.as_str()) == TABLE).unwrap();
        for step in 1..=9 {
            let mut flat = vec![0.0; params.len()];
            // Of the table one row in a step, and each row at most once.
            flat[embedding.range.clone()]
                .chunks_mut(embedding.var.dims()[1])
                .nth(step)
                .unwrap()
                .fill(0.5);
            optimizer.step(&params, &mut flat, &everywhere(&params), 0.1, None).unwrap();
            if step % 3 == 0 {
                optimizer.settle(&params).unwrap();
                params.update(|_, weights| weights.iter_mut().for_each(|w| *w *= 0.5)).unwrap();
            }
            // Reading leaves no trace.
            optimizer.catch_up(&params, Some(&[1, 2])).unwrap();
        }
        optimizer.catch_up(&params, None).unwrap();
        params.iter().flat_map(elements).collect::<Vec<f32>>()
    };
    for (waited, updated) in train(TABLE).into_iter().zip(train(None)) {
        assert!((waited - updated).abs() < 1e-5, "{waited} {updated}");
    }
}

/// The optimizer's state from the file of a checkpoint.
fn saved(optimizer: &Optimizer) -> Tensors {
    let mut tensors = Tensors::default();
    optimizer
        .vectors()
        .unwrap()
        .iter()
        .for_each(|(name, values)| tensors.insert_flat(name, values));
    Tensors::decode(&tensors.encode(None).unwrap()).unwrap()
}

#[test]
fn every_optimizers_state_goes_through_a_checkpoint_by_name() {
    for config in Config::all() {
        let name = config.definition().about().name;
        let (weights, state) = train(config.definition(), false);
        assert!(state.iter().all(|vector| vector.iter().any(|v| *v != 0.0)), "{name}");
        assert_eq!(train(config.definition(), true), (weights, state), "{name}");
    }
}

#[test]
fn the_state_of_another_optimizer_is_refused() {
    let params = Params::new(&fasttext());
    let of = |config: &Config| Optimizer::new(config.definition(), 0.0, &params, TABLE).unwrap();
    let refusal = |from: &Config, to: &Config| {
        let checkpoint = saved(&of(from));
        let found = checkpoint.vectors("", of(to).names(), params.len());
        found.map(|_| ()).unwrap_err().to_string()
    };
    let (sgd, adamw) = (Config::default(), Config::Adamw(Adamw::default()));
    let refused = refusal(&sgd, &adamw);
    assert!(refused.contains("holds momentum where exp_avg, exp_avg_sq is needed"), "{refused}");
    let refused = refusal(&adamw, &sgd);
    assert!(refused.contains("holds exp_avg, exp_avg_sq where momentum is needed"), "{refused}");
    // A rule without memory takes nothing.
    let plain = Config::Sgd(Sgd { momentum: 0.0, ..Sgd::default() });
    let checkpoint = saved(&of(&adamw));
    assert!(refusal(&plain, &adamw).contains("holds no vectors"));
    assert!(checkpoint.vectors("", of(&plain).names(), params.len()).unwrap().is_empty());
}

/// What happens on a GPU, with the twins of its kernels: the same bits as on the host, after a state that was taken up too.
#[test]
fn where_weights_lie_the_update_is_that_of_the_host() {
    let plain = Sgd { weight_decay: 0.02, norm_bias_rate: 3.0, ..Sgd::default() };
    let known = [
        Config::Sgd(Sgd { momentum: 0.0, ..plain.clone() }),
        Config::Sgd(Sgd { nesterov: true, decay_norms_and_biases: false, ..plain.clone() }),
        Config::Sgd(plain.clone()),
        Config::Adamw(Adamw::default()),
    ];
    for (config, limit) in
        known.iter().flat_map(|config| [None, Some(1e9), Some(0.5)].map(|l| (config, l)))
    {
        let (here, there) = (Params::new(&fasttext()), Params::new(&fasttext()));
        let rule = || config.definition().rule(0.0);
        let mut host = Optimizer::on(false, rule(), &here, None).unwrap();
        let mut device = Optimizer::on(true, rule(), &there, None).unwrap();
        assert!(
            host.on_device.is_none() && device.on_device.is_some() && device.vectors.is_empty()
        );
        for step in 1..=5u8 {
            let mut flat: Vec<f32> =
                (0..here.len()).map(|i| ((i + 97 * step as usize) as f32 * 0.3).sin()).collect();
            let within = if step == 3 && limit.is_none() {
                here.iter().nth(1).unwrap().range.clone()
            } else {
                0..here.len()
            };
            let norms = [(&mut device, &there), (&mut host, &here)].map(|(optimizer, params)| {
                let everywhere = everywhere(params);
                optimizer
                    .step_within(params, &mut flat, &everywhere, 0.1, limit, within.clone())
                    .unwrap()
            });
            assert!((norms[0] / norms[1] - 1.0).abs() < 1e-6, "{norms:?}");
            for (one, other) in here.iter().zip(there.iter()) {
                assert_eq!(
                    elements(one),
                    elements(other),
                    "{config:?} {limit:?} step {step}: {}",
                    one.name
                );
            }
            let state = host.vectors().unwrap();
            assert_eq!(state, device.vectors().unwrap());
            let taken: Vec<Vec<f32>> =
                state.iter().map(|(_, v)| v.iter().map(|x| x * 0.5).collect()).collect();
            let taken: Vec<&[f32]> = taken.iter().map(Vec::as_slice).collect();
            host.set(&taken, 7).unwrap();
            device.set(&taken, 7).unwrap();
            let add = |vector: &mut [f32]| {
                vector[3] += 1.0;
                Ok(())
            };
            host.change(add).unwrap();
            device.change(add).unwrap();
        }
    }
    let params = Params::new(&fasttext());
    for unknown in [
        Config::Sgd(Sgd { decoupled: true, ..plain.clone() }),
        Config::Sgd(Sgd { sign: true, momentum: 0.0, ..plain.clone() }),
        Config::Muon(Muon::default()),
        Config::OnebitAdam(OnebitAdam::default()),
    ] {
        let rule = unknown.definition().rule(0.0);
        let optimizer = Optimizer::on(true, rule, &params, None).unwrap();
        assert!(optimizer.on_device.is_none(), "{unknown:?}");
        assert_eq!(optimizer.vectors.len(), optimizer.names().len());
    }
}
