//! Before the run begins: every process says what it would train with, and process 0 compares.

use super::job::{Job, SLOWEST};
use super::messages::{Begin, ControlMessage, Hello};
use crate::checkpoint::{Checkpoint, Progress};
use crate::machine::Machine;
use crate::recipe::Recipe;
use crate::record::Provenance;
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Job {
    /// Process 0: tells the others the recipe, before it reads its own data.
    ///
    /// # Errors
    /// When the recipe cannot be written down.
    pub fn announce(&self, recipe: &Recipe) -> Result<()> {
        if self.is_shared() {
            self.write_all(&ControlMessage::Recipe(recipe.to_toml()?))
        } else {
            Ok(())
        }
    }

    /// Process 0: hears what all others would train with, and checks that it is what this one has.
    ///
    /// # Errors
    /// Which process differs, on which host, by what; or which says nothing.
    pub fn agree(&self, here: &Provenance) -> Result<()> {
        if !self.is_shared() {
            return Ok(());
        }
        let mine = Hello::new(here);
        let mut all: Vec<Option<Hello>> = vec![None; self.processes];
        all[0] = Some(mine.clone());
        let deadline = Instant::now() + SLOWEST;
        while let Some(silent) = all.iter().position(Option::is_none) {
            match self.read(deadline)? {
                Some((from, ControlMessage::Hello(hello))) => all[from] = Some(*hello),
                Some((from, _)) => bail!("process {from} does not say what it would train with"),
                None => bail!("process {silent} has said nothing for {SLOWEST:?}"),
            }
        }
        let all: Vec<Hello> = all.into_iter().flatten().collect();
        for (process, hello) in all.iter().enumerate().skip(1) {
            if let Some(objection) = mine.objection(hello) {
                bail!("process {process} (on {}): {objection}", hello.machine.host);
            }
        }
        // Processes that may use the same processors share them.
        let sharing = |one: &Hello| {
            one.here.cores / all.iter().filter(|other| other.machine == one.machine).count()
        };
        let fewest = all.iter().map(sharing).min().unwrap_or(1);
        self.set_machines(all.into_iter().map(|hello| hello.machine).collect(), fewest.max(1))
    }

    fn set_machines(&self, machines: Vec<Machine>, threads: usize) -> Result<()> {
        let first = self.machines.set(machines).is_ok() && self.threads.set(threads).is_ok();
        ensure!(first, "invariant: processes agree once");
        Ok(())
    }

    /// Process 0: lets the others begin.
    ///
    /// # Errors
    /// When the run's folder is no text, or the checkpoint cannot be encoded.
    pub fn begin(
        &self,
        recipe: &Recipe,
        folder: &Path,
        progress: Progress,
        from: Option<&Checkpoint>,
    ) -> Result<()> {
        let folder = folder.to_str().with_context(|| format!("{} is no text", folder.display()))?;
        let machines = self.machines.get().cloned().unwrap_or_default();
        for process in 1..self.processes {
            let from = from.map(|from| from.for_rank(process)).transpose()?;
            let start = Begin {
                folder: folder.into(),
                progress,
                threads: self.threads(recipe),
                machines: machines.clone(),
                from,
            };
            self.write(process, &ControlMessage::Begin(Box::new(start)))?;
        }
        self.begun.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// A follower: takes up what process 0 lets it begin with.
    ///
    /// # Errors
    /// When it has done so before.
    pub fn take_up(&self, machines: Vec<Machine>, threads: usize) -> Result<()> {
        self.set_machines(machines, threads)?;
        self.begun.store(true, Ordering::SeqCst);
        Ok(())
    }
}

/// What a follower would train with: process 0's recipe with its own place of the data, unless its
/// own recipe is another.
///
/// # Errors
/// The key that differs, with both values.
pub fn accept(leader: &str, own: Option<Result<Recipe>>) -> Result<Recipe> {
    let mut recipe = Recipe::from_toml(leader).context("process 0's recipe")?;
    let Some(own) = own.transpose()? else { return Ok(recipe) };
    let changes = recipe.changes(&own)?;
    let Some(change) = changes.iter().find(|change| change.decides() || change.objection.is_some())
    else {
        recipe.dataset = own.dataset;
        return Ok(recipe);
    };
    let value = |value: &Option<toml::Value>| {
        value.as_ref().map_or("left out".to_string(), ToString::to_string)
    };
    Err(anyhow!(
        "its recipe says {} = {}, process 0's {}; give all the same",
        change.key,
        value(&change.new),
        value(&change.old)
    ))
}
