//! Where the time of a step goes: what passed, and what the worker itself computed meanwhile.

use crate::recipe::Device;
use crate::record::Phases;
use gradwire_exchange::Traffic;
use gradwire_exchange::thread_time;
use std::time::{Duration, Instant};

/// The seconds of one worker in one step, on two clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepTimer {
    /// What passed.
    pub wall: Phases,
    /// What the worker computed: its thread's processor time, so that other workers on the same
    /// cores are not charged. In a pool of several threads, which no clock covers, and on a device,
    /// for which the thread only waits, what passed.
    pub own: Phases,
    /// Whether a device computes and not this thread.
    on_device: bool,
}

impl StepTimer {
    /// The timer of a worker that computes on `device`.
    pub fn on(device: Device) -> Self {
        Self { on_device: device != Device::Cpu, ..Self::default() }
    }

    /// Does `work`, and adds its time to a phase.
    pub fn time<T>(&mut self, phase: fn(&mut Phases) -> &mut f64, work: impl FnOnce() -> T) -> T {
        let (began, computed) = (Instant::now(), thread_time());
        let result = work();
        let passed = began.elapsed();
        // The thread's clock covers the work where the thread is its compute pool's only one.
        let own = if rayon::current_num_threads() == 1 && !self.on_device {
            thread_time().saturating_sub(computed)
        } else {
            passed
        };
        *phase(&mut self.wall) += passed.as_secs_f64();
        *phase(&mut self.own) += own.as_secs_f64();
        result
    }

    /// Shares the exposed seconds of an exchange among its phases, in proportion to what they took.
    pub(super) fn add_exchange(&mut self, traffic: &Traffic, exposed: Duration) {
        let share = (exposed.as_secs_f64() / traffic.total().as_secs_f64()).min(1.0);
        self.wall.encode += traffic.encode.as_secs_f64() * share;
        self.wall.wait += traffic.wait.as_secs_f64() * share;
        self.wall.decode += traffic.decode.as_secs_f64() * share;
    }
}

/// Whole nanoseconds of these seconds, for the record.
pub fn nanoseconds(seconds: f64) -> u64 {
    // A cast from f64 saturates.
    (seconds * 1e9).round() as u64
}

/// Whole nanoseconds of a duration.
pub fn nanoseconds_of(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_passes_but_is_not_computing() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let slept = |mut timer: StepTimer| {
            pool.install(|| {
                timer.time(|p| &mut p.forward, || std::thread::sleep(Duration::from_millis(40)));
            });
            timer
        };
        let timer = slept(StepTimer::default());
        assert!(timer.wall.forward >= 0.04);
        assert!(timer.own.forward < 0.02, "{timer:?}");
        assert_eq!(timer.own.backward, 0.0);
        // While kernels run on a device, the thread that waits for them computes nothing.
        let timer = slept(StepTimer::on(Device::Cuda(0)));
        assert!(timer.own.forward >= 0.04, "{timer:?}");
        assert_eq!(nanoseconds(1.5e-6), 1500);
        assert_eq!(nanoseconds_of(Duration::from_micros(3)), 3000);
    }
}
