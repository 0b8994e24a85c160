//! One direction of the LSTM: its steps forward, and back through time.

use std::ops::Range;

use super::time_steps::TimeSteps;
use crate::kernels::activation::{sigmoid, tanh};
use crate::kernels::memory::{Scratch, Target};
use crate::kernels::operand::Borrowed;
use crate::kernels::projection::{ColumnSums, Panels, weight_gradient};
use crate::kernels::simd::{Isa, Kernel, Simd};

/// Rows whose gradients of the gates are held at once: the gradient of the weights takes them while they are in the cache.
const STRETCH: usize = 256;

/// One direction's parameters and the order of its steps.
pub(super) struct Direction<'a> {
    isa: Isa,
    steps: &'a TimeSteps,
    dim: usize,
    hidden: usize,
    reverse: bool,
    /// weight_ih and weight_hh beside each other, `[4H, D + H]`, gates input, forget, cell, output.
    weight: Scratch,
    /// The sum of both, `[4H]`.
    bias: Vec<f32>,
}

/// What every row of the steps keeps for the way back.
pub(super) struct States {
    /// The gates after their activations, `[rows, 4H]`.
    gates: Scratch,
    /// The input of each row, and the hidden state that it started from, `[rows, D + H]`.
    inputs: Scratch,
    /// The cell state each row started from, `[rows, H]`.
    cells: Scratch,
}

impl States {
    /// Those of so many rows, not written yet.
    pub(super) fn new(rows: usize, [dim, hidden]: [usize; 2]) -> Self {
        let [gates, inputs, cells] =
            [4 * hidden, dim + hidden, hidden].map(|width| Scratch::new(rows * width));
        Self { gates, inputs, cells }
    }
}

impl<'a> Direction<'a> {
    /// `parameters` are weight_ih, weight_hh, bias_ih and bias_hh.
    pub(super) fn new(
        isa: Isa,
        steps: &'a TimeSteps,
        dim: usize,
        hidden: usize,
        reverse: bool,
        parameters: &[Borrowed<f32>],
    ) -> Self {
        let [weight_ih, weight_hh, bias_ih, bias_hh]: [&[f32]; 4] =
            std::array::from_fn(|i| &*parameters[i]);
        let bias = bias_ih.iter().zip(bias_hh).map(|(a, b)| a + b).collect();
        let mut weight = Scratch::new(4 * hidden * (dim + hidden));
        let rows = weight_ih.chunks_exact(dim).zip(weight_hh.chunks_exact(hidden));
        for (row, (ih, hh)) in weight.chunks_exact_mut(dim + hidden).zip(rows) {
            row[..dim].copy_from_slice(ih);
            row[dim..].copy_from_slice(hh);
        }
        Self { isa, steps, dim, hidden, reverse, weight, bias }
    }

    /// Steps in the order of this direction, each with the one after it.
    fn order(&self) -> impl DoubleEndedIterator<Item = (usize, Option<usize>)> {
        let (steps, reverse) = (self.steps.count(), self.reverse);
        (0..steps).map(move |i| match reverse {
            false => (i, Some(i + 1)),
            true => (steps - 1 - i, (steps - 1 - i).checked_sub(1)),
        })
    }

    /// The steps from the last of this direction to its first, in stretches of at least [`STRETCH`] rows but for the last.
    fn stretches(&self) -> Vec<Vec<usize>> {
        let (mut stretches, mut rows) = (vec![Vec::new()], 0);
        for (step, _) in self.order().rev() {
            if rows >= STRETCH {
                stretches.push(Vec::new());
                rows = 0;
            }
            stretches.last_mut().expect("invariant: one is there").push(step);
            rows += self.steps.step(Some(step)).len();
        }
        stretches
    }

    /// Rows of a step that start from a state of the step before it; the others start from zero.
    fn carried(&self, step: usize) -> usize {
        let before = if self.reverse { Some(step + 1) } else { step.checked_sub(1) };
        self.steps.step(before).len().min(self.steps.step(Some(step)).len())
    }

    /// Runs all steps on `xs [B, L, D]`, fills `states` and adds the hidden states up in `sums [B, H]`. Each step's product is
    /// of its inputs and hidden states together: its gates are still in the cache when they are squashed.
    pub(super) fn forward(&self, xs: &[f32], states: &mut States, sums: &mut [f32]) {
        let (hidden, gates, inputs) = (self.hidden, 4 * self.hidden, self.dim + self.hidden);
        let weight = Panels::transposed(self.isa, &self.weight, inputs);
        for (step, next) in self.order() {
            let (rows, next) = (self.steps.step(Some(step)), self.steps.step(next));
            let gates_now = &mut states.gates[rows.start * gates..rows.end * gates];
            let inputs_now = &mut states.inputs[rows.start * inputs..rows.end * inputs];
            let places = self.steps.places(step).enumerate();
            for (row, (at, place)) in inputs_now.chunks_exact_mut(inputs).zip(places) {
                row[..self.dim].copy_from_slice(&xs[place * self.dim..][..self.dim]);
                if at >= self.carried(step) {
                    row[self.dim..].fill(0.0);
                }
            }
            weight.product(inputs_now, Target::Write(gates_now));
            let span = |rows: &Range<usize>| rows.start * hidden..rows.end * hidden;
            states.cells[span(&rows)][self.carried(step) * hidden..].fill(0.0);
            let cells = states.cells.get_disjoint_mut([span(&rows), span(&next)]);
            let [cells, next_cells] = cells.expect("invariant: steps have rows of their own");
            self.isa.run(Gates {
                of: self,
                first_row: rows.start,
                gates: gates_now,
                cells,
                next_cells,
                next_inputs: &mut states.inputs[next.start * inputs..next.end * inputs],
                sums,
            });
        }
    }

    /// Goes back through all steps: writes the tokens of `dx [B, L, D]`, from `dy [B, H]`, which every hidden state of a row
    /// receives, and adds to `dparameters`: the gradient of [`weight`](Self::weight), and then of [`bias`](Self::bias).
    pub(super) fn backward(
        &self,
        states: &States,
        dy: &[f32],
        dx: &mut [f32],
        dparameters: &mut [f32],
    ) {
        let (dim, hidden, gates) = (self.dim, self.hidden, 4 * self.hidden);
        let inputs = dim + hidden;
        let weight = Panels::new(self.isa, &self.weight, inputs);
        let mut dhidden = Scratch::zeroed(dy.len());
        let mut dcells = Scratch::zeroed(dy.len());
        let mut dinputs = Scratch::new(dy.len() / hidden * inputs);
        let (dweight, dbias) = dparameters.split_at_mut(gates * inputs);
        for stretch in self.stretches() {
            let spans = || stretch.iter().map(|step| self.steps.step(Some(*step)));
            let first = spans().map(|rows| rows.start).min().unwrap_or_default();
            let end = spans().map(|rows| rows.end).max().unwrap_or_default();
            let mut dgates = Scratch::new((end - first) * gates);
            for step in stretch {
                let rows = self.steps.step(Some(step));
                let dgates = &mut dgates[(rows.start - first) * gates..(rows.end - first) * gates];
                self.isa.run(GatesBackward {
                    of: self,
                    first_row: rows.start,
                    gates: &states.gates[rows.start * gates..rows.end * gates],
                    cells: &states.cells[rows.start * hidden..rows.end * hidden],
                    dy,
                    dhidden: &mut dhidden,
                    dcells: &mut dcells,
                    dgates,
                });
                let dinputs = &mut dinputs[..rows.len() * inputs];
                weight.product(dgates, Target::Write(dinputs));
                for (place, row) in self.steps.places(step).zip(dinputs.chunks_exact(inputs)) {
                    dx[place * dim..][..dim].copy_from_slice(&row[..dim]);
                }
                let carried = dinputs.chunks_exact(inputs).take(self.carried(step));
                for (to, row) in dhidden.chunks_exact_mut(hidden).zip(carried) {
                    to.copy_from_slice(&row[dim..]);
                }
            }
            if dgates.is_empty() {
                continue;
            }
            let xs = &states.inputs[first * inputs..end * inputs];
            weight_gradient(self.isa, &dgates, xs, inputs, Target::Add(dweight));
            self.isa.run(ColumnSums { rows: &dgates, sums: dbias });
        }
    }
}

/// One step: gates and states from the sums of the projections. The simple form, of each row and hidden value:
/// `i, f, o = σ(…); g = tanh(…); cell = f · held + i · g; hidden = o · tanh(cell)`. Gate by gate each loop is vectors.
struct Gates<'a> {
    of: &'a Direction<'a>,
    first_row: usize,
    /// In: the projections without bias; out: the gates. `[rows, 4H]`.
    gates: &'a mut [f32],
    /// The cell states the step starts from, `[rows, H]`.
    cells: &'a [f32],
    /// Where the next step starts from, as many of the first rows as it has.
    next_cells: &'a mut [f32],
    /// Its rows' inputs, whose hidden states are written.
    next_inputs: &'a mut [f32],
    sums: &'a mut [f32],
}

impl Kernel for Gates<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let (d, h) = (self.of.dim, self.of.hidden);
        let (mut cell, mut state) = (vec![0.0; h], vec![0.0; h]);
        let next_inputs = self.next_inputs.chunks_exact_mut(d + h);
        let mut next_rows = self.next_cells.chunks_exact_mut(h).zip(next_inputs);
        let rows = self.gates.chunks_exact_mut(4 * h).zip(self.cells.chunks_exact(h));
        for (row, ((gates, held), sums)) in rows.zip(self.sums.chunks_exact_mut(h)).enumerate() {
            let biases = self.of.bias.chunks_exact(h);
            for (which, (gate, bias)) in gates.chunks_exact_mut(h).zip(biases).enumerate() {
                if which == 2 {
                    for (x, bias) in gate.iter_mut().zip(bias) {
                        *x = tanh(*x + bias);
                    }
                } else {
                    for (x, bias) in gate.iter_mut().zip(bias) {
                        *x = sigmoid(*x + bias);
                    }
                }
            }
            if self.of.steps.is_hole(self.first_row + row) {
                cell.fill(0.0);
                state.fill(0.0);
            } else {
                next_cell(h, gates, held, &mut cell);
                let output = &gates[3 * h..][..h];
                for ((state, c), o) in state.iter_mut().zip(&cell).zip(output) {
                    *state = o * tanh(*c);
                }
                for (sum, state) in sums.iter_mut().zip(&state) {
                    *sum += state;
                }
            }
            if let Some((next_cell, next_inputs)) = next_rows.next() {
                next_cell.copy_from_slice(&cell);
                next_inputs[d..].copy_from_slice(&state);
            }
        }
    }
}

/// `forget · held + input · candidate` for one row of gates.
#[inline(always)]
fn next_cell(h: usize, gates: &[f32], held: &[f32], cell: &mut [f32]) {
    let (input, forget, candidate) = (&gates[..h], &gates[h..][..h], &gates[2 * h..][..h]);
    let states = cell.iter_mut().zip(held);
    for ((cell, held), ((i, f), g)) in states.zip(input.iter().zip(forget).zip(candidate)) {
        *cell = f * held + i * g;
    }
}

/// One step back: the gradients of the projections from those of the states. The simple form, of one element of a row, where
/// `t = tanh(f · held + i · g)` and `d = dy + dhidden`: `do = d · t · o(1 − o)`, `dc = dcell + d · o(1 − t²)`,
/// `di = dc · g · i(1 − i)`, `df = dc · held · f(1 − f)`, `dg = dc · i(1 − g²)`, and `dc · f` is passed on. Here each of these
/// runs along a row by itself, with a vector's lanes at once.
struct GatesBackward<'a> {
    of: &'a Direction<'a>,
    first_row: usize,
    /// `[rows, 4H]`.
    gates: &'a [f32],
    /// The cell states the step started from, `[rows, H]`.
    cells: &'a [f32],
    /// What each hidden state receives from outside, `[B, H]`.
    dy: &'a [f32],
    /// What it receives from the step after it.
    dhidden: &'a [f32],
    /// In: what each cell state receives from the step after it; out: what it passes on.
    dcells: &'a mut [f32],
    /// `[rows, 4H]`.
    dgates: &'a mut [f32],
}

/// Fetches the second row behind this one into the cache.
#[inline(always)]
fn fetch<S: Simd>(s: S, row: &[f32]) {
    /// Values of a line of the cache.
    const LINE: usize = 16;
    let second = row.as_ptr().wrapping_add(2 * row.len());
    (0..row.len()).step_by(LINE).for_each(|line| s.prefetch(second.wrapping_add(line)));
}

impl Kernel for GatesBackward<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let h = self.of.hidden;
        let (mut squashed, mut dstate) = (vec![0.0; h], vec![0.0; h]);
        let rows = self.gates.chunks_exact(4 * h).zip(self.dgates.chunks_exact_mut(4 * h));
        let received = self.dy.chunks_exact(h).zip(self.dhidden.chunks_exact(h));
        let cells = self.cells.chunks_exact(h).zip(self.dcells.chunks_exact_mut(h));
        for (row, ((gates, dgates), ((dy, dhidden), (held, dcell)))) in
            rows.zip(received.zip(cells)).enumerate()
        {
            // What the forward pass left is in no cache: it comes while other rows are computed.
            fetch(s, gates);
            fetch(s, held);
            if self.of.steps.is_hole(self.first_row + row) {
                dgates.fill(0.0);
                dcell.fill(0.0);
                continue;
            }
            next_cell(h, gates, held, &mut squashed);
            for x in squashed.iter_mut() {
                *x = tanh(*x);
            }
            for ((sum, a), b) in dstate.iter_mut().zip(dy).zip(dhidden) {
                *sum = a + b;
            }
            let (input, rest) = gates.split_at(h);
            let (forget, rest) = rest.split_at(h);
            let (candidate, output) = rest.split_at(h);
            let (dinput, rest) = dgates.split_at_mut(h);
            let (dforget, rest) = rest.split_at_mut(h);
            let (dcandidate, doutput) = rest.split_at_mut(h);
            // Of `state = output · tanh(cell)`.
            for j in 0..h {
                doutput[j] = dstate[j] * squashed[j] * output[j] * (1.0 - output[j]);
            }
            for j in 0..h {
                dcell[j] += dstate[j] * output[j] * (1.0 - squashed[j] * squashed[j]);
            }
            // Of `cell = forget · held + input · candidate`.
            for j in 0..h {
                dinput[j] = dcell[j] * candidate[j] * input[j] * (1.0 - input[j]);
            }
            for j in 0..h {
                dforget[j] = dcell[j] * held[j] * forget[j] * (1.0 - forget[j]);
            }
            for j in 0..h {
                dcandidate[j] = dcell[j] * input[j] * (1.0 - candidate[j] * candidate[j]);
            }
            for (dcell, f) in dcell.iter_mut().zip(forget) {
                *dcell *= f;
            }
        }
    }
}
