//! Figures as reports say them.

use super::digest::{Arm, Over};
use super::document::{Cell, Tone};
use crate::decision::SIDE;
use crate::plot::say::{self, three_digits};
use crate::results::{OnTask, Results, Ruling, Unit, Verdict};
use crate::statistics::{Comparison, Interval, Moments};
use crate::verdict::percent;

/// What those runs of an arm are called that have a name, each once.
pub(super) fn names(arm: &Arm<'_>) -> Vec<String> {
    let named = arm.runs.iter().filter_map(|run| run.measured.as_ref()?.name.clone());
    named.collect::<std::collections::BTreeSet<_>>().into_iter().collect()
}

/// A mean of fractions in percent, with its deviation if there are several: `93.41 ± 0.20 %`.
pub(super) fn accuracy(moments: &Moments) -> String {
    let mean = moments.mean * 100.0;
    match moments.count {
        1 => format!("{mean:.2} %"),
        _ => format!("{mean:.2} ± {:.2} %", moments.deviation * 100.0),
    }
}

/// A mean with its deviation: `0.404`, `7.2 ± 0.05`.
pub(super) fn plain(over: &Over) -> String {
    say::about(over.moments.mean, over.moments.deviation)
}

/// The 95 % confidence interval of a fraction, in percent: `95 %: 92.9 to 93.9`.
pub(super) fn reach(interval: &Interval) -> String {
    interval.ends.map_or_else(String::new, |[low, high]| {
        format!("95 %: {:.2} to {:.2}", low * 100.0, high * 100.0)
    })
}

/// How many times something is something else: `3.2×`.
pub(super) fn times(factor: f64) -> String {
    format!("{}×", three_digits(factor))
}

/// A difference of two fractions, without its sign: `0.40 points`.
pub(super) fn points(difference: f64) -> String {
    format!("{:.2} points", (difference * 100.0).abs())
}

/// A comparison of accuracies with a baseline: how far above or below, and what can be said about chance.
pub(super) fn against(comparison: &Comparison) -> Cell {
    let amount = points(comparison.difference);
    let text = match comparison.difference {
        d if d > 0.0 => format!("{amount} above"),
        d if d < 0.0 => format!("{amount} below"),
        _ => "the same".into(),
    };
    let tone = match comparison.is_significant() {
        true if comparison.difference > 0.0 => Tone::Good,
        true => Tone::Bad,
        false => Tone::Plain,
    };
    Cell { below: comparison.chance(), tone, ..Cell::from(text) }
}

/// A number of a verdict in its unit.
pub(super) fn in_unit(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Number => three_digits(value),
        Unit::Percent => format!("{:.2} %", value * 100.0),
        Unit::Points => format!("{:+.2} points", value * 100.0),
        Unit::Factor => times(value),
    }
}

/// A verdict in a few lines, for the terminal.
pub fn verdict(results: &Results, verdict: &Verdict) -> String {
    let Verdict { claim, measure, ruling, why, .. } = verdict;
    let claimed = match (verdict.claimed, results.is_own_question()) {
        (Some(claimed), _) => format!("claimed {}, ", in_unit(claimed, verdict.unit)),
        (None, true) => String::new(),
        (None, false) => "claimed no number, ".into(),
    };
    let measured = mean_and_ends(verdict).unwrap_or_else(|| "nothing".into());
    let ruling = results.in_words(*ruling).to_uppercase();
    format!("{ruling}: {claim}\n  {claimed}measured {measured}: {measure}\n  {why}")
}

/// What was measured for a verdict, with its interval where there is one.
pub(super) fn mean_and_ends(verdict: &Verdict) -> Option<String> {
    let unit = verdict.unit;
    match verdict.tasks.as_slice() {
        [] => Some(with_ends(&verdict.measured?, unit)),
        tasks => Some(tasks.iter().map(|on| on_task(on, unit)).collect::<Vec<_>>().join("; ")),
    }
}

/// A mean with its interval where there is one.
fn with_ends(measured: &Interval, unit: Unit) -> String {
    let Interval { mean, ends, seeds } = measured;
    let say = |value: &f64| in_unit(*value, unit);
    match ends {
        Some([low, high]) => {
            format!("{} ({} to {}, {seeds} seeds)", say(mean), say(low), say(high))
        }
        None => say(mean),
    }
}

/// What was measured on one of several tasks.
fn on_task(on: &OnTask, unit: Unit) -> String {
    match &on.measured {
        Some(measured) => format!("{}: {}", on.task, with_ends(measured, unit)),
        None => format!("{}: nothing", on.task),
    }
}

/// What was measured for a verdict, and its interval; of pairs, how they vary together and what
/// Welch's interval would be.
pub(super) fn measured(verdict: &Verdict) -> Cell {
    let Some(Interval { mean, ends, seeds }) = verdict.measured else { return Cell::none() };
    let say = |value| in_unit(value, verdict.unit);
    let mut below = match ends {
        Some([low, high]) => {
            let sure = percent(verdict.confidence);
            format!("{sure}: {} to {}, {seeds} seeds", say(low), say(high))
        }
        None => "one seed, so no interval".into(),
    };
    if let Some([low, high]) = verdict.welch {
        below += ", paired";
        if let Some(r) = verdict.correlation {
            below += &format!(" (r = {r:.2})");
        }
        below += &format!("; by Welch {} to {}", say(low), say(high));
    }
    for other in verdict.tasks.iter().skip(1) {
        below += &format!(". {}", on_task(other, verdict.unit));
    }
    Cell { below, ..Cell::from(say(mean)) }
}

/// How many claims got each verdict, how many of the verdicts chance alone may have got wrong, and what
/// it costs to look again at those that are undecided.
pub fn chance(results: &Results) -> String {
    let count = |ruling| results.verdicts.iter().filter(|v| v.ruling == ruling).count();
    let counts =
        Ruling::ALL.map(|ruling| format!("{} {}", count(ruling), results.in_words(ruling)));
    let decided = count(Ruling::Reproduced) + count(Ruling::Contradicted);
    let looks = match results.looks {
        0 | 1 => String::new(),
        looks => format!(", all {looks} looks together"),
    };
    let again = match (count(Ruling::Undecided), results.looks) {
        (0, _) => "",
        (_, 0 | 1) => {
            " Seeds added by hand are one more look, and several looks err more often than that: \
             --until-decided pays for its looks."
        }
        _ => " Seeds added by hand are one more look, and err more often than that.",
    };
    format!(
        "{}. A verdict of the first two kinds is wrong with a probability of at most {}{looks}: of \
         these {decided}, chance alone gets at most {} wrong on average.{again}",
        counts.join(", "),
        percent(SIDE),
        three_digits(decided as f64 * SIDE)
    )
}

/// Each of these once, in the order in which they come, and how many times it comes.
pub(super) fn counted<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<(T, usize)> {
    let mut counts: Vec<(T, usize)> = Vec::new();
    for one in all {
        match counts.iter_mut().find(|(known, _)| *known == one) {
            Some((_, count)) => *count += 1,
            None => counts.push((one, 1)),
        }
    }
    counts
}

/// How many runs there are, and what became of them.
pub(super) fn progress(results: &Results) -> String {
    let count = |word| results.runs.iter().filter(|run| run.outcome.word() == word).count();
    let mut words = vec![format!("{} of {} finished", count("finished"), results.runs.len())];
    for word in ["diverged", "failed", "unfinished", "missing"] {
        if count(word) > 0 {
            words.push(format!("{} {word}", count(word)));
        }
    }
    words.join(", ")
}

/// What counts as reproduced.
pub(super) fn bounds(verdict: &Verdict) -> String {
    let say = |value| in_unit(value, verdict.unit);
    match verdict.bounds {
        [Some(low), Some(high)] => format!("counts: {} to {}", say(low), say(high)),
        [Some(low), None] => format!("counts: {} or more", say(low)),
        [None, Some(high)] => format!("counts: {} or less", say(high)),
        [None, None] => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::digest::tests;
    use super::*;
    use crate::statistics;

    fn over(values: &[f64]) -> Over {
        let interval = statistics::interval(values).unwrap();
        Over { moments: Moments::of(values), interval }
    }

    #[test]
    fn figures_have_the_digits_that_count() {
        assert_eq!(accuracy(&Moments::of(&[0.9341])), "93.41 %");
        assert_eq!(accuracy(&Moments::of(&[0.93, 0.95])), "94.00 ± 1.41 %");
        assert_eq!(plain(&over(&[0.40401, 0.40402])), "0.404");
        assert_eq!(plain(&over(&[7.0, 9.0])), "8 ± 1.4");
        assert_eq!(reach(&over(&[0.5]).interval), "");
        assert_eq!(reach(&over(&[0.4, 0.6]).interval), "95 %: -77.06 to 177.06");
        assert_eq!([41.7, 0.95, 1234.0].map(times), ["41.7×", "0.95×", "1234×"]);
    }

    #[test]
    fn a_verdict_is_said_in_its_unit() {
        let mut verdict = Verdict {
            unit: Unit::Points,
            bounds: [Some(-0.005), None],
            measured: Some(Interval { mean: -0.01, ends: Some([-0.02, 0.0]), seeds: 3 }),
            correlation: Some(0.5),
            welch: Some([-0.03, 0.01]),
            ..tests::verdict(Ruling::Undecided)
        };
        let cell = measured(&verdict);
        assert_eq!(cell.text, "-1.00 points");
        assert_eq!(
            cell.below,
            "90 %: -2.00 points to +0.00 points, 3 seeds, paired (r = 0.50); by Welch -3.00 points to +1.00 points"
        );
        assert_eq!(bounds(&verdict), "counts: -0.50 points or more");
        let on = |task: &str, mean: f64| OnTask {
            task: task.into(),
            measured: Some(Interval { mean, ends: None, seeds: 1 }),
        };
        verdict.tasks = vec![on("VGG-16", -0.01), on("BiLSTM", -0.02)];
        verdict.tasks.push(OnTask { task: "TextCNN".into(), measured: None });
        let all = "VGG-16: -1.00 points; BiLSTM: -2.00 points; TextCNN: nothing";
        assert_eq!(mean_and_ends(&verdict).unwrap(), all);
        assert!(measured(&verdict).below.ends_with(". BiLSTM: -2.00 points. TextCNN: nothing"));
        verdict.measured = None;
        assert_eq!(measured(&verdict), Cell::none());
        assert_eq!(in_unit(0.431, Unit::Percent), "43.10 %");
        assert_eq!(in_unit(7.6, Unit::Factor), "7.6×");
    }

    #[test]
    fn verdicts_are_counted_and_so_is_chance() {
        let verdicts = [0, 0, 0, 1, 2, 3].map(|place| tests::verdict(Ruling::ALL[place])).to_vec();
        let paper = "Somebody 2020".to_string();
        let mut results = Results { paper, verdicts, ..Results::default() };
        let said = chance(&results);
        assert!(said.starts_with(
            "3 reproduced, 1 contradicted at this scale, 1 undecided, 1 not testable at this scale."
        ));
        assert!(said.contains("of these 4, chance alone gets at most 0.2 wrong"), "{said}");
        assert!(said.ends_with("--until-decided pays for its looks."), "{said}");
        results.looks = 3;
        let said = chance(&results);
        assert!(said.contains("at most 5 %, all 3 looks together"), "{said}");
        assert!(said.contains("added by hand") && !said.contains("--until"), "{said}");
        results.paper.clear();
        let said = chance(&results);
        assert!(said.starts_with("3 yes, 1 no, 1 undecided, 1 no answer."), "{said}");
        results.verdicts.retain(|verdict| verdict.ruling != Ruling::Undecided);
        assert!(chance(&results).ends_with("wrong on average."), "nothing is left to look at");
    }

    #[test]
    fn differences_are_coloured_only_when_they_are_hardly_chance() {
        let cell = |a: &[f64], b: &[f64]| against(&statistics::welch(a, b).unwrap());
        let chance = cell(&[0.5, 0.6], &[0.55, 0.6]);
        assert_eq!((chance.text.as_str(), chance.tone), ("2.50 points below", Tone::Plain));
        let clear = cell(&[0.9, 0.9001], &[0.5, 0.5001]);
        assert_eq!((clear.text.as_str(), clear.tone), ("40.00 points above", Tone::Good));
        assert!(clear.below.contains("hardly chance"), "{}", clear.below);
    }
}
