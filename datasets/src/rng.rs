//! A small counter-based generator: a stream is a pure function of its key.
//!
//! Keys are mixed with the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable
//! pseudorandom number generators", 2014), word by word; the stream is SplitMix64 from there.
//! Nothing is shared and nothing advances behind the caller's back, so what a sample's draw is
//! does not depend on who asks, when, or on which thread.

/// What a stream is for: the first word of its key, so that two purposes with the same seed never
/// share numbers.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    /// The order of the samples within an epoch.
    Shuffle = 1,
    /// The crop and flip of one sample in one epoch.
    Augment = 2,
    /// The contents of a synthetic data set.
    Synthetic = 3,
    /// Which training samples are tested on.
    HoldOut = 4,
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A stream of random numbers that depends on nothing but its key.
pub(crate) struct RandomStream(u64);

impl RandomStream {
    /// The stream of `purpose`, `seed` and two more words (an epoch and an index, say).
    pub(crate) fn keyed(purpose: Purpose, seed: u64, a: u64, b: u64) -> Self {
        let state = [purpose as u64, seed, a, b]
            .into_iter()
            .fold(0, |state: u64, word| mix(state.wrapping_add(GOLDEN) ^ mix(word ^ GOLDEN)));
        Self(state)
    }

    /// The next 64 random bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// Uniform in `0..n`, without bias (Lemire, "Fast random integer generation in an interval",
    /// 2019). `n` must not be 0.
    pub(crate) fn below(&mut self, n: u32) -> u32 {
        debug_assert!(n > 0);
        let mut product = u64::from((self.bits() >> 32) as u32) * u64::from(n);
        if (product as u32) < n {
            let floor = n.wrapping_neg() % n;
            while (product as u32) < floor {
                product = u64::from((self.bits() >> 32) as u32) * u64::from(n);
            }
        }
        (product >> 32) as u32
    }

    /// Uniform in `[0, 1)`, a multiple of 2⁻²⁴.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u32 << 24) as f32
    }

    /// A fair coin.
    pub(crate) fn coin(&mut self) -> bool {
        self.bits() >> 63 == 1
    }

    /// Puts `items` into a uniformly random order (Fisher–Yates).
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let bound = u32::try_from(last + 1).expect("invariant: at most u32::MAX items");
            items.swap(last, self.below(bound) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_a_function_of_its_key() {
        let draw = |seed, a, b| RandomStream::keyed(Purpose::Augment, seed, a, b).bits();
        assert_eq!(draw(1, 2, 3), draw(1, 2, 3));
        let others = [draw(0, 2, 3), draw(1, 3, 2), draw(1, 2, 4), draw(2, 1, 3), draw(1, 2, 2)];
        assert!(others.iter().all(|&other| other != draw(1, 2, 3)));
        assert_ne!(
            RandomStream::keyed(Purpose::Shuffle, 1, 2, 3).bits(),
            RandomStream::keyed(Purpose::Augment, 1, 2, 3).bits()
        );
    }

    #[test]
    fn below_is_even() {
        let mut stream = RandomStream::keyed(Purpose::Synthetic, 5, 0, 0);
        let mut counts = [0u32; 9];
        for _ in 0..90_000 {
            counts[stream.below(9) as usize] += 1;
        }
        // Binomial(90000, 1/9): deviation 94.3; five of them.
        assert!(counts.iter().all(|&c| c.abs_diff(10_000) < 472), "{counts:?}");
    }

    #[test]
    fn neighbouring_keys_are_unrelated() {
        // The first draw of consecutive indices: mean and lag-one correlation of a uniform.
        let draws: Vec<f64> = (0..20_000)
            .map(|index| f64::from(RandomStream::keyed(Purpose::Augment, 0, 1, index).unit()) - 0.5)
            .collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let lag = draws.windows(2).map(|w| w[0] * w[1]).sum::<f64>() * 12.0 / draws.len() as f64;
        assert!(mean.abs() < 5.0 * (1.0f64 / 12.0 / 20_000.0).sqrt(), "{mean}");
        assert!(lag.abs() < 5.0 / 20_000f64.sqrt(), "{lag}");
    }

    #[test]
    fn shuffle_is_a_permutation() {
        let mut items: Vec<u32> = (0..1000).collect();
        RandomStream::keyed(Purpose::Shuffle, 3, 1, 0).shuffle(&mut items);
        assert_ne!(items, (0..1000).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..1000).collect::<Vec<_>>());
    }
}
