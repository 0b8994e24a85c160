//! A plain message that stays written: of a gradient that is mostly zero, and elsewhere zero again at
//! the next step, only the pages that change are written and summed up again.

use crate::support::BLOCK;
use crate::wire::checksum::{self, Checksum, PAGE, ZEROS};
use crate::wire::floats;

/// Blocks of a page.
const BLOCKS: usize = PAGE / 4 / BLOCK;

/// Pages that one word of a support stands for.
const PAGES: usize = 64 / BLOCKS;

/// The blocks of a word's first page.
const MASK: u64 = (1 << BLOCKS) - 1;

/// What is known of a payload of plain values.
pub(super) struct Standing {
    /// A bit for each block outside of which it is zero.
    written: Vec<u64>,
    /// Of each whole page.
    checksums: Vec<u32>,
}

impl Standing {
    /// Of `length` zeros.
    pub(super) fn zeros(length: usize) -> Self {
        let written = vec![0; length.div_ceil(BLOCK).div_ceil(64)];
        Self { written, checksums: vec![*ZEROS; 4 * length / PAGE] }
    }

    /// Makes `payload`, which this is known of, one of the `gradient`, which is zero outside of
    /// `support`: a bit for each block. Its checksum; `None` when an element is not finite: then
    /// nothing is known of the payload any more.
    pub(super) fn write(
        &mut self,
        gradient: &[f32],
        support: &[u64],
        payload: &mut [u8],
    ) -> Option<Checksum> {
        for (word, (written, now)) in self.written.iter_mut().zip(support).enumerate() {
            let changed = *written | *now;
            if changed == 0 {
                continue;
            }
            for page in (0..PAGES).filter(|page| changed >> (page * BLOCKS) & MASK != 0) {
                for block in page * BLOCKS..(page + 1) * BLOCKS {
                    let start = (word * 64 + block) * BLOCK;
                    let elements = start.min(gradient.len())..gradient.len().min(start + BLOCK);
                    let bytes = &mut payload[4 * elements.start..4 * elements.end];
                    if *now >> block & 1 == 1 {
                        if !floats::set_checked(&gradient[elements], bytes) {
                            return None;
                        }
                    } else if *written >> block & 1 == 1 {
                        bytes.fill(0);
                    }
                }
                let number = word * PAGES + page;
                if let Some(checksum) = self.checksums.get_mut(number) {
                    *checksum = Checksum::of(&payload[number * PAGE..(number + 1) * PAGE]).value();
                }
            }
            *written = *now;
        }
        let mut all = checksum::of_pages(&self.checksums);
        all.add(&payload[self.checksums.len() * PAGE..]);
        Some(all)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Support;

    proptest! {
        #[test]
        fn what_is_changed_is_what_would_be_written_anew(
            length in 1usize..20_000,
            steps in prop::collection::vec(
                prop::collection::vec((0usize..20_000, 1usize..700, -3f32..3.0), 0..5), 1..6),
        ) {
            let mut standing = Standing::zeros(length);
            let mut payload = vec![0; 4 * length];
            for step in steps {
                let mut gradient = vec![0.0; length];
                let mut support = Support::nothing(length);
                for (start, size, value) in step {
                    let range = start.min(length)..(start + size).min(length);
                    support.add(range.clone());
                    // Less than there might be.
                    range.step_by(3).for_each(|element| gradient[element] = value);
                }
                let checksum = standing.write(&gradient, support.words(), &mut payload).unwrap();
                let mut anew = Vec::new();
                floats::put(&gradient, &mut anew);
                prop_assert!(payload == anew);
                prop_assert_eq!(checksum.value(), Checksum::of(&anew).value());
            }
        }
    }

    #[test]
    fn what_is_not_finite_is_noticed() {
        let mut support = Support::nothing(1_000);
        support.add(990..991);
        let mut gradient = vec![0.0; 1_000];
        gradient[970] = f32::INFINITY;
        let written = Standing::zeros(1_000).write(&gradient, support.words(), &mut [0; 4_000]);
        assert!(written.is_none());
    }
}
