//! Tables for spreadsheets, as CSV.

use anyhow::{Context, Result};
use serde::Serialize;

/// Rows under a head: of each row the fields in order, those of lists and tuples within it too.
pub(crate) fn sheet(
    head: Vec<String>,
    rows: impl Iterator<Item = impl Serialize>,
) -> Result<String> {
    let mut writer = csv::WriterBuilder::new().has_headers(false).from_writer(Vec::new());
    writer.write_record(head)?;
    for row in rows {
        writer.serialize(row)?;
    }
    let bytes = writer.into_inner().context("writing CSV")?;
    String::from_utf8(bytes).context("writing CSV")
}
