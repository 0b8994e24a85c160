//! A linear layer: forward and backward are one matrix product each way per operand.

use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor};

use super::handover::gradient;
use super::memory::Target;
use super::operand::{f32s, with_f32s};
use super::profile::{Kind, timed};
use super::projection::{ColumnSums, Panels, weight_gradient};
use super::simd::Isa;

/// `xs [B, I]` times `weight [O, I]` transposed, plus `bias [O]`: `[B, O]`. No size is 0.
///
/// # Errors
/// Operands that are not `f32` on the CPU.
pub(crate) fn linear(isa: Isa, xs: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    timed(Kind::Linear, xs.dim(0)? * weight.elem_count(), || {
        xs.contiguous()?.apply_op3(&weight.contiguous()?, &bias.contiguous()?, Linear { isa })
    })
}

struct Linear {
    isa: Isa,
}

impl CustomOp3 for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        xs: &CpuStorage,
        xs_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (outputs, inputs) = weight_layout.shape().dims2()?;
        let batch = xs_layout.dims()[0];
        let (xs, bias) = (f32s(xs, xs_layout)?, f32s(bias, bias_layout)?);
        let mut ys = bias.repeat(batch);
        let weight = Panels::transposed(self.isa, f32s(weight, weight_layout)?, inputs);
        weight.product(xs, Target::Add(&mut ys));
        Ok((CpuStorage::F32(ys), (batch, outputs).into()))
    }

    fn bwd(
        &self,
        xs: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        _ys: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        timed(Kind::Linear, 2 * xs.dim(0)? * weight.elem_count(), || {
            with_f32s(dy, |dy| {
                let inputs = xs.dim(1)?;
                let mut dx = vec![0.0; xs.elem_count()];
                with_f32s(weight, |weight| {
                    Panels::new(self.isa, weight, inputs).product(dy, Target::Write(&mut dx));
                    Ok(())
                })?;
                let dx = Tensor::from_vec(dx, xs.shape(), xs.device())?;
                let dw = gradient(weight, |dw| {
                    with_f32s(xs, |xs| {
                        weight_gradient(self.isa, dy, xs, inputs, dw);
                        Ok(())
                    })
                })?;
                let db = gradient(bias, |db| {
                    db.fill(0.0);
                    self.isa.run(ColumnSums { rows: dy, sums: db });
                    Ok(())
                })?;
                Ok((Some(dx), dw, db))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};
    use proptest::prelude::*;

    use super::*;
    use crate::kernels::{Kernels, Native};

    /// `rows` × `columns` products of `a(i, k)` and `b(k, j)`, in f64.
    fn product(
        (rows, columns, depth): (usize, usize, usize),
        a: impl Fn(usize, usize) -> f32,
        b: impl Fn(usize, usize) -> f32,
    ) -> Vec<f64> {
        let element = |i, j| (0..depth).map(|k| f64::from(a(i, k)) * f64::from(b(k, j))).sum();
        (0..rows)
            .flat_map(|i| (0..columns).map(move |j| (i, j)))
            .map(|(i, j)| element(i, j))
            .collect()
    }

    fn close(ours: &Tensor, theirs: &[f64]) {
        let ours = ours.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(ours.len(), theirs.len());
        for (ours, theirs) in ours.iter().zip(theirs) {
            assert!((f64::from(*ours) - theirs).abs() < 1e-4, "{ours} {theirs}");
        }
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
                (0..n as u64).map(|i| ((seed ^ stream).wrapping_mul(2 * i + 1) >> 40) as f32 / 8388608.0 - 1.0).collect()
            };
            let (x, w, b) = (values(1, batch * inputs), values(2, outputs * inputs), values(3, outputs));
            let g = values(4, batch * outputs);
            let ys: Vec<f64> = product((batch, outputs, inputs), |i, k| x[i * inputs + k], |k, j| w[j * inputs + k]);
            let ys: Vec<f64> = ys.iter().enumerate().map(|(i, y)| y + f64::from(b[i % outputs])).collect();
            let dx = product((batch, inputs, outputs), |i, k| g[i * outputs + k], |k, j| w[k * inputs + j]);
            let dw = product((outputs, inputs, batch), |i, k| g[k * outputs + i], |k, j| x[k * inputs + j]);
            let db = product((1, outputs, batch), |_, _| 1.0, |k, j| g[k * outputs + j]);
            let var = |values: &[f32], shape: &[usize]| Var::from_slice(values, shape, &Device::Cpu).unwrap();
            let (xs, weight, bias) = (var(&x, &[batch, inputs]), var(&w, &[outputs, inputs]), var(&b, &[outputs]));
            let g = Tensor::from_vec(g, (batch, outputs), &Device::Cpu).unwrap();
            for kernels in Kernels::available() {
                let Kernels::Native(Native { isa, .. }) = kernels else { continue };
                let out = linear(isa, &xs, &weight, &bias).unwrap();
                close(&out, &ys);
                let grads = out.mul(&g).unwrap().sum_all().unwrap().backward().unwrap();
                close(grads.get(&xs).unwrap(), &dx);
                close(grads.get(&weight).unwrap(), &dw);
                close(grads.get(&bias).unwrap(), &db);
            }
        }
    }
}
