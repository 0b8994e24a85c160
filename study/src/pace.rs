//! How long the runs of a grid still take.

use crate::grid::PlannedRun;
use std::time::Duration;

/// How long runs take, learnt from those that have been made.
#[derive(Default)]
pub(super) struct Pace {
    /// Task, arm, steps, seconds.
    taken: Vec<(String, String, u64, f64)>,
}

impl Pace {
    /// Learns from a run that has taken `steps` steps now; those of an earlier invocation are not among
    /// them.
    pub(super) fn add(&mut self, planned: &PlannedRun, steps: u64, took: Duration) {
        if steps == 0 {
            return;
        }
        let (task, arm) = (planned.task.clone(), planned.arm.clone());
        self.taken.push((task, arm, steps, took.as_secs_f64()));
    }

    /// Seconds of the runs that are still to be made: by the same task and arm, else by the same
    /// task; `None` when a task among them has not been seen.
    pub(super) fn left(&self, runs: &[PlannedRun], is_left: impl Fn(usize) -> bool) -> Option<f64> {
        let rate = |planned: &PlannedRun| {
            let per_step = |same: &dyn Fn(&str, &str) -> bool| {
                let of = self.taken.iter().filter(|(task, arm, ..)| same(task, arm));
                let (steps, seconds) =
                    of.fold((0, 0.0), |(n, s), (.., steps, seconds)| (n + steps, s + seconds));
                (steps > 0).then(|| seconds / steps as f64)
            };
            per_step(&|task, arm| task == planned.task && arm == planned.arm)
                .or_else(|| per_step(&|task, _| task == planned.task))
        };
        let left = runs.iter().enumerate().filter(|(index, _)| is_left(*index));
        left.map(|(_, planned)| Some(rate(planned)? * planned.steps as f64)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gradwire::recipe::Source;

    fn planned(task: &str, arm: &str, steps: u64) -> PlannedRun {
        let recipe = Source::default().load().unwrap();
        let (task, arm) = (task.to_string(), arm.to_string());
        PlannedRun {
            task,
            arm,
            recipe,
            folder: "here".into(),
            steps,
            wanted: true,
            samples: [1, 1],
            data: Vec::new(),
        }
    }

    #[test]
    fn runs_are_told_by_the_same_arm_or_else_the_same_task() {
        let runs = [
            planned("images", "dense", 100),
            planned("images", "dense", 100),
            planned("images", "topk", 50),
            planned("texts", "dense", 10),
        ];
        let mut pace = Pace::default();
        assert_eq!(pace.left(&runs, |i| i == 0), None, "nothing has been seen");
        assert_eq!(pace.left(&runs, |_| false), Some(0.0));
        pace.add(&runs[0], 100, Duration::from_secs(200));
        assert_eq!(pace.left(&runs, |i| i == 1), Some(200.0));
        assert_eq!(pace.left(&runs, |i| i == 2), Some(100.0), "by the task");
        pace.add(&runs[2], 50, Duration::from_secs(50));
        assert_eq!(pace.left(&runs, |i| i == 2), Some(50.0), "by the arm");
        assert_eq!(pace.left(&runs, |i| (1..3).contains(&i)), Some(250.0));
        assert_eq!(pace.left(&runs, |i| i > 0), None, "texts have not been seen");
    }

    /// A run that goes on counts with the steps that it takes now, and one that takes none not at all.
    #[test]
    fn steps_of_an_earlier_invocation_do_not_count() {
        let runs = [planned("images", "dense", 1000), planned("images", "dense", 1000)];
        for (steps, seconds, left) in [(10, 20, Some(2000.0)), (0, 3, None)] {
            let mut pace = Pace::default();
            pace.add(&runs[0], steps, Duration::from_secs(seconds));
            assert_eq!(pace.left(&runs, |i| i == 1), left);
        }
    }
}
