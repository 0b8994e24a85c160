//! The operations on awkward input: kinks, ties, padding, odd sizes of pooling against plain loops.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use candle_core::{DType, Device, Tensor, Var};
use gradwire_models::Maps;
use gradwire_models::kernels::{self, Kernels, Precision};
use gradwire_models::ops::{self, Activation, Affine, Running};
use proptest::prelude::*;

/// Values in [-1, 1) that repeat with a long period.
fn values(count: usize, salt: u32) -> Vec<f32> {
    let step = |i: u32| (i.wrapping_add(salt)).wrapping_mul(2_654_435_761).wrapping_mul(i | 1);
    (0..count as u32).map(|i| f64::from(step(i)) as f32 / 2f32.powi(31) - 1.).collect()
}

fn var(shape: &[usize], salt: u32) -> Var {
    Var::from_vec(values(shape.iter().product(), salt), shape, &Device::Cpu).unwrap()
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

fn maps(xs: &Tensor) -> Maps {
    Maps::new(xs).unwrap()
}

fn ones(ys: &Tensor) -> Tensor {
    ys.ones_like().unwrap()
}

/// Runs `test` on every set of kernels this machine has.
fn on_all(test: impl Fn(Kernels)) {
    for kernels in Kernels::available() {
        kernels::with(kernels, || test(kernels));
    }
}

/// Runs `test` also in bf16, by the processor's instruction where it has one and emulated.
fn on_all_and_in_bf16(test: impl Fn(Kernels)) {
    on_all(&test);
    for precision in [Precision::Bf16, Precision::Bf16Emulated] {
        if let Ok(kernels) = Kernels::parse("auto").unwrap().in_precision(precision) {
            kernels::with(kernels, || test(kernels));
        }
    }
}

/// The gradient of `sum(ys · weights)` for `x`.
fn gradient(ys: &Tensor, weights: &Tensor, x: &Var) -> Vec<f32> {
    let gradients = (ys * weights).unwrap().sum_all().unwrap().backward().unwrap();
    floats(gradients.get(x).expect("the operation severs the graph"))
}

#[test]
fn relu_passes_no_gradient_at_zero_and_keeps_nan() {
    let zeros = Tensor::zeros(2, DType::F32, &Device::Cpu).unwrap();
    let gamma = ones(&zeros);
    let running = Running::new(&zeros, &gamma).unwrap();
    let affine = Affine { shift: None, gamma: Some(&gamma), beta: &zeros };
    let xs = Var::new(&[[[[0f32, 1.]], [[-1., f32::NAN]]]], &Device::Cpu).unwrap();
    on_all(|kernels| {
        let xs_maps = maps(&xs);
        let ys = ops::batch_norm(&xs_maps, affine, &running, None, Activation::Relu, false);
        let ys = ys.unwrap().tensor().unwrap();
        let found = floats(&ys);
        assert_eq!((found[0], found[2]), (0., 0.), "{kernels}");
        assert!(found[3].is_nan(), "{kernels}: a NaN was hidden");
        let gradients = gradient(&ys, &ones(&ys), &xs);
        assert_eq!((gradients[0], gradients[2]), (0., 0.), "{kernels}");
        assert!((gradients[1] - 1.).abs() < 1e-4, "{kernels}");
    });
}

/// The maxima of `xs [batch, height, width, channels]` over `size`×`size` pixels, and what their gradients `dys` send back, by
/// the definition.
fn max_pool_by_loops(
    xs: &[f32],
    [batch, height, width, channels]: [usize; 4],
    size: usize,
    dys: &[f32],
) -> [Vec<f32>; 2] {
    let (mut ys, mut dxs) = (Vec::new(), vec![0.; xs.len()]);
    for y in 0..batch * (height / size) * (width / size) * channels {
        let (pixel, channel) = (y / channels, y % channels);
        let (row, column) = (pixel / (width / size), pixel % (width / size));
        let (image, row) = (row / (height / size), row % (height / size));
        let at = |down, right| {
            ((image * height + size * row + down) * width + size * column + right) * channels
                + channel
        };
        let window = (0..size).flat_map(|down| (0..size).map(move |right| at(down, right)));
        let first = window.fold(at(0, 0), |best, at| if xs[at] > xs[best] { at } else { best });
        ys.push(xs[first]);
        dxs[first] += dys[y];
    }
    [ys, dxs]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Few distinct values, so that most windows have ties; odd sizes, so that some pixels are in no window. Values and
    /// gradients are such that bf16 holds.
    #[test]
    fn max_pool_is_its_definition_and_gives_the_first_of_equal_maxima_the_gradient(
        size in 2..4usize, batch in 1..4usize, height in 3..9usize, width in 3..9usize,
        channels in prop::sample::select(vec![1usize, 3, 8, 16, 17, 40]),
        distinct in 1..5u32,
    ) {
        let shape = [batch, height, width, channels];
        let few = values(shape.iter().product(), 1).into_iter();
        let few: Vec<f32> = few.map(|x| (x * distinct as f32).round() / 2.).collect();
        let xs = Var::from_vec(few.clone(), &shape, &Device::Cpu).unwrap();
        on_all_and_in_bf16(|kernels| {
            let maps = maps(&xs);
            let ys = ops::max_pool(&maps, size).unwrap().tensor().unwrap();
            assert_eq!(ys.dims(), [batch, height / size, width / size, channels]);
            let dys = values(ys.elem_count(), 2).into_iter().map(|dy| (dy * 64.).round() / 64.);
            let dys = Tensor::from_iter(dys, &Device::Cpu).unwrap().reshape(ys.shape()).unwrap();
            let [y, dx] = max_pool_by_loops(&few, shape, size, &floats(&dys));
            assert_eq!(floats(&ys), y, "{kernels}");
            assert_eq!(gradient(&ys, &dys, &xs), dx, "{kernels}");
            // What is pooled twice gets both gradients.
            let again = ops::max_pool(&maps, size).unwrap().tensor().unwrap();
            let twice: Vec<f32> = dx.iter().map(|dx| 2. * dx).collect();
            assert_eq!(gradient(&(ys + again).unwrap(), &dys, &xs), twice, "{kernels}");
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// As one operation or as two, whatever the sizes: chunks that end within an image and such that hold several.
    #[test]
    fn a_convolution_with_pooling_is_both(
        batch in 1..9usize, height in 3..20usize, width in 3..20usize, size in 2..4usize,
        inputs in prop::sample::select(vec![3usize, 12, 24, 40]),
        outputs in prop::sample::select(vec![5usize, 16, 40, 130]),
    ) {
        let xs = var(&[batch, height, width, inputs], 1);
        let weight = var(&[outputs, inputs, 3, 3], 2);
        on_all(|kernels| {
            let one = ops::conv2d_max_pool(&maps(&xs), &weight, 1, size).unwrap().tensor().unwrap();
            let conv = ops::conv2d(&maps(&xs), &weight, 1, 1, true).unwrap();
            let two = ops::max_pool(&conv, size).unwrap().tensor().unwrap();
            assert_eq!(one.dims(), [batch, height / size, width / size, outputs]);
            assert_eq!(floats(&one), floats(&two), "{kernels}");
            let dys = var(one.dims(), 3);
            for of in [&xs, &weight] {
                assert_eq!(gradient(&one, &dys, of), gradient(&two, &dys, of), "{kernels}");
            }
        });
    }
}

#[test]
fn max_pool_hides_no_nan_wherever_it_is() {
    for (size, at) in [2, 3].into_iter().flat_map(|size| (0..size * size).map(move |at| (size, at)))
    {
        let mut pixels = vec![2f32; size * size];
        (pixels[1], pixels[2], pixels[at]) = (3., f32::INFINITY, f32::NAN);
        let xs = Var::from_vec(pixels, (1, size, size, 1), &Device::Cpu).unwrap();
        on_all(|kernels| {
            let ys = ops::max_pool(&maps(&xs), size).unwrap().tensor().unwrap();
            assert!(floats(&ys)[0].is_nan(), "{kernels}: NaN at {at} was hidden");
        });
    }
}

#[test]
fn of_equal_maxima_the_first_position_receives_the_gradient() {
    let xs = Var::from_vec(vec![1f32, 5., 2., 5., 5., 0.], (1, 6, 1), &Device::Cpu).unwrap();
    let weight = Var::from_vec(vec![1f32, -1.], (2, 1, 1), &Device::Cpu).unwrap();
    let bias = Var::from_vec(vec![0f32, 0.], 2, &Device::Cpu).unwrap();
    on_all(|kernels| {
        let ys = ops::conv1d_relu_max(&xs, &weight, &bias).unwrap();
        assert_eq!(floats(&ys), [5., 0.], "{kernels}");
        let ones = ones(&ys);
        assert_eq!(gradient(&ys, &ones, &xs), [0., 1., 0., 0., 0., 0.], "{kernels}");
        assert_eq!(gradient(&ys, &ones, &weight), [5., 0.], "{kernels}");
        assert_eq!(gradient(&ys, &ones, &bias), [1., 0.], "{kernels}");
    });
}
