//! Sends what lies above a threshold: what Gaussian-k, RedSync and the hard threshold share. How
//! the threshold is found is all that differs.

use super::Seat;
use super::exceedances::Exceedances;
use super::sparse::Select;
use crate::Gauge;

/// A threshold for one gradient.
pub(crate) struct Cut {
    /// Magnitudes above it are sent.
    pub(crate) threshold: f32,
    /// Elements that were aimed at, if any: then at least one is sent, and k̂/k is told.
    pub(crate) aim: Option<usize>,
}

/// Settings that say where to cut.
pub(crate) trait Cuts: Send {
    /// The threshold for `gradient` at `step`.
    fn cut(&self, gradient: &[f32], step: u64) -> Cut;
}

/// The selection of settings that say where to cut.
pub(crate) struct Cutoff<C> {
    config: C,
    exceedances: Exceedances,
    aim: Option<usize>,
}

impl<C: Cuts> Cutoff<C> {
    /// For one seat.
    pub(crate) fn new(config: C, seat: &Seat) -> Self {
        Self { config, exceedances: Exceedances::new(seat.length), aim: None }
    }
}

impl<C: Cuts> Select for Cutoff<C> {
    fn select(&mut self, gradient: &[f32], step: u64) {
        let Cut { threshold, aim } = self.config.cut(gradient, step);
        self.exceedances.gather(gradient, threshold);
        if aim.is_some() {
            self.exceedances.or_largest(gradient);
        }
        self.aim = aim;
    }

    fn positions(&self) -> &[u32] {
        self.exceedances.positions()
    }

    fn add_gauges(&self, gauges: &mut Vec<Gauge>) {
        gauges.extend(self.aim.map(|k| self.exceedances.kept_ratio(k)));
    }
}
