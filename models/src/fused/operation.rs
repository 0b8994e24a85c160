//! Operations with a CUDA kernel and a twin in plain Rust.

#[cfg(feature = "cuda")]
use candle_core::{CudaStorage, Layout};
use candle_core::{Result, Shape, Tensor, bail};

#[cfg(feature = "cuda")]
use super::launch::{Array, Gpu, View};
use crate::kernels::custom_op::{self, Apply, Backprop, Candle};
use crate::kernels::operand::Operand;

/// An operation on `N` contiguous arrays of f32.
pub(super) trait FusedOperation<const N: usize>: Send + Sync + 'static {
    /// Its name, for messages.
    const NAME: &'static str;

    /// The shape of its result.
    fn shape(&self) -> Shape;

    /// What it computes, as simply as it can be said.
    fn cpu(&self, operands: &[&[f32]]) -> Vec<f32>;

    /// The same by a kernel.
    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &Gpu, operands: &[View]) -> Result<Array>;

    /// The gradient of each operand, given that of the result; `None` where nobody needs it. The tensors are no part of
    /// a graph.
    ///
    /// # Errors
    /// For an operation of which nobody needs the gradient.
    fn gradients(&self, _operands: [Tensor; N], _result: Tensor, _gradient: Tensor) -> Backprop<N> {
        bail!("{}: has no gradient", Self::NAME)
    }
}

/// The result of an operation.
pub(super) fn apply<const N: usize, O: FusedOperation<N>>(
    operation: O,
    operands: [&Tensor; N],
) -> Result<Tensor>
where
    Candle: Apply<N>,
{
    custom_op::apply(FusedCarrier(operation), operands)
}

/// Carries an operation to candle.
struct FusedCarrier<O>(O);

impl<const N: usize, O: FusedOperation<N>> custom_op::CustomOp<N> for FusedCarrier<O> {
    const NAME: &'static str = O::NAME;

    fn forward(&self, operands: [Operand; N]) -> Result<(Vec<f32>, Shape)> {
        let operands = operands.into_iter().map(Operand::values).collect::<Result<Vec<_>>>()?;
        Ok((self.0.cpu(&operands), self.0.shape()))
    }

    #[cfg(feature = "cuda")]
    fn forward_on_gpu(
        &self,
        operands: [(&CudaStorage, &Layout); N],
    ) -> Result<(CudaStorage, Shape)> {
        let gpu = Gpu::holding(operands[0].0);
        let views = operands.into_iter().map(|(storage, layout)| Gpu::view(storage, layout));
        let out = self.0.cuda(&gpu, &views.collect::<Result<Vec<_>>>()?)?;
        Ok((gpu.storage(out), self.0.shape()))
    }

    fn backward(&self, operands: [&Tensor; N], result: &Tensor, gradient: &Tensor) -> Backprop<N> {
        self.0.gradients(operands.map(Tensor::detach), result.detach(), gradient.detach())
    }
}
