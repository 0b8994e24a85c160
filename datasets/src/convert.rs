//! The hub's Parquet rows as records of the official files.

#[cfg(test)]
use std::io::Cursor;

use parquet::file::reader::FileReader;
use parquet::record::{Field, Row};

use crate::error::{Error, Result};
use crate::images::SIDE;
use crate::normalisation::CHANNELS;
use crate::open::parquet::guarded;

/// Images in a column `img` of PNG files and their `labels`, as CIFAR records.
pub(crate) fn images(
    repository: &'static str,
    labels: &[&str],
    split: &[Box<dyn FileReader>],
) -> Result<Vec<u8>> {
    let mut contents = Vec::new();
    rows(repository, split, |row| {
        for name in labels {
            contents.push(label(row, name)?);
        }
        let Some(Field::Group(image)) = column(row, "img") else {
            return Err("there is no column `img`".to_owned());
        };
        let Some(Field::Bytes(png)) = column(image, "bytes") else {
            return Err("the column `img` has no bytes".to_owned());
        };
        planes(png.data(), &mut contents)
    })?;
    Ok(contents)
}

/// Texts in a column `text`, as AG News records without titles.
pub(crate) fn texts(repository: &'static str, split: &[Box<dyn FileReader>]) -> Result<Vec<u8>> {
    let mut writer =
        csv::WriterBuilder::new().quote_style(csv::QuoteStyle::Always).from_writer(Vec::new());
    rows(repository, split, |row| {
        let Some(Field::Str(text)) = column(row, "text") else {
            return Err("there is no column `text`".to_owned());
        };
        // The hub counts classes from 0, the official files from 1.
        let class = u32::from(label(row, "label")?) + 1;
        writer
            .write_record([class.to_string().as_str(), "", text])
            .map_err(|error| error.to_string())
    })?;
    writer.into_inner().map_err(|error| converted(repository, error))
}

/// Calls `each` with every row of all files, in order.
fn rows(
    repository: &'static str,
    split: &[Box<dyn FileReader>],
    each: impl FnMut(&Row) -> std::result::Result<(), String>,
) -> Result<()> {
    let broken = |problem: &str| converted(repository, problem);
    guarded(broken, || unguarded_rows(repository, split, each))
}

fn unguarded_rows(
    repository: &'static str,
    split: &[Box<dyn FileReader>],
    mut each: impl FnMut(&Row) -> std::result::Result<(), String>,
) -> Result<()> {
    let mut number = 0u64;
    for file in split {
        let rows = file.get_row_iter(None).map_err(|error| converted(repository, error))?;
        for row in rows {
            number += 1;
            let done = row.map_err(|error| error.to_string()).and_then(|row| each(&row));
            done.map_err(|problem| converted(repository, format!("row {number}: {problem}")))?;
        }
    }
    Ok(())
}

/// What the hub gave is not the data set.
pub(crate) fn converted(repository: &str, problem: impl std::fmt::Display) -> Error {
    let problem = format!(
        "what the Hugging Face hub gave as {repository} is not the data set: {problem}; delete it from the hub's cache \
         and try again, or use the official files"
    );
    Error::Hub { problem }
}

fn column<'a>(row: &'a Row, name: &str) -> Option<&'a Field> {
    row.get_column_iter().find_map(|(found, field)| (found == name).then_some(field))
}

fn label(row: &Row, name: &str) -> std::result::Result<u8, String> {
    let value = match column(row, name) {
        Some(&Field::Long(value)) => value,
        Some(&Field::Int(value)) => value.into(),
        Some(&Field::Byte(value)) => value.into(),
        Some(&Field::UByte(value)) => value.into(),
        _ => return Err(format!("there is no column `{name}` of whole numbers")),
    };
    u8::try_from(value).map_err(|_| format!("the column `{name}` says {value}"))
}

/// Appends the red, green and blue plane of a PNG file of 32 × 32 pixels.
fn planes(png: &[u8], contents: &mut Vec<u8>) -> std::result::Result<(), String> {
    let image = image::load_from_memory_with_format(png, image::ImageFormat::Png);
    let image = image.map_err(|error| error.to_string())?;
    let (width, height, kind) = (image.width(), image.height(), image.color());
    let side = SIDE as u32;
    if (width, height, kind) != (side, side, image::ColorType::Rgb8) {
        return Err(format!(
            "an image of {width} × {height} pixels, {kind:?}, instead of 32 × 32, 8-bit RGB"
        ));
    }
    let pixels = image.into_bytes();
    for channel in 0..CHANNELS {
        contents.extend(pixels.iter().skip(channel).step_by(CHANNELS));
    }
    Ok(())
}

/// A PNG file of `side` × `side` RGB pixels.
#[cfg(test)]
pub(crate) fn png(side: u32, pixels: &[u8]) -> Vec<u8> {
    let mut file = Cursor::new(Vec::new());
    let colours = image::ExtendedColorType::Rgb8;
    let format = image::ImageFormat::Png;
    image::write_buffer_with_format(&mut file, pixels, side, side, colours, format).unwrap();
    file.into_inner()
}

/// Parquet files as the hub has them, made for tests.
#[cfg(test)]
pub(crate) mod made {
    use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;
    use std::io::Write;
    use std::sync::Arc;

    enum TestColumn {
        Bytes(Vec<Vec<u8>>),
        Numbers(Vec<i64>),
    }

    fn file(schema: &str, columns: Vec<TestColumn>) -> Vec<u8> {
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let mut file = Vec::new();
        let mut writer = SerializedFileWriter::new(&mut file, schema, Arc::default()).unwrap();
        let mut group = writer.next_row_group().unwrap();
        for column in columns {
            let mut out = group.next_column().unwrap().unwrap();
            match column {
                TestColumn::Bytes(values) => {
                    let values: Vec<ByteArray> = values.into_iter().map(ByteArray::from).collect();
                    let defined = vec![1; values.len()];
                    let levels = Some(defined.as_slice());
                    out.typed::<ByteArrayType>().write_batch(&values, levels, None).unwrap();
                }
                TestColumn::Numbers(values) => {
                    let defined = vec![1; values.len()];
                    let levels = Some(defined.as_slice());
                    out.typed::<Int64Type>().write_batch(&values, levels, None).unwrap();
                }
            }
            out.close().unwrap();
        }
        group.close().unwrap();
        writer.close().unwrap();
        file
    }

    pub(crate) fn texts(rows: &[(String, i64)]) -> Vec<u8> {
        file(
            "message schema { optional binary text (UTF8); optional int64 label; }",
            vec![
                TestColumn::Bytes(rows.iter().map(|(text, _)| text.clone().into_bytes()).collect()),
                TestColumn::Numbers(rows.iter().map(|(_, label)| *label).collect()),
            ],
        )
    }

    pub(crate) fn images(labels: &[&str], rows: &[(Vec<u8>, Vec<i64>)]) -> Vec<u8> {
        let mut schema =
            "message schema { required group img { optional binary bytes; }".to_owned();
        let mut columns =
            vec![TestColumn::Bytes(rows.iter().map(|(png, _)| png.clone()).collect())];
        for (number, label) in labels.iter().enumerate() {
            schema += &format!(" optional int64 {label};");
            columns
                .push(TestColumn::Numbers(rows.iter().map(|(_, labels)| labels[number]).collect()));
        }
        file(&(schema + " }"), columns)
    }

    pub(crate) fn worded(rows: &[(Vec<u8>, &str)]) -> Vec<u8> {
        file(
            "message schema { required group img { optional binary bytes; } optional binary label (UTF8); }",
            vec![
                TestColumn::Bytes(rows.iter().map(|(png, _)| png.clone()).collect()),
                TestColumn::Bytes(rows.iter().map(|(_, label)| label.as_bytes().into()).collect()),
            ],
        )
    }

    pub(crate) fn open(contents: &[u8]) -> Box<dyn FileReader> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(contents).unwrap();
        Box::new(SerializedFileReader::new(file).unwrap())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::IMAGE;

    fn problem(png: Vec<u8>, label: i64) -> String {
        let file = made::images(&["label"], &[(png, vec![label])]);
        let error = images("uoft-cs/cifar10", &["label"], &[made::open(&file)]).unwrap_err();
        assert!(error.to_string().contains("cifar10 is not the data set"));
        error.to_string()
    }

    #[test]
    fn bad_rows_are_refused() {
        let good = png(32, &[7; IMAGE]);
        assert!(problem(good[..good.len() / 2].to_vec(), 1).contains("row 1"));
        assert!(problem(png(16, &[7; 16 * 16 * 3]), 1).contains("16 × 16"));
        assert!(problem(b"GIF".to_vec(), 1).contains("row 1"));
        assert!(problem(good.clone(), 256).contains("`label` says 256"));
        let file = made::images(&["colour"], &[(good, vec![1])]);
        let error = images("uoft-cs/cifar10", &["label"], &[made::open(&file)]).unwrap_err();
        assert!(error.to_string().contains("no column `label`"));
        let file = made::texts(&[("a".to_owned(), 1)]);
        let error = images("uoft-cs/cifar10", &["label"], &[made::open(&file)]).unwrap_err();
        assert!(error.to_string().contains("no column `img`"));
    }
}
