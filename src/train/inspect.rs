//! Who sees a rank's own gradient before it is exchanged: the record, which keeps histograms of rank 0's and the
//! gradient itself, and a fault that spoils it.

use crate::record::{Histogram, Histograms, Tagged, gradient};
use crate::train::position::Phase;
use crate::train::report::Report;
use crate::train::worker::Worker;
use anyhow::{Context, Result, ensure};
use glob::Pattern;

impl Worker {
    /// Whether this rank's gradient of `step` is to be recorded or spoilt.
    pub(super) fn is_inspected(&self, step: u64) -> bool {
        let spoilt = self.session.faults.awaits_gradient(self.position.rank(), step);
        spoilt || self.histograms_due(step) || self.gradient_due(step)
    }

    /// Between the backward pass and the exchange: lets a fault spoil the gradient, and records what the recipe
    /// asks for, if it is due.
    ///
    /// # Errors
    /// When the recipe names parameters that are not there, or the gradient cannot be written.
    pub(super) fn inspect_gradient(&mut self, step: u64) -> Result<()> {
        if self.is_inspected(step) {
            self.land()?;
        }
        if self.session.faults.spoils_gradient(self.position.rank(), step) {
            self.gradient.flat.fill(f32::NAN);
            self.gradient.support.fill();
        }
        if self.histograms_due(step) {
            self.report(Report::Histograms(self.histograms(step)?))?;
        }
        if self.gradient_due(step) {
            self.record_gradient(step)?;
        }
        Ok(())
    }

    /// Rank 0's gradient and residual, of the parameters that the recipe names.
    fn histograms(&self, step: u64) -> Result<Histograms> {
        let params: Vec<_> = self.replica.params.iter().collect();
        let about: Vec<_> = params.iter().map(|p| (p.name.as_str(), p.var.dims())).collect();
        let shown = shown(self.session.recipe.record.histograms.as_deref(), &about)?;
        let residual = self.gradient.exchange().residual();
        let vectors = [("gradient", Some(self.gradient.flat.as_slice())), ("residual", residual)];
        let entries = vectors.into_iter().filter_map(|(what, v)| Some((what, v?))).flat_map(
            |(what, vector)| {
                let params = &params;
                shown.iter().map(move |number| Tagged {
                    tag: format!("{what}/{}", params[*number].name),
                    histogram: Histogram::new(&vector[params[*number].range.clone()]),
                })
            },
        );
        Ok(Histograms { step, entries: entries.collect() })
    }

    fn histograms_due(&self, step: u64) -> bool {
        let every = self.session.recipe.record.histograms_every;
        self.position.rank() == 0 && every > 0 && (step == 1 || step.is_multiple_of(every))
    }

    fn gradient_due(&self, step: u64) -> bool {
        let every = self.session.recipe.record.gradients;
        self.position.rank() == 0 && every > 0 && step.is_multiple_of(every)
    }

    /// Writes rank 0's gradient, and the residual that the exchange will add to it, if it does, to the run's folder.
    fn record_gradient(&mut self, step: u64) -> Result<()> {
        let Some(folder) = &self.session.folder else { return Ok(()) };
        self.position.enter(Phase::RecordingGradient);
        // That of local steps is of how far weights have come, and is added to no gradient.
        let is_local = self.session.steps.is_local(step);
        let residual = self.gradient.exchange().residual().filter(|_| !is_local);
        let parameters = self.replica.params.iter().map(|param| gradient::Parameter {
            name: &param.name,
            dims: param.var.dims(),
            gradient: &self.gradient.flat[param.range.clone()],
            residual: residual.map(|residual| &residual[param.range.clone()]),
        });
        gradient::save(&self.session.disk, folder, parameters, step)?;
        Ok(())
    }
}

/// A parameter's name and dimensions.
type NamedShape<'a> = (&'a str, &'a [usize]);

/// The numbers of the parameters that `patterns` name, as those of the policy's rules do; without patterns
/// the largest weight of each part of the model, a part being what has one name up to the first dot.
///
/// # Errors
/// When a pattern names no parameter.
pub(super) fn shown(patterns: Option<&[String]>, params: &[NamedShape<'_>]) -> Result<Vec<usize>> {
    let places = 0..params.len();
    let Some(patterns) = patterns else { return Ok(largest_of_parts(params)) };
    let read = |text: &String| {
        Pattern::new(text).with_context(|| format!("record.histograms: {text:?} is no pattern"))
    };
    let patterns = patterns.iter().map(read).collect::<Result<Vec<Pattern>>>()?;
    for pattern in &patterns {
        ensure!(
            params.iter().any(|(name, _)| pattern.matches(name)),
            "record.histograms: no parameter is named {:?}; the names are {}",
            pattern.as_str(),
            params.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
        );
    }
    let named = |place: &usize| patterns.iter().any(|pattern| pattern.matches(params[*place].0));
    Ok(places.filter(named).collect())
}

fn largest_of_parts(params: &[NamedShape<'_>]) -> Vec<usize> {
    let part = |place: usize| params[place].0.split('.').next();
    let size = |place: usize| params[place].1.iter().product::<usize>();
    let weights: Vec<usize> =
        (0..params.len()).filter(|place| params[*place].1.len() > 1).collect();
    let beaten = |place: usize, other: usize| {
        let larger =
            (size(other), std::cmp::Reverse(other)) > (size(place), std::cmp::Reverse(place));
        part(other) == part(place) && larger
    };
    let kept = weights.iter().filter(|place| !weights.iter().any(|other| beaten(**place, *other)));
    kept.copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESNET: [NamedShape<'_>; 7] = [
        ("conv1.weight", &[16, 3, 3, 3]),
        ("fc.bias", &[10]),
        ("fc.weight", &[10, 64]),
        ("layer1.0.bn1.weight", &[16]),
        ("layer1.0.conv1.weight", &[16, 16, 3, 3]),
        ("layer1.0.conv2.weight", &[16, 16, 3, 3]),
        ("layer1.1.conv1.weight", &[16, 8, 3, 3]),
    ];

    #[test]
    fn without_patterns_each_part_has_its_largest_weight() {
        assert_eq!(shown(None, &RESNET).unwrap(), [0, 2, 4]);
    }

    #[test]
    fn patterns_name_parameters() {
        let of = |patterns: &[&str]| {
            let patterns: Vec<String> = patterns.iter().map(ToString::to_string).collect();
            shown(Some(&patterns), &RESNET)
        };
        assert_eq!(of(&["*"]).unwrap(), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(of(&["fc*", "conv1.weight"]).unwrap(), [0, 1, 2]);
        assert_eq!(of(&["layer1.*.conv*.weight"]).unwrap(), [4, 5, 6]);
        assert_eq!(of(&["*größe*", "*"]).map_err(|error| error.to_string().len() > 20), Err(true));
        assert!(of(&[]).unwrap().is_empty());
    }
}
