//! TensorBoard event files, read within bounds.
//!
//! Only as much is read of an event as taking back later steps needs: its step, and the tags of
//! its summary. A file may hold anything by the time a run is resumed, and RUSTSEC-2024-0437
//! (recursion without a limit) names every `protobuf` before 3.7.2, where `tensorboard-proto` needs
//! 2: so that crate writes events here and reads none. They are read by `prost`, which steps over
//! all other fields, and refuses what is nested deeper than it should be.
//!
//! A file is records end to end (TensorFlow's `record_writer.h`), numbers little-endian:
//!
//! | bytes | |
//! |---|---|
//! | 8 | n, the length of the data |
//! | 4 | masked CRC-32C of these 8 bytes |
//! | n | the data: an `Event` in the encoding of protocol buffers |
//! | 4 | masked CRC-32C of the data |

use prost::Message;
use std::fmt;
use tensorboard_rs::masked_crc32c::masked_crc32c;

/// Bytes of a record around its data.
const FRAMING: usize = 16;

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The record with its framing.
    pub whole: &'a [u8],
    /// The data in it.
    pub data: &'a [u8],
}

/// Where a file stops being readable, and why. Nothing after it can be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Bytes from the beginning of the file to the record.
    pub offset: usize,
    /// What is wrong with the record.
    pub fault: Fault,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the record at byte {} {}", self.offset, self.fault)
    }
}

/// What is wrong with a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The file ends before the length and its checksum do.
    Header,
    /// The checksum of the length is another.
    LengthSum,
    /// The file ends before the record does.
    Torn {
        /// Bytes of data, as the record has it.
        length: u64,
        /// Bytes that follow, the checksum included.
        left: usize,
    },
    /// The checksum of the data is another.
    DataSum,
    /// The data is not an event.
    Event(prost::DecodeError),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header => f.write_str("ends within its length"),
            Self::LengthSum => f.write_str("has a length whose checksum is wrong"),
            Self::Torn { length, left } => {
                write!(f, "says that {length} bytes and a checksum follow, where {left} do")
            }
            Self::DataSum => f.write_str("has data whose checksum is wrong"),
            Self::Event(why) => write!(f, "is no event: {why}"),
        }
    }
}

/// The records of a file, up to the first that is not whole.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
    offset: usize,
}

impl<'a> Records<'a> {
    /// The records in the bytes of a file.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, offset: 0 }
    }

    /// Takes the record off the front of the rest.
    fn take(&mut self) -> Result<Record<'a>, Fault> {
        let (length, after) = self.rest.split_first_chunk::<8>().ok_or(Fault::Header)?;
        let (length_sum, after) = after.split_first_chunk::<4>().ok_or(Fault::Header)?;
        if masked_crc32c(length) != u32::from_le_bytes(*length_sum) {
            return Err(Fault::LengthSum);
        }
        let length = u64::from_le_bytes(*length);
        let left = after.len();
        let torn = || Fault::Torn { length, left };
        let whole = usize::try_from(length).ok().and_then(|length| after.split_at_checked(length));
        let (data, after) = whole.ok_or_else(torn)?;
        let sum = after.first_chunk::<4>().ok_or_else(torn)?;
        if masked_crc32c(data) != u32::from_le_bytes(*sum) {
            return Err(Fault::DataSum);
        }
        let (whole, rest) = self.rest.split_at(FRAMING + data.len());
        self.rest = rest;
        self.offset += whole.len();
        Ok(Record { whole, data })
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, Damage>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let taken = self.take();
        if taken.is_err() {
            self.rest = &[];
        }
        Some(taken.map_err(|fault| Damage { offset: self.offset, fault }))
    }
}

/// The records of a file that tell of steps from 0 to `step`, end to end, but for those with a
/// value whose tag is `without`; and what made the rest unreadable, if anything did.
pub fn up_to(bytes: &[u8], step: u64, without: &str) -> (Vec<u8>, Option<Damage>) {
    let mut kept = Vec::with_capacity(bytes.len());
    let mut offset = 0;
    for record in Records::new(bytes) {
        let record = match record {
            Ok(record) => record,
            Err(damage) => return (kept, Some(damage)),
        };
        let event = match Event::read(record.data) {
            Ok(event) => event,
            Err(why) => return (kept, Some(Damage { offset, fault: Fault::Event(why) })),
        };
        let dropped = event.tags().any(|tag| tag == without.as_bytes());
        if u64::try_from(event.step).is_ok_and(|at| at <= step) && !dropped {
            kept.extend_from_slice(record.whole);
        }
        offset += record.whole.len();
    }
    (kept, None)
}

/// The data of a record, as far as it is read.
#[derive(Clone, PartialEq, Message)]
pub struct Event {
    /// The step; 0 where it has none.
    #[prost(int64, tag = "2")]
    pub step: i64,
    /// The summary, if it has one.
    #[prost(message, optional, tag = "5")]
    pub summary: Option<Summary>,
}

/// The values of one step.
#[derive(Clone, PartialEq, Message)]
pub struct Summary {
    /// The values.
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<Value>,
}

/// A value with its tag.
#[derive(Clone, PartialEq, Message)]
pub struct Value {
    /// The tag, which should be text.
    #[prost(bytes = "vec", tag = "1")]
    pub tag: Vec<u8>,
}

impl Event {
    /// Reads the data of a record.
    ///
    /// # Errors
    /// When it is not an event.
    pub fn read(data: &[u8]) -> Result<Self, prost::DecodeError> {
        Self::decode(data)
    }

    /// The tag of each value of the summary.
    pub fn tags(&self) -> impl Iterator<Item = &[u8]> {
        self.summary.iter().flat_map(|summary| &summary.values).map(|value| value.tag.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record with right checksums around `data`.
    fn framed(data: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        tensorboard_rs::record_writer::RecordWriter::new(&mut bytes).write(data).unwrap();
        bytes
    }

    /// The step and the tags of an event.
    fn read(data: &[u8]) -> Option<(i64, Vec<String>)> {
        let event = Event::read(data).ok()?;
        let tags = event.tags().map(|tag| String::from_utf8_lossy(tag).into_owned());
        Some((event.step, tags.collect()))
    }

    /// A field of the length-delimited type.
    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        let mut bytes = vec![number << 3 | 2];
        let mut length = content.len();
        while length > 0x7f {
            bytes.push(length as u8 | 0x80);
            length >>= 7;
        }
        bytes.push(length as u8);
        bytes.extend(content);
        bytes
    }

    #[test]
    fn steps_and_tags_are_those_that_protobuf_wrote() {
        use protobuf::{Message as _, RepeatedField};
        use tensorboard_proto::{event, summary};
        let value = |tag: &str| {
            let mut value = summary::Summary_Value::new();
            value.set_node_name("node".into());
            value.set_tag(tag.into());
            value.set_simple_value(0.5);
            value
        };
        for step in [0, 1, 127, 128, 1 << 40, i64::MAX, -1, i64::MIN] {
            let mut proto = event::Event::new();
            proto.set_wall_time(1.5);
            proto.set_step(step);
            assert_eq!(read(&proto.write_to_bytes().unwrap()), Some((step, vec![])));
            proto.set_session_log(event::SessionLog::new());
            assert_eq!(read(&proto.write_to_bytes().unwrap()), Some((step, vec![])));
            let mut summary = summary::Summary::new();
            summary.set_value(RepeatedField::from_vec(vec![value("loss"), value("ä/b")]));
            proto.set_summary(summary);
            let tags = vec!["loss".to_string(), "ä/b".to_string()];
            assert_eq!(read(&proto.write_to_bytes().unwrap()), Some((step, tags)));
        }
    }

    #[test]
    fn nesting_costs_no_stack_and_hides_no_step() {
        const DEPTH: usize = 400_000;
        let body = move || {
            // Groups within groups in a field that events do not have.
            let (begins, ends) = ([0xa3, 6].repeat(DEPTH), [0xa4, 6].repeat(DEPTH));
            let groups = [vec![0x10, 3], begins, ends].concat();
            assert_eq!(read(&groups), None);
            let kept = framed(&[0x10, 2]);
            let file = [kept.clone(), framed(&groups), framed(&[0x10, 1])].concat();
            let (found, damage) = up_to(&file, 9, "");
            assert_eq!(found, kept);
            assert_eq!(damage.unwrap().offset, kept.len());
            // Messages within messages, in a field that is stepped over and in a summary.
            let mut nest = Vec::new();
            for _ in 0..2000 {
                nest = field(1, &nest);
            }
            for outer in [4, 5, 6, 7] {
                let event = [field(outer, &nest), vec![0x10, 7]].concat();
                assert_eq!(read(&event).unwrap().0, 7);
                assert!(up_to(&framed(&event), 6, "").0.is_empty());
                assert_eq!(up_to(&framed(&event), 7, ""), (framed(&event), None));
            }
        };
        // A stack that no recursion of that depth would fit on.
        std::thread::Builder::new().stack_size(256 << 10).spawn(body).unwrap().join().unwrap();
    }

    #[test]
    fn what_is_no_event_is_said_to_be_none() {
        let wrong: [&[u8]; 14] = [
            &[0x10],
            &[0x10, 0x80],
            &[0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2],
            &[0x80; 11],
            &[0x09, 1, 2, 3],
            &[0x1d, 1, 2, 3],
            &[0x1a, 2, 1],
            &[0x22, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
            &[0x0e],
            &[0x00, 1],
            &[0x12, 1, 1],
            &[0x2a, 2, 0x08, 1],
            &[0x28, 1],
            &[0x2a, 4, 0x0a, 2, 0x08, 1],
        ];
        for data in wrong {
            assert_eq!(read(data), None, "{data:?}");
            let (kept, damage) = up_to(&framed(data), 9, "");
            assert!(kept.is_empty() && damage.unwrap().to_string().contains("is no event: "));
        }
        // The largest numbers that are some.
        let most = [0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        assert_eq!(read(&most), Some((-1, vec![])));
        assert_eq!(read(&[]), Some((0, vec![])));
        // The last step counts, as it does for protobuf.
        assert_eq!(read(&[0x10, 9, 0x10, 4]), Some((4, vec![])));
    }

    #[test]
    fn damage_is_told_with_its_place_and_ends_the_file() {
        let (one, two) = (framed(&[0x10, 1]), framed(&[0x10, 2]));
        let file = [one.clone(), two.clone(), framed(&[0x10, 3])].concat();
        assert_eq!(up_to(&file, 9, ""), (file.clone(), None));
        let second = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut changed = file.clone();
            change(&mut changed);
            let (kept, damage) = up_to(&changed, 9, "");
            assert_eq!(kept, one);
            let damage = damage.unwrap();
            assert_eq!(damage.offset, one.len());
            assert!(damage.to_string().contains("byte 18"), "{damage}");
            damage.fault
        };
        for byte in 0..12 {
            assert_eq!(second(&|bytes| bytes[18 + byte] ^= 4), Fault::LengthSum);
        }
        for byte in 12..18 {
            assert_eq!(second(&|bytes| bytes[18 + byte] ^= 4), Fault::DataSum);
        }
        for kept in 1..18 {
            let expected = match kept {
                ..12 => Fault::Header,
                _ => Fault::Torn { length: 2, left: kept - 12 },
            };
            assert_eq!(second(&|bytes| bytes.truncate(18 + kept)), expected);
        }
        for length in [7, 1 << 40, u64::MAX - 3, u64::MAX] {
            let huge = |bytes: &mut Vec<u8>| {
                bytes.truncate(18);
                bytes.extend(length.to_le_bytes());
                bytes.extend(masked_crc32c(&length.to_le_bytes()).to_le_bytes());
                bytes.extend([0; 10]);
            };
            assert_eq!(second(&huge), Fault::Torn { length, left: 10 });
        }
        assert_eq!(up_to(&[], 9, ""), (vec![], None));
    }
}
