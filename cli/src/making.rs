//! The runs of an experiment: planned, shown, and made.

use crate::spinner::Spinner;
use anyhow::{Context, Result, bail};
use gradwire::disk::Disk;
use gradwire::recipe::Recipe;
use gradwire::record::{Mode, Provenance};
use gradwire::text::{duration, percent_to, plural};
use gradwire::train::requests::Requests;
use gradwire_study::estimate;
use gradwire_study::experiment::Experiment;
use gradwire_study::grid::{Grid, PlannedRun, Selection};
use gradwire_study::report;
use gradwire_study::results::{Results, RunResult, RunStatus, Tuned};
use gradwire_study::runner::{Job, Notice};
use gradwire_study::scale::Scale;
use gradwire_study::sweep::{SCALE, Sweep};
use gradwire_study::tuning::Tuning;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An experiment that is to be run.
pub(super) struct AskedExperiment {
    /// Its name, with which its folder begins.
    pub(super) name: String,
    pub(super) experiment: Experiment,
    /// How much is trained.
    pub(super) scale: Scale,
    /// Links to replay runs on, in place of the experiment's; empty for those.
    pub(super) links: Vec<String>,
    /// `path=value` pairs that change every recipe.
    pub(super) sets: Vec<String>,
    /// The folder that the experiment's folder is in.
    pub(super) out: PathBuf,
    /// The folder that holds the data sets, if not where the recipes say.
    pub(super) dir: Option<String>,
    /// Whether the runs and how long they will take are shown before they are made.
    pub(super) announced: bool,
    /// The test accuracy, as a fraction, to which the seconds are told in place of tables and verdicts.
    pub(super) target: Option<f64>,
}

impl AskedExperiment {
    /// All runs of a sweep over `recipe`, in full and where its runs are written.
    pub(super) fn of_sweep(recipe: Recipe, sweep: &Sweep, target: Option<f64>) -> Result<Self> {
        Ok(Self {
            name: recipe.name,
            experiment: sweep.experiment()?,
            scale: Scale::from(SCALE),
            links: Vec::new(),
            sets: Vec::new(),
            out: recipe.record.out,
            dir: None,
            announced: true,
            target,
        })
    }

    pub(super) fn folder(&self) -> PathBuf {
        self.out.join(format!("{}-{}", self.name, self.scale.name()))
    }
}

/// The making of one experiment: what all its grids of runs have in common.
pub(super) struct Making<'a> {
    asked: &'a AskedExperiment,
    /// Whether nothing but results is shown.
    silent: bool,
    /// Whether runs that were stopped are gone on with, rather than begun again.
    resume: bool,
    /// The experiment without its claims: none is made of the runs that choose.
    choosing: Experiment,
    pub(super) requests: Arc<Requests>,
    /// How many times its verdicts are looked at before they are final.
    looks: usize,
}

/// The runs with one of the values that arms choose from, and their folder.
pub(super) type Trial = (PathBuf, Grid);

impl<'a> Making<'a> {
    pub(super) fn new(
        asked: &'a AskedExperiment,
        silent: bool,
        resume: bool,
        looks: usize,
    ) -> Self {
        let (claims, sentences) = (Vec::new(), Vec::new());
        let choosing = Experiment { claims, sentences, ..asked.experiment.clone() };
        Self { asked, silent, resume, choosing, requests: Arc::default(), looks }
    }

    /// The runs that a selection of the experiment names.
    pub(super) fn plan(&self, selection: &Selection) -> Result<Grid> {
        self.plan_of(&self.asked.experiment, selection, &self.asked.folder())
    }

    fn plan_of(
        &self,
        experiment: &Experiment,
        selection: &Selection,
        folder: &Path,
    ) -> Result<Grid> {
        let grid = Grid::plan(experiment, &self.asked.scale, selection, folder);
        grid.with_context(|| format!("experiment {}", self.asked.name))
    }

    /// The runs by which arms choose.
    pub(super) fn trials(&self, tuning: &Tuning, selection: &Selection) -> Result<Vec<Trial>> {
        let all = tuning.selections(selection).map(|(name, selection)| {
            let folder = self.asked.folder().join("tuning").join(name);
            let grid = self.plan_of(&self.choosing, &selection, &folder)?;
            if let Some([one, other]) = grid.twins() {
                bail!(
                    "--tune {path}: arms {one} and {other} differ in nothing else; leave one of them out, or choose \
                     another setting",
                    path = tuning.path()
                );
            }
            Ok((folder, grid))
        });
        all.collect()
    }

    /// The runs of a grid, and how they are made.
    pub(super) fn job<'b>(&'b self, grid: &'b Grid) -> Job<'b> {
        let AskedExperiment { name, experiment, scale, links, .. } = self.asked;
        Job {
            name,
            experiment,
            scale,
            grid,
            folder: self.asked.folder(),
            links: if links.is_empty() { &experiment.links } else { links }.clone(),
            command: command(),
            mode: if self.silent { Mode::Silent } else { Mode::Brief },
            disk: Disk::default(),
            requests: Arc::clone(&self.requests),
            resume: self.resume,
            looks: self.looks,
        }
    }

    fn trial_job<'b>(&'b self, (folder, grid): &'b Trial) -> Job<'b> {
        Job { experiment: &self.choosing, folder: folder.clone(), ..self.job(grid) }
    }

    /// Says which runs there are first, in which arms choose, and how long those will take that are still to be made;
    /// what the arms have chosen where all are made.
    pub(super) fn show_trials(
        &self,
        tuning: &Tuning,
        trials: &[Trial],
        is_shown: bool,
    ) -> Result<Option<Tuned>> {
        let jobs: Vec<Job<'_>> = trials.iter().map(|trial| self.trial_job(trial)).collect();
        let left = jobs.iter().map(Job::left).collect::<Result<Vec<_>>>()?;
        let open: usize = left.iter().map(Vec::len).sum();
        let all: usize = jobs.iter().map(|job| job.grid.wanted().count()).sum();
        let first = jobs.iter().zip(&left).find(|(_, left)| !left.is_empty());
        let time = match first.filter(|_| is_shown) {
            // Those with another value take as long.
            Some((job, left)) => {
                let seconds: f64 = estimate::seconds(&job.grid.tasks, left)?.iter().sum();
                format!(", about {}", duration(seconds * open as f64 / left.len() as f64))
            }
            None => String::new(),
        };
        if !self.silent {
            let path = tuning.path();
            println!("first {all} runs in which each arm chooses {path}{}{time}", made(all - open));
        }
        if first.is_some() {
            return Ok(None);
        }
        let known = jobs.iter().map(|job| report::read(&job.disk, &job.folder));
        let known: Option<Vec<Results>> = known.collect::<Result<_>>()?;
        Ok(known.map(|known| tuning.chosen(&known)))
    }

    /// Makes the runs by which arms choose.
    ///
    /// # Errors
    /// When one has failed: nothing is chosen without it.
    pub(super) fn try_out(&self, tuning: &Tuning, trials: &[Trial]) -> Result<Vec<Results>> {
        let results = trials.iter().map(|trial| {
            let (folder, grid) = trial;
            let results = self.make(&self.trial_job(trial))?;
            let is_wanted =
                |run: &&RunResult| grid.wanted().any(|planned| planned.folder == run.folder);
            match results.runs.iter().filter(is_wanted).find(|run| has_failed(run)) {
                Some(failed) => bail!(
                    "a run in which an arm chooses {} has failed, and nothing is chosen without it: {}: {}; mend that, \
                     and repeat the command: what has been made is kept",
                    tuning.path(),
                    folder.join(&failed.folder).display(),
                    reason(failed)
                ),
                None => Ok(results),
            }
        });
        results.collect()
    }

    /// Makes the runs of a job, and says what happens to each.
    pub(super) fn make(&self, job: &Job<'_>) -> Result<Results> {
        let all = job.grid.wanted().count();
        let is_shown = self.asked.announced && job.folder == self.asked.folder();
        if !self.silent && !is_shown {
            eprintln!("{}, {}: {all} runs in {}", job.name, job.scale.name(), job.folder.display());
        }
        job.run(|news| {
            if !self.silent {
                tell(news, all);
            }
        })
    }
}

/// Prints the runs of a grid, and how long those take that are still to be made.
pub(super) fn show_plan(job: &Job<'_>) -> Result<()> {
    let (grid, left) = (job.grid, job.left()?);
    let all = grid.wanted().count();
    let there = made(all - left.len());
    println!("{}, {}: {all} runs in {}{there}", job.name, job.scale.name(), job.folder.display());
    let spinner = (!left.is_empty())
        .then(|| Spinner::unmeasured("taking some steps of each arm, to tell how long it takes"));
    let seconds = estimate::seconds(&grid.tasks, &left)?;
    drop(spinner);
    for (task, seconds) in grid.tasks.iter().zip(&seconds) {
        let is_of_task = |run: &&PlannedRun| run.task == task.label.name;
        let runs: Vec<&PlannedRun> = grid.wanted().filter(is_of_task).collect();
        let Some(first) = runs.first() else { continue };
        let open = left.iter().copied().filter(is_of_task).count();
        // A sweep over workers has them in its labels.
        let workers = plural(first.recipe.workers as u64, "worker");
        let label = &task.label.label;
        let workers = if label.contains(&workers) { String::new() } else { format!(", {workers}") };
        println!(
            "{}: {label}{workers}, {} steps of {} samples, {} runs{}, about {}",
            task.label.name,
            first.steps,
            first.recipe.workers * first.recipe.local_batch(),
            runs.len(),
            made(runs.len() - open),
            duration(*seconds),
        );
        for arm in &grid.arms {
            let of: Vec<_> = runs.iter().filter(|run| run.arm == arm.label.name).collect();
            let seeds: Vec<String> = of.iter().map(|run| run.recipe.seed.to_string()).collect();
            let Some(first) = of.first() else { continue };
            let word = if seeds.len() == 1 { "seed" } else { "seeds" };
            let scheme = first.recipe.scheme_in_words();
            println!("  {}, {word} {}: {scheme}", arm.label.name, seeds.join(" "));
        }
    }
    println!("all together about {}", duration(seconds.iter().sum()));
    let others: Vec<String> = job.other_processors()?.into_iter().collect();
    if !left.is_empty() && !others.is_empty() {
        println!(
            "note: other runs were made on another processor ({}), and no time of theirs is compared with one of here; \
             another --out makes all here",
            others.join("; ")
        );
    }
    Ok(())
}

/// How many of some runs need not be made again, if any, to stand behind their number.
fn made(count: usize) -> String {
    match count {
        0 => String::new(),
        count => format!(", {count} of them made already"),
    }
}

/// Says what happened to a run.
fn tell(news: &Notice<'_>, all: usize) {
    let width = all.to_string().len();
    match news {
        Notice::Begins(number, planned) => eprintln!(
            "[{number:>width$}/{all}] {} {} seed {} …",
            planned.task, planned.arm, planned.recipe.seed
        ),
        Notice::Superseded(place, why) => {
            eprintln!("    moved what was there to {}: {why}", place.display());
        }
        Notice::Copied(copy, what) => {
            eprintln!("kept what results.json held in {}: {what}", copy.display());
        }
        Notice::Untimed(why) => eprintln!("not timed: {why}"),
        Notice::Ended { number, planned, run, seconds, left } => {
            let summary = run.measured.as_ref().map(|measured| &measured.summary);
            let accuracy = summary.and_then(|summary| summary.test_accuracy);
            let result = match (&run.outcome, accuracy) {
                (RunStatus::Finished, Some(accuracy)) => percent_to(accuracy, 2),
                (outcome, _) => outcome.word().to_string(),
            };
            let bits = summary.map_or(0.0, |summary| summary.bits_per_parameter);
            let took = match seconds {
                Some(seconds) => format!("in {}", duration(*seconds)),
                None => "was there already".into(),
            };
            let left = left.filter(|left| *left > 0.0);
            let left =
                left.map_or_else(String::new, |left| format!("; about {} left", duration(left)));
            eprintln!(
                "[{number:>width$}/{all}] {} {} seed {}: {result}, {bits:.3} bits, {took}{left}",
                planned.task, planned.arm, planned.recipe.seed
            );
            if let RunStatus::Failed { error } | RunStatus::Diverged { error } = &run.outcome {
                eprintln!("    {error}");
            }
        }
    }
}

/// The command as it can be typed again, but for `--resume`.
pub(super) fn command() -> String {
    let mut words = Provenance::here().command;
    words.retain(|word| word != "--resume");
    report::command_line(&words)
}

pub(super) fn has_failed(run: &RunResult) -> bool {
    matches!(run.outcome, RunStatus::Failed { .. })
}

pub(super) fn reason(run: &RunResult) -> &str {
    match &run.outcome {
        RunStatus::Failed { error } | RunStatus::Diverged { error } => error,
        other => other.word(),
    }
}
