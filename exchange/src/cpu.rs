//! The time that the calling thread has computed.

use std::time::{Duration, Instant};

/// What has passed, and what this thread has computed of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stopwatch {
    passed: Instant,
    computed: Duration,
}

impl Stopwatch {
    /// Begins to count.
    pub(crate) fn start() -> Self {
        Self { passed: Instant::now(), computed: thread_time() }
    }

    /// What has passed, and what the thread has computed, since it was started, on this thread.
    pub(crate) fn read(&self) -> (Duration, Duration) {
        (self.passed.elapsed(), thread_time().saturating_sub(self.computed))
    }
}

/// What the processors have spent on the calling thread since it began. Two readings on one thread
/// tell what lay between them, whatever else ran meanwhile; waiting costs nothing. Where the
/// system has no such clock, the time that has passed, waiting included.
#[cfg(unix)]
pub fn thread_time() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    // The clock counts up from 0 and a second has 10⁹ nanoseconds.
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// What has passed: this system has no clock for a thread's own time.
#[cfg(not(unix))]
pub fn thread_time() -> Duration {
    use std::sync::OnceLock;
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    BEGAN.get_or_init(Instant::now).elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;

    #[test]
    fn computing_is_charged_and_sleeping_is_not() {
        let before = thread_time();
        std::thread::sleep(Duration::from_millis(30));
        let slept = thread_time() - before;
        assert!(slept < Duration::from_millis(15), "{slept:?}");
        let mut sum = 0u64;
        while thread_time() - before < slept + Duration::from_millis(5) {
            sum = black_box(sum.wrapping_add(1));
        }
        assert!(sum > 0);
    }
}
