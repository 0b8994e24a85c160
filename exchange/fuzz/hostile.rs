//! What becomes of hostile bytes: an error, or numbers. Shared by the fuzz targets and by the test
//! that replays their corpora.

use gradwire_exchange::schemes::powersgd;
use gradwire_exchange::schemes::signsgd::{self, Vote};
use gradwire_exchange::wire::downlink::DownlinkMessage;
use gradwire_exchange::wire::frame::{Frame, Kind};
use gradwire_exchange::wire::{Format, Reader};
use gradwire_exchange::{
    Awaited, Bucketing, Collective, Error, Exchange, Header, Layout, Payload, Policy, Result,
    Scheme, SchemeConfig, Seat, StepEnd, StepMessages,
};

/// The longest bucket that is tried.
const LONGEST: usize = 1100;

/// The settings worth trying of the scheme of this name.
pub(crate) fn specimens(name: &str) -> Vec<SchemeConfig> {
    let mut all = SchemeConfig::codecs();
    all.retain(|scheme| scheme.about().name == name);
    all
}

/// The schemes that learn from what ranks send, which a server tells them in summaries.
pub(crate) fn learning() -> Vec<SchemeConfig> {
    ["casq", "dqsgd", "optquant", "aggregation-aware"].map(specimens).concat()
}

/// Decodes what follows the first two bytes, which say how long the bucket is, by each of the
/// schemes; what decodes is also learnt from, as every rank does with every message.
pub(crate) fn message(schemes: &[SchemeConfig], bytes: &[u8]) {
    let Some((length, message)) = bytes.split_first_chunk() else { return };
    let length = usize::from(u16::from_le_bytes(*length)) % LONGEST;
    let mut sum = vec![0.0; length];
    for scheme in schemes {
        let mut compressor = scheme.codec(&Seat::alone(length, 1)).expect("a codec");
        if compressor.decode_add(message, 0, 1.0, &mut sum).is_ok() {
            let messages = [Some(message), None];
            let round = StepMessages { step: 1, messages: &messages, mean: &sum };
            let observed = compressor.learn_and_commit(&round).is_ok();
            // A server that summarises it, and a rank that hears only that.
            let mut bytes = Vec::new();
            if scheme
                .codec(&Seat::alone(length, 1))
                .expect("a codec")
                .summarise(&round, &mut bytes)
                .is_ok()
            {
                let mut rank = scheme.codec(&Seat::alone(length, 1)).expect("a codec");
                let learnt = rank.learn_from_summary(1, &bytes, &sum).is_ok();
                assert!(learnt || !observed, "a summary of what was observed is refused");
            }
        }
        if compressor.reads_ranges() {
            let mut whole = vec![0.0; length];
            let read = compressor.decode_add(message, 0, 1.0, &mut whole).is_ok();
            for start in (0..length).step_by(1024) {
                let part = start..(start + 1024).min(length);
                let mut sum = vec![0.0; part.len()];
                let in_part = compressor.decode_add(message, start, 1.0, &mut sum);
                let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                if read && in_part.is_ok() {
                    assert_eq!(bits(&sum), bits(&whole[part]), "a part differs from the whole");
                }
                assert!(!read || in_part.is_ok(), "what is read whole is read in parts");
            }
        }
    }
}

/// Learns from the bytes as a summary, and reads them as what a server says.
pub(crate) fn downlink(schemes: &[SchemeConfig], bytes: &[u8]) {
    let Some((length, message)) = bytes.split_first_chunk() else { return };
    let length = usize::from(u16::from_le_bytes(*length)) % LONGEST;
    let summary = match DownlinkMessage::read(message) {
        Ok(downlink) => downlink.summary,
        Err(_) => message,
    };
    let mean = vec![0.5; length];
    for scheme in schemes {
        let mut compressor = scheme.codec(&Seat::alone(length, 1)).expect("a codec");
        for step in [1, 2] {
            if compressor.learn_from_summary(step, summary, &mean).is_ok() {
                compressor.commit(&StepEnd { step, ranks: 3, mean: &mean });
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

/// Runs steps of a scheme of several rounds, which the first byte chooses, beside a peer whose messages
/// the others make up: as they should be, sealed with other contents, of other lengths, or not
/// messages at all, in any round.
pub(crate) fn rounds(bytes: &[u8]) {
    let Some((scheme, bytes)) = bytes.split_first() else { return };
    let one = powersgd::Config { rank: 1, ..Default::default() };
    let slim = powersgd::Config { min_compression_rate: 0.1, warm_start: false, ..one.clone() };
    let rounded = powersgd::Config { factors: Format::Bf16, ..slim.clone() };
    let vote = signsgd::Config { vote: Vote::Majority, ..Default::default() };
    let all: [&dyn Scheme; 4] = [&one, &slim, &rounded, &vote];
    beside(all[usize::from(scheme % 4)], bytes);
}

fn beside(scheme: &dyn Scheme, bytes: &[u8]) {
    let shapes = [("a", vec![6, 8]), ("b", vec![5]), ("c", vec![4, 4, 2])];
    let layout = Layout::shaped(shapes.map(|(name, shape)| (name.to_string(), shape)));
    let layout = layout.expect("a layout");
    let length = layout.len();
    let mut peer = Peer { bytes: bytes.to_vec(), at: 0 };
    peer.bytes.truncate(4096);
    let policy = Policy { measure_every: Some(2), ..Policy::from(Bucketing::Parameter) };
    let end = Box::new(peer);
    let exchange =
        Exchange::with(scheme, gradwire_exchange::Topology::Allgather, policy, layout, 3, end);
    let mut exchange = exchange.expect("an exchange");
    for step in 1..=4 {
        let mut gradient: Vec<f32> = (0..length).map(|i| (i as f32 - step as f32).sin()).collect();
        let before = exchange.save();
        match exchange.allreduce(step, &mut gradient) {
            Ok(_) => assert!(gradient.iter().all(|mean| mean.is_finite()), "a mean is not finite"),
            Err(_) => {
                assert!(exchange.save() == before, "a step that failed has changed the state");
            }
        }
    }
}

/// The other one of two ranks: it answers what it is sent.
struct Peer {
    bytes: Vec<u8>,
    at: usize,
}

impl Peer {
    /// The next byte of what is made up; zero after its end.
    fn next(&mut self) -> u8 {
        self.at += 1;
        self.bytes.get(self.at - 1).copied().unwrap_or(0)
    }
}

impl Collective for Peer {
    fn rank(&self) -> usize {
        0
    }

    fn world_size(&self) -> usize {
        2
    }

    fn allgather(&mut self, mine: Vec<u8>) -> Result<Vec<Payload>> {
        let mut theirs = Vec::new();
        let mut reader = Reader::new(&mine);
        let whole = self.next();
        if whole & 0x0f == 0x0f {
            return Err(Error::PeerLost { rank: 1, by: 0, awaited: Awaited::Message });
        }
        if whole & 0x0f == 0x0e {
            theirs.extend((0..self.next()).map(|_| self.next()));
        } else {
            while let Ok(frame) = Frame::read(&mut reader) {
                let mut payload = frame.payload.to_vec();
                match self.next() & 3 {
                    // As it should be: the peer has the same gradient.
                    0 => {}
                    // A few bytes are others.
                    1 => {
                        for _ in 0..1 + (self.next() & 7) {
                            let at = usize::from(self.next()) % payload.len().max(1);
                            let byte = self.next();
                            payload.get_mut(at).into_iter().for_each(|place| *place = byte);
                        }
                    }
                    // All of them.
                    2 => payload.iter_mut().for_each(|byte| *byte = self.next()),
                    // Another length.
                    _ => payload.resize(self.next().into(), 0x7f),
                }
                frame.header.from_rank(1).write(&payload, &mut theirs);
            }
        }
        Ok(vec![mine.into(), theirs.into()])
    }
}
