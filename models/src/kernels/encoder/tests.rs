//! Attention against its definition in f64, and both halves of an encoder layer whatever the padding and the threads.

use candle_core::{Device, Tensor, Var};

use super::{feed_forward, self_attention};
use crate::kernels::simd::Isa;
use crate::kernels::testing::{
    are_slopes, flat, on_threads, packing, value_and_gradients, widened,
};
use crate::packing::Packing;
use crate::parameters::{Dense, FeedForward, Gelu, Norm, Reach, SelfAttention};

/// Values about `scale` from `offset`, neighbours on either side of it, so that no row is almost without spread.
fn wave(shape: &[usize], frequency: f64, scale: f64, offset: f64) -> Var {
    let count = shape.iter().product::<usize>();
    let value = |i: usize| {
        let side = if i.is_multiple_of(2) { 0.5 } else { -0.5 };
        (((i as f64 * frequency).sin() + side) * scale + offset) as f32
    };
    Var::from_vec((1..=count).map(value).collect(), shape, &Device::Cpu).unwrap()
}

/// A row for each of so many tokens and the parameters of a half whose projections are of these widths.
fn operands(rows: usize, dim: usize, first: usize, second: usize, seed: f64) -> Vec<Var> {
    let shapes = [
        vec![rows, dim],
        vec![dim],
        vec![dim],
        vec![first, dim],
        vec![first],
        vec![dim, second],
        vec![dim],
    ];
    // Weights such that scores do not lie so far apart that rounding decides.
    let vars = shapes.iter().enumerate().map(|(i, shape)| {
        let scale = if i > 0 && shape.len() == 2 { 1.0 / (shape[1] as f64).sqrt() } else { 1.0 };
        wave(shape, seed + 0.37 * i as f64, scale, if i == 1 { 1.5 } else { 0.0 })
    });
    vars.collect()
}

fn norm(vars: &[Var]) -> Norm {
    Norm { weight: vars[1].as_tensor().clone(), bias: vars[2].as_tensor().clone() }
}

fn dense(vars: &[Var], first: usize) -> Dense {
    let [weight, bias] = [first, first + 1].map(|i| vars[i].as_tensor().clone());
    Dense { weight, bias }
}

const PAST: Reach = Reach::Past { rotary: false };

fn attention(vars: &[Var], heads: usize, reach: Reach) -> SelfAttention {
    let (in_proj, out_proj) = (dense(vars, 3), dense(vars, 5));
    SelfAttention { norm: norm(vars), in_proj, out_proj, heads, reach }
}

fn network(vars: &[Var]) -> FeedForward {
    let (linear1, linear2) = (dense(vars, 3), dense(vars, 5));
    FeedForward { norm: norm(vars), linear1, linear2, gelu: Gelu::Exact }
}

/// Texts of these numbers of tokens, padded to the longest.
fn texts(lengths: &[usize]) -> Packing {
    let longest = lengths.iter().copied().max().unwrap().max(1);
    let id = |length: usize| move |at| u32::from(at < length);
    packing(lengths.iter().flat_map(|&length| (0..longest).map(id(length))).collect(), longest)
}

/// `Σ sin` of the attention of texts of these lengths with its norm, projections and residual, by the definition.
fn by_definition(values: &[Vec<f64>], lengths: &[usize], heads: usize, causal: bool) -> f64 {
    let [xs, gamma, beta, first, first_bias, second, second_bias] = values else {
        panic!("rows and six parameters")
    };
    let (dim, width) = (gamma.len(), gamma.len() / heads);
    let project = |row: &[f64], weight: &[f64], bias: &[f64]| -> Vec<f64> {
        let outputs = weight.chunks(row.len()).zip(bias);
        outputs.map(|(w, b)| w.iter().zip(row).map(|(w, x)| w * x).sum::<f64>() + b).collect()
    };
    let normal = |row: &[f64]| -> Vec<f64> {
        let mean = row.iter().sum::<f64>() / dim as f64;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / dim as f64;
        let scaled = row.iter().map(|x| (x - mean) / (variance + 1e-5).sqrt());
        scaled.zip(gamma.iter().zip(beta)).map(|(x, (gamma, beta))| x * gamma + beta).collect()
    };
    let (mut total, mut start) = (0.0, 0);
    for &length in lengths {
        let rows = &xs[start * dim..(start + length) * dim];
        start += length;
        let all: Vec<Vec<f64>> =
            rows.chunks(dim).map(|row| project(&normal(row), first, first_bias)).collect();
        for (at, (row, query)) in rows.chunks(dim).zip(&all).enumerate() {
            let all = if causal { &all[..=at] } else { &all[..] };
            let mut mixed = vec![0.0; dim];
            for (head, mixed) in mixed.chunks_mut(width).enumerate() {
                let at = head * width;
                let score = |other: &Vec<f64>| -> f64 {
                    let keys = &other[dim + at..][..width];
                    let product: f64 = query[at..].iter().zip(keys).map(|(q, k)| q * k).sum();
                    (product / (width as f64).sqrt()).exp()
                };
                let powers: Vec<f64> = all.iter().map(score).collect();
                for (power, other) in powers.iter().zip(all) {
                    for (sum, value) in mixed.iter_mut().zip(&other[2 * dim + at..]) {
                        *sum += power / powers.iter().sum::<f64>() * value;
                    }
                }
            }
            let ys = project(&mixed, second, second_bias);
            total += ys.iter().zip(row).map(|(y, x)| (y + x).sin()).sum::<f64>();
        }
    }
    total
}

#[test]
fn gradients_of_attention_follow_finite_differences_in_f64() {
    let (lengths, dim, heads) = ([3, 0, 1, 4], 4, 2);
    let packing = texts(&lengths);
    let vars = operands(packing.rows(), dim, 3 * dim, dim, 0.8);
    let mut values = widened(&vars);
    for (isa, reach) in Isa::available().flat_map(|isa| [(isa, Reach::Text), (isa, PAST)]) {
        let definition =
            |values: &[Vec<f64>]| by_definition(values, &lengths, heads, reach == PAST);
        let ys = self_attention(isa, &vars[0], &packing, &attention(&vars, heads, reach)).unwrap();
        let all = value_and_gradients(&ys, 1.0, &vars);
        let loss: f64 = all[0].iter().map(|&y| f64::from(y).sin()).sum();
        assert!((loss - definition(&values)).abs() < 1e-4, "{isa}: {loss}");
        are_slopes(isa, &all[1..], &mut values, definition, |slope| 2e-4 * (1.0 + slope.abs()));
    }
}

#[test]
fn the_same_bits_whatever_the_padding_and_on_any_number_of_threads() {
    let (lengths, dim) = ([70, 0, 90, 3, 61, 130], 32);
    let tight = texts(&lengths);
    // Between the tokens too: padding before every one.
    let longest = 2 * tight.length();
    let wide = lengths.iter().flat_map(|&length| (0..longest).map(move |at| (at, length)));
    let wide = wide.map(|(at, length)| u32::from(at % 2 == 1 && at < 2 * length)).collect();
    let wide = packing(wide, longest);
    let vars = operands(tight.rows(), dim, 3 * dim, dim, 0.6);
    let of = attention(&vars, 4, PAST);
    let other = operands(tight.rows(), dim, 48, 48, 0.4);
    let network = network(&other);
    for isa in Isa::available() {
        let both = |packing: &Packing, threads: usize| {
            on_threads(threads, || {
                let ys = self_attention(isa, &vars[0], packing, &of).unwrap();
                let zs = feed_forward(isa, &other[0], packing, &network).unwrap();
                (value_and_gradients(&ys, 1.0, &vars), value_and_gradients(&zs, 1.0, &other))
            })
        };
        let one = both(&tight, 1);
        for (packing, threads) in [(&wide, 1), (&tight, 2), (&wide, 3)] {
            assert!(both(packing, threads) == one, "{isa}, {threads} threads");
        }
    }
}

#[test]
fn a_value_that_is_no_number_shows_in_all_of_its_text_and_nowhere_else() {
    let (packing, dim) = (texts(&[3, 20, 2]), 16);
    for value in [f32::NAN, f32::INFINITY] {
        let vars = operands(packing.rows(), dim, 3 * dim, dim, 0.6);
        let mut xs = flat(&vars[0]);
        xs[(3 + 7) * dim + 5] = value;
        let xs = Tensor::from_vec(xs, (packing.rows(), dim), &Device::Cpu).unwrap();
        for isa in Isa::available() {
            let ys = flat(
                &self_attention(isa, &xs, &packing, &attention(&vars, 2, Reach::Text)).unwrap(),
            );
            for (row, ys) in ys.chunks(dim).enumerate() {
                let all = ys.iter().all(|y| y.is_nan());
                let none = ys.iter().all(|y| y.is_finite());
                assert!(if (3..23).contains(&row) { all } else { none }, "{isa}: {row}: {ys:?}");
            }
        }
    }
}
