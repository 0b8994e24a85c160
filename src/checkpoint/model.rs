//! Trained models on disk: PyTorch's state dictionary as safetensors, with the recipe inside.
//!
//! `<run>/best/model.safetensors` is the best model so far, by test accuracy or a text's test loss,
//! `<run>/last/model.safetensors` the model at the end. Each carries the recipe in its metadata, and
//! for images what their pixels were normalised by, so the file alone can be evaluated.

use super::names::{MANIFEST, MODEL};
use super::read::check_model;
use crate::disk::Disk;
use crate::recipe::{self, Recipe};
use crate::record::PROVENANCE;
use anyhow::{Context, Result, bail, ensure};
use gradwire_datasets::{Normalisation, sha256};
use gradwire_models::Store;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The folder of the best model, within a run's.
pub const BEST: &str = "best";
/// The folder of the last model, within a run's.
pub const LAST: &str = "last";
/// The file that holds a run's vocabulary, in the `tokenizers` format.
pub const VOCABULARY: &str = "tokenizer.json";

/// The one key of the file's metadata: with several, their order, and so the file's bytes, would
/// differ from run to run.
const KEY: &str = "gradwire";

/// What a model file says about itself.
#[derive(Serialize, Deserialize)]
struct ModelMetadata {
    recipe: String,
    step: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    test_accuracy: Option<f64>,
    /// Of the pixels that it learned from; text models have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    normalisation: Option<Normalisation>,
    /// [`checksum`]; a file within a checkpoint has none, for its manifest has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
}

/// A model file's place and what its metadata says.
#[derive(Clone, Debug)]
pub struct Saved {
    /// The model file.
    pub file: PathBuf,
    /// The recipe it was trained by.
    pub recipe: Recipe,
    /// The step it was saved after.
    pub step: u64,
    /// What the pixels that it learned from were normalised by, if the file says so.
    pub normalisation: Option<Normalisation>,
    /// The vocabulary saved with its run, for text models.
    pub vocabulary: Option<PathBuf>,
    /// What tells where its run comes from, where the model lies in the folder of one.
    pub provenance: Option<PathBuf>,
    /// Of a checkpoint: what the run evaluates in place of what the file holds, where that is something else.
    pub note: Option<&'static str>,
}

/// Writes the variables of `store` to `folder`. The file appears whole or not at all.
///
/// # Errors
/// When the folder or the file cannot be written; the earlier file is then untouched.
pub fn save(
    disk: &Disk,
    folder: &Path,
    store: &Store,
    recipe: &Recipe,
    step: u64,
    test_accuracy: Option<f64>,
    normalisation: Option<Normalisation>,
) -> Result<()> {
    disk.create_folders(folder)?;
    let tensors = store.trainable().into_iter().chain(store.buffers()).chain(store.fixed());
    let tensors: Vec<_> = tensors.map(|(name, var)| (name, var.as_tensor().clone())).collect();
    let file = folder.join(MODEL);
    // The sum is of what a reader finds, and so is made from the bytes.
    let bytes = safetensors::serialize(tensors.clone(), None)?;
    let sum = checksum(&SafeTensors::deserialize(&bytes)?);
    let (key, about) = metadata(recipe, step, test_accuracy, normalisation, Some(sum))?;
    let metadata = HashMap::from([(key.to_string(), about)]);
    let bytes = safetensors::serialize(tensors, Some(metadata))?;
    disk.replace(&file, &bytes).with_context(|| format!("writing {}", file.display()))
}

/// What a model file says about itself, as an entry of a safetensors file's metadata. The folder that
/// its run is written under is no part of it: equal runs leave equal bytes.
pub(super) fn metadata(
    recipe: &Recipe,
    step: u64,
    test_accuracy: Option<f64>,
    normalisation: Option<Normalisation>,
    sha256: Option<String>,
) -> Result<(&'static str, String)> {
    let mut recipe = recipe.clone();
    recipe.record.out = recipe::Record::default().out;
    let about =
        ModelMetadata { recipe: recipe.to_toml()?, step, test_accuracy, normalisation, sha256 };
    Ok((KEY, serde_json::to_string(&about)?))
}

/// The SHA-256 of a line for every tensor, in the order of names: its name, type, shape and the SHA-256
/// of its bytes.
fn checksum(tensors: &SafeTensors<'_>) -> String {
    let line = |(name, tensor): (&str, TensorView<'_>)| {
        format!("{name} {:?} {:?} {}\n", tensor.dtype(), tensor.shape(), sha256(tensor.data()))
    };
    let mut lines: Vec<String> = tensors.iter().map(line).collect();
    lines.sort();
    sha256(lines.concat().as_bytes())
}

/// Writes a run's vocabulary into its folder.
///
/// # Errors
/// When the file cannot be written.
pub fn save_vocabulary(disk: &Disk, run: &Path, vocabulary: &str) -> Result<()> {
    let file = run.join(VOCABULARY);
    disk.replace(&file, vocabulary.as_bytes())
        .with_context(|| format!("writing {}", file.display()))
}

/// Finds the model that `path` names: a model file, or a run's folder (its best model).
///
/// # Errors
/// When there is none, when it was not saved by this program, or when it is damaged.
pub fn find(path: &Path) -> Result<Saved> {
    let candidates = [path.to_path_buf(), path.join(MODEL), path.join(BEST).join(MODEL)];
    let Some(file) = candidates.into_iter().find(|p| p.is_file()) else {
        bail!(
            "there is no model at {}: give a {MODEL} or the folder of a run that has ended",
            path.display()
        );
    };
    let bytes = fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
    let not_whole = || format!("{} is not a whole safetensors file", file.display());
    let (_, header) = SafeTensors::read_metadata(&bytes).with_context(not_whole)?;
    let metadata = header.metadata().clone().unwrap_or_default();
    let Some(about) = metadata.get(KEY) else {
        bail!("{} does not carry a recipe: it was not saved by gradwire", file.display());
    };
    let about: ModelMetadata = serde_json::from_str(about)
        .with_context(|| format!("the metadata of {}", file.display()))?;
    let recipe = Recipe::from_toml(&about.recipe)
        .with_context(|| format!("the recipe inside {}", file.display()))?;
    ensure!(
        about.normalisation.is_none_or(|normalisation| normalisation.is_possible()),
        "{} is damaged: the mean and deviation that it names are those of no pixels; use another model \
         of the run, or its checkpoints",
        file.display()
    );
    let mut note = None;
    if let Some(sum) = about.sha256 {
        let tensors = SafeTensors::deserialize(&bytes).with_context(not_whole)?;
        ensure!(
            checksum(&tensors) == sum,
            "{} is damaged: its tensors do not have the checksum that it was saved with; use another \
             model of the run, or its checkpoints",
            file.display()
        );
    } else if file.with_file_name(MANIFEST).is_file() {
        check_model(&file, &bytes)?;
        let has_statistics = header.tensors().keys().any(|name| name.ends_with("running_mean"));
        note = evaluated(&recipe, has_statistics);
    }
    let folder = file.parent().unwrap_or(Path::new(""));
    // Beside the model file, in the run's folder, in that of the run that the checkpoint is of.
    let beside = |name| {
        let mut places = ["", "..", "../.."].map(|up| folder.join(up).join(name)).into_iter();
        places.find(|place| place.is_file())
    };
    let (vocabulary, provenance) = (beside(VOCABULARY), beside(PROVENANCE));
    let (step, normalisation) = (about.step, about.normalisation);
    Ok(Saved { file, recipe, step, normalisation, vocabulary, provenance, note })
}

/// What a run evaluates in place of the weights and statistics that a checkpoint goes on with.
pub(super) fn evaluated(recipe: &Recipe, has_statistics: bool) -> Option<&'static str> {
    if recipe.average != recipe::average::Config::default() {
        return Some(
            "what the run evaluates is the average of its weights, and the checkpoint's model is the weights themselves",
        );
    }
    (has_statistics && recipe.train.recalibrate > 0).then_some(
        "the run computes batch norm's statistics anew before it evaluates (train.recalibrate), and the checkpoint's model \
         has those that training goes by",
    )
}

/// Sets a model's variables from a file.
///
/// # Errors
/// When the file is damaged or holds other variables than the model has.
pub fn load(saved: &Saved, store: &Store) -> Result<()> {
    Ok(store.load(&saved.file)?)
}
