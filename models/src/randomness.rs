//! Random numbers of a forward pass, such as dropout's, as a function of a key.
//!
//! The trainer [begins](begin) each forward pass in training with a key of its own, made of the run's seed, the step and
//! the samples. The n-th operation of the pass that wants random numbers makes them of the key, n and the place of the
//! value: they are the same on any number of threads, and after a resume.

use std::cell::Cell;

use candle_core::{Result, bail};

thread_local! {
    /// The key of the pass, and how many operations have drawn.
    static PASS: Cell<Option<(u64, u64)>> = const { Cell::new(None) };
}

/// Begins a forward pass of this thread with that key.
pub fn begin(key: u64) {
    PASS.set(Some((key, 0)));
}

/// A key for the next operation of the pass.
///
/// # Errors
/// When no pass has begun on this thread.
pub(crate) fn next() -> Result<u64> {
    let Some((key, drawn)) = PASS.get() else {
        bail!("random numbers are asked for before gradwire_models::randomness::begin");
    };
    PASS.set(Some((key, drawn + 1)));
    Ok(mixed(key ^ mixed(drawn)))
}

/// The 24 random bits of a key at a place, as a number in `[0, 1)`.
pub(crate) fn uniform(key: u64, place: u64) -> f32 {
    (mixed(key.wrapping_add(place.wrapping_mul(GOLDEN))) >> 40) as f32 / (1u32 << 24) as f32
}

/// 2⁶⁴ over the golden ratio.
pub(crate) const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
pub(crate) fn mixed(mut z: u64) -> u64 {
    z = z.wrapping_add(GOLDEN);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_of_a_pass_draw_different_keys_and_the_same_again() {
        let keys = |key| {
            begin(key);
            [next().unwrap(), next().unwrap(), next().unwrap()]
        };
        let first = keys(7);
        assert_eq!(first, keys(7));
        assert!(first[0] != first[1] && first[1] != first[2] && first != keys(8));
        assert!(std::thread::spawn(next).join().unwrap().is_err(), "another thread has not begun");
    }

    #[test]
    fn numbers_are_spread_evenly() {
        let mut counts = [0; 10];
        (0..100_000).for_each(|place| counts[(uniform(3, place) * 10.0) as usize] += 1);
        assert!(counts.iter().all(|count| (9_600..10_400).contains(count)), "{counts:?}");
    }
}
