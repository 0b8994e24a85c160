//! How far what is sent is from what should have been.

use std::time::{Duration, Instant};

use crate::Gauge;
use crate::compress::Compressor;

/// Gathers the compression error of one step over its buckets.
#[derive(Debug, Default)]
pub(crate) struct Distortion {
    /// Σ g², Σ (g − ĝ)², Σ g·(g − ĝ); nothing when no bucket has been measured.
    sums: Option<[f64; 3]>,
    spent: Duration,
    unsaid: Vec<f32>,
}

impl Distortion {
    /// Adds a bucket: its gradient, and the message about it.
    pub(crate) fn add(&mut self, compressor: &dyn Compressor, gradient: &[f32], message: &[u8]) {
        let start = Instant::now();
        self.unsaid.clear();
        self.unsaid.extend_from_slice(gradient);
        if message.is_empty() && !gradient.is_empty() {
            // Sent as it is.
            self.unsaid.fill(0.0);
        } else {
            compressor
                .decode_add(message, -1.0, &mut self.unsaid)
                .expect("invariant: a compressor reads its own message");
        }
        let sums = self.sums.get_or_insert_default();
        for (gradient, unsaid) in gradient.iter().zip(&self.unsaid) {
            let (gradient, unsaid) = (f64::from(*gradient), f64::from(*unsaid));
            sums[0] += gradient * gradient;
            sums[1] += unsaid * unsaid;
            sums[2] += gradient * unsaid;
        }
        self.spent += start.elapsed();
    }

    /// Time that measuring has taken in this step.
    pub(crate) fn spent(&self) -> Duration {
        self.spent
    }

    /// Ends a step: appends `compression_error`, ‖ĝ − g‖² / ‖g‖², and `compression_cosine`, that
    /// of the angle between ĝ and g, if anything has been measured.
    pub(crate) fn end(&mut self, gauges: &mut Vec<Gauge>) {
        self.spent = Duration::ZERO;
        let Some([whole, error, shared]) = self.sums.take() else { return };
        // ĝ = g − (g − ĝ).
        let said = whole - 2.0 * shared + error;
        let lengths = (whole * said).sqrt();
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
    use crate::compress::{Definition, Seat};
    use crate::topk;

    #[test]
    fn error_and_cosine_are_those_of_what_arrives() {
        let gradient = [3.0, 0.0, -4.0, 12.0];
        let config = topk::Config { ratio: 0.25.into(), ..Default::default() };
        let mut compressor = config.build(&Seat::alone(4, 0));
        let mut message = Vec::new();
        compressor.encode(&gradient, 1, &mut message);
        let (mut distortion, mut gauges) = (Distortion::default(), Vec::new());
        distortion.end(&mut gauges);
        assert!(gauges.is_empty());
        distortion.add(&*compressor, &gradient, &message);
        distortion.end(&mut gauges);
        // Of 169, 25 are not sent.
        assert!((gauges[0].value - 25.0 / 169.0).abs() < 1e-12);
        assert!((gauges[1].value - 12.0 / 13.0).abs() < 1e-12);
        distortion.end(&mut gauges);
        assert_eq!(gauges.len(), 2);
    }
}
