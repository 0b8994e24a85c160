//! How long the runs of a grid still take.

use crate::grid::PlannedRun;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long runs take, learnt from those that have been made: of each task the steps and their seconds.
#[derive(Default)]
pub(super) struct Pace(BTreeMap<String, (u64, f64)>);

impl Pace {
    /// Learns from a run that has taken `steps` steps now; those of an earlier invocation are not among
    /// them.
    pub(super) fn add(&mut self, planned: &PlannedRun, steps: u64, took: Duration) {
        if steps > 0 {
            let taken = self.0.entry(planned.task.clone()).or_default();
            *taken = (taken.0 + steps, taken.1 + took.as_secs_f64());
        }
    }

    /// Seconds of the runs that are still to be made; `None` when a task among them has not been seen.
    pub(super) fn left<'a>(&self, runs: impl Iterator<Item = &'a PlannedRun>) -> Option<f64> {
        let seconds = |planned: &PlannedRun| {
            let (steps, seconds) = self.0.get(&planned.task)?;
            Some(seconds / *steps as f64 * planned.steps as f64)
        };
        runs.map(seconds).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gradwire::recipe::Source;
    use gradwire_datasets::Shape;

    #[test]
    fn what_is_left_is_told_by_runs_of_the_same_task() {
        let planned = |task: &str, steps: u64| PlannedRun {
            task: task.into(),
            arm: "dense".into(),
            recipe: Source::default().load().unwrap(),
            folder: "here".into(),
            steps,
            wanted: true,
            samples: [1, 1],
            sample: (Shape::Sequence { vocabulary: 2, length: 1 }, 2),
            data: Vec::new(),
            set: Vec::new(),
        };
        let runs = [planned("images", 100), planned("images", 50), planned("texts", 10)];
        let mut pace = Pace::default();
        assert_eq!(pace.left(runs.iter()), None, "nothing has been seen");
        assert_eq!(pace.left([].iter()), Some(0.0));
        // A run that goes on counts with the steps that it takes now, one that takes none not at all.
        pace.add(&runs[0], 10, Duration::from_secs(20));
        pace.add(&runs[0], 0, Duration::from_secs(3));
        assert_eq!(pace.left(runs[..2].iter()), Some(300.0));
        assert_eq!(pace.left(runs.iter()), None, "texts have not been seen");
    }
}
