//! What `reproduce` and `sweep` have in common: a grid of runs is shown, made and judged.

use crate::refused::Failure;
use crate::signals::{Signal, Signals};
use crate::spinner::Spinner;
use anyhow::{Context, Result, anyhow};
use clap::Args;
use gradwire::disk::Disk;
use gradwire::recipe::Recipe;
use gradwire::record::{Mode, Provenance};
use gradwire::text::{duration, percent_to, plural};
use gradwire::train::requests::Requests;
use gradwire_study::decision::LOOKS;
use gradwire_study::estimate;
use gradwire_study::experiment::Experiment;
use gradwire_study::grid::{Grid, PlannedRun, Selection};
use gradwire_study::report;
use gradwire_study::results::{Results, Ruling, RunResult, RunStatus, Tuned, Verdict};
use gradwire_study::runner::{self, Job, Notice};
use gradwire_study::scale::Scale;
use gradwire_study::sweep::{SCALE, Sweep};
use gradwire_study::tuning::Tuning;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// How a grid is run.
#[derive(Debug, Args)]
pub(super) struct GridArgs {
    /// Repeat every run with seeds 1 to N; without it 1 to 3, or those that an experiment's scale names
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(super) seeds: Option<u64>,
    /// Train with three seeds; then with six, and then with ten, the arms of claims that are still
    /// undecided. What is decided stays decided, and the three looks together err no more than one
    #[arg(long, conflicts_with = "seeds")]
    until_decided: bool,
    /// Only these arms, or tasks, or these arms on these tasks, by name; or task/arm
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    only: Vec<String>,
    /// First let each arm choose the value of a setting, such as optimizer.learning_rate=0.05,0.1,0.2: one run for each
    /// with a tenth of the training set held out, which it is tested on. The test set is used once, with what was chosen
    #[arg(long, value_name = "PATH=V1,V2,…")]
    pub(super) tune: Option<String>,
    /// Go on with runs that were stopped, from their last checkpoints, rather than begin them
    /// again; finished ones are never made twice
    #[arg(long)]
    resume: bool,
    /// Show the runs and how long those still to be made will take here, and stop
    #[arg(long)]
    dry_run: bool,
    /// Show nothing but the verdicts
    #[arg(long, short, conflicts_with = "json")]
    quiet: bool,
    /// Print each verdict as a line of JSON, and nothing else
    #[arg(long, conflicts_with = "dry_run")]
    json: bool,
}

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

    fn folder(&self) -> PathBuf {
        self.out.join(format!("{}-{}", self.name, self.scale.name()))
    }
}

impl GridArgs {
    /// Runs with seeds 1 to `seeds`.
    pub(super) fn of_seeds(seeds: u64, resume: bool, dry_run: bool, json: bool) -> Self {
        let (until_decided, only, quiet) = (false, Vec::new(), false);
        Self { seeds: Some(seeds), until_decided, only, tune: None, resume, dry_run, quiet, json }
    }

    /// Runs an experiment, or shows what would be run.
    pub(super) fn run(&self, asked: &AskedExperiment) -> Result<ExitCode, Failure> {
        let AskedExperiment { name, experiment, scale, .. } = asked;
        let folder = asked.folder();
        let tuning =
            self.tune.as_deref().map(Tuning::parse).transpose().map_err(Failure::refused)?;
        let all =
            Selection { dir: asked.dir.clone(), sets: asked.sets.clone(), ..Selection::default() };
        let plan = |experiment: &Experiment, selection: &Selection, folder: &Path| {
            let grid = Grid::plan(experiment, scale, selection, folder);
            grid.with_context(|| format!("experiment {name}"))
        };
        let looks = self.looks();
        // What was looked at several times stays so: more looks with the whole error would err more often.
        let (before, known) =
            runner::looked(&Disk::default(), &folder, experiment).map_err(Failure::refused)?;
        let looked = looks.len().max(before).max(1);
        let known = if looked > 1 { known } else { Vec::new() };
        let seeds = looks.first().map(|seeds| *seeds as u64).or(self.seeds);
        let up_to = |seeds: u64| (1..=seeds).collect();
        let only = self.only.clone();
        let mut selection = Selection { seeds: seeds.map(up_to), only, known, ..all };
        let requests = Arc::new(Requests::default());
        let silent = self.is_silent();
        // What is claimed is not asked of the runs that choose.
        let (claims, sentences) = (Vec::new(), Vec::new());
        let choosing = Experiment { claims, sentences, ..experiment.clone() };
        let trials = |tuning: &Tuning| -> Result<Vec<(PathBuf, Grid)>> {
            let all = tuning.selections(&selection).map(|(name, selection)| {
                let folder = folder.join("tuning").join(name);
                Ok((folder.clone(), plan(&choosing, &selection, &folder)?))
            });
            all.collect()
        };
        let trials = tuning.as_ref().map(trials).transpose().map_err(Failure::refused)?;
        let mut grid = plan(experiment, &selection, &folder).map_err(Failure::refused)?;
        let is_shown = self.dry_run || (asked.announced && !silent);
        if let Some((tuning, trials)) = tuning.as_ref().zip(trials.as_ref()) {
            let job = |(folder, grid)| {
                let folder = PathBuf::clone(folder);
                Job { experiment: &choosing, folder, ..self.job(asked, grid, &requests, looked) }
            };
            let jobs: Vec<Job<'_>> =
                trials.iter().map(|(folder, grid)| job((folder, grid))).collect();
            let known = self.show_trials(tuning, &jobs, is_shown)?;
            if known.is_some() {
                selection.tuned = known;
                grid = plan(experiment, &selection, &folder)?;
            }
        }
        if is_shown {
            show_plan(&self.job(asked, &grid, &requests, looked))?;
            if self.until_decided {
                let [first, second, last] = LOOKS;
                println!(
                    "then, of arms whose claims are undecided, seeds {} to {second}, and {} to {last}",
                    first + 1,
                    second + 1
                );
            }
        }
        if self.dry_run {
            return Ok(ExitCode::SUCCESS);
        }
        let then = ", with a checkpoint of the run";
        let signals = Signals::listen(&requests.stop_flag(), false, Some(then))?;
        let run = |job: &Job<'_>| {
            let all = job.grid.wanted().count();
            let is_shown = asked.announced && job.folder == folder;
            if !silent && !is_shown {
                eprintln!("{name}, {}: {all} runs in {}", scale.name(), job.folder.display());
            }
            job.run(|news| {
                if !silent {
                    tell(news, all);
                }
            })
        };
        if let Some((tuning, trials)) = tuning.as_ref().zip(trials) {
            let mut tried = Vec::new();
            for (folder, grid) in trials {
                let job = self.job(asked, &grid, &requests, looked);
                let results = run(&Job { experiment: &choosing, folder: folder.clone(), ..job })?;
                let wanted =
                    |run: &&RunResult| grid.wanted().any(|planned| planned.folder == run.folder);
                if let Some(failed) = results.runs.iter().filter(wanted).find(|run| has_failed(run))
                {
                    return Err(Failure::from(anyhow!(
                        "a run in which an arm chooses {} has failed, and nothing is chosen without it: {}: {}; mend that, \
                         and repeat the command: what has been made is kept",
                        tuning.path(),
                        folder.join(&failed.folder).display(),
                        reason(failed)
                    )));
                }
                tried.push(results);
            }
            if !requests.stopping() {
                selection.tuned = Some(tuning.chosen(&tried));
                grid = plan(experiment, &selection, &folder)?;
            }
        }
        let stopped = |signal: &Signal| {
            eprintln!("Stopped by {}; go on with: {} --resume", signal.name, command());
            ExitCode::from(signal.exit_code)
        };
        if let Some(signal) =
            signals.heard().filter(|_| tuning.is_some() && selection.tuned.is_none())
        {
            return Ok(stopped(&signal));
        }
        let mut results = run(&self.job(asked, &grid, &requests, looked))?;
        for seeds in looks.iter().skip(1) {
            let open = undecided(experiment, &results, &self.only);
            if open.is_empty() || requests.stopping() {
                break;
            }
            selection = Selection { seeds: Some(up_to(*seeds as u64)), only: open, ..selection };
            let grid = plan(experiment, &selection, &folder)?;
            results = run(&self.job(asked, &grid, &requests, looked))?;
        }
        self.show(&results, &folder, asked.target);
        Ok(match signals.heard().filter(|_| !is_complete(&results)) {
            Some(signal) => stopped(&signal),
            None if results.runs.iter().any(has_failed) => ExitCode::FAILURE,
            None => ExitCode::SUCCESS,
        })
    }

    /// Whether nothing but results is shown.
    pub(super) fn is_silent(&self) -> bool {
        self.quiet || self.json
    }

    /// The seeds after which verdicts are looked at, if several times.
    fn looks(&self) -> &'static [usize] {
        if self.until_decided { &LOOKS } else { &[] }
    }

    /// Says which runs there are first, in which arms choose, and how long those will take that are still to be made;
    /// what the arms have chosen where all are made.
    fn show_trials(
        &self,
        tuning: &Tuning,
        jobs: &[Job<'_>],
        is_shown: bool,
    ) -> Result<Option<Tuned>> {
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
        if !self.is_silent() {
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

    /// The runs of a grid, and how they are made.
    fn job<'a>(
        &self,
        asked: &'a AskedExperiment,
        grid: &'a Grid,
        requests: &Arc<Requests>,
        looks: usize,
    ) -> Job<'a> {
        let AskedExperiment { name, experiment, scale, .. } = asked;
        let links = if asked.links.is_empty() { &experiment.links } else { &asked.links };
        Job {
            name,
            experiment,
            scale,
            grid,
            folder: asked.folder(),
            links: links.clone(),
            command: command(),
            mode: if self.is_silent() { Mode::Silent } else { Mode::Brief },
            disk: Disk::default(),
            requests: Arc::clone(requests),
            resume: self.resume,
            looks,
        }
    }

    fn show(&self, results: &Results, folder: &Path, target: Option<f64>) {
        let failed = results.runs.iter().filter(|run| has_failed(run));
        let failed = failed
            .map(|run| format!("failed: {}: {}", folder.join(&run.folder).display(), reason(run)));
        let reached = target.map(|target| report::reached(results, target));
        if self.json {
            let lines: Vec<serde_json::Result<String>> = match &reached {
                Some(reached) => reached.iter().map(serde_json::to_string).collect(),
                None => results.verdicts.iter().map(serde_json::to_string).collect(),
            };
            for line in lines {
                match line {
                    Ok(line) => println!("{line}"),
                    Err(error) => eprintln!("a result is no JSON: {error}"),
                }
            }
            failed.for_each(|line| eprintln!("{line}"));
            return;
        }
        if let Some(reached) = reached {
            println!("{}", report::reached_in_words(&reached));
        } else if results.is_own_question() && !self.quiet {
            print!("{}", report::table(results));
            println!();
        }
        let is_idle = |verdict: &Verdict| verdict.ruling == Ruling::NotTestable;
        let claims = !results.is_own_question() && !results.verdicts.is_empty();
        if claims && results.verdicts.iter().all(is_idle) {
            println!("{}", without_a_test(results));
        } else if !results.verdicts.is_empty() {
            print!("{}", report::verdicts(results));
            println!("{}", report::chance(results));
        }
        failed.for_each(|line| println!("{line}"));
        println!(
            "report in {}; curves: tensorboard --logdir {}",
            folder.join("report.html").display(),
            folder.display()
        );
    }
}

/// What is said of a scale that tests no claim: whether all runs work is the news.
fn without_a_test(results: &Results) -> String {
    let (runs, claims) = (results.runs.len(), results.verdicts.len());
    let works = match results.runs.iter().all(|run| run.outcome == RunStatus::Finished) {
        true => format!("everything works: {runs} of {runs} runs have finished. "),
        false => String::new(),
    };
    format!("{works}None of {claims} claims can be tested at this scale; the report says why")
}

/// The command as it can be typed again, but for `--resume`.
fn command() -> String {
    let mut words = Provenance::here().command;
    words.retain(|word| word != "--resume");
    report::command_line(&words)
}

/// The arms, each as task/arm, of the claims that are undecided, or have fewer seeds than they ask for, and that are about an
/// arm that `only` names.
fn undecided(experiment: &Experiment, results: &Results, only: &[String]) -> Vec<String> {
    let mut arms = BTreeSet::new();
    for (claim, verdict) in experiment.claims.iter().zip(&results.verdicts) {
        let is_open = |task: &&String| {
            let is_of = |run: &&RunResult| run.task == **task && run.arm == claim.arm;
            let runs: Vec<&RunResult> = results.runs.iter().filter(is_of).collect();
            let more = match verdict.ruling {
                Ruling::Undecided => true,
                Ruling::NotTestable => runs.len() < claim.seeds,
                _ => false,
            };
            // Whether an arm that diverged with some seeds breaks down is not told by more seeds.
            let diverged = |run: &&RunResult| matches!(run.outcome, RunStatus::Diverged { .. });
            more && !runs.is_empty()
                && !runs.iter().any(diverged)
                && experiment.is_selected(only, task, &claim.arm)
        };
        for task in claim.tasks().filter(is_open) {
            let both = std::iter::once(&claim.arm).chain(&claim.against);
            arms.extend(both.map(|arm| format!("{task}/{arm}")));
        }
    }
    arms.into_iter().collect()
}

fn is_complete(results: &Results) -> bool {
    let open = |run: &RunResult| matches!(run.outcome, RunStatus::Missing | RunStatus::Stopped);
    !results.runs.iter().any(open)
}

fn has_failed(run: &RunResult) -> bool {
    matches!(run.outcome, RunStatus::Failed { .. })
}

fn reason(run: &RunResult) -> &str {
    match &run.outcome {
        RunStatus::Failed { error } | RunStatus::Diverged { error } => error,
        other => other.word(),
    }
}

/// Prints the runs of a grid, and how long those take that are still to be made.
fn show_plan(job: &Job<'_>) -> Result<()> {
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
