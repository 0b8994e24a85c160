//! What all ranks do at the end of a step beside training: save a checkpoint, stop.
//!
//! Whether it is time depends on the clock and on the person, which the ranks do not see at the
//! same moment; yet all must save the same step. So rank 0 alone decides, before its part in the
//! step's exchange, and the others read the decision after theirs: nobody ends an exchange before
//! rank 0 has entered it, and rank 0 cannot end the next one before all have entered that. So the
//! decision of a step is made before any rank reads it, and kept until all have: two places, taken
//! in turns, are enough, and nothing crosses the wire.
//!
//! To other processes they travel with the messages of the exchange, as [`Notes`]: process 0 tells
//! the two places, the others whether they have been asked for the end.

use gradwire_exchange::cluster::{NOTES, Notes};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What to do at the end of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Save a checkpoint.
    pub save: bool,
    /// End the run after it.
    pub stop: bool,
}

/// The flags of a run, shared by its workers and whoever may ask something of them.
#[derive(Debug, Default)]
pub struct StepFlags {
    save: AtomicBool,
    stop: Arc<AtomicBool>,
    /// Whether another process has been asked for the end.
    stop_elsewhere: AtomicBool,
    /// Whether a checkpoint is being written.
    writing: AtomicBool,
    /// Step · 4 + stop · 2 + save, of even and odd steps.
    of_step: [AtomicU64; 2],
}

impl StepFlags {
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

    /// The flags of the same run's next attempt: nothing decided, but an end that has been asked
    /// for is still asked for.
    #[must_use]
    pub fn again(&self) -> Self {
        Self { stop: self.stop_flag(), ..Self::default() }
    }

    /// Whether the end has been asked for.
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
        self.of_step[(step % 2) as usize].store(word, Ordering::SeqCst);
        Decision { save, stop }
    }

    /// Any rank, after its part in the exchange of `step`: what rank 0 has decided.
    pub fn of(&self, step: u64) -> Decision {
        let word = self.of_step[(step % 2) as usize].load(Ordering::SeqCst);
        if word >> 2 != step {
            return Decision::default();
        }
        Decision { save: word & 1 != 0, stop: word & 2 != 0 }
    }
}

impl Notes for StepFlags {
    fn tell(&self) -> [u64; NOTES] {
        let [even, odd] = &self.of_step;
        [even.load(Ordering::SeqCst), odd.load(Ordering::SeqCst), u64::from(self.stopping())]
    }

    fn hear(&self, from: usize, [even, odd, stop]: [u64; NOTES]) {
        if from == 0 {
            self.of_step[0].store(even, Ordering::SeqCst);
            self.of_step[1].store(odd, Ordering::SeqCst);
        }
        if stop != 0 {
            self.stop_elsewhere.store(true, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn other_processes_hear_the_decision_and_tell_of_being_asked() {
        let (leader, follower) = (StepFlags::default(), StepFlags::default());
        follower.stop();
        leader.hear(1, follower.tell());
        assert!(leader.stopping() && !leader.stop_flag().load(Ordering::SeqCst));
        let decision = leader.decide(7, false, true);
        follower.hear(0, leader.tell());
        assert_eq!((decision, follower.of(7)), (Decision { save: true, stop: true }, decision));
        // What a follower tells decides nothing.
        leader.hear(1, [0, 0, 0]);
        assert_eq!(leader.of(7), decision);
    }

    #[test]
    fn what_was_asked_for_waits_until_the_writer_is_free() {
        let flags = StepFlags::default();
        flags.save();
        assert_eq!(flags.decide(1, true, false), Decision::default());
        assert_eq!(flags.decide(2, false, true), Decision { save: true, stop: false });
        assert_eq!(flags.decide(3, false, true), Decision::default());
        flags.stop();
        assert_eq!(flags.decide(4, false, false), Decision { save: true, stop: true });
        assert_eq!(flags.of(4), Decision { save: true, stop: true });
        assert_eq!(flags.of(3), Decision::default());
        assert_eq!(flags.of(2), Decision::default(), "its place has been taken");
    }

    /// Ranks that meet once a step agree, whenever the asking comes.
    #[test]
    fn ranks_agree_on_every_step() {
        const STEPS: u64 = 2000;
        let (flags, meeting) = (StepFlags::default(), Barrier::new(3));
        let seen: Vec<Vec<Decision>> = std::thread::scope(|scope| {
            let rank = |rank: usize| {
                let (flags, meeting) = (&flags, &meeting);
                move || -> Vec<Decision> {
                    let step = |step| {
                        if rank == 0 {
                            flags.decide(step, step.is_multiple_of(7), true);
                        }
                        meeting.wait();
                        flags.of(step)
                    };
                    (1..=STEPS).map(step).collect()
                }
            };
            let ranks: Vec<_> = (0..3).map(|r| scope.spawn(rank(r))).collect();
            (0..200).for_each(|_| {
                flags.save();
                std::thread::yield_now();
            });
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert!(seen[0] == seen[1] && seen[0] == seen[2]);
        assert!(seen[0].iter().filter(|decision| decision.save).count() >= (STEPS / 7) as usize);
    }
}
