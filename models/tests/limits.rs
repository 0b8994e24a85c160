//! Arguments that do not fit, sizes at the ends of what can be counted, and values at the ends of what is a number:
//! errors, and results that show it. What wraps shows only where overflow is not checked, so `.ci/run` runs these tests
//! once more with the crate built that way.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use candle_core::{DType, Device, Result, Tensor};
use gradwire_models::kernels::{self, Kernels};
use gradwire_models::ops::{
    self, Activation, Affine, Dense, Lstm, Norm, Reach, Running, SelfAttention,
};
use gradwire_models::{Config, Input, Maps, Packing, Store, cross_entropy, resnet};

/// A number of which sixteen times as many are sixteen, once the product has wrapped.
const WRAPS: usize = (1 << (usize::BITS - 4)) + 1;

fn zeros(shape: &[usize]) -> Tensor {
    Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap()
}

fn tokens(shape: &[usize]) -> Tensor {
    Tensor::zeros(shape, DType::U32, &Device::Cpu).unwrap()
}

fn lstm(inputs: usize, hidden: usize) -> Lstm {
    Lstm {
        weight_ih: zeros(&[4 * hidden, inputs]),
        weight_hh: zeros(&[4 * hidden, hidden]),
        bias_ih: zeros(&[4 * hidden]),
        bias_hh: zeros(&[4 * hidden]),
    }
}

fn conv2d(xs: &[usize], weight: &[usize], stride: usize, padding: usize) -> Result<Tensor> {
    ops::conv2d(&Maps::new(&zeros(xs))?, &zeros(weight), stride, padding, true)?.tensor()
}

fn batch_norm(xs: &[usize], channels: usize, train: bool) -> Result<Tensor> {
    let [gamma, beta] = [0; 2].map(|_| zeros(&[channels]));
    let running = Running::new(&zeros(&[channels]), &zeros(&[channels]))?;
    let affine = Affine { shift: None, gamma: Some(&gamma), beta: &beta };
    let xs = Maps::new(&zeros(xs))?;
    ops::batch_norm(&xs, affine, &running, None, Activation::Relu, train)?.tensor()
}

fn linear(xs: &[usize], weight: &[usize], bias: &[usize]) -> Result<Tensor> {
    ops::linear(&zeros(xs), &zeros(weight), &zeros(bias))
}

fn text_convolution(xs: &[usize], weight: &[usize]) -> Result<Tensor> {
    ops::conv1d_relu_max(&zeros(xs), &zeros(weight), &zeros(&weight[..1]))
}

/// Of texts of two tokens.
fn packing(texts: usize) -> Packing {
    Packing::new(&Tensor::ones((texts, 2), DType::U32, &Device::Cpu).unwrap()).unwrap()
}

fn norm(dim: usize) -> Norm {
    Norm { weight: zeros(&[dim]), bias: zeros(&[dim]) }
}

fn dense(inputs: usize, outputs: usize) -> Dense {
    Dense { weight: zeros(&[outputs, inputs]), bias: zeros(&[outputs]) }
}

fn pooled(xs: &[usize]) -> Result<Tensor> {
    ops::global_average_pool(&Maps::new(&zeros(xs))?)
}

fn shortcut(xs: &[usize], channels: usize) -> Result<Tensor> {
    ops::shortcut_a(&Maps::new(&zeros(xs))?, channels)?.tensor()
}

fn max_pool(xs: &[usize], size: usize) -> Result<Tensor> {
    ops::max_pool(&Maps::new(&zeros(xs))?, size)?.tensor()
}

type Case = (&'static str, fn() -> Result<Tensor>);

/// Calls every one of `cases` on every set of kernels: each must be an error that says where. Where
/// overflow is checked, candle may panic over a shape before any kernel sees it: that is a refusal too.
fn refused(cases: &[Case]) {
    for kernels in Kernels::available() {
        for (what, case) in cases {
            let outcome = match std::panic::catch_unwind(|| kernels::with(kernels, case)) {
                Err(_) if cfg!(debug_assertions) => continue,
                Err(panic) => std::panic::resume_unwind(panic),
                Ok(outcome) => outcome,
            };
            match outcome {
                Ok(ys) => panic!("{what} gave {:?} on {kernels}", ys.dims()),
                Err(error) => {
                    let (error, op) = (error.to_string(), what.split(':').next().unwrap());
                    assert!(error.contains(op), "{what} on {kernels}: {error}");
                }
            }
        }
    }
}

#[test]
fn sizes_whose_product_wraps_are_errors() {
    refused(&[
        ("images: convolved", || conv2d(&[1, 1, WRAPS, 16], &[16, 16, 3, 3], 1, 1)),
        ("images: convolved with stride", || conv2d(&[1, 1, WRAPS, 16], &[16, 16, 3, 3], 2, 1)),
        ("images: 1x1", || conv2d(&[1, 1, WRAPS, 16], &[16, 16, 1, 1], 1, 0)),
        ("images: a product of 0", || pooled(&[1 << 32, 1 << 32, 1, 1])),
        ("images: normalised", || batch_norm(&[1, 1, WRAPS, 16], 16, true)),
        ("images: pooled", || max_pool(&[2, 2, WRAPS, 16], 2)),
        ("conv2d: weight", || conv2d(&[1, 1, 1, 16], &[WRAPS, 16, 1, 1], 1, 0)),
        ("conv2d: padding", || conv2d(&[1, 1, 1, 16], &[16, 16, 3, 3], 1, 1 << 63)),
        ("conv2d: padding that becomes 0", || conv2d(&[1, 8, 8, 16], &[16, 16, 3, 3], 1, 1 << 62)),
        ("conv2d: result", || conv2d(&[1, 1, 1, 1], &[1, 1, 1, 1], 1, 1 << 31)),
        ("shortcut_a: channels", || shortcut(&[1, 7, 7, 16], 1 << 62)),
        ("linear: input", || linear(&[WRAPS, 16], &[3, 16], &[3])),
        ("linear: weight", || linear(&[2, 16], &[WRAPS, 16], &[3])),
        ("embedding: table", || ops::embedding(&tokens(&[1, 2]), &zeros(&[WRAPS, 16]))),
        ("embedding: ids", || ops::embedding(&tokens(&[WRAPS, 16]), &zeros(&[2, 3]))),
        ("embedding_mean: table", || ops::embedding_mean(&tokens(&[1, 2]), &zeros(&[WRAPS, 16]))),
        ("embedding_mean: ids", || ops::embedding_mean(&tokens(&[WRAPS, 16]), &zeros(&[2, 3]))),
        ("conv1d_relu_max: input", || text_convolution(&[1, WRAPS, 16], &[3, 16, 2])),
        ("conv1d_relu_max: weight", || text_convolution(&[1, 4, 16], &[3, 16, WRAPS])),
        ("bilstm: input", || {
            ops::bilstm(&zeros(&[WRAPS, 1, 16]), &tokens(&[1, 1]), &lstm(16, 2), &lstm(16, 2))
        }),
        ("packing: ids", || ops::text_mean(&zeros(&[1, 1]), &Packing::new(&tokens(&[WRAPS, 16]))?)),
        ("token_rows: table", || {
            ops::token_rows(&packing(1), &zeros(&[WRAPS, 16]), &zeros(&[2, 16]))
        }),
        ("token_rows: positions", || {
            ops::token_rows(&packing(1), &zeros(&[2, 16]), &zeros(&[WRAPS, 16]))
        }),
        ("layer_norm: input", || {
            ops::layer_norm(&zeros(&[WRAPS, 16]), &zeros(&[16]), &zeros(&[16]))
        }),
    ]);
}

/// What no change of one size makes, which `operations.rs` tries: other ranks, types and values, sizes that two arguments
/// change together, and lists without elements. Of a number out of range kernels say where it is.
#[test]
fn what_does_not_fit_is_an_error_on_every_path() {
    let outside = Tensor::new(&[[1u32, 0, 2], [3, 0, 4]], &Device::Cpu).unwrap();
    let labels = |labels: &[u32]| Tensor::new(labels, &Device::Cpu).unwrap();
    let still = || {
        let (beta, xs) = (zeros(&[3]), Maps::new(&zeros(&[2, 2, 2, 3]))?);
        let running = Running { momentum: 0., ..Running::new(&beta, &beta)? };
        let affine = Affine { shift: None, gamma: None, beta: &beta };
        ops::batch_norm(&xs, affine, &running, None, Activation::Identity, true)?.tensor()
    };
    let attention = |heads| {
        let (in_proj, out_proj) = (dense(4, 12), dense(4, 4));
        let of = SelfAttention { norm: norm(4), in_proj, out_proj, heads, reach: Reach::Text };
        ops::self_attention(&zeros(&[4, 4]), &packing(2), &of)
    };
    let entropy = |labels: &Tensor, smoothing| cross_entropy(&zeros(&[2, 3]), labels, smoothing);
    let calls = || -> Vec<(&'static str, Result<Tensor>)> {
        vec![
            ("conv2d: window", conv2d(&[1, 2, 2, 3], &[2, 3, 3, 3], 1, 0)),
            ("conv2d: stride", conv2d(&[1, 4, 4, 3], &[2, 3, 3, 3], 0, 1)),
            ("conv2d: rank", conv2d(&[4, 4, 3], &[2, 3, 3, 3], 1, 1)),
            ("batch_norm: one value", batch_norm(&[1, 1, 1, 3], 3, true)),
            ("batch_norm: momentum", still()),
            ("max_pool: window", max_pool(&[1, 4, 1, 3], 2)),
            ("max_pool: window of 3", max_pool(&[1, 2, 4, 3], 3)),
            ("max_pool: size", max_pool(&[1, 8, 8, 3], 4)),
            ("shortcut_a: fewer channels", shortcut(&[1, 4, 4, 3], 2)),
            ("embedding: id", ops::embedding(&outside, &zeros(&[4, 3]))),
            ("embedding: type", ops::embedding(&zeros(&[1, 2]), &zeros(&[4, 3]))),
            ("embedding: rank", ops::embedding(&labels(&[1, 2]), &zeros(&[4, 3]))),
            ("embedding_mean: id", ops::embedding_mean(&outside, &zeros(&[4, 3]))),
            ("embedding_mean: type", ops::embedding_mean(&zeros(&[1, 2]), &zeros(&[4, 3]))),
            ("embedding_mean: rank", ops::embedding_mean(&labels(&[1, 2]), &zeros(&[4, 3]))),
            ("conv1d: width", text_convolution(&[1, 2, 3], &[5, 3, 3])),
            ("convs1d: none", ops::convs1d_relu_max(&zeros(&[1, 4, 3]), None, &[])),
            ("token_rows: longer than positions", {
                ops::token_rows(&packing(2), &zeros(&[4, 3]), &zeros(&[1, 3]))
            }),
            ("token_rows: id", {
                let packing = Packing::new(&outside).unwrap();
                ops::token_rows(&packing, &zeros(&[4, 3]), &zeros(&[3, 3]))
            }),
            ("self_attention: heads", attention(3)),
            ("self_attention: no heads", attention(0)),
            ("cross_entropy: label", entropy(&labels(&[1, 3]), 0.)),
            ("cross_entropy: type", entropy(&zeros(&[2]), 0.)),
            ("cross_entropy: smoothing", entropy(&labels(&[1, 2]), 1.)),
            ("cross_entropy: NaN", entropy(&labels(&[1, 2]), f64::NAN)),
        ]
    };
    for kernels in Kernels::available() {
        for (what, result) in kernels::with(kernels, calls) {
            let Err(error) = result else { panic!("{what} was accepted on {kernels}") };
            let place = match what {
                "cross_entropy: label" => "target 3 at position 1",
                _ if what.ends_with(": id") => "token 4 at position 2 of text 1",
                _ => "",
            };
            let error = error.to_string();
            let named = kernels == Kernels::Candle || error.contains(place);
            assert!(named, "{what} on {kernels}: {error}");
        }
    }
}

/// As PyTorch has it: a channel's variance is NaN if one of its values is not finite, and so is all that comes of it.
#[test]
fn a_value_that_is_no_number_shows_in_all_of_its_channel() {
    const CHANNELS: usize = 19;
    let (pixels, silenced) = (3 * 5 * 5, 17);
    for (value, at) in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30]
        .into_iter()
        .flat_map(|value| [0, 1, 40, pixels - 1].map(|at| (value, at)))
    {
        let mut xs: Vec<f32> = (0..pixels * CHANNELS).map(|i| (i as f32 * 0.7).sin()).collect();
        xs[at * CHANNELS + silenced] = value;
        let xs = Tensor::from_vec(xs, (3, 5, 5, CHANNELS), &Device::Cpu).unwrap();
        let (ones, zeros) = (xs.ones_like().unwrap(), zeros(&[CHANNELS]));
        let gamma = zeros.ones_like().unwrap();
        for (kernels, residual) in
            Kernels::available().flat_map(|kernels| [false, true].map(|with| (kernels, with)))
        {
            kernels::with(kernels, || {
                let running = Running::new(&zeros, &gamma).unwrap();
                let affine = Affine { shift: None, gamma: Some(&gamma), beta: &zeros };
                let residual = residual.then(|| Maps::new(&ones).unwrap());
                let maps = Maps::new(&xs).unwrap();
                let residual = residual.as_ref();
                let relu = Activation::Relu;
                let ys = ops::batch_norm(&maps, affine, &running, residual, relu, true).unwrap();
                let ys: Vec<f32> = ys.tensor().unwrap().flatten_all().unwrap().to_vec1().unwrap();
                let what = format!("{value} at {at} on {kernels}");
                for (i, y) in ys.iter().enumerate() {
                    let shows = i % CHANNELS == silenced;
                    // Of a value that is finite the composition computes a variance that is not: then zeros.
                    let hidden = shows && value.is_finite() && kernels == Kernels::Candle;
                    assert!(y.is_nan() == shows || hidden, "{what}: {y} at {i}");
                }
                let var: Vec<f32> = running.variance.to_vec1().unwrap();
                for (channel, var) in var.iter().enumerate() {
                    assert_eq!(var.is_finite(), channel != silenced, "{what}: {var}");
                }
            });
        }
    }
}

#[test]
fn one_pixel_that_is_infinite_makes_the_loss_of_a_network_nan() {
    let input = Input::Image { channels: 3, height: 12, width: 12 };
    let mut pixels: Vec<f32> = (0..2 * 12 * 12 * 3).map(|i| (i as f32 * 0.7).sin()).collect();
    pixels[100] = f32::INFINITY;
    let images = Tensor::from_vec(pixels, (2, 12, 12, 3), &Device::Cpu).unwrap();
    let labels = Tensor::new(&[3u32, 4], &Device::Cpu).unwrap();
    for kernels in Kernels::available() {
        kernels::with(kernels, || {
            let store = Store::new(1, &Device::Cpu);
            let config = Config::Resnet20(resnet::Resnet20::default());
            let network = config.build(&input, 10, store.var_builder()).unwrap();
            let logits = network.forward_t(&images, true).unwrap();
            let loss = cross_entropy(&logits, &labels, 0.).unwrap().to_scalar::<f32>().unwrap();
            assert!(loss.is_nan(), "{loss} on {kernels}");
        });
    }
}
