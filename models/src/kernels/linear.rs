//! A linear layer: forward and backward are one matrix product each way per operand.

use candle_core::{Result, Shape, Tensor};

use super::handover::gradient;
use super::memory::Target;
use super::operand::{Operand, borrow};
use super::profile::{Timed, timed};
use super::projection::{ColumnSums, Panels, weight_gradient};
use super::simd::Isa;
use crate::kernels::custom_op::{Backprop, CustomOp, apply};

/// See [`ops::linear`](crate::ops::linear).
pub(crate) fn linear(isa: Isa, xs: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    timed(Timed::Linear, xs.dim(0)? * weight.elem_count(), || {
        apply(Linear { isa }, [xs, weight, bias])
    })
}

struct Linear {
    isa: Isa,
}

impl CustomOp<3> for Linear {
    const NAME: &'static str = "linear";

    fn forward(&self, [xs, weight, bias]: [Operand; 3]) -> Result<(Vec<f32>, Shape)> {
        let (outputs, inputs) = weight.shape().dims2()?;
        let batch = xs.shape().dims()[0];
        let mut ys = vec![0.0; batch * outputs];
        let weight = Panels::transposed(self.isa, weight.values()?, inputs);
        weight.affine(xs.values()?, bias.values()?, &mut ys);
        Ok((ys, (batch, outputs).into()))
    }

    fn backward(&self, [xs, weight, bias]: [&Tensor; 3], _: &Tensor, dy: &Tensor) -> Backprop<3> {
        timed(Timed::Linear, 2 * xs.dim(0)? * weight.elem_count(), || {
            let (inputs, dy) = (xs.dim(1)?, borrow(dy)?);
            let mut dx = vec![0.0; xs.elem_count()];
            Panels::new(self.isa, &borrow(weight)?, inputs).product(&dy, Target::Write(&mut dx));
            let dx = Tensor::from_vec(dx, xs.shape(), xs.device())?;
            let dw = gradient(weight, |dw| {
                weight_gradient(self.isa, &dy, &borrow(xs)?, inputs, Target::Write(dw));
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
