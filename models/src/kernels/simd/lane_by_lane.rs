//! What an instruction set may have a quicker way for, lane by lane.

use super::Simd;

/// See [`Simd::load_nines`] and [`Simd::load_fours`].
///
/// # Safety
/// As there, for `N` elements of each lane.
#[inline(always)]
pub(super) unsafe fn load<S: Simd, const N: usize>(
    s: S,
    p: *const f32,
    stride: usize,
    n: usize,
) -> [S::V; N] {
    let mut elements = [[0.0; 16]; N];
    for lane in 0..n {
        for (j, lanes) in elements.iter_mut().enumerate() {
            // SAFETY: the caller vouches for so many elements of each lane.
            lanes[lane] = unsafe { *p.add(lane * stride + j) };
        }
    }
    elements.map(|lanes| s.load(&lanes))
}

/// See [`Simd::store_nines`].
///
/// # Safety
/// As there.
#[inline(always)]
pub(super) unsafe fn store_nines<S: Simd>(
    s: S,
    p: *mut f32,
    stride: usize,
    n: usize,
    nines: [S::V; 9],
) {
    for (j, v) in nines.into_iter().enumerate() {
        let mut lanes = [0.0; 16];
        s.store(&mut lanes, v);
        for (lane, x) in lanes[..n].iter().enumerate() {
            // SAFETY: the caller vouches for nine elements of each lane.
            unsafe { *p.add(lane * stride + j) = *x };
        }
    }
}
