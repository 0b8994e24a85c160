//! Every algorithm on every instruction set against the definition in f64.

use std::ops::Range;

use proptest::prelude::*;

use super::*;
use crate::kernels::element::Rounded;
use crate::kernels::simd::Isa;
use crate::kernels::testing::on_threads;
use crate::kernels::values::Compute;

/// Uniform in ±0.5, from a seed.
fn noise(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let draw = |_| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..len).map(draw).collect()
}

/// 3×3 windows with padding 1 on square images of `size` pixels.
fn square(batch: usize, size: usize, inputs: usize, outputs: usize, stride: usize) -> Sizes {
    let (height, width, kernel, padding) = (size, size, (3, 3), 1);
    Sizes { batch, height, width, inputs, outputs, kernel, stride, padding }
}

/// An input, a weight and a gradient of the result.
fn operands(sizes: &Sizes, seed: u64) -> [Vec<f32>; 3] {
    let xs = noise(sizes.input_len(), seed);
    [xs, noise(sizes.weight_len(), seed + 1), noise(sizes.output_len(), seed + 2)]
}

/// The result, the input gradient and the weight gradient, by the definition.
fn definition(sizes: &Sizes, xs: &[f32], w: &[f32], dy: &[f32]) -> [Vec<f64>; 3] {
    let Sizes { batch, height, width, inputs, outputs, kernel, stride, padding } = *sizes;
    let mut ys = vec![0.0; dy.len()];
    let mut dx = vec![0.0; xs.len()];
    let mut dw = vec![0.0; w.len()];
    let mut out = 0;
    for image in 0..batch {
        for (row, column) in
            (0..sizes.out_height()).flat_map(|y| (0..sizes.out_width()).map(move |x| (y, x)))
        {
            for (ky, kx) in (0..kernel.0).flat_map(|y| (0..kernel.1).map(move |x| (y, x))) {
                let (y, x) = (row * stride + ky, column * stride + kx);
                if y < padding || x < padding || y - padding >= height || x - padding >= width {
                    continue;
                }
                let pixel = ((image * height + y - padding) * width + x - padding) * inputs;
                for o in 0..outputs {
                    for i in 0..inputs {
                        let at = ((o * inputs + i) * kernel.0 + ky) * kernel.1 + kx;
                        let (w, x, d) =
                            (f64::from(w[at]), f64::from(xs[pixel + i]), f64::from(dy[out + o]));
                        ys[out + o] += x * w;
                        dx[pixel + i] += d * w;
                        dw[at] += d * x;
                    }
                }
            }
            out += outputs;
        }
    }
    [ys, dx, dw]
}

/// The same in memory of the kernels.
fn values<E: Element>(xs: &[f32]) -> Values<E> {
    let mut values = Scratch::of(xs.len());
    Target::Write(&mut values).take(xs);
    values.into()
}

/// The three results of `native`.
fn computed(native: Native, sizes: &Sizes, xs: &[f32], w: &[f32], dy: &[f32]) -> [Vec<f32>; 3] {
    match native.isa.bf16() {
        None => results::<f32>(native, sizes, &values(xs), w, &values(dy)),
        Some(_) => results::<Rounded>(native, sizes, &values(xs), w, &values(dy)),
    }
}

fn results<E: Element>(
    native: Native,
    sizes: &Sizes,
    xs: &Values<E>,
    w: &[f32],
    dy: &Values<E>,
) -> [Vec<f32>; 3] {
    let nan = |len| vec![E::of(f32::NAN); len];
    let (mut ys, mut dx, mut dw) = (nan(dy.len()), nan(xs.len()), vec![f32::NAN; w.len()]);
    let moments = forward(native, sizes, xs, w, &mut ys).mean_and_variance();
    let (mean, variance) =
        Moments::on_all_threads(native.isa, &ys, sizes.outputs).mean_and_variance();
    for (ours, whole) in [(moments.0, mean), (moments.1, variance)] {
        let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-5 * (1.0 + b.abs());
        assert!(ours.iter().zip(&whole).all(close), "{ours:?} {whole:?}");
    }
    weight_gradient(native, sizes, xs, dy, &mut dw);
    input_gradient(native, sizes, w, dy, Target::Write(&mut dx));
    // Added once more, then halved.
    input_gradient(native, sizes, w, dy, Target::Add(&mut dx));
    let widened = |xs: &[E], factor: f32| xs.iter().map(|x| factor * x.get()).collect();
    [widened(&ys, 1.0), widened(&dx, 0.5), dw]
}

/// The norm of the difference over the norm of `b`, or over a `share`-th of that of `magnitudes`, what `b` would be if
/// nothing cancelled, where that is more: a single sum can come to nearly nothing.
fn error(a: &[f32], b: &[f64], magnitudes: &[f64], share: f64) -> f64 {
    let norm = |of: &[f64]| of.iter().map(|b| b * b).sum::<f64>().sqrt();
    let norm = norm(b).max(norm(magnitudes) / share);
    let difference: f64 = a.iter().zip(b).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
    if norm == 0.0 { difference.sqrt() } else { difference.sqrt() / norm }
}

fn sizes_of(values: &[f32]) -> Vec<f32> {
    values.iter().map(|value| value.abs()).collect()
}

fn natives() -> impl Iterator<Item = Native> {
    let sets = Isa::available().chain(Isa::with_bf16());
    sets.flat_map(|isa| [false, true].map(|precise| Native { isa, precise }))
}

fn check(sizes: &Sizes, seed: u64) {
    let [xs, w, dy] = operands(sizes, seed);
    let expected = definition(sizes, &xs, &w, &dy);
    let [xs_size, w_size, dy_size] = [&xs, &w, &dy].map(|values| sizes_of(values));
    let magnitudes = definition(sizes, &xs_size, &w_size, &dy_size);
    for native in natives() {
        // In bf16 both operands are rounded, by at most 2⁻⁸ each: against sums in which nothing cancels.
        let (bound, share) = match (native.isa.bf16().is_some(), native.precise) {
            (true, true) => (8e-3, 1.0),
            (true, false) => (8e-2, 1.0),
            (false, true) => (1e-6, 16.0),
            (false, false) => (1e-5, 16.0),
        };
        let found = computed(native, sizes, &xs, &w, &dy);
        for (i, what) in ["result", "input gradient", "weight gradient"].into_iter().enumerate() {
            let error = error(&found[i], &expected[i], &magnitudes[i], share);
            assert!(error < bound, "{what} of {sizes:?} on {native:?}: relative error {error:e}");
        }
    }
}

fn channels() -> impl Strategy<Value = usize> {
    prop::sample::select(vec![1, 3, 12, 16, 17, 32, 33])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn three_by_three(
        batch in 1..4_usize, height in 1..=9_usize, width in 1..=9_usize, inputs in channels(),
        outputs in channels(), stride in 1..=2_usize, seed in 0..1000_u64,
    ) {
        check(
            &Sizes { batch, height, width, inputs, outputs, kernel: (3, 3), stride, padding: 1 },
            seed,
        );
    }

    #[test]
    fn odd_shapes(
        batch in 1..3_usize, height in 1..=9_usize, width in 1..=9_usize, inputs in 1..20_usize,
        outputs in 1..20_usize, kernel in (1..=5_usize, 1..=5_usize), stride in 1..=4_usize,
        padding in 0..=3_usize, seed in 0..1000_u64,
    ) {
        prop_assume!(height + 2 * padding >= kernel.0 && width + 2 * padding >= kernel.1);
        let sizes = Sizes { batch, height, width, inputs, outputs, kernel, stride, padding };
        check(&sizes, seed);
    }
}

#[test]
fn many_chunks_and_wide_panels() {
    for (batch, size, inputs, outputs, stride) in [
        (9, 32, 16, 16, 1),
        (3, 16, 64, 80, 1),
        (2, 17, 96, 48, 2),
        (2, 4, 160, 96, 1),
        (16, 12, 80, 72, 1),
        (10, 14, 33, 33, 1),
        (60, 7, 64, 80, 1),
        (70, 3, 64, 80, 1),
        (9, 27, 16, 40, 2),
    ] {
        check(&square(batch, size, inputs, outputs, stride), batch as u64);
    }
}

/// Lines so long that a chunk has fewer of them than the images are high, and taps.
#[test]
fn low_and_wide_images() {
    for height in [1, 2, 3] {
        let (width, inputs, outputs) = (100, 512, 12);
        let (kernel, stride, padding) = ((3, 3), 1, 1);
        check(&Sizes { batch: 1, height, width, inputs, outputs, kernel, stride, padding }, 3);
    }
}

/// One image of few pixels, for tools that take their time.
fn check_small(outputs: usize, kernel: (usize, usize), stride: usize) {
    let padding = kernel.0 / 2;
    let (height, width, inputs) = (2, 3, 12);
    check(&Sizes { batch: 1, height, width, inputs, outputs, kernel, stride, padding }, 1);
}

#[test]
fn windows_at_small_sizes() {
    check_small(1, (1, 1), 1);
    check_small(2, (2, 3), 2);
}

#[test]
fn stride_1_at_small_sizes() {
    check_small(12, (3, 3), 1);
}

#[test]
fn stride_2_at_small_sizes() {
    check_small(13, (3, 3), 2);
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    for stride in [1, 2, 3] {
        let sizes = Sizes { width: 12, ..square(7, 16, 40, 24, stride) };
        let [xs, w, dy] = operands(&sizes, 1);
        for native in natives() {
            let run = |threads| on_threads(threads, || computed(native, &sizes, &xs, &w, &dy));
            let one = run(1);
            for threads in [2, 3, 5] {
                assert_eq!(one, run(threads), "{native:?}, {threads} threads");
            }
        }
    }
}

/// Values that lie somewhere, to be computed: so many to a pixel.
struct Elsewhere<E>(Vec<E>, usize);

impl<E: Element> Compute<E> for Elsewhere<E> {
    fn compute(&self, range: Range<usize>, to: &mut [E]) {
        let Self(values, channels) = self;
        assert!(range.start.is_multiple_of(*channels) && range.end.is_multiple_of(*channels));
        to.copy_from_slice(&values[range]);
    }
}

#[test]
fn values_computed_when_they_are_read_give_the_same_bits() {
    for (batch, size, stride) in [(9, 32, 1), (3, 9, 2), (2, 5, 3)] {
        let sizes = Sizes { width: size + 1, ..square(batch, size, 17, 16, stride) };
        let [xs, w, dy] = operands(&sizes, 1);
        for native in natives() {
            match native.isa.bf16() {
                None => check_elsewhere::<f32>(native, &sizes, &xs, &w, &dy),
                Some(_) => check_elsewhere::<Rounded>(native, &sizes, &xs, &w, &dy),
            }
        }
    }
}

fn check_elsewhere<E: Element>(native: Native, sizes: &Sizes, xs: &[f32], w: &[f32], dy: &[f32]) {
    let elsewhere = |of: &[f32], n| Elsewhere(values::<E>(of).whole().to_vec(), n);
    let lazy = || Values::computed(xs.len(), sizes.inputs, elsewhere(xs, sizes.inputs));
    let expected = computed(native, sizes, xs, w, dy);
    let raw = Scratch::of(dy.len());
    for gradient in [
        Values::mapped(raw, sizes.outputs, elsewhere(dy, sizes.outputs)),
        Values::computed(dy.len(), sizes.outputs, elsewhere(dy, sizes.outputs)),
    ] {
        assert_eq!(results(native, sizes, &lazy(), w, &gradient), expected, "{native:?}");
        assert_eq!(results(native, sizes, &lazy(), w, &gradient), expected, "{native:?}");
        let (found, expected) = (gradient.whole(), values::<E>(dy));
        assert!(found.iter().zip(expected.whole()).all(|(a, b)| a.get() == b.get()));
    }
}

/// The table in the module's documentation: stride, whether precise, and the errors of the result, the input gradient
/// and the weight gradient.
const DOCUMENTED: [(usize, bool, [f64; 3]); 4] = [
    (1, false, [9.5e-7, 9.0e-7, 6.2e-7]),
    (2, false, [8.0e-7, 8.0e-7, 4.0e-7]),
    (1, true, [4.2e-7, 1.7e-7, 1.3e-7]),
    (2, true, [4.2e-7, 1.7e-7, 1.2e-7]),
];

#[test]
fn rounding_errors_are_those_documented() {
    for (stride, precise, documented) in DOCUMENTED {
        let sizes = square(4, 8, 256, 64, stride);
        let [xs, w, dy] = operands(&sizes, 1);
        let expected = definition(&sizes, &xs, &w, &dy);
        // Of bf16 what is rounded in it, whatever sums the products: both factors 2.4e-3 of the norm, five times as much at
        // the points of minimal filtering; and the result, unless it is the weight's.
        for isa in Isa::with_bf16() {
            for (found, expected) in
                computed(Native { isa, precise }, &sizes, &xs, &w, &dy).iter().zip(&expected)
            {
                let error = error(found, expected, &[], 1.0);
                let documented = if precise { 1.5e-3..3.0e-3 } else { 1.5e-3..1.3e-2 };
                assert!(documented.contains(&error), "stride {stride}, {isa}: {error:e}");
                println!("stride {stride}, {isa}, precise {precise}: {error:e}");
            }
        }
        for isa in Isa::available() {
            let native = Native { isa, precise };
            let found = computed(native, &sizes, &xs, &w, &dy);
            for ((found, expected), documented) in found.iter().zip(&expected).zip(documented) {
                let error = error(found, expected, &[], 1.0);
                assert!(
                    (0.75 * documented..documented).contains(&error),
                    "stride {stride}, {native:?}: {error:e} instead of {documented:e}"
                );
            }
        }
    }
}
