//! Each kernel alone, forward and backward apart, on the shapes of the models: batch 64, CIFAR's images, texts of 64
//! tokens. One thread; the kernels are those of `GRADWIRE_KERNELS`, of which `candle` has none.
//!
//! `cargo bench -p gradwire-models --bench kernels -- [FILTER]`. A time is what the kernel's operation counts in the
//! profile, without candle's own part in it. Convolutions are given in effective operations per second (see
//! `kernels::profile`), what passes over feature maps or parameters in bytes or values of one operand.

use std::hint::black_box;
use std::sync::OnceLock;

use candle_core::{Device, Result, Tensor, Var};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gradwire_models::kernels::optimizer::{AdamWStep, SgdStep, adamw, sgd};
use gradwire_models::kernels::profile::{self, Kind};
use gradwire_models::ops::{
    self, Activation, Affine, Dense, FeedForward, Gelu, Lstm, Norm, Reach, Running, SelfAttention,
};
use gradwire_models::{Maps, Packing, cross_entropy};
use rayon::ThreadPool;

const BATCH: usize = 64;
const LENGTH: usize = 64;
const VOCABULARY: usize = 30_000;
const DIM: usize = 128;

/// Times every one of `kinds` in `step`.
fn measure(
    c: &mut Criterion,
    name: &str,
    throughput: Throughput,
    kinds: &[Kind],
    step: impl Fn() -> Result<()> + Sync,
) {
    static ALONE: OnceLock<ThreadPool> = OnceLock::new();
    let alone = ALONE.get_or_init(|| {
        rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a pool of one thread")
    });
    let mut group = c.benchmark_group(name);
    group.throughput(throughput).sample_size(10);
    for &kind in kinds {
        group.bench_function(kind.name(), |b| {
            b.iter_custom(|times| {
                alone.install(|| {
                    profile::take();
                    (0..times).for_each(|_| step().expect("operands that fit"));
                    profile::take().time(kind)
                })
            });
        });
    }
}

/// Normal values.
fn normal(shape: &[usize]) -> Var {
    let values = Tensor::randn(0f32, 1.0, shape, &Device::Cpu);
    values.and_then(|values| Var::from_tensor(&values)).expect("a shape of some values")
}

/// Whole numbers from `first` up to `end`, the same in every run.
fn numbers(shape: &[usize], first: u32, end: u32) -> Tensor {
    let mut state = 1u64;
    let draw = |_| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        first + (state >> 33) as u32 % (end - first)
    };
    let numbers: Vec<u32> = (0..shape.iter().product()).map(draw).collect();
    Tensor::from_vec(numbers, shape, &Device::Cpu).expect("as many numbers as the shape has")
}

/// The bytes of as many values.
fn bytes(values: usize) -> Throughput {
    Throughput::Bytes((values * size_of::<f32>()) as u64)
}

/// A convolution of the ResNets: input channels, output channels, side of the input, of the kernel, stride.
type Convolution = (&'static str, usize, usize, usize, usize, usize);

fn convolutions(c: &mut Criterion) {
    let shapes: [Convolution; 19] = [
        ("stem", 3, 16, 32, 3, 1),
        ("resnet20 stage 1", 16, 16, 32, 3, 1),
        ("resnet20 into stage 2", 16, 32, 32, 3, 2),
        ("resnet20 stage 2", 32, 32, 16, 3, 1),
        ("resnet20 stage 3", 64, 64, 8, 3, 1),
        ("resnet18 stage 1", 64, 64, 32, 3, 1),
        ("resnet18 into stage 2", 64, 128, 32, 3, 2),
        ("resnet18 shortcut into stage 2", 64, 128, 32, 1, 2),
        ("resnet18 stage 2", 128, 128, 16, 3, 1),
        ("resnet18 into stage 3", 128, 256, 16, 3, 2),
        ("resnet18 stage 3", 256, 256, 8, 3, 1),
        ("resnet18 into stage 4", 256, 512, 8, 3, 2),
        ("resnet18 stage 4", 512, 512, 4, 3, 1),
        ("airbench layer 1, first", 24, 64, 31, 3, 1),
        ("airbench layer 1, second", 64, 64, 15, 3, 1),
        ("airbench layer 2, first", 64, 128, 15, 3, 1),
        ("airbench layer 2, second", 128, 128, 7, 3, 1),
        ("airbench layer 3, first", 128, 128, 7, 3, 1),
        ("airbench layer 3, second", 128, 128, 3, 3, 1),
    ];
    for (name, inputs, outputs, side, kernel, stride) in shapes {
        let first = name == "stem";
        let xs = normal(&[BATCH, side, side, inputs]);
        let weight = normal(&[outputs, inputs, kernel, kernel]);
        let products = BATCH * (side / stride).pow(2) * outputs * inputs * kernel * kernel;
        let throughput = Throughput::Elements(2 * products as u64);
        let kinds = [Kind::Convolution, Kind::ConvolutionWeight, Kind::ConvolutionInput];
        let kinds = if first { &kinds[..2] } else { &kinds };
        measure(c, &format!("convolution/{name}"), throughput, kinds, || {
            let maps = Maps::new(&xs)?;
            let ys = ops::conv2d(&maps, &weight, stride, kernel / 2, !first)?;
            ops::global_average_pool(&ys)?.sum_all()?.backward().map(drop)
        });
    }
}

fn batch_norms(c: &mut Criterion) {
    let (relu, gelu) = (Activation::Relu, Activation::Gelu(Gelu::Exact));
    for (name, channels, side, residual, activation) in [
        ("resnet20 stage 1", 16, 32, false, relu),
        ("resnet20 stage 1 with residual", 16, 32, true, relu),
        ("resnet18 stage 1 with residual", 64, 32, true, relu),
        ("resnet18 stage 4 with residual", 512, 4, true, relu),
        ("airbench layer 1", 64, 15, false, gelu),
    ] {
        let xs = normal(&[BATCH, side, side, channels]);
        let [gamma, beta, mean] = [0; 3].map(|_| normal(&[channels]));
        let running = gamma.sqr().and_then(|variance| Running::new(&mean, &variance));
        let running = running.expect("statistics of as many channels");
        let affine = Affine { shift: None, gamma: Some(&gamma), beta: &beta };
        let throughput = bytes(xs.elem_count());
        let kinds = [Kind::BatchNorm, Kind::BatchNormBackward];
        measure(c, &format!("batch norm/{name}"), throughput, &kinds, || {
            let maps = Maps::new(&xs)?;
            let other = if residual { Some(Maps::new(&xs)?) } else { None };
            let other = other.as_ref();
            let ys = ops::batch_norm(&maps, affine, &running, other, activation, true)?;
            ops::global_average_pool(&ys)?.sum_all()?.backward().map(drop)
        });
    }
}

fn max_pools(c: &mut Criterion) {
    for (name, channels, side) in [("airbench layer 1", 64, 31), ("airbench layer 2", 128, 15)] {
        let xs = normal(&[BATCH, side, side, channels]);
        let throughput = bytes(xs.elem_count());
        measure(c, &format!("max-pooling/{name}"), throughput, &[Kind::Pooling], || {
            let ys = ops::max_pool(&Maps::new(&xs)?, 2)?;
            ys.tensor()?.sum_all()?.backward().map(drop)
        });
    }
}

fn shortcuts(c: &mut Criterion) {
    let xs = normal(&[BATCH, 32, 32, 16]);
    let throughput = bytes(xs.elem_count());
    measure(c, "pooling/shortcut and global average", throughput, &[Kind::Pooling], || {
        let shortcut = ops::shortcut_a(&Maps::new(&xs)?, 32)?;
        ops::global_average_pool(&shortcut)?.sum_all()?.backward().map(drop)
    });
}

fn embeddings(c: &mut Criterion) {
    let table = normal(&[VOCABULARY, DIM]);
    let ids = numbers(&[BATCH, LENGTH], 1, VOCABULARY as u32);
    let throughput = || bytes(BATCH * LENGTH * DIM);
    let kinds = [Kind::Embedding, Kind::EmbeddingBackward];
    // The trainer's backward pass, which keeps the table's gradient as rows.
    let backward =
        |ys: Tensor| gradwire_models::kernels::gradients::backward(&ys.sum_all()?).map(drop);
    measure(c, "embedding/rows", throughput(), &kinds, || backward(ops::embedding(&ids, &table)?));
    measure(c, "embedding/mean", throughput(), &kinds, || {
        backward(ops::embedding_mean(&ids, &table)?)
    });
}

fn text_convolutions(c: &mut Criterion) {
    let xs = normal(&[BATCH, LENGTH, DIM]);
    let banks = [3, 4, 5].map(|width| (normal(&[100, DIM, width]), normal(&[100])));
    let filters = banks.each_ref().map(|(weight, bias)| (weight.as_tensor(), bias.as_tensor()));
    let throughput = Throughput::Elements(BATCH as u64);
    let kinds = [Kind::TextConvolution, Kind::TextConvolutionBackward];
    measure(c, "text convolution/3, 4 and 5 words", throughput, &kinds, || {
        ops::convs1d_relu_max(&xs, None, &filters)?.sum_all()?.backward().map(drop)
    });
}

fn lstms(c: &mut Criterion) {
    let xs = normal(&[BATCH, LENGTH, DIM]);
    let ids = numbers(&[BATCH, LENGTH], 1, VOCABULARY as u32);
    let hidden = 128;
    let small = |shape: &[usize]| {
        let values = Tensor::rand(-0.09f32, 0.09, shape, &Device::Cpu);
        let var = values.and_then(|values| Var::from_tensor(&values)).expect("a shape of values");
        var.as_tensor().clone()
    };
    let [forward, reverse] = [0; 2].map(|_| Lstm {
        weight_ih: small(&[4 * hidden, DIM]),
        weight_hh: small(&[4 * hidden, hidden]),
        bias_ih: small(&[4 * hidden]),
        bias_hh: small(&[4 * hidden]),
    });
    let kinds = [Kind::Lstm, Kind::LstmBackward];
    measure(c, "LSTM/two directions of 128", Throughput::Elements(BATCH as u64), &kinds, || {
        ops::bilstm(&xs, &ids, &forward, &reverse)?.sum_all()?.backward().map(drop)
    });
}

/// Texts that fill their length, and texts of which a third is padding.
fn encoders(c: &mut Criterion) {
    const INNER: usize = 256;
    let norm = || Norm { weight: normal(&[DIM]).into_inner(), bias: normal(&[DIM]).into_inner() };
    let dense = |inputs: usize, outputs: usize| {
        let weight = (normal(&[outputs, inputs]).into_inner() * 0.05).expect("a scale");
        Dense { weight, bias: normal(&[outputs]).into_inner() }
    };
    let (in_proj, out_proj) = (dense(DIM, 3 * DIM), dense(DIM, DIM));
    let attention = SelfAttention { norm: norm(), in_proj, out_proj, heads: 4, reach: Reach::Text };
    let (linear1, linear2) = (dense(DIM, INNER), dense(INNER, DIM));
    let network = FeedForward { norm: norm(), linear1, linear2, gelu: Gelu::Exact };
    for (name, tokens) in [("full texts", LENGTH), ("padded texts", LENGTH * 2 / 3)] {
        let ids = numbers(&[BATCH, tokens], 1, VOCABULARY as u32);
        let ids = ids.pad_with_zeros(1, 0, LENGTH - tokens).expect("a longer text");
        let packing = Packing::new(&ids).expect("ids of texts");
        let xs = normal(&[packing.rows(), DIM]);
        let throughput = || Throughput::Elements(BATCH as u64);
        let kinds = [Kind::Attention, Kind::AttentionBackward];
        measure(c, &format!("attention/{name}"), throughput(), &kinds, || {
            ops::self_attention(&xs, &packing, &attention)?.sum_all()?.backward().map(drop)
        });
        let kinds = [Kind::FeedForward, Kind::FeedForwardBackward];
        measure(c, &format!("feed-forward/{name}"), throughput(), &kinds, || {
            ops::feed_forward(&xs, &packing, &network)?.sum_all()?.backward().map(drop)
        });
    }
}

fn heads(c: &mut Criterion) {
    for (inputs, classes) in [(512, 10), (300, 4)] {
        let (xs, weight, bias) =
            (normal(&[BATCH, inputs]), normal(&[classes, inputs]), normal(&[classes]));
        let labels = numbers(&[BATCH], 0, classes as u32);
        let name = format!("linear and loss/{inputs} to {classes}");
        measure(c, &name, Throughput::Elements(BATCH as u64), &[Kind::Linear], || {
            let logits = ops::linear(&xs, &weight, &bias)?;
            cross_entropy(&logits, &labels, 0.1)?.backward().map(drop)
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

criterion_group!(
    benches,
    convolutions,
    batch_norms,
    max_pools,
    shortcuts,
    embeddings,
    text_convolutions,
    lstms,
    encoders,
    heads,
    updates
);
criterion_main!(benches);
