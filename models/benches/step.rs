//! Training steps of the ResNets on one thread: images per second, and where the time goes.
//!
//! `cargo bench -p gradwire-models --bench step -- [resnet20|resnet18] [batch] [steps]`; the kernels are those of
//! `GRADWIRE_KERNELS`. Figures are those of the fastest step.

use std::time::{Duration, Instant};

use candle_core::{Device, Result, Tensor};
use gradwire_models::kernels::{self, profile};
use gradwire_models::{Config, Input, Store, cross_entropy, resnet};

fn main() -> Result<()> {
    let mut models = vec![];
    let mut numbers = vec![];
    for argument in std::env::args().skip(1) {
        match (argument.as_str(), argument.parse::<usize>()) {
            ("resnet20" | "resnet18", _) => models.push(argument),
            (_, Ok(number)) => numbers.push(number),
            // What cargo adds.
            _ => {}
        }
    }
    if models.is_empty() {
        models = vec!["resnet20".to_owned(), "resnet18".to_owned()];
    }
    let batch = numbers.first().copied().unwrap_or(64);
    let steps = numbers.get(1).copied().unwrap_or(8);
    let pool =
        rayon::ThreadPoolBuilder::new().num_threads(1).build().map_err(candle_core::Error::wrap)?;
    println!("kernels {}", kernels::active().map_err(candle_core::Error::wrap)?);
    for model in models {
        let config = match model.as_str() {
            "resnet18" => Config::Resnet18(resnet::Config {}),
            _ => Config::Resnet20(resnet::Config {}),
        };
        pool.install(|| run(&model, &config, batch, steps))?;
    }
    Ok(())
}

/// A step's time, its forward pass's, and what its kernels did.
type Timing = (Duration, Duration, profile::Profile);

fn run(name: &str, config: &Config, batch: usize, steps: usize) -> Result<()> {
    let device = Device::Cpu;
    let store = Store::new(1, &device);
    let input = Input::Image { channels: 3, height: 32, width: 32 };
    let model = config.build(&input, 10, store.var_builder())?;
    let images = Tensor::randn(0f32, 1., (batch, 32, 32, 3), &device)?;
    let labels: Vec<u32> = (0..batch as u32).map(|i| i % 10).collect();
    let labels = Tensor::new(labels, &device)?;

    let mut best: Option<Timing> = None;
    for _ in 0..steps {
        profile::take();
        let start = Instant::now();
        let loss = cross_entropy(&model.forward_t(&images, true)?, &labels, 0.)?;
        let forward = start.elapsed();
        let gradients = loss.backward()?;
        drop((loss, gradients));
        let step = start.elapsed();
        if best.as_ref().is_none_or(|(fastest, ..)| step < *fastest) {
            best = Some((step, forward, profile::take()));
        }
    }
    let Some((step, forward, profile)) = best else { return Ok(()) };
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    println!(
        "{name}, batch {batch}: {:.0} images/s; {:.1} ms a step, forward {:.1}, backward {:.1}",
        batch as f64 / step.as_secs_f64(),
        ms(step),
        ms(forward),
        ms(step - forward)
    );
    for (kind, spent) in profile.kinds() {
        println!("  {:28} {:8.2} ms", kind.name(), ms(spent));
    }
    let rest = profile.kinds().fold(step, |rest, (_, spent)| rest.saturating_sub(spent));
    println!("  {:28} {:8.2} ms", "all else", ms(rest));
    Ok(())
}
