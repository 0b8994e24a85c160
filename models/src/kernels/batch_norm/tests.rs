//! How exact statistics and results are, what is refused, and what is in memory when.

use candle_core::{DType, Device};

use super::*;
use crate::kernels::Kernels;
use crate::parameters::Gelu;

/// Running statistics of so many channels, as they begin.
fn running(mean: &Tensor, variance: &Tensor) -> Running {
    Running { momentum: 0.3, ..Running::new(mean, variance).unwrap() }
}

const ACTIVATIONS: [Activation; 4] = [
    Activation::Identity,
    Activation::Relu,
    Activation::Gelu(Gelu::Exact),
    Activation::Gelu(Gelu::Tanh),
];

/// The bound that the module states, for a mean of none up to a hundred thousand standard deviations.
#[test]
fn the_result_is_as_exact_as_documented() {
    const CHANNELS: usize = 5;
    let ripple: Vec<f64> = (0..CHANNELS * 400).map(|i| (i as f64 * 0.7).sin()).collect();
    let means = [0.0, 1.0, -30.0, 1e3, 1e5];
    let xs: Vec<f32> =
        ripple.iter().enumerate().map(|(i, x)| (x + means[i % CHANNELS]) as f32).collect();
    let (gamma, beta) = ([0.5, 1.0, 1.5, 1.0, 1.0], [0.1, -0.3, 0.0, 1.0, 2.0]);
    for isa in Isa::available() {
        let statistics =
            Statistics::of_batch(&Moments::on_all_threads(isa, &xs, CHANNELS), Running::EPSILON);
        let (scale, shift) = statistics.affine(&gamma, &beta);
        let values = Values::from(Scratch::new(0));
        let activation = Activation::Identity;
        let normalised = Normalised { isa, xs: values, scale, shift, activation };
        let mut z = vec![f32::NAN; xs.len()];
        let (scale, shift) = (&normalised.scale, &normalised.shift);
        let (activation, residual, positive) = (normalised.floor(), None, None);
        let pass =
            NormaliseMaps { xs: &xs, scale, shift, residual, activation, z: &mut z, positive };
        isa.run(Walk::without_sums(pass, CHANNELS));
        let inverse = statistics.inverse_deviation();
        let mut worst = [0.0_f64; CHANNELS];
        for (i, (x, z)) in xs.iter().zip(&z).enumerate() {
            let c = i % CHANNELS;
            let (x, mean, beta) = (f64::from(*x), statistics.mean[c], f64::from(beta[c]));
            let factor = inverse[c] * f64::from(gamma[c]);
            let exact = (x - mean) * factor + beta;
            let sizes = (x.abs() + mean.abs()) * factor + beta.abs() + exact.abs();
            let off = (f64::from(*z) - exact).abs();
            assert!(off <= sizes * 2_f64.powi(-23), "{isa}: {z} is off by {off:e} of {sizes}");
            worst[c] = worst[c].max(off);
        }
        assert!(worst[0] < 1e-6 && worst[4] > 1e-4, "{isa}: {worst:?}");
    }
}

/// A value far from all others may stand anywhere, also where the pivot is taken from.
#[test]
fn a_value_far_from_all_others_costs_the_variance_no_digits() {
    const PIXELS: usize = 8192;
    let exactly = |pixels: &[f32]| {
        let exact = || pixels.iter().map(|x| f64::from(*x));
        let mean = exact().sum::<f64>() / PIXELS as f64;
        (mean, exact().map(|x| (x - mean).powi(2)).sum::<f64>() / PIXELS as f64)
    };
    let noise = |i: usize| (i as f32 * 0.37).sin();
    for isa in Isa::available() {
        for far in [30.0, 1e3, -1e5] {
            for at in [0, 1, PIXELS / 2, PIXELS - 1] {
                let mut pixels: Vec<f32> = (0..PIXELS).map(noise).collect();
                pixels[at] = far;
                let (mean, variance) = exactly(&pixels);
                let found = Statistics::of_batch(&Moments::on_one_thread(isa, &pixels, 1), 0.0);
                let off = (found.variance[0] / variance - 1.0).abs();
                assert!(off < 2e-6, "{isa}: {far} at {at}: {off:e}");
                assert!((found.mean[0] - mean).abs() < 1e-6 * (1.0 + mean.abs()), "{isa}");
            }
            // Of the three that the pivot is one of two are far: the bound holds that `Moments` states.
            let mut pixels: Vec<f32> = (0..PIXELS).map(noise).collect();
            (pixels[0], pixels[PIXELS / 2]) = (far, far);
            let (mean, variance) = exactly(&pixels);
            let found =
                Statistics::of_batch(&Moments::on_one_thread(isa, &pixels, 1), 0.0).variance[0];
            let bound = 400.0 * 2_f64.powi(-24) * (variance + (f64::from(far) - mean).powi(2));
            let off = (found - variance).abs();
            assert!(off <= bound, "{isa}: {off:e} is more than {bound:e}");
        }
    }
}

/// Slices of one channel too few for the pixels they are to be used with.
#[test]
fn what_belongs_to_other_channels_is_refused() {
    const CHANNELS: usize = 48;
    let few: &[f32] = &[1.0; CHANNELS - 1];
    let all: &[f32] = &[1.0; CHANNELS];
    let xs: &[f32] = &[1.0; 2 * CHANNELS];
    let refused = |what: &str, run: &(dyn Fn(Isa) + std::panic::RefUnwindSafe)| {
        for isa in Isa::available() {
            let panic = std::panic::catch_unwind(|| run(isa)).expect_err(what);
            let message = panic.downcast_ref::<String>().cloned().unwrap_or_default();
            let lengths = message.contains("left == right");
            let constants =
                panic.downcast_ref::<&str>().is_some_and(|m| m.contains("len() == channels"));
            assert!(lengths || constants, "{what} on {isa}: {message}");
        }
    };
    let summed = |isa: Isa, pass: GradientSums<Gate, f32>| {
        let (mut a, mut b) = (vec![0.0; CHANNELS], vec![0.0; CHANNELS]);
        isa.run(Walk { pass, channels: CHANNELS, sums: [&mut a, &mut b] });
    };
    let gradients = |gate, mean| GradientSums { xs, dz: xs, gate, mean, residual: None };
    refused("mean", &|isa| summed(isa, gradients(Gate::Open, few)));
    for (what, scale, shift) in [("gate's scale", few, all), ("gate's shift", all, few)] {
        refused(what, &|isa| summed(isa, gradients(Gate::Affine { scale, shift }, all)));
        refused(what, &|isa| {
            let mut z = vec![0.0; xs.len()];
            let (z, activation, positive) = (&mut z[..], Floor(0.0), None);
            let pass = NormaliseMaps { xs, scale, shift, residual: None, activation, z, positive };
            isa.run(Walk::without_sums(pass, CHANNELS));
        });
    }
    let affine = Gate::Affine { scale: all, shift: few };
    for (what, gate, by_gradient, by_input, constant) in [
        ("factor of the gradient", Gate::Open, few, all, all),
        ("factor of the input", Gate::Open, all, few, all),
        ("constant", Gate::Open, all, all, few),
        ("gate of the gradient", affine, all, all, all),
    ] {
        refused(what, &|isa| {
            let mut gradient = vec![0.0; xs.len()];
            let gradient = &mut gradient[..];
            let pass = NormInputGradient { xs, gate, by_gradient, by_input, constant, gradient };
            isa.run(Walk::without_sums(pass, CHANNELS));
        });
    }
}

#[test]
fn what_a_normalisation_computes_from_is_in_memory() {
    let Kernels::Native(native) = Kernels::parse("auto").unwrap() else { unreachable!() };
    let xs = Tensor::randn(0f32, 1., (2, 3, 3, 5), &Device::Cpu).unwrap();
    let [zeros, ones] =
        [0., 1.].map(|x| (Tensor::zeros(5, DType::F32, &Device::Cpu).unwrap() + x).unwrap());
    let running = running(&zeros, &ones);
    let affine = Affine { shift: None, gamma: Some(&ones), beta: &zeros };
    for (train, activation) in
        [false, true].into_iter().flat_map(|train| ACTIVATIONS.map(|of| (train, of)))
    {
        let maps = Maps::<f32>::new(native, &xs).unwrap();
        let norm =
            |maps: &Maps<f32>| batch_norm(maps, affine, &running, None, activation, train).unwrap();
        let first = norm(&maps);
        assert!(!first.values().in_memory(), "a normalisation alone has no pass over memory");
        let second = norm(&first);
        assert!(first.values().in_memory() && !second.values().in_memory());
    }
}
