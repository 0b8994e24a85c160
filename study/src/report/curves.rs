//! Curves over the seeds of an arm: their mean and its band; what did not finish for itself.

use super::tasks::Arm;
use crate::measured::{Evaluation, Loss, Measured};
use crate::plot::Series;
use crate::statistics::SeedMean;
use std::collections::BTreeMap;

/// Points of one run: step, x, y.
pub(super) type Points = Vec<(u64, f64, f64)>;

/// The curve of an arm by what `of` reads from a run: the mean over the seeds that finished, at the
/// steps that all of them have, one deviation to each side; each other run as a line that ends
/// where it ended. `None` where there is nothing to show.
pub(super) fn curve(arm: &Arm<'_>, of: impl Fn(&Measured) -> Points) -> Option<Series> {
    let finished: Vec<Points> = arm.finished().map(|(_, measured)| of(measured)).collect();
    let finished: Vec<Points> = finished.into_iter().filter(|points| !points.is_empty()).collect();
    let mut at: BTreeMap<u64, Vec<(f64, f64)>> = BTreeMap::new();
    for (step, x, y) in finished.iter().flatten().filter(|(_, x, y)| x.is_finite() && y.is_finite())
    {
        at.entry(*step).or_default().push((*x, *y));
    }
    at.retain(|_, points| points.len() == finished.len());
    let mut series = Series::line(&arm.name(), arm.style, Vec::new());
    for points in at.into_values() {
        let (x, y): (Vec<f64>, Vec<f64>) = points.into_iter().unzip();
        let (x, y) = (SeedMean::new(&x)?, SeedMean::new(&y)?);
        series.points.push((x.mean, y.mean));
        series.spread.extend(y.deviation.map(|by| [x.mean, y.mean - by, y.mean + by]));
    }
    let stray = |measured: &Measured| of(measured).into_iter().map(|(_, x, y)| (x, y)).collect();
    series.strays = arm.stopped().map(stray).filter(|points: &Vec<_>| !points.is_empty()).collect();
    (!series.points.is_empty() || !series.strays.is_empty()).then_some(series)
}

/// What a curve runs against.
#[derive(Clone, Copy, Debug)]
pub(super) enum Against<'a> {
    Steps,
    /// Bytes that one rank has sent.
    Bytes,
    /// The virtual time on a link.
    Time(&'a str),
}

impl Against<'_> {
    /// Where a point is: by its step, its bytes, and its place in the times of the link.
    fn x(self, step: u64, bytes: f64, seconds: impl Fn(&str) -> Option<f64>) -> Option<f64> {
        match self {
            Self::Steps => Some(step as f64),
            Self::Bytes => Some(bytes),
            Self::Time(word) => seconds(word),
        }
    }
}

/// The training loss.
pub(super) fn loss(measured: &Measured, against: Against<'_>) -> Points {
    let points = measured.losses.iter().zip(measured.smooth_losses()).enumerate();
    let point = |(place, (point, loss)): (usize, (&Loss, f64))| {
        let seconds = |word: &str| measured.link(word)?.at_losses.get(place).copied();
        Some((point.step, against.x(point.step, point.bytes, seconds)?, loss))
    };
    points.filter_map(point).collect()
}

/// The accuracy on the test set.
pub(super) fn accuracy(measured: &Measured, against: Against<'_>) -> Points {
    let point = |(place, at): (usize, &Evaluation)| {
        let seconds = |word: &str| measured.link(word)?.at_evaluations.get(place).copied();
        Some((at.step, against.x(at.step, at.bytes, seconds)?, at.accuracy))
    };
    measured.evaluations.iter().enumerate().filter_map(point).collect()
}

/// A gauge against steps.
pub(super) fn gauge(measured: &Measured, name: &str) -> Points {
    let points = measured.gauges.get(name).into_iter().flatten();
    points.map(|(step, value)| (*step, *step as f64, *value)).collect()
}
