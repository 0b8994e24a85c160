//! Images of 32 × 32 pixels and three channels, resident as bytes.

use std::sync::Arc;

use crate::augment::{Augment, View};
use crate::dataset::{Batch, Dataset, Features, Shape};
use crate::normalisation::{CHANNELS, Normalisation, Table};

/// Rows and columns of every image.
pub(crate) const SIDE: usize = 32;
/// Bytes of one image.
pub(crate) const IMAGE: usize = SIDE * SIDE * CHANNELS;
/// The same for whoever reads them.
pub(crate) const SHAPE: Shape = Shape::Image { height: SIDE, width: SIDE, channels: CHANNELS };
/// Bytes of one row of an image.
const ROW: usize = SIDE * CHANNELS;

/// Images being read: pixels channel by channel come in, pixel by pixel they are kept.
#[derive(Default)]
pub(crate) struct Gathered {
    pixels: Vec<u8>,
    labels: Vec<u8>,
}

impl Gathered {
    pub(crate) fn reserve(&mut self, images: usize) {
        self.pixels.reserve_exact(images * IMAGE);
        self.labels.reserve_exact(images);
    }

    /// Adds an image given as three planes of `SIDE` × `SIDE` bytes.
    pub(crate) fn push(&mut self, label: u8, planes: &[u8; IMAGE]) {
        let (red, rest) = planes.split_at(SIDE * SIDE);
        let (green, blue) = rest.split_at(SIDE * SIDE);
        let start = self.pixels.len();
        self.pixels.resize(start + IMAGE, 0);
        let (pixels, _) = self.pixels[start..].as_chunks_mut::<CHANNELS>();
        for (((pixel, &r), &g), &b) in pixels.iter_mut().zip(red).zip(green).zip(blue) {
            *pixel = [r, g, b];
        }
        self.labels.push(label);
    }

    pub(crate) fn len(&self) -> usize {
        self.labels.len()
    }

    /// The training and the test set of these images, both normalised by the training images.
    pub(crate) fn into_sets(
        train: Self,
        test: Self,
        classes: &[&str],
    ) -> (Images, Images, Normalisation) {
        let normalisation = Normalisation::from_pixels(&train.pixels);
        let table = Arc::new(normalisation.table());
        let classes: Vec<String> = classes.iter().map(|&name| name.to_owned()).collect();
        let set = |Self { pixels, labels }, classes| Images {
            pixels,
            labels,
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
    labels: Vec<u8>,
    classes: Vec<String>,
    table: Arc<Table>,
}

impl Images {
    fn normalise(&self, bytes: &[u8], out: &mut [f32]) {
        let [red, green, blue] = &*self.table;
        let (bytes, _) = bytes.as_chunks::<CHANNELS>();
        let (out, _) = out.as_chunks_mut::<CHANNELS>();
        for (out, &[r, g, b]) in out.iter_mut().zip(bytes) {
            *out = [red[usize::from(r)], green[usize::from(g)], blue[usize::from(b)]];
        }
    }

    fn normalise_view(&self, image: &[u8], view: View, out: &mut [f32]) {
        let mut row = [0u8; ROW];
        for (y, out) in out.chunks_exact_mut(ROW).enumerate() {
            view.row(image, SIDE, SIDE, y, &mut row);
            self.normalise(&row, out);
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
        SHAPE
    }

    fn normalised_by(&self, normalisation: &Normalisation) -> Option<Arc<dyn Dataset>> {
        Some(Arc::new(Self { table: Arc::new(normalisation.table()), ..self.clone() }))
    }

    fn batch(&self, indices: &[u32], augment: Option<&Augment>, into: &mut Batch) {
        into.labels.clear();
        into.labels.extend(indices.iter().map(|&i| u32::from(self.labels[i as usize])));
        let mut pixels = match std::mem::take(&mut into.features) {
            Features::Images { pixels, .. } => pixels,
            Features::Tokens { .. } | Features::Sequences { .. } => Vec::new(),
        };
        pixels.resize(indices.len() * IMAGE, 0.0);
        for (&index, out) in indices.iter().zip(pixels.chunks_exact_mut(IMAGE)) {
            let image = &self.pixels[index as usize * IMAGE..(index as usize + 1) * IMAGE];
            match augment.map(|augment| augment.view(index)) {
                None => self.normalise(image, out),
                Some(view) => self.normalise_view(image, view, out),
            }
        }
        into.features = Features::Images { pixels, height: SIDE, width: SIDE, channels: CHANNELS };
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
    fn gathered(n: usize) -> Gathered {
        let mut gathered = Gathered::default();
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
        Gathered::into_sets(gathered(8), gathered(3), &["a"; 10])
    }

    fn pixels(batch: &Batch) -> &[f32] {
        match &batch.features {
            Features::Images { pixels, .. } => pixels,
            _ => panic!("images expected"),
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
            if augment.view(index).down < 0 {
                assert!(image[..ROW].iter().step_by(3).all(|&red| (red - black).abs() < 1e-6));
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
