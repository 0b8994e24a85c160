//! A report in short, for the terminal.

use super::tables::{accuracy, bits, bytes_per_step};
use super::tasks::{self, AimedAccuracy, Arm, Task};
use super::words::{self, or_none};
use crate::results::{Results, Ruling, Verdict};
use crate::statistics::{Estimate, SeedMean};
use gradwire::text::{self, Column, Table, wrapped};
use std::fmt::Write;

/// Verdicts, and [`table`].
pub fn terminal(results: &Results) -> String {
    let mut text = format!("{}: {}\n", results.title, words::progress(results));
    if !results.verdicts.is_empty() {
        text += &format!("\n{}", verdicts(results));
    }
    text + &table(results)
}

/// Every claim, or of each question every arm, with its verdict, what was measured, and what counts. Arms of which
/// the same is to be said share a line.
pub fn verdicts(results: &Results) -> String {
    let [claim, answer] =
        if results.is_own_question() { ["arm", "answer"] } else { ["claim", "verdict"] };
    let split = |verdict: &Verdict| match verdict.claim.split_once(": ") {
        Some((arm, question)) if results.is_own_question() => (question.into(), arm.into()),
        _ => (String::new(), verdict.claim.clone()),
    };
    let mut rows: Vec<(String, Vec<String>, [String; 3], Reason<'_>)> = Vec::new();
    for verdict in &results.verdicts {
        let (question, name) = split(verdict);
        let ruling = results.in_words(verdict.ruling).trim_end_matches(" at this scale");
        let more = verdict.more_seeds.map(|more| format!(" (+{more} seeds)"));
        let measured = match verdict.parts.as_slice() {
            [] => verdict.measured.map(|measured| words::in_short(&measured, verdict)),
            _ => words::mean_and_ends(verdict),
        };
        let ruling = ruling.to_uppercase() + &more.unwrap_or_default();
        let cells = [ruling, or_none(measured), words::bounds(verdict)];
        let no_answer = results.is_own_question() && verdict.ruling == Ruling::NotTestable;
        let why = match no_answer {
            true => Some(("an answer", verdict.why.as_str())),
            false => verdict.measured.is_none().then_some(("a number", verdict.why.as_str())),
        };
        let same = |row: &&mut (String, Vec<String>, [String; 3], Reason<'_>)| {
            !question.is_empty() && row.0 == question && row.2 == cells && row.3 == why
        };
        match rows.iter_mut().find(same) {
            Some(row) => row.1.push(name),
            None => rows.push((question, vec![name], cells, why)),
        }
    }
    let mut text = String::new();
    for asked in rows.chunk_by(|a, b| a.0 == b.0) {
        let titles = [claim, answer, "measured", "counts"].map(Column::left);
        let mut table = Table::new(titles);
        for (_, names, [ruling, measured, bounds], _) in asked {
            let cells = [&names.join(", "), ruling, measured, bounds];
            let lines: Vec<Vec<String>> =
                cells.iter().zip(WIDTHS).map(|(cell, width)| wrapped(cell, width)).collect();
            for line in 0..lines.iter().map(Vec::len).max().unwrap_or(0) {
                table.row(lines.iter().map(|cell| cell.get(line).map_or("", String::as_str)));
            }
        }
        if !asked[0].0.is_empty() {
            text += &format!("{}?\n", asked[0].0);
        }
        text += &table.fit(WIDEST);
    }
    for ((without, why), count) in words::counted(rows.iter().filter_map(|row| row.3)) {
        text += &format!("{count} without {without}: {why}\n");
    }
    text
}

/// What a row is without, and why.
type Reason<'a> = Option<(&'static str, &'a str)>;

/// How wide a claim, its verdict, what was measured and what counts are: they go on in the next line.
const WIDTHS: [usize; 4] = [24, 14, 24, 12];

/// Of each task a table, what went wrong, and what can be said about chance.
pub fn table(results: &Results) -> String {
    let mut text = String::new();
    for task in &tasks::tasks(results) {
        let _ = writeln!(text, "\n{}", task.label.label);
        text += &figures(task).fit(WIDEST);
        for arm in &task.arms {
            let (label, names) = (&arm.label.label, arm.names());
            if !names.is_empty() {
                let names: Vec<&str> = names.into_iter().collect();
                let _ = writeln!(text, "{label} is {}", names.join(", "));
            }
            for trouble in arm.troubles() {
                let _ = writeln!(text, "{label}, {trouble}");
            }
        }
        for sentence in chance(task) {
            let _ = writeln!(text, "{sentence}");
        }
        if let Some(target) = task.target().filter(|_| !task.links.is_empty()) {
            let _ = writeln!(text, "\nvirtual time to an accuracy; {}", target.why);
            text += &times(task, &target).fit(WIDEST);
        }
    }
    text
}

/// The columns that a table on the terminal may have.
pub(super) const WIDEST: usize = 80;

/// A table without rows, its first column for names and the others for figures.
pub(super) fn titled(titles: impl IntoIterator<Item = String>) -> Table {
    let column =
        |(place, title)| if place == 0 { Column::left(title) } else { Column::right(title) };
    Table::new(titles.into_iter().enumerate().map(column))
}

/// A task's arms with their figures.
fn figures(task: &Task<'_>) -> Table {
    let titles = ["arm", "seeds", "accuracy", "bits/param", "bytes/step", "ratio"];
    let steps = task.links.iter().map(|link| format!("step {link}"));
    let mut table = titled(titles.map(String::from).into_iter().chain(steps));
    let mean = |mean: Option<SeedMean>, format: fn(f64) -> String| {
        or_none(mean.map(|over| format(over.mean)))
    };
    for arm in &task.arms {
        let badge = arm.badge().map_or_else(String::new, |badge| format!(" ({badge})"));
        let step = |word: &String| arm.on_link(word, |link| link.step_seconds);
        let cells = [
            arm.label.label.clone(),
            arm.seeds() + &badge,
            or_none(arm.mean(accuracy).as_ref().map(words::accuracy)),
            mean(arm.mean(bits), text::three_digits),
            mean(arm.mean(bytes_per_step), text::bytes),
            mean(arm.mean(|m| m.summary.compression_ratio()), text::three_digits),
        ];
        let steps = task.links.iter().map(|word| mean(step(word), text::duration));
        table.row(cells.into_iter().chain(steps));
    }
    table
}

/// A task's arms with the time that each took to a target on each link.
fn times(task: &Task<'_>, target: &AimedAccuracy) -> Table {
    let mut table = titled(["arm".to_string()].into_iter().chain(task.links.iter().cloned()));
    for arm in task.arms.iter().filter(|arm| arm.finished().next().is_some()) {
        let times = task.links.iter().map(|word| words::time_to(&arm.reached(word, target)));
        table.row([arm.label.label.clone()].into_iter().chain(times));
    }
    table
}

/// Of each arm, how its accuracy compares with the baseline's, in a sentence.
fn chance(task: &Task<'_>) -> Vec<String> {
    let Some(baseline) = task.baseline() else { return Vec::new() };
    let compared = task
        .arms
        .iter()
        .filter_map(|arm| task.against_baseline(arm, accuracy).map(|comparison| (arm, comparison)));
    let compared: Vec<(&Arm<'_>, Estimate)> = compared.collect();
    if compared.len() > 1 && compared.iter().all(|(_, comparison)| comparison.p().is_none()) {
        let words = compared[0].1.chance();
        return vec![format!("accuracies against {}: {words}", baseline.label.label)];
    }
    let sentence = |(arm, comparison): &(&Arm<'_>, Estimate)| {
        comparison.in_words(&arm.label.label, &baseline.label.label, words::points)
    };
    compared.iter().map(sentence).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::results;
    use super::*;

    #[test]
    fn what_one_seed_cannot_show_is_written_once() {
        let mut results = results();
        results.runs.retain(|run| run.seed == 1);
        results.runs.retain(|run| run.task == "text");
        results.runs[2] =
            crate::results::RunResult { arm: "sidco".into(), ..results.runs[1].clone() };
        let text = terminal(&results);
        let sentence = "accuracies against dense: with one seed nothing can be said about chance";
        assert_eq!(text.matches("nothing can be said").count(), 1, "{text}");
        assert!(text.contains(sentence), "{text}");
    }
}
