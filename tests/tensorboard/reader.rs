//! Reads TensorBoard event files from their specification alone: the record framing of TensorFlow
//! (`tensorflow/core/lib/io/record_writer.h`) and the fields of `event.proto` and `summary.proto`.
//! It shares no code with what writes the files.

use std::path::Path;

/// One record of an event file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Record {
    /// Seconds since the Unix epoch.
    pub(crate) wall_time: f64,
    /// The step.
    pub(crate) step: i64,
    /// Set in the first record only.
    pub(crate) file_version: Option<String>,
    /// The values, each with its tag.
    pub(crate) values: Vec<(String, Value)>,
}

/// A value of a summary.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// A point of a curve.
    Scalar(f32),
    /// A distribution: `HistogramProto`.
    Histogram {
        /// Smallest and largest value, number of values, their sum and that of their squares.
        figures: [f64; 5],
        /// Upper boundaries.
        limits: Vec<f64>,
        /// Counts.
        counts: Vec<f64>,
    },
    /// A text, as the plugin of this name takes it: a tensor of one string.
    Text(String),
    /// A tensor for another plugin.
    Plugin {
        /// The plugin's name.
        plugin: String,
        /// What it is to know.
        content: Vec<u8>,
        /// The string in the tensor, if there is one.
        string: Option<Vec<u8>>,
    },
}

/// The records of the only event file in `folder`, checksums verified.
pub(crate) fn read_folder(folder: &Path) -> Vec<Record> {
    let files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_name().to_string_lossy().contains("tfevents"))
        .collect();
    assert_eq!(files.len(), 1, "one event file in {}", folder.display());
    read(&std::fs::read(files[0].path()).unwrap())
}

/// The records in the bytes of an event file, checksums verified.
pub(crate) fn read(mut bytes: &[u8]) -> Vec<Record> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_at(8);
        let (length_sum, rest) = rest.split_at(4);
        assert_eq!(u32_of(length_sum), masked(crc32c(length)), "checksum of a length");
        let (data, rest) = rest.split_at(u64_of(length) as usize);
        let (data_sum, rest) = rest.split_at(4);
        assert_eq!(u32_of(data_sum), masked(crc32c(data)), "checksum of a record");
        records.push(record(data));
        bytes = rest;
    }
    records
}

fn record(data: &[u8]) -> Record {
    // 7 is a session log: where a resumed run goes on.
    let event = Message::read(data, &[1, 2, 3, 5, 7]);
    let summaries = event.all(5).map(|summary| Message::read(summary, &[1]));
    Record {
        wall_time: event.double(1),
        step: event.number(2) as i64,
        file_version: event.bytes(3).map(string),
        values: summaries.flat_map(|of| of.all(1).map(value).collect::<Vec<_>>()).collect(),
    }
}

fn value(data: &[u8]) -> (String, Value) {
    let entry = Message::read(data, &[1, 2, 5, 8, 9]);
    let tag = entry.bytes(1).map(string).unwrap_or_default();
    let scalar = entry.0.iter().find_map(|field| match field {
        (2, Field::Fixed32(bits)) => Some(Value::Scalar(f32::from_bits(*bits))),
        _ => None,
    });
    let value = match (scalar, entry.bytes(5)) {
        (Some(scalar), _) => scalar,
        (None, Some(histogram)) => histogram_of(histogram),
        (None, None) => tensor_of(&entry),
    };
    (tag, value)
}

fn histogram_of(data: &[u8]) -> Value {
    let doubles = |bytes: &[u8]| bytes.chunks_exact(8).map(|b| f64::from_bits(u64_of(b))).collect();
    let histogram = Message::read(data, &[1, 2, 3, 4, 5, 6, 7]);
    Value::Histogram {
        figures: [1, 2, 3, 4, 5].map(|number| histogram.double(number)),
        limits: histogram.bytes(6).map(doubles).unwrap_or_default(),
        counts: histogram.bytes(7).map(doubles).unwrap_or_default(),
    }
}

/// The tensor of an entry, for the plugin that its metadata name.
fn tensor_of(entry: &Message<'_>) -> Value {
    let metadata = Message::read(entry.bytes(9).expect("metadata"), &[1]);
    let data = Message::read(metadata.bytes(1).expect("a plugin"), &[1, 2]);
    let plugin = data.bytes(1).map(string).unwrap_or_default();
    let tensor = Message::read(entry.bytes(8).expect("a tensor"), &[1, 2, 8]);
    let shape = Message::read(tensor.bytes(2).expect("a shape"), &[2]);
    // What is zero is left out.
    let shape: Vec<u64> = shape.all(2).map(|size| Message::read(size, &[1]).number(1)).collect();
    let strings: Vec<&[u8]> = tensor.all(8).collect();
    const DT_FLOAT: u64 = 1;
    const DT_STRING: u64 = 7;
    match (plugin.as_str(), tensor.number(1), &strings[..], &shape[..]) {
        ("text", DT_STRING, [text], [1]) => Value::Text(string(text)),
        (_, DT_STRING, [_], []) | (_, DT_FLOAT, [], [0]) => Value::Plugin {
            content: data.bytes(2).unwrap_or_default().to_vec(),
            string: strings.first().map(|string| string.to_vec()),
            plugin,
        },
        other => panic!("a tensor of another kind: {other:?}"),
    }
}

/// The fields of a message.
struct Message<'a>(Vec<(u64, Field<'a>)>);

impl<'a> Message<'a> {
    /// Reads a message that has no other fields than those of these numbers.
    fn read(data: &'a [u8], known: &[u64]) -> Self {
        let fields = fields(data);
        let other = fields.iter().find(|(number, _)| !known.contains(number));
        assert!(other.is_none(), "field {other:?} beside {known:?}");
        Self(fields)
    }

    fn all(&self, number: u64) -> impl Iterator<Item = &'a [u8]> {
        self.0.iter().filter_map(move |field| match field {
            (of, Field::Bytes(bytes)) if *of == number => Some(*bytes),
            _ => None,
        })
    }

    fn bytes(&self, number: u64) -> Option<&'a [u8]> {
        self.all(number).last()
    }

    fn double(&self, number: u64) -> f64 {
        let double = self.0.iter().find_map(|field| match field {
            (of, Field::Fixed64(bits)) if *of == number => Some(f64::from_bits(*bits)),
            _ => None,
        });
        double.unwrap_or_default()
    }

    fn number(&self, number: u64) -> u64 {
        let whole = self.0.iter().find_map(|field| match field {
            (of, Field::Varint(value)) if *of == number => Some(*value),
            _ => None,
        });
        whole.unwrap_or_default()
    }
}

/// A field's content as protocol buffers encode it.
#[derive(Debug)]
pub(crate) enum Field<'a> {
    /// Whole numbers, enumerations, truth values.
    Varint(u64),
    /// The bits of a double.
    Fixed64(u64),
    /// A string or a message.
    Bytes(&'a [u8]),
    /// The bits of a float.
    Fixed32(u32),
}

/// The fields of a message, in the order they were written.
pub(crate) fn fields(mut data: &[u8]) -> Vec<(u64, Field<'_>)> {
    let mut found = Vec::new();
    while !data.is_empty() {
        let key = varint(&mut data);
        let field = match key & 7 {
            0 => Field::Varint(varint(&mut data)),
            1 => Field::Fixed64(u64_of(data.split_off(..8).unwrap())),
            2 => {
                let length = varint(&mut data) as usize;
                Field::Bytes(data.split_off(..length).unwrap())
            }
            5 => Field::Fixed32(u32_of(data.split_off(..4).unwrap())),
            wire => panic!("wire type {wire}"),
        };
        found.push((key >> 3, field));
    }
    found
}

fn varint(data: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *data.split_off_first().unwrap();
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return value;
        }
    }
    panic!("a varint longer than ten bytes")
}

fn string(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn u64_of(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().unwrap())
}

fn u32_of(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes.try_into().unwrap())
}

/// CRC-32C (Castagnoli), a bit at a time.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |mut crc, &byte| {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
        }
        crc
    })
}

/// The framing's mask, so that checksums of checksums do not degenerate.
fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[test]
fn the_checksum_is_castagnoli() {
    // RFC 3720, appendix B.4.
    assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
}
