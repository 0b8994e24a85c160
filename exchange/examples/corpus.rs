//! Writes the seeds of the fuzz targets: `cargo run -p gradwire-exchange --example corpus` makes,
//! for every scheme and setting worth testing, a real message of a bucket of 65 elements in
//! `exchange/fuzz/corpus/<scheme>/`, and a frame in `frames/`.

use std::fs;
use std::io::Result;
use std::path::Path;

use gradwire_exchange::rng::Stream;
use gradwire_exchange::wire::{Header, Kind};
use gradwire_exchange::{Encoded, Scheme, Seat};

const LENGTH: u16 = 65;

fn main() -> Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let stream = Stream::of(&[1]);
    let gradient: Vec<f32> = (0..LENGTH.into())
        .map(|i| (stream.uniform(i) - 0.5) / (1.05 - stream.uniform(i + 1000)))
        .collect();
    let mut numbers = std::collections::BTreeMap::<&str, usize>::new();
    for scheme in Scheme::specimens() {
        let mut message = LENGTH.to_le_bytes().to_vec();
        let mut compressor = scheme.build(&Seat::alone(LENGTH.into(), 1));
        if compressor.encode(&gradient, 1, &mut message) == Encoded::Dense {
            continue;
        }
        let folder = corpus.join(scheme.about().name);
        fs::create_dir_all(&folder)?;
        let number = numbers.entry(scheme.about().name).or_default();
        fs::write(folder.join(format!("setting-{number}")), &message)?;
        *number += 1;
    }
    let mut frame = Vec::new();
    let header = Header { kind: Kind::Compressed, rank: 1, world_size: 4, step: 7, bucket: 2 };
    header.write(&[1, 2, 3], &mut frame);
    fs::create_dir_all(corpus.join("frames"))?;
    fs::write(corpus.join("frames/compressed"), frame)
}
