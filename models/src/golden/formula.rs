//! The golden formulas of `tests/golden/reference.py`, in Rust: weights, inputs and labels by integer hash, so
//! that the golden files hold results only.

use candle_core::{Device, Result, Tensor};

use crate::PAD;
use crate::definition::Input;
use crate::parameters::Running;
use crate::store::Store;

/// The hash of (name, i) for i in 0..count: FNV-1a of the name plus a Weyl sequence, mixed by
/// lowbias32.
pub(crate) fn hashes(name: &str, count: usize) -> impl Iterator<Item = u32> + use<> {
    let start = name
        .bytes()
        .fold(0x811c_9dc5_u32, |start, byte| (start ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    (0..count as u32).map(move |i| {
        let x = start.wrapping_add(i.wrapping_mul(0x9e37_79b9));
        let x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
        let x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
        x ^ (x >> 16)
    })
}

/// In [-1, 1), exact in f64.
pub(crate) fn uniform(name: &str, count: usize) -> impl Iterator<Item = f64> + use<> {
    hashes(name, count).map(|x| f64::from(x) / 2f64.powi(31) - 1.)
}

/// The golden value of a parameter or buffer. A batch norm's bias stays away from 0, and so most of
/// what ReLU sees away from its kink.
fn parameter(name: &str, shape: &[usize]) -> Result<Tensor> {
    let fan_in: usize = shape.iter().skip(1).product();
    let scale = (6. / fan_in as f64).sqrt();
    let is_norm = ["bn", "downsample", "features"].iter().any(|part| name.contains(part));
    let value = |(i, u): (usize, f64)| {
        let value = match shape {
            // So many that the statistics move as PyTorch's.
            _ if name.ends_with("num_batches_tracked") => f64::from(Running::SETTLED),
            _ if name.ends_with("running_var") => 1. + u / 2.,
            [_] if name.ends_with(".weight") => 1. + u / 4.,
            [_] if name.ends_with(".bias") && is_norm => {
                (if u < 0. { u - 3. } else { u + 3. }) / 2.
            }
            [_] => u / 10.,
            _ if name == "embedding.weight" => {
                if i < fan_in {
                    0.
                } else {
                    u
                }
            }
            _ => u * scale,
        };
        value as f32
    };
    let count = shape.iter().product();
    Tensor::from_iter(uniform(name, count).enumerate().map(value), &Device::Cpu)?.reshape(shape)
}

/// Sets every variable to its golden value.
pub(super) fn fill(store: &Store) -> Result<()> {
    let all = store.trainable().into_iter().chain(store.buffers()).chain(store.fixed());
    for (name, var) in all {
        var.set(&parameter(&name, var.dims())?.to_device(var.device())?)?;
    }
    Ok(())
}

/// Golden pixels `[batch, height, width, channels]` or token ids `[batch, length]`; of the texts
/// the first fills its length, the last is all padding. Pieces of a text to continue have none.
pub(super) fn inputs(seed: u64, batch: usize, input: Input) -> Result<Tensor> {
    match input {
        Input::Image { channels, height, width } => {
            let pixels = uniform(&format!("images {seed}"), batch * height * width * channels);
            Tensor::from_iter(pixels.map(|u| u as f32), &Device::Cpu)?
                .reshape((batch, height, width, channels))
        }
        Input::Text { vocabulary, length } => {
            let words = hashes(&format!("texts {seed}"), batch * length).enumerate();
            let ids = words.map(|(i, hash)| {
                let (text, position) = (i / length, i % length);
                if position < length - text * length / (batch - 1) {
                    1 + hash % (vocabulary as u32 - 1)
                } else {
                    PAD
                }
            });
            Tensor::from_iter(ids, &Device::Cpu)?.reshape((batch, length))
        }
        Input::Sequence { vocabulary, length } => {
            let ids = hashes(&format!("sequences {seed}"), batch * length);
            let ids = ids.map(|hash| hash % vocabulary as u32);
            Tensor::from_iter(ids, &Device::Cpu)?.reshape((batch, length))
        }
    }
}

/// Golden labels `[batch]`.
pub(super) fn labels(seed: u64, batch: usize, classes: usize) -> Result<Tensor> {
    let labels = hashes(&format!("labels {seed}"), batch).map(|hash| hash % classes as u32);
    Tensor::from_iter(labels, &Device::Cpu)
}
