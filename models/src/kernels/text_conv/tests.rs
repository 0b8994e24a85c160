//! Words that repeat, and values that are no numbers.

use candle_core::{Device, Var};

use super::*;
use crate::kernels::testing::{flat, value_and_gradients, wave};

/// Weights and biases, by twos.
fn pairs(vars: &[Var]) -> Vec<(&Tensor, &Tensor)> {
    vars.chunks_exact(2).map(|pair| (pair[0].as_tensor(), pair[1].as_tensor())).collect()
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
