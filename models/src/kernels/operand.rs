//! What a custom op is handed, as slices: contiguous `f32` and `u32` operands on the CPU.

use candle_core::{CpuStorage, Layout, Result, Storage, Tensor, bail};

/// The values of a contiguous `f32` operand.
///
/// # Errors
/// Another type, or a layout that is not contiguous.
pub(crate) fn f32s<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    match (storage, layout.contiguous_offsets()) {
        (CpuStorage::F32(values), Some((start, end))) => Ok(&values[start..end]),
        _ => bail!("the kernel takes contiguous f32, not {:?}", layout),
    }
}

/// The values of a contiguous `u32` operand.
///
/// # Errors
/// Another type, or a layout that is not contiguous.
pub(crate) fn u32s<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [u32]> {
    match (storage, layout.contiguous_offsets()) {
        (CpuStorage::U32(values), Some((start, end))) => Ok(&values[start..end]),
        _ => bail!("the kernel takes contiguous u32, not {:?}", layout),
    }
}

/// A CPU tensor's storage, for [`f32s`] and [`u32s`]; borrow it from
/// [`Tensor::storage_and_layout`].
///
/// # Errors
/// A tensor on another device.
pub(crate) fn cpu(storage: &Storage) -> Result<&CpuStorage> {
    match storage {
        Storage::Cpu(storage) => Ok(storage),
        _ => bail!("the kernel takes tensors on the CPU"),
    }
}

/// Calls `f` with the values of a CPU tensor, which are brought into row-major order first if
/// they are not.
///
/// # Errors
/// Another device or type, or what `f` says.
pub(crate) fn with_f32s<T>(tensor: &Tensor, f: impl FnOnce(&[f32]) -> Result<T>) -> Result<T> {
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    f(f32s(cpu(&storage)?, layout)?)
}

/// As [`with_f32s`], for token ids and labels.
///
/// # Errors
/// As [`with_f32s`].
pub(crate) fn with_u32s<T>(tensor: &Tensor, f: impl FnOnce(&[u32]) -> Result<T>) -> Result<T> {
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    f(u32s(cpu(&storage)?, layout)?)
}
