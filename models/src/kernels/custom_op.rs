//! What candle is given as an operation of ours: one to three operands in, one result of f32 out, and how gradients flow
//! back. candle has a trait for each number of operands, with a storage and a layout for each of them; here is one.

use std::sync::OnceLock;

use candle_core::{CpuStorage, CustomOp1, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor};
#[cfg(feature = "cuda")]
use candle_core::{CudaStorage, bail};

use super::operand::Operand;

/// What a backward pass gives `N` operands: each its gradient, unless nobody needs it, or it was
/// [handed over](crate::kernels::handover).
pub(crate) type Backprop<const N: usize> = Result<[Option<Tensor>; N]>;

/// An operation on `N` operands, which are contiguous.
pub(crate) trait CustomOp<const N: usize>: Send + Sync + 'static {
    /// Its name, for messages.
    const NAME: &'static str;

    /// The values of the result, and its shape.
    ///
    /// # Errors
    /// Operands of another type than the operation takes, or that do not fit one another.
    fn forward(&self, operands: [Operand; N]) -> Result<(Vec<f32>, Shape)>;

    /// The same on a GPU.
    ///
    /// # Errors
    /// As [`forward`](Self::forward), those of the driver, and for operations that have no kernel there.
    #[cfg(feature = "cuda")]
    fn forward_on_gpu(&self, _: [(&CudaStorage, &Layout); N]) -> Result<(CudaStorage, Shape)> {
        bail!("{}: has no kernel for GPUs", Self::NAME)
    }

    /// The gradient of each operand from that of the result, which is contiguous.
    fn backward(&self, operands: [&Tensor; N], result: &Tensor, gradient: &Tensor) -> Backprop<N>;
}

/// The result of an operation on these operands, brought into row-major order first if they are not.
pub(crate) fn apply<const N: usize, O: CustomOp<N>>(
    operation: O,
    operands: [&Tensor; N],
) -> Result<Tensor>
where
    Candle: Apply<N>,
{
    let mut contiguous = operands.map(Tensor::clone);
    for xs in &mut contiguous {
        *xs = xs.contiguous()?;
    }
    Candle::apply(CandleCarrier(operation), contiguous)
}

/// Whoever applies operations of so many operands.
pub(crate) trait Apply<const N: usize> {
    fn apply<O: CustomOp<N>>(operation: CandleCarrier<O>, operands: [Tensor; N]) -> Result<Tensor>;
}

/// candle, which takes one to three operands.
pub(crate) struct Candle;

/// Carries an operation through candle's traits.
pub(crate) struct CandleCarrier<O>(O);

/// candle's trait for operations of so many operands, each with names for its storage, its layout and its tensor.
macro_rules! carry {
    ($n:literal, $candle:ident, [$($storage:ident $layout:ident $x:ident),+], $gradients:ty) => {
        impl Apply<$n> for Candle {
            fn apply<O: CustomOp<$n>>(op: CandleCarrier<O>, [$($x),+]: [Tensor; $n]) -> Result<Tensor> {
                carry!(@apply op $($x),+)
            }
        }

        impl<O: CustomOp<$n>> $candle for CandleCarrier<O> {
            fn name(&self) -> &'static str {
                O::NAME
            }

            fn cpu_fwd(&self, $($storage: &CpuStorage, $layout: &Layout),+) -> Result<(CpuStorage, Shape)> {
                let (values, shape) = self.0.forward([$(Operand::new($storage, $layout)),+])?;
                Ok((CpuStorage::F32(values), shape))
            }

            #[cfg(feature = "cuda")]
            fn cuda_fwd(&self, $($storage: &CudaStorage, $layout: &Layout),+) -> Result<(CudaStorage, Shape)> {
                self.0.forward_on_gpu([$(($storage, $layout)),+])
            }

            fn bwd(&self, $($x: &Tensor,)+ result: &Tensor, gradient: &Tensor) -> Result<$gradients> {
                let [$($x),+] = self.0.backward([$($x),+], result, &gradient.contiguous()?)?;
                Ok(($($x),+))
            }
        }
    };
    (@apply $op:ident $x1:ident) => { $x1.apply_op1($op) };
    (@apply $op:ident $x1:ident, $x2:ident) => { $x1.apply_op2(&$x2, $op) };
    (@apply $op:ident $x1:ident, $x2:ident, $x3:ident) => { $x1.apply_op3(&$x2, &$x3, $op) };
}

carry!(1, CustomOp1, [s1 l1 x1], Option<Tensor>);
carry!(2, CustomOp2, [s1 l1 x1, s2 l2 x2], (Option<Tensor>, Option<Tensor>));
carry!(3, CustomOp3, [s1 l1 x1, s2 l2 x2, s3 l3 x3], (Option<Tensor>, Option<Tensor>, Option<Tensor>));

/// What an operation's forward pass leaves to its backward pass.
pub(crate) struct Saved<T>(OnceLock<T>);

impl<T> Saved<T> {
    /// Nothing yet.
    pub(crate) fn nothing() -> Self {
        Self(OnceLock::new())
    }

    /// Keeps `value` for the backward pass.
    pub(crate) fn set(&self, value: T) {
        assert!(self.0.set(value).is_ok(), "invariant: candle runs an op's forward pass once");
    }

    /// What was kept.
    pub(crate) fn get(&self) -> &T {
        self.0.get().expect("invariant: the forward pass came first")
    }
}
