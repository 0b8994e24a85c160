//! A linear layer: forward and backward are one matrix product each way per operand.

use candle_core::{Result, Shape, Tensor};

use super::handover::gradient;
use super::memory::Target;
use super::operand::{Operand, borrow};
use super::profile::{Kind, timed};
use super::projection::{ColumnSums, Panels, weight_gradient};
use super::simd::Isa;
use crate::kernels::custom_op::{Gradients, Operation, apply};

/// `xs [B, I]` times `weight [O, I]` transposed, plus `bias [O]`: `[B, O]`. No size is 0.
///
/// # Errors
/// Operands that are not `f32` on the CPU.
pub(crate) fn linear(isa: Isa, xs: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    timed(Kind::Linear, xs.dim(0)? * weight.elem_count(), || {
        apply(Linear { isa }, [xs, weight, bias])
    })
}

struct Linear {
    isa: Isa,
}

impl Operation<3> for Linear {
    const NAME: &'static str = "linear";

    fn forward(&self, [xs, weight, bias]: [Operand; 3]) -> Result<(Vec<f32>, Shape)> {
        let (outputs, inputs) = weight.shape().dims2()?;
        let batch = xs.shape().dims()[0];
        let mut ys = vec![0.0; batch * outputs];
        let weight = Panels::transposed(self.isa, weight.values()?, inputs);
        weight.affine(xs.values()?, bias.values()?, &mut ys);
        Ok((ys, (batch, outputs).into()))
    }

    fn backward(&self, [xs, weight, bias]: [&Tensor; 3], _: &Tensor, dy: &Tensor) -> Gradients<3> {
        timed(Kind::Linear, 2 * xs.dim(0)? * weight.elem_count(), || {
            let (inputs, dy) = (xs.dim(1)?, borrow(dy)?);
            let mut dx = vec![0.0; xs.elem_count()];
            Panels::new(self.isa, &borrow(weight)?, inputs).product(&dy, Target::Write(&mut dx));
            let dx = Tensor::from_vec(dx, xs.shape(), xs.device())?;
            let dw = gradient(weight, |dw| {
                weight_gradient(self.isa, &dy, &borrow(xs)?, inputs, dw);
                Ok(())
            })?;
            let db = gradient(bias, |db| {
                db.fill(0.0);
                self.isa.run(ColumnSums { rows: &dy, sums: db });
                Ok(())
            })?;
            Ok([Some(dx), dw, db])
        })
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};
    use proptest::prelude::*;

    use super::*;
    use crate::kernels::testing::flat;

    /// The products of `a(i, k)` and `b(k, j)` summed over `k`, in f64.
    fn product(
        [rows, columns, depth]: [usize; 3],
        a: impl Fn(usize, usize) -> f32,
        b: impl Fn(usize, usize) -> f32,
    ) -> Vec<f64> {
        let element = |i, j| (0..depth).map(|k| f64::from(a(i, k)) * f64::from(b(k, j))).sum();
        (0..rows * columns).map(|at| element(at / columns, at % columns)).collect()
    }

    proptest! {
        #[test]
        fn products_and_gradients_follow_the_definition(
            batch in 1usize..20,
            inputs in prop::sample::select(vec![1usize, 3, 17, 64]),
            outputs in 1usize..20,
            seed: u64,
        ) {
            let values = |stream: u64, n: usize| -> Vec<f32> {
                let value = |i| ((seed ^ stream).wrapping_mul(2 * i + 1) >> 40) as f32 / 8_388_608.0 - 1.0;
                (0..n as u64).map(value).collect()
            };
            let (x, w, b) = (values(1, batch * inputs), values(2, outputs * inputs), values(3, outputs));
            let g = values(4, batch * outputs);
            let mut ys = product([batch, outputs, inputs], |i, k| x[i * inputs + k], |k, j| w[j * inputs + k]);
            ys.iter_mut().enumerate().for_each(|(i, y)| *y += f64::from(b[i % outputs]));
            let dx = product([batch, inputs, outputs], |i, k| g[i * outputs + k], |k, j| w[k * inputs + j]);
            let dw = product([outputs, inputs, batch], |i, k| g[k * outputs + i], |k, j| x[k * inputs + j]);
            let db = product([1, outputs, batch], |_, _| 1.0, |k, j| g[k * outputs + j]);
            let var = |values: &[f32], shape: &[usize]| Var::from_slice(values, shape, &Device::Cpu).unwrap();
            let vars = [var(&x, &[batch, inputs]), var(&w, &[outputs, inputs]), var(&b, &[outputs])];
            let g = Tensor::from_vec(g, (batch, outputs), &Device::Cpu).unwrap();
            for isa in Isa::available() {
                let out = linear(isa, &vars[0], &vars[1], &vars[2]).unwrap();
                let grads = out.mul(&g).unwrap().sum_all().unwrap().backward().unwrap();
                let found = vars.iter().map(|var| flat(grads.get(var).unwrap()));
                let found = std::iter::once(flat(&out)).chain(found);
                for (ours, expected) in found.zip([&ys, &dx, &dw, &db]) {
                    prop_assert_eq!(ours.len(), expected.len());
                    for (ours, expected) in ours.iter().zip(expected) {
                        prop_assert!((f64::from(*ours) - expected).abs() < 1e-4, "{isa}: {ours} {expected}");
                    }
                }
            }
        }
    }
}
