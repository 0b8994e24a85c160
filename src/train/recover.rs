//! Going on after a worker was lost: from the last checkpoint, with all workers or without the lost.

use crate::recipe::{OnWorkerLoss, Recipe};
use crate::train::loss::Loss;
use crate::train::resume::Resume;
use crate::train::session::Session;
use anyhow::{Context, Result, anyhow};
use std::path::Path;

/// How a run goes on, how often it still may.
pub(crate) struct Recovery {
    how: OnWorkerLoss,
    restarts: u64,
    done: u64,
}

/// What the run goes on with.
pub(crate) struct Next {
    pub(crate) resume: Resume,
    pub(crate) recipe: Recipe,
    /// What has happened, in words.
    pub(crate) note: String,
}

impl Recovery {
    pub(crate) fn new(recipe: &Recipe) -> Self {
        Self { how: recipe.faults.on_worker_loss, restarts: recipe.faults.restarts, done: 0 }
    }

    /// What the run in `folder` goes on with after `error`.
    ///
    /// # Errors
    /// `error`, when the run is not to go on, or cannot: then it says why as well.
    pub(crate) fn next(
        &mut self,
        error: anyhow::Error,
        session: &Session,
        folder: &Path,
    ) -> Result<Next> {
        let lost = error.downcast_ref::<Loss>().is_some_and(Loss::is_recoverable);
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
        Ok(Next { resume, recipe, note })
    }
}
