//! One line of the self-test: what was compared, how far off it was, whether that passes.

use anyhow::Result;
use gradwire_models::compare::Comparison;
use serde::Serialize;
use std::time::Instant;

/// The outcome of one check.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Check {
    /// What it is about: an `operation` of the models against candle's composed path on the CPU; a `model` against
    /// values that PyTorch computed in f64; an `update` of weights against that of the CPU; a training `step` of two workers against the composed path.
    pub(crate) check: &'static str,
    /// The operation, the model, or the scheme of the step.
    pub(crate) name: String,
    /// Where it was computed: `cpu`, `cuda:0`.
    pub(crate) device: String,
    /// The quantities that were compared.
    pub(crate) compared: Vec<String>,
    /// The quantity nearest to its tolerance, or furthest beyond; absent when nothing could be compared.
    pub(crate) worst: Option<String>,
    /// Its error, relative to its size.
    pub(crate) error: Option<f64>,
    /// The largest error that passes.
    pub(crate) tolerance: Option<f64>,
    /// Whether every quantity was within its tolerance.
    pub(crate) ok: bool,
    /// What stopped the computation, if anything did.
    pub(crate) fault: Option<String>,
    /// Milliseconds that the check took.
    pub(crate) ms: f64,
}

impl Check {
    /// Does the work of a check. One that fails, or compares nothing, is not passed.
    pub(crate) fn of(
        check: &'static str,
        name: impl Into<String>,
        device: &str,
        work: impl FnOnce() -> Result<Vec<Comparison>>,
    ) -> Self {
        let began = Instant::now();
        let (compared, fault) = match work() {
            Ok(compared) => (compared, None),
            Err(error) => (Vec::new(), Some(format!("{error:#}"))),
        };
        let worst = Comparison::worst(&compared);
        Self {
            check,
            name: name.into(),
            device: device.into(),
            worst: worst.map(|worst| worst.what.clone()),
            error: worst.map(|worst| worst.error),
            tolerance: worst.map(|worst| worst.tolerance),
            ok: !compared.is_empty() && compared.iter().all(Comparison::holds),
            compared: compared.into_iter().map(|one| one.what).collect(),
            fault,
            ms: 1e3 * began.elapsed().as_secs_f64(),
        }
    }
}

/// What came of all checks.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Summary {
    /// Checks that were made.
    pub(crate) checks: usize,
    /// Those that did not pass, by kind, name and device.
    pub(crate) failed: Vec<String>,
    /// Seconds that all took.
    pub(crate) seconds: f64,
}

impl Summary {
    /// Takes in one more check.
    pub(crate) fn add(&mut self, check: &Check) {
        self.checks += 1;
        self.seconds += check.ms / 1e3;
        if !check.ok {
            let Check { check, name, device, .. } = check;
            self.failed.push(format!("{check} {name} on {device}"));
        }
    }

    /// Whether there were checks, and all of them passed.
    pub(crate) fn ok(&self) -> bool {
        self.checks > 0 && self.failed.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;

    fn of(work: impl FnOnce() -> Result<Vec<Comparison>>) -> Check {
        Check::of("operation", "linear", "cpu", work)
    }

    #[test]
    fn one_quantity_beyond_its_tolerance_fails_the_check_and_is_shown() {
        let output = Comparison::new("output", 1e-6, 2e-5);
        let good = of(|| Ok(vec![output.clone()]));
        assert!(good.ok && good.worst.as_deref() == Some("output"), "{good:?}");
        for error in [1e-3, f64::NAN] {
            let bias = Comparison::new("gradient of bias", error, 2e-5);
            let bad = of(|| Ok(vec![output.clone(), bias]));
            assert!(!bad.ok && bad.worst.as_deref() == Some("gradient of bias"), "{bad:?}");
            assert_eq!(bad.compared, ["output", "gradient of bias"]);
        }
    }

    #[test]
    fn a_check_that_could_not_be_made_is_not_passed() {
        let stopped = of(|| bail!("out of memory"));
        assert!(!stopped.ok && stopped.fault.as_deref() == Some("out of memory"));
        assert!(!of(|| Ok(Vec::new())).ok);
        let mut summary = Summary::default();
        assert!(!summary.ok(), "nothing was checked");
        summary.add(&of(|| Ok(vec![Comparison::new("output", 0.0, 0.0)])));
        assert!(summary.ok());
        summary.add(&stopped);
        assert!(!summary.ok());
        assert_eq!((summary.checks, summary.failed), (2, vec!["operation linear on cpu".into()]));
    }
}
