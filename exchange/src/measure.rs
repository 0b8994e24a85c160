//! How far what is sent is from what should have been.

use std::time::{Duration, Instant};

use crate::Gauge;

/// Gathers the compression error of one step over its buckets.
#[derive(Debug, Default)]
pub(crate) struct Distortion {
    /// Of each bucket: Σ g², Σ (g − ĝ)², Σ g·(g − ĝ). Added up in order of bucket, so that the
    /// order in which buckets were encoded makes no difference.
    sums: Vec<[f64; 3]>,
    measured: bool,
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
        self.measured = true;
        start.elapsed()
    }

    /// Forgets what has been measured of a step that will not be finished.
    pub(crate) fn begin(&mut self) {
        self.sums.fill([0.0; 3]);
        self.measured = false;
    }

    /// Ends a step: appends `compression_error`, ‖ĝ − g‖² / ‖g‖², and `compression_cosine`, that
    /// of the angle between ĝ and g, if anything has been measured.
    pub(crate) fn end(&mut self, gauges: &mut Vec<Gauge>) {
        if !self.measured {
            return;
        }
        let mut total = [0.0; 3];
        for sums in &self.sums {
            total.iter_mut().zip(sums).for_each(|(total, sum)| *total += sum);
        }
        self.begin();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::{Scheme, Seat};
    use crate::schemes::topk;

    #[test]
    fn error_and_cosine_are_those_of_what_arrives() {
        let gradient = [3.0, 0.0, -4.0, 12.0];
        let config = topk::Config { ratio: 0.25.into(), ..Default::default() };
        let mut compressor = config.codec(&Seat::alone(4, 0)).unwrap();
        let mut message = Vec::new();
        compressor.encode(&gradient, 1, &mut message);
        let (mut distortion, mut gauges) = (Distortion::default(), Vec::new());
        distortion.end(&mut gauges);
        assert!(gauges.is_empty());
        distortion.add(0, &gradient, |unsent| {
            compressor.decode_add(&message, 0..unsent.len(), -1.0, unsent).unwrap();
        });
        distortion.end(&mut gauges);
        // Of 169, 25 are not sent.
        assert!((gauges[0].value - 25.0 / 169.0).abs() < 1e-12);
        assert!((gauges[1].value - 12.0 / 13.0).abs() < 1e-12);
        distortion.end(&mut gauges);
        assert_eq!(gauges.len(), 2);
    }
}
