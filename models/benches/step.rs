//! Training steps, on one thread unless another number is given: samples per second, and where the time goes.
//!
//! `cargo bench -p gradwire-models --bench step -- [MODEL …] [BATCH] [STEPS] [THREADS]`; the kernels are those of
//! `GRADWIRE_KERNELS`. Images are CIFAR's, texts have 64 tokens out of 30,000. A step is the forward and the backward
//! pass; figures are those of the fastest. The peak is of the process, all models so far.
//!
//! Set `RAYON_NUM_THREADS=1`, as the trainer does: candle's own operations count their threads by it.

use std::time::{Duration, Instant};

use candle_core::{DType, Device, Error, Result, Tensor};
use gradwire_models::kernels::gradients::backward;
use gradwire_models::kernels::{self, profile};
use gradwire_models::{Config, Input, InputKind, Store, cross_entropy};

fn main() -> Result<()> {
    let mut models = vec![];
    let mut numbers = vec![];
    for argument in std::env::args().skip(1) {
        match (argument.parse::<usize>(), Config::from_name(&argument)) {
            (Ok(number), _) => numbers.push(number),
            (_, Some(config)) => models.push(config),
            // What cargo adds.
            _ => {}
        }
    }
    if models.is_empty() {
        let usual = ["resnet20", "resnet18", "textcnn", "fasttext", "bilstm", "transformer"];
        models = usual.into_iter().filter_map(Config::from_name).collect();
    }
    let batch = numbers.first().copied().unwrap_or(64);
    let steps = numbers.get(1).copied().unwrap_or(8);
    let threads = numbers.get(2).copied().unwrap_or(1);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let pool = pool.map_err(Error::wrap)?;
    println!("kernels {}, threads {threads}", kernels::active().map_err(Error::wrap)?);
    models.iter().try_for_each(|config| pool.install(|| run(config, batch, steps)))
}

/// A step's time, its forward pass's, and what its kernels did.
type Timing = (Duration, Duration, profile::Profile);

fn run(config: &Config, batch: usize, steps: usize) -> Result<()> {
    let device = Device::Cpu;
    let store = Store::new(1, &device);
    let (input, samples) = match config.input_kind() {
        InputKind::Text => {
            let ids = Tensor::rand(1f32, 29_999.0, (batch, 64), &device)?.to_dtype(DType::U32)?;
            (Input::Text { vocabulary: 30_000, length: 64 }, ids)
        }
        InputKind::Image => {
            let images = Tensor::randn(0f32, 1.0, (batch, 32, 32, 3), &device)?;
            (Input::Image { channels: 3, height: 32, width: 32 }, images)
        }
    };
    let model = config.build(&input, 10, store.var_builder())?;
    let labels = Tensor::from_iter((0..batch as u32).map(|i| i % 10), &device)?;

    let mut best: Option<Timing> = None;
    for _ in 0..steps {
        profile::take();
        let start = Instant::now();
        let loss = cross_entropy(&model.forward_t(&samples, true)?, &labels, 0.0)?;
        let forward = start.elapsed();
        let gradients = backward(&loss)?;
        drop((loss, gradients));
        let step = start.elapsed();
        if best.as_ref().is_none_or(|(fastest, ..)| step < *fastest) {
            best = Some((step, forward, profile::take()));
        }
    }
    let Some((step, forward, profile)) = best else { return Ok(()) };
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    println!(
        "{}, batch {batch}: {:.0} samples/s; {:.1} ms a step, forward {:.1}, backward {:.1}; {:.1} effective GFLOP/s",
        config.name(),
        batch as f64 / step.as_secs_f64(),
        ms(step),
        ms(forward),
        ms(step - forward),
        profile.operations as f64 / step.as_secs_f64() / 1e9
    );
    for (kind, spent) in profile.kinds() {
        println!("  {:28} {:8.2} ms", kind.name(), ms(spent));
    }
    let rest = profile.kinds().fold(step, |rest, (_, spent)| rest.saturating_sub(spent));
    println!("  {:28} {:8.2} ms", "all else", ms(rest));
    if let Some(peak) = peak_memory() {
        println!("  {:28} {:8.0} MiB", "peak memory", peak as f64 / 1024.0);
    }
    Ok(())
}

/// The most that this process has held, in KiB, where /proc tells.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}
