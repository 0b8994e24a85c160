//! Where replicas compute.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Where replicas compute: `device` in a recipe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub enum Device {
    /// On the processor: `cpu`.
    #[default]
    Cpu,
    /// All of them on one GPU, by its number: `cuda:0`.
    Cuda(usize),
    /// Each worker of a machine on a GPU of its own, round and round when there are fewer:
    /// `cuda:local`.
    Local,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(number) => write!(f, "cuda:{number}"),
            Device::Local => f.write_str("cuda:local"),
        }
    }
}

impl From<Device> for String {
    fn from(device: Device) -> Self {
        device.to_string()
    }
}

impl TryFrom<String> for Device {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let number = text.strip_prefix("cuda:").and_then(|number| number.parse().ok());
        match (text.as_str(), number) {
            ("cpu", _) => Ok(Device::Cpu),
            ("cuda:local", _) => Ok(Device::Local),
            (_, Some(number)) => Ok(Device::Cuda(number)),
            _ => Err(format!(
                "{text:?} is no device; write \"cpu\", \"cuda:0\" (a GPU by its number) or \
                 \"cuda:local\" (each worker its own)"
            )),
        }
    }
}

impl Device {
    /// The number of the GPU of a machine's `worker`, counted from 0, where there are `gpus`; `None`
    /// for the processor.
    ///
    /// # Errors
    /// When there is no such GPU.
    pub fn gpu(self, worker: usize, gpus: usize) -> Result<Option<usize>, String> {
        match self {
            Device::Cpu => Ok(None),
            Device::Local if gpus > 0 => Ok(Some(worker % gpus)),
            Device::Cuda(number) if number < gpus => Ok(Some(number)),
            _ => Err(format!("device = \"{self}\", but this process sees {gpus} GPUs")),
        }
    }

    /// Checks that this program can compute there.
    ///
    /// # Errors
    /// How to build one that can.
    pub fn validate(self) -> Result<(), String> {
        if self != Device::Cpu && !cfg!(feature = "cuda") {
            return Err(format!(
                "device = \"{self}\", but this program is built without CUDA; build it with \
                 `--features cuda` where the toolkit is, or write device = \"cpu\""
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_as_they_are_written() {
        for device in [Device::Cpu, Device::Cuda(3), Device::Local] {
            assert_eq!(Device::try_from(device.to_string()), Ok(device));
        }
        for text in ["", "cuda", "gpu", "cuda:-1", "cuda:x"] {
            assert!(Device::try_from(text.to_string()).unwrap_err().contains("cuda:local"));
        }
    }

    #[test]
    fn each_worker_has_its_own_gpu_round_and_round() {
        let of = |worker| Device::Local.gpu(worker, 3).unwrap();
        assert_eq!([of(0), of(1), of(2), of(3)], [Some(0), Some(1), Some(2), Some(0)]);
        assert_eq!(Device::Cuda(1).gpu(5, 2), Ok(Some(1)));
        assert_eq!(Device::Cpu.gpu(5, 0), Ok(None));
        assert!(Device::Cuda(2).gpu(0, 2).unwrap_err().contains("sees 2 GPUs"));
        assert!(Device::Local.gpu(0, 0).is_err());
    }
}
