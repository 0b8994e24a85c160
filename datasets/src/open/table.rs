//! Tables of texts and their labels: CSV, TSV, Parquet.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::parquet::{self, Cell, Parquet};
use super::rows::{self, Dialect};
use super::{
    LARGEST, Part, RawValues, Read, contents, file_name, named, numbered, pointed, unpacked,
};
use crate::definition::{About, Data, DatasetDefinition, Form, Holds, Reading, Selection};
use crate::error::{Error, Result};
use crate::files::FileSum;
use crate::survey::Survey;
use crate::text::Words;

settings! {
    /// A table of texts and their labels.
    pub struct TextTable {
        /// The file: CSV or TSV, packed by gzip or not; or Parquet, in a build with `--features fetch`.
        pub file: PathBuf = "train.csv".into(),
        /// The file to test on, in the same layout; without it a share of `file` is tested on.
        pub test_file: Option<PathBuf> = None,
        /// The column of texts, or a list of columns, which are joined: names as in the first line, or numbers from 1.
        pub text: Columns = Columns::One(Column::Name("text".into())),
        /// The column of labels: words or whole numbers, wherever those begin.
        pub label: Column = Column::Name("label".into()),
        /// Whether the first line names the columns. If left out: yes where columns are given by name; where they are
        /// given by number, if no other row has the label that stands there.
        pub header: Option<bool> = None,
        /// What stands between two fields; if left out, a tab in a .tsv file, and else whichever of comma, semicolon and
        /// tab the first line has.
        pub delimiter: Option<char> = None,
        /// Whether a field may stand in double quotes, with a quote within written twice (RFC 4180).
        pub quotes: bool = true,
        /// The largest number of token ids, the two for padding and unknown words included.
        #[cfg_attr(feature = "schema", schemars(range(min = 3, max = 1 << 20)))]
        pub vocabulary: usize = 30_000,
        /// How often a word must occur in the training set to get an id.
        #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
        pub minimum_count: u64 = 2,
        /// Tokens per text: longer texts are cut, shorter ones padded.
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1 << 16)))]
        pub length: usize = 64,
    }
}

/// A column of a table: its name, or its number, counted from 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "a column is its name, or its number from 1")]
pub enum Column {
    /// By its number.
    Number(#[cfg_attr(feature = "schema", schemars(range(min = 1)))] u32),
    /// By its name.
    Name(String),
}

/// One column of a table, or several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(
    untagged,
    expecting = "a column is its name or its number from 1; several are a list of them"
)]
pub enum Columns {
    /// One.
    One(Column),
    /// Several.
    Several(Vec<Column>),
}

impl Columns {
    fn all(&self) -> &[Column] {
        match self {
            Self::One(column) => std::slice::from_ref(column),
            Self::Several(columns) => columns,
        }
    }
}

impl DatasetDefinition for TextTable {
    fn about(&self) -> About {
        About {
            name: "table",
            line: "texts and labels in a CSV, TSV or Parquet file of one's own",
            paper: "",
        }
    }

    fn form(&self) -> Result<Form> {
        let labels: BTreeSet<String> = self.rows(&self.file, None)?.labels.into_iter().collect();
        Ok(Form { shape: self.words().shape(), classes: labels.len() })
    }

    fn holds(&self) -> Holds {
        Holds::Texts
    }

    fn validate(&self, _samples: &Selection) -> Result<()> {
        if let Some(other) = self.delimiter.filter(|c| !c.is_ascii() || "\"\r\n".contains(*c)) {
            let problem = "write one ASCII character, such as \",\", \";\" or \"\\t\"";
            return Err(Error::setting("dataset.delimiter", &other, problem));
        }
        if self.text.all().is_empty() {
            return Err(Error::setting("dataset.text", &"[]", "name at least one column"));
        }
        if self.columns().any(|column| *column == Column::Number(0)) {
            let problem = "columns are numbered from 1; write the number of one, or its name";
            return Err(Error::setting("dataset.text or dataset.label", &0, problem));
        }
        if self.header == Some(false) && self.columns().any(|c| matches!(c, Column::Name(_))) {
            let problem = "without a header columns have no names; number them: dataset.text = 2";
            return Err(Error::setting("dataset.header", &false, problem));
        }
        self.words().validate()
    }

    fn load(&self, reading: &Reading<'_>) -> Result<Data> {
        self.read(&reading.samples)?.into_data(Some((self.words(), reading.vocabulary)))
    }

    fn survey(&self) -> Option<Result<Survey>> {
        Some(self.read(&Selection::default()).map(|read| read.survey(&self.file)))
    }
}

/// More different labels than these, in more than half of the rows, are none.
const LABELS: usize = 1000;

/// What was read of one file.
#[derive(Default)]
struct Rows {
    header: Option<Vec<String>>,
    texts: Vec<String>,
    labels: Vec<String>,
    /// The line of each row; in a Parquet file its number.
    lines: Vec<u64>,
    sum: Option<FileSum>,
    warnings: Vec<String>,
}

impl TextTable {
    fn words(&self) -> Words {
        let &Self { vocabulary, minimum_count, length, .. } = self;
        Words { vocabulary, minimum_count, length }
    }

    fn columns(&self) -> impl Iterator<Item = &Column> {
        self.text.all().iter().chain([&self.label])
    }

    pub(crate) fn read(&self, samples: &Selection) -> Result<Read> {
        let mut train = self.rows(&self.file, None)?;
        let test = self.test_file.as_ref();
        let mut test = test.map(|file| self.rows(file, Some(&train))).transpose()?;
        let none = Rows::default();
        let tested = test.as_ref().unwrap_or(&none);
        let numbers = numbered(&train.labels, &tested.labels).map_err(|(place, problem)| {
            let path = self.test_file.as_ref().unwrap_or(&self.file);
            Error::unfit(path, format!("line {}: {problem}", tested.lines[place]))
        });
        let (classes, [train_labels, test_labels]) = numbers?;
        let files = [train.sum.take(), test.as_mut().and_then(|test| test.sum.take())];
        let warnings = std::mem::take(&mut train.warnings);
        let part = |rows: Rows, labels| {
            let names = rows.lines.into_iter().map(|line| format!("line {line}"));
            Part::new(RawValues::Texts(rows.texts), labels).with_names(names)
        };
        let parts = [Some(part(train, train_labels)), test.map(|test| part(test, test_labels))];
        let files = files.into_iter().flatten().collect();
        let read = Read::new(&self.file, classes, parts, samples, files)?;
        Ok(read.with_warnings(warnings))
    }

    /// All rows of a Parquet file.
    fn parquet_rows(&self, path: &Path) -> Result<Rows> {
        let file = Parquet::open(path)?;
        let places = self.places(&file.columns(), true);
        let (mut columns, label) = places.map_err(|problem| Error::unfit(path, problem))?;
        columns.push(label);
        let mut rows = Rows { header: Some(Vec::new()), ..Rows::default() };
        file.rows(&columns, usize::MAX, |number, mut cells| {
            let label = cells.pop();
            let other = cells.iter().find(|cell| matches!(cell, Cell::Bytes(_) | Cell::Other(_)));
            if let Some(other) = other {
                return Err(format!("a column of texts holds {}; see dataset.text", other.kind()));
            }
            let label = label.as_ref().map_or("", Cell::text);
            rows.add(cells.iter().map(Cell::text), label, number as u64)
        })?;
        rows.sum = Some(file.sum);
        rows.check_labels(path)?;
        Ok(rows)
    }

    /// All rows of `path`; the training file's tell whether a test file begins with a header.
    fn rows(&self, path: &Path, train: Option<&Rows>) -> Result<Rows> {
        if parquet::is_parquet(path) {
            return self.parquet_rows(path);
        }
        let (packed, sum) = contents(path)?;
        let bytes = unpacked(path, packed, LARGEST)?;
        let mut rows = Rows { sum: Some(sum), ..Rows::default() };
        let by_name = self.columns().any(|column| matches!(column, Column::Name(_)));
        let mut header = match train {
            Some(Rows { header: None, .. }) => Some(false),
            Some(_) => None,
            None => self.header.or(by_name.then_some(true)),
        };
        let (mut columns, mut width, mut first) = (None, 0, Vec::new());
        rows::each(path, &bytes, self.dialect(path, &bytes), |row| {
            if row.number == 1 {
                width = row.len();
                let fields = row.fields();
                if let Some(train) = train.and_then(|train| train.header.as_ref()) {
                    header = Some(by_name || self.header == Some(true) || *train == fields);
                }
                let named = header == Some(true);
                columns = Some(self.places(&fields, named)?);
                if named {
                    rows.header = Some(fields);
                    return Ok(());
                }
                first = fields;
            }
            if row.len() != width {
                return Err(format!(
                    "{} columns, and the first row has {width}; a field with a delimiter in it must stand in double \
                     quotes (dataset.delimiter, dataset.quotes)",
                    row.len()
                ));
            }
            let (texts, label) = columns.as_ref().expect("invariant: the first row came first");
            rows.add(texts.iter().map(|&text| row.field(text)), row.field(*label), row.line)
        })?;
        if header.is_none() && train.is_none() {
            rows.decide(first);
        }
        rows.check_labels(path)?;
        Ok(rows)
    }

    /// The places of the columns of texts, and of that of labels.
    fn places(
        &self,
        fields: &[String],
        named: bool,
    ) -> std::result::Result<(Vec<usize>, usize), String> {
        let place = |column: &Column| {
            let (found, column) = match column {
                Column::Number(number) => {
                    let place = (*number as usize).checked_sub(1);
                    (place.filter(|place| *place < fields.len()), number.to_string())
                }
                Column::Name(name) => {
                    let name = name.trim();
                    (fields.iter().position(|field| field.trim() == name), format!("{name:?}"))
                }
            };
            let columns =
                if named { super::named(fields) } else { format!("1 to {}", fields.len()) };
            found.ok_or_else(|| {
                format!(
                    "there is no column {column}; the columns are {columns}. Name others by dataset.text and \
                     dataset.label; if the first line is a sample, write dataset.header = false and number the columns"
                )
            })
        };
        let texts = self.text.all().iter().map(place).collect::<std::result::Result<_, _>>()?;
        Ok((texts, place(&self.label)?))
    }

    fn dialect(&self, path: &Path, bytes: &[u8]) -> Dialect {
        let delimiter = self.delimiter.map_or_else(|| delimiter(path, bytes), |c| c as u8);
        Dialect { delimiter, quotes: self.quotes }
    }
}

/// What stands between the fields of a file, by its name or its first line.
pub(crate) fn delimiter(path: &Path, bytes: &[u8]) -> u8 {
    let name = file_name(path);
    let first = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
    match [b',', b';', b'\t'].into_iter().find(|delimiter| first.contains(delimiter)) {
        _ if name.contains(".tsv") || name.contains(".tab") => b'\t',
        Some(delimiter) => delimiter,
        None => b',',
    }
}

impl Rows {
    fn add<'a>(
        &mut self,
        texts: impl Iterator<Item = &'a str>,
        label: &str,
        line: u64,
    ) -> std::result::Result<(), String> {
        let label = label.trim();
        if label.is_empty() {
            return Err("the label is empty; give it one, or take the row away".into());
        }
        self.texts.push(texts.filter(|text| !text.is_empty()).collect::<Vec<_>>().join(" "));
        self.labels.push(label.to_owned());
        self.lines.push(line);
        Ok(())
    }

    /// Decides whether the first row is a header, where nothing says so.
    fn decide(&mut self, first_row: Vec<String>) {
        let Some((first, others)) = self.labels.split_first() else { return };
        let numbers = !others.is_empty() && others.iter().all(|label| label.parse::<f64>().is_ok());
        let alone = others.len() > 1 && !others.contains(first);
        if alone && (!numbers || first.parse::<f64>().is_err()) {
            self.warnings.push(format!(
                "the first line is taken for a header, because no other row has the label {first:?}; \
                 dataset.header = false makes it a sample"
            ));
            self.header = Some(first_row);
            self.labels.remove(0);
            self.texts.remove(0);
            self.lines.remove(0);
        }
    }

    /// Refuses what is no label of a class, by its line.
    fn check_labels(&mut self, path: &Path) -> Result<()> {
        if let Some((place, problem)) = pointed(&self.labels) {
            return Err(Error::unfit(path, format!("line {}: {problem}", self.lines[place])));
        }
        let different: BTreeSet<&String> = self.labels.iter().collect();
        if different.len() > LABELS && different.len() > self.labels.len() / 2 {
            let (some, of): (Vec<_>, _) = (different.iter().take(8).collect(), self.labels.len());
            let problem = format!(
                "has {} different labels in {of} rows, such as {}: is dataset.label the column of labels?",
                different.len(),
                named(&some)
            );
            return Err(Error::unfit(path, problem));
        }
        if let Some(header) = self.header.as_ref().filter(|header| header.len() > 1) {
            let is_label = header.iter().find(|name| self.labels.contains(&name.trim().to_owned()));
            self.warnings.extend(is_label.map(|name| {
                format!(
                    "{name:?} in the first line is also a label: if that line is a sample, write dataset.header = \
                     false and number the columns"
                )
            }));
        }
        Ok(())
    }
}
