//! What follows for each claim from what was measured. A claim is reproduced when the whole interval
//! over seeds lies within its bounds, contradicted at this scale when it lies wholly outside of them,
//! and undecided when it straddles one: nothing is rounded in its favour.

mod numbers;
mod one_link;

use crate::claim::Claim;
use crate::experiment::{self, Choice, Experiment};
use crate::measured::INFINITE;
use crate::results::{Results, Ruling, Verdict, VerdictPart};
use crate::scale::Scale;
use anyhow::{Result, ensure};
use one_link::on_link;
use std::collections::BTreeSet;
use std::path::Path;

/// Judges results by their experiment as it is now, and gives it back: that of the `experiment.toml` in
/// `folder`, or else the built-in one of that name. Results of neither keep what they hold.
///
/// # Errors
/// When the experiment cannot be read, or has no such scale, or a run is there twice.
pub fn judge_again(folder: &Path, results: &mut Results) -> Result<Option<Experiment>> {
    let mut known = BTreeSet::new();
    for run in &results.runs {
        ensure!(
            known.insert((&run.task, &run.arm, run.seed)),
            "{}: {} of {} with seed {} is there twice: take one of them out",
            folder.display(),
            run.arm,
            run.task,
            run.seed
        );
    }
    let file = folder.join(experiment::FILE);
    let is_built_in = || Experiment::built_in().iter().any(|(name, _)| *name == results.experiment);
    let name = match file.is_file() {
        true => file.display().to_string(),
        false if is_built_in() => results.experiment.clone(),
        false => return Ok(None),
    };
    let (_, experiment) = Experiment::load(&name)?;
    let scale = experiment.scale(results.scale.as_deref())?;
    judge_by(&experiment, &scale, results);
    Ok(Some(experiment))
}

/// Puts what an experiment says into results: title, paper, what the scale is about, and a verdict on each claim.
pub(super) fn judge_by(experiment: &Experiment, scale: &Scale, results: &mut Results) {
    let about = experiment.scales.get(scale).map(|setting| setting.about.clone());
    results.about = about.unwrap_or_default();
    results.title.clone_from(&experiment.title);
    results.paper.clone_from(&experiment.paper);
    let choices = [experiment.task_choices(), experiment.arm_choices()];
    let setting = experiment.scales.get(scale);
    let named = |kind: usize, name: &String| choices[kind].iter().find(|c| c.label.name == *name);
    let is_trained = |task: &String, arm: &String| {
        let both = setting.zip(named(0, task).zip(named(1, arm)));
        both.is_some_and(|(setting, (task, arm))| setting.has(task) && setting.trains(task, arm))
    };
    let verdict = |claim: &Claim| {
        let has_run = |task: &&String| {
            results.runs.iter().any(|run| run.task == **task && run.arm == claim.arm)
        };
        let verdict = judge(claim, &choices, scale, results);
        // "Up to" may be reached by the task that has no run yet.
        let mut trained = claim.best_of.iter().filter(|task| is_trained(task, &claim.arm));
        match trained.find(|task| !has_run(task)) {
            Some(task)
                if matches!(verdict.ruling, Ruling::Contradicted | Ruling::DependsOnLink) =>
            {
                let why = format!("{task}, which may reach it, has no run here");
                Verdict { ruling: Ruling::NotTestable, why, by_link: None, ..verdict }
            }
            _ => verdict,
        }
    };
    results.verdicts = experiment.claims.iter().map(verdict).collect();
}

/// The verdict on a claim, with the labels of tasks and of arms. A claim on a time that names no link is asked on every
/// one that runs were replayed on, and on one on which nothing waits, so that it is not the choice of links that decides: it
/// is reproduced, or contradicted, where it is so on all of them, which makes no link a second chance, depends on the link where it holds on one and the opposite does on another, and is undecided otherwise.
fn judge(claim: &Claim, choices: &[Vec<Choice>; 2], scale: &Scale, results: &Results) -> Verdict {
    if claim.link.is_some() || !claim.measure.needs_link() || results.links.is_empty() {
        return on_link(claim, choices, scale, results);
    }
    let mut links = results.links.clone();
    links.push(INFINITE.to_string());
    let on = |link: &String| {
        let claim = Claim { link: Some(link.clone()), ..claim.clone() };
        on_link(&claim, choices, scale, results)
    };
    let verdicts: Vec<Verdict> = links.iter().map(on).collect();
    let with = |ruling| links.iter().zip(&verdicts).filter(move |(_, of)| of.ruling == ruling);
    let at = |ruling| with(ruling).map(|(link, _)| link.as_str()).collect::<Vec<_>>();
    let [holds, fails, open] =
        [Ruling::Reproduced, Ruling::Contradicted, Ruling::Undecided].map(at);
    let first = &verdicts[0];
    let untested = verdicts.iter().find(|of| of.ruling == Ruling::NotTestable);
    let one =
        untested.or_else(|| verdicts.iter().all(|of| of.ruling == first.ruling).then_some(first));
    let ruling = match one {
        Some(of) => of.ruling,
        None if holds.is_empty() || fails.is_empty() => Ruling::Undecided,
        None => Ruling::DependsOnLink,
    };
    let by_link = one.is_none().then(|| {
        let said = [("it holds at", holds), ("the opposite at", fails), ("undecided at", open)];
        let said = said.into_iter().filter(|(_, links)| !links.is_empty());
        let said = said.map(|(words, links)| format!("{words} {}", listed(&links)));
        said.collect::<Vec<_>>().join(", ")
    });
    // The link that needs the most seeds decides, and one that needs more than anybody makes needs the most.
    let needs = |(_, of): &(&String, &Verdict)| (of.more_seeds.is_none(), of.more_seeds);
    let most = with(Ruling::Undecided).max_by_key(needs).filter(|_| ruling == Ruling::Undecided);
    let why = match (most, one) {
        (Some((link, of)), _) => {
            by_link.iter().map(|on| format!("{on}; ")).collect::<String>()
                + &format!("at {link} {}", of.why)
        }
        (None, Some(of)) => of.why.clone(),
        (None, None) => by_link.clone().unwrap_or_default(),
    };
    let parts = links.iter().zip(&verdicts).flat_map(|(link, of)| match of.parts.as_slice() {
        [] => {
            let (on, measured, confidence) = (link.clone(), of.measured, of.confidence);
            vec![VerdictPart { on, measured, confidence }]
        }
        tasks => {
            let on = |task: &VerdictPart| VerdictPart {
                on: format!("{} at {link}", task.on),
                ..task.clone()
            };
            tasks.iter().map(on).collect()
        }
    });
    Verdict {
        parts: parts.collect(),
        measure: first.measure.clone() + ", the first link",
        links_asked: links.len(),
        dirty: verdicts.iter().map(|of| of.dirty).max().unwrap_or_default(),
        machines: verdicts.iter().map(|of| of.machines).max().unwrap_or_default(),
        more_seeds: most.and_then(|(_, of)| of.more_seeds),
        ruling,
        why,
        by_link,
        ..first.clone()
    }
}

/// Words as a sentence lists them: the last behind "and", the others behind commas.
fn listed(words: &[&str]) -> String {
    match words.split_last() {
        Some((last, [])) => (*last).to_string(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests;
