//! Against the composition, at ties, kinks and padding, on every instruction set.

use candle_core::{Device, Var};
use proptest::prelude::*;

use super::*;
use crate::composed;
use crate::kernels::testing::{are_slopes, close, flat, value_and_gradients, widened};

fn wave(shape: &[usize], frequency: f64) -> Var {
    let count = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..count).map(|i| (i as f64 * frequency).sin() as f32).collect();
    Var::from_vec(values, shape, &Device::Cpu).unwrap()
}

/// Weights and biases, by twos.
fn pairs(vars: &[Var]) -> Vec<(&Tensor, &Tensor)> {
    vars.chunks_exact(2).map(|pair| (pair[0].as_tensor(), pair[1].as_tensor())).collect()
}

/// Multiples of 1/4 in ±2: sums of their products are exact, so that no rounding decides
/// between two equal maxima.
fn quarters(shape: &[usize], seed: u64) -> Var {
    let count = shape.iter().product::<usize>() as u64;
    let draw = |i: u64| seed.wrapping_add(i).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 60;
    let values: Vec<f32> = (0..count).map(|i| draw(i) as f32 / 4.0 - 2.0).collect();
    Var::from_vec(values, shape, &Device::Cpu).unwrap()
}

proptest! {
    #[test]
    fn maxima_and_gradients_agree_with_the_composition(
        batch in 1usize..5,
        length in 5usize..12,
        dim in prop::sample::select(vec![1usize, 3, 17]),
        sizes in prop::collection::vec((prop::sample::select(vec![1usize, 5, 33, 40]), 1usize..6), 1..4),
        seed: u64,
    ) {
        let mut vars = vec![quarters(&[batch, length, dim], seed)];
        for &(filters, width) in &sizes {
            vars.push(quarters(&[filters, dim, width], seed ^ (vars.len() as u64) << 32));
            vars.push(quarters(&[filters], seed ^ (vars.len() as u64) << 32));
        }
        let (xs, filters) = (&vars[0], pairs(&vars[1..]));
        let theirs = filters.iter().map(|(w, b)| composed::conv1d_relu_max(xs, w, b).unwrap());
        let theirs = Tensor::cat(&theirs.collect::<Vec<_>>(), 1).unwrap();
        let theirs = value_and_gradients(&theirs, 3.0, &vars);
        for isa in Isa::available() {
            let ours = conv1d_relu_max(isa, xs, None, &filters).unwrap();
            let ours = value_and_gradients(&ours, 3.0, &vars);
            prop_assert_eq!(&ours[0], &theirs[0]);
            for (ours, theirs) in ours[1..].iter().zip(&theirs[1..]) {
                close(isa, ours, theirs, 1e-5)?;
            }
        }
    }
}

/// Words that stand in several places are multiplied once, and nothing else changes: not a bit.
#[test]
fn words_that_repeat_give_what_words_of_their_own_give() {
    let (batch, length, dim) = (3, 11, 17);
    let ids: Vec<u32> = (0..batch * length).map(|i| (i * i) as u32 % 7 * 1000).collect();
    let table = wave(&[7, dim], 0.37);
    let rows: Vec<u32> = ids.iter().map(|id| id / 1000).collect();
    let rows = Tensor::from_vec(rows, batch * length, &Device::Cpu).unwrap();
    let xs = table.index_select(&rows, 0).unwrap().reshape((batch, length, dim)).unwrap();
    let xs = Var::from_tensor(&xs).unwrap();
    let ids = Tensor::from_vec(ids, (batch, length), &Device::Cpu).unwrap();
    let mut vars = vec![xs];
    for (filters, width) in [(37, 3), (16, 1), (4, 5)] {
        vars.extend([wave(&[filters, dim, width], 1.3), wave(&[filters], 0.5)]);
    }
    for isa in Isa::available() {
        let of = |ids| {
            let ys = conv1d_relu_max(isa, &vars[0], ids, &pairs(&vars[1..])).unwrap();
            value_and_gradients(&ys, 3.0, &vars)
        };
        assert_eq!(of(Some(&ids)), of(None), "{isa}");
    }
}

#[test]
fn gradients_follow_finite_differences_in_f64() {
    let (sizes, taps) = ([3usize, 7, 4], 3);
    let vars = [wave(&sizes, 0.9), wave(&[5, 4, taps], 1.3), wave(&[5], 0.5)];
    let loss = |values: &[Vec<f64>]| -> f64 {
        let [x, w, b] = values else { panic!("texts, weights and biases") };
        let value = |text: usize, filter: usize, start: usize| {
            let at = |k: usize, d: usize| {
                x[(text * 7 + start + k) * 4 + d] * w[(filter * 4 + d) * taps + k]
            };
            b[filter] + (0..taps).flat_map(|k| (0..4).map(move |d| at(k, d))).sum::<f64>()
        };
        let peak = |text, filter| (0..5).map(|t| value(text, filter, t)).fold(0.0, f64::max);
        (0..3)
            .flat_map(|t| (0..5).map(move |f| (t, f)))
            .map(|(t, f)| (3.0 * peak(t, f)).sin())
            .sum()
    };
    let mut values = widened(&vars);
    for isa in Isa::available() {
        let ys = conv1d_relu_max(isa, &vars[0], None, &pairs(&vars[1..])).unwrap();
        let all = value_and_gradients(&ys, 3.0, &vars);
        are_slopes(isa, &all[1..], &mut values, loss, |_| 1e-4);
    }
}

#[test]
fn nan_shows_wherever_it_stands() {
    let (weight, bias) = (wave(&[1, 1, 1], 0.0), wave(&[1], 0.0));
    weight.set(&Tensor::new(&[[[1f32]]], &Device::Cpu).unwrap()).unwrap();
    for isa in Isa::available() {
        for at in 0..3 {
            let mut values = [1.0, 2.0, 3.0];
            values[at] = f32::NAN;
            let xs = Tensor::from_slice(&values, (1, 3, 1), &Device::Cpu).unwrap();
            let ys = conv1d_relu_max(isa, &xs, None, &[(&weight, &bias)]).unwrap();
            assert!(flat(&ys)[0].is_nan(), "{isa} {at}");
        }
    }
}
