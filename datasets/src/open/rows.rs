//! Rows of CSV files, strictly as RFC 4180 has them: each with its place, and none read otherwise than it was meant.

use std::path::Path;

use crate::error::{Error, Result};

/// How the fields of a file are told apart.
#[derive(Clone, Copy)]
pub(crate) struct Dialect {
    pub(crate) delimiter: u8,
    /// Whether a field may stand in double quotes.
    pub(crate) quotes: bool,
}

/// What AG News and most others are written in.
pub(crate) const CSV: Dialect = Dialect { delimiter: b',', quotes: true };

/// A double quote without a second one, or a row that begins with one and does not end in one.
pub(crate) const OPEN_QUOTE: &str = "a double quote is missing at the end of a field; the file is cut short or \
                                     damaged: fetch or unpack it again";

/// Text between a closing quote and the next delimiter.
const AFTER_QUOTE: &str = "a quote closes a field, and more follows before the next one begins; within quotes write \"\" for a quote (not \
     \\\"), or write dataset.quotes = false where quotes mean nothing (dataset.kind = \"table\")";

/// A row: its fields, and the bytes that it was read from.
pub(crate) struct Row<'a> {
    fields: &'a csv::ByteRecord,
    pub(crate) raw: &'a [u8],
    pub(crate) line: u64,
    /// Counted from 1.
    pub(crate) number: u64,
}

impl<'a> Row<'a> {
    pub(crate) fn len(&self) -> usize {
        self.fields.len()
    }

    /// The field of this number, counted from 0.
    pub(crate) fn field(&self, number: usize) -> &'a str {
        self.fields.get(number).and_then(|field| str::from_utf8(field).ok()).unwrap_or_default()
    }

    pub(crate) fn fields(&self) -> Vec<String> {
        (0..self.len()).map(|number| self.field(number).to_owned()).collect()
    }
}

/// Calls `each` with every row of `contents`, the file at `path`.
///
/// # Errors
/// The first problem, of a row's bytes or that `each` finds, with its place.
pub(crate) fn each(
    path: &Path,
    contents: &[u8],
    dialect: Dialect,
    mut each: impl FnMut(&Row<'_>) -> std::result::Result<(), String>,
) -> Result<()> {
    let mut reader = csv::ReaderBuilder::new();
    reader.has_headers(false).flexible(true).delimiter(dialect.delimiter).quoting(dialect.quotes);
    let mut reader = reader.from_reader(contents);
    let mut record = csv::ByteRecord::new();
    let mut number = 0;
    loop {
        let line = reader.position().line();
        let start = reader.position().byte() as usize;
        let failed = |error: csv::Error| Error::read(path)(std::io::Error::other(error));
        if !reader.read_byte_record(&mut record).map_err(failed)? {
            return Ok(());
        }
        number += 1;
        let raw = &contents[start..reader.position().byte() as usize];
        // Line ends that the reader skipped before the record are not part of it, nor is a mark of UTF-8.
        let skipped = raw.iter().take_while(|byte| matches!(byte, b'\n' | b'\r')).count();
        let skipped_lines = raw[..skipped].iter().filter(|&&byte| byte == b'\n').count() as u64;
        let marked = if start == 0 && raw.starts_with(b"\xef\xbb\xbf") { 3 } else { skipped };
        let raw = raw[marked..].trim_ascii_end();
        let row = Row { fields: &record, raw, line: line + skipped_lines, number };
        let found = check(&row, dialect).and_then(|()| each(&row).map_err(|problem| (0, problem)));
        if let Err((within, problem)) = found {
            let offset = start + marked + within;
            let place = format!("record {number} (line {}, byte {offset})", row.line);
            return Err(Error::within(path, format!("{place}: {problem}")));
        }
    }
}

/// Checks that a row is UTF-8 and that a quote which closes is followed by a delimiter or by nothing; the error has the
/// place within the row.
fn check(row: &Row<'_>, dialect: Dialect) -> std::result::Result<(), (usize, String)> {
    if let Err(error) = str::from_utf8(row.raw) {
        let bad = row.fields.iter().position(|field| str::from_utf8(field).is_err());
        let column = bad.map_or(1, |i| i + 1);
        let problem = format!(
            "column {column} is not valid UTF-8; convert the file to UTF-8 or unpack it again"
        );
        return Err((error.valid_up_to(), problem));
    }
    let mut bytes = row.raw.iter().copied().enumerate().peekable();
    let mut begins = dialect.quotes;
    while let Some((_, byte)) = bytes.next() {
        if !begins || byte != b'"' {
            begins = dialect.quotes && byte == dialect.delimiter;
            continue;
        }
        // Within quotes, up to the one that closes.
        loop {
            match bytes.next() {
                None => return Err((0, OPEN_QUOTE.into())),
                Some((_, b'"')) if bytes.next_if(|(_, next)| *next == b'"').is_some() => {}
                Some((_, b'"')) => break,
                Some(_) => {}
            }
        }
        if let Some((at, _)) = bytes.next_if(|(_, next)| *next != dialect.delimiter) {
            return Err((at, AFTER_QUOTE.into()));
        }
    }
    Ok(())
}
