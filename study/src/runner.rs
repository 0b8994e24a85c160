//! Makes the runs of a grid, one after the other, each only once.
//!
//! `<out>/<experiment>-<scale>/<task>/<arm>/seed-<n>/` is a run's folder. A run that took all its
//! steps, or diverged, with the same recipe, version and data is not made again. One that was
//! stopped is gone on with from its last checkpoint, or begun again. What another recipe, version
//! or data have left there is moved to `<out>/superseded/`, never removed. What another process is at work
//! in is not moved: the grid stops there. A run that the `results.json` in the experiment's folder has
//! was made too, on another machine perhaps, also where its own folder is not there or holds something
//! else: whoever has that file goes on from it. Its runs that the grid has no place for stay in it, and a
//! copy of it goes to `<out>/superseded/` before others take the place of its runs.

use crate::earlier::EarlierResults;
use crate::experiment::{self, Choice, Experiment};
use crate::grid::{Grid, PlannedRun};
use crate::measured::Measured;
use crate::network::report::NamedLink;
use crate::pace::Pace;
use crate::report;
use crate::results::{Label, Results, RunResult, RunStatus};
use crate::scale::Scale;
use crate::{runs, timings, verdict};
use anyhow::{Context, Result};
use gradwire::checkpoint;
use gradwire::cluster::Job as Processes;
use gradwire::disk::Disk;
use gradwire::machine;
use gradwire::recipe::Recipe;
use gradwire::record::{self, Mode, RunLog};
use gradwire::train::launch::{Start, train};
use gradwire::train::requests::Requests;
use gradwire::train::resume::Resume;
use gradwire::train::session::Session;
use gradwire_exchange::network::Link;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use toml::Value;

/// An experiment at a scale, and where it is done.
pub struct Job<'a> {
    /// The experiment's name.
    pub name: &'a str,
    /// The experiment.
    pub experiment: &'a Experiment,
    /// The scale.
    pub scale: &'a Scale,
    /// Its runs.
    pub grid: &'a Grid,
    /// The experiment's folder.
    pub folder: PathBuf,
    /// The words of the links that runs are replayed on.
    pub links: Vec<String>,
    /// The command that does this, as it can be typed.
    pub command: String,
    /// What the person sees of each run.
    pub mode: Mode,
    /// What everything is written through.
    pub disk: Disk,
    /// Through which the end can be asked for.
    pub requests: Arc<Requests>,
    /// Whether runs that were stopped are gone on with, rather than begun again.
    pub resume: bool,
    /// How many times the verdicts are looked at before they are final.
    pub looks: usize,
}

/// What has happened to a run.
pub enum Notice<'a> {
    /// It begins; its number among the runs that are wanted, from 1.
    Begins(usize, &'a PlannedRun),
    /// What was in its folder was moved away: where to, and why.
    Superseded(&'a Path, &'a str),
    /// Something in `results.json` does not count here: where a copy of the file is, and what it is.
    Copied(&'a Path, &'a str),
    /// Schemes could not be timed for a claim, and why.
    Untimed(&'a str),
    /// It was there already, or has ended.
    Ended {
        /// Its number among the runs that are wanted, from 1.
        number: usize,
        /// What was planned.
        planned: &'a PlannedRun,
        /// How it ended, and what it measured.
        run: &'a RunResult,
        /// Seconds that it took now; absent when it was there already.
        seconds: Option<f64>,
        /// Seconds that the runs still to be made will take; absent while that is unknown.
        left: Option<f64>,
    },
}

/// What a run's folder holds.
enum FolderState {
    Empty,
    /// The run that is planned, as far as it came.
    Planned(RunStatus),
    /// Something else, and what is different.
    Other(String),
}

impl FolderState {
    /// Whether it is the run that is planned, and the run has nothing left to do.
    fn has_ended(&self) -> bool {
        matches!(self, Self::Planned(outcome) if outcome.is_final())
    }
}

impl Job<'_> {
    /// Makes every run that is missing, and writes results and report after each. A run that fails
    /// does not keep the others from being made. Ends early when that is asked for.
    ///
    /// # Errors
    /// When results cannot be written, or another process is at work in the folder.
    pub fn run(&self, mut notify: impl FnMut(&Notice<'_>)) -> Result<Results> {
        self.disk.create_folders(&self.folder).with_context(|| {
            format!("cannot make {}: choose another --out", self.folder.display())
        })?;
        let _lock = record::lock(&self.disk, &self.folder)?;
        let links = self.named_links()?;
        let mut earlier = EarlierResults::read(&self.disk, &self.folder)?;
        self.take_the_place_of_another_question(&earlier, &mut notify)?;
        let mut runs: Vec<RunResult> = self
            .grid
            .runs
            .iter()
            .map(|planned| self.found(planned, &links, &earlier))
            .collect::<Result<_>>()?;
        self.copy_what_is_lost(&earlier, &runs, &mut notify)?;
        self.keep(&runs, &earlier)?;
        let mut pace = Pace::default();
        let wanted = self.grid.runs.iter().enumerate().filter(|(_, planned)| planned.wanted);
        for (number, (index, planned)) in (1..).zip(wanted) {
            let began = (!runs[index].outcome.is_final()).then(Instant::now);
            if let Some(began) = began {
                if self.requests.stopping() {
                    break;
                }
                notify(&Notice::Begins(number, planned));
                let steps = self.make(planned, &mut notify)?;
                runs[index] = self.found(planned, &links, &earlier)?;
                pace.add(planned, steps, began.elapsed());
                self.keep(&runs, &earlier)?;
            }
            let later = self.grid.runs.iter().zip(&runs).skip(index + 1);
            let open = later.filter(|(planned, run)| planned.wanted && !run.outcome.is_final());
            let left = pace.left(open.map(|(planned, _)| planned));
            let seconds = began.map(|began| began.elapsed().as_secs_f64());
            notify(&Notice::Ended { number, planned, run: &runs[index], seconds, left });
        }
        if !self.requests.stopping() {
            let (disk, folder) = (&self.disk, self.folder.as_path());
            let known = std::mem::take(&mut earlier.timings);
            earlier.timings =
                timings::measure(disk, folder, self.experiment, self.grid, &runs, known, |why| {
                    notify(&Notice::Untimed(why));
                })?;
            self.keep(&runs, &earlier)?;
        }
        Ok(self.results(&runs, &earlier))
    }

    /// The runs that were asked for and are still to be made, by what is in the folder now.
    ///
    /// # Errors
    /// When the folder cannot be read, or a run that was made elsewhere was not replayed on the links.
    pub fn left(&self) -> Result<Vec<&PlannedRun>> {
        let links = self.named_links()?;
        let earlier = EarlierResults::read(&self.disk, &self.folder)?;
        let mut left = Vec::new();
        for planned in self.grid.wanted() {
            if !self.folder_state(planned)?.has_ended() && earlier.run(planned, &links)?.is_none() {
                left.push(planned);
            }
        }
        Ok(left)
    }

    /// The processors of other machines on which runs that were asked for have been made.
    ///
    /// # Errors
    /// As of [`left`](Self::left).
    pub fn other_processors(&self) -> Result<BTreeSet<String>> {
        let links = self.named_links()?;
        let earlier = EarlierResults::read(&self.disk, &self.folder)?;
        let mut others = BTreeSet::new();
        for planned in self.grid.wanted() {
            if self.folder_state(planned)?.has_ended() {
                others
                    .insert(runs::provenance(&self.disk, &self.folder.join(&planned.folder))?.cpu);
            } else if let Some(run) = earlier.run(planned, &links)? {
                others.extend(run.measured.map(|measured| measured.provenance.cpu));
            }
        }
        others.remove(&machine::processor());
        Ok(others)
    }

    /// The links, each with its word.
    fn named_links(&self) -> Result<Vec<NamedLink>> {
        self.links.iter().map(|word| Ok((word.clone(), Link::parse(word)?))).collect()
    }

    /// Makes one run, and gives back how many steps it had to take. Whatever becomes of it stands in its
    /// record.
    fn make(&self, planned: &PlannedRun, notify: &mut impl FnMut(&Notice<'_>)) -> Result<u64> {
        let folder = self.folder.join(&planned.folder);
        let start = match self.folder_state(planned)? {
            FolderState::Empty => Start::In(folder.clone()),
            FolderState::Planned(_) => {
                match self.resume.then(|| Resume::find(&self.disk, &folder, false)) {
                    Some(Ok(resume)) => Start::Resume(Box::new(resume)),
                    Some(Err(error)) => self.begin_again(planned, &format!("{error:#}"), notify)?,
                    None => self.begin_again(planned, "it had not ended", notify)?,
                }
            }
            FolderState::Other(difference) => self.begin_again(planned, &difference, notify)?,
        };
        let taken = match &start {
            Start::Resume(resume) => resume.checkpoint.manifest.progress.step,
            _ => 0,
        };
        let steps = planned.steps.saturating_sub(taken);
        let (alone, requests) = (Processes::alone(), Arc::new(self.requests.again()));
        let trained = Session::lead(&alone, planned.recipe.clone()).and_then(|session| {
            let session = Session { disk: self.disk.clone(), requests, ..session };
            train(&alone, session, self.mode, start)
        });
        match trained {
            Ok(trained) => {
                let checkpoints = folder.join(checkpoint::FOLDER);
                if !trained.stopped && checkpoints.exists() {
                    self.disk
                        .remove_folder(&checkpoints)
                        .with_context(|| format!("cannot remove {}", checkpoints.display()))?;
                }
                Ok(steps)
            }
            // What the record says is shown, and does not keep the others from being made.
            Err(error) => {
                let recorded = folder.join(record::METRICS).exists();
                match recorded.then(|| RunLog::skim(&self.disk, &folder)).transpose()? {
                    // How many steps it came to says nothing about the next.
                    Some(log) if log.status().error().is_some() => Ok(0),
                    _ => Err(error),
                }
            }
        }
    }

    /// Moves what is in a run's folder aside.
    ///
    /// # Errors
    /// When another process is at work in the folder, or it cannot be moved.
    fn begin_again(
        &self,
        planned: &PlannedRun,
        why: &str,
        notify: &mut impl FnMut(&Notice<'_>),
    ) -> Result<Start> {
        let folder = self.folder.join(&planned.folder);
        let above = planned.folder.parent().unwrap_or(&planned.folder);
        let seed = planned.recipe.seed;
        // A file where the folder should be is nobody's run, and has no place for a lock.
        let _lock = folder.is_dir().then(|| record::lock(&self.disk, &folder)).transpose()?;
        let free = self.superseded(above, |number| format!("seed-{seed}-{number}"))?;
        self.disk
            .rename(&folder, &free)
            .with_context(|| format!("cannot move {} to {}", folder.display(), free.display()))?;
        notify(&Notice::Superseded(&free, why));
        Ok(Start::In(folder))
    }

    /// Writes the experiment to its folder. The report of another experiment that was there, and what that one asked, are moved aside.
    fn take_the_place_of_another_question(
        &self,
        earlier: &EarlierResults,
        notify: &mut impl FnMut(&Notice<'_>),
    ) -> Result<()> {
        let path = self.folder.join(experiment::FILE);
        let question = Question::of(&self.disk, &self.folder, self.experiment)?;
        if question == Question::TheSame {
            return Ok(()); // With the comments that somebody may have written into it.
        }
        if question == Question::Another {
            let aside = self.superseded(Path::new(""), |number| format!("report-{number}"))?;
            self.disk.create_folders(&aside).with_context(|| cannot_write(&aside))?;
            let results = aside.join(report::JSON);
            self.disk.replace(&results, &earlier.bytes).with_context(|| cannot_write(&results))?;
            for name in report::FILES.into_iter().chain([experiment::FILE]) {
                let (from, to) = (self.folder.join(name), aside.join(name));
                if from.exists() {
                    self.disk.rename(&from, &to).with_context(|| {
                        format!("cannot move {} to {}", from.display(), to.display())
                    })?;
                }
            }
            let why = "its report answers another question; a folder for each (`sweep --name`, `reproduce --out`) keeps both";
            notify(&Notice::Superseded(&aside, why));
        }
        let text = toml::to_string(self.experiment)?;
        self.disk.replace(&path, text.as_bytes()).with_context(|| cannot_write(&path))
    }

    /// Keeps a copy of the `results.json` that is about to be replaced, if something in it would be lost.
    fn copy_what_is_lost(
        &self,
        earlier: &EarlierResults,
        runs: &[RunResult],
        notify: &mut impl FnMut(&Notice<'_>),
    ) -> Result<()> {
        let Some(what) = earlier.lost(self.grid, runs) else { return Ok(()) };
        let copy = self.superseded(Path::new(""), |number| format!("results-{number}.json"))?;
        self.disk.replace(&copy, &earlier.bytes).with_context(|| cannot_write(&copy))?;
        notify(&Notice::Copied(&copy, &what));
        Ok(())
    }

    /// A place for what is no longer to be in `folder`, which is within the experiment's: the first whose
    /// number is free.
    fn superseded(&self, folder: &Path, name: impl Fn(u64) -> String) -> Result<PathBuf> {
        let out = self.folder.parent().unwrap_or(&self.folder);
        let experiment = self.folder.file_name().unwrap_or_default();
        let above = out.join("superseded").join(experiment).join(folder);
        self.disk.create_folders(&above).with_context(|| cannot_write(&above))?;
        let mut number = 1;
        while above.join(name(number)).exists() {
            number += 1;
        }
        Ok(above.join(name(number)))
    }

    /// What the folder of a planned run holds.
    fn folder_state(&self, planned: &PlannedRun) -> Result<FolderState> {
        let folder = self.folder.join(&planned.folder);
        if !folder.exists() {
            return Ok(FolderState::Empty);
        }
        Ok(match difference(&self.disk, &folder, planned) {
            Ok(None) => FolderState::Planned(RunLog::skim(&self.disk, &folder)?.status()),
            Ok(Some(difference)) => FolderState::Other(difference),
            Err(error) => FolderState::Other(format!("{error:#}")),
        })
    }

    /// A planned run, as far as it has been made.
    fn found(
        &self,
        planned: &PlannedRun,
        links: &[NamedLink],
        earlier: &EarlierResults,
    ) -> Result<RunResult> {
        let state = self.folder_state(planned)?;
        if !state.has_ended()
            && let Some(run) = earlier.run(planned, links)?
        {
            return Ok(run);
        }
        let outcome = match state {
            FolderState::Planned(outcome) => outcome,
            FolderState::Empty | FolderState::Other(_) => RunStatus::Missing,
        };
        let folder = self.folder.join(&planned.folder);
        let measured = match outcome {
            RunStatus::Missing => None,
            RunStatus::Finished => Some(Measured::read(&self.disk, &folder, links)?),
            // What was cut off in its first moments has no record to read.
            _ => Measured::read(&self.disk, &folder, links).ok(),
        };
        Ok(RunResult {
            task: planned.task.clone(),
            arm: planned.arm.clone(),
            seed: planned.recipe.seed,
            folder: planned.folder.clone(),
            recipe: match outcome {
                RunStatus::Missing => String::new(),
                _ => runs::recipe_text(&self.disk, &folder)?,
            },
            outcome,
            measured,
        })
    }

    fn keep(&self, runs: &[RunResult], earlier: &EarlierResults) -> Result<()> {
        report::write(&self.disk, &self.folder, &self.results(runs, earlier))
    }

    /// What was asked for, and what else there is of the same grid.
    fn results(&self, runs: &[RunResult], earlier: &EarlierResults) -> Results {
        let pairs = self.grid.runs.iter().zip(runs);
        let shown =
            pairs.filter(|(planned, run)| planned.wanted || run.outcome != RunStatus::Missing);
        let mut runs: Vec<RunResult> = shown.map(|(_, run)| run.clone()).collect();
        let label = |choices: &[Choice], of: fn(&RunResult) -> &str| -> Vec<Label> {
            let labels = choices.iter().map(|choice| choice.label.clone());
            labels.filter(|label| runs.iter().any(|run| of(run) == label.name)).collect()
        };
        let tasks = label(&self.grid.tasks, |run| &run.task);
        let arms = label(&self.grid.arms, |run| &run.arm);
        RunResult::sort(&mut runs, &tasks, &arms);
        let baseline = &self.experiment.baseline;
        let mut results = Results {
            experiment: self.name.to_string(),
            scale: Some(self.scale.name().into()),
            command: self.command.clone(),
            baseline: arms.iter().any(|arm| arm.name == *baseline).then(|| baseline.clone()),
            tasks,
            arms,
            links: self.links.clone(),
            runs,
            others: earlier.others(self.grid),
            timings: earlier.timings.clone(),
            tuned: self.grid.tuned.clone(),
            looks: self.looks,
            ..Results::default()
        };
        verdict::judge_by(self.experiment, self.scale, &mut results);
        results
    }
}

/// What the experiment file of a folder asks, beside an experiment.
#[derive(PartialEq)]
enum Question {
    /// There is none.
    Nothing,
    TheSame,
    /// The same with other seeds, links or records, which are no other question.
    OtherSeedsOrLinks,
    Another,
}

impl Question {
    fn of(disk: &Disk, folder: &Path, experiment: &Experiment) -> Result<Self> {
        let path = folder.join(experiment::FILE);
        let there = match disk.read(&path, experiment::MAX_BYTES) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::Nothing),
            read => read.with_context(|| {
                format!("cannot read {}: move it away to go on without it", path.display())
            })?,
        };
        let asked = str::from_utf8(&there).ok().and_then(|text| Experiment::parse(text).ok());
        let Some(asked) = asked else { return Ok(Self::Another) };
        if asked == *experiment {
            return Ok(Self::TheSame);
        }
        Ok(if core(asked) == core(experiment.clone()) {
            Self::OtherSeedsOrLinks
        } else {
            Self::Another
        })
    }
}

/// What of an experiment is its question: all but scales, links, records and the folder of the data.
fn core(mut experiment: Experiment) -> Experiment {
    experiment.scales.clear();
    experiment.links.clear();
    experiment.recipe.remove("record");
    if let Some(Value::Table(dataset)) = experiment.recipe.get_mut("dataset") {
        dataset.remove("dir");
    }
    experiment
}

/// How many times the verdicts in an experiment's folder may be looked at, if they answer the same question, and the seeds
/// that its runs have.
///
/// # Errors
/// When what is in the folder cannot be read.
pub fn looked(disk: &Disk, folder: &Path, experiment: &Experiment) -> Result<(usize, Vec<u64>)> {
    match Question::of(disk, folder, experiment)? {
        Question::Another => Ok((0, Vec::new())),
        // Results may have come without their experiment, from another machine.
        _ => Ok(EarlierResults::read(disk, folder)?.looked()),
    }
}

/// What about the run in `folder` is not as planned; `None` when it is the planned run.
fn difference(disk: &Disk, folder: &Path, planned: &PlannedRun) -> Result<Option<String>> {
    let recipe = Recipe::from_toml(&runs::recipe_text(disk, folder)?)?;
    planned.change(&recipe, &runs::provenance(disk, folder)?)
}

fn cannot_write(path: &Path) -> String {
    format!(
        "cannot write {}: make room or permission there, or choose another --out",
        path.display()
    )
}
