//! Data of one's own: an iterator of images and their classes, learned by a model of the library.

use gradwire::prelude::*;

const SIDE: usize = 8;

/// Stripes that run down (class 0) or across (class 1), each image with a phase and noise of its own.
fn stripes(images: Range<u32>) -> Result<Samples> {
    let image = |number: u32| {
        let class = number % 2;
        let pixel = move |place: usize| {
            let along = if class == 0 { place % SIDE } else { place / SIDE };
            let noise = (number as usize * 31 + place * 17) % 13;
            ((along + number as usize / 2) % 4 / 2) as f32 + noise as f32 / 13.0 - 1.0
        };
        let pixels = (0..SIDE * SIDE * 3).map(|value| pixel(value / 3)).collect();
        (pixels, class)
    };
    Ok(Samples::images([SIDE, SIDE, 3], ["down", "across"], images.map(image))?)
}

pub(crate) fn train(out: &str) -> Result<Outcome> {
    let settings = ["name=own-data", "model=resnet8", "workers=2", "train.batch=16"];
    Training::with(settings)?.data(stripes(0..512)?, stripes(512..640)?).out(out).run()
}

fn main() -> Result<()> {
    train("runs/out").map(drop)
}
