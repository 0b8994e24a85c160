//! What candle is told of an operation: one to three arrays of f32 in, one out, and how gradients flow back.

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{
    CpuStorage, CustomOp1, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor, bail,
};

#[cfg(feature = "cuda")]
use super::launch::{Array, Gpu, View};
use crate::kernels::operand::f32s;

/// An operation on contiguous arrays of f32.
pub(super) trait Operation: Send + Sync + 'static {
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
    fn gradients(
        &self,
        _operands: &[Tensor],
        _result: &Tensor,
        _gradient: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        bail!("{}: has no gradient", Self::NAME)
    }
}

/// The result of an operation.
pub(super) fn apply(operation: impl Operation, operands: &[&Tensor]) -> Result<Tensor> {
    let operands = operands.iter().map(|xs| xs.contiguous()).collect::<Result<Vec<_>>>()?;
    let carrier = Carrier(operation);
    match operands.as_slice() {
        [one] => one.apply_op1(carrier),
        [one, two] => one.apply_op2(two, carrier),
        [one, two, three] => one.apply_op3(two, three, carrier),
        _ => bail!("candle takes one to three operands, not {}", operands.len()),
    }
}

/// Carries an operation through candle's traits.
struct Carrier<O>(O);

impl<O: Operation> Carrier<O> {
    fn on_cpu(&self, operands: &[(&CpuStorage, &Layout)]) -> Result<(CpuStorage, Shape)> {
        let operands = operands.iter().map(|(storage, layout)| f32s(storage, layout));
        let out = self.0.cpu(&operands.collect::<Result<Vec<_>>>()?);
        Ok((CpuStorage::F32(out), self.0.shape()))
    }

    #[cfg(feature = "cuda")]
    fn on_gpu(&self, operands: &[(&CudaStorage, &Layout)]) -> Result<(CudaStorage, Shape)> {
        let gpu = Gpu::of(operands[0].0);
        let views = operands.iter().map(|(storage, layout)| Gpu::view(storage, layout));
        let out = self.0.cuda(&gpu, &views.collect::<Result<Vec<_>>>()?)?;
        Ok((gpu.storage(out), self.0.shape()))
    }

    /// The gradients of so many operands.
    fn back<const N: usize>(
        &self,
        operands: [&Tensor; N],
        result: &Tensor,
        gradient: &Tensor,
    ) -> Result<[Option<Tensor>; N]> {
        let operands = operands.map(Tensor::detach);
        let gradients = self.0.gradients(&operands, &result.detach(), &gradient.detach())?;
        let mut gradients = gradients.into_iter();
        Ok(std::array::from_fn(|_| gradients.next().flatten()))
    }
}

impl<O: Operation> CustomOp1 for Carrier<O> {
    fn name(&self) -> &'static str {
        O::NAME
    }

    fn cpu_fwd(&self, s1: &CpuStorage, l1: &Layout) -> Result<(CpuStorage, Shape)> {
        self.on_cpu(&[(s1, l1)])
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, s1: &CudaStorage, l1: &Layout) -> Result<(CudaStorage, Shape)> {
        self.on_gpu(&[(s1, l1)])
    }

    fn bwd(&self, x1: &Tensor, result: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let [d1] = self.back([x1], result, gradient)?;
        Ok(d1)
    }
}

impl<O: Operation> CustomOp2 for Carrier<O> {
    fn name(&self) -> &'static str {
        O::NAME
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.on_cpu(&[(s1, l1), (s2, l2)])
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        s1: &CudaStorage,
        l1: &Layout,
        s2: &CudaStorage,
        l2: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.on_gpu(&[(s1, l1), (s2, l2)])
    }

    fn bwd(
        &self,
        x1: &Tensor,
        x2: &Tensor,
        result: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let [d1, d2] = self.back([x1, x2], result, gradient)?;
        Ok((d1, d2))
    }
}

impl<O: Operation> CustomOp3 for Carrier<O> {
    fn name(&self) -> &'static str {
        O::NAME
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
        s3: &CpuStorage,
        l3: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.on_cpu(&[(s1, l1), (s2, l2), (s3, l3)])
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        s1: &CudaStorage,
        l1: &Layout,
        s2: &CudaStorage,
        l2: &Layout,
        s3: &CudaStorage,
        l3: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.on_gpu(&[(s1, l1), (s2, l2), (s3, l3)])
    }

    fn bwd(
        &self,
        x1: &Tensor,
        x2: &Tensor,
        x3: &Tensor,
        result: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let [d1, d2, d3] = self.back([x1, x2, x3], result, gradient)?;
        Ok((d1, d2, d3))
    }
}
