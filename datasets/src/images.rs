//! Images of one size, grey or in colour, resident as bytes.

use std::sync::Arc;

use crate::augment::Augment;
use crate::dataset::{Batch, Dataset, Features, Shape};
use crate::normalisation::{ByteValues, CHANNELS, Normalisation};

/// What every image of a set has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) height: usize,
    pub(crate) width: usize,
    /// Values per pixel: 1 or 3.
    pub(crate) channels: usize,
}

impl Size {
    /// Bytes of one image.
    pub(crate) const fn bytes(self) -> usize {
        self.height * self.width * self.channels
    }

    /// As a person says it: `28×28 grey`.
    pub(crate) fn in_words(self) -> String {
        let colour = if self.channels == 1 { "grey" } else { "in colour" };
        format!("{}×{} {colour}", self.height, self.width)
    }

    /// The same for whoever reads them.
    pub(crate) const fn shape(self) -> Shape {
        Shape::Image { height: self.height, width: self.width, channels: self.channels }
    }
}

/// Rows and columns of CIFAR's images.
pub(crate) const SIDE: usize = 32;
/// CIFAR's images.
pub(crate) const CIFAR: Size = Size { height: SIDE, width: SIDE, channels: CHANNELS };
/// Bytes of one of them.
pub(crate) const IMAGE: usize = CIFAR.bytes();

/// Images being read: pixel by pixel, row by row.
#[derive(Default)]
pub(crate) struct GatheredImages {
    pub(crate) pixels: Vec<u8>,
    pub(crate) labels: Vec<u32>,
}

impl GatheredImages {
    /// Makes room for so many of CIFAR's images.
    pub(crate) fn reserve(&mut self, images: usize) {
        self.pixels.reserve_exact(images * IMAGE);
        self.labels.reserve_exact(images);
    }

    /// Adds an image of CIFAR, given as three planes of `SIDE` × `SIDE` bytes.
    pub(crate) fn push(&mut self, label: u8, planes: &[u8; IMAGE]) {
        let (red, rest) = planes.split_at(SIDE * SIDE);
        let (green, blue) = rest.split_at(SIDE * SIDE);
        let start = self.pixels.len();
        self.pixels.resize(start + IMAGE, 0);
        let (pixels, _) = self.pixels[start..].as_chunks_mut::<CHANNELS>();
        for (((pixel, &r), &g), &b) in pixels.iter_mut().zip(red).zip(green).zip(blue) {
            *pixel = [r, g, b];
        }
        self.labels.push(label.into());
    }

    pub(crate) fn len(&self) -> usize {
        self.labels.len()
    }

    /// The training and the test set of these images, both normalised by the training images.
    pub(crate) fn into_sets(
        train: Self,
        test: Self,
        size: Size,
        classes: impl IntoIterator<Item: Into<String>>,
    ) -> (Images, Images, Normalisation) {
        let normalisation = Normalisation::from_pixels(&train.pixels, size.channels);
        let table = Arc::new(normalisation.table());
        let classes: Vec<String> = classes.into_iter().map(Into::into).collect();
        let set = |Self { pixels, labels }, classes| Images {
            pixels,
            labels,
            size,
            classes,
            table: Arc::clone(&table),
        };
        (set(train, classes.clone()), set(test, classes), normalisation)
    }
}

/// A set of images.
#[derive(Clone)]
pub(crate) struct Images {
    /// Image after image, row after row, pixel after pixel, red green blue.
    pixels: Vec<u8>,
    labels: Vec<u32>,
    size: Size,
    classes: Vec<String>,
    table: Arc<ByteValues>,
}

impl Images {
    fn normalise<const C: usize>(&self, bytes: &[u8], out: &mut [f32]) {
        let (bytes, _) = bytes.as_chunks::<C>();
        let (out, _) = out.as_chunks_mut::<C>();
        for (out, pixel) in out.iter_mut().zip(bytes) {
            *out = std::array::from_fn(|channel| self.table[channel][usize::from(pixel[channel])]);
        }
    }

    /// The images of these numbers, of C values a pixel, as `augment` has them.
    fn fill<const C: usize>(&self, indices: &[u32], augment: Option<&Augment>, out: &mut [f32]) {
        let Size { height, width, .. } = self.size;
        let (length, mut row) = (self.size.bytes(), vec![0u8; width * C]);
        for (&index, out) in indices.iter().zip(out.chunks_exact_mut(length)) {
            let image = &self.pixels[index as usize * length..(index as usize + 1) * length];
            let Some(augment) = augment else {
                self.normalise::<C>(image, out);
                continue;
            };
            let view = augment.view(index, height.min(width));
            for (y, out) in out.chunks_exact_mut(width * C).enumerate() {
                view.row::<C>(image, height, width, y, &mut row);
                self.normalise::<C>(&row, out);
            }
        }
    }
}

impl Dataset for Images {
    fn len(&self) -> usize {
        self.labels.len()
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn shape(&self) -> Shape {
        self.size.shape()
    }

    fn normalised_by(&self, normalisation: &Normalisation) -> Option<Arc<dyn Dataset>> {
        Some(Arc::new(Self { table: Arc::new(normalisation.table()), ..self.clone() }))
    }

    fn batch(&self, indices: &[u32], augment: Option<&Augment>, into: &mut Batch) {
        into.labels.clear();
        into.labels.extend(indices.iter().map(|&i| self.labels[i as usize]));
        let mut pixels = match std::mem::take(&mut into.features) {
            Features::Images { pixels, .. } => pixels,
            Features::Tokens { .. } | Features::Sequences { .. } => Vec::new(),
        };
        let Size { height, width, channels } = self.size;
        pixels.resize(indices.len() * self.size.bytes(), 0.0);
        match channels {
            1 => self.fill::<1>(indices, augment, &mut pixels),
            _ => self.fill::<CHANNELS>(indices, augment, &mut pixels),
        }
        into.features = Features::Images { pixels, height, width, channels };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::augment::Augmentation;
    use crate::dataset::batch_of;

    fn augment(seed: u64, epoch: u64) -> Augment {
        Augment { seed, epoch, how: Augmentation::default() }
    }

    /// Image i has red (i·9 + position), green 7, blue 255 − red.
    fn gathered(n: usize) -> GatheredImages {
        let mut gathered = GatheredImages::default();
        for i in 0..n {
            let mut planes = [0u8; IMAGE];
            for p in 0..SIDE * SIDE {
                let red = (i * 9 + p) as u8;
                planes[p] = red;
                planes[p + SIDE * SIDE] = 7;
                planes[p + 2 * SIDE * SIDE] = 255 - red;
            }
            gathered.push(i as u8 % 10, &planes);
        }
        gathered
    }

    fn sets() -> (Images, Images, Normalisation) {
        GatheredImages::into_sets(gathered(8), gathered(3), CIFAR, ["a"; 10])
    }

    fn pixels(batch: &Batch) -> &[f32] {
        match &batch.features {
            Features::Images { pixels, .. } => pixels,
            _ => panic!("images expected"),
        }
    }

    #[test]
    fn grey_images_of_any_size_are_normalised_and_moved_within_their_sides() {
        let size = Size { height: 4, width: 6, channels: 1 };
        let images = |count: usize| GatheredImages {
            pixels: (0..count * size.bytes()).map(|i| (i * 7) as u8).collect(),
            labels: vec![300; count],
        };
        let (train, test, normal) = GatheredImages::into_sets(images(5), images(2), size, ["a"]);
        assert_eq!((test.len(), test.shape()), (2, size.shape()));
        assert!(normal.mean[0] == normal.mean[2] && normal.deviation[0] == normal.deviation[1]);
        let far = Augmentation { translate: 16, ..Augmentation::default() };
        let black = (-normal.mean[0] / normal.deviation[0]) as f32;
        for epoch in 1..50 {
            let augment = Augment { seed: 1, epoch, how: far };
            let batch = batch_of(&train, &[4, 0], Some(&augment));
            assert_eq!((batch.labels.as_slice(), pixels(&batch).len()), ([300; 2].as_slice(), 48));
            let shown = pixels(&batch).iter().filter(|&&value| (value - black).abs() > 1e-6);
            assert!(shown.count() >= 2 * 2 * 4, "at most two pixels are moved out of sight");
        }
    }

    #[test]
    fn moments_by_definition() {
        let (_, _, found) = sets();
        // Every byte occurs equally often in red and blue.
        let mean = (0..256).sum::<i32>() as f64 / 256.0;
        let variance = (0..256).map(|v| (f64::from(v) - mean).powi(2)).sum::<f64>() / 256.0;
        assert!((found.mean[0] - mean / 255.0).abs() < 1e-12);
        assert!((found.deviation[0] - variance.sqrt() / 255.0).abs() < 1e-12);
        assert!((found.mean[1] - 7.0 / 255.0).abs() < 1e-12);
        assert_eq!(found.deviation[1], 0.0);
    }

    #[test]
    fn pixels_come_out_normalised_and_interleaved() {
        let (train, test, normal) = sets();
        for set in [&train, &test] {
            let batch = batch_of(set, &[2, 0], None);
            assert_eq!(batch.labels, [2, 0]);
            assert_eq!(pixels(&batch).len(), 2 * IMAGE);
            // Image 2, row 1, column 3: byte 18 + 35.
            let at = (SIDE + 3) * CHANNELS;
            let value = |byte: f64, c: usize| (byte / 255.0 - normal.mean[c]) / normal.deviation[c];
            let found = &pixels(&batch)[at..at + 3];
            assert!((f64::from(found[0]) - value(53.0, 0)).abs() < 1e-6);
            assert!(found[1].abs() < 1e-6, "a constant channel becomes 0");
            assert!((f64::from(found[2]) - value(202.0, 2)).abs() < 1e-6);
        }
    }

    #[test]
    fn a_set_takes_the_normalisation_of_another() {
        let (_, test, normal) = sets();
        let half = Normalisation { deviation: normal.deviation.map(|d| d / 2.0), ..normal };
        let other = test.normalised_by(&half).unwrap();
        let (own, other) = (batch_of(&test, &[2, 0], None), batch_of(&*other, &[2, 0], None));
        assert_eq!(own.labels, other.labels);
        let twice: Vec<f32> = pixels(&own).iter().map(|value| 2.0 * value).collect();
        assert_eq!(pixels(&other), twice);
    }

    #[test]
    fn buffers_are_reused_and_resized() {
        let (train, ..) = sets();
        let mut batch = batch_of(&train, &[0, 1, 2, 3], None);
        let buffer = pixels(&batch).as_ptr();
        train.batch(&[5], None, &mut batch);
        assert_eq!((pixels(&batch).as_ptr(), pixels(&batch).len()), (buffer, IMAGE));
        train.batch(&[], None, &mut batch);
        assert!(batch.is_empty() && pixels(&batch).is_empty());
        train.batch(&[3, 1], Some(&augment(1, 2)), &mut batch);
        assert_eq!(batch, batch_of(&train, &[3, 1], Some(&augment(1, 2))));
    }

    #[test]
    fn padding_is_black_before_normalisation() {
        let (train, _, normal) = sets();
        let black = (-normal.mean[0] / normal.deviation[0]) as f32;
        let augment = augment(0, 1);
        let all: Vec<u32> = (0..8).collect();
        let batch = batch_of(&train, &all, Some(&augment));
        for (&index, image) in all.iter().zip(pixels(&batch).chunks_exact(IMAGE)) {
            if augment.view(index, SIDE).down < 0 {
                assert!(
                    image[..SIDE * CHANNELS]
                        .iter()
                        .step_by(3)
                        .all(|&red| (red - black).abs() < 1e-6)
                );
            }
        }
    }

    #[test]
    fn a_sample_is_augmented_alike_in_any_company() {
        let (train, ..) = sets();
        let augment = augment(9, 4);
        let one = batch_of(&train, &[5], Some(&augment));
        let many = batch_of(&train, &[1, 5, 2], Some(&augment));
        assert_eq!(pixels(&one), &pixels(&many)[IMAGE..2 * IMAGE]);
    }
}
