//! A report's gist on the terminal.

use super::digest::{self, Arm, Target, Task};
use super::tables::{accuracy, bits, bytes_per_step};
use super::words;
use crate::plot::say;
use crate::results::Results;
use crate::statistics::Comparison;
use console::measure_text_width;
use std::fmt::Write;

/// Verdicts, and [`table`].
pub fn terminal(results: &Results) -> String {
    let mut text = format!("{}: {}\n", results.title, words::progress(results));
    for verdict in &results.verdicts {
        let _ = writeln!(text, "\n{}", words::verdict(results, verdict));
    }
    text + &table(results)
}

/// Of each task a table, what went wrong, and what can be said about chance.
pub fn table(results: &Results) -> String {
    let mut text = String::new();
    for task in &digest::tasks(results) {
        let _ = writeln!(text, "\n{}", task.label.label);
        text += &columns(&rows(task));
        for arm in &task.arms {
            let names = words::names(arm);
            if !names.is_empty() {
                let _ = writeln!(text, "{} is {}", arm.label.label, names.join(", "));
            }
            for trouble in arm.runs.iter().filter_map(|run| digest::trouble(run)) {
                let _ = writeln!(text, "{}, {trouble}", arm.label.label);
            }
        }
        for sentence in chance(task) {
            let _ = writeln!(text, "{sentence}");
        }
        if let Some(target) = task.target().filter(|_| !task.links.is_empty()) {
            let _ = writeln!(text, "\ntime on the virtual clock to it; {}", target.why);
            text += &columns(&times(task, &target));
        }
    }
    text
}

/// A task's arms, figures beside them; the first row holds the titles.
fn rows(task: &Task<'_>) -> Vec<Vec<String>> {
    let titles = ["arm", "seeds", "accuracy", "bits/param", "bytes/step", "ratio"];
    let mut head: Vec<String> = titles.map(String::from).to_vec();
    head.extend(task.links.iter().map(|link| format!("step {link}")));
    let mean = |over: Option<digest::Over>, say: fn(f64) -> String| {
        or_none(over.map(|over| say(over.moments.mean)))
    };
    let row = |arm: &Arm<'_>| {
        let seeds = match arm.badge() {
            Some(badge) => format!("{} ({badge})", arm.seeds()),
            None => arm.seeds(),
        };
        let mut row = vec![
            arm.label.label.clone(),
            seeds,
            or_none(arm.over(accuracy).map(|over| words::accuracy(&over.moments))),
            mean(arm.over(bits), say::three_digits),
            mean(arm.over(bytes_per_step), say::bytes),
            mean(arm.over(|m| m.summary.compression_ratio()), say::three_digits),
        ];
        let step = |word: &String| arm.on_link(word, |link| link.step_seconds);
        row.extend(task.links.iter().map(|word| mean(step(word), say::duration)));
        row
    };
    std::iter::once(head).chain(task.arms.iter().map(row)).collect()
}

/// A task's arms, and the time that each took to a target on each link.
fn times(task: &Task<'_>, target: &Target) -> Vec<Vec<String>> {
    let head = ["arm".to_string()].into_iter().chain(task.links.iter().cloned()).collect();
    let time = |arm: &Arm<'_>, word: &String| {
        let reached = arm.reached(word, target);
        match (reached.seconds, reached.of) {
            (_, 0) => "–".into(),
            (None, _) => "never".into(),
            (Some(seconds), of) if reached.seeds < of => {
                format!("{} ({} of {of} seeds)", say::duration(seconds), reached.seeds)
            }
            (Some(seconds), _) => say::duration(seconds),
        }
    };
    let row = |arm: &Arm<'_>| -> Vec<String> {
        let times = task.links.iter().map(|word| time(arm, word));
        [arm.label.label.clone()].into_iter().chain(times).collect()
    };
    let ran = task.arms.iter().filter(|arm| arm.finished().next().is_some());
    std::iter::once(head).chain(ran.map(row)).collect()
}

fn or_none(text: Option<String>) -> String {
    text.unwrap_or_else(|| "–".into())
}

/// Columns of a terminal that a table may take.
const WIDEST: usize = 80;

/// Rows as columns, the first to the left and the others to the right, two spaces between them. What
/// does not fit beside each other stands below, beside the first column again.
pub(super) fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| measure_text_width(cell)).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = String::new();
    let mut from = 1;
    while let Some(first) = widths.first() {
        let mut to = from;
        let mut taken = *first;
        while to < count && (to == from || taken + 2 + widths[to] <= WIDEST) {
            taken += 2 + widths[to];
            to += 1;
        }
        for row in rows {
            let cell = |column: usize| row.get(column).map_or("", String::as_str);
            let space =
                |column: usize| " ".repeat(widths[column] - measure_text_width(cell(column)));
            let others = (from..to).map(|column| format!("  {}{}", space(column), cell(column)));
            let line = others.fold(format!("{}{}", cell(0), space(0)), |line, other| line + &other);
            text += line.trim_end();
            text.push('\n');
        }
        if to >= count {
            break;
        }
        text.push('\n');
        from = to;
    }
    text
}

/// Of each arm, how its accuracy compares with the baseline's, in a sentence.
fn chance(task: &Task<'_>) -> Vec<String> {
    let Some(baseline) = task.baseline() else { return Vec::new() };
    let compared = task
        .arms
        .iter()
        .filter_map(|arm| task.against_baseline(arm, accuracy).map(|comparison| (arm, comparison)));
    let compared: Vec<(&Arm<'_>, Comparison)> = compared.collect();
    if compared.len() > 1 && compared.iter().all(|(_, comparison)| comparison.p.is_none()) {
        let words = compared[0].1.chance();
        return vec![format!("accuracies against {}: {words}", baseline.label.label)];
    }
    let sentence = |(arm, comparison): &(&Arm<'_>, Comparison)| {
        comparison.in_words(&arm.label.label, &baseline.label.label, words::points)
    };
    compared.iter().map(sentence).collect()
}

#[cfg(test)]
mod tests {
    use super::super::digest::tests::results;
    use super::*;
    use crate::results::Outcome;

    #[test]
    fn what_one_seed_cannot_tell_is_said_once() {
        let mut results = results();
        results.runs.retain(|run| run.seed == 1);
        results.runs[2].outcome = Outcome::Finished;
        results.runs[2].measured = results.runs[1].measured.clone();
        let text = terminal(&results);
        let said = "accuracies against dense: with one seed nothing can be said about chance";
        assert_eq!(text.matches("nothing can be said").count(), 1, "{text}");
        assert!(text.contains(said), "{text}");
    }

    #[test]
    fn the_gist_fits_a_terminal() {
        let text = terminal(&results());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "A test: 5 of 7 finished, 1 diverged, 1 missing");
        assert!(measure_text_width(lines[3]) <= WIDEST, "{text}");
        assert!(lines[3].starts_with("arm") && text.contains("step 100mbit"), "{text}");
        assert!(text.contains("step 1gbit"), "{text}");
        assert!(lines[4].starts_with("dense") && lines[4].contains("90.20 ± 0.10 %"));
        assert!(lines[5].contains("2 of 3 (diverged 1/3)"), "{text}");
        assert!(lines[3..7].iter().all(|line| line.chars().count() == lines[3].chars().count()));
        assert!(text.contains("top-k 1 %, seed 3 diverged after step 120 of 200"));
        assert!(text.contains(
            "top-k 1 % is 2.00 points below dense; over 2 pairs of runs with the same seed this is \
             hardly chance"
        ));
        assert!(text.contains("86 % is 95 % of what dense reached, rounded down"), "{text}");
        assert_eq!(
            lines.iter().filter(|line| line.starts_with("top-k 1 %  ")).count(),
            3,
            "{text}"
        );
        assert_eq!(columns(&[]), "");
        let wide = ["arm", &"b".repeat(50), &"c".repeat(50)].map(str::to_string).to_vec();
        let blocks = [format!("arm  {}\n", wide[1]), format!("arm  {}\n", wide[2])];
        assert_eq!(columns(&[wide]), blocks.join("\n"));
    }
}
