//! What fuzzing begins with: real messages of every scheme at every setting worth testing, what a
//! server would say of them where the scheme learns from messages, frames, and what a peer makes of
//! its messages in several rounds. Shared by the test that replays the corpora and by the example that
//! writes them.

use gradwire_exchange::rng::Stream;
use gradwire_exchange::wire::downlink::{Form, close};
use gradwire_exchange::wire::frame::Kind;
use gradwire_exchange::{
    Encoded, Error, Header, Scheme, SchemeConfig, Seat, StepMessages, refusal,
};

const LENGTH: u16 = 65;

/// Every seed: the folder of its corpus, its name there, its bytes.
pub(crate) fn all() -> Vec<(String, String, Vec<u8>)> {
    [messages(), frames(), rounds()].concat()
}

fn messages() -> Vec<(String, String, Vec<u8>)> {
    let stream = Stream::new(&[1]);
    let gradient: Vec<f32> = (0..LENGTH.into())
        .map(|i| (stream.uniform(i) - 0.5) / (1.05 - stream.uniform(i + 1000)))
        .collect();
    let mut all = Vec::new();
    for (number, scheme) in SchemeConfig::codecs().iter().enumerate() {
        let name = scheme.about().name;
        let mut message = LENGTH.to_le_bytes().to_vec();
        let mut compressor = scheme.codec(&Seat::alone(LENGTH.into(), 1)).expect("a codec");
        if compressor.encode(&gradient, 1, &mut message) == Encoded::Dense {
            continue;
        }
        let messages = [Some(&message[2..]), None];
        let round = StepMessages { step: 1, messages: &messages, mean: &gradient };
        let mut downlink = LENGTH.to_le_bytes().to_vec();
        downlink.push(Form::Dense as u8);
        let summary_at = downlink.len();
        compressor.summarise(&round, &mut downlink).expect("invariant: it reads its own message");
        if downlink.len() > summary_at {
            close(summary_at, &mut downlink);
            all.push(("downlinks".to_string(), format!("{name}-{number}"), downlink));
        }
        all.push((name.to_string(), format!("setting-{number}"), message));
    }
    all
}

fn frames() -> Vec<(String, String, Vec<u8>)> {
    let header = Header { kind: Kind::Compressed, rank: 1, world_size: 4, step: 7, bucket: 2 };
    let (mut frame, mut non_finite) = (Vec::new(), Vec::new());
    header.write(&[1, 2, 3], &mut frame);
    let (corrected, parameter) = (false, "fc.weight".to_string());
    let error = Error::NonFinite { rank: 1, step: 7, corrected, parameter, index: 12 };
    refusal::write(header, &error, &mut non_finite);
    let two = [&frame[..], &non_finite].concat();
    [("compressed", frame), ("non-finite", non_finite), ("two", two)]
        .map(|(name, bytes)| ("frames".to_string(), name.to_string(), bytes))
        .into()
}

/// The peer as it should be; others' bytes in the first round, in the second; another length; gone.
fn rounds() -> Vec<(String, String, Vec<u8>)> {
    let peers = [
        ("honest", &[0; 24][..]),
        ("first", &[0, 1, 2, 3, 200, 9, 127, 0, 2, 255, 128, 127]),
        ("second", &[0, 0, 0, 0, 0, 2, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
        ("length", &[0, 3, 7, 0, 3, 8]),
        ("gone", &[0, 0, 0, 0, 15]),
        ("noise", &[14, 40, 71, 87, 1, 12, 0, 0, 2, 0, 1, 0, 0, 0, 9, 9, 9]),
    ];
    let with = |scheme: u8, (name, bytes): &(&str, &[u8])| {
        ("rounds".to_string(), format!("{name}-{scheme}"), [&[scheme], *bytes].concat())
    };
    (0..4).flat_map(|scheme| peers.iter().map(move |peer| with(scheme, peer))).collect()
}
