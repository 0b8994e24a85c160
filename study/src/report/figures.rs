//! A task's figures.

use super::curves::{self, Against, Points, curve};
use super::document::{Block, Plot};
use super::tables::{self, Reader, accuracy, bits, gauge_title, test_loss};
use super::tasks::Task;
use crate::measured::Measured;
use crate::names;
use crate::plot::{Axis, Figure, Quantity, Series, Style};
use crate::results::Label;
use crate::statistics::median;
use gradwire::text;

/// How figures are read, once for all of a task.
pub(super) const READING: &str = "Lines and marks are means over the seeds that finished; bands, and lines through \
    marks, are one sample deviation. A run that did not finish is a thin line that ends in a cross. Losses are \
    running means over seven points of the record.";

/// All figures that there is something to show in, those of one quantity together.
pub(super) fn plots(task: &Task<'_>) -> Vec<Block> {
    let links = task.links.iter().map(|link| Against::Time(link));
    let all: Vec<_> = [Against::Steps, Against::Bytes].into_iter().chain(links).collect();
    let each = |of: fn(&Task<'_>, Against<'_>) -> Option<Plot>| -> Vec<Plot> {
        all.iter().filter_map(|against| of(task, *against)).collect()
    };
    let one = |plot: Option<Plot>| plot.into_iter().collect();
    let groups: [Vec<Plot>; 6] = [
        one(reached_by_bits(task)),
        each(accuracies),
        each(losses),
        one(time_by_bandwidth(task)),
        one(gauge(task, "kept_ratio")),
        one(gauge(task, "bits_per_parameter")),
    ];
    groups.into_iter().filter(|group| !group.is_empty()).map(Block::Plots).collect()
}

/// A figure for a report, its file named after a task and what it shows.
fn plot(task: &str, name: &str, against: &str, caption: String, figure: Figure) -> Plot {
    let name = names::plain(&format!("{task}-{name}"));
    Plot { name, against: against.into(), caption, figure }
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

/// What arms reached by what they sent: test loss where the model continues a text, accuracy else. The values of
/// one member are joined by a line.
fn reached_by_bits(task: &Task<'_>) -> Option<Plot> {
    let of_text = tables::continues_text(task);
    let (figure, sign) =
        if of_text { (test_loss as Reader, -1.0) } else { (accuracy as Reader, 1.0) };
    let (mut series, mut members): (Vec<Series>, Vec<Label>) = (Vec::new(), Vec::new());
    let (mut points, mut names) = (Vec::new(), Vec::new());
    for arm in &task.arms {
        let (Some(reached), Some(bits)) = (arm.mean(figure), arm.mean(bits)) else { continue };
        let (x, y) = (bits.mean, reached.mean);
        let place = arm.label.of_same_member(&members).unwrap_or(members.len());
        if place == members.len() {
            members.push(arm.label.clone());
            series.push(Series { joined: false, ..Series::line(&arm.name(), arm.style, vec![]) });
        } else {
            let (name, own) = (&mut series[place].name, arm.name());
            *name += &format!(", {}", own.rsplit(' ').next().unwrap_or(&own));
        }
        let one = &mut series[place];
        one.joined = !one.points.is_empty();
        one.points.push((x, y));
        one.spread.extend(reached.deviation.map(|by| [x, y - by, y + by]));
        points.push((x, sign * y));
        names.push(arm.name());
    }
    if series.is_empty() {
        return None;
    }
    let front = front(&points);
    let best: Vec<&str> = front.iter().map(|place| names[*place].as_str()).collect();
    let (low, far) = least_shown(&points);
    let mut caption =
        format!("Pareto front, which no arm beats in both respects: {}.", best.join(", "));
    if !far.is_empty() {
        let value = |gain: f64| match of_text {
            true => text::three_digits(-gain),
            false => text::percent(gain),
        };
        let far: Vec<String> =
            far.iter().map(|i| format!("{} ({})", names[*i], value(points[*i].1))).collect();
        caption += &format!(" Far off, and drawn at the edge: {}.", far.join(", "));
    }
    let ends = series.iter().flat_map(|s| s.spread.iter().flat_map(|w| [w[1], w[2]]));
    let shown = points.iter().map(|point| sign * point.1).chain(ends);
    let shown = shown.filter(|reached| sign * reached >= low);
    let x = "bits per parameter and step, sent by one rank";
    let x = Axis::new(x, Quantity::Number, true, points.iter().map(|point| point.0));
    let (title, name, y) = match of_text {
        true => ("Test loss", "test-loss", Axis::new("test loss", Quantity::Number, false, shown)),
        false => ("Accuracy", "accuracy", Axis::new(ACCURACY, Quantity::Fraction, false, shown)),
    };
    let line = front.iter().map(|i| (points[*i].0, sign * points[*i].1)).collect();
    series.push(Series::line("Pareto front", Style::GUIDE, line));
    let figure = Figure::new(format!("{title} against bits per parameter and step"), x, y, series);
    let name = format!("{name}-bits");
    Some(plot(&task.label.name, &name, "bits per parameter and step", caption, figure))
}

const ACCURACY: &str = "accuracy on the test set";

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

/// The least gain that is shown in its place, and which points lie below: what failed should
/// not press together what did not.
fn least_shown(points: &[(f64, f64)]) -> (f64, Vec<usize>) {
    let most = points.iter().map(|point| point.1).fold(f64::NEG_INFINITY, f64::max);
    let middle = median(points.iter().map(|point| point.1)).unwrap_or(0.0);
    let low = middle - 8.0 * (most - middle).max(0.02);
    (low, (0..points.len()).filter(|i| points[*i].1 < low).collect())
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
    let cut =
        if cut { "Losses of runs that did not finish are cut at the upper edge." } else { "" };
    Some(curves_against(task, against, ("Training loss", "loss"), series, y, cut))
}

/// The accuracy on the test set against something, where runs were evaluated more than once.
fn accuracies(task: &Task<'_>, against: Against<'_>) -> Option<Plot> {
    let series = lines(task, |measured| curves::accuracy(measured, against));
    if series.iter().all(|series| series.points.len() < 2) {
        return None;
    }
    let y = Axis::new(ACCURACY, Quantity::Fraction, false, points(&series).map(|p| p.1));
    Some(curves_against(task, against, ("Accuracy", "accuracy"), series, y, ""))
}

/// The figure of curves of a quantity, by its name in titles and in files, against something.
fn curves_against(
    task: &Task<'_>,
    against: Against<'_>,
    (quantity, word): (&str, &str),
    series: Vec<Series>,
    y: Axis,
    caption: &str,
) -> Plot {
    let (xs, wide) = (points(&series).map(|p| p.0), spread(&series) > WIDE);
    let (name, title, x) = match against {
        Against::Steps => {
            ("steps".into(), "steps".into(), Axis::new("step", Quantity::Count, false, xs))
        }
        Against::Bytes => {
            let x = Axis::new("bytes sent by one rank", Quantity::Bytes, wide, xs);
            ("bytes".into(), "bytes sent".into(), x)
        }
        Against::Time(link) => {
            let x = Axis::new("virtual time", Quantity::Seconds, wide, xs);
            (format!("time-{link}"), format!("virtual time at {link}"), x)
        }
    };
    let figure = Figure::new(format!("{quantity} against {title}"), x, y, series);
    plot(&task.label.name, &format!("{word}-{name}"), &title, caption.into(), figure)
}

/// An axis that shows all that finished, and whether something that did not lies beyond it.
fn loss_axis(series: &[Series]) -> (Axis, bool) {
    const FACTORS: f64 = 20.0;
    let losses = |points: &mut dyn Iterator<Item = &(f64, f64)>| -> Vec<f64> {
        points.map(|p| p.1).filter(|loss| loss.is_finite()).collect()
    };
    let means = losses(&mut series.iter().flat_map(|s| &s.points));
    let strays = losses(&mut series.iter().flat_map(|s| s.strays.iter().flatten()));
    let most = |values: &[f64]| values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let top = if means.is_empty() { f64::INFINITY } else { 1.5 * most(&means) };
    let shown = means.iter().chain(strays.iter().filter(|loss| **loss <= top));
    let shown: Vec<f64> = shown.copied().collect();
    let least = shown.iter().copied().fold(f64::INFINITY, f64::min);
    let wide = least > 0.0 && most(&shown) > FACTORS * least;
    let axis = Axis::new("training loss", Quantity::Number, wide, shown);
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
        let reached = all.iter().filter_map(|(at, reached)| Some((*at, reached.seconds?)));
        let points: Vec<(f64, f64)> = reached.collect();
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
    let title = format!("Time to {} against bandwidth", text::percent(target.accuracy));
    let x = Axis::new("bandwidth", Quantity::Bandwidth, true, points(&series).map(|p| p.0));
    let y = Axis::new("virtual time", Quantity::Seconds, true, points(&series).map(|p| p.1));
    let figure = Figure::new(title, x, y, series);
    let mut caption = format!("{}.", target.why);
    if !never.is_empty() {
        caption += &format!(" Not drawn, because not every seed reached it: {}.", never.join(", "));
    }
    Some(plot(&task.label.name, "time-bandwidth", "bandwidth", caption, figure))
}

/// A gauge against steps.
fn gauge(task: &Task<'_>, name: &str) -> Option<Plot> {
    let mut series = lines(task, |measured| curves::gauge(measured, name));
    let values: Vec<f64> =
        series.iter().flat_map(|s| &s.points).map(|p| p.1).filter(|v| v.is_finite()).collect();
    if values.is_empty() {
        return None;
    }
    let title = gauge_title(name);
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let wide = least > 0.0 && values.iter().any(|value| *value > 10.0 * least);
    let x: Vec<f64> = points(&series).map(|p| p.0).collect();
    let last = x.iter().copied().fold(1.0, f64::max);
    let y = Axis::new(&title, Quantity::Number, wide, values.into_iter().chain([0.0]));
    let x = Axis::new("step", Quantity::Count, false, x);
    if name == "kept_ratio" {
        series.push(Series::line("as wanted", Style::GUIDE, vec![(0.0, 1.0), (last, 1.0)]));
    }
    let figure = Figure::new(format!("{} over steps", capital(&title)), x, y, series);
    Some(plot(&task.label.name, &name.replace('_', "-"), "steps", String::new(), figure))
}

/// A text that begins with a capital letter.
fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
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
