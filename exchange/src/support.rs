//! Where a gradient may have something: what is zero for sure need not be looked at.

use std::ops::Range;

/// Elements that one bit stands for.
pub(crate) const BLOCK: usize = 64;

/// A part of a flat gradient, in blocks of 64 elements, outside of which it is all zeros.
///
/// A batch of text touches few rows of an embedding table; looking for them in the whole table costs
/// more than everything that is done with them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Support {
    length: usize,
    words: Vec<u64>,
}

impl Support {
    /// Nothing of a gradient of `length` elements.
    pub fn nothing(length: usize) -> Self {
        Self { length, words: vec![0; length.div_ceil(BLOCK).div_ceil(64)] }
    }

    /// Elements of the gradient.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the gradient has no elements.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Makes it nothing.
    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Makes it everything.
    pub fn fill(&mut self) {
        self.add(0..self.length);
    }

    /// Whether it is everything.
    pub fn is_everything(&self) -> bool {
        let blocks: u32 = self.words.iter().map(|word| word.count_ones()).sum();
        blocks as usize == self.length.div_ceil(BLOCK)
    }

    /// Adds the blocks that these elements lie in.
    ///
    /// # Panics
    /// When they are not elements of the gradient.
    pub fn add(&mut self, elements: Range<usize>) {
        assert!(elements.end <= self.length, "{elements:?} of {}", self.length);
        if elements.is_empty() {
            return;
        }
        masks(elements).for_each(|(word, mask)| self.words[word] |= mask);
    }

    /// Adds all of another part of the same gradient.
    pub(crate) fn join(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, more)| *word |= more);
    }

    /// Whether any of these elements lies in it.
    ///
    /// # Panics
    /// As [`add`](Self::add).
    #[inline]
    pub fn meets(&self, elements: Range<usize>) -> bool {
        assert!(elements.end <= self.length, "{elements:?} of {}", self.length);
        !elements.is_empty() && masks(elements).any(|(word, mask)| self.words[word] & mask != 0)
    }

    /// A bit for each block, from the lowest.
    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }
}

/// The words that have bits for these elements, of which there are some, and those bits.
#[inline]
fn masks(elements: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    let (first, last) = (elements.start / BLOCK, (elements.end - 1) / BLOCK);
    (first / 64..=last / 64).map(move |word| {
        let from = if word == first / 64 { first % 64 } else { 0 };
        let to = if word == last / 64 { last % 64 } else { 63 };
        (word, (u64::MAX << from) & (u64::MAX >> (63 - to)))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn blocks_are_in_it_that_have_an_element_that_was_added(
            length in 1usize..20_000, ends in prop::collection::vec((0usize..20_000, 0usize..300), 0..6),
        ) {
            let mut support = Support::nothing(length);
            let mut naive = vec![false; length.div_ceil(BLOCK)];
            for (start, size) in ends {
                let range = start.min(length)..(start + size).min(length);
                support.add(range.clone());
                range.for_each(|element| naive[element / BLOCK] = true);
            }
            for (number, within) in naive.iter().enumerate() {
                let block = number * BLOCK..length.min((number + 1) * BLOCK);
                prop_assert_eq!(support.meets(block.clone()), *within);
                prop_assert_eq!(support.meets(block.start..block.start + 1), *within);
                prop_assert!(!support.meets(block.start..block.start));
            }
            prop_assert_eq!(support.meets(0..length), naive.contains(&true));
            prop_assert_eq!(support.is_everything(), !naive.contains(&false));
            let mut joined = Support::nothing(length);
            joined.join(&support);
            prop_assert_eq!(&joined, &support);
            support.fill();
            prop_assert!(support.is_everything());
            joined.join(&support);
            prop_assert_eq!(&joined, &support);
            prop_assert!((0..length).all(|element| support.meets(element..element + 1)));
            support.clear();
            prop_assert_eq!(support, Support::nothing(length));
        }
    }
}
