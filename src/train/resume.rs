//! Going on with a run: what it goes on from, and whether it may; by `train --resume`, and after a worker
//! was lost, with all workers or without the lost.

use crate::checkpoint::{self, Checkpoint};
use crate::disk::{Disk, Lock};
use crate::recipe::{Change, OnWorkerLoss, Recipe};
use crate::record::{self, FileSum, Provenance, Text, Warning};
use crate::train::failure::RunFailure;
use crate::train::session::Session;
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// A run to go on with. While this lives, no other process writes it.
#[derive(Debug)]
pub struct Resume {
    /// The run's folder.
    pub run: PathBuf,
    /// What it goes on from.
    pub checkpoint: Checkpoint,
    /// The recipe that it was begun or last continued with.
    pub recipe: Recipe,
    /// Newer checkpoints that are damaged, and how.
    pub damaged: Vec<String>,
    /// Whether to go on although the recipe or the data make another run of it.
    pub force: bool,
    /// What keeps others away.
    pub lock: Lock,
}

impl Resume {
    /// Finds what `path` names: a run's folder, whose newest whole checkpoint is taken, or the
    /// folder of one checkpoint.
    ///
    /// # Errors
    /// When there is no whole checkpoint, or another process writes the run.
    pub fn find(disk: &Disk, path: &Path, force: bool) -> Result<Self> {
        let place = checkpoint::locate(path)?;
        let lock = record::lock(disk, &place.run)?;
        let (checkpoint, damaged) = checkpoint::find_newest(disk, &place)?;
        let run = place.run;
        // The run's own recipe may be newer than the checkpoint's: it has how the run was last
        // continued.
        let recipe = match fs::read_to_string(run.join("recipe.toml")) {
            Ok(text) => Recipe::from_toml(&text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Recipe::from_toml(&checkpoint.manifest.recipe)
            }
            Err(error) => Err(error.into()),
        };
        let recipe = recipe.with_context(|| format!("the recipe of {}", run.display()))?;
        Ok(Self { run, checkpoint, recipe, damaged, force, lock })
    }

    /// Checks that the run may go on by `recipe`; what is different, and harmless or forced. What an
    /// earlier version let begin goes on as it was begun.
    ///
    /// # Errors
    /// Names each key that would make another run of it, with the old and the new value, and a change
    /// that would spoil its record, which nobody can force; [`Recipe::may_run`].
    pub fn accept(&self, recipe: &Recipe) -> Result<Vec<Change>> {
        let begun = Recipe::from_toml(&self.checkpoint.manifest.recipe)
            .with_context(|| format!("the recipe in {}", self.checkpoint.folder.display()))?;
        if begun.may_run().is_ok() {
            recipe.may_run()?;
        }
        let changes = begun.changes(recipe)?;
        if let Some(change) = changes.iter().find(|change| change.parts_the_record()) {
            bail!(
                "the run in {} cannot go on: {change}; {}",
                self.run.display(),
                change.objection.unwrap_or_default()
            );
        }
        let refused: Vec<String> = changes
            .iter()
            .filter_map(|change| Some(format!("\n  {change}: {}", change.objection?)))
            .collect();
        if !refused.is_empty() && !self.force {
            bail!(
                "the run in {} was begun with another recipe; --force goes on all the same{}",
                self.run.display(),
                refused.concat()
            );
        }
        Ok(changes)
    }

    /// Checks that a run which has taken its `last` step already would not be recorded as something else
    /// by `changes`, which no step of it has seen.
    ///
    /// # Errors
    /// Names each such change.
    pub fn nothing_left(&self, changes: &[Change], last: u64) -> Result<()> {
        let seen: Vec<String> = changes
            .iter()
            .filter(|change| change.decides())
            .map(|change| format!("\n  {change}"))
            .collect();
        ensure!(
            seen.is_empty(),
            "the run in {} has taken its last step, {last}, and no step is left that would be by \
             another recipe: begin a run of its own{}",
            self.run.display(),
            seen.concat()
        );
        Ok(())
    }

    /// Checks that the data is what the run was begun with.
    ///
    /// # Errors
    /// Names the first file that differs.
    pub fn accept_data(&self, found: &[FileSum]) -> Result<()> {
        let begun = &self.checkpoint.manifest.provenance.data;
        let other = found.iter().find(|file| !begun.contains(file));
        let gone = begun.iter().find(|file| !found.contains(file));
        let problem = match (other, gone) {
            (Some(file), _) => {
                format!("the data file {} is not the one that the run was begun with", file.name)
            }
            (None, Some(file)) => {
                format!(
                    "the data file {} that the run was begun with is not read any more",
                    file.name
                )
            }
            (None, None) if found != begun => {
                "the data files of the run are read in another order".to_string()
            }
            (None, None) => return Ok(()),
        };
        ensure!(
            self.force,
            "{problem}: put all back as they were, or go on all the same with --force"
        );
        Ok(())
    }

    /// Checks that the program brings the parts of its own that the run was begun with.
    ///
    /// # Errors
    /// Names what it was begun with, and what there is.
    pub fn accept_own(&self, found: &BTreeMap<String, String>) -> Result<()> {
        let begun = &self.checkpoint.manifest.provenance.own;
        let words = |own: &BTreeMap<String, String>| {
            let words = own.iter().map(|(part, name)| format!("{part} {name}"));
            if own.is_empty() { "none".into() } else { words.collect::<Vec<_>>().join(", ") }
        };
        ensure!(
            found == begun || self.force,
            "the run was begun by a program with parts of its own ({}), and this one has others ({}): go \
             on with that program",
            words(begun),
            words(found)
        );
        Ok(())
    }

    /// Checks that texts number words as the model has learned them: a tokenizer's file, or data that were forced on
    /// the run, may number them otherwise.
    ///
    /// # Errors
    /// When they do.
    pub fn accept_vocabulary(&self, found: Option<&str>) -> Result<()> {
        let file = self.run.join(checkpoint::VOCABULARY);
        let (Some(found), true) = (found, file.is_file()) else { return Ok(()) };
        let begun = fs::read_to_string(&file);
        let begun = begun.with_context(|| format!("reading the vocabulary {}", file.display()))?;
        ensure!(
            found == begun,
            "the texts number words otherwise than {}, by which the model has learned them: go on with \
             the texts that the run was begun with, or begin a run of its own",
            file.display()
        );
        Ok(())
    }

    /// What the person should know before the first step.
    pub fn warnings(
        &self,
        recipe: &Recipe,
        here: &Provenance,
        resharded: Option<&str>,
    ) -> Vec<Warning> {
        let manifest = &self.checkpoint.manifest;
        let step = manifest.progress.step;
        let mut messages: Vec<String> = self
            .damaged
            .iter()
            .map(|problem| format!("a newer checkpoint is damaged and was passed over: {problem}"))
            .collect();
        let (was, is) = (&manifest.provenance.kernels, &here.kernels);
        if was != is {
            messages.push(format!(
                "the run was begun with the kernels {was}, which round differently from {is}: it \
                 goes on, but not bit for bit as it would have; `precision` and \
                 GRADWIRE_KERNELS choose them, where the processor has them"
            ));
        }
        messages.extend(resharded.map(Into::into));
        let begun = Recipe::from_toml(&manifest.recipe).ok();
        messages.extend(begun.and_then(|begun| recipe.batch_note(&begun, "up to this checkpoint")));
        if let Err(objection) = recipe.may_run() {
            messages.push(format!(
                "no run may begin like this any more, and this one goes on as it was begun: {objection}"
            ));
        }
        let warning = |message| Warning { step: Some(step + 1), message };
        messages.into_iter().map(warning).collect()
    }

    /// The continuation in words, for the record.
    pub fn note(&self, changes: &[Change], here: &Provenance) -> Text {
        let step = self.checkpoint.manifest.progress.step;
        let mut text = format!("Continued after step {step} from `{}`", {
            self.checkpoint.folder.file_name().unwrap_or_default().to_string_lossy()
        });
        // Writing to a string cannot fail.
        let _ = write!(text, " by `{}`.", here.command.join(" "));
        for change in changes {
            let forced = change.objection.map_or("", |_| " (forced)");
            let _ = write!(text, "\n\n{change}{forced}");
        }
        Text { step: step + 1, tag: "resumed".into(), text }
    }
}

/// How a run goes on, how often it still may.
pub(super) struct Recovery {
    how: OnWorkerLoss,
    restarts: u64,
    done: u64,
}

impl Recovery {
    pub(super) fn new(recipe: &Recipe) -> Self {
        Self { how: recipe.faults.on_worker_loss, restarts: recipe.faults.restarts, done: 0 }
    }

    /// What the run in `folder` goes on with after `error`, and what has happened, in words.
    ///
    /// # Errors
    /// `error`, when the run is not to go on, or cannot: then it says why as well.
    pub(super) fn next(
        &mut self,
        error: anyhow::Error,
        session: &Session,
        folder: &Path,
    ) -> Result<(Resume, Recipe, String)> {
        let lost = error.downcast_ref::<RunFailure>().is_some_and(RunFailure::is_recoverable);
        if self.how == OnWorkerLoss::Stop || !lost {
            return Err(error);
        }
        if self.done == self.restarts {
            let spent = format!("faults.restarts = {} are spent", self.restarts);
            return Err(if self.restarts > 0 { error.context(spent) } else { error });
        }
        let mut recipe = session.recipe.clone();
        if self.how == OnWorkerLoss::Shrink {
            if recipe.workers == 1 {
                return Err(error.context("the last worker is lost"));
            }
            recipe.workers -= 1;
        }
        // Recipe and data have been accepted when this process began, perhaps by force.
        let resume = match Resume::find(&session.disk, folder, true) {
            Ok(resume) => resume,
            Err(none) => {
                let none = anyhow!("{none:#}");
                return Err(error).context(format!("there is nothing to go on from ({none})"));
            }
        };
        self.done += 1;
        let from = resume.checkpoint.manifest.progress.step;
        let attempt = format!("{} of at most {}", self.done, self.restarts);
        let note = match self.how {
            OnWorkerLoss::Shrink => format!(
                "{error:#}; the other {} go on from the checkpoint of step {from} ({attempt})",
                recipe.workers
            ),
            _ => format!(
                "{error:#}; all workers start again from the checkpoint of step {from} ({attempt})"
            ),
        };
        Ok((resume, recipe, note))
    }
}
