//! Coloured gratings with noise, one colour and one texture a class.

use std::f32::consts::TAU;
use std::path::{Path, PathBuf};

use crate::cifar::Format;
use crate::error::Result;
use crate::files;
use crate::images::{IMAGE, SIDE};
use crate::names::COARSE_OF_FINE;
use crate::rng::{Purpose, Stream};

/// Different colours, and as many different textures.
const KINDS: usize = 10;

/// Writes the twin of `format` into `dir`: `train` images spread evenly over the training files,
/// `test` in the test file.
pub(super) fn write(
    format: &Format,
    dir: &Path,
    train: usize,
    test: usize,
    seed: u64,
) -> Result<Vec<PathBuf>> {
    let classes = format.labels.last().map_or(1, |label| label.classes.len());
    let folder = dir.join(format.place.folder);
    let mut paths = Vec::new();
    let mut put = |name: &str, set: u64, labels: &[usize], first: usize| {
        let mut contents = Vec::with_capacity(labels.len() * format.record_bytes());
        for (&class, index) in labels.iter().zip(first as u64..) {
            if format.labels.len() == 2 {
                contents.push(COARSE_OF_FINE[class]);
            }
            contents.push(class as u8);
            // Key 0 of a set is its order of classes.
            draw(
                class,
                classes,
                &mut Stream::keyed(Purpose::Synthetic, seed, set, index + 1),
                &mut contents,
            );
        }
        let path = folder.join(name);
        files::write(&path, &contents)?;
        paths.push(path);
        Ok(())
    };
    let labels = order(classes, train, seed, 0);
    for (number, file) in format.train.iter().enumerate() {
        let start = train * number / format.train.len();
        let end = train * (number + 1) / format.train.len();
        put(file.name, 0, &labels[start..end], start)?;
    }
    put(format.test.name, 1, &order(classes, test, seed, 1), 0)?;
    Ok(paths)
}

/// The classes of a set's images: all equally often, up to one, in random order.
fn order(classes: usize, images: usize, seed: u64, set: u64) -> Vec<usize> {
    let mut labels: Vec<usize> = (0..images).map(|index| index % classes).collect();
    Stream::keyed(Purpose::Synthetic, seed, set, 0).shuffle(&mut labels);
    labels
}

/// Appends three planes: a grating of the class's direction and frequency with a random phase, in
/// the class's colour, darker or lighter at random, with noise. Mirroring changes no class.
fn draw(class: usize, classes: usize, stream: &mut Stream, contents: &mut Vec<u8>) {
    // Of CIFAR-10's ten classes each has its own colour and its own texture; of CIFAR-100's, each
    // its own pair.
    let colour = class % KINDS;
    let texture = if classes == KINDS { class * 3 % KINDS } else { class / KINDS };
    let upright = texture.is_multiple_of(2);
    let frequency = TAU * (1 + texture / 2 * 2) as f32 / SIDE as f32;
    let phase = TAU * stream.unit();
    let light = 128.0 + 40.0 * (stream.unit() - 0.5);
    let hue = TAU * colour as f32 / KINDS as f32;
    let wave: [f32; SIDE] = std::array::from_fn(|at| (frequency * at as f32 + phase).sin());
    for channel in 0..3 {
        let tint = light + 40.0 * (hue - TAU * channel as f32 / 3.0).cos();
        for position in 0..IMAGE / 3 {
            let at = if upright { position % SIDE } else { position / SIDE };
            let noise = 50.0 * (stream.unit() - 0.5);
            // Casting clamps to 0..=255.
            contents.push((tint + 40.0 * wave[at] + noise) as u8);
        }
    }
}
