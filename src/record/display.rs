//! Events in words, within 80 columns.

use super::event::{Epoch, Finished, RuleParameters, Started, Step, Warning};
use super::summary::Summary;
use crate::text::{
    Column, Table, bytes, clock, count, duration, grouped, percent_column, plural, three_digits,
};
use console::{Style, style};
use std::fmt::Write;

/// Names of the parameters of a rule that are shown.
const RULE_NAMES: usize = 3;

/// Columns of the widest bar in the summary.
const BAR: f64 = 30.0;

/// How the epoch under way is going.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    samples: u64,
    seconds: f64,
    bits: f64,
    steps: u64,
    loss: f64,
}

impl Pace {
    pub(super) fn add(&mut self, step: &Step) {
        self.samples += step.samples;
        self.seconds += step.seconds;
        self.bits += 32.0 * step.wire_bytes / step.dense_bytes.max(1) as f64;
        self.steps += 1;
        self.loss += step.loss * step.samples as f64;
    }

    /// Samples per second of the steps so far.
    fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.samples as f64 / self.seconds } else { 0.0 }
    }

    /// Mean loss of the samples so far.
    fn loss(&self) -> f64 {
        self.loss / self.samples.max(1) as f64
    }

    /// Mean bits per parameter of the steps so far.
    fn bits(&self) -> f64 {
        self.bits / self.steps.max(1) as f64
    }
}

/// What is about to be trained, and the head of the table of epochs.
pub(super) fn header(started: &Started) -> String {
    let bold = Style::new().for_stderr().bold();
    let dim = Style::new().for_stderr().dim();
    let Started { unit, epochs, steps, steps_per_epoch, .. } = started;
    let all_steps = grouped(*steps);
    let goes_on = match started.first_step {
        0 | 1 => String::new(),
        step if step > *steps => {
            format!("\nhas taken all its {all_steps} steps: nothing is left to do")
        }
        step => format!("\ngoes on at step {} of {all_steps}", grouped(step)),
    };
    let made_up = if twin_of(started).is_some() { ", all made up" } else { "" };
    let whole_epochs =
        steps.saturating_add_signed(-started.steps_ahead).is_multiple_of(*steps_per_epoch);
    let length = match whole_epochs {
        true => format!("{} of {}", plural(*epochs, "epoch"), plural(*steps_per_epoch, "step")),
        false => format!("{} (an epoch has {})", plural(*steps, "step"), grouped(*steps_per_epoch)),
    };
    let [parameters, train, test, batch] =
        [started.parameters, started.train_samples, started.test_samples, started.batch]
            .map(grouped);
    let table = table(started).head();
    let title = bold.apply_to(title(started));
    let tested = if started.held_out { "held-out" } else { "test" };
    let samples =
        format!("{parameters} parameters, {train} training and {test} {tested} {unit}{made_up}");
    let place = dim.apply_to(format!("record in {}", started.folder));
    let table = dim.apply_to(table.trim_end());
    let rules: String =
        started.rules.iter().map(|rule| rule_line(rule, started.parameters)).collect();
    format!(
        "{title}\n{samples}\n{rules}{length}, {batch} {unit} a step{goes_on}\n{place}\n\n{table}"
    )
}

/// Which parameters go by a rule, within two lines.
fn rule_line(rule: &RuleParameters, all: u64) -> String {
    let RuleParameters { pattern, scheme, names, parameters } = rule;
    let more = names.len().saturating_sub(RULE_NAMES);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let names = names.iter().take(RULE_NAMES).map(String::as_str).collect::<Vec<_>>().join(", ");
    let share = percent(Some(*parameters as f64 / all.max(1) as f64));
    let head = format!("{pattern} by {scheme}: {} parameters ({share})", grouped(*parameters));
    format!("{head}\n  {names}{more}\n")
}

/// The table of epochs, whose lines come one by one.
fn table(started: &Started) -> Table {
    Table::new([
        Column::right("epoch").at_least(7),
        Column::right("train loss"),
        Column::right("acc").at_least(6),
        Column::right("test loss"),
        Column::right(if continues(started) { "ppl" } else { "acc" }).at_least(6),
        Column::right(format!("{}/s", started.unit)).at_least(8),
        Column::right("bits/param"),
        Column::right("time").at_least(7),
    ])
}

/// One line of the table of epochs.
pub(super) fn row(started: &Started, epoch: &Epoch, pace: &Pace) -> String {
    table(started).line([
        epoch_of(started, epoch.epoch),
        loss(Some(epoch.train_loss)),
        percent(epoch.train_accuracy),
        loss(epoch.test_loss),
        match perplexity(epoch.bits_per_byte, epoch.test_loss) {
            Some(perplexity) => three_digits(perplexity),
            None => percent(epoch.test_accuracy),
        },
        count(epoch.samples_per_second),
        three_digits(pace.bits()),
        clock(epoch.seconds + epoch.evaluation_seconds),
    ])
}

/// Whether the run continues a text.
fn continues(started: &Started) -> bool {
    started.unit == "tokens"
}

/// What the loss of a text that is continued is as a perplexity: among how many equally likely tokens it hesitates.
fn perplexity(bits_per_byte: Option<f64>, loss: Option<f64>) -> Option<f64> {
    bits_per_byte.and(loss).map(f64::exp)
}

/// `epoch/epochs`, as wide as the table's first column.
pub(super) fn epoch_of(started: &Started, epoch: u64) -> String {
    format!("{:>7}", format!("{epoch}/{}", started.epochs))
}

/// What stands beside the bar. The head of the table above it says a rate of what.
pub(super) fn status(step: &Step, pace: &Pace, seconds_left: f64) -> String {
    format!(
        "{}  {}/s  {} bits  {} left",
        learning(step, pace),
        count(pace.rate()),
        three_digits(pace.bits()),
        clock(seconds_left)
    )
}

/// What stands beside the bar after the last step of an epoch.
pub(super) fn evaluating(step: &Step, pace: &Pace) -> String {
    format!("{}  evaluating", learning(step, pace))
}

/// A line on the way through an epoch, where there is no bar.
pub(super) fn progress(started: &Started, step: &Step, pace: &Pace, seconds_left: f64) -> String {
    format!(
        "{} step {}  {}  {} {}/s  {} bits/param  {} left",
        epoch_of(started, step.epoch),
        grouped(step.step),
        learning(step, pace),
        count(pace.rate()),
        started.unit,
        three_digits(pace.bits()),
        clock(seconds_left)
    )
}

fn learning(step: &Step, pace: &Pace) -> String {
    match step.accuracy {
        Some(_) => format!("loss {:.3}  acc {}", pace.loss(), percent(step.accuracy)),
        None => format!("loss {:.3}", pace.loss()),
    }
}

pub(super) fn warning(warning: &Warning) -> String {
    let word = style("warning").for_stderr().yellow().bold();
    match warning.step {
        Some(step) => format!("{word} at step {}: {}", grouped(step), warning.message),
        None => format!("{word}: {}", warning.message),
    }
}

/// The end of a run in one line.
pub(super) fn one_line(finished: &Finished) -> String {
    let Finished { summary, folder, .. } = finished;
    let result = match summary.test_accuracy {
        Some(_) if summary.bits_per_byte.is_some() => {
            format!("test loss {}", loss(summary.test_loss))
        }
        Some(_) => format!("{} test accuracy", percent(summary.test_accuracy)),
        None => format!("training loss {}", loss(summary.train_loss)),
    };
    format!("{result}, {}, {}, {folder}", clock(summary.seconds), wire(summary))
}

/// The end of a run in full, each line ended.
pub(super) fn summary(finished: &Finished, started: Option<&Started>) -> String {
    let Finished { summary, folder, out } = finished;
    let mut lines = String::new();
    let mut line = |label: &str, text: &str| {
        let label = style(format!("{label:<10}")).dim();
        let _ = writeln!(lines, "{label}{text}");
    };
    if let Some(started) = started {
        line("trained", &title(started));
    }
    line("result", &result(summary));
    let speed = format!(
        "{} {}/s, {} in {}",
        count(summary.samples_per_second()),
        summary.unit,
        plural(summary.steps, "step"),
        clock(summary.seconds),
    );
    line("speed", &speed);
    line("wire", &wire(summary));
    for rule in &summary.rules {
        let [sent, bits] = [bytes(rule.wire_bytes as f64), three_digits(rule.bits_per_parameter)];
        line("", &format!("{sent} of it for {}, {bits} bits per parameter", rule.pattern));
    }
    for (index, text) in shares(summary).iter().enumerate() {
        line(if index == 0 { "time" } else { "" }, text);
    }
    line("record", folder);
    line("curves", &format!("tensorboard --logdir {out}"));
    let named = |name: &&str| gradwire_datasets::Config::from_name(name);
    let official = |name: &&str| named(name).is_some_and(|set| set.distribution().is_some());
    if let Some(real) = started.and_then(twin_of).filter(official) {
        line("next", &format!("the real data: gradwire data fetch {real}"));
    }
    lines
}

/// The data set that the run's made-up samples stand for; none if they are real.
fn twin_of(started: &Started) -> Option<&'static str> {
    let dataset = gradwire_datasets::Config::from_name(&started.dataset)?;
    dataset.definition().twin().map(|twin| twin.original())
}

fn title(started: &Started) -> String {
    format!(
        "{} on {}, {}, {} × {}",
        started.model,
        started.dataset,
        started.scheme,
        plural(started.workers as u64, "worker"),
        plural(started.threads as u64, "thread"),
    )
}

fn result(summary: &Summary) -> String {
    if let (Some(bits), Some(perplexity)) =
        (summary.bits_per_byte, perplexity(summary.bits_per_byte, summary.test_loss))
    {
        let loss = style(format!("test loss {}", loss(summary.test_loss))).bold();
        let [perplexity, bits] = [perplexity, bits].map(three_digits);
        let best = match (summary.best_bits_per_byte, summary.best_epoch) {
            (Some(best), Some(epoch)) if summary.bits_per_byte > Some(best) => {
                format!(" (best {} in epoch {epoch})", three_digits(best))
            }
            _ => String::new(),
        };
        return format!("{loss}, perplexity {perplexity}, {bits} bits per byte{best}");
    }
    let mut text = match summary.test_accuracy {
        Some(_) => {
            let accuracy =
                style(format!("{} test accuracy", percent(summary.test_accuracy))).bold();
            let top5 = summary.test_top5_accuracy;
            let top5 =
                top5.map_or_else(String::new, |top5| format!(" (top 5: {})", percent(Some(top5))));
            format!("{accuracy}{top5}, test loss {}", loss(summary.test_loss))
        }
        None => format!("training loss {}, not evaluated", loss(summary.train_loss)),
    };
    if let (Some(best), Some(epoch)) = (summary.best_accuracy, summary.best_epoch)
        && summary.test_accuracy.is_some_and(|last| last < best)
    {
        let _ = write!(text, " (best {} in epoch {epoch})", percent(Some(best)));
    }
    text
}

fn wire(summary: &Summary) -> String {
    let beside = match summary.compression_ratio() {
        Some(ratio) if ratio > 0.99 => "as dense".to_string(),
        Some(ratio) if ratio > 0.0 => format!("{}× less than dense", three_digits(1.0 / ratio)),
        _ => return "nothing sent".into(),
    };
    let [sent, dense] = [summary.wire_bytes, summary.dense_bytes].map(|sum| bytes(sum as f64));
    let bits = three_digits(summary.bits_per_parameter);
    format!("{sent}, {beside} ({dense}), {bits} bits per parameter")
}

/// Where the time of the run went: name, milliseconds a step, share, bar.
fn shares(summary: &Summary) -> Vec<String> {
    let inside: f64 = summary.phases.seconds().iter().sum();
    let total = summary.seconds.max(inside + summary.evaluation_seconds);
    if total <= 0.0 || summary.steps == 0 {
        return Vec::new();
    }
    let other = total - inside - summary.evaluation_seconds;
    let a_step = |seconds: f64| format!("{} a step", duration(seconds / summary.steps as f64));
    let phases = summary.phases.named().map(|(name, seconds)| (name, seconds, a_step(seconds)));
    let rest = [("evaluation", summary.evaluation_seconds), ("other", other)];
    phases
        .chain(rest.map(|(name, seconds)| (name, seconds, clock(seconds))))
        .map(|(name, seconds, each)| {
            let share = seconds / total;
            let bar = style("━".repeat((share * BAR).round() as usize)).cyan();
            format!("{name:<11}{:>6}  {each:>17}  {bar}", percent(Some(share)))
                .trim_end()
                .to_owned()
        })
        .collect()
}

fn loss(value: Option<f64>) -> String {
    value.map_or_else(|| "–".into(), |value| format!("{value:.4}"))
}

fn percent(fraction: Option<f64>) -> String {
    fraction.map_or_else(|| "–".into(), percent_column)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_to_the_whole_run() {
        let mut summary = Summary { steps: 10, seconds: 10.0, ..Summary::default() };
        assert!(shares(&Summary::default()).is_empty());
        summary.phases.forward = 2.5;
        summary.phases.backward = 5.0;
        summary.evaluation_seconds = 1.0;
        let lines = shares(&summary);
        let lines: Vec<_> = lines.iter().map(|line| console::strip_ansi_codes(line)).collect();
        assert_eq!(lines[1], "forward     25.0%      250 ms a step  ━━━━━━━━");
        assert_eq!(lines[7], "evaluation  10.0%               1.0s  ━━━");
        assert_eq!(lines[8], "other       15.0%               1.5s  ━━━━━");
    }

    #[test]
    fn made_up_samples_are_called_so_and_the_real_ones_come_next() {
        let started = |dataset: &str| Started { dataset: dataset.into(), ..Started::default() };
        let finished = Finished::default();
        let (real, made_up) = (started("cifar10"), started("synthetic-cifar10"));
        assert!(header(&made_up).contains("all made up") && !header(&real).contains("made up"));
        let text = summary(&finished, Some(&made_up));
        let next = console::strip_ansi_codes(text.lines().last().unwrap()).into_owned();
        assert!(next.ends_with("gradwire data fetch cifar10"), "{next}");
        assert!(next.chars().count() <= 80, "{next}");
        assert!(!summary(&finished, Some(&real)).contains("fetch"));
    }

    #[test]
    fn a_length_is_told_in_epochs_only_where_whole_ones_are_run() {
        let length = |steps, steps_ahead| {
            let epochs = 2;
            let started =
                Started { steps, steps_ahead, epochs, steps_per_epoch: 16, ..Started::default() };
            header(&started).lines().nth(2).unwrap().split(',').next().unwrap().to_string()
        };
        assert_eq!(length(32, 0), "2 epochs of 16 steps");
        assert_eq!(length(20, 0), "20 steps (an epoch has 16)");
        assert_eq!(length(9, 0), "9 steps (an epoch has 16)");
        // With another number of workers since step 8, which was the fourth of the new epochs' steps.
        assert_eq!(length(36, 4), "2 epochs of 16 steps");
    }

    #[test]
    fn a_run_that_was_not_evaluated_says_so() {
        let summary = Summary { train_loss: Some(0.5), ..Summary::default() };
        assert_eq!(result(&summary), "training loss 0.5000, not evaluated");
        assert_eq!(wire(&summary), "nothing sent");
    }
}
