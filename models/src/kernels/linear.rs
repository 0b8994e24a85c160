//! A linear layer: forward and backward are one matrix product each way per operand.

use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor};

use super::gemm::{Gemm, Left, Right, Target};
use super::handover::gradient;
use super::operand::{f32s, with_f32s};
use super::profile::{Kind, timed};
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
        let weight = transposed(f32s(weight, weight_layout)?, inputs);
        let mut ys = bias.repeat(batch);
        self.isa.run(Gemm {
            rows: batch,
            columns: outputs,
            depth: inputs,
            a: xs,
            left: Left::Rows(inputs),
            b: &weight,
            right: Right::Rows(outputs),
            c: Target::Add(&mut ys),
            c_row: outputs,
        });
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
                let dx = self.input_gradient(xs, weight, dy)?;
                let dw = gradient(weight, |dw| self.weight_gradient(xs, dy, dw))?;
                let db = gradient(bias, |db| {
                    db.fill(0.0);
                    for row in dy.chunks_exact(db.len()) {
                        db.iter_mut().zip(row).for_each(|(sum, dy)| *sum += dy);
                    }
                    Ok(())
                })?;
                Ok((Some(dx), dw, db))
            })
        })
    }
}

impl Linear {
    fn input_gradient(&self, xs: &Tensor, weight: &Tensor, dy: &[f32]) -> Result<Tensor> {
        let (outputs, inputs) = weight.dims2()?;
        let mut dx = vec![0.0; xs.elem_count()];
        with_f32s(weight, |weight| {
            self.isa.run(Gemm {
                rows: dy.len() / outputs,
                columns: inputs,
                depth: outputs,
                a: dy,
                left: Left::Rows(outputs),
                b: weight,
                right: Right::Rows(inputs),
                c: Target::Write(&mut dx),
                c_row: inputs,
            });
            Ok(())
        })?;
        Tensor::from_vec(dx, xs.shape(), xs.device())
    }

    /// Writes all of `dw`.
    fn weight_gradient(&self, xs: &Tensor, dy: &[f32], dw: &mut [f32]) -> Result<()> {
        let (batch, inputs) = xs.dims2()?;
        let outputs = dw.len() / inputs;
        with_f32s(xs, |xs| {
            self.isa.run(Gemm {
                rows: outputs,
                columns: inputs,
                depth: batch,
                a: dy,
                left: Left::Columns(outputs),
                b: xs,
                right: Right::Rows(inputs),
                c: Target::Write(dw),
                c_row: inputs,
            });
            Ok(())
        })
    }
}

/// The transpose of a matrix of `columns` columns.
fn transposed(xs: &[f32], columns: usize) -> Vec<f32> {
    let column = |column: usize| xs.iter().skip(column).step_by(columns);
    (0..columns).flat_map(column).copied().collect()
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
