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
    /// A distribution.
    Histogram(Histogram),
    /// A string tensor, and the plugin that shows it.
    Text {
        /// The strings.
        strings: Vec<String>,
        /// The dimensions of the tensor.
        shape: Vec<u64>,
        /// The plugin's name.
        plugin: String,
    },
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

/// `HistogramProto`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Histogram {
    /// Smallest value.
    pub(crate) min: f64,
    /// Largest value.
    pub(crate) max: f64,
    /// Number of values.
    pub(crate) num: f64,
    /// Sum of the values.
    pub(crate) sum: f64,
    /// Sum of their squares.
    pub(crate) sum_squares: f64,
    /// Upper boundaries.
    pub(crate) limits: Vec<f64>,
    /// Counts.
    pub(crate) counts: Vec<f64>,
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
    let mut record = Record::default();
    for (number, field) in fields(data) {
        match (number, field) {
            (1, Field::Fixed64(bits)) => record.wall_time = f64::from_bits(bits),
            (2, Field::Varint(step)) => record.step = step as i64,
            (3, Field::Bytes(version)) => record.file_version = Some(string(version)),
            (5, Field::Bytes(summary)) => {
                for (number, field) in fields(summary) {
                    let (1, Field::Bytes(entry)) = (number, field) else {
                        panic!("field {number} in a summary")
                    };
                    record.values.push(value(entry));
                }
            }
            // A session log: where a resumed run goes on.
            (7, Field::Bytes(_)) => {}
            (number, field) => panic!("field {number} in an event: {field:?}"),
        }
    }
    record
}

fn value(data: &[u8]) -> (String, Value) {
    let (mut tag, mut value) = (String::new(), None);
    let (mut plugin, mut content, mut tensor) = (String::new(), Vec::new(), None);
    for (number, field) in fields(data) {
        match (number, field) {
            (1, Field::Bytes(name)) => tag = string(name),
            (2, Field::Fixed32(bits)) => value = Some(Value::Scalar(f32::from_bits(bits))),
            (5, Field::Bytes(histogram)) => value = Some(Value::Histogram(histogram_of(histogram))),
            (8, Field::Bytes(bytes)) => tensor = Some(tensor_of(bytes)),
            (9, Field::Bytes(metadata)) => {
                for (number, field) in fields(metadata) {
                    let (1, Field::Bytes(data)) = (number, field) else { continue };
                    for (number, field) in fields(data) {
                        match (number, field) {
                            (1, Field::Bytes(name)) => plugin = string(name),
                            (2, Field::Bytes(bytes)) => content = bytes.to_vec(),
                            (number, field) => panic!("field {number} of a plugin: {field:?}"),
                        }
                    }
                }
            }
            (number, field) => panic!("field {number} in a value: {field:?}"),
        }
    }
    if let Some((mut strings, shape)) = tensor {
        value = Some(if plugin == "text" {
            let strings = strings.iter().map(|bytes| string(bytes)).collect();
            Value::Text { strings, shape, plugin }
        } else {
            assert!(shape.is_empty() && strings.len() == 1 || shape == [0] && strings.is_empty());
            Value::Plugin { plugin, content, string: strings.pop() }
        });
    }
    let value = value.unwrap_or_else(|| panic!("{tag} has a value"));
    (tag, value)
}

fn histogram_of(data: &[u8]) -> Histogram {
    let doubles = |bytes: &[u8]| bytes.chunks_exact(8).map(|b| f64::from_bits(u64_of(b))).collect();
    let mut histogram = Histogram::default();
    for (number, field) in fields(data) {
        match (number, field) {
            (1, Field::Fixed64(bits)) => histogram.min = f64::from_bits(bits),
            (2, Field::Fixed64(bits)) => histogram.max = f64::from_bits(bits),
            (3, Field::Fixed64(bits)) => histogram.num = f64::from_bits(bits),
            (4, Field::Fixed64(bits)) => histogram.sum = f64::from_bits(bits),
            (5, Field::Fixed64(bits)) => histogram.sum_squares = f64::from_bits(bits),
            (6, Field::Bytes(limits)) => histogram.limits = doubles(limits),
            (7, Field::Bytes(counts)) => histogram.counts = doubles(counts),
            (number, field) => panic!("field {number} in a histogram: {field:?}"),
        }
    }
    histogram
}

/// The strings in a tensor, and its dimensions; a tensor of floats has none.
fn tensor_of(data: &[u8]) -> (Vec<Vec<u8>>, Vec<u64>) {
    const DT_FLOAT: u64 = 1;
    const DT_STRING: u64 = 7;
    let (mut strings, mut shape) = (Vec::new(), Vec::new());
    for (number, field) in fields(data) {
        match (number, field) {
            (1, Field::Varint(kind)) => assert!([DT_FLOAT, DT_STRING].contains(&kind), "{kind}"),
            (2, Field::Bytes(dimensions)) => {
                for (number, field) in fields(dimensions) {
                    let (2, Field::Bytes(dimension)) = (number, field) else {
                        panic!("field {number} in a shape")
                    };
                    let size = fields(dimension).into_iter().find_map(|field| match field {
                        (1, Field::Varint(size)) => Some(size),
                        _ => None,
                    });
                    // What is zero is left out.
                    shape.push(size.unwrap_or(0));
                }
            }
            (8, Field::Bytes(text)) => strings.push(text.to_vec()),
            (number, field) => panic!("field {number} in a tensor: {field:?}"),
        }
    }
    (strings, shape)
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
