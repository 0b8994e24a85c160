//! What all ranks do at the end of a step beside training: save a checkpoint, stop.
//!
//! Whether it is time depends on the clock and on the person, which the ranks do not see at the
//! same moment; yet all must save the same step. So rank 0 alone decides, before its part in the
//! step's exchange, and the others read the decision after theirs (a step without an exchange, one of a
//! round of local steps, has no decision): nobody ends an exchange before
//! rank 0 has entered it, and rank 0 cannot end the next one before all have entered that. So the
//! decision of a step is made before any rank reads it, and kept until all have: two places, taken
//! in turns, are enough, and nothing crosses the wire.
//!
//! To other processes they travel with the messages of the exchange, as [`Notes`]: process 0 sends
//! the two places, the others whether they have been asked to stop.

use crate::recipe;
use crate::train::position::LivePosition;
use crate::train::steps::Steps;
use anyhow::{Result, ensure};
use gradwire_exchange::cluster::Notes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// What to do at the end of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Save a checkpoint.
    pub save: bool,
    /// End the run after it.
    pub stop: bool,
}

/// What is asked of a run, shared by its workers and whoever may ask.
#[derive(Debug, Default)]
pub struct Requests {
    save: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    /// Whether another process has been asked to stop.
    stop_elsewhere: AtomicBool,
    /// Whether a checkpoint is being written.
    writing: AtomicBool,
    /// Step · 4 + stop · 2 + save, of the last two steps that were decided on, in any order.
    of_step: [AtomicU64; 2],
}

impl Requests {
    /// Asks for a checkpoint after the present step, or the next one that a checkpoint can be
    /// taken at. Sets a flag and nothing else: a signal handler may call it.
    pub fn save(&self) {
        self.save.store(true, Ordering::SeqCst);
    }

    /// Asks for the end of the run after the present step or the next, with a checkpoint. Sets a
    /// flag and nothing else: a signal handler may call it.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    /// What [`stop`](Self::stop) sets, for a signal handler.
    pub fn stop_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    /// Those of the same run's next attempt: nothing decided, but a stop or a checkpoint that has been asked for
    /// is still asked for.
    #[must_use]
    pub fn again(&self) -> Self {
        Self { stop: self.stop_flag(), save: Arc::clone(&self.save), ..Self::default() }
    }

    /// Whether the run has been asked to stop.
    pub fn stopping(&self) -> bool {
        self.stop.load(Ordering::SeqCst) || self.stop_elsewhere.load(Ordering::SeqCst)
    }

    /// Whether a checkpoint has been ordered that is not written yet.
    pub fn is_writing(&self) -> bool {
        self.writing.load(Ordering::SeqCst)
    }

    /// Tells that a checkpoint has been ordered, or that it has been written or has failed to be.
    pub fn set_writing(&self, writing: bool) {
        self.writing.store(writing, Ordering::SeqCst);
    }

    /// Rank 0, before its part in the exchange of `step`: decides for all ranks. A checkpoint is
    /// saved when it is `due` or has been asked for, provided the writer is `free`; what has been
    /// asked for stays so until then. The end is not put off.
    pub fn decide(&self, step: u64, due: bool, free: bool) -> Decision {
        let stop = self.stopping();
        let save = stop || (free && (self.save.swap(false, Ordering::SeqCst) || due));
        let word = (step << 2) | (u64::from(stop) << 1) | u64::from(save);
        // The place of the older decision, which all have read.
        let older = self.of_step.iter().min_by_key(|place| place.load(Ordering::SeqCst));
        older.expect("invariant: there are two").store(word, Ordering::SeqCst);
        Decision { save, stop }
    }

    /// Any rank, after its part in the exchange of `step`: what rank 0 has decided.
    pub fn decision(&self, step: u64) -> Decision {
        let mut words = self.of_step.iter().map(|place| place.load(Ordering::SeqCst));
        let word = words.find(|word| word >> 2 == step).unwrap_or(0);
        Decision { save: word & 1 != 0, stop: word & 2 != 0 }
    }
}

impl Notes for Requests {
    fn tell(&self) -> [u64; 3] {
        let [one, other] = &self.of_step;
        [one.load(Ordering::SeqCst), other.load(Ordering::SeqCst), u64::from(self.stopping())]
    }

    fn hear(&self, from: usize, [one, other, stop]: [u64; 3]) {
        if from == 0 {
            self.of_step[0].store(one, Ordering::SeqCst);
            self.of_step[1].store(other, Ordering::SeqCst);
        }
        if stop != 0 {
            self.stop_elsewhere.store(true, Ordering::SeqCst);
        }
    }
}

/// When a checkpoint is due, on rank 0; and how good the best model is, on every rank.
pub(super) struct SavePolicy {
    /// Since the last checkpoint was decided on, or the run began.
    since: Instant,
    /// One has been due, and the writer was not free.
    overdue: bool,
    /// Whether the writer has been kept free for a checkpoint that has been decided on.
    reserved: bool,
    /// The best merit so far, on every rank.
    pub(super) best: Option<f64>,
    /// On rank 0 that of the best model that could be saved.
    pub(super) saved: Option<f64>,
}

impl SavePolicy {
    pub(super) fn new() -> Self {
        Self { since: Instant::now(), overdue: false, reserved: false, best: None, saved: None }
    }

    /// Whether a model of this merit is better than the one that is saved.
    pub(super) fn beats_saved(&self, merit: Option<f64>) -> bool {
        merit.is_some_and(|now| self.saved.is_none_or(|saved| now > saved))
    }

    /// Decides, on rank 0 and for all ranks, whether to save after `step`, one of `steps` in which they meet.
    pub(super) fn decide(
        &mut self,
        step: u64,
        settings: &recipe::CheckpointSettings,
        steps: &Steps,
        requests: &Requests,
    ) {
        let by_steps = steps.is_due(settings.every_steps, step);
        let minutes = self.since.elapsed().as_secs_f64() / 60.0;
        let by_time = settings.every_minutes > 0.0 && minutes >= settings.every_minutes;
        let due = settings.keep_last > 0 && (self.overdue || by_steps || by_time);
        let free = !requests.is_writing();
        let decision = requests.decide(step, due, free);
        self.overdue = due && !decision.save;
        if decision.save {
            self.since = Instant::now();
        }
        if decision.save && free {
            requests.set_writing(true);
            self.reserved = true;
        }
    }

    /// Waits until the writer is free for a checkpoint, if it has not been kept free: for this one, or for one that
    /// has been decided on and is still to come, which then waits in its turn.
    pub(super) fn reserve(
        &mut self,
        requests: &Requests,
        patience: Duration,
        position: &LivePosition,
    ) -> Result<()> {
        if std::mem::take(&mut self.reserved) {
            return Ok(());
        }
        let began = Instant::now();
        while requests.is_writing() {
            ensure!(
                began.elapsed() < patience,
                "an earlier checkpoint has been written for more than {patience:?}: the disk does \
                 not answer"
            );
            position.beat();
            thread::sleep(Duration::from_millis(1));
        }
        requests.set_writing(true);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    /// Whoever holds the requests of a run may ask after a worker was lost, too.
    #[test]
    fn what_is_asked_of_a_run_reaches_its_next_attempt() {
        let first = Requests::default();
        let next = first.again();
        first.save();
        assert_eq!(next.decide(5, false, true), Decision { save: true, stop: false });
        assert_eq!(next.decide(6, false, true), Decision { save: false, stop: false });
        first.stop();
        assert!(next.stopping());
    }

    #[test]
    fn other_processes_receive_the_decision_and_pass_on_what_they_are_asked() {
        let (leader, follower) = (Requests::default(), Requests::default());
        follower.stop();
        leader.hear(1, follower.tell());
        assert!(leader.stopping() && !leader.stop_flag().load(Ordering::SeqCst));
        let decision = leader.decide(7, false, true);
        follower.hear(0, leader.tell());
        assert_eq!(
            (decision, follower.decision(7)),
            (Decision { save: true, stop: true }, decision)
        );
        // What a follower sends decides nothing.
        leader.hear(1, [0, 0, 0]);
        assert_eq!(leader.decision(7), decision);
    }

    #[test]
    fn what_was_asked_for_waits_until_the_writer_is_free() {
        let requests = Requests::default();
        requests.save();
        assert_eq!(requests.decide(1, true, false), Decision::default());
        assert_eq!(requests.decide(2, false, true), Decision { save: true, stop: false });
        assert_eq!(requests.decide(3, false, true), Decision::default());
        requests.stop();
        assert_eq!(requests.decide(4, false, false), Decision { save: true, stop: true });
        assert_eq!(requests.decision(4), Decision { save: true, stop: true });
        assert_eq!(requests.decision(3), Decision::default());
        assert_eq!(requests.decision(2), Decision::default(), "its place has been taken");
    }

    /// Ranks that meet once a step agree, whenever the asking comes.
    #[test]
    fn ranks_agree_on_every_step() {
        const STEPS: u64 = 2000;
        let (requests, meeting) = (Requests::default(), Barrier::new(3));
        let seen: Vec<Vec<Decision>> = thread::scope(|scope| {
            let rank = |rank: usize| {
                let (requests, meeting) = (&requests, &meeting);
                move || -> Vec<Decision> {
                    let step = |step| {
                        if rank == 0 {
                            requests.decide(step, step.is_multiple_of(7), true);
                        }
                        meeting.wait();
                        requests.decision(step)
                    };
                    (1..=STEPS).map(step).collect()
                }
            };
            let ranks: Vec<_> = (0..3).map(|r| scope.spawn(rank(r))).collect();
            (0..200).for_each(|_| {
                requests.save();
                thread::yield_now();
            });
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert!(seen[0] == seen[1] && seen[0] == seen[2]);
        assert!(seen[0].iter().filter(|decision| decision.save).count() >= (STEPS / 7) as usize);
    }

    #[test]
    fn a_model_that_could_not_be_saved_is_no_bar_for_later_ones() {
        let mut policy = SavePolicy::new();
        assert!(policy.beats_saved(Some(0.5)) && !policy.beats_saved(None));
        (policy.best, policy.saved) = (Some(0.9), Some(0.8));
        assert!(policy.beats_saved(Some(0.85)) && !policy.beats_saved(Some(0.8)));
    }
}
