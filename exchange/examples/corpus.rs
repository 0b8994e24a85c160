//! Writes the seeds of the fuzz targets: `cargo run -p gradwire-exchange --example corpus` makes,
//! for every scheme and setting worth testing, a real message of a bucket of 65 elements in
//! `exchange/fuzz/corpus/<scheme>/`, what a server would say of it in `downlinks/` where the scheme
//! learns from messages, frames in `frames/`, and what a peer makes of its messages in several rounds in
//! `rounds/`.

use std::fs;
use std::io::Result;
use std::path::Path;

use gradwire_exchange::Header;
use gradwire_exchange::refusal;
use gradwire_exchange::rng::Stream;
use gradwire_exchange::wire::downlink::{Form, close};
use gradwire_exchange::wire::frame::Kind;
use gradwire_exchange::{Encoded, Error, Quantity, Scheme, SchemeConfig, Seat, StepMessages};

const LENGTH: u16 = 65;

fn main() -> Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let stream = Stream::of(&[1]);
    let gradient: Vec<f32> = (0..LENGTH.into())
        .map(|i| (stream.uniform(i) - 0.5) / (1.05 - stream.uniform(i + 1000)))
        .collect();
    let mut numbers = std::collections::BTreeMap::<&str, usize>::new();
    for scheme in SchemeConfig::codecs() {
        let mut message = LENGTH.to_le_bytes().to_vec();
        let mut compressor = scheme.codec(&Seat::alone(LENGTH.into(), 1)).expect("a codec");
        if compressor.encode(&gradient, 1, &mut message) == Encoded::Dense {
            continue;
        }
        let folder = corpus.join(scheme.about().name);
        fs::create_dir_all(&folder)?;
        let number = numbers.entry(scheme.about().name).or_default();
        fs::write(folder.join(format!("setting-{number}")), &message)?;
        let messages = [Some(&message[2..]), None];
        let round = StepMessages { step: 1, messages: &messages, mean: &gradient };
        let mut downlink = LENGTH.to_le_bytes().to_vec();
        downlink.push(Form::Dense as u8);
        let summary_at = downlink.len();
        compressor.summarise(&round, &mut downlink).expect("invariant: it reads its own message");
        if downlink.len() > summary_at {
            close(summary_at, &mut downlink);
            fs::create_dir_all(corpus.join("downlinks"))?;
            let name = format!("downlinks/{}-{number}", scheme.about().name);
            fs::write(corpus.join(name), &downlink)?;
        }
        *number += 1;
    }
    let header = Header { kind: Kind::Compressed, rank: 1, world_size: 4, step: 7, bucket: 2 };
    let (mut frame, mut non_finite) = (Vec::new(), Vec::new());
    header.write(&[1, 2, 3], &mut frame);
    let (quantity, parameter) = (Quantity::Gradient, "fc.weight".to_string());
    let error = Error::NonFinite { rank: 1, step: 7, quantity, parameter, index: 12 };
    refusal::write(header, &error, &mut non_finite);
    fs::create_dir_all(corpus.join("frames"))?;
    fs::write(corpus.join("frames/compressed"), &frame)?;
    fs::write(corpus.join("frames/non-finite"), &non_finite)?;
    fs::write(corpus.join("frames/two"), [frame, non_finite].concat())?;
    fs::create_dir_all(corpus.join("rounds"))?;
    // The peer as it should be; others' bytes in the first round, in the second; another length; gone.
    for (name, bytes) in [
        ("honest", &[0; 24][..]),
        ("first", &[0, 1, 2, 3, 200, 9, 127, 0, 2, 255, 128, 127]),
        ("second", &[0, 0, 0, 0, 0, 2, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
        ("length", &[0, 3, 7, 0, 3, 8]),
        ("gone", &[0, 0, 0, 0, 15]),
        ("noise", &[14, 40, 71, 87, 1, 12, 0, 0, 2, 0, 1, 0, 0, 0, 9, 9, 9]),
    ] {
        for scheme in 0..3 {
            let name = format!("rounds/{name}-{scheme}");
            fs::write(corpus.join(name), [&[scheme], bytes].concat())?;
        }
    }
    Ok(())
}
