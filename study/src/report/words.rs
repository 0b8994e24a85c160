//! Figures, verdicts and counts as reports word them.

use super::document::{Cell, Tone};
use super::tasks::{NOT_FINISHED, TimeToTarget};
use crate::decision::SIDE;
use crate::results::{Results, Ruling, Unit, Verdict, VerdictPart};
use crate::statistics::{Estimate, Interval, SeedMean};
use gradwire::text::{self, percent, percent_to, three_digits};

/// A text, or a dash in its place.
pub(super) fn or_none(text: Option<String>) -> String {
    text.unwrap_or_else(|| "–".into())
}

/// A mean of fractions in percent, with its deviation if there are several: `93.41 ± 0.20 %`.
pub(super) fn accuracy(of: &SeedMean) -> String {
    match of.deviation {
        None => percent_to(of.mean, 2),
        Some(deviation) => format!("{:.2} ± {}", of.mean * 100.0, percent_to(deviation, 2)),
    }
}

/// A mean with its deviation: `0.404`, `7.2 ± 0.05`.
pub(super) fn plain(of: &SeedMean) -> String {
    text::about(of.mean, of.deviation.unwrap_or(0.0))
}

/// Mean seconds with their deviation: `7.36 ± 0.11 ms`.
pub(super) fn duration(of: &SeedMean) -> String {
    text::duration_about(of.mean, of.deviation.unwrap_or(0.0))
}

/// Seconds to a target; where not every seed reached it, how many did in their place.
pub(super) fn time_to(reached: &TimeToTarget) -> String {
    match *reached {
        TimeToTarget { all: 0, .. } => or_none(None),
        TimeToTarget { seconds: Some(seconds), .. } => text::duration(seconds),
        TimeToTarget { seeds: 0, .. } => "never".into(),
        TimeToTarget { seeds, all, .. } => format!("{seeds} of {all} seeds"),
    }
}

/// How many times something is something else: `3.2×`.
pub(super) fn times(factor: f64) -> String {
    format!("{}×", text::factor(factor))
}

/// A difference of two fractions, without its sign: `0.40 points`.
pub(super) fn points(difference: f64) -> String {
    format!("{:.2} points", (difference * 100.0).abs())
}

/// A comparison of accuracies with a baseline: how far above or below, and what follows about chance.
pub(super) fn against(comparison: &Estimate) -> Cell {
    let amount = points(comparison.difference());
    let text = match comparison.difference() {
        d if d > 0.0 => format!("{amount} above"),
        d if d < 0.0 => format!("{amount} below"),
        _ => "the same".into(),
    };
    let tone = match comparison.is_significant() {
        true if comparison.difference() > 0.0 => Tone::Good,
        true => Tone::Bad,
        false => Tone::Plain,
    };
    Cell { below: comparison.chance(), tone, ..Cell::from(text) }
}

/// A number of a verdict in its unit.
pub(super) fn in_unit(value: f64, unit: Unit) -> String {
    let (number, word) = in_parts(value, unit);
    number + word
}

/// A mean with its interval in short, the unit once: `-1.00 (-2.00 to +0.00) points`.
pub(super) fn in_short(measured: &Interval, verdict: &Verdict) -> String {
    let (mean, word) = in_parts(measured.mean, verdict.unit);
    let ends = measured.ends.map(|ends| ends.map(|end| end_in_parts(end, verdict).0));
    let ends = ends.map_or_else(String::new, |[low, high]| format!(" ({low} to {high})"));
    format!("{mean}{ends}{word}")
}

/// A number of a verdict, and its unit with the space before it.
fn in_parts(value: f64, unit: Unit) -> (String, &'static str) {
    match unit {
        Unit::Number => (three_digits(value), ""),
        Unit::Percent => (format!("{:.2}", value * 100.0), " %"),
        Unit::Points => (format!("{:+.2}", value * 100.0), " points"),
        Unit::Factor => (times(value), ""),
    }
}

/// An end of an interval likewise. One that looks like a bound and is not it stands as `>1×` or `<1×`, for the ruling
/// hangs on it.
fn end_in_parts(end: f64, verdict: &Verdict) -> (String, &'static str) {
    let (text, word) = in_parts(end, verdict.unit);
    let is_zero = |text: &str| text.trim_start_matches(['+', '-']).parse() == Ok(0.0);
    for bound in verdict.bounds.into_iter().flatten().filter(|bound| *bound != end) {
        let (there, _) = in_parts(bound, verdict.unit);
        if there == text || (is_zero(&there) && is_zero(&text)) {
            return (format!("{}{there}", if end < bound { '<' } else { '>' }), word);
        }
    }
    (text, word)
}

/// What was measured for a verdict, with its interval where there is one.
pub(super) fn mean_and_ends(verdict: &Verdict) -> Option<String> {
    match verdict.parts.as_slice() {
        [] => Some(with_ends(&verdict.measured?, verdict, verdict.confidence)),
        parts if parts.iter().all(|part| part.measured.is_none()) => None,
        parts => Some(parts.iter().map(|part| on(part, verdict)).collect::<Vec<_>>().join("; ")),
    }
}

/// A mean with its interval where there is one; with its confidence, if that is not the verdict's.
fn with_ends(measured: &Interval, verdict: &Verdict, confidence: f64) -> String {
    let Interval { mean, ends, seeds } = measured;
    let mean = in_unit(*mean, verdict.unit);
    match ends {
        Some(ends) => {
            let is_other = confidence > 0.0 && (confidence - verdict.confidence).abs() > 1e-9;
            let sure = match is_other {
                true => format!(", {}", percent(confidence)),
                false => String::new(),
            };
            format!("{mean} ({}, {seeds} seeds{sure})", both(*ends, verdict))
        }
        None => mean,
    }
}

/// Both ends of an interval, each with its unit.
fn both(ends: [f64; 2], verdict: &Verdict) -> String {
    let [low, high] = ends.map(|end| {
        let (number, word) = end_in_parts(end, verdict);
        number + word
    });
    format!("{low} to {high}")
}

/// What was measured on one of several tasks or links.
fn on(part: &VerdictPart, verdict: &Verdict) -> String {
    match &part.measured {
        Some(measured) => {
            format!("{}: {}", part.on, with_ends(measured, verdict, part.confidence))
        }
        None => format!("{}: nothing", part.on),
    }
}

/// What was measured for a verdict, and its interval; of pairs, how they vary together.
pub(super) fn measured(verdict: &Verdict) -> Cell {
    let Some(Interval { mean, ends, seeds }) = verdict.measured else { return Cell::none() };
    let mut below = match ends {
        Some(ends) => {
            let sure = percent(verdict.confidence);
            format!("{sure}: {}, {seeds} seeds", both(ends, verdict))
        }
        None => "one seed, so no interval".into(),
    };
    if verdict.welch.is_some() {
        let r = verdict.correlation.map(|r| format!(" (r = {r:.2})"));
        below += &format!(", paired{}", r.unwrap_or_default());
    }
    for other in verdict.parts.iter().skip(1) {
        below += &format!(". {}", on(other, verdict));
    }
    Cell { below, ..Cell::from(in_unit(mean, verdict.unit)) }
}

/// How many claims got each verdict, how many of the verdicts chance alone may have got wrong, and what
/// it costs to look again at those that are undecided.
pub fn chance(results: &Results) -> String {
    let count = |ruling| results.verdicts.iter().filter(|v| v.ruling == ruling).count();
    let counts =
        Ruling::ALL.map(|ruling| format!("{} {}", count(ruling), results.in_words(ruling)));
    let tested = results.verdicts.len() - count(Ruling::NotTestable);
    let looks = match results.looks {
        0 | 1 => String::new(),
        looks => format!(", all {looks} looks together"),
    };
    let many = results.verdicts.iter().any(|verdict| verdict.error() > SIDE);
    let links = if many { ", for each link that it is asked on" } else { "" };
    let again = match (count(Ruling::Undecided), results.looks) {
        (0, _) => "",
        (_, 0 | 1) => {
            " Seeds added by hand are one more look, and several looks err more often than that: \
             --until-decided pays for its looks."
        }
        _ => " Seeds added by hand are one more look, and err more often than that.",
    };
    if tested == 0 {
        return format!("{}.", counts.join(", "));
    }
    let (claim, verdict) = match results.is_own_question() {
        true => ("arm", "answer (yes, no or dependent on the link)"),
        false => ("claim", "verdict (reproduced, contradicted or dependent on the link)"),
    };
    format!(
        "{}. Each {claim} that is tested gets a wrong {verdict} with a probability of at \
         most {}{looks}{links}: \
         of these {tested}, chance alone gets at most {} wrong on average.{again}",
        counts.join(", "),
        percent(SIDE),
        three_digits(results.verdicts.iter().map(Verdict::error).sum())
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
    for word in NOT_FINISHED {
        if count(word) > 0 {
            words.push(format!("{} {word}", count(word)));
        }
    }
    words.join(", ")
}

/// What counts as reproduced.
pub(super) fn bounds(verdict: &Verdict) -> String {
    let format = |value| in_unit(value, verdict.unit);
    match verdict.bounds {
        [Some(low), Some(high)] => format!("{} to {}", in_parts(low, verdict.unit).0, format(high)),
        [Some(low), None] => format!("≥ {}", format(low)),
        [None, Some(high)] => format!("≤ {}", format(high)),
        [None, None] => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests;
    use super::*;

    fn over(values: &[f64]) -> SeedMean {
        SeedMean::new(values).unwrap()
    }

    #[test]
    fn figures_have_the_digits_that_count() {
        assert_eq!(accuracy(&over(&[0.9341])), "93.41 %");
        assert_eq!(accuracy(&over(&[0.93, 0.95])), "94.00 ± 1.41 %");
        assert_eq!(plain(&over(&[0.40401, 0.40402])), "0.404");
        assert_eq!(plain(&over(&[7.0, 9.0])), "8 ± 1.4");
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
        assert_eq!(cell.below, "90 %: -2.00 points to +0.00 points, 3 seeds, paired (r = 0.50)");
        assert_eq!(bounds(&verdict), "≥ -0.50 points");
        let short = in_short(&verdict.measured.unwrap(), &verdict);
        assert_eq!(short, "-1.00 (-2.00 to +0.00) points");
        let close = |ends, bounds, unit| {
            let measured = Some(Interval { mean: ends, ends: Some([ends; 2]), seeds: 3 });
            let verdict = Verdict { measured, bounds, unit, ..verdict.clone() };
            end_in_parts(ends, &verdict).0
        };
        let least = [Some(1.0), None];
        assert_eq!(close(1.0004, least, Unit::Factor), "1.0004×");
        assert_eq!(close(0.80001, [Some(0.8), None], Unit::Factor), ">0.8×");
        assert_eq!(
            [close(1.0, least, Unit::Factor), close(1.2, least, Unit::Factor)],
            ["1×", "1.2×"]
        );
        assert_eq!(close(-0.00004, [None, Some(0.0)], Unit::Points), "<+0.00");
        let sure = verdict.confidence;
        let on = |task: &str, mean: f64| VerdictPart {
            on: task.into(),
            measured: Some(Interval { mean, ends: None, seeds: 1 }),
            confidence: sure,
        };
        verdict.parts = vec![on("VGG-16", -0.01), on("BiLSTM", -0.02)];
        verdict.parts.push(VerdictPart { measured: None, ..on("TextCNN", 0.0) });
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
        let verdicts =
            [0, 0, 0, 1, 2, 3, 4].map(|place| tests::verdict(Ruling::ALL[place])).to_vec();
        let paper = "Somebody 2020".to_string();
        let mut results = Results { paper, verdicts, ..Results::default() };
        let text = chance(&results);
        assert!(text.starts_with(
            "3 reproduced, 1 contradicted at this scale, 1 dependent on the link, 1 undecided, 1 not testable at this scale."
        ));
        assert!(text.contains("of these 6, chance alone gets at most 0.3 wrong"), "{text}");
        assert!(text.ends_with("--until-decided pays for its looks."), "{text}");
        (results.looks, results.verdicts[4].links_asked) = (3, 3);
        let text = chance(&results);
        let odds = "at most 5 %, all 3 looks together, for each link that it is asked on: of these 6, chance alone gets at most 0.4";
        assert!(text.contains(odds), "{text}");
        assert!(text.contains("added by hand") && !text.contains("--until"), "{text}");
        results.paper.clear();
        let text = chance(&results);
        assert!(
            text.starts_with("3 yes, 1 no, 1 dependent on the link, 1 undecided, 1 no answer."),
            "{text}"
        );
        results.verdicts.retain(|verdict| verdict.ruling != Ruling::Undecided);
        assert!(chance(&results).ends_with("wrong on average."), "nothing is left to look at");
    }

    #[test]
    fn differences_are_coloured_only_when_they_are_hardly_chance() {
        let cell = |a: &[f64], b: &[f64]| against(&Estimate::welch(a, b).unwrap());
        let chance = cell(&[0.5, 0.6], &[0.55, 0.6]);
        assert_eq!((chance.text.as_str(), chance.tone), ("2.50 points below", Tone::Plain));
        let clear = cell(&[0.9, 0.9001], &[0.5, 0.5001]);
        assert_eq!((clear.text.as_str(), clear.tone), ("40.00 points above", Tone::Good));
        assert!(clear.below.contains("hardly chance"), "{}", clear.below);
    }
}
