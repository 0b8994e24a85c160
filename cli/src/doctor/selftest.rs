//! The self-test: every operation and every model on a device, updates of weights, and one compressed training step.

use super::check::{Check, Summary};
use super::step;
use anyhow::{Context, Error, Result};
use gradwire::machine;
use gradwire::recipe::Device;
use gradwire_models::Config;
use gradwire_models::golden::Golden;
use gradwire_models::gpu;
use gradwire_models::kernels::{active, with};
use gradwire_models::operations::TRIALS;
use gradwire_models::updates;
use std::iter::once;

/// The numbers of the GPUs that `device` means, `None` for the CPU.
///
/// # Errors
/// How to build a program that can compute there, or how many GPUs there are.
pub(crate) fn targets(device: Device) -> Result<Vec<Option<usize>>> {
    device.validate().map_err(Error::msg)?;
    let gpus = if device == Device::Cpu { 0 } else { gpu::count()? };
    let first = device.gpu(0, gpus).map_err(Error::msg)?;
    Ok(if device == Device::Local { (0..gpus).map(Some).collect() } else { vec![first] })
}

/// Makes every check on each of `targets`, and of `device` the training step, and hands each outcome to `tell` as it
/// comes. On the CPU the operations run on the calling thread's kernels, and on these in bf16 as far as they have it.
///
/// # Errors
/// When a device cannot be opened, or `tell` fails; a check that fails is told.
pub(crate) fn run(
    device: Device,
    targets: &[Option<usize>],
    mut tell: impl FnMut(&Check) -> Result<()>,
) -> Result<Summary> {
    let mut summary = Summary::default();
    let mut told = |check: &Check| {
        summary.add(check);
        tell(check)
    };
    for target in targets {
        let here = gpu::device(*target)?;
        let name = target.map_or_else(|| "cpu".into(), |number| format!("cuda:{number}"));
        let own = active()?;
        let bf16 = own.in_bf16().filter(|_| here.is_cpu());
        let bf16 = bf16.map(|kernels| (kernels, format!(" on {kernels}")));
        for (kernels, which) in once((own, String::new())).chain(bf16) {
            for trial in TRIALS {
                let work = || with(kernels, || trial.compare(&here)).map_err(Error::new);
                told(&Check::of("operation", trial.name() + &which, &name, work))?;
            }
        }
        for model in Config::all().iter().map(Config::name) {
            let work = || {
                let golden = Golden::text(model).and_then(Golden::parse);
                golden.and_then(|golden| golden.compare(&here)).context("comparing with PyTorch")
            };
            told(&Check::of("model", model, &name, work))?;
        }
        let work = || Ok(updates::compare(&here)?);
        told(&Check::of("update", "sgd, adamw, averages", &name, work))?;
    }
    // Two workers, as many threads as cores for both.
    let threads = (machine::cores() / 2).max(1);
    let work = || step::compare(device, threads);
    told(&Check::of("step", step::NAME, &device.to_string(), work))?;
    Ok(summary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_is_one_target_and_what_is_not_there_is_none() {
        assert_eq!(targets(Device::Cpu).unwrap(), [None]);
        if !gpu::BUILT {
            for device in [Device::Cuda(0), Device::Local] {
                let refused = targets(device).unwrap_err().to_string();
                assert!(refused.contains("--features cuda"), "{refused}");
            }
        }
    }

    /// From a stored value that is off by a thousandth to a self-test that is not passed.
    #[test]
    fn a_spoilt_stored_value_fails_the_self_test() {
        let right = Golden::text("fasttext").unwrap();
        let golden: serde_json::Value = serde_json::from_str(right).unwrap();
        let (loss, off) = (golden["loss"].to_string(), golden["loss"].as_f64().unwrap() * 1.001);
        let wrong = right.replacen(&loss, &off.to_string(), 1);
        assert_ne!(right, wrong);
        let passed = |text: &str| {
            let work = || Ok(Golden::parse(text)?.compare(&gpu::device(None)?)?);
            let check = Check::of("model", "fasttext", "cpu", work);
            let mut summary = Summary::default();
            summary.add(&check);
            (summary.ok(), check.worst)
        };
        assert!(passed(right).0);
        assert_eq!(passed(&wrong), (false, Some("loss".into())));
    }

    /// A test that is told nothing more ends there, with the reason.
    #[test]
    fn a_reader_that_has_gone_ends_it() {
        let ended = run(Device::Cpu, &[None], |check| Err(Error::msg(check.name.clone())));
        assert_eq!(ended.unwrap_err().to_string(), TRIALS[0].name());
    }
}
