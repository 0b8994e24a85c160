//! Where each token of a batch stands in the LSTM's order of work.

use std::ops::Range;

use crate::PAD;

/// The tokens of a batch, time step after time step, without the padding at the texts' ends.
///
/// Within every step the texts keep one order, by their last token, latest first: the texts of a
/// step are the first ones of the step before it. Padding between the tokens of a text keeps its
/// row and is marked.
#[derive(Debug)]
pub(super) struct TimeSteps {
    /// Positions per text, padding included.
    length: usize,
    /// The text of each row of a step.
    texts: Vec<usize>,
    /// `1 / number of tokens` of each row's text, 0 without any.
    weights: Vec<f32>,
    /// The first row of each step, and the end of the last.
    starts: Vec<usize>,
    /// Whether each row of each step is padding; empty when none is.
    holes: Vec<bool>,
}

impl TimeSteps {
    /// The steps for `ids [B, length]`.
    pub(super) fn new(ids: &[u32], length: usize) -> Self {
        let text = |text: usize| &ids[text * length..][..length];
        let batch = ids.len().checked_div(length).unwrap_or(0);
        let ends: Vec<usize> = (0..batch)
            .map(|at| text(at).iter().rposition(|&id| id != PAD).map_or(0, |last| last + 1))
            .collect();
        let mut texts: Vec<usize> = (0..batch).collect();
        texts.sort_by_key(|&text| std::cmp::Reverse(ends[text]));
        let tokens = |at: usize| text(at).iter().filter(|&&id| id != PAD).count();
        let weights =
            texts.iter().map(|&at| if tokens(at) == 0 { 0.0 } else { 1.0 / tokens(at) as f32 });
        let weights = weights.collect();
        let (mut starts, mut holes) = (vec![0], Vec::new());
        for step in 0..texts.first().map_or(0, |&longest| ends[longest]) {
            let running = texts.iter().take_while(|&&text| ends[text] > step);
            holes.extend(running.map(|&at| text(at)[step] == PAD));
            starts.push(holes.len());
        }
        if !holes.contains(&true) {
            holes.clear();
        }
        Self { length, texts, weights, starts, holes }
    }

    /// Time steps with a token in them.
    pub(super) fn count(&self) -> usize {
        self.starts.len() - 1
    }

    /// Rows of all steps together.
    pub(super) fn rows(&self) -> usize {
        self.starts[self.count()]
    }

    /// The rows of one step; none past either end.
    pub(super) fn step(&self, step: Option<usize>) -> Range<usize> {
        match step {
            Some(step) if step < self.count() => self.starts[step]..self.starts[step + 1],
            _ => 0..0,
        }
    }

    /// The text of each row of a step; a step has as many of the first as it has rows.
    pub(super) fn texts(&self) -> &[usize] {
        &self.texts
    }

    /// `1 / number of tokens` of a row's text, 0 without any.
    pub(super) fn weight(&self, row: usize) -> f32 {
        self.weights[row]
    }

    /// Whether a row of all steps is padding.
    #[inline(always)]
    pub(super) fn is_hole(&self, row: usize) -> bool {
        self.holes.get(row).copied().unwrap_or(false)
    }

    /// For every row of a step, where its token stands among `[B, L]`.
    pub(super) fn places(&self, step: usize) -> impl Iterator<Item = usize> {
        let texts = self.texts.iter().take(self.step(Some(step)).len());
        texts.map(move |text| text * self.length + step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_hold_the_texts_that_still_run() {
        // Lengths 1, 3 with a hole, 0 and 2.
        let ids = [5, 0, 0, 0, 6, 0, 7, 0, 0, 0, 0, 0, 8, 9, 0, 0];
        let steps = TimeSteps::new(&ids, 4);
        assert_eq!(steps.texts(), [1, 3, 0, 2]);
        assert_eq!(steps.count(), 3);
        let rows: Vec<_> = (0..3).map(|step| steps.step(Some(step))).collect();
        assert_eq!(rows, [0..3, 3..5, 5..6]);
        assert_eq!((steps.step(None), steps.step(Some(3))), (0..0, 0..0));
        assert_eq!((0..6).filter(|&row| steps.is_hole(row)).collect::<Vec<_>>(), [3]);
        assert_eq!([0, 1, 2, 3].map(|row| steps.weight(row)), [0.5, 0.5, 1.0, 0.0]);
        let tokens = (0..3).map(|step| steps.places(step).map(|at| ids[at]).collect());
        assert_eq!(tokens.collect::<Vec<Vec<u32>>>(), [vec![6, 8, 5], vec![0, 9], vec![7]]);
    }

    #[test]
    fn nothing_but_padding_has_no_steps() {
        for (ids, length) in [(&[0; 6][..], 3), (&[], 3), (&[], 0)] {
            let steps = TimeSteps::new(ids, length);
            assert_eq!((steps.count(), steps.rows()), (0, 0));
        }
    }
}
