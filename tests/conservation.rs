//! What reaches the weights, in whole runs: clipping and error feedback, momentum correction and weight
//! decay.

use crate::common::{Program, entries, quick, sets, weights};
use gradwire::recipe::Recipe;
use safetensors::SafeTensors;
use std::fs;
use std::path::Path;

/// The f32 values of a file's tensors whose names `wanted` takes, end to end in order of their names:
/// the layout of the flat gradient.
fn flat(file: &Path, wanted: impl Fn(&str) -> bool) -> Vec<f64> {
    let bytes = fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors = tensors.tensors();
    tensors.retain(|(name, _)| wanted(name));
    tensors.sort_by(|(a, _), (b, _)| a.cmp(b));
    let bytes = tensors.iter().flat_map(|(_, tensor)| tensor.data().as_chunks::<4>().0);
    bytes.map(|value| f64::from(f32::from_le_bytes(*value))).collect()
}

fn norm(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum::<f64>().sqrt()
}

/// Gradients of one rank that makes every step: what became of them.
struct Account {
    /// The sum of the gradients, each clipped to what was asked for.
    computed: Vec<f64>,
    /// What of that is neither in the weights nor in the residual.
    lost: Vec<f64>,
    /// How many were longer than they were clipped to.
    clipped: usize,
}

/// A run of plain SGD with a rate of 1 under top-k with error feedback and these settings.
fn account(settings: &str, clipped_to: f64) -> Account {
    let program = Program::new();
    let plain = "workers=1 optimizer.momentum=0 schedule={kind='constant'} scheme={kind='topk',ratio=0.02} \
                 record.gradients=1 checkpoint.every_steps=1 checkpoint.keep_last=20";
    let run = program.train(&[sets(plain), sets(settings)].concat());
    let checkpoints = entries(&run.join("checkpoints"));
    let (first, last) = (&checkpoints[0], &checkpoints[checkpoints.len() - 1]);
    let step = |folder: &Path| -> u64 {
        folder.file_name().unwrap().to_str().unwrap().trim_start_matches("step-").parse().unwrap()
    };
    assert!(step(last) - step(first) > 5, "{checkpoints:?}");
    let model = |folder: &Path| flat(&folder.join("model.safetensors"), |_| true);
    let residual =
        |folder: &Path| flat(&folder.join("rank-0000.safetensors"), |n| n == "exchange/residual");
    let mut computed = vec![0.0; model(first).len()];
    let mut clipped = 0;
    for step in step(first) + 1..=step(last) {
        let file = run.join(format!("gradients/step-{step:06}.safetensors"));
        let gradient = flat(&file, |name| !name.starts_with("residual/"));
        let factor = (clipped_to / norm(&gradient)).min(1.0);
        clipped += usize::from(factor < 1.0);
        computed.iter_mut().zip(&gradient).for_each(|(sum, value)| *sum += factor * value);
    }
    let (was, is) = (model(first), model(last));
    let (kept, keeps) = (residual(first), residual(last));
    let lost = (0..computed.len())
        .map(|i| computed[i] - (was[i] - is[i]) - (keeps[i] - kept[i]))
        .collect();
    Account { computed, lost, clipped }
}

/// Every part of every gradient is in the weights or in the residual, unless what arrives late is
/// clipped.
#[test]
fn what_is_clipped_after_the_exchange_is_lost_and_before_it_is_not() {
    const LIMIT: f64 = 0.05;
    let plain = account("", f64::INFINITY);
    assert!(norm(&plain.lost) < 1e-5 * norm(&plain.computed));
    // What the suspicion was about; refused unless it is forced.
    let after = account("train.clip_norm=0.05 policy.force=true", f64::INFINITY);
    let share = norm(&after.lost) / norm(&after.computed);
    assert!(share > 0.1, "{share}");
    // The cure: each gradient is clipped, and from there on nothing is lost.
    let before = account("policy.clip_norm=0.05", LIMIT);
    assert!(before.clipped > 3, "{} gradients were longer", before.clipped);
    assert!(norm(&before.lost) < 1e-5 * norm(&before.computed));
}

#[test]
fn clipping_what_feedback_has_delayed_is_refused_with_the_remedy() {
    let program = Program::new();
    let clip = ["--workers", "4", "--set", "train.clip_norm=0.5"];
    let parts = ["lost for ever", "policy.clip_norm = 1.0000"];
    program.refuses(&quick(&[&clip[..], &["--scheme", "topk"]].concat()), 2, &parts);
    // Without feedback a clipped mean is what was asked for, and no limit cuts nothing.
    program.succeed(&quick(&[&clip[..], &["--scheme", "dense"]].concat()));
    program.succeed(&quick(&["--scheme", "topk", "--set", "train.clip_norm=inf"]));
    let recipe = program.succeed(&quick(&["--scheme", "topk", "--dry-run"]));
    // What earlier versions recorded is still read.
    let earlier = recipe.replace("[train]", "[train]\nclip_norm = 0.5");
    assert!(Recipe::from_toml(&earlier).unwrap().may_run().is_err());
}

#[test]
fn momentum_correction_with_another_optimizer_than_sgd_is_refused() {
    let program = Program::new();
    let adamw = ["--set", "optimizer={ kind = \"adamw\", learning_rate = 0.01 }"];
    let dgc = [&adamw[..], &["--scheme", "dgc"]].concat();
    let parts = ["the default of scheme dgc", "write policy.momentum_correction = 0"];
    program.refuses(&quick(&dgc), 2, &parts);
    program.succeed(&quick(&[&dgc[..], &["--set", "policy.momentum_correction=0"]].concat()));
    let topk =
        [&adamw[..], &["--scheme", "topk", "--set", "policy.momentum_correction=0.5"]].concat();
    program.refuses(&quick(&topk), 2, &["policy.momentum_correction = 0.5 does not go with"]);
}

/// With everything sent, as in uncompressed first steps, momentum correction is SGD with momentum and
/// weight decay, to rounding. The decay is strong enough to show: a tenth of it, which is what is left
/// without its momentum, would move the weights elsewhere.
#[test]
fn correction_with_everything_sent_is_momentum_and_decay() {
    let train = |settings: &str| -> Vec<f64> {
        let program = Program::new();
        let run = program.train(&[&["--workers", "3"], &sets(settings)[..]].concat());
        let bytes = weights(&run).into_iter().flat_map(|(_, bytes)| bytes).collect::<Vec<u8>>();
        bytes.as_chunks::<4>().0.iter().map(|v| f64::from(f32::from_le_bytes(*v))).collect()
    };
    let dense = |decay: &str| {
        let momentum = "scheme=dense optimizer.momentum=0.9 optimizer.nesterov=false \
                        optimizer.decay_norms_and_biases=false";
        train(&format!("{momentum} optimizer.weight_decay={decay}"))
    };
    let (momentum, undecayed) = (dense("0.02"), dense("0"));
    let corrected = train(
        "scheme=dgc policy.warmup_steps=1000 optimizer.momentum=0 optimizer.nesterov=false \
         optimizer.weight_decay=0.02 optimizer.decay_norms_and_biases=false",
    );
    let apart = |a: &[f64], b: &[f64]| {
        norm(&a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<_>>()) / norm(a)
    };
    assert!(apart(&momentum, &corrected) < 1e-4, "{}", apart(&momentum, &corrected));
    assert!(apart(&momentum, &undecayed) > 0.05, "{}", apart(&momentum, &undecayed));
}
