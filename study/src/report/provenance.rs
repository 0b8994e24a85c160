//! What produced the figures, and how to produce them again.

use super::document::{Block, Cell, PageTable};
use super::tasks::{Arm, Task};
use super::words;
use crate::results::{Results, RunResult};
use gradwire::record::{Provenance, RECIPE};
use std::path::Path;
use toml::{Table as Toml, Value};

/// The name of a fact, and where it is read.
type Fact = (&'static str, fn(&Provenance) -> String);

/// Where the figures come from.
pub(super) fn section(results: &Results) -> Vec<Block> {
    let mut blocks = vec![Block::Heading(2, "Provenance".into())];
    if !results.command.is_empty() {
        blocks.push(Block::Text(
            "The command that made this report (runs that were there already have commands of their own, \
             which the table of runs below names):"
                .into(),
        ));
        blocks.push(Block::Commands(vec![results.command.clone()]));
    }
    let all: Vec<&Provenance> =
        results.runs.iter().filter_map(|run| Some(&run.measured.as_ref()?.provenance)).collect();
    let facts: [Fact; 6] = [
        ("Version", |p| match &p.commit {
            Some(commit) => format!("{} at commit {commit}", p.version),
            None => p.version.clone(),
        }),
        ("Build", |p| format!("{}, {}", p.profile, p.rustc)),
        ("Machine", |p| format!("{}, {} cores", p.cpu, p.cores)),
        ("System", |p| p.os.clone()),
        ("Kernels", |p| p.kernels.clone()),
        ("Workers", |p| match p.threads {
            1 => format!("{} of one thread each", p.workers),
            threads => format!("{} of {threads} threads each", p.workers),
        }),
    ];
    let facts = facts.iter().map(|(name, of)| (name.to_string(), distinct(&all, of)));
    let facts: Vec<_> = facts.filter(|(_, value)| !value.is_empty()).collect();
    if !facts.is_empty() {
        blocks.push(Block::Facts(facts));
    }
    let data = data(&all);
    if !data.rows.is_empty() {
        let title = format!("Data: {} files with their checksums", data.rows.len());
        blocks.push(Block::Folded(title, vec![Block::Table(data)]));
    }
    let title = format!("Every run with its command: {}", results.runs.len());
    blocks.push(Block::Folded(title, vec![Block::Table(runs(results))]));
    blocks
}

/// Warnings where the finished runs of a task do not come from one machine and one build: what is
/// compared by time then compares these, too, and another commit may compute something else.
pub(super) fn warnings(task: &Task<'_>) -> Option<Block> {
    let made = || task.arms.iter().flat_map(Arm::finished).map(|(_, made)| &made.provenance);
    let builds = made().map(|provenance| {
        let Provenance { commit, rustc, profile, cpu, cores, kernels, threads, .. } = provenance;
        (commit, rustc, profile, cpu, cores, kernels, threads)
    });
    let mut warnings = Vec::new();
    if words::counted(builds).len() > 1 {
        let warning = "Times cannot be compared: these runs were made on different machines, by \
                       different builds or with different numbers of threads, see the provenance \
                       below.";
        warnings.push(warning.into());
    }
    if words::counted(made().map(|provenance| &provenance.commit)).len() > 1 {
        let warning = "These runs were made by different commits, as the provenance below tells: see in \
                       the changelog whether what they train has changed in between.";
        warnings.push(warning.into());
    }
    (!warnings.is_empty()).then_some(Block::Warnings(warnings))
}

/// A fact over all runs, each value once, with the number of runs where they differ.
fn distinct(all: &[&Provenance], of: &dyn Fn(&Provenance) -> String) -> String {
    let values = words::counted(all.iter().map(|provenance| of(provenance)));
    let alone = values.len() == 1;
    let word = |(text, count): (String, usize)| match (alone, count) {
        (true, _) => text,
        (false, 1) => format!("{text} (1 run)"),
        (false, count) => format!("{text} ({count} runs)"),
    };
    values.into_iter().map(word).collect::<Vec<_>>().join("; ")
}

fn data(all: &[&Provenance]) -> PageTable {
    let mut table = PageTable::new(&["file", "#bytes", "SHA-256"]);
    for file in all.iter().flat_map(|provenance| &provenance.data) {
        let row: Vec<Cell> = vec![
            file.name.as_str().into(),
            file.bytes.to_string().into(),
            file.sha256.as_str().into(),
        ];
        if !table.rows.contains(&row) {
            table.rows.push(row);
        }
    }
    table
}

fn runs(results: &Results) -> PageTable {
    let mut table = PageTable::new(&["run", "outcome", "command"]);
    for run in &results.runs {
        let measured = run.measured.as_ref();
        let name = measured.and_then(|measured| measured.name.clone());
        let command = measured.map(|_| again(run));
        table.rows.push(vec![
            Cell { below: name.unwrap_or_default(), ..run.folder.display().to_string().into() },
            run.outcome.word().into(),
            Cell::or_none(command),
        ]);
    }
    table
}

/// The command that makes a run once more, alone.
fn again(run: &RunResult) -> String {
    let made = run.measured.as_ref().map_or(&[][..], |measured| &measured.provenance.command);
    if made.get(1).is_some_and(|word| word == "train") {
        return command_line(made);
    }
    let recipe: Option<Toml> = run.recipe.parse().ok();
    let out = recipe.as_ref().and_then(|recipe| recipe.get("record")?.get("out"));
    let out = out.and_then(Value::as_str).unwrap_or_default();
    let path = Path::new(out).join(&run.folder).join(RECIPE);
    command_line(&["gradwire".into(), "train".into(), path.display().to_string()])
}

/// A command as it can be typed.
pub fn command_line(words: &[String]) -> String {
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./=,:+@%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.into(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tasks;
    use super::super::tests::results;
    use super::*;

    #[test]
    fn times_of_different_machines_are_not_compared_in_silence() {
        let mut results = results();
        let provenances = results.runs.iter_mut().filter_map(|run| run.measured.as_mut());
        provenances.for_each(|measured| measured.provenance.cpu = "A".into());
        assert!(warnings(&tasks::tasks(&results)[0]).is_none());
        // The run that diverged has no part in a mean.
        results.runs[5].measured.as_mut().unwrap().provenance.cpu = "B".into();
        assert!(warnings(&tasks::tasks(&results)[0]).is_none());
        let changes: [fn(&mut Provenance); 4] = [
            |provenance| provenance.cpu = "B".into(),
            |provenance| provenance.threads = 8,
            |provenance| provenance.profile = "debug".into(),
            |provenance| provenance.commit = Some("7654321".into()),
        ];
        for change in changes {
            let mut results = results.clone();
            change(&mut results.runs[0].measured.as_mut().unwrap().provenance);
            let Some(Block::Warnings(lines)) = warnings(&tasks::tasks(&results)[0]) else {
                panic!("no warning")
            };
            assert!(lines[0].contains("Times cannot be compared"), "{lines:?}");
            let of_commits = lines.iter().any(|line| line.contains("different commits"));
            let commit = &results.runs[0].measured.as_ref().unwrap().provenance.commit;
            assert_eq!(of_commits, commit.as_deref() == Some("7654321"), "{lines:?}");
        }
    }

    #[test]
    fn a_run_of_a_sweep_can_be_made_alone() {
        let mut results = results();
        let run = &mut results.runs[0];
        run.recipe = "[record]\nout = \"runs/out/x\"\n".into();
        run.measured.as_mut().unwrap().provenance.command = vec!["gradwire".into(), "sweep".into()];
        let path = format!("runs/out/x/{}/recipe.toml", run.folder.display());
        assert_eq!(again(run), format!("gradwire train {path}"));
    }
}
