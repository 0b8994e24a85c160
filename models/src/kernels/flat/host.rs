//! The host's end of what crosses between it and a GPU.

#[cfg(feature = "cuda")]
use std::sync::Mutex;

use candle_core::{Device, Result, Tensor};

#[cfg(feature = "cuda")]
use super::pinned::Pinned;

/// Memory of the host that flat vectors of one length cross through. For those of a GPU it is page-locked, so that the GPU
/// reads and writes it without a copy in between; it is made at the first transfer and used for all others. Tensors of the
/// processor need none.
#[derive(Default)]
pub struct HostBuffer {
    #[cfg(feature = "cuda")]
    pinned: Mutex<Option<Pinned>>,
}

impl HostBuffer {
    /// Lends the values of a flat vector to `read`.
    ///
    /// # Errors
    /// When it is not a vector of `f32`, and those of the driver.
    pub fn read<T>(&self, flat: &Tensor, read: impl FnOnce(&[f32]) -> T) -> Result<T> {
        #[cfg(feature = "cuda")]
        if flat.device().is_cuda() {
            return self
                .with(flat.device(), flat.elem_count(), |pinned| Ok(read(pinned.bring(flat)?)));
        }
        Ok(read(&flat.to_vec1::<f32>()?))
    }

    /// Lends the values of a flat vector to `change`; the result is what that leaves, on the same device.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn change(&self, flat: &Tensor, change: impl FnOnce(&mut [f32])) -> Result<Tensor> {
        #[cfg(feature = "cuda")]
        if flat.device().is_cuda() {
            return self.with(flat.device(), flat.elem_count(), |pinned| {
                change(pinned.bring(flat)?);
                pinned.send(flat.device())
            });
        }
        let mut values = flat.to_vec1::<f32>()?;
        change(&mut values);
        Tensor::new(values, flat.device())
    }

    /// A vector of that device with these values.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn send(&self, values: &[f32], device: &Device) -> Result<Tensor> {
        #[cfg(feature = "cuda")]
        if device.is_cuda() {
            return self.with(device, values.len(), |pinned| {
                pinned.fill(values)?;
                pinned.send(device)
            });
        }
        Tensor::from_slice(values, values.len(), device)
    }

    /// Calls `use_it` with memory for so many values of that device.
    #[cfg(feature = "cuda")]
    fn with<T>(
        &self,
        device: &Device,
        length: usize,
        use_it: impl FnOnce(&mut Pinned) -> Result<T>,
    ) -> Result<T> {
        let mut pinned = self.pinned.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let fitting = match pinned.take() {
            Some(pinned) if pinned.fits(device, length) => pinned,
            _ => Pinned::new(device, length)?,
        };
        use_it(pinned.insert(fitting))
    }
}
