//! Recorded gradients: what a rank handed to the exchange at a step, as safetensors, one tensor for
//! each parameter under its name, and with error feedback the residual that the exchange adds to it, as
//! `residual/<name>`.

use crate::disk::Disk;
use crate::tensors::{Tensor, Tensors};
use anyhow::{Context, Result, bail};
use gradwire_exchange::Entry;
use std::collections::BTreeMap;
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
    let mut tensors = Tensors::default();
    for Parameter { name, dims, gradient, residual } in parameters {
        let mut insert = |name: String, values: &[f32]| {
            let (shape, values) = (dims.to_vec(), Entry::F32(values.to_vec()));
            tensors.0.insert(name, Tensor { shape, values });
        };
        insert(name.into(), gradient);
        if let Some(residual) = residual {
            insert(format!("{RESIDUAL}{name}"), residual);
        }
    }
    let file = folder.join(format!("step-{step:06}.safetensors"));
    let bytes = tensors.encode(None)?;
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
    let at = || format!("reading {}, whose tensors must be f32", file.display());
    let Tensors(mut named) = Tensors::decode(&bytes).with_context(at)?;
    let mut residuals: BTreeMap<String, Tensor> =
        named.extract_if(.., |name, _| name.starts_with(RESIDUAL)).collect();
    let mut gradient = Gradient { flat: Vec::new(), shapes: Vec::new() };
    for (name, tensor) in named {
        let mut sums = values(file, &name, &tensor)?.to_vec();
        let of = format!("{RESIDUAL}{name}");
        if let Some(residual) = residuals.remove(&of) {
            if residual.shape != tensor.shape {
                bail!("{}: tensor {of} is not of the shape of {name}", file.display());
            }
            let residual = values(file, &of, &residual)?;
            sums.iter_mut().zip(residual).for_each(|(sum, value)| *sum += value);
            if let Some(at) = sums.iter().position(|sum| !sum.is_finite()) {
                bail!(
                    "{}: element {at} of {name} and {of} adds up to no finite number",
                    file.display()
                );
            }
        }
        gradient.flat.append(&mut sums);
        gradient.shapes.push(tensor.shape);
    }
    if let Some((of, _)) = residuals.first_key_value() {
        bail!("{}: there is no parameter for tensor {of}", file.display());
    }
    if gradient.flat.is_empty() {
        bail!("{} holds no values", file.display());
    }
    Ok(gradient)
}

/// The values of a tensor of a file, each finite.
fn values<'a>(file: &Path, name: &str, tensor: &'a Tensor) -> Result<&'a [f32]> {
    let Entry::F32(values) = &tensor.values else {
        bail!("{}: tensor {name} is not of f32, as gradients are", file.display())
    };
    if let Some(at) = values.iter().position(|value| !value.is_finite()) {
        bail!("{}: element {at} of tensor {name} is not finite", file.display());
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_of(folder: &Path, tensors: &[(&str, &[f32])]) -> PathBuf {
        let mut all = Tensors::default();
        tensors.iter().for_each(|(name, values)| all.insert_flat(name, values));
        let file = folder.join("gradient.safetensors");
        std::fs::write(&file, all.encode(None).unwrap()).unwrap();
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
