//! Memory of the kernels: buffers that a thread keeps between uses, and where a result goes.

#[cfg(feature = "exact-scratch")]
mod exact;
#[cfg(not(feature = "exact-scratch"))]
mod pooled;

use std::ops::Range;

#[cfg(feature = "exact-scratch")]
pub(crate) use exact::Scratch;
#[cfg(not(feature = "exact-scratch"))]
pub(crate) use pooled::Scratch;

use super::element::Element;

/// Where a result goes.
pub(crate) enum Target<'a, E = f32> {
    /// It replaces what is there.
    Write(&'a mut [E]),
    /// It is added to what is there.
    Add(&'a mut [E]),
}

impl<'a, E: Element> Target<'a, E> {
    /// The memory, and whether the result is added to it.
    pub(crate) fn parts(self) -> (&'a mut [E], bool) {
        match self {
            Target::Write(xs) => (xs, false),
            Target::Add(xs) => (xs, true),
        }
    }

    /// Elements.
    pub(crate) fn len(&self) -> usize {
        match self {
            Target::Write(xs) | Target::Add(xs) => xs.len(),
        }
    }

    /// The elements of `range`, borrowed from this borrow.
    pub(crate) fn range(&mut self, range: Range<usize>) -> Target<'_, E> {
        match self {
            Target::Write(xs) => Target::Write(&mut xs[range]),
            Target::Add(xs) => Target::Add(&mut xs[range]),
        }
    }

    /// The first `middle` elements and the others.
    pub(crate) fn split_at(self, middle: usize) -> (Self, Self) {
        let (xs, add) = self.parts();
        let (a, b) = xs.split_at_mut(middle);
        if add { (Target::Add(a), Target::Add(b)) } else { (Target::Write(a), Target::Write(b)) }
    }

    /// Consecutive chunks of `len` elements, the last one of what is left.
    pub(crate) fn chunks(self, len: usize) -> impl Iterator<Item = Self> {
        let (xs, add) = self.parts();
        xs.chunks_mut(len).map(move |xs| if add { Target::Add(xs) } else { Target::Write(xs) })
    }

    /// Takes `xs`, of the same length.
    pub(crate) fn take<A: Element>(&mut self, xs: &[A]) {
        assert_eq!(self.len(), xs.len());
        match self {
            Target::Write(to) => to.iter_mut().zip(xs).for_each(|(to, x)| *to = E::of(x.get())),
            Target::Add(to) => {
                to.iter_mut().zip(xs).for_each(|(to, x)| *to = E::of(to.get() + x.get()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_kept_to_the_last() {
        for len in [0, 1, 2, 31, 32, 33, 1001] {
            let mut bits = Scratch::<u16>::of(len);
            bits.iter_mut().enumerate().for_each(|(i, x)| *x = i as u16 ^ 0x7f80);
            assert_eq!(bits.len(), len);
            assert!(bits.iter().enumerate().all(|(i, x)| *x == i as u16 ^ 0x7f80));
        }
    }

    #[test]
    fn two_scratches_never_share_memory() {
        drop(Scratch::new(1000));
        let (mut a, mut b) = (Scratch::new(10), Scratch::new(10));
        a.fill(1.0);
        b.fill(2.0);
        assert!(a.iter().all(|x| *x == 1.0));
    }

    #[test]
    fn a_target_writes_or_adds_in_parts() {
        let mut xs = [1.0; 5];
        let (mut a, mut b) = Target::Add(&mut xs).split_at(2);
        a.take(&[1.0, 2.0]);
        b.range(1..3).take(&[3.0, 4.0]);
        assert_eq!(xs, [2.0, 3.0, 1.0, 4.0, 5.0]);
        let lengths: Vec<usize> =
            Target::Write(&mut xs).chunks(2).map(|chunk| chunk.len()).collect();
        assert_eq!(lengths, [2, 2, 1]);
        Target::Write(&mut xs).take(&[0.0; 5]);
        assert_eq!(xs, [0.0; 5]);
    }
}
