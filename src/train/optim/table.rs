//! SGD on an embedding table: rows without gradient wait until somebody reads them.
//!
//! With momentum a row goes on moving while its gradient is zero: k updates after its last
//! gradient it has moved by −d·m, with d = Σ η_j μ^j over j = 1…k (one more μ with Nesterov's form),
//! and its momentum has come down to μ^k·m. Moving every row at every update takes five passes over
//! the table for a batch that touches a few of its rows; here a row that waits is brought up to date
//! when it is next updated or read. The rule is the same; only where it rounds is not.
//!
//! Reading leaves no trace. A row that is read while it waits is shown as it would be by then, and
//! what it was is kept aside. So no later bit depends on who reads which rows, and when: not on an
//! evaluation, not on a checkpoint, not on which rank's texts have the word. Rows wait no longer than
//! a window of updates.

use anyhow::{Result, bail, ensure};
use gradwire_exchange::{Entry, State, Support};
use gradwire_models::kernels::optimizer::{Late, SgdRows, SgdStep, is_zero};
use std::ops::Range;

/// Updates after which no row waits any more.
const WINDOW: usize = 256;

/// Of a row that is not kept aside.
const NOWHERE: u32 = u32::MAX;

/// A table's rows, and which of them wait.
pub(super) struct EmbeddingTable {
    /// Its place in the flat gradient.
    pub(super) range: Range<usize>,
    width: usize,
    /// After how many updates of the window each row was last brought up to date.
    since: Vec<u16>,
    /// After how many each row was last shown.
    shown: Vec<u16>,
    /// Where each row that is shown while it waits is kept aside, counted in rows.
    place: Vec<u32>,
    aside: Vec<f32>,
    free: Vec<u32>,
    /// Where the rows of an update are listed.
    late: Vec<Late>,
    /// By the update after which a row was last brought up to date: how far it would have moved
    /// since, had it a momentum of 1. As many as updates of the window, and one.
    drift: Vec<f64>,
    /// By the same: what is left of its momentum.
    left: Vec<f64>,
}

impl EmbeddingTable {
    /// A table at `range` of the flat gradient, of rows of `width`; none of them waits.
    pub(super) fn new(range: Range<usize>, width: usize) -> Self {
        let rows = range.len() / width;
        Self {
            range,
            width,
            since: vec![0; rows],
            shown: vec![0; rows],
            place: vec![NOWHERE; rows],
            aside: Vec::new(),
            free: Vec::new(),
            late: Vec::new(),
            drift: vec![0.0],
            left: vec![1.0],
        }
    }

    /// Updates made in this window.
    fn updates(&self) -> usize {
        self.drift.len() - 1
    }

    /// One update: of the rows of `gradient` that are not zero, which lie in `support` of the flat
    /// gradient and are zeros afterwards. `momentum`
    /// may be empty when its factor is 0. Returns the sum of the gradient's squares.
    pub(super) fn update(
        &mut self,
        weights: &mut [f32],
        gradient: &mut [f32],
        support: &Support,
        momentum: &mut [f32],
        step: &SgdStep,
    ) -> f64 {
        let (now, mut squares) = (self.updates() as u16 + 1, 0.0);
        let mut late = std::mem::take(&mut self.late);
        let within = |row: &usize| {
            let start = self.range.start + row * self.width;
            support.meets(start..start + self.width)
        };
        late.extend((0..self.since.len()).filter(within).map(|row| self.late(row)));
        let rows = SgdRows { width: self.width, weights, momentum, aside: &self.aside };
        rows.step(gradient, &late, step, &mut |number, sum| {
            squares += sum;
            let Late { row, .. } = late[number];
            self.since[row] = now;
            release(&mut self.place[row], &mut self.free);
        });
        late.clear();
        self.late = late;
        let ahead = if step.nesterov { step.momentum } else { 1.0 };
        for (drift, left) in self.drift.iter_mut().zip(&mut self.left) {
            *left *= step.momentum;
            *drift += step.lr * ahead * *left;
        }
        self.drift.push(0.0);
        self.left.push(1.0);
        if self.updates() == WINDOW {
            self.settle(weights, momentum);
        }
        squares
    }

    /// Shows the rows of these numbers as they would be if none waited; of all rows without.
    pub(super) fn catch_up(&mut self, weights: &mut [f32], momentum: &[f32], rows: Option<&[u32]>) {
        let (all, mut catch_up) = (self.since.len(), |row| self.show_row(row, weights, momentum));
        match rows {
            Some(rows) => rows.iter().for_each(|row| catch_up(*row as usize)),
            None => (0..all).for_each(catch_up),
        }
    }

    fn show_row(&mut self, row: usize, weights: &mut [f32], momentum: &[f32]) {
        let updates = self.updates() as u16;
        // What is no row the model refuses, with a better word for it.
        let Some(&since) = self.since.get(row) else { return };
        if since == updates || self.shown[row] == updates {
            return;
        }
        self.shown[row] = updates;
        let elements = self.elements(row);
        let momentum = momentum.get(elements.clone()).unwrap_or_default();
        if is_zero(momentum) {
            return;
        }
        let weights = &mut weights[elements];
        if self.place[row] == NOWHERE {
            let place = self.free.pop().unwrap_or_else(|| {
                self.aside.resize(self.aside.len() + self.width, 0.0);
                (self.aside.len() / self.width - 1) as u32
            });
            self.place[row] = place;
            self.aside[place as usize * self.width..][..self.width].copy_from_slice(weights);
        }
        let was = &self.aside[self.place[row] as usize * self.width..][..self.width];
        let drift = self.drift[usize::from(since)] as f32;
        for ((weight, was), momentum) in weights.iter_mut().zip(was).zip(momentum) {
            *weight = was - drift * momentum;
        }
    }

    /// What a row has missed.
    fn late(&self, row: usize) -> Late {
        let (since, place) = (usize::from(self.since[row]), self.place[row]);
        let missed = || (self.drift[since] as f32, self.left[since] as f32);
        Late {
            row,
            aside: (place != NOWHERE).then_some(place as usize),
            missed: (since < self.updates()).then(missed),
        }
    }

    /// Brings all rows up to date, and begins a window.
    pub(super) fn settle(&mut self, weights: &mut [f32], momentum: &mut [f32]) {
        let late: Vec<Late> = (0..self.since.len()).map(|row| self.late(row)).collect();
        SgdRows { width: self.width, weights, momentum, aside: &self.aside }.catch_up(&late);
        self.since.fill(0);
        self.shown.fill(0);
        self.place.fill(NOWHERE);
        (self.drift, self.left) = (vec![0.0], vec![1.0]);
        (self.aside, self.free) = (Vec::new(), Vec::new());
    }

    /// What the rows wait with, for a checkpoint; `None` when none can: after how many updates of the window each was
    /// last brought up to date (`since`), by that how far it would have moved and what is left of its momentum, as bits
    /// of f64 (`drift`, `left`), and the rows as they were then (`weights`).
    pub(super) fn save(&self, weights: &[f32]) -> Option<State> {
        if self.updates() == 0 {
            return None;
        }
        let mut was = weights.to_vec();
        for (row, place) in self.place.iter().enumerate().filter(|(_, place)| **place != NOWHERE) {
            let aside = &self.aside[*place as usize * self.width..][..self.width];
            was[self.elements(row)].copy_from_slice(aside);
        }
        let bits =
            |values: &[f64]| Entry::U64(values.iter().map(|value| value.to_bits()).collect());
        let mut state = State::default();
        state.insert(
            "since",
            Entry::U64(self.since.iter().map(|since| u64::from(*since)).collect()),
        );
        state.insert("drift", bits(&self.drift));
        state.insert("left", bits(&self.left));
        state.insert("weights", Entry::F32(was));
        Some(state)
    }

    /// Takes up what [`save`](Self::save) gave, and sets `weights` to the rows as they were.
    pub(super) fn restore(&mut self, waiting: &State, weights: &mut [f32]) -> Result<()> {
        let since = waiting.u64s("since", self.since.len())?;
        let was = waiting.f32s("weights", weights.len())?;
        let numbers = waiting.entries().find_map(|(name, entry)| match entry {
            Entry::U64(numbers) if name == "drift" => Some(numbers.len()),
            _ => None,
        });
        let numbers = numbers.unwrap_or_default();
        ensure!((1..=WINDOW).contains(&numbers), "{numbers} numbers on at most {WINDOW} updates");
        if let Some(row) = since.iter().position(|since| *since >= numbers as u64) {
            bail!("row {row} waits since update {} of {}", since[row], numbers - 1);
        }
        let finite = |name: &str| -> Result<Vec<f64>> {
            let bits = waiting.u64s(name, numbers)?.iter();
            let values: Vec<f64> = bits.map(|bits| f64::from_bits(*bits)).collect();
            ensure!(values.iter().all(|value| value.is_finite()), "a number is not finite");
            Ok(values)
        };
        let (drift, left) = (finite("drift")?, finite("left")?);
        weights.copy_from_slice(was);
        *self = Self::new(self.range.clone(), self.width);
        self.since = since.iter().map(|since| *since as u16).collect();
        self.shown.clone_from(&self.since);
        (self.drift, self.left) = (drift, left);
        Ok(())
    }

    fn elements(&self, row: usize) -> Range<usize> {
        row * self.width..(row + 1) * self.width
    }
}

/// Makes a row's place aside free, if it has one.
fn release(place: &mut u32, free: &mut Vec<u32>) {
    let was = std::mem::replace(place, NOWHERE);
    if was != NOWHERE {
        free.push(was);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gradwire_exchange::rng::Stream;

    const ROWS: usize = 40;
    const WIDTH: usize = 6;

    fn step(lr: f64, momentum: f64, nesterov: bool, first: bool) -> SgdStep {
        SgdStep { lr, momentum, nesterov, weight_decay: 0.0, first }
    }

    /// The gradient of update `n`: some rows, and rarely many.
    fn gradient(n: u32) -> Vec<f32> {
        let stream = Stream::new(&[7, n.into()]);
        let mut gradient = vec![0.0; ROWS * WIDTH];
        for row in 0..ROWS {
            // Row 0 is never touched, row 1 only once.
            let touched =
                stream.uniform(row as u32) < 0.03 + 0.4 * f32::from(u8::from(n % 50 == 7));
            if touched && row > 1 || row == 1 && n == 3 {
                for i in row * WIDTH..(row + 1) * WIDTH {
                    gradient[i] = stream.uniform((1000 + i) as u32) - 0.5;
                }
            }
        }
        gradient
    }

    fn rate(n: u32) -> f64 {
        0.3 / (1.0 + 0.01 * f64::from(n))
    }

    struct TableRun {
        table: EmbeddingTable,
        weights: Vec<f32>,
        momentum: Vec<f32>,
    }

    impl TableRun {
        fn new(momentum: f64) -> Self {
            Self {
                table: EmbeddingTable::new(5..5 + ROWS * WIDTH, WIDTH),
                weights: (0..ROWS * WIDTH).map(|i| (i as f32 * 0.7).sin()).collect(),
                momentum: vec![0.0; if momentum == 0.0 { 0 } else { ROWS * WIDTH }],
            }
        }

        fn update(&mut self, n: u32, step: &SgdStep) -> f64 {
            let mut gradient = gradient(n);
            let mut support = Support::nothing(5 + ROWS * WIDTH);
            let touched = |i: &usize| gradient[*i] != 0.0;
            (0..gradient.len()).filter(touched).for_each(|i| support.add(5 + i..6 + i));
            let (weights, momentum) = (&mut self.weights, &mut self.momentum);
            let squares = self.table.update(weights, &mut gradient, &support, momentum, step);
            assert!(is_zero(&gradient));
            squares
        }

        fn catch_up(&mut self, rows: Option<&[u32]>) -> &[f32] {
            self.table.catch_up(&mut self.weights, &self.momentum, rows);
            &self.weights
        }
    }

    /// Against the rule itself, in f64: errors are those of f32 at the largest values on the way.
    #[test]
    fn waiting_rows_come_to_what_updating_all_of_them_gives() {
        for (momentum, nesterov) in [(0.9, false), (0.9, true), (0.99, false), (0.0, false)] {
            let mut run = TableRun::new(momentum);
            let start = run.weights.iter().map(|weight| f64::from(*weight));
            let mut exact: Vec<[f64; 3]> =
                start.map(|weight| [weight, 0.0, weight.abs()]).collect();
            for n in 0..2 * WINDOW as u32 + 70 {
                let step = step(rate(n), momentum, nesterov, n == 0);
                let squares = run.update(n, &step);
                assert!((squares.sqrt() - super::super::norm(&gradient(n))).abs() < 1e-6);
                for ([weight, velocity, most], g) in exact.iter_mut().zip(gradient(n)) {
                    *velocity = momentum * *velocity + f64::from(g);
                    let ahead = f64::from(g) + momentum * *velocity;
                    *weight -= step.lr * if nesterov { ahead } else { *velocity };
                    *most = most.max(weight.abs());
                }
                let some = [n % ROWS as u32, 3, 1];
                let shown = run.catch_up(if n % 40 == 0 { None } else { Some(&some) });
                let rows = (0..ROWS).filter(|row| n % 40 == 0 || some.contains(&(*row as u32)));
                for i in rows.flat_map(|row| row * WIDTH..(row + 1) * WIDTH) {
                    let ([weight, _, most], shown) = (exact[i], f64::from(shown[i]));
                    let gap = (shown - weight).abs();
                    assert!(gap <= 2e-6 * most, "update {n}, element {i}: {shown} {weight}");
                }
            }
        }
    }

    #[test]
    fn who_reads_what_changes_no_later_bit() {
        let (mut quiet, mut read) = (TableRun::new(0.9), TableRun::new(0.9));
        for n in 0..WINDOW as u32 + 100 {
            let step = step(rate(n), 0.9, true, n == 0);
            quiet.update(n, &step);
            read.update(n, &step);
            read.catch_up(Some(&[n % 11, n % ROWS as u32, n % 11, 1_000_000]));
            if n % 60 == 5 {
                read.catch_up(None);
            }
        }
        assert_eq!(quiet.catch_up(None), read.catch_up(None));
        assert_eq!(quiet.momentum, read.momentum);
        assert_eq!(quiet.table.save(&quiet.weights), read.table.save(&read.weights));
    }

    #[test]
    fn what_waits_goes_on_from_a_checkpoint_bit_for_bit() {
        let mut whole = TableRun::new(0.9);
        let mut resumed = None;
        for n in 0..WINDOW as u32 + 40 {
            let step = step(rate(n), 0.9, false, n == 0);
            whole.update(n, &step);
            if let Some(run) = &mut resumed {
                TableRun::update(run, n, &step);
            }
            if n == 133 {
                let mut run = TableRun::new(0.9);
                run.weights.copy_from_slice(whole.catch_up(None));
                run.momentum.copy_from_slice(&whole.momentum);
                let waiting = whole.table.save(&whole.weights).unwrap();
                run.table.restore(&waiting, &mut run.weights).unwrap();
                assert_eq!(run.table.save(&run.weights), Some(waiting));
                resumed = Some(run);
            }
        }
        let mut resumed = resumed.unwrap();
        assert_eq!(whole.catch_up(None), resumed.catch_up(None));
        assert_eq!(whole.momentum, resumed.momentum);
    }

    #[test]
    fn what_is_of_another_table_is_refused() {
        let mut run = TableRun::new(0.9);
        for n in 0..9 {
            run.update(n, &step(rate(n), 0.9, false, n == 0));
        }
        let good = run.table.save(&run.weights).unwrap();
        let changed = |name: &str, length, place: usize, value| {
            let mut values = good.u64s(name, length).unwrap().to_vec();
            values[place] = value;
            Entry::U64(values)
        };
        let zeros = |length| Entry::U64(vec![0; length]);
        for spoilt in [
            vec![("since", zeros(3))],
            vec![("weights", Entry::F32(vec![0.0; 3]))],
            vec![("weights", zeros(ROWS * WIDTH))],
            vec![("left", zeros(3))],
            vec![("drift", zeros(0)), ("left", zeros(0))],
            vec![("drift", zeros(WINDOW + 1)), ("left", zeros(WINDOW + 1))],
            vec![("since", changed("since", ROWS, 2, 10))],
            vec![("drift", changed("drift", 10, 1, f64::NAN.to_bits()))],
        ] {
            let mut waiting = good.clone();
            spoilt.into_iter().for_each(|(name, entry)| waiting.insert(name, entry));
            assert!(run.table.restore(&waiting, &mut run.weights).is_err());
        }
        run.table.restore(&good, &mut run.weights).unwrap();
    }
}
