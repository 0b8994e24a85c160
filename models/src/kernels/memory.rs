//! Memory of the kernels: scratch that a thread keeps between calls, and outputs that are written without being
//! zeroed first.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut, Range};

/// One cache line, so that scratch starts on one and full vectors never straddle two.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

thread_local! {
    static IDLE: RefCell<Vec<Vec<Line>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer of this thread, 64-byte aligned, its contents left over from earlier use; given back when dropped.
pub(crate) struct Scratch {
    lines: Vec<Line>,
    len: usize,
}

impl Scratch {
    /// A buffer of `len` elements: the smallest idle one that is large enough, or else the largest, grown.
    pub(crate) fn new(len: usize) -> Self {
        let needed = len.div_ceil(16);
        let mut lines = IDLE.with_borrow_mut(|idle| {
            let fits =
                (0..idle.len()).filter(|&i| idle[i].len() >= needed).min_by_key(|&i| idle[i].len());
            let chosen = fits.or_else(|| (0..idle.len()).max_by_key(|&i| idle[i].len()));
            chosen.map(|i| idle.swap_remove(i)).unwrap_or_default()
        });
        if lines.len() < needed {
            lines = vec![Line([0.0; 16]); needed];
        }
        Self { lines, len }
    }

    /// A buffer of `len` zeros.
    pub(crate) fn zeroed(len: usize) -> Self {
        let mut scratch = Self::new(len);
        scratch.fill(0.0);
        scratch
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        // While the thread ends its pool may be gone already: then the buffer is simply freed.
        let _ = IDLE.try_with(|idle| idle.borrow_mut().push(lines));
    }
}

impl Deref for Scratch {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        // SAFETY: `lines` holds at least `len` initialised f32, sixteen to a line without padding.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as for `deref`, and `self` is borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

/// Memory to be written, initialised or not: nothing can be read through it.
pub(crate) struct Out<'a> {
    start: *mut f32,
    len: usize,
    memory: PhantomData<&'a mut [f32]>,
}

// SAFETY: an `Out` is a unique borrow of plain memory, as `&mut [f32]` is.
unsafe impl Send for Out<'_> {}

impl<'a> Out<'a> {
    /// Elements to be written.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The first element's address, for writing.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut f32 {
        self.start
    }

    /// The elements of `range`, borrowed from this borrow.
    pub(crate) fn range(&mut self, range: Range<usize>) -> Out<'_> {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: the range lies inside.
        let start = unsafe { self.start.add(range.start) };
        Out { start, len: range.len(), memory: PhantomData }
    }

    /// The first `middle` elements and the others.
    pub(crate) fn split_at(self, middle: usize) -> (Out<'a>, Out<'a>) {
        assert!(middle <= self.len);
        // SAFETY: `middle` lies inside or at the end.
        let end = unsafe { self.start.add(middle) };
        (
            Out { start: self.start, len: middle, memory: PhantomData },
            Out { start: end, len: self.len - middle, memory: PhantomData },
        )
    }

    /// Consecutive chunks of `len` elements, the last one of what is left, each with the number of its first element.
    pub(crate) fn chunks(self, len: usize) -> Vec<(usize, Out<'a>)> {
        let mut chunks = Vec::with_capacity(self.len.div_ceil(len));
        let (mut first, mut rest) = (0, self);
        while rest.len > 0 {
            let (chunk, tail) = {
                let middle = len.min(rest.len);
                rest.split_at(middle)
            };
            chunks.push((first, chunk));
            first += len;
            rest = tail;
        }
        chunks
    }

    /// Copies `xs`, of the same length.
    pub(crate) fn copy_from(&mut self, xs: &[f32]) {
        assert_eq!(xs.len(), self.len);
        // SAFETY: the lengths agree, and a unique borrow overlaps no other slice.
        unsafe { std::ptr::copy_nonoverlapping(xs.as_ptr(), self.start, self.len) };
    }
}

impl<'a> From<&'a mut [f32]> for Out<'a> {
    fn from(xs: &'a mut [f32]) -> Self {
        Out { start: xs.as_mut_ptr(), len: xs.len(), memory: PhantomData }
    }
}

impl<'a> From<&'a mut [MaybeUninit<f32>]> for Out<'a> {
    fn from(xs: &'a mut [MaybeUninit<f32>]) -> Self {
        Out { start: xs.as_mut_ptr().cast(), len: xs.len(), memory: PhantomData }
    }
}

/// A vector of `len` elements, all written by `write` and by nothing before.
///
/// # Safety
/// `write` writes every element.
pub(crate) unsafe fn written(len: usize, write: impl FnOnce(Out<'_>)) -> Vec<f32> {
    let mut xs = Vec::with_capacity(len);
    let spare = &mut xs.spare_capacity_mut()[..len];
    if cfg!(test) {
        // An element that is not written shows up as NaN.
        spare.fill(MaybeUninit::new(f32::NAN));
    }
    write(spare.into());
    // SAFETY: the capacity is there, and the caller vouches that every element is written.
    unsafe { xs.set_len(len) };
    xs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_is_aligned_and_reused() {
        let first = Scratch::new(100);
        let address = first.as_ptr();
        assert_eq!(address as usize % 64, 0);
        assert_eq!(first.len(), 100);
        drop(first);
        let again = Scratch::new(90);
        assert_eq!(again.as_ptr(), address);
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
    fn written_splits_and_copies() {
        // SAFETY: both halves are written.
        let xs = unsafe {
            written(5, |out| {
                let (mut a, mut b) = out.split_at(2);
                a.copy_from(&[1.0, 2.0]);
                b.copy_from(&[3.0, 3.0, 3.0]);
                b.range(2..3).copy_from(&[4.0]);
            })
        };
        assert_eq!(xs, [1.0, 2.0, 3.0, 3.0, 4.0]);
    }
}
