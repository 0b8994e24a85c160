//! Every instruction set against the composition of candle operations, which adds a shift for real.

use candle_core::{DType, Device};
use proptest::prelude::*;

use super::*;
use crate::composed;
use crate::kernels::Kernels;

/// What a step through the operation leaves behind.
struct Step {
    z: Tensor,
    gradients: Vec<Tensor>,
    running: [Tensor; 2],
}

#[derive(Clone, Copy, Debug)]
struct Case {
    batch: usize,
    size: usize,
    channels: usize,
    relu: bool,
    residual: bool,
    shift: bool,
    train: bool,
    offset: f64,
}

fn gamma(case: Case) -> Result<Tensor> {
    (Tensor::arange(0., case.channels as f32, &Device::Cpu)? * 0.1)? + 0.5
}

fn step(
    kernels: Kernels,
    case: Case,
    xs: &Tensor,
    residual: &Tensor,
    weight: &Tensor,
) -> Result<Step> {
    let cpu = &Device::Cpu;
    let shape = (case.batch, case.size, case.size, case.channels);
    let xs = Var::from_tensor(&(xs.reshape(shape)? + case.offset)?)?;
    let residual = Var::from_tensor(&residual.reshape(shape)?)?;
    let ramp = Tensor::arange(0., case.channels as f32, cpu)?;
    let gamma = Var::from_tensor(&gamma(case)?)?;
    let beta = Var::from_tensor(&((&ramp * -0.02)? + 0.1)?)?;
    let bias = Var::from_tensor(&((&ramp * 0.7)?.sin()? * 0.5)?)?;
    let shift = case.shift.then_some(bias.as_tensor());
    let running_mean = Var::from_tensor(&(&ramp * 0.01)?)?;
    let running_var = Var::from_tensor(&((&ramp * 0.03)? + 0.7)?)?;
    let (g, b, mean, var) = (gamma.as_tensor(), beta.as_tensor(), &running_mean, &running_var);
    let z = match kernels {
        Kernels::Candle => {
            let shortcut = case.residual.then_some(residual.as_tensor());
            composed::batch_norm(
                xs.as_tensor(),
                shift,
                g,
                b,
                mean,
                var,
                shortcut,
                case.relu,
                case.train,
            )?
        }
        Kernels::Native(native) => {
            let maps = |xs: &Var| Maps::new(native, xs.as_tensor());
            let shortcut = if case.residual { Some(maps(&residual)?) } else { None };
            let shortcut = shortcut.as_ref();
            batch_norm(&maps(&xs)?, shift, g, b, (mean, var), shortcut, case.relu, case.train)?
                .tensor()?
        }
    };
    let loss = (&z * weight.reshape(shape)?)?.sum_all()?;
    let store = loss.backward()?;
    let mut wanted = vec![&xs, &gamma, &beta];
    if case.residual {
        wanted.push(&residual);
    }
    if case.shift {
        wanted.push(&bias);
    }
    let gradients = wanted.iter().map(|var| store.get(var).unwrap().clone()).collect();
    let running = [running_mean.as_tensor().clone(), running_var.as_tensor().clone()];
    Ok(Step { z, gradients, running })
}

/// The norm of the difference over the norm of `whole`, or over 1 if that is larger.
fn error(a: &Tensor, b: &Tensor, whole: &Tensor) -> f64 {
    let norm = |x: Tensor| {
        let x: Vec<f64> = x.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        x.iter().map(|x| x * x).sum::<f64>().sqrt()
    };
    norm((a - b).unwrap()) / norm(whole.clone()).max(1.0)
}

fn check(case: Case) {
    let len = case.batch * case.size * case.size * case.channels;
    let draw = || Tensor::randn(0f32, 1., len, &Device::Cpu).unwrap();
    let (xs, residual, weight) = (draw(), draw(), draw());
    // Within rounding of ReLU's kink the two may rightly differ: nothing is asked for there.
    let plain = Case { relu: false, ..case };
    let before = step(Kernels::Candle, plain, &xs, &residual, &weight).unwrap().z;
    let away = before.flatten_all().unwrap().abs().unwrap().gt(1e-4).unwrap();
    let weight = (weight * away.to_dtype(DType::F32).unwrap()).unwrap();
    let expected = step(Kernels::Candle, case, &xs, &residual, &weight).unwrap();
    for kernels in Kernels::available().filter(|kernels| *kernels != Kernels::Candle) {
        let found = step(kernels, case, &xs, &residual, &weight).unwrap();
        let close_within = |what: &str, a: &Tensor, b: &Tensor, whole: &Tensor| {
            let error = error(a, b, whole);
            assert!(error < 2e-5, "{what} of {case:?} on {kernels}: relative error {error:e}");
        };
        let close = |what: &str, a: &Tensor, b: &Tensor| close_within(what, a, b, b);
        close("result", &found.z, &expected.z);
        for (i, (a, b)) in found.gradients.iter().zip(&expected.gradients).enumerate() {
            let of = match i {
                0 => "input gradient",
                1 => "γ gradient",
                2 => "β gradient",
                3 if case.residual => "residual gradient",
                // While training it is a sum that cancels: γ times β's says how large its summands are.
                _ => {
                    let whole = (gamma(case).unwrap() * &expected.gradients[2]).unwrap();
                    close_within("shift gradient", a, b, &whole);
                    continue;
                }
            };
            close(of, a, b);
        }
        for (a, b) in found.running.iter().zip(&expected.running) {
            close("running statistics", a, b);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn agrees_with_the_composition(
        batch in 1..5_usize, size in 2..=9_usize,
        channels in prop::sample::select(vec![1, 3, 8, 16, 17, 32, 40, 64, 100]),
        relu: bool, residual: bool, shift: bool, train: bool,
    ) {
        check(Case { batch, size, channels, relu, residual, shift, train, offset: 0.3 });
    }
}

#[test]
fn agrees_with_the_composition_at_small_sizes() {
    for (channels, residual) in [(1, false), (9, true), (17, false)] {
        let (batch, size, relu, shift, train) = (1, 3, true, residual, true);
        check(Case { batch, size, channels, relu, residual, shift, train, offset: 0.3 });
    }
}

#[test]
fn spans_and_blocks_add_up() {
    for (channels, residual) in [(16, false), (64, true), (200, false)] {
        check(Case {
            batch: 9,
            size: 32,
            channels,
            relu: true,
            residual,
            shift: !residual,
            train: true,
            offset: 0.0,
        });
    }
}

#[test]
fn a_mean_far_from_zero_costs_the_statistics_no_digits() {
    // Constant but for a ripple of 1e-3 around 100: sums of squares in f32 would drown it.
    let pixels: Vec<f32> = (0..4096).map(|i| 100.0 + 1e-3 * (i % 2) as f32).collect();
    let exact: Vec<f64> = pixels.iter().map(|x| f64::from(*x)).collect();
    let mean = exact.iter().sum::<f64>() / 4096.0;
    let variance = exact.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 4096.0;
    for isa in Isa::available() {
        let statistics = Statistics::of(&Moments::of(isa, &pixels, 1));
        assert!((statistics.mean[0] - mean).abs() < 1e-6);
        assert!(
            (statistics.variance[0] / variance - 1.0).abs() < 1e-4,
            "{isa}: {:?}",
            statistics.variance
        );
    }
}

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
        let statistics = Statistics::of(&Moments::of(isa, &xs, CHANNELS));
        let (scale, shift) = statistics.affine(&gamma, &beta);
        let values = Values::from(Scratch::zeroed(0));
        let normalised = Normalised { isa, xs: values, scale, shift, relu: false };
        let mut z = vec![f32::NAN; xs.len()];
        let (scale, shift) = (&normalised.scale, &normalised.shift);
        let (relu, residual, positive) = (false, None, None);
        let mapping = Normalise { xs: &xs, scale, shift, residual, relu, z: &mut z, positive };
        isa.run(Each { mapping, channels: CHANNELS });
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
                let found = Statistics::of(&Moments::of_part(isa, &pixels, 1));
                let off = (found.variance[0] / variance - 1.0).abs();
                assert!(off < 2e-6, "{isa}: {far} at {at}: {off:e}");
                assert!((found.mean[0] - mean).abs() < 1e-6 * (1.0 + mean.abs()), "{isa}");
            }
            // Of the three that the pivot is one of two are far: the bound holds that `Moments` states.
            let mut pixels: Vec<f32> = (0..PIXELS).map(noise).collect();
            (pixels[0], pixels[PIXELS / 2]) = (far, far);
            let (mean, variance) = exactly(&pixels);
            let found = Statistics::of(&Moments::of_part(isa, &pixels, 1)).variance[0];
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
    let summed = |isa: Isa, summand: Gradients| {
        let (mut a, mut b) = (vec![0.0; CHANNELS], vec![0.0; CHANNELS]);
        isa.run(Sums { summand, channels: CHANNELS, pixels: 2, to: [&mut a, &mut b] });
    };
    refused("pivot", &|isa| {
        let (mut a, mut b) = (vec![0.0; CHANNELS], vec![0.0; CHANNELS]);
        let summand = sums::Deviations { xs, pivot: few };
        isa.run(Sums { summand, channels: CHANNELS, pixels: 2, to: [&mut a, &mut b] });
    });
    let gradients = |gate, mean| Gradients { xs, dz: xs, gate, mean, residual: None };
    refused("mean", &|isa| summed(isa, gradients(Gate::Open, few)));
    for (what, scale, shift) in [("gate's scale", few, all), ("gate's shift", all, few)] {
        refused(what, &|isa| summed(isa, gradients(Gate::Affine { scale, shift }, all)));
        refused(what, &|isa| {
            let mut z = vec![0.0; xs.len()];
            let (z, positive) = (&mut z[..], None);
            let mapping = Normalise { xs, scale, shift, residual: None, relu: true, z, positive };
            isa.run(Each { mapping, channels: CHANNELS });
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
            let mapping = Backward { xs, gate, by_gradient, by_input, constant, gradient };
            isa.run(Each { mapping, channels: CHANNELS });
        });
    }
}

#[test]
fn what_a_normalisation_computes_from_is_in_memory() {
    let Kernels::Native(native) = Kernels::parse("auto").unwrap() else { unreachable!() };
    let xs = Tensor::randn(0f32, 1., (2, 3, 3, 5), &Device::Cpu).unwrap();
    let [zeros, ones] =
        [0., 1.].map(|x| (Tensor::zeros(5, DType::F32, &Device::Cpu).unwrap() + x).unwrap());
    let [mean, var] = [&zeros, &ones].map(|start| Var::from_tensor(start).unwrap());
    for train in [false, true] {
        let maps = Maps::new(native, &xs).unwrap();
        let norm =
            |maps| batch_norm(maps, None, &ones, &zeros, (&mean, &var), None, true, train).unwrap();
        let first = norm(&maps);
        assert!(!first.values().in_memory(), "a normalisation alone has no pass over memory");
        let second = norm(&first);
        assert!(first.values().in_memory() && !second.values().in_memory());
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let case = Case {
        batch: 8,
        size: 24,
        channels: 72,
        relu: true,
        residual: true,
        shift: true,
        train: true,
        offset: 0.0,
    };
    let len = case.batch * case.size * case.size * case.channels;
    let draw = || Tensor::randn(0f32, 1., len, &Device::Cpu).unwrap();
    let (xs, residual, weight) = (draw(), draw(), draw());
    let kernels = Kernels::parse("auto").unwrap();
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let step = pool.install(|| step(kernels, case, &xs, &residual, &weight)).unwrap();
        let tensors = [vec![step.z], step.gradients, step.running.to_vec()].concat();
        tensors
            .iter()
            .map(|x| x.flatten_all().unwrap().to_vec1::<f32>().unwrap())
            .collect::<Vec<_>>()
    };
    let one = run(1);
    for threads in [2, 3] {
        assert!(one == run(threads), "{threads} threads");
    }
}
