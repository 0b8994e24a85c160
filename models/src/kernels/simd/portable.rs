//! Eight lanes in plain Rust: the compiler vectorises them with what the target's baseline has (NEON on aarch64, SSE2
//! on x86-64).

use super::lanes::{Kernel, Simd};

/// The token of the portable set, which every CPU has.
#[derive(Clone, Copy)]
pub(super) struct Portable;

/// Runs `kernel` on plain Rust.
#[inline(never)]
pub(super) fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Portable)
}

const LANES: usize = 8;

#[inline(always)]
fn zip(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

/// `a * b + c`: fused only where the baseline has the instruction, for in software it is a call per lane.
#[inline(always)]
fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_arch = "aarch64", target_feature = "fma")) {
        a.mul_add(b, c)
    } else {
        a * b + c
    }
}

impl Simd for Portable {
    const LANES: usize = LANES;
    type V = [f32; LANES];

    #[inline(always)]
    fn apart<K: Kernel>(self, kernel: K) -> K::Output {
        run(kernel)
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; LANES]
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        std::array::from_fn(|i| multiply_add(a[i], b[i], c[i]))
    }
    #[inline(always)]
    fn nfma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        std::array::from_fn(|i| multiply_add(-a[i], b[i], c[i]))
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn where_positive(self, gate: Self::V, a: Self::V) -> Self::V {
        zip(gate, a, |gate, a| if gate > 0.0 { a } else { 0.0 })
    }
    #[inline(always)]
    fn positive(self, a: Self::V) -> u16 {
        a.iter().enumerate().fold(0, |bits, (i, a)| bits | u16::from(*a > 0.0) << i)
    }
    #[inline(always)]
    fn beats(self, a: Self::V, b: Self::V) -> u16 {
        let lane = |i: usize| u16::from(a[i] > b[i] || a[i].is_nan()) << i;
        (0..LANES).fold(0, |bits, i| bits | lane(i))
    }
    #[inline(always)]
    fn where_set(self, bits: u16, a: Self::V) -> Self::V {
        std::array::from_fn(|i| if bits >> i & 1 == 1 { a[i] } else { 0.0 })
    }
    #[inline(always)]
    fn select(self, bits: u16, a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|i| if bits >> i & 1 == 1 { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn load_ptr(self, p: *const f32) -> Self::V {
        // SAFETY: the caller vouches for LANES readable elements; an array of f32 is aligned as an f32.
        unsafe { *p.cast() }
    }
    #[inline(always)]
    unsafe fn store_ptr(self, p: *mut f32, a: Self::V) {
        // SAFETY: the caller vouches for LANES writable elements; an array of f32 is aligned as an f32.
        unsafe { *p.cast() = a }
    }
    #[inline(always)]
    unsafe fn load_ptr_first(self, p: *const f32, n: usize) -> Self::V {
        let mut a = [0.0; LANES];
        // SAFETY: the caller vouches for `n` readable elements and for n <= LANES.
        a[..n].copy_from_slice(unsafe { std::slice::from_raw_parts(p, n) });
        a
    }
    #[inline(always)]
    unsafe fn store_ptr_first(self, p: *mut f32, a: Self::V, n: usize) {
        // SAFETY: the caller vouches for `n` writable elements and for n <= LANES.
        unsafe { std::slice::from_raw_parts_mut(p, n) }.copy_from_slice(&a[..n]);
    }
}
