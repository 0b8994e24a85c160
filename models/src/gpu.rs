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
        use candle_core::cuda_backend::cudarc::driver::CudaContext;
        let count = CudaContext::device_count().map_err(driver("counting GPUs"))?;
        Ok(usize::try_from(count).unwrap_or(0))
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

/// The GPU of that number, or the CPU for none.
///
/// # Errors
/// When the GPU cannot be opened: there is none of the number, or the program is built without the feature `cuda`.
pub fn device(gpu: Option<usize>) -> Result<Device> {
    match gpu {
        None => Ok(Device::Cpu),
        Some(number) => {
            Device::new_cuda(number).map_err(|error| error.context(format!("opening GPU {number}")))
        }
    }
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
