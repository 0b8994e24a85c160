//! Recorded gradients: what a rank handed to the exchange at a step, as safetensors, one tensor
//! for each parameter under its name.

use crate::disk::Disk;
use anyhow::{Context, Result, bail};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use std::path::{Path, PathBuf};

/// The folder of recorded gradients, within a run's.
pub(super) const FOLDER: &str = "gradients";

/// Writes the gradient of `step`, each parameter's name, dimensions and values, to
/// `<run>/gradients/step-<step>.safetensors`; the file appears whole or not at all.
///
/// # Errors
/// When the folder or the file cannot be written, or a parameter has not as many values as its
/// dimensions say.
pub fn save<'a>(
    disk: &Disk,
    run: &Path,
    parameters: impl Iterator<Item = (&'a str, &'a [usize], &'a [f32])>,
    step: u64,
) -> Result<PathBuf> {
    let folder = run.join(FOLDER);
    disk.create_folders(&folder).with_context(|| format!("making {}", folder.display()))?;
    let parameters: Vec<(&str, &[usize], Vec<u8>)> = parameters
        .map(|(name, dims, values)| {
            (name, dims, values.iter().flat_map(|value| value.to_le_bytes()).collect())
        })
        .collect();
    let tensors = parameters
        .iter()
        .map(|(name, dims, bytes)| Ok((*name, TensorView::new(Dtype::F32, dims.to_vec(), bytes)?)));
    let tensors = tensors.collect::<Result<Vec<_>, safetensors::SafeTensorError>>()?;
    let file = folder.join(format!("step-{step:06}.safetensors"));
    let bytes = safetensors::serialize(tensors, None)?;
    disk.replace(&file, &bytes).with_context(|| format!("writing {}", file.display()))?;
    Ok(file)
}

/// The file of the last gradient that a run recorded, if any.
///
/// # Errors
/// When the folder cannot be listed.
pub fn last(disk: &Disk, run: &Path) -> Result<Option<PathBuf>> {
    Ok(recorded(disk, run)?.into_iter().max().map(|(_, file)| file))
}

/// The gradients that a run recorded: step and file.
fn recorded(disk: &Disk, run: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let folder = run.join(FOLDER);
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let step_of =
        |file: &Path| file.file_stem()?.to_str()?.strip_prefix("step-")?.parse::<u64>().ok();
    let files = disk.list(&folder).with_context(|| format!("listing {}", folder.display()))?;
    Ok(files.into_iter().filter_map(|file| Some((step_of(&file)?, file))).collect())
}

/// Removes the gradients of steps after `step`.
pub(super) fn cut(disk: &Disk, run: &Path, step: u64) -> Result<()> {
    for (_, file) in recorded(disk, run)?.into_iter().filter(|(number, _)| *number > step) {
        disk.remove_file(&file).with_context(|| format!("removing {}", file.display()))?;
    }
    Ok(())
}

/// A gradient read from a file: its parameters end to end in order of their names, and the
/// elements of each.
pub struct Gradient {
    /// The values.
    pub flat: Vec<f32>,
    /// The dimensions of each parameter.
    pub shapes: Vec<Vec<usize>>,
}

impl Gradient {
    /// Elements of each parameter.
    pub fn parameters(&self) -> Vec<usize> {
        self.shapes.iter().map(|shape| shape.iter().product()).collect()
    }
}

/// Reads the f32 tensors of a safetensors file, in order of their names.
///
/// # Errors
/// When the file cannot be read, is no safetensors file, or holds a tensor that is not f32, a value
/// that is not finite, or nothing at all.
pub fn load(file: &Path) -> Result<Gradient> {
    let bytes = std::fs::read(file).with_context(|| format!("reading {}", file.display()))?;
    let at = || format!("reading {}", file.display());
    let tensors = SafeTensors::deserialize(&bytes).with_context(at)?;
    let mut named = tensors.tensors();
    named.sort_by(|(a, _), (b, _)| a.cmp(b));
    let mut gradient = Gradient { flat: Vec::new(), shapes: Vec::new() };
    for (name, tensor) in named {
        if tensor.dtype() != Dtype::F32 {
            bail!("{}: tensor {name} is {:?}; gradients are f32", file.display(), tensor.dtype());
        }
        let values = tensor.data().as_chunks().0.iter().map(|value| f32::from_le_bytes(*value));
        let before = gradient.flat.len();
        gradient.flat.extend(values);
        if let Some(at) = gradient.flat[before..].iter().position(|value| !value.is_finite()) {
            bail!("{}: element {at} of tensor {name} is not finite", file.display());
        }
        gradient.shapes.push(tensor.shape().to_vec());
    }
    if gradient.flat.is_empty() {
        bail!("{} holds no values", file.display());
    }
    Ok(gradient)
}
