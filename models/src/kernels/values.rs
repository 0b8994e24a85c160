//! What operations on feature maps hand to each other: values in memory, or values that whoever reads them computes.
//!
//! A map from element to element costs next to nothing beside writing its result to memory and reading it again. So a
//! batch norm hands over how its values are computed. Of the result the convolution that takes it computes the
//! [window](Values::window) it is about to transform, in the cache, and nobody ever has it whole; of the gradient the
//! first to read it [makes each part](Values::in_parts), where the gradient it comes from lies.

use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::element::{Element, Plain};
use super::memory::Scratch;
use super::parallel::each;

/// Elements of a span, about: what one thread computes at a time where all values are wanted.
const SPAN: usize = 128 << 10;

/// How values are computed. No bit of one depends on which others are computed with it.
///
/// Whatever a recipe reads is in memory before the values are made: jobs on several threads follow it, and one that
/// brought something into memory itself, as jobs again, could be handed one of its own kind while it waits for them, and
/// then wait for itself.
pub(crate) trait Compute<E>: Send + Sync + 'static {
    /// Writes the values of `range`, whole pixels, to `to`. If they are those of [`Values::mapped`], what they are the
    /// map of is there.
    fn compute(&self, range: Range<usize>, to: &mut [E]);
}

/// Values that several may hold; see the module.
pub(crate) struct Values<E: Plain = f32>(Arc<Shared<E>>);

impl<E: Plain> Clone for Values<E> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

struct Shared<E: Plain> {
    len: usize,
    /// All of them, once they have been written.
    memory: OnceLock<Scratch<E>>,
    /// How they are computed, unless they were in memory from the beginning.
    recipe: Option<Box<dyn Compute<E>>>,
    /// Elements of a pixel, of values that are computed.
    channels: usize,
    /// Whether they are a map of what lies where they will.
    mapped: bool,
    /// What they are a map of, until they take its place.
    raw: Mutex<Option<Scratch<E>>>,
}

impl<E: Plain> From<Scratch<E>> for Values<E> {
    fn from(memory: Scratch<E>) -> Self {
        let (len, raw) = (memory.len(), Mutex::new(None));
        let memory = memory.into();
        Self(Arc::new(Shared { len, memory, recipe: None, channels: 1, mapped: false, raw }))
    }
}

impl<E: Element> Values<E> {
    /// `len` values that are computed when they are read, so many to a pixel.
    pub(crate) fn computed(len: usize, channels: usize, recipe: impl Compute<E>) -> Self {
        Self::made(len, channels, recipe, None)
    }

    /// The map of `raw`, whose place it takes when it is read.
    pub(crate) fn mapped(raw: Scratch<E>, channels: usize, recipe: impl Compute<E>) -> Self {
        Self::made(raw.len(), channels, recipe, Some(raw))
    }

    fn made(len: usize, channels: usize, recipe: impl Compute<E>, raw: Option<Scratch<E>>) -> Self {
        let (recipe, mapped) = (Some(Box::new(recipe) as _), raw.is_some());
        let (memory, raw) = (OnceLock::new(), Mutex::new(raw));
        Self(Arc::new(Shared { len, memory, recipe, channels, mapped, raw }))
    }

    /// Elements.
    pub(crate) fn len(&self) -> usize {
        self.0.len
    }

    /// Whether they have been written.
    #[cfg(test)]
    pub(crate) fn in_memory(&self) -> bool {
        self.0.memory.get().is_some()
    }

    /// All of them in memory.
    pub(crate) fn whole(&self) -> &[E] {
        self.0.memory.get_or_init(|| self.0.write())
    }

    /// All of them in memory of one's own.
    pub(crate) fn into_memory(self) -> Scratch<E> {
        self.whole();
        match Arc::try_unwrap(self.0).map(|shared| shared.memory.into_inner()) {
            Ok(memory) => memory.expect("invariant: the whole was written"),
            Err(shared) => {
                let mut memory = Scratch::of(shared.len);
                memory.copy_from_slice(Self(shared).whole());
                memory
            }
        }
    }

    /// The same, to be lent to jobs that each take a [window](Self::window): of a map all values are in memory then.
    pub(crate) fn for_jobs(&self) -> &Self {
        if self.0.mapped {
            self.whole();
        }
        self
    }

    /// Those of `range`, whole pixels: computed for this one use, unless they are in memory or a map, which cannot be
    /// computed elsewhere than in its place.
    pub(crate) fn window(&self, range: Range<usize>) -> Window<'_, E> {
        if self.0.memory.get().is_some() || self.0.mapped {
            return Window::Memory(&self.whole()[range]);
        }
        let mut window = Scratch::of(range.len());
        self.0.recipe().compute(range, &mut window);
        Window::Computed(window)
    }

    /// Lends them in parts that end at `ends`, the last of them at the end, to one who makes every part; then all of a map
    /// are in memory, and what else is computed is computed once more for the next one.
    pub(crate) fn in_parts<R>(
        &self,
        ends: impl Iterator<Item = usize>,
        make: impl FnOnce(Vec<LentPart<E>>) -> R,
    ) -> R {
        let (shared, mut start, mut parts) = (&*self.0, 0, Vec::new());
        if shared.memory.get().is_some() || !shared.mapped {
            for end in ends {
                parts.push(LentPart::Window(self, start..end));
                start = end;
            }
            return make(parts);
        }
        let (recipe, mut memory) = (shared.recipe(), shared.place());
        let mut rest = &mut memory[..];
        for end in ends {
            let (part, behind) = rest.split_at_mut(end - start);
            parts.push(LentPart::Unmade(part, recipe, start..end));
            (rest, start) = (behind, end);
        }
        assert!(rest.is_empty(), "parts end before the values do");
        let result = make(parts);
        shared.memory.get_or_init(|| memory);
        result
    }
}

impl<E: Element> Shared<E> {
    /// How the values are computed.
    fn recipe(&self) -> &dyn Compute<E> {
        self.recipe.as_deref().expect("invariant: values not in memory are computed")
    }

    /// Where the values go.
    ///
    /// # Panics
    /// When they are a map whose place somebody has taken already, and not yet filled.
    fn place(&self) -> Scratch<E> {
        if !self.mapped {
            return Scratch::of(self.len);
        }
        let raw = self.raw.lock().unwrap_or_else(PoisonError::into_inner).take();
        raw.expect("invariant: what these values are a map of is read once")
    }

    fn write(&self) -> Scratch<E> {
        let (recipe, mut memory) = (self.recipe(), self.place());
        let span = (SPAN / self.channels).max(1) * self.channels;
        // From the last one to the first: what an operation that went forwards has written last is in the cache still.
        let spans = memory.chunks_mut(span).enumerate().rev().collect();
        each(spans, |(i, to): (usize, &mut [E])| {
            recipe.compute(i * span..i * span + to.len(), to);
        });
        memory
    }
}

/// A part of some values, lent by [`Values::in_parts`].
pub(crate) enum LentPart<'a, E: Plain> {
    /// A [window](Values::window) of these.
    Window(&'a Values<E>, Range<usize>),
    /// Where it goes, how it is computed, and which it is.
    Unmade(&'a mut [E], &'a dyn Compute<E>, Range<usize>),
}

impl<'a, E: Element> LentPart<'a, E> {
    /// The values.
    pub(crate) fn make(self) -> Window<'a, E> {
        match self {
            Self::Window(values, range) => values.window(range),
            Self::Unmade(part, recipe, range) => {
                recipe.compute(range, part);
                Window::Memory(part)
            }
        }
    }
}

/// Some values in a row.
pub(crate) enum Window<'a, E: Plain> {
    /// They were in memory.
    Memory(&'a [E]),
    /// They were computed to be here.
    Computed(Scratch<E>),
}

impl<E: Plain> Deref for Window<'_, E> {
    type Target = [E];
    fn deref(&self) -> &[E] {
        match self {
            Window::Memory(memory) => memory,
            Window::Computed(memory) => memory,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Twice the number of each element.
    struct Double;

    impl Compute<f32> for Double {
        fn compute(&self, range: Range<usize>, to: &mut [f32]) {
            to.iter_mut().zip(range).for_each(|(to, i)| *to = 2.0 * i as f32);
        }
    }

    fn doubles(range: Range<usize>) -> Vec<f32> {
        range.map(|i| 2.0 * i as f32).collect()
    }

    #[test]
    fn values_are_the_same_however_they_are_read() {
        const LEN: usize = 3 * SPAN;
        let values = Values::computed(LEN, 3, Double);
        assert_eq!(values.len(), LEN);
        assert!(matches!(values.window(3..9), Window::Computed(_)));
        assert_eq!(&*values.window(3..9), doubles(3..9));
        assert_eq!(values.whole(), doubles(0..LEN));
        assert!(matches!(values.window(3..9), Window::Memory(_)));
        assert_eq!(&*values.window(3..9), doubles(3..9));
        assert_eq!(&*values.clone().into_memory(), doubles(0..LEN));
        assert_eq!(&*values.into_memory(), doubles(0..LEN));
        assert_eq!(&*Values::computed(6, 3, Double).into_memory(), doubles(0..6));
    }

    /// Adds the number of each element.
    struct Count;

    impl Compute<f32> for Count {
        fn compute(&self, range: Range<usize>, to: &mut [f32]) {
            to.iter_mut().zip(range).for_each(|(to, i)| *to += i as f32);
        }
    }

    #[test]
    fn parts_are_made_where_the_raw_ones_lay() {
        let raw = || {
            let mut raw = Scratch::new(6);
            raw.fill(10.0);
            raw
        };
        let made = [10.0, 11.0, 12.0, 13.0, 14.0, 15.0];
        let values = Values::mapped(raw(), 2, Count);
        for _ in 0..2 {
            let parts = values.in_parts([4, 6].into_iter(), |parts| {
                parts.into_iter().map(|part| part.make().to_vec()).collect::<Vec<_>>()
            });
            assert_eq!(parts, [&made[..4], &made[4..]]);
        }
        assert_eq!(values.whole(), made);
        assert_eq!(&*Values::mapped(raw(), 2, Count).window(2..4), &made[2..4]);
        assert_eq!(&*Values::mapped(raw(), 2, Count).into_memory(), made);
    }

    #[test]
    fn a_map_is_not_computed_of_what_was_left_over() {
        let mut raw = Scratch::new(6);
        raw.fill(10.0);
        let values = Values::mapped(raw, 2, Count);
        let whole = values.for_jobs().window(0..6);
        assert!(matches!(whole, Window::Memory([10.0, 11.0, 12.0, 13.0, 14.0, 15.0])));

        // Between the taking of its place and the filling of it there is nothing to be read.
        let values = Values::mapped(Scratch::zeroed(6), 2, Count);
        values.in_parts([6].into_iter(), |_| {
            let window = || values.window(2..4).to_vec();
            let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(window));
            assert!(read.is_err(), "{read:?}");
        });
    }
}
