//! Eight lanes in plain Rust: the compiler vectorises them with what the target's baseline has (NEON on aarch64, SSE2
//! on x86-64).

use super::lanes::{Kernel, Simd};

/// The token of the portable set, which every CPU has.
#[derive(Clone, Copy)]
pub(super) struct Portable;

/// Runs `kernel` on plain Rust.
#[inline(never)]
pub(super) fn run<K: Kernel>(kernel: K) {
    kernel.run(Portable);
}

const LANES: usize = 8;

#[inline(always)]
fn zip(a: V, b: V, f: impl Fn(f32, f32) -> f32) -> V {
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

type V = [f32; LANES];

/// Operations that are one expression each.
macro_rules! operations {
    ($(fn $name:ident($($arg:ident: $of:ty),*) -> $result:ty = $value:expr;)*) => {$(
        #[inline(always)]
        fn $name(self, $($arg: $of),*) -> $result {
            $value
        }
    )*};
}

impl Simd for Portable {
    const LANES: usize = LANES;
    type V = V;

    #[inline(always)]
    fn apart<K: Kernel>(self, kernel: K) {
        run(kernel);
    }
    operations! {
        fn splat(x: f32) -> V = [x; LANES];
        fn add(a: V, b: V) -> V = zip(a, b, |a, b| a + b);
        fn sub(a: V, b: V) -> V = zip(a, b, |a, b| a - b);
        fn mul(a: V, b: V) -> V = zip(a, b, |a, b| a * b);
        fn fma(a: V, b: V, c: V) -> V = std::array::from_fn(|i| multiply_add(a[i], b[i], c[i]));
        fn nfma(a: V, b: V, c: V) -> V = std::array::from_fn(|i| multiply_add(-a[i], b[i], c[i]));
        fn max(a: V, b: V) -> V = zip(a, b, |a, b| if a > b { a } else { b });
        fn min(a: V, b: V) -> V = zip(a, b, |a, b| if a < b { a } else { b });
        fn where_positive(gate: V, a: V) -> V =
            zip(gate, a, |gate, a| if gate > 0.0 { a } else { 0.0 });
        fn positive(a: V) -> u16 =
            (0..LANES).fold(0, |bits, i| bits | u16::from(a[i] > 0.0) << i);
        fn beats(a: V, b: V) -> u16 =
            (0..LANES).fold(0, |bits, i| bits | u16::from(a[i] > b[i] || a[i].is_nan()) << i);
        fn where_set(bits: u16, a: V) -> V =
            std::array::from_fn(|i| if bits >> i & 1 == 1 { a[i] } else { 0.0 });
        fn select(bits: u16, a: V, b: V) -> V =
            std::array::from_fn(|i| if bits >> i & 1 == 1 { a[i] } else { b[i] });
    }
    #[inline(always)]
    unsafe fn load_ptr(self, p: *const f32) -> V {
        // SAFETY: the caller vouches for LANES readable elements; an array of f32 is aligned as an f32.
        unsafe { *p.cast() }
    }
    #[inline(always)]
    unsafe fn store_ptr(self, p: *mut f32, a: V) {
        // SAFETY: the caller vouches for LANES writable elements; an array of f32 is aligned as an f32.
        unsafe { *p.cast() = a }
    }
    #[inline(always)]
    unsafe fn load_ptr_first(self, p: *const f32, n: usize) -> V {
        let mut a = [0.0; LANES];
        // SAFETY: the caller vouches for `n` readable elements and for n <= LANES.
        a[..n].copy_from_slice(unsafe { std::slice::from_raw_parts(p, n) });
        a
    }
    #[inline(always)]
    unsafe fn store_ptr_first(self, p: *mut f32, a: V, n: usize) {
        // SAFETY: the caller vouches for `n` writable elements and for n <= LANES.
        unsafe { std::slice::from_raw_parts_mut(p, n) }.copy_from_slice(&a[..n]);
    }
}
