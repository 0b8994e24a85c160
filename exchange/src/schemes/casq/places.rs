//! Where in a block those elements lie whose cluster is among some.

use crate::wire::codes;

/// Elements that are looked through together.
pub(super) const BLOCK: usize = codes::BLOCK;

/// Elements whose cells are found side by side, and places that may be written behind the last.
pub(super) const LANES: usize = 32;

/// A bit for each element of a block, the first in the lowest place.
pub(super) type Bits = [u64; BLOCK / 64];

/// Which of `ids`, at most a block of them, are among `wanted`.
#[inline(always)]
pub(super) fn among(ids: &[u8], wanted: &[u8]) -> Bits {
    let mut bits = [0; BLOCK / 64];
    let (whole, rest) = ids.as_chunks::<64>();
    let (of_whole, of_rest) = bits.split_at_mut(whole.len());
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = pulp::x86::V3::try_new() {
        simd.vectorize(avx2::Among { simd, ids: whole, wanted, bits: of_whole });
    } else {
        one_by_one(whole.as_flattened(), wanted, of_whole);
    }
    #[cfg(not(target_arch = "x86_64"))]
    one_by_one(whole.as_flattened(), wanted, of_whole);
    one_by_one(rest, wanted, of_rest);
    bits
}

/// The simple form.
fn one_by_one(ids: &[u8], wanted: &[u8], bits: &mut [u64]) {
    for (bits, ids) in bits.iter_mut().zip(ids.chunks(64)) {
        let bit = |(i, id): (usize, &u8)| u64::from(wanted.contains(id)) << i;
        *bits = ids.iter().enumerate().map(bit).sum();
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    /// Compares 32 ids at once, and takes the upper bits of what comes out.
    pub(super) struct Among<'a> {
        pub(super) simd: pulp::x86::V3,
        pub(super) ids: &'a [[u8; 64]],
        pub(super) wanted: &'a [u8],
        pub(super) bits: &'a mut [u64],
    }

    impl pulp::NullaryFnOnce for Among<'_> {
        type Output = ();

        #[inline(always)]
        fn call(self) {
            let (avx, avx2) = (self.simd.avx, self.simd.avx2);
            for (bits, ids) in self.bits.iter_mut().zip(self.ids) {
                let halves: [[u8; 32]; 2] = pulp::cast(*ids);
                let [low, high] = halves.map(|half| {
                    let ids = pulp::cast(half);
                    let mut found = avx._mm256_setzero_si256();
                    for wanted in self.wanted {
                        let wanted = avx._mm256_set1_epi8(*wanted as i8);
                        found = avx2._mm256_or_si256(found, avx2._mm256_cmpeq_epi8(ids, wanted));
                    }
                    u64::from(avx2._mm256_movemask_epi8(found) as u32)
                });
                *bits = low | high << 32;
            }
        }
    }
}

/// Puts the places of the bits that are set among the first `length` into `places`, ascending, and
/// returns how many: those of a byte at a time, from a table. The simple form puts the place of one bit after another.
#[inline(always)]
pub(super) fn places_of(bits: &Bits, length: usize, places: &mut [u16; BLOCK + LANES]) -> usize {
    let mut count = 0;
    for (number, bits) in bits[..length.div_ceil(64)].iter().enumerate() {
        for (byte, among) in bits.to_le_bytes().into_iter().zip((64 * number..).step_by(8)) {
            let within = PLACES[usize::from(byte)].map(|place| place + among as u16);
            places[count..count + 8].copy_from_slice(&within);
            count += byte.count_ones() as usize;
        }
    }
    count
}

/// The places of the bits that are set in a byte, ascending.
const PLACES: [[u16; 8]; 256] = {
    let mut all = [[0; 8]; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut place, mut count) = (0, 0);
        while place < 8 {
            if byte >> place & 1 == 1 {
                all[byte][count] = place;
                count += 1;
            }
            place += 1;
        }
        byte += 1;
    }
    all
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_found_one_by_one() {
        for length in [0, 1, 63, 64, 65, 640, BLOCK - 1, BLOCK] {
            let ids: Vec<u8> = (0..length).map(|i| (i * i % 251 % 7) as u8 + 249).collect();
            for wanted in [&[][..], &[249], &[250, 255, 3], &[249, 250, 251, 252, 253, 254, 255]] {
                let found = among(&ids, wanted);
                let mut simple = [0; BLOCK / 64];
                one_by_one(&ids, wanted, &mut simple);
                assert_eq!(found, simple, "{length} ids, {wanted:?}");
                let mut places = [0; BLOCK + LANES];
                let count = places_of(&found, length, &mut places);
                let expected = (0..length).filter(|i| wanted.contains(&ids[*i]));
                let expected: Vec<u16> = expected.map(|i| i as u16).collect();
                assert_eq!(places[..count], expected, "{length} ids, {wanted:?}");
            }
        }
    }
}
