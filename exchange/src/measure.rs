//! How far what is sent is from what should have been.

use std::time::{Duration, Instant};

use crate::Gauge;

/// Gathers the compression error of one step over its buckets.
#[derive(Debug, Default)]
pub(crate) struct Distortion {
    /// Of each bucket: Σ g², Σ (g − ĝ)², Σ g·(g − ĝ). Added up in order of bucket, so that the
    /// order in which buckets were encoded makes no difference.
    sums: Vec<[f64; 3]>,
    pending: Vec<f32>,
}

impl Distortion {
    /// Adds a bucket, by its number: its gradient, of which `subtract_sent` takes what has been sent.
    /// Returns the time that this took.
    pub(crate) fn add(
        &mut self,
        bucket: usize,
        gradient: &[f32],
        subtract_sent: impl FnOnce(&mut [f32]),
    ) -> Duration {
        let start = Instant::now();
        self.pending.clear();
        self.pending.extend_from_slice(gradient);
        subtract_sent(&mut self.pending);
        if self.sums.len() <= bucket {
            self.sums.resize(bucket + 1, [0.0; 3]);
        }
        let sums = &mut self.sums[bucket];
        *sums = [0.0; 3];
        for (gradient, pending) in gradient.iter().zip(&self.pending) {
            let (gradient, pending) = (f64::from(*gradient), f64::from(*pending));
            sums[0] += gradient * gradient;
            sums[1] += pending * pending;
            sums[2] += gradient * pending;
        }
        start.elapsed()
    }

    /// Ends a step: appends `compression_error`, ‖ĝ − g‖² / ‖g‖², and `compression_cosine`, that
    /// of the angle between ĝ and g, if anything has been measured.
    pub(crate) fn end(self, gauges: &mut Vec<Gauge>) {
        if self.sums.is_empty() {
            return;
        }
        let mut total = [0.0; 3];
        for sums in &self.sums {
            total.iter_mut().zip(sums).for_each(|(total, sum)| *total += sum);
        }
        let [whole, error, shared] = total;
        // ĝ = g − (g − ĝ).
        let decoded = whole - 2.0 * shared + error;
        let lengths = (whole * decoded).sqrt();
        let share = |part: f64, of: f64, otherwise| if of > 0.0 { part / of } else { otherwise };
        gauges.push(Gauge::mean("compression_error", share(error, whole, 0.0), 1.0));
        let nothing = if error > 0.0 { 0.0 } else { 1.0 };
        let cosine = share(whole - shared, lengths, nothing).clamp(-1.0, 1.0);
        gauges.push(Gauge::mean("compression_cosine", cosine, 1.0));
    }
}
