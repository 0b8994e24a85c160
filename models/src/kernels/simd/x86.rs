//! AVX2 with FMA (8 lanes), AVX-512 F (16 lanes), and the latter with products of bf16.
//!
//! Operations are thin wrappers of intrinsics. The simple form of each, lane by lane, is in `portable.rs`, or where that
//! has none the default in `lanes.rs`. The one SAFETY argument for all of them: a token is only made by the functions
//! `run_…`, whose callers vouch for the instruction set, and stays inside the call.

use std::arch::x86_64::*;
use std::mem::transmute;

use super::lanes::{self, Kernel, Simd};

/// The token of AVX2 with FMA.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

/// The token of AVX-512 F.
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

/// The token of AVX-512 F, BW, VL and BF16.
#[derive(Clone, Copy)]
pub(super) struct Avx512Bf16(());

/// Runs `kernel` compiled for AVX2 with FMA.
///
/// # Safety
/// The CPU has AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
#[inline(never)]
pub(super) unsafe fn run_avx2<K: Kernel>(kernel: K) {
    kernel.run(Avx2(()));
}

/// Runs `kernel` compiled for AVX-512 F.
///
/// # Safety
/// The CPU has AVX-512 F, AVX2 and FMA.
#[target_feature(enable = "avx512f,avx2,fma")]
#[inline(never)]
pub(super) unsafe fn run_avx512<K: Kernel>(kernel: K) {
    kernel.run(Avx512(()));
}

/// Runs `kernel` compiled for AVX-512 F, BW, VL and BF16.
///
/// # Safety
/// The CPU has AVX-512 F, BW, VL and BF16, AVX2 and FMA.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,avx2,fma")]
#[inline(never)]
pub(super) unsafe fn run_avx512_bf16<K: Kernel>(kernel: K) {
    kernel.run(Avx512Bf16(()));
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

/// All ones in the lanes whose bit is set.
#[inline(always)]
unsafe fn set_avx2(bits: u16) -> __m256 {
    // SAFETY: see the module for the instruction set.
    unsafe {
        let lanes = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
        let set = _mm256_and_si256(_mm256_set1_epi32(bits.into()), lanes);
        _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, lanes))
    }
}

/// Safe wrappers of intrinsics, and those of intrinsics that read or write memory, which are not safe.
macro_rules! wrappers {
    ($(fn $name:ident($($arg:ident: $of:ty),*) -> $result:ty = $call:expr;)*) => {$(
        #[inline(always)]
        fn $name(self, $($arg: $of),*) -> $result {
            // SAFETY: the token proves the instruction set, see the module.
            unsafe { $call }
        }
    )*};
    ($(unsafe fn $name:ident($($arg:ident: $of:ty),*) -> $result:ty = $call:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name(self, $($arg: $of),*) -> $result {
            // SAFETY: the caller vouches for the elements (lanes that are switched off are not touched), the token for the
            // instruction set.
            unsafe { $call }
        }
    )*};
}

impl Simd for Avx2 {
    const LANES: usize = 8;
    type V = __m256;

    wrappers! {
        fn splat(x: f32) -> __m256 = _mm256_set1_ps(x);
        fn add(a: __m256, b: __m256) -> __m256 = _mm256_add_ps(a, b);
        fn sub(a: __m256, b: __m256) -> __m256 = _mm256_sub_ps(a, b);
        fn mul(a: __m256, b: __m256) -> __m256 = _mm256_mul_ps(a, b);
        fn fma(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fmadd_ps(a, b, c);
        fn nfma(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fnmadd_ps(a, b, c);
        fn max(a: __m256, b: __m256) -> __m256 = _mm256_max_ps(a, b);
        fn min(a: __m256, b: __m256) -> __m256 = _mm256_min_ps(a, b);
        fn where_positive(gate: __m256, a: __m256) -> __m256 =
            _mm256_and_ps(a, _mm256_cmp_ps::<_CMP_GT_OQ>(gate, _mm256_setzero_ps()));
        fn positive(a: __m256) -> u16 =
            _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(a, _mm256_setzero_ps())) as u16;
        fn beats(a: __m256, b: __m256) -> u16 = {
            let larger = _mm256_cmp_ps::<_CMP_GT_OQ>(a, b);
            _mm256_movemask_ps(_mm256_or_ps(larger, _mm256_cmp_ps::<_CMP_UNORD_Q>(a, a))) as u16
        };
        fn where_set(bits: u16, a: __m256) -> __m256 = _mm256_and_ps(a, set_avx2(bits));
        fn select(bits: u16, a: __m256, b: __m256) -> __m256 =
            _mm256_blendv_ps(b, a, set_avx2(bits));
        // A hint that reads nothing.
        fn prefetch(p: *const f32) -> () = _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }
    #[inline(always)]
    fn apart<K: Kernel>(self, kernel: K) {
        // SAFETY: the token proves the instruction set.
        unsafe { run_avx2(kernel) }
    }
    wrappers! {
        unsafe fn load_ptr(p: *const f32) -> __m256 = _mm256_loadu_ps(p);
        unsafe fn store_ptr(p: *mut f32, a: __m256) -> () = _mm256_storeu_ps(p, a);
        unsafe fn load_ptr_first(p: *const f32, n: usize) -> __m256 =
            _mm256_maskload_ps(p, first_avx2(n));
        unsafe fn store_ptr_first(p: *mut f32, a: __m256, n: usize) -> () =
            _mm256_maskstore_ps(p, first_avx2(n), a);
    }
    #[inline(always)]
    unsafe fn load_fours(self, p: *const f32, stride: usize) -> [Self::V; 4] {
        // SAFETY: the caller vouches for the elements, the token for the instruction set.
        unsafe {
            // Vector `j` holds lanes j and 4 + j, half each; the halves are 4×4 matrices to be transposed.
            let halves = |j: usize| {
                let four = |lane: usize| _mm_loadu_ps(p.add(lane * stride));
                _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(four(j)), four(4 + j))
            };
            let pairs = |a, b| {
                let (low, high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
                (_mm256_castps_pd(low), _mm256_castps_pd(high))
            };
            let (ab_low, ab_high) = pairs(halves(0), halves(1));
            let (cd_low, cd_high) = pairs(halves(2), halves(3));
            [
                _mm256_castpd_ps(_mm256_unpacklo_pd(ab_low, cd_low)),
                _mm256_castpd_ps(_mm256_unpackhi_pd(ab_low, cd_low)),
                _mm256_castpd_ps(_mm256_unpacklo_pd(ab_high, cd_high)),
                _mm256_castpd_ps(_mm256_unpackhi_pd(ab_high, cd_high)),
            ]
        }
    }
}

/// `n` lanes switched on.
#[inline(always)]
fn first_avx512(n: usize) -> __mmask16 {
    debug_assert!(n <= 16);
    ((1_u32 << n) - 1) as __mmask16
}

/// Writes what [`Simd::load_fours`] reads.
///
/// # Safety
/// The CPU has AVX-512 F, and four elements of each lane are valid for writing.
#[inline(always)]
unsafe fn store_fours(p: *mut f32, stride: usize, fours: [__m512; 4]) {
    // SAFETY: the caller vouches for the elements and the instruction set.
    unsafe {
        for (j, quarters) in transposed_fours(fours).into_iter().enumerate() {
            let to = |lane: usize| p.add(lane * stride);
            _mm_storeu_ps(to(j), _mm512_castps512_ps128(quarters));
            _mm_storeu_ps(to(4 + j), _mm512_extractf32x4_ps::<1>(quarters));
            _mm_storeu_ps(to(8 + j), _mm512_extractf32x4_ps::<2>(quarters));
            _mm_storeu_ps(to(12 + j), _mm512_extractf32x4_ps::<3>(quarters));
        }
    }
}

/// The 4×4 matrices that the quarters of four vectors are, transposed.
///
/// # Safety
/// The CPU has AVX-512 F.
#[inline(always)]
unsafe fn transposed_fours([a, b, c, d]: [__m512; 4]) -> [__m512; 4] {
    // SAFETY: the caller vouches for the instruction set.
    unsafe {
        let pairs = |a, b| {
            (_mm512_castps_pd(_mm512_unpacklo_ps(a, b)), _mm512_castps_pd(_mm512_unpackhi_ps(a, b)))
        };
        let ((ab_low, ab_high), (cd_low, cd_high)) = (pairs(a, b), pairs(c, d));
        [
            _mm512_castpd_ps(_mm512_unpacklo_pd(ab_low, cd_low)),
            _mm512_castpd_ps(_mm512_unpackhi_pd(ab_low, cd_low)),
            _mm512_castpd_ps(_mm512_unpacklo_pd(ab_high, cd_high)),
            _mm512_castpd_ps(_mm512_unpackhi_pd(ab_high, cd_high)),
        ]
    }
}

/// The operations of AVX-512 for a token, whose functions [`Simd::apart`] are compiled by `$run`, and more.
macro_rules! avx512 {
    ($token:ident, $run:ident, {$($more:tt)*}) => {
impl Simd for $token {
    const LANES: usize = 16;
    type V = __m512;

    wrappers! {
        fn splat(x: f32) -> __m512 = _mm512_set1_ps(x);
        fn add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        fn sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
        fn mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        fn fma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        fn nfma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fnmadd_ps(a, b, c);
        fn max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b);
        fn min(a: __m512, b: __m512) -> __m512 = _mm512_min_ps(a, b);
        fn where_positive(gate: __m512, a: __m512) -> __m512 =
            _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(gate, _mm512_setzero_ps()), a);
        fn positive(a: __m512) -> u16 =
            _mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, _mm512_setzero_ps());
        fn beats(a: __m512, b: __m512) -> u16 =
            _mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b) | _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a);
        fn where_set(bits: u16, a: __m512) -> __m512 = _mm512_maskz_mov_ps(bits, a);
        fn select(bits: u16, a: __m512, b: __m512) -> __m512 = _mm512_mask_mov_ps(b, bits, a);
        // A hint that reads nothing.
        fn prefetch(p: *const f32) -> () = _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }
    #[inline(always)]
    fn apart<K: Kernel>(self, kernel: K) {
        // SAFETY: the token proves the instruction set.
        unsafe { $run(kernel) }
    }
    wrappers! {
        unsafe fn load_ptr(p: *const f32) -> __m512 = _mm512_loadu_ps(p);
        unsafe fn store_ptr(p: *mut f32, a: __m512) -> () = _mm512_storeu_ps(p, a);
        unsafe fn load_ptr_first(p: *const f32, n: usize) -> __m512 =
            _mm512_maskz_loadu_ps(first_avx512(n), p);
        unsafe fn store_ptr_first(p: *mut f32, a: __m512, n: usize) -> () =
            _mm512_mask_storeu_ps(p, first_avx512(n), a);
    }
    #[inline(always)]
    unsafe fn load_fours(self, p: *const f32, stride: usize) -> [Self::V; 4] {
        // SAFETY: the caller vouches for the elements, the token for the instruction set.
        unsafe {
            // Vector `j` holds lanes j, 4 + j, 8 + j, 12 + j, a quarter each.
            let quarters = |j: usize| {
                let four = |lane: usize| _mm_loadu_ps(p.add(lane * stride));
                let low = _mm512_castps128_ps512(four(j));
                let low = _mm512_insertf32x4::<1>(low, four(4 + j));
                let low = _mm512_insertf32x4::<2>(low, four(8 + j));
                _mm512_insertf32x4::<3>(low, four(12 + j))
            };
            transposed_fours([quarters(0), quarters(1), quarters(2), quarters(3)])
        }
    }
    #[inline(always)]
    unsafe fn load_nines(self, p: *const f32, stride: usize, n: usize) -> [Self::V; 9] {
        // SAFETY: the caller vouches for nine elements of each lane, the token for the instruction set.
        unsafe {
            if n < Self::LANES {
                return lanes::load(self, p, stride, n);
            }
            let [a, b, c, d] = self.load_fours(p, stride);
            let [e, f, g, h] = self.load_fours(p.add(4), stride);
            // Three of these once more, and the last.
            let [.., last] = self.load_fours(p.add(5), stride);
            [a, b, c, d, e, f, g, h, last]
        }
    }
    #[inline(always)]
    unsafe fn store_nines(self, p: *mut f32, stride: usize, n: usize, nines: [Self::V; 9]) {
        // SAFETY: the caller vouches for nine elements of each lane, the token for the instruction set.
        unsafe {
            if n < Self::LANES {
                return lanes::store_nines(self, p, stride, n, nines);
            }
            let [a, b, c, d, e, f, g, h, last] = nines;
            store_fours(p, stride, [a, b, c, d]);
            store_fours(p.add(4), stride, [e, f, g, h]);
            store_fours(p.add(5), stride, [f, g, h, last]);
        }
    }
    $($more)*
}
    };
}

avx512!(Avx512, run_avx512, {});
avx512!(Avx512Bf16, run_avx512_bf16, {
    wrappers! {
        fn dot(a: __m512, b: __m512, c: __m512) -> __m512 =
            _mm512_dpbf16_ps(
            c, transmute::<__m512, __m512bh>(a), transmute::<__m512, __m512bh>(b));
        fn narrow(a: __m512, b: __m512) -> __m512 =
            transmute::<__m512bh, __m512>(_mm512_cvtne2ps_pbh(b, a));
        fn pack(low: __m512, high: __m512) -> __m512 = {
            static ORDER: [u16; 32] = {
                let (mut order, mut i) = ([0; 32], 0);
                while i < 32 {
                    order[i] = i as u16 / 2 + i as u16 % 2 * 16;
                    i += 1;
                }
                order
            };
            let order = _mm512_loadu_si512(ORDER.as_ptr().cast());
            let halves = transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low));
            transmute::<__m512i, __m512>(_mm512_permutexvar_epi16(order, halves))
        };
    }
    wrappers! {
        unsafe fn load_bf16(p: *const u16, n: usize) -> __m512 = {
            let values = _mm256_maskz_loadu_epi16(first_avx512(n), p.cast());
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(values)))
        };
        unsafe fn store_bf16(p: *mut u16, a: __m512, n: usize) -> () = {
            let values = transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(a));
            _mm256_mask_storeu_epi16(p.cast(), first_avx512(n), values);
        };
    }
});
