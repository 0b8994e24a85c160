//! Where the tokens of a batch of texts lie once its padding is left out.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{Result, Tensor, bail};

use crate::PAD;

/// The tokens of a batch of texts as *packed rows*: text after text, each in its order, without padding. What works on
/// each token alone then works on `[rows, dim]` and spends nothing on padding. Cheap to clone.
///
/// Padding may stand anywhere in a text. A batch of nothing but padding keeps its first position as a row of no weight,
/// so that every operation has something to compute on.
#[derive(Clone, Debug)]
pub struct Packing(Arc<Packed>);

#[derive(Debug)]
struct Packed {
    length: usize,
    /// The token id of each row.
    ids: Vec<u32>,
    /// Where each row stands among `[B, L]`.
    places: Vec<usize>,
    /// The first row of each text, and the end of the last.
    starts: Vec<usize>,
    /// `1 / number of tokens` of each text, 0 without any.
    weights: Vec<f32>,
}

impl Packing {
    /// The packing of `ids u32 [B, L]`.
    ///
    /// # Errors
    /// Ids that are not `u32 [B, L]`, or none.
    pub fn new(ids: &Tensor) -> Result<Self> {
        let (tokens, length) = tokens(ids)?;
        Ok(Self::packed(&tokens, length, |id| id != PAD))
    }

    /// The packing of pieces of a text to continue, `ids u32 [B, L]`, of which no id is padding.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn whole(ids: &Tensor) -> Result<Self> {
        let (tokens, length) = tokens(ids)?;
        Ok(Self::packed(&tokens, length, |_| true))
    }

    /// The packing of those of the `tokens`, texts of `length` each, that `holds`.
    fn packed(tokens: &[u32], length: usize, holds: fn(u32) -> bool) -> Self {
        let (mut places, mut starts, mut weights) = (Vec::new(), vec![0], Vec::new());
        for (text, tokens) in tokens.chunks_exact(length).enumerate() {
            let held = (0..length).filter(|&position| holds(tokens[position]));
            places.extend(held.map(|position| text * length + position));
            let count = places.len() - starts[text];
            weights.push(if count == 0 { 0.0 } else { 1.0 / count as f32 });
            starts.push(places.len());
        }
        if places.is_empty() {
            places.push(0);
            starts[1..].fill(1);
        }
        let ids = places.iter().map(|&place| tokens[place]).collect();
        Self(Arc::new(Packed { length, ids, places, starts, weights }))
    }

    /// Packed rows, at least one.
    pub fn rows(&self) -> usize {
        self.0.places.len()
    }

    /// Texts.
    pub fn batch(&self) -> usize {
        self.0.weights.len()
    }

    /// Positions of a text, padding included.
    pub fn length(&self) -> usize {
        self.0.length
    }

    /// The token id of each row.
    pub(crate) fn ids(&self) -> &[u32] {
        &self.0.ids
    }

    /// Where each row stands among `[B, L]`.
    pub(crate) fn places(&self) -> &[usize] {
        &self.0.places
    }

    /// The position of each row in its text.
    pub(crate) fn positions(&self) -> impl Iterator<Item = usize> {
        self.0.places.iter().map(|place| place % self.0.length)
    }

    /// The first row of each text, and the end of the last.
    pub(crate) fn starts(&self) -> &[usize] {
        &self.0.starts
    }

    /// The rows of each text with `1 / number of tokens`, 0 without any.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (Range<usize>, f32)> {
        let rows = self.0.starts.windows(2).map(|ends| ends[0]..ends[1]);
        rows.zip(self.0.weights.iter().copied())
    }
}

/// The elements of `ids u32 [B, L]`, and L.
fn tokens(ids: &Tensor) -> Result<(Vec<u32>, usize)> {
    let (batch, length) = ids.dims2()?;
    if batch == 0 || length == 0 {
        bail!("packing: ids are [{batch}, {length}]: there are no elements");
    }
    let tokens = ids.flatten_all()?.to_vec1::<u32>()?;
    // candle's count of elements wraps.
    if batch.checked_mul(length) != Some(tokens.len()) {
        bail!("packing: ids are [{batch}, {length}]: no memory has so many elements");
    }
    Ok((tokens, length))
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    fn packing(ids: &[u32], length: usize) -> Packing {
        let shape = (ids.len() / length, length);
        Packing::new(&Tensor::from_slice(ids, shape, &Device::Cpu).unwrap()).unwrap()
    }

    #[test]
    fn rows_are_the_tokens_in_their_order() {
        // Lengths 1, 3 with a hole, 0 and 2.
        let packing = packing(&[5, 0, 0, 0, 6, 0, 7, 8, 0, 0, 0, 0, 8, 9, 0, 0], 4);
        assert_eq!((packing.rows(), packing.batch(), packing.length()), (6, 4, 4));
        assert_eq!(packing.ids(), [5, 6, 7, 8, 8, 9]);
        assert_eq!(packing.places(), [0, 4, 6, 7, 12, 13]);
        assert_eq!(packing.positions().collect::<Vec<_>>(), [0, 0, 2, 3, 0, 1]);
        assert_eq!(packing.starts(), [0, 1, 4, 4, 6]);
        let texts: Vec<_> = packing.texts().collect();
        assert_eq!(texts, [(0..1, 1.0), (1..4, 1.0 / 3.0), (4..4, 0.0), (4..6, 0.5)]);
    }

    #[test]
    fn pieces_of_a_text_to_continue_have_no_padding() {
        let ids = Tensor::new(&[[0u32, 5], [0, 0]], &Device::Cpu).unwrap();
        let packing = Packing::whole(&ids).unwrap();
        assert_eq!((packing.ids(), packing.starts()), (&[0, 5, 0, 0][..], &[0, 2, 4][..]));
    }

    #[test]
    fn nothing_but_padding_keeps_a_row_of_no_weight() {
        let packing = packing(&[0; 6], 3);
        assert_eq!((packing.rows(), packing.ids()), (1, &[PAD][..]));
        assert_eq!(packing.texts().collect::<Vec<_>>(), [(0..1, 0.0), (1..1, 0.0)]);
    }

    #[test]
    fn ids_that_are_none_are_refused() {
        let none = Tensor::zeros((2, 0), candle_core::DType::U32, &Device::Cpu).unwrap();
        assert!(Packing::new(&none).unwrap_err().to_string().contains("no elements"));
    }
}
