//! Page-locked memory, and the transfers between it and a GPU.

use candle_core::cuda_backend::cudarc::driver::PinnedHostSlice;
use candle_core::cuda_backend::{CudaDevice, CudaStorage, WrapErr};
use candle_core::op::BackpropOp;
use candle_core::{Device, Result, Storage, Tensor, bail};

/// As many `f32` as a vector of a GPU has.
pub(super) struct Pinned(PinnedHostSlice<f32>);

impl Pinned {
    /// Memory for so many values of that GPU, in which nothing has been written yet.
    pub(super) fn new(device: &Device, length: usize) -> Result<Self> {
        let stream = cuda(device)?.cuda_stream();
        // SAFETY: memory that is not set is read nowhere: `bring` writes all of it before it lends it, and `send` is
        // called behind `bring` or `fill`, which writes all of it. All bits are an `f32`.
        Ok(Self(unsafe { stream.context().alloc_pinned_with_flags(length, 0) }.w()?))
    }

    /// Whether it is so long, and of that GPU. The driver's copies are as long as the memory, not as the vector.
    pub(super) fn fits(&self, device: &Device, length: usize) -> bool {
        let same = |gpu: &CudaDevice| gpu.cuda_stream().context() == self.0.context();
        self.0.len() == length && cuda(device).is_ok_and(same)
    }

    /// Writes the values, which are as many.
    pub(super) fn fill(&mut self, values: &[f32]) -> Result<()> {
        self.0.as_mut_slice().w()?.copy_from_slice(values);
        Ok(())
    }

    /// The values of the vector, when they have come.
    ///
    /// # Errors
    /// When it is not a contiguous vector of `f32` that [fits](Self::fits), and those of the driver.
    pub(super) fn bring(&mut self, flat: &Tensor) -> Result<&mut [f32]> {
        let (storage, layout) = flat.storage_and_layout();
        let (Storage::Cuda(storage), Some((start, end))) = (&*storage, layout.contiguous_offsets())
        else {
            bail!("what crosses from a GPU lies there end to end, not as {layout:?}");
        };
        if end - start != self.0.len() {
            bail!("{} elements do not fit memory for {}", end - start, self.0.len());
        }
        let values = storage.as_cuda_slice::<f32>()?.slice(start..end);
        let stream = storage.device.cuda_stream();
        stream.memcpy_dtoh(&values, &mut self.0).w()?;
        // The memory does not wait by itself: cudarc marks it as in use only where a context has several streams of
        // cudarc's making, and candle works on the stream of the thread.
        stream.synchronize().w()?;
        self.0.as_mut_slice().w()
    }

    /// A vector of the GPU with the values that are in the memory.
    pub(super) fn send(&self, device: &Device) -> Result<Tensor> {
        let gpu = cuda(device)?;
        let stream = gpu.cuda_stream();
        let values = stream.clone_htod(&self.0).w()?;
        // As above: neither the next use of the memory nor its end would wait for the copy.
        stream.synchronize().w()?;
        let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(values, gpu.clone()));
        Ok(Tensor::from_storage(storage, self.0.len(), BackpropOp::none(), false))
    }
}

fn cuda(device: &Device) -> Result<&CudaDevice> {
    match device {
        Device::Cuda(gpu) => Ok(gpu),
        _ => bail!("page-locked memory is for GPUs, not for {:?}", device.location()),
    }
}
