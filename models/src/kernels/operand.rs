//! What a custom op is handed, as slices: contiguous `f32` and `u32` operands on the CPU.

use std::ops::Range;

use candle_core::{CpuStorage, Layout, Result, Storage, Tensor, bail};

use super::counts;

/// Where the values of a contiguous operand lie: as many as its sizes say, so that a kernel may go by these.
fn place(layout: &Layout) -> Option<Range<usize>> {
    let (start, end) = layout.contiguous_offsets()?;
    (counts::elements(layout.dims()) == end.checked_sub(start)).then_some(start..end)
}

/// The values of a contiguous `f32` operand.
///
/// # Errors
/// Another type, a layout that is not contiguous, or sizes whose product wraps.
pub(crate) fn f32s<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    match (storage, place(layout)) {
        (CpuStorage::F32(values), Some(place)) => Ok(&values[place]),
        _ => bail!("the kernel takes contiguous f32, not {:?}", layout),
    }
}

/// The values of a contiguous `f32` operand that is changed in place.
///
/// # Errors
/// As [`f32s`].
pub(crate) fn f32s_mut<'a>(storage: &'a mut CpuStorage, layout: &Layout) -> Result<&'a mut [f32]> {
    match (storage, place(layout)) {
        (CpuStorage::F32(values), Some(place)) => Ok(&mut values[place]),
        _ => bail!("the kernel takes contiguous f32, not {:?}", layout),
    }
}

/// The values of a contiguous `u32` operand.
///
/// # Errors
/// Another type, a layout that is not contiguous, or sizes whose product wraps.
pub(crate) fn u32s<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [u32]> {
    match (storage, place(layout)) {
        (CpuStorage::U32(values), Some(place)) => Ok(&values[place]),
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
