//! What becomes of hostile bytes: an error, or numbers. Shared by the fuzz targets and by the test
//! that replays their corpora.

use gradwire_exchange::wire::Reader;
use gradwire_exchange::wire::downlink::Downlink;
use gradwire_exchange::wire::frame::{Frame, Kind};
use gradwire_exchange::{Digest, Header, Observed, PART, Scheme, Seat, StepEnd};

/// The longest bucket that is tried.
const LONGEST: usize = 1100;

/// The settings worth trying of the scheme of this name.
pub(crate) fn specimens(name: &str) -> Vec<Scheme> {
    let mut all = Scheme::codecs();
    all.retain(|scheme| scheme.about().name == name);
    all
}

/// Decodes what follows the first two bytes, which say how long the bucket is, by each of the
/// schemes; what decodes is also learnt from, as every rank does with every message.
pub(crate) fn message(schemes: &[Scheme], bytes: &[u8]) {
    let Some((length, message)) = bytes.split_first_chunk() else { return };
    let length = usize::from(u16::from_le_bytes(*length)) % LONGEST;
    let mut sum = vec![0.0; length];
    for scheme in schemes {
        let mut compressor = scheme.codec(&Seat::alone(length, 1)).expect("a codec");
        if compressor.decode_add(message, 1.0, &mut sum).is_ok() {
            let messages = [Some(message), None];
            let round = Observed { step: 1, messages: &messages, mean: &sum };
            let observed = compressor.take_in(&round).is_ok();
            // A server that digests it, and a rank that hears only that.
            let mut bytes = Vec::new();
            if scheme
                .codec(&Seat::alone(length, 1))
                .expect("a codec")
                .digest(&round, &mut bytes)
                .is_ok()
            {
                let digest = Digest { step: 1, ranks: 2, bytes: &bytes, mean: &sum };
                let mut rank = scheme.codec(&Seat::alone(length, 1)).expect("a codec");
                let learnt = rank.learn(&digest).is_ok();
                assert!(learnt || !observed, "a digest of what was observed is refused");
            }
        }
        if let Some(parts) = compressor.by_parts() {
            let mut whole = vec![0.0; length];
            let read = compressor.decode_add(message, 1.0, &mut whole).is_ok();
            for start in (0..length).step_by(PART) {
                let part = start..(start + PART).min(length);
                let mut sum = vec![0.0; part.len()];
                let in_part = parts.decode_part(message, length, part.clone(), 1.0, &mut sum);
                let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                if read && in_part.is_ok() {
                    assert_eq!(bits(&sum), bits(&whole[part]), "a part differs from the whole");
                }
                assert!(!read || in_part.is_ok(), "what is read whole is read in parts");
            }
        }
    }
}

/// Learns from the bytes as a digest, and reads them as what a server says.
pub(crate) fn downlink(schemes: &[Scheme], bytes: &[u8]) {
    let Some((length, message)) = bytes.split_first_chunk() else { return };
    let length = usize::from(u16::from_le_bytes(*length)) % LONGEST;
    let digest = match Downlink::read(message) {
        Ok(downlink) => downlink.digest,
        Err(_) => message,
    };
    let mean = vec![0.5; length];
    for scheme in schemes {
        let mut compressor = scheme.codec(&Seat::alone(length, 1)).expect("a codec");
        for step in [1, 2] {
            if compressor.learn(&Digest { step, ranks: 3, bytes: digest, mean: &mean }).is_ok() {
                compressor.settle(&StepEnd { step, ranks: 3, mean: &mean });
            }
        }
    }
}

/// Reads frames until the bytes end or mean nothing; then what follows the first byte as what a
/// frame carries instead of a gradient, behind a checksum that no mutation would find.
pub(crate) fn frames(bytes: &[u8]) {
    let mut reader = Reader::new(bytes);
    while let Ok(frame) = Frame::read(&mut reader) {
        let _ = frame.refusal();
    }
    let Some((kind, payload)) = bytes.split_first() else { return };
    let kind = if kind & 1 == 0 { Kind::NonFinite } else { Kind::Abort };
    let mut sealed = Vec::new();
    Header { kind, rank: 1, world_size: 2, step: 3, bucket: 0 }.write(payload, &mut sealed);
    let _ = Frame::refusal_of(&sealed);
}
