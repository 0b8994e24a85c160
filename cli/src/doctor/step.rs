//! One compressed training step of two workers on a device, against the same step in candle's composed operations on the
//! CPU.

use anyhow::{Context, Result, ensure};
use gradwire::cluster::Job;
use gradwire::recipe::{Device, Recipe, Source, schedule};
use gradwire::train::replica::Replica;
use gradwire::train::report::Report;
use gradwire::train::session::Session;
use gradwire::train::workers::run_workers;
use gradwire_exchange::Entry;
use gradwire_models::compare::{Comparison, distance, norm};
use gradwire_models::kernels::Kernels;
use gradwire_study::bench::training::random;
use std::sync::Arc;
use toml::Value;

/// The largest error of the loss that passes, relative to it.
const LOSS: f64 = 1e-4;

/// The largest error of the weights that passes, relative to how far the step moves them. It is that of the gradient:
/// what PowerSGD sends follows the gradient without jumps, where a scheme that selects elements would send others
/// when rounding changes which of two is larger. Its orthogonal factors enlarge rounding a thousandfold where a gradient
/// has hardly any second direction.
const WEIGHTS: f64 = 1e-2;

/// What takes the step.
pub(super) const NAME: &str = "two workers, resnet20, powersgd";

/// What the step left.
struct Taken {
    /// Of each rank.
    losses: Vec<f64>,
    /// What each rank put on the wire.
    bytes: Vec<u64>,
    /// The weights afterwards, in name order.
    weights: Vec<f32>,
}

/// Compares the step on `device`, on the CPU with the calling thread's kernels.
///
/// # Errors
/// When a worker fails on either side.
pub(super) fn compare(device: Device, threads: usize) -> Result<Vec<Comparison>> {
    let (here, composed) = (recipe(device)?, recipe(Device::Cpu)?);
    let before = weights_before(&composed)?;
    let right = take(&composed, threads, Some(Kernels::Candle))?;
    let found = take(&here, threads, None)?;
    Ok(differences(&found, &right, &before))
}

/// A small ResNet, two workers, four images each.
fn recipe(device: Device) -> Result<Recipe> {
    let text = |path, value: &str| (path, Value::String(value.into()));
    let flags = vec![
        text("model", "resnet20"),
        text("dataset", "synthetic-cifar10"),
        text("scheme", "powersgd"),
        ("workers", Value::Integer(2)),
        ("train.batch", Value::Integer(4)),
        ("seed", Value::Integer(1)),
    ];
    let mut recipe = Source { flags, ..Source::default() }.load()?;
    recipe.device = device;
    recipe.schedule = schedule::Config::Constant(schedule::Constant::default());
    recipe.train.epochs = 1;
    recipe.train.max_steps = Some(1);
    // The ranks' weights are compared bit for bit, and handed in at the end.
    recipe.exchange.compare_replicas_every = 1;
    recipe.checkpoint.keep_last = 1;
    recipe.record.histograms_every = 0;
    Ok(recipe)
}

/// The weights that every rank begins with, in name order.
fn weights_before(recipe: &Recipe) -> Result<Vec<f32>> {
    let data = random(recipe, recipe.workers * recipe.local_batch(), None);
    let replica = Replica::new(recipe, &*data.train, 0)?;
    let mut weights = Vec::new();
    for param in replica.params.iter() {
        param.update(|values| weights.extend_from_slice(values))?;
    }
    Ok(weights)
}

/// Takes the step, on the CPU with these kernels or the calling thread's.
fn take(recipe: &Recipe, threads: usize, kernels: Option<Kernels>) -> Result<Taken> {
    let data = random(recipe, recipe.workers * recipe.local_batch(), None);
    let mut session = Session::new(recipe.clone(), data)?;
    session.kernels = kernels.unwrap_or(session.kernels);
    let (mut steps, mut weights) = (Vec::new(), None);
    run_workers(&Job::alone(), &Arc::new(session), threads, None, |report| {
        match report {
            Report::Step(step) => steps.push(step),
            Report::Part(part) => {
                weights = part.shared.map(|shared| shared.weights).or(weights.take());
            }
            Report::Histograms(_) | Report::Epoch(_) | Report::Warning(..) => {}
        }
        Ok(())
    })?;
    steps.sort_by_key(|step| step.rank);
    ensure!(
        steps.len() == recipe.workers,
        "{} of {} workers took a step",
        steps.len(),
        recipe.workers
    );
    let tensors = weights.context("invariant: rank 0 hands in the weights at the end")?.0;
    let values = tensors.into_values().filter_map(|tensor| match tensor.values {
        Entry::F32(values) => Some(values),
        Entry::Bytes(_) | Entry::U64(_) => None,
    });
    Ok(Taken {
        losses: steps.iter().map(|step| step.score.mean_loss()).collect(),
        bytes: steps.iter().map(|step| step.traffic.wire_bytes).collect(),
        weights: values.flatten().collect(),
    })
}

/// The losses, weights and bytes of two steps that began with the same weights.
fn differences(found: &Taken, right: &Taken, before: &[f32]) -> Vec<Comparison> {
    let losses =
        found.losses.iter().zip(&right.losses).map(|(found, right)| (found / right - 1.0).abs());
    let loss = losses.fold(0.0, |a, b| if b > a || b.is_nan() { b } else { a });
    let moved: Vec<f32> =
        right.weights.iter().zip(before).map(|(after, before)| after - before).collect();
    // The distance is relative to what the step has done, not to what was there before.
    let off = distance(&found.weights, &right.weights, 0.0) * norm(&right.weights) / norm(&moved);
    let bytes: u64 = found.bytes.iter().zip(&right.bytes).map(|(a, b)| a.abs_diff(*b)).sum();
    vec![
        Comparison::new("loss", loss, LOSS),
        Comparison::new("weights", off, WEIGHTS),
        Comparison::new("bytes on the wire", bytes as f64, 0.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use gradwire_models::kernels::with;

    #[test]
    fn the_step_is_the_same_on_all_kernels_and_moves_the_weights() {
        for kernels in Kernels::available() {
            let compared = with(kernels, || compare(Device::Cpu, 1)).unwrap();
            println!("{kernels}: {compared:?}");
            assert!(compared.iter().all(Comparison::holds), "{kernels}: {compared:?}");
        }
    }

    #[test]
    fn what_differs_is_found() {
        let right = || Taken {
            losses: vec![2.0, 3.0],
            bytes: vec![100, 90],
            weights: vec![1.0, -1.0, 0.5],
        };
        let before = [1.1, -1.0, 0.5];
        let wrong = |spoil: fn(&mut Taken)| {
            let mut found = right();
            spoil(&mut found);
            let compared = differences(&found, &right(), &before);
            let wrong = compared.into_iter().filter(|one| !one.holds());
            wrong.map(|one| one.what).collect::<Vec<_>>()
        };
        assert_eq!(wrong(|_| {}), Vec::<String>::new());
        assert_eq!(wrong(|found| found.losses[1] = 3.001), ["loss"]);
        assert_eq!(wrong(|found| found.losses[0] = f64::NAN), ["loss"]);
        // A thousandth of the weight is a fiftieth of the step.
        assert_eq!(wrong(|found| found.weights[0] = 1.001), ["weights"]);
        assert_eq!(wrong(|found| found.weights.truncate(2)), ["weights"]);
        assert_eq!(wrong(|found| found.bytes[1] = 91), ["bytes on the wire"]);
    }
}
