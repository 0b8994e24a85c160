//! Ladders of levels between 0 and 1, and rounding to their rungs at random, without bias.

/// Rungs between 0 and 1, the first at 0 and the last at 1.
pub(crate) trait Ladder: Copy {
    /// The last rung's number: 1 to 127.
    fn top(self) -> u8;

    /// The rung next to a share of 0 to 1, below or above it, as `random` bits say: above with the
    /// probability that makes the expectation the share.
    fn rung(self, share: f32, random: u32) -> u32;

    /// The share at a rung.
    fn share(self, rung: u8) -> f32;
}

/// Rungs at equal distances.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Uniform(pub u8);

impl Ladder for Uniform {
    #[inline(always)]
    fn top(self) -> u8 {
        self.0
    }

    #[inline(always)]
    fn rung(self, share: f32, random: u32) -> u32 {
        let place = share * f32::from(self.0);
        let below = place.floor();
        let up = if place - below > uniform(random) { 1.0 } else { 0.0 };
        small(below + up)
    }

    #[inline(always)]
    fn share(self, rung: u8) -> f32 {
        f32::from(rung) / f32::from(self.0)
    }
}

/// Rungs at 0 and at falling powers of two: 2^(1−n), …, 1/4, 1/2, 1.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Powers(pub u8);

impl Ladder for Powers {
    #[inline(always)]
    fn top(self) -> u8 {
        self.0
    }

    /// Between two powers of two the mantissa is the fraction of the distance to the upper one:
    /// adding a random mantissa carries into the exponent with exactly the probability of rounding
    /// up. The random bits are complemented, so that low ones round up here as on other ladders.
    #[inline(always)]
    fn rung(self, share: f32, random: u32) -> u32 {
        let lowest = self.share(1);
        let carried = share.to_bits() + (!random >> 9);
        let between = (carried >> 23).wrapping_sub(127 - u32::from(self.0));
        let first = u32::from(share / lowest > uniform(random));
        let low = 0u32.wrapping_sub(u32::from(share < lowest));
        first & low | between & !low
    }

    #[inline(always)]
    fn share(self, rung: u8) -> f32 {
        let power = f32::from_bits((127 + u32::from(rung) - u32::from(self.0)) << 23);
        if rung == 0 { 0.0 } else { power }
    }
}

/// Random bits as one of 2²⁴ equally spaced numbers in [0, 1).
#[inline(always)]
fn uniform(random: u32) -> f32 {
    (random >> 8) as i32 as f32 * (1.0 / 16_777_216.0)
}

/// A whole number below 2²³ as an integer: added to 2²³ it is the mantissa.
#[inline(always)]
fn small(whole: f32) -> u32 {
    (whole + 8_388_608.0).to_bits() & 0xff
}

/// Bits of a code: the sign, and as many as the highest level needs.
pub(crate) fn width(top: u8) -> u32 {
    1 + (u8::BITS - top.leading_zeros())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What the naive reading of the papers gives: search the rungs around the share.
    fn naive(ladder: impl Ladder, share: f32, random: u32) -> u32 {
        let rungs: Vec<f64> = (0..=ladder.top()).map(|r| f64::from(ladder.share(r))).collect();
        let below = rungs.iter().rposition(|rung| *rung <= f64::from(share)).unwrap();
        let Some(above) = rungs.get(below + 1) else { return below as u32 };
        let way = (f64::from(share) - rungs[below]) / (above - rungs[below]);
        (below + usize::from(way > f64::from(random >> 8) / 16_777_216.0)) as u32
    }

    /// Where along the way between two rungs a share lies, against the random number: at ties of
    /// f32 rounding the two may differ.
    fn close(ladder: impl Ladder, share: f32, random: u32) -> bool {
        (-2i64..=2).any(|off| {
            let moved = (i64::from(random) + off * 2048).clamp(0, i64::from(u32::MAX)) as u32;
            naive(ladder, share, moved) == ladder.rung(share, random)
        })
    }

    proptest! {
        #[test]
        fn rungs_are_those_of_the_naive_search(
            share in 0f32..=1.0, fall in 0u32..20, random: u32, top in 1u8..=127,
        ) {
            let share = share * 0.5f32.powi(fall as i32);
            prop_assert!(close(Uniform(top), share, random));
            prop_assert!(close(Powers(top), share, random));
            prop_assert_eq!(Uniform(top).rung(1.0, random), u32::from(top));
            prop_assert_eq!(Powers(top).rung(1.0, random), u32::from(top));
            prop_assert_eq!(Uniform(top).rung(0.0, random), 0);
            prop_assert_eq!(Powers(top).rung(0.0, random), 0);
        }
    }

    #[test]
    fn codes_have_the_width_of_their_levels() {
        assert_eq!([1, 2, 3, 4, 7, 8, 64, 127].map(width), [2, 3, 3, 4, 4, 5, 8, 8]);
    }
}
