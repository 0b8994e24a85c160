//! Axes: where values lie, and where their labels stand.

use super::FONT;
use super::style::{Dash, GRID, INK, MUTED};
use super::svg::{self, Anchor, Canvas, Pixel};
use gradwire::text;

/// The most labels of an axis, about.
const TICKS: usize = 8;

/// An axis: what it shows, and where its labels are.
#[derive(Clone, Debug)]
pub struct Axis {
    /// What it shows, with the unit where the labels have none.
    pub(super) title: String,
    /// Whether equal factors are equally far apart, and not equal differences.
    logarithmic: bool,
    /// Both ends; on a logarithmic axis their logarithms.
    ends: [f64; 2],
    /// The labels and where they stand, likewise.
    ticks: Vec<(f64, String)>,
}

impl Axis {
    /// Equal differences are equally far apart; from 0, or from a little below the least value when
    /// that is far above.
    pub fn linear(title: &str, values: impl IntoIterator<Item = f64>, format: Format) -> Self {
        let (low, high) = ends(values.into_iter()).unwrap_or((0.0, 1.0));
        let span = high - low;
        let low = if low >= 0.0 && low < 1.5 * span.max(high * 1e-9) { 0.0 } else { low };
        Self::between(title, [low, high], format)
    }

    /// From 0, with labels at the values themselves: there are few, and nothing lies between them.
    pub fn counts(title: &str, counts: impl IntoIterator<Item = f64>) -> Self {
        let mut counts: Vec<f64> = counts.into_iter().filter(|count| count.is_finite()).collect();
        counts.sort_by(f64::total_cmp);
        counts.dedup();
        let axis = Self::linear(title, counts.iter().copied().chain([0.0]), text::count);
        let ticks = counts.into_iter().map(|count| (count, text::count(count))).collect();
        Self { ticks, ..axis }
    }

    /// The same between given ends, a little air at the upper one, and at the lower one unless it
    /// is 0.
    pub fn between(title: &str, [low, high]: [f64; 2], format: Format) -> Self {
        let span = if high > low { high - low } else { high.abs().max(1e-9) * 0.2 };
        let low = if low == 0.0 { 0.0 } else { low - 0.05 * span };
        let ends = [low, (high + 0.05 * span).max(low + span)];
        let ticks = even(ends).into_iter().map(|value| (value, format(value))).collect();
        Self { title: title.into(), logarithmic: false, ends, ticks }
    }

    /// Equal factors are equally far apart: labels at powers of ten, and at twos and fives between
    /// them when there are few. Values that are not above 0 have no place.
    pub fn logarithmic(title: &str, values: impl IntoIterator<Item = f64>, format: Format) -> Self {
        Self::with_ticks(title, values, format, |ends| {
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
        Self::with_ticks(title, values, clock, |_| {
            let above = ROUND.iter().flat_map(|(unit, many)| many.iter().map(move |m| m * unit));
            vec![
                decades(&[1.0, 2.0, 5.0], -9..0).into_iter().chain(above).collect(),
                decades(&[1.0], -9..0).into_iter().chain(FEW).collect(),
            ]
        })
    }

    /// A linear axis of seconds from 0, labelled where clocks have round figures.
    pub fn linear_time(title: &str, values: impl IntoIterator<Item = f64>) -> Self {
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
    fn with_ticks(
        title: &str,
        values: impl IntoIterator<Item = f64>,
        format: Format,
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
        let ticks = chosen.into_iter().map(|value| (value.log10(), format(value))).collect();
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

    /// The labels, each with the pixel where it stands.
    fn labels(&self, from: f64, to: f64) -> impl Iterator<Item = (f64, &str)> {
        let [low, high] = self.ends;
        let pixel = move |at: f64| from + (at - low) / (high - low) * (to - from);
        self.ticks.iter().map(move |(at, label)| (pixel(*at), label.as_str()))
    }

    /// Where a value lies between the pixels of both ends, at the edge where it is beyond them. `None`
    /// for one that has no position.
    pub(super) fn position(&self, value: f64, from: f64, to: f64) -> Option<f64> {
        let [low, high] = self.ends;
        let at = if self.logarithmic { value.log10() } else { value };
        let share = ((at - low) / (high - low)).clamp(0.0, 1.0);
        let exists = !at.is_nan() && (!self.logarithmic || value > 0.0);
        exists.then_some(from + share * (to - from))
    }
}

/// How a value is written beside an axis.
pub type Format = fn(f64) -> String;

/// A round figure on a clock: `1 min` and not `60 s`.
fn clock(seconds: f64) -> String {
    let units = [(86_400.0, "d"), (3_600.0, "h"), (60.0, "min")];
    let whole = |unit: f64| seconds >= unit && (seconds / unit).fract() == 0.0;
    match units.into_iter().find(|(unit, _)| whole(*unit)) {
        Some((unit, word)) => format!("{} {word}", text::three_digits(seconds / unit)),
        None => text::duration(seconds),
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

/// The rectangle that two axes span, in pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) right: f64,
    pub(super) bottom: f64,
}

impl Frame {
    /// Draws the axes with their labels and titles, and a grid at the labels.
    pub(super) fn draw(&self, canvas: &mut Canvas, x: &Axis, y: Option<&Axis>) {
        let Self { left, top, right, bottom } = *self;
        let x = x.thinned(right - left, |label| svg::width(label, FONT));
        for (at, label) in x.labels(left, right) {
            canvas.line(&[(at, top), (at, bottom + 4.0)], GRID, 1.0, Dash::Solid);
            canvas.text(label, (at, bottom + 15.0), Anchor::Middle, FONT, INK);
        }
        let title = ((left + right) / 2.0, bottom + 38.0);
        canvas.text(&x.title, title, Anchor::Middle, FONT, INK);
        if let Some(y) = y {
            for (at, label) in y.labels(bottom, top) {
                canvas.line(&[(left - 4.0, at), (right, at)], GRID, 1.0, Dash::Solid);
                canvas.text(label, (left - 8.0, at), Anchor::End, FONT, INK);
            }
            let title = (18.0, (top + bottom) / 2.0);
            canvas.turned_text(&y.title, title, Anchor::Middle, FONT, INK, -90.0);
        }
        let corner = [(left, top), (left, bottom), (right, bottom)];
        canvas.line(&corner, MUTED, 1.0, Dash::Solid);
    }

    /// Where a point lies; `None` for one that has no position on an axis.
    pub(super) fn pixel(&self, axes: [&Axis; 2], (x, y): (f64, f64)) -> Option<Pixel> {
        let across = axes[0].position(x, self.left, self.right)?;
        Some((across, axes[1].position(y, self.bottom, self.top)?))
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
        let axis = Axis::linear("accuracy", [0.12, 0.93], text::percent);
        assert_eq!(labels(&axis), ["0 %", "20 %", "40 %", "60 %", "80 %"]);
        let axis = Axis::linear("accuracy", [0.901, 0.93], text::percent);
        assert_eq!(labels(&axis).first(), Some(&"90 %"));
        let axis = Axis::logarithmic("bandwidth", [1e8, 1e10], text::bandwidth);
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
        let axis = Axis::logarithmic("bits", [0.01, 32.0], text::three_digits);
        assert_eq!(labels(&axis), ["0.01", "0.03", "0.1", "0.3", "1", "3", "10", "30"]);
        let axis = Axis::logarithmic("bits", [4.2, 4.4], text::three_digits);
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
    fn linear_times_are_round_too() {
        let axis = Axis::linear_time("time", [16.0, 250.0]);
        assert_eq!(labels(&axis), ["0 s", "1 min", "2 min", "3 min", "4 min"]);
        assert_eq!(labels(&Axis::linear_time("time", [0.2, 2.0])).first(), Some(&"0 s"));
        assert!(Axis::linear_time("time", [9e6]).ticks.len() > 3);
    }

    #[test]
    fn counts_are_labelled_themselves() {
        let axis = Axis::counts("workers", [16.0, 4.0, 8.0, 4.0]);
        assert_eq!(labels(&axis), ["4", "8", "16"]);
        assert_eq!(axis.ends[0], 0.0);
    }

    #[test]
    fn labels_do_not_touch() {
        let axis = Axis::logarithmic("bandwidth", [1e8, 1e10], text::bandwidth);
        let thinned = axis.thinned(400.0, |label| 7.0 * label.len() as f64);
        assert_eq!(labels(&thinned), ["100 Mbit/s", "1 Gbit/s", "10 Gbit/s"]);
        assert_eq!(labels(&axis.thinned(4000.0, |_| 70.0)), labels(&axis));
    }

    #[test]
    fn nothing_and_one_value_have_an_axis() {
        for values in [vec![], vec![0.0], vec![5.0], vec![f64::NAN], vec![-1.0, f64::INFINITY]] {
            for axis in [
                Axis::linear("x", values.clone(), text::count),
                Axis::logarithmic("x", values.clone(), text::count),
                Axis::time("x", values.clone()),
            ] {
                assert!(axis.ends[0] < axis.ends[1], "{values:?} {axis:?}");
                assert!(axis.ends.iter().all(|end| end.is_finite()), "{values:?} {axis:?}");
                assert_eq!(axis.position(f64::NAN, 0.0, 1.0), None);
            }
        }
        let axis = Axis::logarithmic("x", [1.0, 10.0], text::count);
        assert_eq!(axis.position(0.0, 0.0, 1.0), None);
        let axis = Axis::between("x", [0.0, 1.0], text::count);
        assert_eq!([9.0, -9.0].map(|x| axis.position(x, 10.0, 31.0)), [Some(31.0), Some(10.0)]);
    }
}
