//! A training step gives the same bits on any number of threads, whatever the shapes.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::sync::mpsc;
use std::time::Duration;

use candle_core::{Device, Result, Tensor};
use gradwire_models::kernels::gradients::backward;
use gradwire_models::kernels::{Kernels, with};
use gradwire_models::ops::{self, Activation, Affine, Running};
use gradwire_models::{Config, Input, Maps, Store, cross_entropy};
use proptest::prelude::*;

fn bits(tensor: &Tensor) -> Vec<u32> {
    let values: Vec<f32> = tensor.flatten_all().unwrap().to_vec1().unwrap();
    values.into_iter().map(f32::to_bits).collect()
}

/// Logits, all gradients and, after the step, batch norm's running statistics.
fn step(model: &str, input: &Input, samples: &Tensor, labels: &Tensor) -> Vec<Vec<u32>> {
    let config = Config::from_name(model).unwrap();
    let store = Store::new(3, &Device::Cpu);
    let network = config.build(input, 5, store.var_builder()).unwrap();
    let logits = network.forward_t(samples, true).unwrap();
    let gradients = backward(&cross_entropy(&logits, labels, 0.1).unwrap()).unwrap();
    let mut all = vec![bits(&logits)];
    for (name, var) in store.trainable() {
        let mut gradient = vec![f32::NAN; var.elem_count()];
        assert!(gradients.reached(&var), "{name}");
        gradients.copy(&var, &mut gradient).unwrap();
        assert!(gradient.iter().all(|g| g.is_finite()), "{name}");
        all.push(gradient.into_iter().map(f32::to_bits).collect());
    }
    all.extend(store.buffers().iter().map(|(_, var)| bits(var)));
    all
}

fn check(model: &str, input: &Input, samples: &Tensor) {
    let labels: Vec<u32> = (0..samples.dim(0).unwrap() as u32).map(|i| i % 5).collect();
    let labels = Tensor::new(labels, &Device::Cpu).unwrap();
    let [auto, precise] = ["auto", "precise"].map(|name| Kernels::parse(name).unwrap());
    for kernels in [auto, precise].into_iter().chain(auto.in_bf16()) {
        let run = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| with(kernels, || step(model, input, samples, &labels)))
        };
        let one = run(1);
        for threads in [2, 3] {
            assert!(run(threads) == one, "{model} on {kernels}, {threads} threads");
        }
    }
}

/// As [`check`], of a model that reads images of these sizes: batch, height, width, channels.
fn check_images(model: &str, shape: (usize, usize, usize, usize)) {
    let (batch, height, width, channels) = shape;
    let pixels = (0..batch * height * width * channels).map(|i| (i as f32 * 0.7).sin()).collect();
    let images = Tensor::from_vec(pixels, shape, &Device::Cpu).unwrap();
    check(model, &Input::Image { channels, height, width }, &images);
}

/// Values of the second normalisation are computed by each job of the convolution, or of the sum with a residual, for
/// itself. A job that computed all of the first one meanwhile, as jobs again, could be handed another job of its own kind
/// to pass the time, and wait for what it had begun itself. Whether it is depends on who is quicker: of two runs of four
/// hundred rounds one hung. A hang is a failure.
#[test]
fn jobs_wait_for_nothing_that_they_have_begun() {
    const CHANNELS: usize = 512;
    let (send, done) = mpsc::channel();
    std::thread::spawn(move || {
        let draw = |shape: &[usize]| Tensor::rand(-1f32, 1., shape, &Device::Cpu).unwrap();
        let xs = draw(&[48, 8, 8, CHANNELS]);
        let weight = draw(&[12, CHANNELS, 3, 3]);
        let [gamma, beta] = [0; 2].map(|_| draw(&[CHANNELS]));
        let running = Running::new(&draw(&[CHANNELS]), &gamma.ones_like().unwrap()).unwrap();
        let norm = |xs: &Maps, residual: Option<&Maps>| -> Result<Maps> {
            let affine = Affine { shift: None, gamma: Some(&gamma), beta: &beta };
            ops::batch_norm(xs, affine, &running, residual, Activation::Relu, false)
        };
        for round in 0..100 {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(4 + round % 3).build().unwrap();
            let run = || -> Result<Tensor> {
                let maps = Maps::new(&xs)?;
                let twice = norm(&norm(&maps, None)?, None)?;
                if round % 2 == 0 {
                    return ops::conv2d(&twice, &weight, 1, 1, true)?.tensor();
                }
                norm(&norm(&maps, None)?, Some(&maps))?.tensor()
            };
            pool.install(|| with(Kernels::parse("auto").unwrap(), run)).unwrap();
        }
        send.send(()).unwrap();
    });
    assert!(done.recv_timeout(Duration::from_secs(600)).is_ok(), "a job waits for itself");
}

#[test]
fn airbench() {
    check_images("airbench", (3, 33, 25, 3));
}

#[test]
fn vgg16() {
    // Odd sides: a row and a column that no window of the first pooling has.
    check_images("vgg16", (2, 33, 35, 3));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn resnets(
        model in prop::sample::select(vec!["resnet20", "resnet20", "resnet18"]),
        batch in prop::sample::select(vec![1usize, 2, 3]),
        (height, width) in (9usize..14, 9usize..14),
        channels in prop::sample::select(vec![1usize, 3, 17]),
    ) {
        check_images(model, (batch, height, width, channels));
    }

    #[test]
    fn text_classifiers(
        model in prop::sample::select(vec!["fasttext", "textcnn", "bilstm", "transformer"]),
        batch in prop::sample::select(vec![1usize, 3, 7]),
        length in 5usize..20,
        seed: u32,
    ) {
        let vocabulary = 40;
        let id = |i: u32| (i.wrapping_mul(2_654_435_761) ^ seed).wrapping_mul(2_246_822_519) >> 16;
        // The last text has one word.
        let ids: Vec<u32> = (0..(batch * length) as u32)
            .map(|i| if (i as usize) + length > batch * length + 1 { 0 } else { 1 + id(i) % 39 })
            .collect();
        let ids = Tensor::from_vec(ids, (batch, length), &Device::Cpu).unwrap();
        check(model, &Input::Text { vocabulary, length }, &ids);
    }
}
