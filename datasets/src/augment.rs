//! Random translation and horizontal flip of images.
//!
//! The defaults are the CIFAR augmentation of He et al., "Deep residual learning for image
//! recognition" (2016), section 4.2: a crop from the image with four black pixels around it, and a
//! fair coin for the flip. Alternating flips and reflected borders are those of Jordan, "94% on
//! CIFAR-10 in 3.29 seconds on a single GPU" (2024), sections 3.1 and 3.6.

use crate::rng::{Purpose, RandomStream};
use serde::{Deserialize, Serialize};

settings! {
    /// How samples are changed at random in training. Texts are left as they are.
    #[derive(Copy, Eq)]
    pub struct Augmentation {
        /// Which images are mirrored: `random`, `alternating` or `none`.
        pub flip: Flip = Flip::Random,
        /// The most pixels that an image is moved by in each direction, at most half of its shorter side; 0 for none.
        #[cfg_attr(feature = "schema", schemars(range(max = 16)))]
        pub translate: usize = 4,
        /// What a moved image shows beyond its border: `black`, or its own pixels by `reflect`.
        pub border: Border = Border::Black,
    }
}

/// The most pixels that an image may be moved by: half of the side of CIFAR's.
const FURTHEST: usize = 16;

impl Augmentation {
    /// Checks the settings.
    ///
    /// # Errors
    /// A sentence that names the key and what to write instead.
    pub fn validate(&self) -> Result<(), String> {
        if self.translate > FURTHEST {
            return Err(format!(
                "augment.translate = {} moves images out of sight; write at most {FURTHEST} pixels, \
                 such as 4",
                self.translate
            ));
        }
        Ok(())
    }
}

/// Which images are mirrored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Flip {
    /// None.
    None,
    /// A fair coin decides for each image in each epoch.
    Random,
    /// A fair coin decides for each image in the first epoch, and then every other epoch is the
    /// mirror of the one before: two epochs in a row never show an image from the same side
    /// (Jordan 2024, section 3.6).
    Alternating,
}

/// What a moved image shows beyond its border.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Border {
    /// Black pixels.
    Black,
    /// The image's own pixels, mirrored at the last one, which is not repeated.
    Reflect,
}

/// What random changes of samples depend on, besides a sample's own number. Absent at evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Augment {
    /// The run's seed.
    pub seed: u64,
    /// The epoch, counted from 1; each epoch sees another variant of a sample.
    pub epoch: u64,
    /// What is changed.
    pub how: Augmentation,
}

impl Augment {
    /// The variant in this epoch of sample `index`, whose shorter side is `side`: it is moved by half of
    /// that at most.
    pub(crate) fn view(&self, index: u32, side: usize) -> ImageView {
        let Augmentation { flip, translate, border } = self.how;
        let translate = translate.min(side / 2);
        let of_epoch =
            |epoch| RandomStream::keyed(Purpose::Augment, self.seed, epoch, u64::from(index));
        let mut stream = of_epoch(self.epoch);
        let mut offset = || stream.below(2 * translate as u32 + 1) as isize - translate as isize;
        let (down, right) = (offset(), offset());
        let flip = match flip {
            Flip::None => false,
            Flip::Random => stream.coin(),
            // Epoch 0 is nobody's: its coin is the image's own.
            Flip::Alternating => of_epoch(0).coin() ^ self.epoch.is_multiple_of(2),
        };
        ImageView { down, right, flip, border }
    }
}

/// Which part of an image, continued beyond its border, is seen, and from which side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ImageView {
    /// The first row, counted in the image; at most half of its height either way.
    pub(crate) down: isize,
    /// The first column, likewise.
    pub(crate) right: isize,
    /// Whether what is seen is then mirrored.
    pub(crate) flip: bool,
    /// What lies beyond the border.
    pub(crate) border: Border,
}

impl ImageView {
    /// Writes row `y` of what is seen of `image` (`height` × `width` × C bytes) to `row`. The border
    /// belongs to the image before it is normalised, as in the usual pipeline.
    pub(crate) fn row<const C: usize>(
        &self,
        image: &[u8],
        height: usize,
        width: usize,
        y: usize,
        row: &mut [u8],
    ) {
        let (row, _) = row.as_chunks_mut::<C>();
        let Some(y) = self.source(y, self.down, height) else {
            row.fill([0; C]);
            return;
        };
        let (source, _) = image[y * width * C..(y + 1) * width * C].as_chunks::<C>();
        // The columns that lie within the image are copied at once; only those beyond its border are
        // looked up one by one.
        let first = self.right.min(0).unsigned_abs();
        let skipped = self.right.max(0).unsigned_abs();
        let seen = width - first.max(skipped);
        row[first..first + seen].copy_from_slice(&source[skipped..skipped + seen]);
        for x in (0..first).chain(first + seen..width) {
            row[x] = self.source(x, self.right, width).map_or([0; C], |x| source[x]);
        }
        if self.flip {
            row.reverse();
        }
    }

    /// The row or column of the image that is seen at `position`, of `size`; none where it is black.
    fn source(&self, position: usize, shift: isize, size: usize) -> Option<usize> {
        match position.checked_add_signed(shift) {
            Some(inside) if inside < size => Some(inside),
            _ if self.border == Border::Black => None,
            // Beyond the last pixel, size − 1, or before the first, 0, by as many as on the other side.
            Some(beyond) => (2 * size).checked_sub(beyond + 2),
            None => Some(shift.unsigned_abs() - position),
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

    fn crop(image: &[u8], view: ImageView) -> Vec<u8> {
        let mut out = vec![9; SIDE * SIDE * 3];
        for (y, row) in out.chunks_exact_mut(SIDE * 3).enumerate() {
            view.row::<3>(image, SIDE, SIDE, y, row);
        }
        out
    }

    /// The image with a border of 16 pixels, one pixel at a time, as the definition says.
    fn continued(image: &[u8], border: Border) -> Vec<[u8; 3]> {
        let size = SIDE as isize;
        let inside = |at: isize| (0..size).contains(&at);
        let reflected = |at: isize| if at < 0 { -at } else { 2 * (size - 1) - at };
        let mut all = Vec::new();
        for y in -16..size + 16 {
            for x in -16..size + 16 {
                let of = |y: isize, x: isize| {
                    let at = (y * size + x) as usize * 3;
                    [image[at], image[at + 1], image[at + 2]]
                };
                let within = |at: isize| if inside(at) { at } else { reflected(at) };
                all.push(match border {
                    Border::Black if !inside(y) || !inside(x) => [0; 3],
                    _ => of(within(y), within(x)),
                });
            }
        }
        all
    }

    /// Continue, cut, mirror.
    fn by_definition(image: &[u8], view: ImageView) -> Vec<u8> {
        let (all, mut out) = (continued(image, view.border), Vec::new());
        for y in 0..SIDE {
            for x in 0..SIDE {
                let x = if view.flip { SIDE - 1 - x } else { x };
                let (y, x) = (y as isize + view.down + 16, x as isize + view.right + 16);
                out.extend(all[y as usize * 2 * SIDE + x as usize]);
            }
        }
        out
    }

    fn augment(seed: u64, epoch: u64, how: Augmentation) -> Augment {
        Augment { seed, epoch, how }
    }

    proptest! {
        #[test]
        fn a_view_is_continued_then_cut_then_mirrored(
            down in -16isize..=16, right in -16isize..=16, flip: bool, reflect: bool,
        ) {
            let border = if reflect { Border::Reflect } else { Border::Black };
            let view = ImageView { down, right, flip, border };
            prop_assert_eq!(crop(&image(), view), by_definition(&image(), view));
        }

        #[test]
        fn a_view_depends_on_seed_epoch_and_index_only(seed: u64, epoch: u64, index: u32) {
            let how = Augmentation { translate: 3, ..Augmentation::default() };
            let view = augment(seed, epoch, how).view(index, SIDE);
            prop_assert!(view.down.abs() <= 3 && view.right.abs() <= 3);
            prop_assert_eq!(view, augment(seed, epoch, how).view(index, SIDE));
        }

        #[test]
        fn alternating_flips_show_the_other_side_in_the_next_epoch(
            seed: u64, epoch in 1u64..1_000_000, index: u32,
        ) {
            let how = Augmentation { flip: Flip::Alternating, ..Augmentation::default() };
            let of = |epoch| augment(seed, epoch, how).view(index, SIDE).flip;
            prop_assert_ne!(of(epoch), of(epoch + 1));
            prop_assert_eq!(of(epoch), of(epoch + 2));
        }
    }

    #[test]
    fn the_middle_view_is_the_image() {
        let view = ImageView { down: 0, right: 0, flip: false, border: Border::Black };
        assert_eq!(crop(&image(), view), image());
        let still = Augmentation { flip: Flip::None, translate: 0, border: Border::Reflect };
        for index in 0..100 {
            assert_eq!(crop(&image(), augment(1, 2, still).view(index, SIDE)), image());
        }
    }

    #[test]
    fn all_162_views_come_up_evenly() {
        let mut counts = [0u32; 162];
        for index in 0..162_000 {
            let view = augment(1, 1, Augmentation::default()).view(index, SIDE);
            let (top, left) = ((view.down + 4) as usize, (view.right + 4) as usize);
            counts[(top * 9 + left) * 2 + usize::from(view.flip)] += 1;
        }
        // Binomial(162000, 1/162): deviation 31.5; six of them.
        assert!(counts.iter().all(|&c| c.abs_diff(1000) < 190), "{counts:?}");
    }

    #[test]
    fn the_first_side_of_alternating_flips_is_a_fair_coin() {
        let how = Augmentation { flip: Flip::Alternating, ..Augmentation::default() };
        let mirrored = (0..10_000).filter(|i| augment(3, 1, how).view(*i, SIDE).flip).count();
        // Binomial(10000, 1/2): deviation 50; six of them.
        assert!(mirrored.abs_diff(5000) < 300, "{mirrored}");
    }

    #[test]
    fn images_are_not_moved_out_of_sight() {
        let how = |translate| Augmentation { translate, ..Augmentation::default() };
        assert!(how(16).validate().is_ok());
        assert!(how(17).validate().unwrap_err().starts_with("augment.translate = 17"));
    }
}
