//! GPUs: how many this process sees, what they are, and the device that tensors live on.
//!
//! A build without the feature `cuda` sees none.

use candle_core::{Device, Result};

/// Whether this program is built with the feature `cuda`.
pub const BUILT: bool = cfg!(feature = "cuda");

/// What a GPU is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its number among those that this process sees, from 0.
    pub number: usize,
    /// What its maker calls it.
    pub name: String,
    /// Its memory in bytes.
    pub memory: u64,
    /// Its compute capability: the generation, and which of it.
    pub capability: (i32, i32),
}

/// The number of GPUs that this process sees (`CUDA_VISIBLE_DEVICES` hides some).
///
/// # Errors
/// When the driver does not answer.
pub fn count() -> Result<usize> {
    #[cfg(feature = "cuda")]
    {
        use candle_core::cuda_backend::cudarc::driver::{CudaContext, DriverError, sys::CUresult};
        match CudaContext::device_count() {
            // The driver is there, and no GPU that this process may see.
            Err(DriverError(CUresult::CUDA_ERROR_NO_DEVICE)) => Ok(0),
            count => Ok(usize::try_from(count.map_err(driver("counting GPUs"))?).unwrap_or(0)),
        }
    }
    #[cfg(not(feature = "cuda"))]
    Ok(0)
}

/// The GPUs that this process sees.
///
/// # Errors
/// When the driver does not answer, or says nothing of one of them.
pub fn all() -> Result<Vec<Gpu>> {
    #[cfg(feature = "cuda")]
    {
        use candle_core::cuda_backend::cudarc::driver::CudaContext;
        let about = |number: usize| {
            let asking = || driver(&format!("asking GPU {number} what it is"));
            let gpu = CudaContext::new(number).map_err(asking())?;
            Ok(Gpu {
                number,
                name: gpu.name().map_err(asking())?,
                memory: gpu.total_mem().map_err(asking())? as u64,
                capability: gpu.compute_capability().map_err(asking())?,
            })
        };
        (0..count()?).map(about).collect()
    }
    #[cfg(not(feature = "cuda"))]
    Ok(Vec::new())
}

/// Says what was being done when the driver refused.
#[cfg(feature = "cuda")]
fn driver(
    doing: &str,
) -> impl Fn(candle_core::cuda_backend::cudarc::driver::DriverError) -> candle_core::Error + use<> {
    let doing = doing.to_owned();
    move |error| candle_core::Error::wrap(error).context(doing.clone())
}

/// Lets GPUs round the factors of matrix products to TF32, with a mantissa of 10 bits in place of 23, or forbids it: for the
/// whole process and from now on. Sums stay f32. A processor never rounds, nor does a GPU before compute capability 8.0.
pub fn allow_tf32(allowed: bool) {
    candle_core::cuda::set_gemm_reduced_precision_f32(allowed);
}

/// The GPU of that number, or the CPU for none. A GPU's tensors must stay on the thread that calls this: their work is
/// ordered by that thread's stream, and by nothing else.
///
/// # Errors
/// When the GPU cannot be opened: there is none of the number, or the program is built without the feature `cuda`.
pub fn device(gpu: Option<usize>) -> Result<Device> {
    match gpu {
        None => Ok(Device::Cpu),
        Some(number) => {
            let open = || format!("opening GPU {number}");
            let device = Device::new_cuda(number).map_err(|error| error.context(open()))?;
            #[cfg(feature = "cuda")]
            {
                keep_memory(&device).map_err(|error| error.context(open()))?;
                // Every tensor would get two events of the driver, for streams that wait for each other.
                // SAFETY: a tensor stays on the thread that made it, as this function asks, and so on one stream. What
                // the host reads and writes waits for the stream itself.
                unsafe { device.as_cuda_device()?.disable_event_tracking() };
            }
            Ok(device)
        }
    }
}

/// Lets this process keep the memory that its tensors leave, for the next ones. By default a GPU takes it back whenever the
/// host waits, several times a step.
#[cfg(feature = "cuda")]
fn keep_memory(device: &Device) -> Result<()> {
    use candle_core::cuda_backend::cudarc::driver::{result, sys::CUmemPool_attribute};
    let stream = device.as_cuda_device()?.cuda_stream();
    let context = stream.context();
    if !context.has_async_alloc() {
        return Ok(());
    }
    let mut bytes = u64::MAX;
    let threshold = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the device is open, its default pool lives as long, and the value of this attribute is a u64.
    let set = unsafe {
        result::device::get_default_mem_pool(context.cu_device()).and_then(|pool| {
            result::mem_pool::set_attribute(pool, threshold, (&raw mut bytes).cast())
        })
    };
    set.map_err(driver("keeping memory"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_number_it_is_the_cpu() {
        assert!(device(None).unwrap().is_cpu());
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn a_build_without_cuda_sees_no_gpu_and_opens_none() {
        assert_eq!((BUILT, count().unwrap(), all().unwrap()), (false, 0, Vec::new()));
        let error = device(Some(3)).unwrap_err().to_string();
        assert!(error.contains("GPU 3"), "{error}");
    }
}
