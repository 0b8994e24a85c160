//! Memory of the kernels: buffers that a thread keeps between uses, and where a result goes.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut, Range};

/// One cache line, so that scratch starts on one and full vectors never straddle two.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// Buffers that nobody holds, of one thread.
///
/// One given back by another thread than asked for it would leave the one ever short of it and the other with more and
/// more: so scratch that outlives a job on another thread is asked for by the thread that drops it.
struct Idle {
    /// Each with the number of the request after which it was given back.
    buffers: Vec<(u64, Vec<Line>)>,
    /// Requests so far.
    requests: u64,
    /// Buffers given back that another thread had asked for.
    #[cfg(test)]
    strays: usize,
}

impl Idle {
    const fn new() -> Self {
        Self {
            buffers: Vec::new(),
            requests: 0,
            #[cfg(test)]
            strays: 0,
        }
    }
}

/// Requests that an idle buffer outlives: several training steps of a deep network.
const PATIENCE: u64 = 20_000;

thread_local! {
    static IDLE: RefCell<Idle> = const { RefCell::new(Idle::new()) };
}

/// A buffer of this thread, 64-byte aligned, its contents left over from earlier use; given back when dropped.
///
/// A training step asks for the same lengths as the one before and so, but for the first, finds all of them.
pub(crate) struct Scratch {
    lines: Vec<Line>,
    len: usize,
    #[cfg(test)]
    asked_by: std::thread::ThreadId,
}

impl Scratch {
    /// A buffer of `len` elements: the smallest idle one that is large enough and not twice as large, else a new one.
    pub(crate) fn new(len: usize) -> Self {
        let needed = len.div_ceil(16);
        let found = IDLE.with_borrow_mut(|idle| {
            idle.requests += 1;
            let buffers = idle.buffers.iter().enumerate();
            let fits =
                buffers.filter(|(_, (_, lines))| (needed..=2 * needed + 64).contains(&lines.len()));
            let smallest = fits.min_by_key(|(_, (_, lines))| lines.len()).map(|(i, _)| i);
            smallest.map(|i| idle.buffers.swap_remove(i).1)
        });
        let lines = found.unwrap_or_else(|| vec![Line([0.0; 16]); needed]);
        #[cfg(not(test))]
        return Self { lines, len };
        #[cfg(test)]
        {
            let mut scratch = Self { lines, len, asked_by: std::thread::current().id() };
            // What is read without having been written shows up as NaN.
            scratch.fill(f32::NAN);
            scratch
        }
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
        // While the thread ends its buffers may be gone already: then this one is simply freed.
        let _ = IDLE.try_with(|idle| {
            let mut idle = idle.borrow_mut();
            #[cfg(test)]
            if self.asked_by != std::thread::current().id() {
                idle.strays += 1;
            }
            let now = idle.requests;
            idle.buffers.retain(|(since, _)| since + PATIENCE > now);
            idle.buffers.push((now, lines));
        });
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

/// Sixteen bits each, in a [`Scratch`]: left over from earlier use, given back when dropped.
pub(crate) struct Bits {
    scratch: Scratch,
    len: usize,
}

impl Bits {
    /// A buffer of `len` elements.
    pub(crate) fn new(len: usize) -> Self {
        Self { scratch: Scratch::new(len.div_ceil(2)), len }
    }
}

impl Deref for Bits {
    type Target = [u16];
    fn deref(&self) -> &[u16] {
        // SAFETY: the scratch holds at least half as many initialised f32, which are as good as two u16 each.
        unsafe { std::slice::from_raw_parts(self.scratch.as_ptr().cast(), self.len) }
    }
}

impl DerefMut for Bits {
    fn deref_mut(&mut self) -> &mut [u16] {
        // SAFETY: as for `deref`, and `self` is borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.scratch.as_mut_ptr().cast(), self.len) }
    }
}

/// Where a result goes.
pub(crate) enum Target<'a> {
    /// It replaces what is there.
    Write(&'a mut [f32]),
    /// It is added to what is there.
    Add(&'a mut [f32]),
}

impl<'a> Target<'a> {
    /// The memory, and whether the result is added to it.
    pub(crate) fn parts(self) -> (&'a mut [f32], bool) {
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
    pub(crate) fn range(&mut self, range: Range<usize>) -> Target<'_> {
        match self {
            Target::Write(xs) => Target::Write(&mut xs[range]),
            Target::Add(xs) => Target::Add(&mut xs[range]),
        }
    }

    /// The first `middle` elements and the others.
    pub(crate) fn split_at(self, middle: usize) -> (Target<'a>, Target<'a>) {
        let (xs, add) = self.parts();
        let (a, b) = xs.split_at_mut(middle);
        if add { (Target::Add(a), Target::Add(b)) } else { (Target::Write(a), Target::Write(b)) }
    }

    /// Consecutive chunks of `len` elements, the last one of what is left.
    pub(crate) fn chunks(self, len: usize) -> impl Iterator<Item = Target<'a>> {
        let (xs, add) = self.parts();
        xs.chunks_mut(len).map(move |xs| if add { Target::Add(xs) } else { Target::Write(xs) })
    }

    /// Takes `xs`, of the same length.
    pub(crate) fn take(&mut self, xs: &[f32]) {
        match self {
            Target::Write(to) => to.copy_from_slice(xs),
            Target::Add(to) => {
                assert_eq!(to.len(), xs.len());
                to.iter_mut().zip(xs).for_each(|(to, x)| *to += x);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Tensor, Var};

    use super::*;
    use crate::{Maps, ops};

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
    fn bits_are_kept_to_the_last() {
        for len in [0, 1, 2, 31, 32, 33, 1001] {
            let mut bits = Bits::new(len);
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

    /// Of the threads of `pool` the bytes that nobody holds and the strays.
    fn idle(pool: &rayon::ThreadPool) -> (usize, usize) {
        let of = |_: rayon::BroadcastContext| {
            IDLE.with_borrow(|idle| {
                let lines: usize = idle.buffers.iter().map(|(_, lines)| lines.len()).sum();
                (lines * size_of::<Line>(), idle.strays)
            })
        };
        pool.broadcast(of)
            .into_iter()
            .fold((0, 0), |(a, b), (bytes, strays)| (a + bytes, b + strays))
    }

    /// Steps through convolutions of several chunks and several blocks of weights, and through everything between.
    #[test]
    fn scratch_stays_with_its_thread_and_does_not_grow() {
        let draw = |shape: &[usize]| Tensor::randn(0f32, 1., shape, &Device::Cpu).unwrap();
        let var = |shape: &[usize]| Var::from_tensor(&draw(shape)).unwrap();
        let xs = draw(&[9, 16, 16, 32]);
        let (up, down) = (var(&[144, 32, 3, 3]), var(&[32, 144, 3, 3]));
        let (gamma, beta) = (var(&[144]), var(&[144]));
        let (mean, variance) = (var(&[144]), Var::from_tensor(&gamma.sqr().unwrap()).unwrap());
        let step = || -> candle_core::Result<()> {
            let ys = ops::conv2d(&Maps::new(&xs)?, &up, 1, 1, true)?;
            let ys = ops::batch_norm(&ys, None, &gamma, &beta, &mean, &variance, None, true, true)?;
            let ys = ops::conv2d(&ops::conv2d(&ys, &down, 1, 1, true)?, &up, 2, 1, true)?;
            ops::global_average_pool(&ys)?.sum_all()?.backward().map(drop)
        };
        let after = |threads: usize, steps: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| (0..steps).for_each(|_| step().unwrap()));
            idle(&pool)
        };
        let (alone, strays) = after(1, 2);
        assert_eq!(strays, 0);
        for threads in [2, 3] {
            let (bytes, strays) = after(threads, 25);
            assert_eq!(strays, 0, "{threads} threads");
            assert!(bytes <= threads * alone, "{threads} threads: {bytes} and not {alone} each");
        }
    }

    #[test]
    fn a_buffer_twice_too_large_stays_where_it_is() {
        drop(Scratch::new(1 << 20));
        let small = Scratch::new(1 << 10);
        let large = Scratch::new(1 << 20);
        assert!(small.lines.len() < large.lines.len());
    }
}
