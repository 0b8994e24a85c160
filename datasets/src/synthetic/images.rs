//! Coloured gratings with noise, one colour and one texture a class.

use std::f32::consts::TAU;
use std::path::{Path, PathBuf};

use super::Amount;
use crate::cifar::Format;
use crate::images::{IMAGE, SIDE};
use crate::names::COARSE_OF_FINE;
use crate::rng::{Purpose, RandomStream};

/// Different colours, and as many different textures.
const KINDS: usize = 10;

/// The files of the twin of `format` below `dir`, with their contents: `train` images spread evenly
/// over the training files, `test` in the test file.
pub(super) fn files(
    format: &Format,
    dir: &Path,
    Amount { train, test, seed }: Amount,
) -> Vec<(PathBuf, Vec<u8>)> {
    let classes = format.labels.last().map_or(1, |label| label.classes.len());
    let file = |name: &str, set: u64, labels: &[usize], first: usize| {
        let mut contents = Vec::with_capacity(labels.len() * format.record_bytes());
        for (&class, index) in labels.iter().zip(first as u64..) {
            if format.labels.len() == 2 {
                contents.push(COARSE_OF_FINE[class]);
            }
            contents.push(class as u8);
            // Key 0 of a set is its order of classes.
            let mut stream = RandomStream::keyed(Purpose::Synthetic, seed, set, index + 1);
            draw(class, classes, &mut stream, &mut contents);
        }
        (dir.join(format.place.folder).join(name), contents)
    };
    let labels = order(classes, train, seed, 0);
    let count = format.train.len();
    let train = format.train.iter().enumerate().map(|(number, official)| {
        let (start, end) = (train * number / count, train * (number + 1) / count);
        file(official.name, 0, &labels[start..end], start)
    });
    let test = file(format.test.name, 1, &order(classes, test, seed, 1), 0);
    train.chain([test]).collect()
}

/// The classes of a set's images: all equally often, up to one, in random order.
fn order(classes: usize, images: usize, seed: u64, set: u64) -> Vec<usize> {
    let mut labels: Vec<usize> = (0..images).map(|index| index % classes).collect();
    RandomStream::keyed(Purpose::Synthetic, seed, set, 0).shuffle(&mut labels);
    labels
}

/// Appends three planes: a grating of the class's direction and frequency with a random phase, in
/// the class's colour, darker or lighter at random, with noise. Mirroring changes no class.
fn draw(class: usize, classes: usize, stream: &mut RandomStream, contents: &mut Vec<u8>) {
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
