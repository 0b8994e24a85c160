//! Random crop with zero padding and horizontal flip: the CIFAR augmentation of He et al., "Deep
//! residual learning for image recognition" (2016), section 4.2.

use crate::rng::{Purpose, Stream};

/// The border of black pixels that a crop may reach into.
pub(crate) const PADDING: usize = 4;

/// What random changes of samples depend on, besides a sample's own number. Absent at evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Augment {
    /// The run's seed.
    pub seed: u64,
    /// The epoch, counted from 1; each epoch sees another variant of a sample.
    pub epoch: u64,
}

impl Augment {
    /// The variant of sample `index` in this epoch.
    pub(crate) fn view(&self, index: u32) -> View {
        let mut stream = Stream::keyed(Purpose::Augment, self.seed, self.epoch, u64::from(index));
        let offsets = 2 * PADDING as u32 + 1;
        View {
            top: stream.below(offsets) as usize,
            left: stream.below(offsets) as usize,
            flip: stream.coin(),
        }
    }
}

/// Which part of a padded image is seen, and from which side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct View {
    /// The first row of the crop, counted in the image padded by [`PADDING`].
    pub(crate) top: usize,
    /// Its first column.
    pub(crate) left: usize,
    /// Whether the crop is then mirrored.
    pub(crate) flip: bool,
}

impl View {
    /// Writes row `y` of the crop of `image` (`height` × `width` × 3 bytes) to `row`. What lies in
    /// the padding is 0, black, as in the usual pipeline, which pads before it normalises.
    pub(crate) fn row(&self, image: &[u8], height: usize, width: usize, y: usize, row: &mut [u8]) {
        row.fill(0);
        let Some(source) = (y + self.top).checked_sub(PADDING).filter(|&y| y < height) else {
            return;
        };
        let source = &image[source * width * 3..(source + 1) * width * 3];
        // Column x of the crop is column x + left - PADDING of the image.
        let first = PADDING.saturating_sub(self.left);
        let skipped = self.left.saturating_sub(PADDING);
        let seen = width - first.max(skipped);
        row[first * 3..(first + seen) * 3]
            .copy_from_slice(&source[skipped * 3..(skipped + seen) * 3]);
        if self.flip {
            let (pixels, _) = row.as_chunks_mut::<3>();
            pixels.reverse();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIDE: usize = 32;

    fn image() -> Vec<u8> {
        (0..SIDE * SIDE * 3).map(|i| (i * 7 % 255) as u8 + 1).collect()
    }

    fn crop(image: &[u8], view: View) -> Vec<u8> {
        let mut out = vec![9; SIDE * SIDE * 3];
        for (y, row) in out.chunks_exact_mut(SIDE * 3).enumerate() {
            view.row(image, SIDE, SIDE, y, row);
        }
        out
    }

    /// Pad, cut, mirror: one pixel at a time, as the definition says.
    fn by_definition(image: &[u8], view: View) -> Vec<u8> {
        let mut out = Vec::new();
        for y in 0..SIDE {
            for x in 0..SIDE {
                let x = if view.flip { SIDE - 1 - x } else { x };
                let (y, x) = (y + view.top, x + view.left);
                let inside = PADDING..SIDE + PADDING;
                for c in 0..3 {
                    out.push(if inside.contains(&y) && inside.contains(&x) {
                        image[((y - PADDING) * SIDE + x - PADDING) * 3 + c]
                    } else {
                        0
                    });
                }
            }
        }
        out
    }

    proptest! {
        #[test]
        fn a_view_is_pad_then_crop_then_flip(top in 0usize..=8, left in 0usize..=8, flip: bool) {
            let view = View { top, left, flip };
            prop_assert_eq!(crop(&image(), view), by_definition(&image(), view));
        }

        #[test]
        fn a_view_depends_on_seed_epoch_and_index_only(seed: u64, epoch: u64, index: u32) {
            let view = Augment { seed, epoch }.view(index);
            prop_assert!(view.top <= 8 && view.left <= 8);
            prop_assert_eq!(view, Augment { seed, epoch }.view(index));
        }
    }

    #[test]
    fn the_middle_view_is_the_image() {
        let view = View { top: PADDING, left: PADDING, flip: false };
        assert_eq!(crop(&image(), view), image());
    }

    #[test]
    fn all_162_views_come_up_evenly() {
        let mut counts = [0u32; 162];
        for index in 0..162_000 {
            let view = Augment { seed: 1, epoch: 1 }.view(index);
            counts[(view.top * 9 + view.left) * 2 + usize::from(view.flip)] += 1;
        }
        // Binomial(162000, 1/162): deviation 31.5; six of them.
        assert!(counts.iter().all(|&c| c.abs_diff(1000) < 190), "{counts:?}");
    }
}
