//! A task's tables: what its arms reached, and what they took.

use super::document::{Block, Cell, PageTable};
use super::tasks::{AimedAccuracy, Arm, Task};
use super::words;
use crate::bench::codecs::Spread;
use crate::measured::{Measured, Work};
use crate::results::Timing;
use crate::statistics::{Estimate, SeedMean};
use gradwire::text;
use std::collections::BTreeSet;

/// A figure of a run, where it has one.
pub(super) type Reader = fn(&Measured) -> Option<f64>;

/// The final test accuracy.
pub(super) fn accuracy(measured: &Measured) -> Option<f64> {
    measured.summary.test_accuracy
}

/// The best test accuracy.
pub(super) fn best_accuracy(measured: &Measured) -> Option<f64> {
    measured.summary.best_accuracy
}

/// The final test loss.
pub(super) fn test_loss(measured: &Measured) -> Option<f64> {
    measured.summary.test_loss
}

/// Whether the model of a task continues a text: it is judged by its test loss.
pub(super) fn continues_text(task: &Task<'_>) -> bool {
    let mut runs = task.arms.iter().flat_map(|arm| &arm.runs);
    runs.any(|run| run.measured.as_ref().is_some_and(|of| of.summary.unit == "tokens"))
}

/// The final test accuracy among the five likeliest classes.
pub(super) fn top5_accuracy(measured: &Measured) -> Option<f64> {
    measured.summary.test_top5_accuracy
}

/// Bits per parameter and step; `None` where no step was taken.
pub(super) fn bits(measured: &Measured) -> Option<f64> {
    (measured.summary.steps > 0).then_some(measured.summary.bits_per_parameter)
}

/// Bytes that one rank sent in a step, on average, however many ranks there were.
pub(super) fn bytes_per_step(measured: &Measured) -> Option<f64> {
    let steps = measured.summary.steps as f64;
    (steps > 0.0).then(|| measured.sent / steps)
}

/// What arms reached: accuracy, volume, the difference from the baseline.
pub(super) fn reached(task: &Task<'_>) -> PageTable {
    let against = task.baseline().map(|arm| format!("accuracy against {}", arm.label.label));
    let evaluated = task.arms.iter().any(|arm| arm.mean(accuracy).is_some());
    let mut columns = vec!["arm", "#seeds"];
    if evaluated {
        columns.extend(["#accuracy", "#best accuracy"]);
    }
    let has_top5 = task.arms.iter().any(|arm| arm.mean(top5_accuracy).is_some());
    if has_top5 {
        columns.push("#top-5 accuracy");
    }
    let of_text = continues_text(task);
    if of_text {
        columns.push("#test loss");
    }
    columns.extend(["#training loss", "#bits per parameter and step", "#compression ratio"]);
    columns.push("#sent per rank and step");
    let in_groups = task.arms.iter().any(|arm| arm.mean(|m| m.local_bytes).is_some());
    if in_groups {
        columns.push("#within groups per step");
    }
    if let Some(against) = against.as_deref().filter(|_| evaluated) {
        columns.push(against);
    }
    let mut table = PageTable::new(&columns);
    for arm in &task.arms {
        let mut row = vec![named(arm), Cell::from(arm.seeds())];
        if evaluated {
            row.push(with_badge(
                arm,
                arm.mean(accuracy).map_or_else(Cell::none, |over| Cell {
                    below: interval(task, arm),
                    ..Cell::from(words::accuracy(&over))
                }),
            ));
            row.push(Cell::or_none(arm.mean(best_accuracy).map(|over| words::accuracy(&over))));
        }
        if has_top5 {
            row.push(Cell::or_none(arm.mean(top5_accuracy).map(|over| words::accuracy(&over))));
        }
        if of_text {
            row.push(Cell::or_none(arm.mean(test_loss).map(|over| words::plain(&over))));
        }
        let loss = arm.mean(|measured| measured.summary.train_loss);
        let loss = Cell::or_none(loss.map(|over| words::plain(&over)));
        row.push(if evaluated { loss } else { with_badge(arm, loss) });
        row.push(Cell::or_none(arm.mean(bits).map(|over| words::plain(&over))));
        let ratio = arm.mean(|measured| measured.summary.compression_ratio());
        row.push(ratio.map_or_else(Cell::none, |over| Cell {
            below: match 1.0 / over.mean {
                less if less > 1.01 => format!("{} less than dense", words::times(less)),
                _ => String::new(),
            },
            ..Cell::from(text::three_digits(over.mean))
        }));
        row.push(Cell::or_none(arm.mean(bytes_per_step).map(|over| text::bytes(over.mean))));
        if in_groups {
            let within = arm.mean(|measured| measured.local_bytes);
            row.push(Cell::or_none(within.map(|over| text::bytes(over.mean))));
        }
        if evaluated && task.baseline().is_some() {
            row.push(match task.against_baseline(arm, accuracy) {
                Some(comparison) => words::against(&comparison),
                None => Cell::none(),
            });
        }
        table.rows.push(row);
    }
    let held_out = task.arms.iter().any(|arm| arm.finished().any(|(_, of)| of.held_out));
    let tested_on = if held_out { "held-out training samples" } else { "the test set" };
    table.note = format!(
        "Means ± sample deviation over the seeds that finished; below them the confidence \
                  interval (Student's t). What did not finish is in no mean, and stands beside it. Accuracy: on {tested_on}, after the last step. Training loss: the mean of \
                  the last epoch (of the last tenth of the run in verdicts). Bits and bytes: a rank's \
                  own messages over all steps, uncompressed first ones too; what it forwards in a ring \
                  is not counted here. Compression ratio: bytes sent over bytes of dense fp32. \
                  Differences seed by seed by Student's t-test \
                  where runs with the same seed begin alike, else by Welch's; not corrected for their \
                  number."
    );
    table
}

/// What arms took on a link.
pub(super) fn on_link(task: &Task<'_>, word: &str, target: Option<&AimedAccuracy>) -> PageTable {
    let to = target.map(|target| format!("#to {}", text::percent(target.accuracy)));
    let mut columns = vec!["arm", "#step", "#of it the link", "#speed-up of a step", "#all steps"];
    if let Some(to) = &to {
        columns.extend([to.as_str(), "#speed-up to it"]);
    }
    let mut table = PageTable::new(&columns);
    let step = |arm: &Arm<'_>| Some(arm.on_link(word, |link| link.step_seconds)?.mean);
    let usual = task.baseline().and_then(step);
    let usual_to = task.baseline().zip(target).and_then(|(arm, t)| arm.reached(word, t).seconds);
    for arm in &task.arms {
        let Some(seconds) = arm.on_link(word, |link| link.step_seconds) else { continue };
        let link = arm.on_link(word, |link| link.exposed_seconds).map(|over| over.mean);
        let all = arm.on_link(word, |link| link.seconds).map(|over| over.mean);
        let share = |exposed: f64| text::percent_to(exposed / seconds.mean, 0);
        let faster = usual.map(|usual| words::times(usual / seconds.mean));
        let mut row = vec![
            named(arm),
            with_badge(arm, words::duration(&seconds).into()),
            link.map_or_else(Cell::none, |exposed| Cell {
                below: share(exposed),
                ..Cell::from(text::duration(exposed))
            }),
            Cell::or_none(faster),
            Cell::or_none(all.map(text::duration)),
        ];
        if let Some(target) = target {
            let reached = arm.reached(word, target);
            row.push(words::time_to(&reached).into());
            let faster = usual_to.zip(reached.seconds).map(|(usual, own)| usual / own);
            row.push(Cell::or_none(faster.map(words::times)));
        }
        table.rows.push(row);
    }
    table
}

/// What to know when reading tables of links.
pub(super) fn about_links(target: Option<&AimedAccuracy>) -> String {
    let mut note =
        "Virtual time: what each rank computed by its own processor clock, and what its \
                    messages take on the link. Evaluations are not charged. Step: the median of a \
                    run (in rounds of local steps the mean), mean and sample deviation over seeds."
            .to_string();
    if let Some(target) = target {
        note += &format!(
            " {}; the time to it is that of the first evaluation that found it. Where not every \
             seed reached it, how many did stands in its place.",
            target.why
        );
    }
    note
}

/// Where the accuracy of an arm lies, in percent: `95 %: 92.90 to 93.90`.
fn interval(task: &Task<'_>, arm: &Arm<'_>) -> String {
    let values = arm.values(accuracy);
    let confidence = task.confidence(values.len());
    let side = (1.0 - confidence) / 2.0;
    let ends = Estimate::new(&values).and_then(|estimate| estimate.ends(side));
    let sure = text::percent(confidence);
    ends.map_or_else(String::new, |[low, high]| {
        format!("{sure}: {:.2} to {:.2}", low * 100.0, high * 100.0)
    })
}

/// What a rank does in a step beside waiting for the link; `None` where it was not recorded.
pub(super) fn work(task: &Task<'_>) -> Option<PageTable> {
    let mut table = PageTable::new(&["arm", "#computing", "#encoding", "#decoding"]);
    for arm in &task.arms {
        let mean = |of: fn(&Work) -> f64| arm.mean(|m| Some(of(&m.work)));
        let parts = [mean(|w| w.compute), mean(|w| w.encode), mean(|w| w.decode)];
        if parts.iter().flatten().any(|over| over.mean > 0.0) {
            let cells = parts.map(|over| Cell::or_none(over.as_ref().map(words::duration)));
            table.rows.push([named(arm)].into_iter().chain(cells).collect());
        }
    }
    table.note =
        "On a rank's own processor clock: medians over steps (in rounds of local steps means), means ± \
                  sample deviation over the seeds that finished."
            .into();
    (!table.rows.is_empty()).then_some(table)
}

/// What schemes report about themselves; `None` where they report nothing.
pub(super) fn gauges(task: &Task<'_>) -> Option<PageTable> {
    const FIRST: [&str; 5] =
        ["kept_ratio", "union", "union_ratio", "server_bytes", "compression_error"];
    const SHOWN_ELSEWHERE: &str = "bits_per_parameter";
    let measured = task.arms.iter().flat_map(Arm::finished).map(|(_, measured)| measured);
    let names: BTreeSet<&str> =
        measured.flat_map(|m| m.gauge_means.keys()).map(String::as_str).collect();
    let mut names: Vec<&str> = names.into_iter().filter(|name| *name != SHOWN_ELSEWHERE).collect();
    // What papers make claims about stands first.
    names.sort_by_key(|name| FIRST.iter().position(|first| first == name).unwrap_or(FIRST.len()));
    if names.is_empty() {
        return None;
    }
    let titles: Vec<String> = names.iter().map(|name| format!("#{}", gauge_title(name))).collect();
    let columns: Vec<&str> = ["arm"].into_iter().chain(titles.iter().map(String::as_str)).collect();
    let mut table = PageTable::new(&columns);
    for arm in &task.arms {
        let cells: Vec<Cell> = names.iter().map(|name| gauge(arm, name)).collect();
        if cells.iter().all(|cell| *cell == Cell::none()) {
            continue;
        }
        let mut row = vec![with_badge(arm, named(arm))];
        row.extend(cells);
        table.rows.push(row);
    }
    table.note =
        "Means over the recorded steps of a run and over seeds ± sample deviation over seeds; below \
                  them the deviation over those steps of a run. Threshold quality: elements kept over \
                  elements wanted."
            .into();
    Some(table)
}

fn gauge(arm: &Arm<'_>, name: &str) -> Cell {
    let Some(over) = arm.mean(|m| m.gauge(name)) else {
        return Cell::none();
    };
    let steps = arm.mean(|m| m.gauge_means.get(name).map(|moments| moments.deviation));
    let steps = steps.map(|over| over.mean).filter(|deviation| *deviation > 1e-6 * over.mean.abs());
    let below = steps.map(|deviation| format!("steps ± {}", text::two_digits(deviation)));
    let below = below.unwrap_or_default();
    Cell { below, ..Cell::from(words::plain(&over)) }
}

/// How fast the schemes are that claims about speed compare, on the gradients that an arm's runs
/// recorded; `None` where none was timed.
pub(super) fn coding(task: &Task<'_>, timings: &[Timing]) -> Option<PageTable> {
    let timings: Vec<&Timing> = timings.iter().filter(|t| t.task == task.label.name).collect();
    let named = |name: &str| {
        let arm = task.arms.iter().find(|arm| arm.label.name == name);
        arm.map_or_else(|| Cell::from(name), named)
    };
    let mut table =
        PageTable::new(&["arm", "gradient of", "#seeds", "#encoding", "#decoding one message"]);
    for ((gradient_of, arm), seeds) in
        words::counted(timings.iter().map(|t| (&t.gradient_of, &t.arm)))
    {
        let ours: Vec<&&Timing> =
            timings.iter().filter(|t| (&t.gradient_of, &t.arm) == (gradient_of, arm)).collect();
        let cell = |spread: fn(&Timing) -> &Spread| {
            let spreads: Vec<&Spread> = ours.iter().map(|timing| spread(timing)).collect();
            let medians: Vec<f64> = spreads.iter().map(|spread| spread.median).collect();
            let least = spreads.iter().map(|spread| spread.least).fold(f64::INFINITY, f64::min);
            let most = spreads.iter().map(|spread| spread.most).fold(0.0, f64::max);
            Cell {
                below: format!("{} to {}", text::duration(least), text::duration(most)),
                ..Cell::from(words::or_none(SeedMean::new(&medians).as_ref().map(words::duration)))
            }
        };
        let times = [cell(|timing| &timing.encode), cell(|timing| &timing.decode)];
        let mut row = vec![named(arm), named(gradient_of), Cell::from(seeds.to_string())];
        row.extend(times);
        table.rows.push(row);
    }
    table.note = "The last gradient of each run, with the residual that was added to it, on one thread. \
                  All schemes take turns, message by message. Means ± sample deviation of the seeds' \
                  medians; below them the shortest and the longest time of any seed."
        .into();
    (!table.rows.is_empty()).then_some(table)
}

/// The title of a gauge.
pub(super) fn gauge_title(name: &str) -> String {
    match name {
        "kept_ratio" => "threshold quality k̂/k".into(),
        other => other.replace('_', " "),
    }
}

/// What went wrong, run by run.
pub(super) fn troubles(task: &Task<'_>) -> Option<Block> {
    let line = |arm: &Arm<'_>| {
        let all = arm.troubles();
        let head = format!(
            "{}: {} of {} seeds finished",
            arm.label.label,
            arm.finished().count(),
            arm.runs.len()
        );
        (!all.is_empty()).then(|| format!("{head}; {}", all.join("; ")))
    };
    let lines: Vec<String> = task.arms.iter().filter_map(line).collect();
    (!lines.is_empty()).then_some(Block::Warnings(lines))
}

/// An arm's name with its look.
fn named(arm: &Arm<'_>) -> Cell {
    Cell { style: Some(arm.style), ..Cell::from(arm.label.label.as_str()) }
}

fn with_badge(arm: &Arm<'_>, cell: Cell) -> Cell {
    Cell { badge: arm.badge(), ..cell }
}
