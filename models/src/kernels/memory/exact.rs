//! Scratch in place of the [pool](super): of exactly as many elements as are asked for, and fresh each time, so that a
//! sanitizer sees whatever is read or written beside it, or after it was given back.

use std::ops::{Deref, DerefMut};

use crate::kernels::element::Plain;

/// A buffer of its own; what is read without having been written is NaN.
pub(crate) struct Scratch<E = f32>(Box<[E]>);

impl Scratch {
    /// A buffer of `len` values.
    pub(crate) fn new(len: usize) -> Self {
        Self::of(len)
    }
}

impl<E: Plain> Scratch<E> {
    /// A buffer of `len` elements.
    pub(crate) fn of(len: usize) -> Self {
        // SAFETY: any bits are a value, of at most four bytes.
        let unwritten: E = unsafe { std::mem::transmute_copy(&u32::MAX) };
        Self(vec![unwritten; len].into())
    }

    /// A buffer of `len` zeros.
    pub(crate) fn zeroed(len: usize) -> Self
    where
        E: Default,
    {
        Self(vec![E::default(); len].into())
    }
}

impl<E> Deref for Scratch<E> {
    type Target = [E];
    fn deref(&self) -> &[E] {
        &self.0
    }
}

impl<E> DerefMut for Scratch<E> {
    fn deref_mut(&mut self) -> &mut [E] {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `.ci/sanitize` runs this one and expects it to be stopped: so it is known that the sanitizer looks.
    #[test]
    #[ignore = "reads one element too many, for a sanitizer to see it"]
    fn one_element_too_many() {
        let scratch = std::hint::black_box(Scratch::<f32>::zeroed(37));
        // SAFETY: none. The element behind the last one is read to see that this is noticed.
        let behind = unsafe { scratch.as_ptr().add(scratch.len()).read_volatile() };
        panic!("{behind} was read, and nobody noticed");
    }
}
