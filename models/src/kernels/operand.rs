//! Operands of kernels as slices: the values of contiguous tensors on the CPU.

use std::ops::{Deref, Range};

use candle_core::{
    CpuStorage, Layout, Result, Shape, Storage, StorageRef, Tensor, WithDType, bail,
};

use super::counts;

/// Where the values of a contiguous operand lie: as many as its sizes say, so that a kernel may go by these.
///
/// # Errors
/// A layout that is not contiguous, or sizes whose product wraps.
pub(crate) fn range<T: WithDType>(layout: &Layout) -> Result<Range<usize>> {
    match layout.contiguous_offsets() {
        Some((start, end)) if counts::elements(layout.dims()) == end.checked_sub(start) => {
            Ok(start..end)
        }
        _ => bail!("the kernel takes contiguous {}, not {layout:?}", T::DTYPE.as_str()),
    }
}

/// The values of a contiguous operand.
///
/// # Errors
/// Another type, a layout that is not contiguous, or sizes whose product wraps.
pub(crate) fn slice<'a, T: WithDType>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [T]> {
    match T::cpu_storage_as_slice(storage) {
        Ok(values) => Ok(&values[range::<T>(layout)?]),
        Err(_) => bail!(
            "the kernel takes {}, not {}",
            T::DTYPE.as_str(),
            candle_core::backend::BackendStorage::dtype(storage).as_str()
        ),
    }
}

/// The values of a contiguous `f32` operand that is changed in place.
pub(crate) fn f32s_mut<'a>(storage: &'a mut CpuStorage, layout: &Layout) -> Result<&'a mut [f32]> {
    match storage {
        CpuStorage::F32(values) => Ok(&mut values[range::<f32>(layout)?]),
        _ => bail!("the kernel takes contiguous f32, not {layout:?}"),
    }
}

/// An operand of an [operation](crate::kernels::custom_op::CustomOp) in its forward pass.
#[derive(Clone, Copy)]
pub(crate) struct Operand<'a> {
    storage: &'a CpuStorage,
    layout: &'a Layout,
}

impl<'a> Operand<'a> {
    pub(crate) fn new(storage: &'a CpuStorage, layout: &'a Layout) -> Self {
        Self { storage, layout }
    }

    pub(crate) fn shape(self) -> &'a Shape {
        self.layout.shape()
    }

    /// Its values.
    pub(crate) fn values<T: WithDType>(self) -> Result<&'a [T]> {
        slice(self.storage, self.layout)
    }
}

/// The values of a contiguous tensor on the CPU, whose storage is locked for reading as long as this lives.
pub(crate) struct Borrowed<'a, T> {
    storage: StorageRef<'a>,
    range: Range<usize>,
    slice: fn(&CpuStorage) -> Result<&[T]>,
}

/// The values of a contiguous tensor.
///
/// # Errors
/// Another device or type, a layout that is not contiguous, or sizes whose product wraps.
pub(crate) fn borrow<T: WithDType>(tensor: &Tensor) -> Result<Borrowed<'_, T>> {
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(values) = &*storage else { bail!("the kernel takes tensors on the CPU") };
    slice::<T>(values, layout)?;
    Ok(Borrowed { range: range::<T>(layout)?, storage, slice: T::cpu_storage_as_slice })
}

impl<T> Deref for Borrowed<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        let Storage::Cpu(values) = &*self.storage else {
            unreachable!("invariant: it is on the CPU")
        };
        &(self.slice)(values).expect("invariant: it has values of this type")[self.range.clone()]
    }
}

/// Calls `f` with the values of a CPU tensor, which are brought into row-major order first if
/// they are not.
///
/// # Errors
/// As [`borrow`], or what `f` says.
pub(crate) fn with_values<T: WithDType, R>(
    tensor: &Tensor,
    f: impl FnOnce(&[T]) -> Result<R>,
) -> Result<R> {
    f(&borrow(&tensor.contiguous()?)?)
}
