//! How long the runs of a grid still take.

use crate::grid::Planned;
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
    pub(super) fn add(&mut self, planned: &Planned, steps: u64, took: Duration) {
        if steps == 0 {
            return;
        }
        let (task, arm) = (planned.task.clone(), planned.arm.clone());
        self.taken.push((task, arm, steps, took.as_secs_f64()));
    }

    /// Seconds of the runs that are still to be made: by the same task and arm, else by the same
    /// task; `None` when a task among them has not been seen.
    pub(super) fn left(&self, runs: &[Planned], is_left: impl Fn(usize) -> bool) -> Option<f64> {
        let rate = |planned: &Planned| {
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

    fn planned(task: &str, arm: &str, steps: u64) -> Planned {
        let recipe = Source::default().load().unwrap();
        let (task, arm) = (task.to_string(), arm.to_string());
        Planned {
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

    /// A run of 1,000 steps that was stopped at its last but ten says little by its seconds now: they are
    /// those of ten steps.
    #[test]
    fn a_run_that_goes_on_counts_with_the_steps_that_it_takes_now() {
        let runs = [planned("images", "dense", 1000), planned("images", "dense", 1000)];
        let mut pace = Pace::default();
        pace.add(&runs[0], 10, Duration::from_secs(20));
        assert_eq!(pace.left(&runs, |i| i == 1), Some(2000.0));
        // One that was ended already, and took no step, says nothing.
        let mut pace = Pace::default();
        pace.add(&runs[0], 0, Duration::from_secs(3));
        assert_eq!(pace.left(&runs, |i| i == 1), None);
    }
}
