//! Tables for spreadsheets, as CSV.

use anyhow::{Context, Result};

/// Rows under a head.
///
/// # Errors
/// None that a cell can cause.
pub(crate) fn sheet(head: Vec<String>, rows: impl Iterator<Item = Vec<String>>) -> Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(head)?;
    for row in rows {
        writer.write_record(row)?;
    }
    let bytes = writer.into_inner().context("writing CSV")?;
    String::from_utf8(bytes).context("writing CSV")
}
