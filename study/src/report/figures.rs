//! A task's plots.

use super::curves::{self, Against, Points, curve};
use super::document::Plot;
use super::tables::{accuracy, bits, gauge_title};
use super::tasks::{Arm, Task};
use crate::measured::Measured;
use crate::names;
use crate::plot::{Axis, Bar, Bars, Figure, Series};
use crate::statistics::median;
use gradwire::text;

/// What lines and bands are, for captions.
pub(super) const BANDS: &str = "Lines are means over the seeds that finished, bands one sample deviation; a run \
                     that did not finish is a thin line that ends in a cross.";

/// All plots that there is something to show in, their files named after the task.
pub(super) fn plots(task: &Task<'_>) -> Vec<Plot> {
    let mut plots = Vec::new();
    plots.extend(accuracy_by_bits(task));
    let links = task.links.iter().map(|link| Against::Time(link));
    for against in [Against::Steps, Against::Bytes].into_iter().chain(links) {
        plots.extend(accuracies(task, against));
        plots.extend(losses(task, against));
    }
    plots.extend(time_by_bandwidth(task));
    plots.extend(gauge(task, "kept_ratio"));
    plots.extend(gauge(task, "bits_per_parameter"));
    plots.extend(encoding(task));
    plots
}

/// A figure for a report, its file named after a task and what it shows.
pub(super) fn plot(task: &str, name: &str, caption: String, figure: &Figure) -> Plot {
    let name = names::plain(&format!("{task}-{name}"));
    Plot { name, title: figure.title.clone(), caption, svg: figure.svg() }
}

/// From this factor between where lines end on, equal factors are equally far apart.
const WIDE: f64 = 4.0;

/// How many times as far the longest line goes as the shortest.
fn spread(series: &[Series]) -> f64 {
    let ends = series.iter().filter_map(|s| Some(s.points.last()?.0)).filter(|x| *x > 0.0);
    let ends: Vec<f64> = ends.collect();
    let of = |pick: fn(f64, f64) -> f64| ends.iter().copied().reduce(pick).unwrap_or(1.0);
    of(f64::max) / of(f64::min)
}

/// The points of all lines, those of runs that did not finish among them.
fn points(series: &[Series]) -> impl Iterator<Item = &(f64, f64)> {
    series.iter().flat_map(|s| s.points.iter().chain(s.strays.iter().flatten()))
}

fn accuracy_by_bits(task: &Task<'_>) -> Option<Plot> {
    let mut series = Vec::new();
    for arm in &task.arms {
        let (Some(accuracy), Some(bits)) = (arm.mean(accuracy), arm.mean(bits)) else { continue };
        let (x, y) = (bits.mean, accuracy.mean);
        let mut point = Series::line(&arm.name(), arm.style, vec![(x, y)]);
        point.joined = false;
        point.label = Some(arm.label.label.clone()).filter(|label| label.chars().count() <= 24);
        point.whiskers.extend(accuracy.deviation.map(|by| [x, y - by, y + by]));
        series.push(point);
    }
    if series.is_empty() {
        return None;
    }
    let points: Vec<(f64, f64)> = series.iter().flat_map(|s| s.points.clone()).collect();
    let front = front(&points);
    let names: Vec<&str> = front.iter().map(|place| series[*place].name.as_str()).collect();
    let (low, far) = least_shown(&points);
    let mut caption = format!(
        "Pareto front, which no arm beats in both respects: {}. Marks are means over the seeds that \
         finished, lines through them one sample deviation.",
        names.join(", ")
    );
    if !far.is_empty() {
        let far =
            far.iter().map(|i| format!("{} ({})", series[*i].name, text::percent(points[*i].1)));
        caption += &format!(
            " Far below, and drawn at the lower edge: {}.",
            far.collect::<Vec<_>>().join(", ")
        );
    }
    let ends = series.iter().flat_map(|s| s.whiskers.iter().flat_map(|w| [w[1], w[2]]));
    let figure = Figure {
        title: "Accuracy against bits per parameter".into(),
        x: Axis::logarithmic(
            "bits per parameter and step, sent by one rank",
            points.iter().map(|point| point.0),
            text::three_digits,
        ),
        y: Axis::linear(
            "accuracy on the test set",
            points.iter().map(|point| point.1).chain(ends).filter(|accuracy| *accuracy >= low),
            text::percent,
        ),
        guides: vec![("Pareto front".into(), front.iter().map(|i| points[*i]).collect())],
        series,
    };
    plot(&task.label.name, "accuracy-bits", caption, &figure).into()
}

/// The Pareto front: the indices of those points `(cost, gain)` that no other beats, by having at most
/// the cost and at least the gain and being better in one; by ascending cost.
fn front(points: &[(f64, f64)]) -> Vec<usize> {
    let beaten = |&(cost, gain): &(f64, f64)| {
        let beats = |&(other_cost, other_gain): &(f64, f64)| {
            other_cost <= cost && other_gain >= gain && (other_cost < cost || other_gain > gain)
        };
        points.iter().any(beats)
    };
    let finite = |(cost, gain): &(f64, f64)| cost.is_finite() && gain.is_finite();
    let mut front: Vec<usize> =
        (0..points.len()).filter(|&i| finite(&points[i]) && !beaten(&points[i])).collect();
    front.sort_by(|&a, &b| points[a].0.total_cmp(&points[b].0));
    front
}

/// The least accuracy that is shown in its place, and which points lie below: what failed should
/// not press together what did not.
fn least_shown(points: &[(f64, f64)]) -> (f64, Vec<usize>) {
    let most = points.iter().map(|point| point.1).fold(0.0, f64::max);
    let middle = median(points.iter().map(|point| point.1)).unwrap_or(0.0);
    let low = middle - 8.0 * (most - middle).max(0.02);
    (low, (0..points.len()).filter(|i| points[*i].1 < low).collect())
}

/// The axis of what curves run against.
fn x_axis(against: Against<'_>, series: &[Series]) -> Axis {
    let (xs, wide) = (points(series).map(|p| p.0), spread(series) > WIDE);
    match (against, wide) {
        (Against::Steps, _) => Axis::linear("step", xs, text::count),
        (Against::Bytes, true) => Axis::logarithmic(BYTES, xs, text::bytes),
        (Against::Bytes, false) => Axis::linear(BYTES, xs, text::bytes),
        (Against::Time(_), true) => Axis::time("virtual time", xs),
        (Against::Time(_), false) => Axis::linear_time("virtual time", xs),
    }
}

const BYTES: &str = "bytes sent by one rank";

/// How files and titles call what curves run against.
fn names_of(against: Against<'_>) -> (String, String) {
    match against {
        Against::Steps => ("steps".into(), "steps".into()),
        Against::Bytes => ("bytes".into(), "bytes sent".into()),
        Against::Time(link) => (format!("time-{link}"), format!("virtual time at {link}")),
    }
}

/// The curve of each arm that has one, by what `of` reads from a run.
fn lines(task: &Task<'_>, of: impl Fn(&Measured) -> Points) -> Vec<Series> {
    task.arms.iter().filter_map(|arm| curve(arm, &of)).collect()
}

/// The training loss against something.
fn losses(task: &Task<'_>, against: Against<'_>) -> Option<Plot> {
    let series = lines(task, |measured| curves::loss(measured, against));
    if series.is_empty() {
        return None;
    }
    let (y, cut) = loss_axis(&series);
    let mut caption = format!("{BANDS} {}", curves::SMOOTHED);
    if cut {
        caption += " Losses of runs that did not finish are cut at the upper edge.";
    }
    let (name, title) = names_of(against);
    let x = x_axis(against, &series);
    let figure = Figure::new(format!("Training loss against {title}"), x, y, series);
    plot(&task.label.name, &format!("loss-{name}"), caption, &figure).into()
}

/// The accuracy on the test set against something, where runs were evaluated more than once.
fn accuracies(task: &Task<'_>, against: Against<'_>) -> Option<Plot> {
    let series = lines(task, |measured| curves::accuracy(measured, against));
    if series.iter().all(|series| series.points.len() < 2) {
        return None;
    }
    let y = Axis::linear("accuracy on the test set", points(&series).map(|p| p.1), text::percent);
    let (name, title) = names_of(against);
    let x = x_axis(against, &series);
    let figure = Figure::new(format!("Accuracy against {title}"), x, y, series);
    plot(&task.label.name, &format!("accuracy-{name}"), BANDS.into(), &figure).into()
}

/// An axis that shows all that finished, and whether something that did not lies beyond it.
fn loss_axis(series: &[Series]) -> (Axis, bool) {
    const FACTORS: f64 = 20.0;
    let means = series.iter().flat_map(|s| &s.points).map(|p| p.1);
    let means: Vec<f64> = means.filter(|loss| loss.is_finite()).collect();
    let strays = series.iter().flat_map(|s| s.strays.iter().flatten()).map(|p| p.1);
    let strays: Vec<f64> = strays.filter(|loss| loss.is_finite()).collect();
    let most = |values: &[f64]| values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let top = if means.is_empty() { f64::INFINITY } else { 1.5 * most(&means) };
    let shown: Vec<f64> =
        means.iter().chain(strays.iter().filter(|loss| **loss <= top)).copied().collect();
    let least = shown.iter().copied().fold(f64::INFINITY, f64::min);
    let axis = match least > 0.0 && most(&shown) > FACTORS * least {
        true => Axis::logarithmic("training loss", shown, text::three_digits),
        false => {
            let ends = [least, most(&shown)].map(|end| if end.is_finite() { end } else { 0.0 });
            Axis::between("training loss", ends, text::three_digits)
        }
    };
    (axis, strays.iter().any(|loss| *loss > top))
}

fn time_by_bandwidth(task: &Task<'_>) -> Option<Plot> {
    let target = task.target().filter(|_| task.links.len() > 1)?;
    let mut series = Vec::new();
    let mut never = Vec::new();
    for arm in &task.arms {
        let all = task.links.iter().filter_map(|word| {
            let bandwidth = arm.on_link(word, |link| link.bandwidth)?.mean;
            Some((bandwidth, arm.reached(word, &target)))
        });
        let all: Vec<_> = all.collect();
        let whole = all.iter().filter(|(_, reached)| reached.seeds == reached.all);
        let points: Vec<(f64, f64)> =
            whole.filter_map(|(bandwidth, reached)| Some((*bandwidth, reached.seconds?))).collect();
        match (points.is_empty(), all.first()) {
            (false, _) => series.push(Series::line(&arm.name(), arm.style, points)),
            (true, Some((_, reached))) => never
                .push(format!("{} ({} of {} seeds)", arm.label.label, reached.seeds, reached.all)),
            (true, None) => {}
        }
    }
    if series.is_empty() {
        return None;
    }
    let points = || series.iter().flat_map(|series| series.points.iter().copied());
    let title = format!("Time to {} against bandwidth", text::percent(target.accuracy));
    let x = Axis::logarithmic("bandwidth", points().map(|point| point.0), text::bandwidth);
    let y = Axis::time("virtual time", points().map(|point| point.1));
    let figure = Figure::new(title, x, y, series);
    let mut caption = format!("{}. Means over seeds.", target.why);
    if !never.is_empty() {
        caption += &format!(" Not drawn, because not every seed reached it: {}.", never.join(", "));
    }
    plot(&task.label.name, "time-bandwidth", caption, &figure).into()
}

/// A gauge against steps.
fn gauge(task: &Task<'_>, name: &str) -> Option<Plot> {
    let series = lines(task, |measured| curves::gauge(measured, name));
    let values: Vec<f64> =
        series.iter().flat_map(|s| &s.points).map(|p| p.1).filter(|v| v.is_finite()).collect();
    if values.is_empty() {
        return None;
    }
    let title = gauge_title(name);
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let wide = least > 0.0 && values.iter().any(|value| *value > 10.0 * least);
    let mut guides = Vec::new();
    let x: Vec<f64> = points(&series).map(|p| p.0).collect();
    if name == "kept_ratio" {
        let last = x.iter().copied().fold(1.0, f64::max);
        guides.push(("as wanted".to_string(), vec![(0.0, 1.0), (last, 1.0)]));
    }
    let y = match wide {
        true => Axis::logarithmic(&title, values, text::three_digits),
        false => Axis::linear(&title, values.into_iter().chain([0.0]), text::three_digits),
    };
    let figure = Figure {
        title: format!("{} over steps", capital(&title)),
        x: Axis::linear("step", x, text::count),
        y,
        series,
        guides,
    };
    plot(&task.label.name, &name.replace('_', "-"), BANDS.into(), &figure).into()
}

/// A text that begins with a capital letter.
pub(super) fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// What encoding and decoding take.
fn encoding(task: &Task<'_>) -> Option<Plot> {
    let bar = |arm: &Arm<'_>| {
        let encode = arm.mean(|m| Some(m.work.encode))?;
        let decode = arm.mean(|m| Some(m.work.decode))?;
        let whole = arm.mean(|m| Some(m.work.encode + m.work.decode))?;
        let parts = [encode, decode].map(|over| text::duration(over.mean));
        Some(Bar {
            name: arm.label.label.clone(),
            style: arm.style,
            parts: vec![encode.mean, decode.mean],
            deviation: whole.deviation.unwrap_or(0.0),
            note: parts.join(" + "),
        })
    };
    let bars: Vec<Bar> = task.arms.iter().filter_map(bar).collect();
    if bars.iter().all(|bar| bar.parts.iter().sum::<f64>() <= 0.0) {
        return None;
    }
    let title = "Encoding (dark) and decoding (light) in a step".to_string();
    let bars = Bars {
        title: title.clone(),
        axis: "time of one rank".into(),
        format: text::duration,
        bars,
    };
    Some(Plot {
        name: names::plain(&format!("{}-encoding", task.label.name)),
        title,
        caption: "On a rank's own processor clock: medians over steps, means over the seeds that \
                  finished; lines are one sample deviation of the sum."
            .into(),
        svg: bars.svg(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_does_not_press_the_others_together() {
        let far = |accuracies: &[f64]| {
            let points: Vec<(f64, f64)> = accuracies.iter().map(|a| (1.0, *a)).collect();
            least_shown(&points).1
        };
        assert_eq!(far(&[0.97, 0.96, 0.26, 0.94, 0.82]), [2]);
        assert_eq!(far(&[0.9, 0.5]), [0; 0]);
        assert_eq!(far(&[0.3]), [0; 0]);
    }

    #[test]
    fn only_the_unbeaten_are_on_the_front() {
        let points =
            [(32.0, 0.92), (1.0, 0.90), (2.0, 0.89), (0.3, 0.85), (4.0, 0.93), (9.0, 0.93)];
        assert_eq!(front(&points), [3, 1, 4]);
        assert_eq!(front(&[(1.0, 0.5), (1.0, 0.5)]), [0, 1], "equals do not beat one another");
        assert_eq!(front(&[(1.0, f64::NAN), (2.0, 0.5)]), [1]);
        assert_eq!(front(&[]), [0; 0]);
    }
}
