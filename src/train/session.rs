//! What every part of one attempt to train a run shares.

use crate::checkpoint::Progress;
use crate::cluster::Job;
use crate::disk::Disk;
use crate::recipe::{Recipe, in_words, input};
use crate::record::{Provenance, RuleParameters};
use crate::train::faults::Faults;
use crate::train::parts::{OwnParts, Parts};
use crate::train::requests::Requests;
use crate::train::steps::Steps;
use anyhow::{Context, Error, Result, ensure};
use gradwire_datasets::{Data, Reading};
use gradwire_exchange as exchange;
use gradwire_models::config;
use gradwire_models::kernels::Kernels;
use std::path::PathBuf;
use std::sync::Arc;

/// One attempt to train a run, as all its parts see it.
#[derive(Clone)]
pub struct Session {
    /// Everything that decides the result.
    pub recipe: Recipe,
    /// What is trained and tested on.
    pub data: Data,
    /// What records, models and checkpoints are written through.
    pub disk: Disk,
    /// What is asked of all ranks beside training.
    pub requests: Arc<Requests>,
    /// What is to go wrong.
    pub faults: Arc<Faults>,
    /// The steps to take.
    pub steps: Steps,
    /// The run's folder; absent before there is one, and where nothing is to be kept.
    pub folder: Option<PathBuf>,
    /// What a program brings in place of what the recipe names.
    pub own: OwnParts,
    /// The arithmetic of its workers where they compute on the processor.
    pub kernels: Kernels,
}

impl Session {
    /// A run of `recipe` on `data` from its beginning, in no folder, with nothing going wrong, on the kernels of the
    /// calling thread.
    ///
    /// # Errors
    /// When there are fewer training samples than workers, or the environment asks for kernels that there are not.
    pub fn new(recipe: Recipe, data: Data) -> Result<Self> {
        let samples = data.train.len();
        ensure!(
            samples >= recipe.workers,
            "{} workers share {samples} training samples: take at most one worker per sample",
            recipe.workers
        );
        let steps = Steps::new(&recipe, samples, Progress::START)?;
        let (disk, requests, faults) = (Disk::default(), Arc::default(), Arc::default());
        recipe.fits_machine()?;
        let kernels = recipe.kernels()?;
        Ok(Self {
            recipe,
            data,
            disk,
            requests,
            faults,
            steps,
            folder: None,
            own: OwnParts::default(),
            kernels,
        })
    }

    /// As [`new`](Self::new), for the process that leads `job`: sends the other processes the recipe
    /// and then reads the recipe's data, as they do meanwhile.
    ///
    /// # Errors
    /// As [`new`](Self::new), and when the recipe does not fit the job or the data cannot be read.
    pub fn lead(job: &Job, recipe: Recipe) -> Result<Self> {
        job.workers(&recipe)?;
        job.announce(&recipe)?;
        let data = load(&recipe, None)?;
        Self::new(recipe, data)
    }

    /// Trainable parameters of one replica.
    ///
    /// # Errors
    /// When the recipe does not fit the data.
    pub fn parameters(&self) -> Result<u64> {
        let (data, model) = (&self.data.train, self.parts().model);
        config::parameters(model, &input(data.shape()), data.classes().len())
            .with_context(|| format!("building model {}", model.about().name))
    }

    /// The rules of the run's policy, each with the parameters that go by it.
    ///
    /// # Errors
    /// When the recipe does not fit the data, or no parameter goes by a rule.
    pub fn rules(&self) -> Result<Vec<RuleParameters>> {
        let (data, model) = (&self.data.train, self.parts().model);
        let all = config::trainable(model, &input(data.shape()), data.classes().len())?;
        let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
        let rules = &self.recipe.policy.rules;
        let of = self.recipe.policy.rules_of(&names)?;
        let rule = |(number, rule): (usize, &exchange::Rule)| {
            let mine = || all.iter().zip(&of).filter(move |(_, of)| **of == Some(number));
            RuleParameters {
                pattern: rule.pattern.clone(),
                scheme: in_words(&rule.scheme),
                names: mine().map(|((name, _), _)| name.clone()).collect(),
                parameters: mine().map(|((_, elements), _)| elements).sum(),
            }
        };
        Ok(rules.iter().enumerate().map(rule).collect())
    }

    /// The model, the optimizer and the scheme of the run.
    pub fn parts(&self) -> Parts<'_> {
        self.own.with(&self.recipe)
    }

    /// What the run on this machine is made with.
    pub fn provenance(&self, threads: usize) -> Provenance {
        Provenance {
            kernels: self.kernels.to_string(),
            workers: self.recipe.workers,
            threads,
            data: self.data.files.clone(),
            own: self.own.names(),
            ..Provenance::here()
        }
    }
}

/// The recipe's data set, its texts tokenised by `vocabulary` where one is given.
///
/// # Errors
/// When it is missing or damaged, with file, record and byte offset.
pub fn load(recipe: &Recipe, vocabulary: Option<&str>) -> Result<Data> {
    // Hidden, so that no `runs/out/*` takes it for runs.
    let scratch = recipe.record.out.join(".synthetic");
    let reading = Reading { scratch: &scratch, samples: recipe.samples, vocabulary };
    let data = recipe.dataset.load_as(&reading).map_err(Error::from);
    data.and_then(|data| held_out(recipe, data))
        .with_context(|| format!("loading data set {}", recipe.dataset.name()))
}

/// The data with the share of the training set held out that the recipe says, if it says one.
///
/// # Errors
/// When that leaves nothing to train or to test on.
pub fn held_out(recipe: &Recipe, data: Data) -> Result<Data> {
    match recipe.samples.validation {
        Some(share) => Ok(data.hold_out(share, recipe.seed)?),
        None => Ok(data),
    }
}
