//! Numbers of elements, computed so that none of them wraps.
//!
//! Where overflow is not checked, as in release builds, a product of sizes that wraps is small, and a length that
//! wrapped in the same way equals it: a comparison of the two guards nothing. candle's own count of a shape's elements
//! wraps as well. So every size that stands guard before memory comes from here.

use candle_core::{Result, Tensor, bail};

/// Elements that one slice of f32 may have: pointers into it are moved by signed numbers of bytes.
const MOST: usize = isize::MAX as usize / size_of::<f32>();

/// The product of `sizes`, or nothing if no memory has so many f32.
pub(crate) fn elements(sizes: &[usize]) -> Option<usize> {
    if sizes.contains(&0) {
        return Some(0);
    }
    let product = sizes.iter().try_fold(1_usize, |product, size| product.checked_mul(*size));
    product.filter(|product| *product <= MOST)
}

/// The product of `sizes`, for a guard.
///
/// # Panics
/// When no memory has so many f32.
#[inline(always)]
pub(crate) fn product<const N: usize>(sizes: [usize; N]) -> usize {
    let mut product = 1_usize;
    let mut wrapped = false;
    for size in sizes {
        let (next, over) = product.overflowing_mul(size);
        (product, wrapped) = (next, wrapped | over);
    }
    assert!(!wrapped && product <= MOST, "sizes that no memory has");
    product
}

/// Refuses an argument without elements, or of sizes whose product wraps: candle's count of them does.
pub(crate) fn some(argument: &str, tensor: &Tensor) -> Result<()> {
    match elements(tensor.dims()) {
        Some(0) => bail!("{argument} is {:?}: it has no elements", tensor.dims()),
        Some(_) => Ok(()),
        None => bail!("{argument} is {:?}: no memory has so many elements", tensor.dims()),
    }
}

/// Refuses an argument of another shape than the others imply, or of [none](some), before any path sees it.
pub(crate) fn fits(argument: &str, tensor: &Tensor, expected: &[usize]) -> Result<()> {
    if tensor.dims() != expected {
        bail!("{argument} is {:?}, the other arguments ask for {expected:?}", tensor.dims());
    }
    some(argument, tensor)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: usize = 1 << (usize::BITS / 2);

    #[test]
    fn a_product_is_right_or_refused() {
        assert_eq!(elements(&[]), Some(1));
        assert_eq!(elements(&[3, 4, 5]), Some(60));
        assert_eq!(elements(&[HALF, 0, HALF, HALF]), Some(0));
        assert_eq!(elements(&[HALF, HALF]), None);
        assert_eq!(elements(&[(1 << 60) + 1, 16]), None, "it wraps to 16");
        assert_eq!(elements(&[MOST]), Some(MOST));
        assert_eq!(elements(&[MOST + 1]), None);
        assert_eq!(product([3, 4, 5]), 60);
        for sizes in [[HALF, HALF], [(1 << 60) + 1, 16], [MOST + 1, 1]] {
            assert!(std::panic::catch_unwind(|| product(sizes)).is_err(), "{sizes:?}");
        }
    }
}
