//! SGD on some rows of a table: each is brought up to date, and updated while the first cache holds it. Rows lie
//! anywhere, so those to come are asked for ahead.

use std::ops::Range;

use super::{Sgd, SgdStep, is_zero, isa, squares};
use crate::kernels::simd::{Kernel, Simd};

/// Rows of one table, with what SGD needs to know beside them.
pub struct SgdRows<'a> {
    /// Elements of a row.
    pub width: usize,
    /// The table.
    pub weights: &'a mut [f32],
    /// Its momentum; may be empty while the factor is 0.
    pub momentum: &'a mut [f32],
    /// Rows of this width that are kept aside.
    pub aside: &'a [f32],
}

/// A row of a table, and what it has missed.
#[derive(Clone, Copy, Debug)]
pub struct Late {
    /// Its number.
    pub row: usize,
    /// The number of the row aside that its weights are to be set to first.
    pub aside: Option<usize>,
    /// How far a row has moved since by a momentum of 1, and what is left of it.
    pub missed: Option<(f32, f32)>,
}

impl SgdRows<'_> {
    /// Brings these rows up to date.
    ///
    /// # Panics
    /// When a row is not in the table, or not aside.
    pub fn catch_up(self, late: &[Late]) {
        isa().run(CatchUp { rows: self, late });
    }

    /// One step, as [`sgd`](super::sgd), of those of these rows whose `gradient` is not zero: each is brought up to date before, and
    /// its gradient is zeros afterwards. Tells `done` of each of them its place in `late` and the
    /// [sum of its gradient's squares](super::sum_of_squares), in this order.
    ///
    /// # Panics
    /// When a row is not in the table, or not aside, or the slices differ in length.
    pub fn step(
        self,
        gradient: &mut [f32],
        late: &[Late],
        step: &SgdStep,
        done: &mut dyn FnMut(usize, f64),
    ) {
        assert_eq!(self.weights.len(), gradient.len(), "sgd: one gradient per parameter");
        if step.momentum != 0.0 {
            let momentum = self.momentum.len();
            assert_eq!(self.weights.len(), momentum, "sgd: one momentum per parameter");
        }
        isa().run(StepRows { rows: self, gradient, late, step, done });
    }

    fn elements(&self, row: usize) -> Range<usize> {
        row * self.width..(row + 1) * self.width
    }

    #[inline(always)]
    fn catch_up_with(&mut self, late: &Late) {
        let elements = self.elements(late.row);
        let weights = &mut self.weights[elements.clone()];
        if let Some(aside) = late.aside {
            weights.copy_from_slice(&self.aside[aside * self.width..][..self.width]);
        }
        if let Some((drift, left)) = late.missed {
            let momentum = self.momentum.get_mut(elements).unwrap_or_default();
            for (weight, momentum) in weights.iter_mut().zip(momentum) {
                *weight -= drift * *momentum;
                *momentum *= left;
            }
        }
    }

    /// Asks for what will be read of a row soon.
    #[inline(always)]
    fn ask_for<S: Simd>(&self, s: S, gradient: &[f32], late: &Late) {
        /// Elements of a cache line.
        const LINE: usize = 16;
        let row = self.elements(late.row);
        let aside = late.aside.map(|row| self.elements(row));
        let tables = [gradient, self.weights, self.momentum].map(|table| table.get(row.clone()));
        let aside = aside.and_then(|row| self.aside.get(row));
        for row in tables.into_iter().chain([aside]).flatten() {
            row.iter().step_by(LINE).for_each(|element| s.prefetch(element));
        }
    }
}

/// Rows between the one that is asked for and the one that is at hand.
const AHEAD: usize = 3;

/// The simple form: [`catch_up_with`](SgdRows::catch_up_with) of each row. Here a row is fetched while those before it are
/// computed.
struct CatchUp<'a> {
    rows: SgdRows<'a>,
    late: &'a [Late],
}

impl Kernel for CatchUp<'_> {
    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        for (number, late) in self.late.iter().enumerate() {
            if let Some(soon) = self.late.get(number + AHEAD) {
                self.rows.ask_for(s, &[], soon);
            }
            self.rows.catch_up_with(late);
        }
    }
}

/// The simple form: of each row [`catch_up`](SgdRows::catch_up), then [`sgd`](super::sgd), then zeros for its gradient.
/// Here a row is in the cache for all three.
struct StepRows<'a> {
    rows: SgdRows<'a>,
    gradient: &'a mut [f32],
    late: &'a [Late],
    step: &'a SgdStep,
    done: &'a mut dyn FnMut(usize, f64),
}

impl Kernel for StepRows<'_> {
    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        for (number, late) in self.late.iter().enumerate() {
            if let Some(soon) = self.late.get(number + AHEAD) {
                self.rows.ask_for(s, self.gradient, soon);
            }
            let row = self.rows.elements(late.row);
            let grad = &mut self.gradient[row.clone()];
            if is_zero(grad) {
                continue;
            }
            self.rows.catch_up_with(late);
            (self.done)(number, squares(grad));
            let momentum = self.rows.momentum.get_mut(row.clone()).unwrap_or_default();
            let param = &mut self.rows.weights[row];
            Sgd { param, grad, momentum, step: self.step }.run(s);
            grad.fill(0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{sgd, sum_of_squares};
    use super::*;
    use crate::kernels::simd::Isa;
    use crate::kernels::{Kernels, with};

    proptest! {
        #[test]
        fn rows_that_are_late_catch_up_and_are_updated_as_sgd_does(
            width in 1usize..40,
            rows in prop::collection::vec(
                (0u8..3, prop::option::of(0usize..4), prop::option::of((-1f32..1.0, 0f32..1.0))), 1..12),
            nesterov: bool,
            momentum in prop::sample::select(vec![0.0, 0.9]),
        ) {
            let values = |seed: f32, rows: usize| -> Vec<f32> {
                (0..rows * width).map(|i| (seed + i as f32 * 0.7).sin()).collect()
            };
            let (start, speed, aside) = (values(1.0, rows.len()), values(2.0, rows.len()), values(3.0, 4));
            let speed = if momentum == 0.0 { Vec::new() } else { speed };
            let mut slope = values(4.0, rows.len());
            let step = SgdStep { lr: 0.1, momentum, nesterov, weight_decay: 0.0, first: false };
            // Not in the list; in it without a gradient; in it.
            let mut late = Vec::new();
            for (row, (part, aside, missed)) in rows.iter().enumerate() {
                if *part < 2 {
                    slope[row * width..][..width].fill(0.0);
                }
                if *part > 0 {
                    late.push(Late { row, aside: *aside, missed: *missed });
                }
            }
            let (mut slow, mut slow_speed, mut expected) = (start.clone(), speed.clone(), Vec::new());
            let (mut caught, mut caught_speed) = (start.clone(), speed.clone());
            for (number, late) in late.iter().enumerate() {
                let at = late.row * width..(late.row + 1) * width;
                let catch_up = |weights: &mut [f32], momentum: &mut [f32]| {
                    if let Some(row) = late.aside {
                        weights.copy_from_slice(&aside[row * width..][..width]);
                    }
                    for (i, momentum) in momentum.iter_mut().enumerate() {
                        let (drift, left) = late.missed.unwrap_or((0.0, 1.0));
                        weights[i] -= drift * *momentum;
                        *momentum *= left;
                    }
                };
                catch_up(
                    &mut caught[at.clone()], caught_speed.get_mut(at.clone()).unwrap_or_default());
                if rows[late.row].0 == 2 {
                    let momentum = slow_speed.get_mut(at.clone()).unwrap_or_default();
                    catch_up(&mut slow[at.clone()], momentum);
                    sgd(&mut slow[at.clone()], &slope[at.clone()], momentum, &step);
                    expected.push((number, sum_of_squares(&slope[at])));
                }
            }
            for isa in Isa::available() {
                let (mut weights, mut momentum) = (start.clone(), speed.clone());
                let (mut gradient, mut done) = (slope.clone(), Vec::new());
                with(Kernels::native(isa, false), || {
                    let (weights, momentum) = (&mut weights, &mut momentum);
                    SgdRows { width, weights, momentum, aside: &aside }
                        .step(&mut gradient, &late, &step, &mut |number, sum| done.push((number, sum)));
                });
                prop_assert_eq!(&weights, &slow);
                prop_assert_eq!(&momentum, &slow_speed);
                prop_assert_eq!(&done, &expected);
                prop_assert!(gradient.iter().all(|value| *value == 0.0));
                let (mut weights, mut momentum) = (start.clone(), speed.clone());
                with(Kernels::native(isa, false), || {
                    let (weights, momentum) = (&mut weights, &mut momentum);
                    SgdRows { width, weights, momentum, aside: &aside }.catch_up(&late);
                });
                prop_assert_eq!(&weights, &caught);
                prop_assert_eq!(&momentum, &caught_speed);
            }
        }
    }
}
