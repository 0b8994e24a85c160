//! Axes: where values lie, and where their labels stand.

use super::say;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use std::ops::Range;

/// The most labels of an axis, about.
const TICKS: usize = 8;

/// An axis: what it shows, and where its labels are.
#[derive(Clone, Debug)]
pub struct Axis {
    /// What it shows, with the unit where the labels have none.
    pub(super) title: String,
    /// Whether equal factors are equally far apart, and not equal differences.
    logarithmic: bool,
    /// Both ends, as drawn.
    ends: [f64; 2],
    /// Places of labels, as drawn, and the labels.
    ticks: Vec<(f64, String)>,
}

impl Axis {
    /// Equal differences are equally far apart; from 0, or from a little below the least value when
    /// that is far above.
    pub fn linear(title: &str, values: impl IntoIterator<Item = f64>, say: Say) -> Self {
        let (low, high) = ends(values.into_iter()).unwrap_or((0.0, 1.0));
        let span = high - low;
        let low = if low >= 0.0 && low < 1.5 * span.max(high * 1e-9) { 0.0 } else { low };
        Self::between(title, [low, high], say)
    }

    /// From 0, with labels at the values themselves: there are few, and nothing lies between them.
    pub fn of_counts(title: &str, counts: impl IntoIterator<Item = f64>) -> Self {
        let mut counts: Vec<f64> = counts.into_iter().filter(|count| count.is_finite()).collect();
        counts.sort_by(f64::total_cmp);
        counts.dedup();
        let axis = Self::linear(title, counts.iter().copied().chain([0.0]), say::count);
        let ticks = counts.into_iter().map(|count| (count, say::count(count))).collect();
        Self { ticks, ..axis }
    }

    /// The same between given ends, a little air at the upper one, and at the lower one unless it
    /// is 0.
    pub fn between(title: &str, [low, high]: [f64; 2], say: Say) -> Self {
        let span = if high > low { high - low } else { high.abs().max(1e-9) * 0.2 };
        let low = if low == 0.0 { 0.0 } else { low - 0.05 * span };
        let ends = [low, (high + 0.05 * span).max(low + span)];
        let ticks = even(ends).into_iter().map(|value| (value, say(value))).collect();
        Self { title: title.into(), logarithmic: false, ends, ticks }
    }

    /// Equal factors are equally far apart: labels at powers of ten, and at twos and fives between
    /// them when there are few. Values that are not above 0 have no place.
    pub fn logarithmic(title: &str, values: impl IntoIterator<Item = f64>, say: Say) -> Self {
        Self::of_factors(title, values, say, |ends| {
            let powers = ends[0].floor() as i32..=ends[1].ceil() as i32;
            // Where decades are many, one in so many is labelled.
            let every = (powers.clone().count() / TICKS).max(1) as i32;
            vec![
                decades(&[1.0, 2.0, 5.0], powers.clone()),
                decades(&[1.0, 3.0], powers.clone()),
                decades(&[1.0], powers.filter(|power| power % every == 0)),
            ]
        })
    }

    /// Whether it is logarithmic.
    pub(super) fn is_logarithmic(&self) -> bool {
        self.logarithmic
    }

    /// A logarithmic axis of seconds, labelled where clocks have round figures.
    pub fn time(title: &str, values: impl IntoIterator<Item = f64>) -> Self {
        const ROUND: [(f64, &[f64]); 4] = [
            (1.0, &[1.0, 2.0, 5.0, 10.0, 20.0, 30.0]),
            (60.0, &[1.0, 2.0, 5.0, 10.0, 20.0, 30.0]),
            (3_600.0, &[1.0, 2.0, 5.0, 10.0]),
            (86_400.0, &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 1e4, 1e5]),
        ];
        const FEW: [f64; 9] = [1.0, 10.0, 60.0, 600.0, 3_600.0, 36_000.0, 864e2, 864e3, 864e4];
        Self::of_factors(title, values, clock, |_| {
            let above = ROUND.iter().flat_map(|(unit, many)| many.iter().map(move |m| m * unit));
            vec![
                decades(&[1.0, 2.0, 5.0], -9..0).into_iter().chain(above).collect(),
                decades(&[1.0], -9..0).into_iter().chain(FEW).collect(),
            ]
        })
    }

    /// A linear axis of seconds from 0, labelled where clocks have round figures.
    pub fn even_time(title: &str, values: impl IntoIterator<Item = f64>) -> Self {
        const ROUND: [f64; 17] = [
            1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_200.0, 1_800.0, 3_600.0,
            7_200.0, 18_000.0, 43_200.0, 86_400.0,
        ];
        let axis = Self::linear(title, values.into_iter().chain([0.0]), clock);
        let high = axis.ends[1];
        let fits = |step: &&f64| high / **step <= TICKS as f64;
        let Some(step) = ROUND.iter().find(fits).filter(|_| high > 3.0) else { return axis };
        let ticks = (0..=TICKS).map(|n| n as f64 * step).filter(|at| *at <= high);
        Self { ticks: ticks.map(|at| (at, clock(at))).collect(), ..axis }
    }

    /// A logarithmic axis whose labels are the first of `candidates` that are few enough; evenly
    /// spread ones where hardly any fall between the ends.
    fn of_factors(
        title: &str,
        values: impl IntoIterator<Item = f64>,
        say: Say,
        candidates: impl Fn([f64; 2]) -> Vec<Vec<f64>>,
    ) -> Self {
        let logs = values.into_iter().filter(|value| *value > 0.0).map(f64::log10);
        let (low, high) = ends(logs).unwrap_or((0.0, 1.0));
        let air = (0.04 * (high - low)).max(0.02);
        let ends = [low - air, high + air];
        let within = |value: &f64| (ends[0]..=ends[1]).contains(&value.log10());
        let mut lists = candidates(ends);
        for list in &mut lists {
            list.retain(within);
            list.dedup();
        }
        let few = lists.iter().position(|list| list.len() <= TICKS);
        let mut chosen = lists.swap_remove(few.unwrap_or(lists.len() - 1));
        if chosen.len() < 3 {
            let mut spread = even(ends.map(|log| 10f64.powf(log)));
            spread.retain(within);
            if spread.len() > chosen.len() {
                chosen = spread;
            }
        }
        let ticks = chosen.into_iter().map(|value| (value.log10(), say(value))).collect();
        Self { title: title.into(), logarithmic: true, ends, ticks }
    }

    /// The same with only those labels that stand apart, powers of ten before others, on an axis of
    /// so many pixels; `width` says how wide a label is.
    pub(super) fn thinned(&self, pixels: f64, width: impl Fn(&str) -> f64) -> Self {
        const APART: f64 = 14.0;
        let scale = pixels / (self.ends[1] - self.ends[0]);
        let is_power = |at: f64| self.logarithmic && (at - at.round()).abs() < 1e-9;
        let mut all = self.ticks.clone();
        all.sort_by_key(|(at, _)| !is_power(*at));
        let mut ticks: Vec<(f64, String)> = Vec::new();
        for (at, label) in all {
            let apart = |(other, text): &(f64, String)| {
                let room = (width(&label) + width(text)) / 2.0 + APART;
                (at - other).abs() * scale >= room
            };
            if ticks.iter().all(apart) {
                ticks.push((at, label));
            }
        }
        let powers = ticks.iter().filter(|(at, _)| is_power(*at)).count();
        if powers > 2 && ticks.len() < self.ticks.len() {
            ticks.retain(|(at, _)| is_power(*at));
        }
        ticks.sort_by(|a, b| a.0.total_cmp(&b.0));
        Self { ticks, ..self.clone() }
    }

    /// As many places as there are names, the first at the top, for bars.
    pub(super) fn places(count: usize) -> Self {
        let ends = [count.max(1) as f64 - 0.4, -0.6];
        Self { title: String::new(), logarithmic: false, ends, ticks: Vec::new() }
    }

    /// Where a value lies, as drawn; at the edge where it is beyond the ends. `None` for one that
    /// has no place.
    pub(super) fn place(&self, value: f64) -> Option<f64> {
        let place = if self.logarithmic { value.log10() } else { value };
        let [low, high] = [self.ends[0].min(self.ends[1]), self.ends[0].max(self.ends[1])];
        (!place.is_nan() && (!self.logarithmic || value > 0.0)).then(|| place.clamp(low, high))
    }
}

/// How a value is said beside an axis.
pub type Say = fn(f64) -> String;

/// A round figure on a clock: `1 min` and not `60 s`.
fn clock(seconds: f64) -> String {
    let units = [(86_400.0, "d"), (3_600.0, "h"), (60.0, "min")];
    let whole = |unit: f64| seconds >= unit && (seconds / unit).fract() == 0.0;
    match units.into_iter().find(|(unit, _)| whole(*unit)) {
        Some((unit, word)) => format!("{} {word}", say::three_digits(seconds / unit)),
        None => say::duration(seconds),
    }
}

/// Both ends of what is finite.
fn ends(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let finite = values.filter(|value| value.is_finite());
    finite.fold(None, |ends: Option<(f64, f64)>, value| match ends {
        None => Some((value, value)),
        Some((low, high)) => Some((low.min(value), high.max(value))),
    })
}

/// Each of `factors` times each power of ten.
fn decades(factors: &[f64], powers: impl Iterator<Item = i32>) -> Vec<f64> {
    powers.flat_map(|power| factors.iter().map(move |m| m * 10f64.powi(power))).collect()
}

/// Round values at even distances between two ends.
fn even([low, high]: [f64; 2]) -> Vec<f64> {
    let rough = (high - low) / TICKS as f64;
    if !rough.is_finite() || rough <= 0.0 {
        return Vec::new();
    }
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].iter().map(|m| m * power).find(|step| *step >= rough * 0.999);
    let step = step.unwrap_or(10.0 * power);
    let first = (low / step - 1e-9).ceil() as i64;
    let values = (first..first + 20).map(|n| n as f64 * step);
    values.take_while(|value| *value <= high + step * 1e-9).collect()
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (low, high): (i32, i32)) -> i32 {
        let share = (value - self.ends[0]) / (self.ends[1] - self.ends[0]);
        low + (share * f64::from(high - low)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match hint.weight().allow_light_points() {
            true => Vec::new(),
            false => self.ticks.iter().map(|(at, _)| *at).collect(),
        }
    }

    fn range(&self) -> Range<f64> {
        self.ends[0]..self.ends[1]
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        let tick = self.ticks.iter().find(|(at, _)| (at - value).abs() < 1e-12);
        tick.map(|(_, label)| label.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, label)| label.as_str()).collect()
    }

    #[test]
    fn labels_are_round_and_few() {
        let axis = Axis::linear("accuracy", [0.12, 0.93], say::percent);
        assert_eq!(labels(&axis), ["0 %", "20 %", "40 %", "60 %", "80 %"]);
        let axis = Axis::linear("accuracy", [0.901, 0.93], say::percent);
        assert_eq!(labels(&axis).first(), Some(&"90 %"));
        let axis = Axis::logarithmic("bandwidth", [1e8, 1e10], say::bandwidth);
        assert_eq!(
            labels(&axis),
            [
                "100 Mbit/s",
                "200 Mbit/s",
                "500 Mbit/s",
                "1 Gbit/s",
                "2 Gbit/s",
                "5 Gbit/s",
                "10 Gbit/s"
            ]
        );
        let axis = Axis::logarithmic("bits", [0.01, 32.0], say::three_digits);
        assert_eq!(labels(&axis), ["0.01", "0.03", "0.1", "0.3", "1", "3", "10", "30"]);
        let axis = Axis::logarithmic("bits", [4.2, 4.4], say::three_digits);
        assert!(labels(&axis).len() >= 3, "{:?}", labels(&axis));
    }

    #[test]
    fn clocks_have_round_figures_of_their_own() {
        let axis = Axis::time("time", [8.0, 700.0]);
        let expected = ["10 s", "20 s", "30 s", "1 min", "2 min", "5 min", "10 min"];
        assert_eq!(labels(&axis), expected);
        let axis = Axis::time("time", [0.01, 90_000.0]);
        assert_eq!(
            labels(&axis),
            ["10 ms", "100 ms", "1 s", "10 s", "1 min", "10 min", "1 h", "10 h", "1 d"]
        );
    }

    #[test]
    fn even_times_are_round_too() {
        let axis = Axis::even_time("time", [16.0, 250.0]);
        assert_eq!(labels(&axis), ["0 s", "1 min", "2 min", "3 min", "4 min"]);
        assert_eq!(labels(&Axis::even_time("time", [0.2, 2.0])).first(), Some(&"0 s"));
        assert!(Axis::even_time("time", [9e6]).ticks.len() > 3);
    }

    #[test]
    fn counts_are_labelled_themselves() {
        let axis = Axis::of_counts("workers", [16.0, 4.0, 8.0, 4.0]);
        assert_eq!(labels(&axis), ["4", "8", "16"]);
        assert_eq!(axis.ends[0], 0.0);
    }

    #[test]
    fn labels_do_not_touch() {
        let axis = Axis::logarithmic("bandwidth", [1e8, 1e10], say::bandwidth);
        let thinned = axis.thinned(400.0, |label| 7.0 * label.len() as f64);
        assert_eq!(labels(&thinned), ["100 Mbit/s", "1 Gbit/s", "10 Gbit/s"]);
        assert_eq!(labels(&axis.thinned(4000.0, |_| 70.0)), labels(&axis));
    }

    #[test]
    fn nothing_and_one_value_have_an_axis() {
        for values in [vec![], vec![0.0], vec![5.0], vec![f64::NAN], vec![-1.0, f64::INFINITY]] {
            for axis in [
                Axis::linear("x", values.clone(), say::count),
                Axis::logarithmic("x", values.clone(), say::count),
                Axis::time("x", values.clone()),
            ] {
                assert!(axis.ends[0] < axis.ends[1], "{values:?} {axis:?}");
                assert!(axis.ends.iter().all(|end| end.is_finite()), "{values:?} {axis:?}");
                assert_eq!(axis.place(f64::NAN), None);
            }
        }
        assert_eq!(Axis::logarithmic("x", [1.0, 10.0], say::count).place(0.0), None);
        assert_eq!(Axis::between("x", [0.0, 1.0], say::count).place(9.0), Some(1.05));
    }
}
