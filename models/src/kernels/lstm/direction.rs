//! One direction of the LSTM: its steps forward, and back through time.

use super::time_steps::TimeSteps;
use crate::kernels::activation::{sigmoid, tanh};
use crate::kernels::memory::{Scratch, Target};
use crate::kernels::projection::{ColumnSums, Panels, weight_gradient};
use crate::kernels::simd::{Isa, Kernel, Simd};

/// One direction's parameters and the order of its steps.
pub(super) struct Direction<'a> {
    isa: Isa,
    steps: &'a TimeSteps,
    dim: usize,
    hidden: usize,
    reverse: bool,
    /// `[4H, D]`, gates input, forget, cell, output.
    weight_ih: &'a [f32],
    /// `[4H, H]`.
    weight_hh: &'a [f32],
    /// The sum of both, `[4H]`.
    bias: Vec<f32>,
}

/// What every row of the steps keeps for the way back.
pub(super) struct States {
    /// The gates after their activations, `[rows, 4H]`.
    gates: Scratch,
    /// The hidden state each row started from, `[rows, H]`.
    hidden: Scratch,
    /// The cell state each row started from, `[rows, H]`.
    cells: Scratch,
}

impl States {
    pub(super) fn new(rows: usize, hidden: usize) -> Self {
        Self {
            gates: Scratch::new(rows * 4 * hidden),
            hidden: Scratch::zeroed(rows * hidden),
            cells: Scratch::zeroed(rows * hidden),
        }
    }
}

impl<'a> Direction<'a> {
    /// `parameters` are weight_ih, weight_hh, bias_ih and bias_hh behind one another.
    pub(super) fn new(
        isa: Isa,
        steps: &'a TimeSteps,
        dim: usize,
        hidden: usize,
        reverse: bool,
        parameters: &'a [f32],
    ) -> Self {
        let gates = 4 * hidden;
        let (weight_ih, rest) = parameters.split_at(gates * dim);
        let (weight_hh, biases) = rest.split_at(gates * hidden);
        let (bias_ih, bias_hh) = biases.split_at(gates);
        let bias = bias_ih.iter().zip(bias_hh).map(|(a, b)| a + b).collect();
        Self { isa, steps, dim, hidden, reverse, weight_ih, weight_hh, bias }
    }

    /// Steps in the order of this direction, each with the one after it.
    fn order(&self) -> impl DoubleEndedIterator<Item = (usize, Option<usize>)> {
        let (steps, reverse) = (self.steps.count(), self.reverse);
        (0..steps).map(move |i| match reverse {
            false => (i, Some(i + 1)),
            true => (steps - 1 - i, (steps - 1 - i).checked_sub(1)),
        })
    }

    /// Rows of a step that start from a state of the step before it; the others start from zero.
    fn carried(&self, step: usize) -> usize {
        let before = if self.reverse { Some(step + 1) } else { step.checked_sub(1) };
        self.steps.step(before).len().min(self.steps.step(Some(step)).len())
    }

    /// Runs all steps on `xs [rows, D]`, fills `states` (whose hidden and cell states are zero)
    /// and adds the hidden states up in `sums [B, H]`.
    pub(super) fn forward(&self, xs: &[f32], states: &mut States, sums: &mut [f32]) {
        let (hidden, gates) = (self.hidden, 4 * self.hidden);
        let weight_ih = Panels::transposed(self.isa, self.weight_ih, self.dim);
        weight_ih.product(xs, Target::Write(&mut states.gates));
        let weight_hh = Panels::transposed(self.isa, self.weight_hh, hidden);
        for (step, next) in self.order() {
            let (rows, next) = (self.steps.step(Some(step)), self.steps.step(next));
            let gates_now = &mut states.gates[rows.start * gates..rows.end * gates];
            let carried = &states.hidden[rows.start * hidden..][..self.carried(step) * hidden];
            weight_hh.product(carried, Target::Add(gates_now));
            let span = |rows: &std::ops::Range<usize>| rows.start * hidden..rows.end * hidden;
            let (cells, next_cells) = two(&mut states.cells, span(&rows), span(&next));
            self.isa.run(Gates {
                of: self,
                first_row: rows.start,
                gates: gates_now,
                cells,
                next_cells,
                next_hidden: &mut states.hidden[span(&next)],
                sums,
            });
        }
    }

    /// Goes back through all steps: writes `dx [rows, D]` and adds to `dw`, laid out as the
    /// parameters, from `dy [B, H]`, which every hidden state of a row receives.
    pub(super) fn backward(
        &self,
        xs: &[f32],
        states: &States,
        dy: &[f32],
        dx: &mut [f32],
        dw: &mut [f32],
    ) {
        let (hidden, gates, rows) = (self.hidden, 4 * self.hidden, self.steps.rows());
        if rows == 0 {
            return;
        }
        let weight_hh = Panels::new(self.isa, self.weight_hh, hidden);
        let mut dgates = Scratch::new(rows * gates);
        let mut dhidden = Scratch::zeroed(dy.len());
        let mut dcells = Scratch::zeroed(dy.len());
        for (step, _) in self.order().rev() {
            let rows = self.steps.step(Some(step));
            let dgates = &mut dgates[rows.start * gates..rows.end * gates];
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
            let carried = &dgates[..self.carried(step) * gates];
            weight_hh.product(carried, Target::Write(&mut dhidden));
        }
        let weight_ih = Panels::new(self.isa, self.weight_ih, self.dim);
        weight_ih.product(&dgates, Target::Write(dx));
        let (dw_ih, rest) = dw.split_at_mut(gates * self.dim);
        let (dw_hh, db) = rest.split_at_mut(gates * hidden);
        for (xs, inputs, dw) in [(xs, self.dim, dw_ih), (&states.hidden, hidden, dw_hh)] {
            weight_gradient(self.isa, &dgates, xs, inputs, Target::Add(dw));
        }
        let (db_ih, db_hh) = db.split_at_mut(gates);
        self.isa.run(ColumnSums { rows: &dgates, sums: db_ih });
        db_hh.copy_from_slice(db_ih);
    }
}

/// Two ranges of one slice that do not overlap, in either order.
fn two(
    xs: &mut [f32],
    a: std::ops::Range<usize>,
    b: std::ops::Range<usize>,
) -> (&[f32], &mut [f32]) {
    if b.is_empty() {
        return (&xs[a], &mut []);
    }
    if a.end <= b.start {
        let (left, right) = xs.split_at_mut(b.start);
        (&left[a], &mut right[..b.len()])
    } else {
        let (left, right) = xs.split_at_mut(a.start);
        (&right[..a.len()], &mut left[b])
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
    next_hidden: &'a mut [f32],
    sums: &'a mut [f32],
}

impl Kernel for Gates<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let h = self.of.hidden;
        let (mut cell, mut state) = (vec![0.0; h], vec![0.0; h]);
        let mut next_rows =
            self.next_cells.chunks_exact_mut(h).zip(self.next_hidden.chunks_exact_mut(h));
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
            if let Some((next_cell, next_hidden)) = next_rows.next() {
                next_cell.copy_from_slice(&cell);
                next_hidden.copy_from_slice(&state);
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

/// One step back: the gradients of the projections from those of the states.
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

impl Kernel for GatesBackward<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let h = self.of.hidden;
        let (mut squashed, mut dstate) = (vec![0.0; h], vec![0.0; h]);
        let rows = self.gates.chunks_exact(4 * h).zip(self.dgates.chunks_exact_mut(4 * h));
        let received = self.dy.chunks_exact(h).zip(self.dhidden.chunks_exact(h));
        let cells = self.cells.chunks_exact(h).zip(self.dcells.chunks_exact_mut(h));
        for (row, ((gates, dgates), ((dy, dhidden), (held, dcell)))) in
            rows.zip(received.zip(cells)).enumerate()
        {
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
