//! Training from a program, with parts of its own.

use crate::cluster::Job;
use crate::disk::Disk;
use crate::recipe::{Recipe, Source};
use crate::record::{Console, Event, Mode};
use crate::train::launch::{Outcome, Start, train_observed};
use crate::train::observer::Observer;
use crate::train::parts::{ModelDefinition, OptimizerDefinition, OwnParts};
use crate::train::requests::Requests;
use crate::train::resume::Resume;
use crate::train::session::{Session, held_out, load};
use anyhow::{Result, ensure};
use gradwire_datasets::{Data, Samples, Selection};
use gradwire_exchange::Scheme;
use std::path::PathBuf;
use std::sync::Arc;

/// A run that a program sets up: by a recipe, with the program's own model, data, optimizer or scheme in
/// place of what the recipe names. Records, checkpoints, TensorBoard's file and resuming are those of
/// every run.
///
/// All workers are threads of this process. For as fast a run as the program `gradwire` makes, set
/// `RAYON_NUM_THREADS=1` in the environment: candle's own operations go by it.
///
/// ```no_run
/// use gradwire::Training;
///
/// let outcome = Training::with(["workers=4", "model=resnet20", "scheme=topk"])?.run()?;
/// println!("{} in {}", outcome.summary.step, outcome.folder.display());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Training {
    recipe: Recipe,
    own: OwnParts,
    data: Option<Data>,
    observers: Vec<Box<Observer<'static>>>,
    mode: Mode,
    resume: Option<PathBuf>,
    requests: Arc<Requests>,
}

impl Training {
    /// A run by `recipe`.
    pub fn new(recipe: Recipe) -> Self {
        Self {
            recipe,
            own: OwnParts::default(),
            data: None,
            observers: Vec::new(),
            mode: Mode::default(),
            resume: None,
            requests: Arc::default(),
        }
    }

    /// A run by the built-in recipe `first-look` with these settings, each `path=value` as behind `--set`.
    ///
    /// # Errors
    /// When a setting is unknown or impossible, with the nearest valid one.
    pub fn with<S: Into<String>>(settings: impl IntoIterator<Item = S>) -> Result<Self> {
        Ok(Self::new(Source::of(settings).load()?))
    }

    /// Trains this model in place of the recipe's.
    #[must_use]
    pub fn model(mut self, model: impl ModelDefinition + Send + Sync + 'static) -> Self {
        self.own.model = Some(Arc::new(model));
        self
    }

    /// Trains and tests on these samples in place of the recipe's data set.
    #[must_use]
    pub fn data(mut self, train: Samples, test: Samples) -> Self {
        self.data = Some([train, test].into());
        self.own.data = true;
        self
    }

    /// Updates weights by this optimizer in place of the recipe's.
    #[must_use]
    pub fn optimizer(
        mut self,
        optimizer: impl OptimizerDefinition + Send + Sync + 'static,
    ) -> Self {
        self.own.optimizer = Some(Arc::new(optimizer));
        self
    }

    /// Compresses gradients by this scheme in place of the recipe's.
    #[must_use]
    pub fn scheme(mut self, scheme: impl Scheme + 'static) -> Self {
        self.own.scheme = Some(Arc::new(scheme));
        self
    }

    /// Calls `observer` with everything that happens in the run, on the calling thread.
    #[must_use]
    pub fn observe(mut self, observer: impl FnMut(&Event) -> Result<()> + 'static) -> Self {
        self.observers.push(Box::new(observer));
        self
    }

    /// Ends the run after so many steps, if its epochs have as many.
    #[must_use]
    pub fn max_steps(mut self, steps: u64) -> Self {
        self.recipe.train.max_steps = Some(steps);
        self
    }

    /// Writes runs below this folder.
    #[must_use]
    pub fn out(mut self, folder: impl Into<PathBuf>) -> Self {
        self.recipe.record.out = folder.into();
        self
    }

    /// How much to show on the terminal.
    #[must_use]
    pub fn display(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Goes on with the run in this folder, from its last checkpoint.
    #[must_use]
    pub fn resume(mut self, run: impl Into<PathBuf>) -> Self {
        self.resume = Some(run.into());
        self
    }

    /// What another thread or a signal handler asks the run by to save a checkpoint or to stop.
    pub fn requests(&self) -> Arc<Requests> {
        Arc::clone(&self.requests)
    }

    /// Trains to the end.
    ///
    /// # Errors
    /// When the parts do not fit one another, the run cannot be resumed, an observer fails, or a worker
    /// does: then the first cause, with rank, step and phase.
    pub fn run(self) -> Result<Outcome> {
        let Self { recipe, own, data, mut observers, mode, resume, requests } = self;
        let start = match resume {
            Some(run) => Start::Resume(Box::new(Resume::find(&Disk::default(), &run, false)?)),
            None => Start::Fresh,
        };
        let data = match data {
            Some(data) => {
                let Selection { train, test, test_share, validation: _ } = recipe.samples;
                ensure!(
                    train.is_none() && test.is_none() && test_share.is_none(),
                    "samples.train, samples.test and samples.test_share choose among the samples of the recipe's data \
                     set, and the program brings its own: leave them out, and bring the samples that are meant"
                );
                held_out(&recipe, data)?
            }
            None => load(&recipe, None)?,
        };
        let session = Session { own, requests, ..Session::new(recipe, data)? };
        let mut console = Console::new(mode);
        let mut show = |event: &Event| console.record(event);
        let mut all: Vec<&mut Observer<'_>> = vec![&mut show];
        all.extend(observers.iter_mut().map(|observer| &mut **observer as &mut Observer<'_>));
        train_observed(&Job::alone(), session, &mut all, start)
    }
}
