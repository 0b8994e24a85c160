//! AVX2 with FMA (8 lanes) and AVX-512 F (16 lanes).
//!
//! Operations are thin wrappers of intrinsics. The one SAFETY argument for all of them: a token is only made by
//! `run_avx2` or `run_avx512`, whose callers vouch for the instruction set, and stays inside the call.

use std::arch::x86_64::*;

use super::{Kernel, Simd};

/// The token of AVX2 with FMA.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

/// The token of AVX-512 F.
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

/// Runs `kernel` compiled for AVX2 with FMA.
///
/// # Safety
/// The CPU has AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2(()))
}

/// Runs `kernel` compiled for AVX-512 F.
///
/// # Safety
/// The CPU has AVX-512 F, AVX2 and FMA.
#[target_feature(enable = "avx512f,avx2,fma")]
pub(super) unsafe fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512(()))
}

/// `n` lanes switched on, as AVX2's masked moves read them.
#[inline(always)]
unsafe fn first_avx2(n: usize) -> __m256i {
    static WINDOW: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    debug_assert!(n <= 8);
    // SAFETY: the caller vouches for n <= 8, so the eight elements from 8 - n lie inside the window; see the module
    // for the instruction set.
    unsafe { _mm256_loadu_si256(WINDOW.as_ptr().add(8 - n).cast()) }
}

/// The wrapper of one intrinsic over operands of type `V`.
macro_rules! lanewise {
    ($($name:ident($($arg:ident),*) = $call:expr;)*) => {$(
        #[inline(always)]
        fn $name(self, $($arg: Self::V),*) -> Self::V {
            // SAFETY: the token proves the instruction set, see the module.
            unsafe { $call }
        }
    )*};
}

impl Simd for Avx2 {
    const LANES: usize = 8;
    type V = __m256;

    lanewise! {
        add(a, b) = _mm256_add_ps(a, b);
        sub(a, b) = _mm256_sub_ps(a, b);
        mul(a, b) = _mm256_mul_ps(a, b);
        fma(a, b, c) = _mm256_fmadd_ps(a, b, c);
        nfma(a, b, c) = _mm256_fnmadd_ps(a, b, c);
        max(a, b) = _mm256_max_ps(a, b);
        where_positive(gate, a) = _mm256_and_ps(a, _mm256_cmp_ps::<_CMP_GT_OQ>(gate, _mm256_setzero_ps()));
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        // SAFETY: the token proves the instruction set, see the module.
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    fn prefetch(self, p: *const f32) {
        // SAFETY: a hint that reads nothing; the token proves the instruction set.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    fn positive(self, a: Self::V) -> u16 {
        // SAFETY: the token proves the instruction set, see the module.
        unsafe { _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(a, _mm256_setzero_ps())) as u16 }
    }
    #[inline(always)]
    fn where_set(self, bits: u16, a: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction set, see the module.
        unsafe {
            let lanes = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
            let set = _mm256_and_si256(_mm256_set1_epi32(bits.into()), lanes);
            _mm256_and_ps(a, _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, lanes)))
        }
    }
    #[inline(always)]
    unsafe fn load_ptr(self, p: *const f32) -> Self::V {
        // SAFETY: the caller vouches for the elements, the token for the instruction set.
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store_ptr(self, p: *mut f32, a: Self::V) {
        // SAFETY: the caller vouches for the elements, the token for the instruction set.
        unsafe { _mm256_storeu_ps(p, a) }
    }
    #[inline(always)]
    unsafe fn load_ptr_first(self, p: *const f32, n: usize) -> Self::V {
        // SAFETY: the caller vouches for `n` elements, and lanes switched off are not touched.
        unsafe { _mm256_maskload_ps(p, first_avx2(n)) }
    }
    #[inline(always)]
    unsafe fn store_ptr_first(self, p: *mut f32, a: Self::V, n: usize) {
        // SAFETY: the caller vouches for `n` elements, and lanes switched off are not touched.
        unsafe { _mm256_maskstore_ps(p, first_avx2(n), a) }
    }
}

/// `n` lanes switched on.
#[inline(always)]
fn first_avx512(n: usize) -> __mmask16 {
    debug_assert!(n <= 16);
    ((1_u32 << n) - 1) as __mmask16
}

impl Simd for Avx512 {
    const LANES: usize = 16;
    type V = __m512;

    lanewise! {
        add(a, b) = _mm512_add_ps(a, b);
        sub(a, b) = _mm512_sub_ps(a, b);
        mul(a, b) = _mm512_mul_ps(a, b);
        fma(a, b, c) = _mm512_fmadd_ps(a, b, c);
        nfma(a, b, c) = _mm512_fnmadd_ps(a, b, c);
        max(a, b) = _mm512_max_ps(a, b);
        where_positive(gate, a) =
            _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(gate, _mm512_setzero_ps()), a);
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        // SAFETY: the token proves the instruction set, see the module.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    fn prefetch(self, p: *const f32) {
        // SAFETY: a hint that reads nothing; the token proves the instruction set.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    fn positive(self, a: Self::V) -> u16 {
        // SAFETY: the token proves the instruction set, see the module.
        unsafe { _mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, _mm512_setzero_ps()) }
    }
    #[inline(always)]
    fn where_set(self, bits: u16, a: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction set, see the module.
        unsafe { _mm512_maskz_mov_ps(bits, a) }
    }
    #[inline(always)]
    unsafe fn load_ptr(self, p: *const f32) -> Self::V {
        // SAFETY: the caller vouches for the elements, the token for the instruction set.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store_ptr(self, p: *mut f32, a: Self::V) {
        // SAFETY: the caller vouches for the elements, the token for the instruction set.
        unsafe { _mm512_storeu_ps(p, a) }
    }
    #[inline(always)]
    unsafe fn load_ptr_first(self, p: *const f32, n: usize) -> Self::V {
        // SAFETY: the caller vouches for `n` elements, and lanes switched off are not touched.
        unsafe { _mm512_maskz_loadu_ps(first_avx512(n), p) }
    }
    #[inline(always)]
    unsafe fn store_ptr_first(self, p: *mut f32, a: Self::V, n: usize) {
        // SAFETY: the caller vouches for `n` elements, and lanes switched off are not touched.
        unsafe { _mm512_mask_storeu_ps(p, first_avx512(n), a) }
    }
}
