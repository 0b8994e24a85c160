//! How a value of a feature map lies in memory: as f32, or [`Rounded`] where products are in bf16, for what multiplies such
//! values rounds them anyway. Kernels compute in f32 whichever it is, and their sums are in f32.

use super::simd::{Isa, Kernel, Simd, rounded, widened};

/// What any bits are a value of: a [`Scratch`](super::memory::Scratch) may hold it.
///
/// # Safety
/// So they are, and a line of a cache holds a whole number of them.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: each is a number of two or four bytes.
unsafe impl Plain for f32 {}
// SAFETY: as above.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for Rounded {}

/// A value of a feature map, as it lies in memory.
pub(crate) trait Element: Plain + Send + Sync + Default + 'static {
    /// Whether it is rounded to bf16, and products are of words.
    const ROUNDED: bool;

    /// `x`, rounded to it.
    fn of(x: f32) -> Self;
    /// The value.
    fn get(self) -> f32;

    /// Loads a vector, or its first `n` lanes if `PARTIAL`, the others zero.
    ///
    /// # Safety
    /// `n <= LANES`, and `p` is valid for reading so many elements.
    unsafe fn load<S: Simd, const PARTIAL: bool>(s: S, p: *const Self, n: usize) -> S::V;
    /// Writes a vector, or its first `n` lanes if `PARTIAL`.
    ///
    /// # Safety
    /// `n <= LANES`, and `p` is valid for writing so many elements.
    unsafe fn store<S: Simd, const PARTIAL: bool>(s: S, p: *mut Self, a: S::V, n: usize);

    /// Runs a kernel on such elements.
    fn run<K: Kernel>(isa: Isa, kernel: K);

    /// The same slice, if they are f32.
    fn as_f32(xs: &[Self]) -> Option<&[f32]>;
    /// The same slice, if they are f32.
    fn as_f32_mut(xs: &mut [Self]) -> Option<&mut [f32]>;

    /// As [`Simd::load_first`].
    #[inline(always)]
    fn load_first<S: Simd>(s: S, xs: &[Self]) -> S::V {
        // SAFETY: the slice has so many elements.
        unsafe {
            match xs.len() {
                n if n < S::LANES => Self::load::<S, true>(s, xs.as_ptr(), n),
                _ => Self::load::<S, false>(s, xs.as_ptr(), S::LANES),
            }
        }
    }
    /// As [`Simd::store_first`].
    #[inline(always)]
    fn store_first<S: Simd>(s: S, xs: &mut [Self], a: S::V) {
        // SAFETY: the slice has so many elements.
        unsafe {
            match xs.len() {
                n if n < S::LANES => Self::store::<S, true>(s, xs.as_mut_ptr(), a, n),
                _ => Self::store::<S, false>(s, xs.as_mut_ptr(), a, S::LANES),
            }
        }
    }
}

impl Element for f32 {
    const ROUNDED: bool = false;

    #[inline(always)]
    fn of(x: f32) -> Self {
        x
    }
    #[inline(always)]
    fn get(self) -> f32 {
        self
    }
    #[inline(always)]
    unsafe fn load<S: Simd, const PARTIAL: bool>(s: S, p: *const Self, n: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { if PARTIAL { s.load_ptr_first(p, n) } else { s.load_ptr(p) } }
    }
    #[inline(always)]
    unsafe fn store<S: Simd, const PARTIAL: bool>(s: S, p: *mut Self, a: S::V, n: usize) {
        // SAFETY: the caller's promise.
        unsafe { if PARTIAL { s.store_ptr_first(p, a, n) } else { s.store_ptr(p, a) } }
    }
    #[inline]
    fn run<K: Kernel>(isa: Isa, kernel: K) {
        isa.run(kernel);
    }
    fn as_f32(xs: &[Self]) -> Option<&[f32]> {
        Some(xs)
    }
    fn as_f32_mut(xs: &mut [Self]) -> Option<&mut [f32]> {
        Some(xs)
    }
}

/// A value rounded to bf16: its upper half in f32.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub(crate) struct Rounded(u16);

impl Element for Rounded {
    const ROUNDED: bool = true;

    #[inline(always)]
    fn of(x: f32) -> Self {
        Self(rounded(x))
    }
    #[inline(always)]
    fn get(self) -> f32 {
        widened(self.0)
    }
    #[inline(always)]
    unsafe fn load<S: Simd, const PARTIAL: bool>(s: S, p: *const Self, n: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { s.load_bf16(p.cast(), if PARTIAL { n } else { S::LANES }) }
    }
    #[inline(always)]
    unsafe fn store<S: Simd, const PARTIAL: bool>(s: S, p: *mut Self, a: S::V, n: usize) {
        // SAFETY: the caller's promise.
        unsafe { s.store_bf16(p.cast(), a, if PARTIAL { n } else { S::LANES }) }
    }
    #[inline]
    fn run<K: Kernel>(isa: Isa, kernel: K) {
        isa.bf16().expect("invariant: maps are rounded where products are").run(kernel);
    }
    fn as_f32(_: &[Self]) -> Option<&[f32]> {
        None
    }
    fn as_f32_mut(_: &mut [Self]) -> Option<&mut [f32]> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stores and loads of each number of lanes, against the values one by one.
    struct Lanes<'a>(&'a [f32; 16]);

    impl Kernel for Lanes<'_> {
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            let bits = |xs: &[f32]| xs.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            let by_value: Vec<f32> = self.0.iter().map(|x| Rounded::of(*x).get()).collect();
            for n in 0..=S::LANES {
                let mut to = [Rounded::of(7.0); 17];
                Rounded::store_first(s, &mut to[..n], s.load(self.0));
                assert_eq!(bits(&to.map(Rounded::get)[..n]), bits(&by_value[..n]), "{n}");
                assert!(to[n..].iter().all(|x| x.get() == 7.0), "wrote past {n}");
                let mut wide = [7.0; 16];
                s.store(&mut wide, Rounded::load_first(s, &to[..n]));
                assert_eq!(bits(&wide[..n]), bits(&by_value[..n]), "{n}");
                assert!(wide[n..S::LANES].iter().all(|x| *x == 0.0), "lanes past {n} not zero");
            }
        }
    }

    #[test]
    fn values_are_rounded_to_the_same_bits_however_they_are_stored() {
        let tiny = f32::MIN_POSITIVE;
        let ends = [0.0, -0.0, tiny, tiny / 2.0, f32::MAX, f32::INFINITY, -f32::INFINITY, f32::NAN];
        let ties = [1.003_906_2, 1.011_718_8, -1.5, 0.3, 1e-20, -1e19, 3.1e38, -tiny / 3.0];
        let values = std::array::from_fn(|i| if i < 8 { ends[i] } else { ties[i - 8] });
        let turned = std::array::from_fn(|i| values[(i + 8) % 16]);
        for isa in Isa::with_bf16() {
            Rounded::run(isa, Lanes(&values));
            Rounded::run(isa, Lanes(&turned));
        }
    }
}
