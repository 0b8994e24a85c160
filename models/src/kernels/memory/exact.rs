//! Scratch in place of the [pool](super): of exactly as many elements as are asked for, and fresh each time, so that a
//! sanitizer sees whatever is read or written beside it, or after it was given back.

use std::ops::{Deref, DerefMut};

/// A buffer of its own; what is read without having been written is NaN.
pub(crate) struct Scratch(Box<[f32]>);

impl Scratch {
    /// A buffer of `len` elements.
    pub(crate) fn new(len: usize) -> Self {
        Self(vec![f32::NAN; len].into())
    }

    /// A buffer of `len` zeros.
    pub(crate) fn zeroed(len: usize) -> Self {
        Self(vec![0.0; len].into())
    }
}

impl Deref for Scratch {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        &self.0
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [f32] {
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
        let scratch = std::hint::black_box(Scratch::zeroed(37));
        // SAFETY: none. The element behind the last one is read to see that this is noticed.
        let behind = unsafe { scratch.as_ptr().add(scratch.len()).read_volatile() };
        panic!("{behind} was read, and nobody noticed");
    }
}
