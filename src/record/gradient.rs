//! Recorded gradients: what a rank handed to the exchange at a step, as safetensors, one tensor for
//! each parameter under its name, and with error feedback the residual that the exchange adds to it, as
//! `residual/<name>`.

use crate::disk::Disk;
use anyhow::{Context, Result, bail};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use std::path::{Path, PathBuf};

/// The folder of recorded gradients, within a run's.
pub(super) const FOLDER: &str = "gradients";

/// What the name of a parameter's residual begins with.
const RESIDUAL: &str = "residual/";

/// A parameter's part of a gradient.
pub struct Parameter<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its dimensions.
    pub dims: &'a [usize],
    /// The values of the gradient.
    pub gradient: &'a [f32],
    /// The values of the residual, with error feedback.
    pub residual: Option<&'a [f32]>,
}

/// Writes the gradient of `step` to `<run>/gradients/step-<step>.safetensors`; the file appears whole
/// or not at all.
///
/// # Errors
/// When the folder or the file cannot be written, or a parameter has not as many values as its
/// dimensions say.
pub fn save<'a>(
    disk: &Disk,
    run: &Path,
    parameters: impl Iterator<Item = Parameter<'a>>,
    step: u64,
) -> Result<PathBuf> {
    let folder = run.join(FOLDER);
    disk.create_folders(&folder).with_context(|| format!("making {}", folder.display()))?;
    let mut vectors: Vec<(String, &[usize], Vec<u8>)> = Vec::new();
    let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect();
    for Parameter { name, dims, gradient, residual } in parameters {
        vectors.push((name.to_string(), dims, bytes(gradient)));
        let residual =
            residual.map(|residual| (format!("{RESIDUAL}{name}"), dims, bytes(residual)));
        vectors.extend(residual);
    }
    let tensors = vectors
        .iter()
        .map(|(name, dims, bytes)| Ok((name, TensorView::new(Dtype::F32, dims.to_vec(), bytes)?)));
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

/// A gradient read from a file, plus the residual if there is one: its parameters end to end in order
/// of their names, and the elements of each.
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

/// Reads the f32 tensors of a safetensors file, in order of their names, and adds to each its
/// `residual/<name>`.
///
/// # Errors
/// When the file cannot be read, is no safetensors file, or holds a tensor that is not f32, a value
/// or a sum that is not finite, a residual of no parameter or of another shape, or nothing at all.
pub fn load(file: &Path) -> Result<Gradient> {
    let bytes = std::fs::read(file).with_context(|| format!("reading {}", file.display()))?;
    let at = || format!("reading {}", file.display());
    let tensors = SafeTensors::deserialize(&bytes).with_context(at)?;
    let (mut residuals, mut named): (Vec<_>, Vec<_>) =
        tensors.tensors().into_iter().partition(|(name, _)| name.starts_with(RESIDUAL));
    named.sort_by(|(a, _), (b, _)| a.cmp(b));
    let mut gradient = Gradient { flat: Vec::new(), shapes: Vec::new() };
    for (name, tensor) in named {
        let before = gradient.flat.len();
        gradient.flat.extend(values(file, &name, &tensor)?);
        let residual = residuals.iter().position(|(of, _)| of[RESIDUAL.len()..] == name);
        if let Some((of, residual)) = residual.map(|place| residuals.swap_remove(place)) {
            if residual.shape() != tensor.shape() {
                bail!("{}: tensor {of} is not of the shape of {name}", file.display());
            }
            let residual = values(file, &of, &residual)?;
            gradient.flat[before..].iter_mut().zip(residual).for_each(|(sum, value)| *sum += value);
            if let Some(at) = gradient.flat[before..].iter().position(|sum| !sum.is_finite()) {
                bail!(
                    "{}: element {at} of {name} and {of} adds up to no finite number",
                    file.display()
                );
            }
        }
        gradient.shapes.push(tensor.shape().to_vec());
    }
    if let Some((of, _)) = residuals.first() {
        bail!("{}: there is no parameter for tensor {of}", file.display());
    }
    if gradient.flat.is_empty() {
        bail!("{} holds no values", file.display());
    }
    Ok(gradient)
}

/// The values of a tensor of a file, each finite.
fn values(file: &Path, name: &str, tensor: &TensorView<'_>) -> Result<Vec<f32>> {
    if tensor.dtype() != Dtype::F32 {
        bail!("{}: tensor {name} is {:?}; gradients are f32", file.display(), tensor.dtype());
    }
    let values = tensor.data().as_chunks().0.iter().map(|value| f32::from_le_bytes(*value));
    let values: Vec<f32> = values.collect();
    if let Some(at) = values.iter().position(|value| !value.is_finite()) {
        bail!("{}: element {at} of tensor {name} is not finite", file.display());
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_of(folder: &Path, tensors: &[(&str, &[f32])]) -> PathBuf {
        let bytes: Vec<Vec<u8>> = tensors
            .iter()
            .map(|(_, values)| values.iter().flat_map(|value| value.to_le_bytes()).collect())
            .collect();
        let views = tensors.iter().zip(&bytes).map(|((name, values), bytes)| {
            (*name, TensorView::new(Dtype::F32, vec![values.len()], bytes).unwrap())
        });
        let file = folder.join("gradient.safetensors");
        std::fs::write(&file, safetensors::serialize(views, None).unwrap()).unwrap();
        file
    }

    #[test]
    fn a_residual_is_added_and_must_fit() {
        let folder = tempfile::tempdir().unwrap();
        let read = |tensors: &[(&str, &[f32])]| load(&file_of(folder.path(), tensors));
        let sum = read(&[("b", &[1.0, 2.0]), ("a", &[3.0]), ("residual/b", &[0.5, -2.0])]).unwrap();
        assert_eq!((sum.flat, sum.shapes), (vec![3.0, 1.5, 0.0], vec![vec![1], vec![2]]));
        for (residual, part) in [("residual/b", "shape of b"), ("residual/c", "no parameter")] {
            let refusal = read(&[("b", &[1.0, 2.0]), (residual, &[0.5])]).err().unwrap();
            assert!(format!("{refusal:#}").contains(part), "{refusal:#}");
        }
        let infinite = read(&[("b", &[1.0]), ("residual/b", &[f32::INFINITY])]).err().unwrap();
        assert!(
            format!("{infinite:#}").contains("tensor residual/b is not finite"),
            "{infinite:#}"
        );
        let sum = read(&[("b", &[f32::MAX]), ("residual/b", &[f32::MAX])]).err().unwrap();
        assert!(format!("{sum:#}").contains("adds up"), "{sum:#}");
    }
}
