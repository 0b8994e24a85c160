//! Buffers that a thread keeps between uses. In tests what is read without having been written is NaN; what is written
//! behind the end the sanitizer finds (`.ci/sanitize`).

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crate::kernels::element::Plain;

/// One cache line, so that scratch starts on one and full vectors never straddle two.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u32; 16]);

/// What a new buffer holds: zeros, but NaN in tests, in f32 and in bf16.
const UNWRITTEN: Line = Line([if cfg!(test) { u32::MAX } else { 0 }; 16]);

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
pub(crate) struct Scratch<E: Plain = f32> {
    lines: Vec<Line>,
    len: usize,
    of: PhantomData<E>,
    #[cfg(test)]
    asked_by: std::thread::ThreadId,
}

impl Scratch {
    /// A buffer of `len` values, see [`of`](Self::of).
    pub(crate) fn new(len: usize) -> Self {
        Self::of(len)
    }
}

impl<E: Plain> Scratch<E> {
    /// A buffer of `len` elements: the smallest idle one that is large enough and not twice as large, else a new one.
    pub(crate) fn of(len: usize) -> Self {
        let needed = len.div_ceil(size_of::<Line>() / size_of::<E>());
        let found = IDLE.with_borrow_mut(|idle| {
            idle.requests += 1;
            let buffers = idle.buffers.iter().enumerate();
            let fits =
                buffers.filter(|(_, (_, lines))| (needed..=2 * needed + 64).contains(&lines.len()));
            let smallest = fits.min_by_key(|(_, (_, lines))| lines.len()).map(|(i, _)| i);
            smallest.map(|i| idle.buffers.swap_remove(i).1)
        });
        #[cfg(test)]
        let found = found.map(|mut lines| {
            lines.fill(UNWRITTEN);
            lines
        });
        Self {
            lines: found.unwrap_or_else(|| vec![UNWRITTEN; needed]),
            len,
            of: PhantomData,
            #[cfg(test)]
            asked_by: std::thread::current().id(),
        }
    }

    /// A buffer of `len` zeros.
    pub(crate) fn zeroed(len: usize) -> Self
    where
        E: Default,
    {
        let mut scratch = Self::of(len);
        scratch.fill(E::default());
        scratch
    }
}

impl<E: Plain> Drop for Scratch<E> {
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

impl<E: Plain> Deref for Scratch<E> {
    type Target = [E];
    fn deref(&self) -> &[E] {
        // SAFETY: `lines` holds the bits of at least `len` elements, which any bits are, without padding.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl<E: Plain> DerefMut for Scratch<E> {
    fn deref_mut(&mut self) -> &mut [E] {
        // SAFETY: as for `deref`, and `self` is borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Tensor, Var};

    use super::*;
    use crate::Maps;
    use crate::ops::{self, Activation, Affine, Running};

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
        let running = Running::new(&var(&[144]), &gamma.sqr().unwrap()).unwrap();
        let affine = Affine { shift: None, gamma: Some(&gamma), beta: &beta };
        let step = || -> candle_core::Result<()> {
            let ys = ops::conv2d(&Maps::new(&xs)?, &up, 1, 1, true)?;
            let ys = ops::batch_norm(&ys, affine, &running, None, Activation::Relu, true)?;
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
