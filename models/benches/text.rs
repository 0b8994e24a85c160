//! One training step of each text classifier on one thread: forward, backward, gradients into one
//! flat slice, SGD with momentum in place. Batch 64, 64 tokens, a table of 30,000 × 128; the
//! kernels are those of `GRADWIRE_KERNELS`. And the optimizers and the loss alone.
//!
//! Set `RAYON_NUM_THREADS=1`, as the trainer does: candle's own operations count their threads by
//! it.

use std::hint::black_box;

use candle_core::{Device, Result, Tensor};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gradwire_models::kernels::gradients::backward;
use gradwire_models::kernels::optimizer::{AdamWStep, SgdStep, adamw, sgd, update_in_place};
use gradwire_models::{Config, Input, Model, Store, cross_entropy, text};

const BATCH: usize = 64;
const LENGTH: usize = 64;
const VOCABULARY: usize = 30_000;
const CLASSES: usize = 4;

/// Numbers below `bound`, the same in every run.
fn numbers(count: usize, bound: u32) -> impl Iterator<Item = u32> {
    let mut state = 1u64;
    std::iter::repeat_with(move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32 % bound
    })
    .take(count)
}

struct Training {
    store: Store,
    model: Model,
    ids: Tensor,
    labels: Tensor,
    flat: Vec<f32>,
    momentum: Vec<f32>,
}

impl Training {
    fn new(config: &Config) -> Result<Self> {
        let store = Store::new(1, &Device::Cpu);
        let input = Input::Text { vocabulary: VOCABULARY, length: LENGTH };
        let model = config.build(&input, CLASSES, store.var_builder())?;
        let len = store.trainable().iter().map(|(_, var)| var.elem_count()).sum();
        let ids = numbers(BATCH * LENGTH, VOCABULARY as u32 - 1).map(|id| id + 1);
        let ids = Tensor::from_iter(ids, &Device::Cpu)?.reshape((BATCH, LENGTH))?;
        let labels = Tensor::from_iter(numbers(BATCH, CLASSES as u32), &Device::Cpu)?;
        Ok(Self { store, model, ids, labels, flat: vec![0.0; len], momentum: vec![0.0; len] })
    }

    fn step(&mut self) -> Result<()> {
        let logits = self.model.forward_t(&self.ids, true)?;
        let gradients = backward(&cross_entropy(&logits, &self.labels, 0.0)?)?;
        let step =
            SgdStep { lr: 0.01, momentum: 0.9, nesterov: false, weight_decay: 0.0, first: false };
        let (mut flat, mut momentum) = (&mut self.flat[..], &mut self.momentum[..]);
        for (_, var) in self.store.trainable() {
            let (grad, rest) = flat.split_at_mut(var.elem_count());
            let (velocity, others) = momentum.split_at_mut(var.elem_count());
            (flat, momentum) = (rest, others);
            gradients.copy(&var, grad)?;
            update_in_place(&var, |param| sgd(param, grad, velocity, &step))?;
        }
        Ok(())
    }
}

fn steps(c: &mut Criterion) {
    let mut group = c.benchmark_group("text step");
    group.throughput(Throughput::Elements(BATCH as u64)).sample_size(20);
    let configs = [
        Config::Fasttext(text::fasttext::Config::default()),
        Config::Textcnn(text::textcnn::Config::default()),
        Config::Bilstm(text::bilstm::Config::default()),
    ];
    for config in configs {
        let mut training = Training::new(&config).expect("the default sizes fit");
        group.bench_function(config.name(), |b| {
            b.iter(|| training.step().expect("a training step"));
        });
    }
}

fn updates(c: &mut Criterion) {
    const LEN: usize = 1 << 20;
    let mut group = c.benchmark_group("update");
    group.throughput(Throughput::Elements(LEN as u64)).sample_size(20);
    let grad = vec![1e-3f32; LEN];
    let (mut param, mut first, mut second) = (vec![0.5; LEN], vec![0.0; LEN], vec![0.0; LEN]);
    let step =
        SgdStep { lr: 1e-4, momentum: 0.9, nesterov: true, weight_decay: 1e-4, first: false };
    group
        .bench_function("sgd", |b| b.iter(|| sgd(&mut param, black_box(&grad), &mut first, &step)));
    let step =
        AdamWStep { lr: 1e-4, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 1e-2, step: 10 };
    group.bench_function("adamw", |b| {
        b.iter(|| adamw(&mut param, black_box(&grad), &mut first, &mut second, &step));
    });
}

fn loss(c: &mut Criterion) {
    let logits = numbers(BATCH * 100, 1000).map(|x| x as f32 / 100.0);
    let logits =
        Tensor::from_iter(logits, &Device::Cpu).and_then(|logits| logits.reshape((BATCH, 100)));
    let logits = logits.expect("as many numbers as the shape holds");
    let labels = Tensor::from_iter(numbers(BATCH, 100), &Device::Cpu).expect("labels");
    c.bench_function("cross-entropy 64x100", |b| {
        b.iter(|| cross_entropy(&logits, &labels, 0.1).expect("labels in range"));
    });
}

criterion_group!(benches, steps, updates, loss);
criterion_main!(benches);
