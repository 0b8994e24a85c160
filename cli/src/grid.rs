//! What `reproduce` and `sweep` have in common: a grid of runs is shown, made and judged.

use crate::making::{AskedExperiment, Making, command, has_failed, reason, show_plan};
use crate::refused::Failure;
use crate::signals::{Signal, Signals};
use anyhow::Result;
use clap::Args;
use gradwire::disk::Disk;
use gradwire_study::decision::LOOKS;
use gradwire_study::experiment::Experiment;
use gradwire_study::grid::Selection;
use gradwire_study::report;
use gradwire_study::results::{Results, Ruling, RunResult, RunStatus, Verdict};
use gradwire_study::runner;
use gradwire_study::tuning::Tuning;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

/// How a grid is run.
#[derive(Debug, Args)]
pub(super) struct GridArgs {
    /// Repeat every run with seeds 1 to N; without it 1 to 3, or those that an experiment's scale names
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(super) seeds: Option<u64>,
    /// Train with three seeds; then with six, and then with ten, the arms of claims that are still
    /// undecided. What is decided stays decided, and the three looks together err no more than one
    #[arg(long, conflicts_with = "seeds")]
    pub(super) until_decided: bool,
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

impl GridArgs {
    /// Runs with seeds 1 to `seeds`.
    pub(super) fn of_seeds(seeds: u64, resume: bool, dry_run: bool, json: bool) -> Self {
        let (until_decided, only, quiet) = (false, Vec::new(), false);
        Self { seeds: Some(seeds), until_decided, only, tune: None, resume, dry_run, quiet, json }
    }

    /// Runs an experiment, or shows what would be run.
    pub(super) fn run(&self, asked: &AskedExperiment) -> Result<ExitCode, Failure> {
        let AskedExperiment { experiment, .. } = asked;
        let folder = asked.folder();
        let tuning =
            self.tune.as_deref().map(Tuning::parse).transpose().map_err(Failure::refused)?;
        let looks = self.looks();
        // What was looked at several times stays so: more looks with the whole error would err more often.
        let (before, known) =
            runner::looked(&Disk::default(), &folder, experiment).map_err(Failure::refused)?;
        let looked = looks.len().max(before).max(1);
        let known = if looked > 1 { known } else { Vec::new() };
        let seeds = looks.first().map(|seeds| *seeds as u64).or(self.seeds);
        let up_to = |seeds: u64| (1..=seeds).collect();
        let mut selection = Selection {
            seeds: seeds.map(up_to),
            only: self.only.clone(),
            known,
            dir: asked.dir.clone(),
            sets: asked.sets.clone(),
            ..Selection::default()
        };
        let making = Making::new(asked, self.is_silent(), self.resume, looked);
        let trials = tuning.as_ref().map(|tuning| making.trials(tuning, &selection));
        let trials = trials.transpose().map_err(Failure::refused)?;
        let mut grid = making.plan(&selection).map_err(Failure::refused)?;
        let is_shown = self.dry_run || (asked.announced && !self.is_silent());
        if let Some((tuning, trials)) = tuning.as_ref().zip(trials.as_ref()) {
            let known = making.show_trials(tuning, trials, is_shown)?;
            if known.is_some() {
                selection.tuned = known;
                grid = making.plan(&selection)?;
            }
        }
        if is_shown {
            show_plan(&making.job(&grid))?;
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
        let signals = Signals::listen(&making.requests.stop_flag(), false, Some(then))?;
        let stopped = |signal: &Signal| {
            eprintln!("Stopped by {}; go on with: {} --resume", signal.name, command());
            ExitCode::from(signal.exit_code)
        };
        if let Some((tuning, trials)) = tuning.as_ref().zip(trials.as_ref()) {
            let tried = making.try_out(tuning, trials)?;
            if !making.requests.stopping() {
                selection.tuned = Some(tuning.chosen(&tried));
                grid = making.plan(&selection)?;
            } else if let Some(signal) = signals.heard().filter(|_| selection.tuned.is_none()) {
                return Ok(stopped(&signal));
            }
        }
        let mut results = making.make(&making.job(&grid))?;
        for seeds in looks.iter().skip(1) {
            let open = undecided(experiment, &results, &self.only);
            if open.is_empty() || making.requests.stopping() {
                break;
            }
            selection = Selection { seeds: Some(up_to(*seeds as u64)), only: open, ..selection };
            let grid = making.plan(&selection)?;
            results = making.make(&making.job(&grid))?;
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
