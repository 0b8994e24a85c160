//! Columns of a Parquet file, as the hub and pandas write them.

use std::path::Path;

use crate::error::Result;
use crate::files::FileSum;

/// Whether a file is one, by its name.
pub(crate) fn is_parquet(path: &Path) -> bool {
    path.extension().is_some_and(|end| end.eq_ignore_ascii_case("parquet"))
}

/// What stands in a row at a column.
#[cfg_attr(
    not(feature = "fetch"),
    expect(dead_code, reason = "only a file that is read has cells")
)]
pub(crate) enum Cell {
    Nothing,
    /// A text, or a number in digits.
    Text(String),
    /// Bytes, alone or as `bytes` in a group: a picture's file.
    Bytes(Vec<u8>),
    /// What is neither, by the name of its type.
    Other(&'static str),
}

impl Cell {
    /// What it is, in words.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Text(_) => "a text or a number",
            Self::Bytes(_) => "bytes",
            Self::Other(kind) => kind,
        }
    }

    /// The text; nothing where there are bytes.
    pub(crate) fn text(&self) -> &str {
        if let Self::Text(text) = self { text } else { "" }
    }

    /// What it takes in memory.
    #[cfg(feature = "fetch")]
    fn size(&self) -> u64 {
        let held = match self {
            Self::Text(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
            Self::Nothing | Self::Other(_) => 0,
        };
        (size_of::<Self>() + held) as u64
    }
}

#[cfg(feature = "fetch")]
pub(crate) use self::reader::{Parquet, guarded, opened};

#[cfg(feature = "fetch")]
mod reader {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    use bytes::Bytes;
    use parquet::errors::ParquetError;
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;
    use parquet::schema::types::Type;

    use super::super::LARGEST;
    use super::{Cell, FileSum, Path, Result};
    use crate::error::Error;

    /// The most columns of a file, with the groups that they lie in.
    const COLUMNS: u16 = 1 << 12;
    /// The most groups that lie within each other.
    const DEPTH: usize = 32;
    /// The stack for as many calls within each other as a schema has parts: up to 6 KB each without optimisation.
    const STACK: usize = 64 << 20;

    /// A Parquet file.
    pub(crate) struct Parquet {
        path: std::path::PathBuf,
        reader: SerializedFileReader<Bytes>,
        /// The most bytes that the cells of all rows may take: in a file one value may stand for many.
        pub(super) most: u64,
        pub(crate) sum: FileSum,
    }

    impl Parquet {
        pub(crate) fn open(path: &Path) -> Result<Self> {
            let (contents, sum) = super::super::contents(path)?;
            let reader = opened(path, contents)?;
            Ok(Self { path: path.to_owned(), reader, most: LARGEST, sum })
        }

        fn fields(&self) -> &[Arc<Type>] {
            self.reader.metadata().file_metadata().schema().get_fields()
        }

        /// The names of its columns.
        pub(crate) fn columns(&self) -> Vec<String> {
            self.fields().iter().map(|field| field.name().to_owned()).collect()
        }

        /// Calls `each` with the number of every row, from 1, and what stands there at `columns`, up to row `last`.
        pub(crate) fn rows(
            &self,
            columns: &[usize],
            last: usize,
            each: impl FnMut(usize, Vec<Cell>) -> std::result::Result<(), String>,
        ) -> Result<()> {
            let broken = |problem: &str| unreadable(&self.path, problem);
            guarded(broken, || self.unguarded_rows(columns, last, each))
        }

        fn unguarded_rows(
            &self,
            columns: &[usize],
            last: usize,
            mut each: impl FnMut(usize, Vec<Cell>) -> std::result::Result<(), String>,
        ) -> Result<()> {
            let failed = |error: ParquetError| unreadable(&self.path, error);
            let mut size = 0;
            let mut chosen: Vec<usize> = columns.to_vec();
            chosen.sort_unstable();
            chosen.dedup();
            let fields = chosen.iter().map(|&place| self.fields()[place].clone()).collect();
            let schema = Type::group_type_builder("schema").with_fields(fields).build();
            let rows = self.reader.get_row_iter(Some(schema.map_err(failed)?)).map_err(failed)?;
            for (number, row) in (1..).zip(rows.take(last)) {
                let row = row.map_err(failed)?;
                let found: Vec<&Field> = row.get_column_iter().map(|(_, field)| field).collect();
                let place = |column| chosen.binary_search(column).ok();
                let cells = columns.iter().filter_map(|column| found.get(place(column)?).copied());
                let cells: Vec<Cell> = cells.map(cell).collect();
                size += cells.iter().map(Cell::size).sum::<u64>();
                let done = match size > self.most {
                    true => Err(format!(
                        "up to here the columns take {size} bytes, and at most {} are read; take a part of the rows",
                        self.most
                    )),
                    false => each(number, cells),
                };
                done.map_err(|problem| {
                    Error::unfit(&self.path, format!("row {number}: {problem}"))
                })?;
            }
            Ok(())
        }
    }

    /// The file at `path`, which has these contents. The library goes down a schema by calls within each other, and a
    /// stack that overflows ends the process: it gets room for as many calls as there can be.
    pub(crate) fn opened(path: &Path, contents: Vec<u8>) -> Result<SerializedFileReader<Bytes>> {
        if schema_parts(&contents).is_none_or(|parts| parts > COLUMNS) {
            let problem = format!("it has no schema, or one of more than {COLUMNS} columns");
            return Err(unreadable(path, problem));
        }
        let read = move || {
            let reader = SerializedFileReader::new(Bytes::from(contents));
            let reader = reader.map_err(|error| error.to_string())?;
            match depth(reader.metadata().file_metadata().schema()) {
                0..=DEPTH => Ok(reader),
                depth => Err(format!("{depth} groups lie within each other")),
            }
        };
        let thread = std::thread::Builder::new().name("parquet".into()).stack_size(STACK);
        let done = thread.spawn(read).map_err(Error::read(path))?.join();
        done.unwrap_or_else(|_| Err(CONTRADICTION.into())).map_err(|error| unreadable(path, error))
    }

    /// How many columns and groups a file says that its schema has, if no more than can be written in two bytes. What
    /// tells of them begins with the version and the schema, in Thrift's compact protocol: a number and a list.
    fn schema_parts(contents: &[u8]) -> Option<u16> {
        let (rest, end) = contents.split_last_chunk::<8>()?;
        let length = u32::from_le_bytes([end[0], end[1], end[2], end[3]]) as usize;
        match rest[rest.len().checked_sub(length)?..] {
            [0x15, 0..=0x7f, 0x19, 0xfc, low, high @ 0..=0x7f, ..] if low >= 0x80 => {
                Some(u16::from(high) << 7 | u16::from(low & 0x7f))
            }
            [0x15, 0..=0x7f, 0x19, 0xfc, count, ..] if count < 0x80 => Some(count.into()),
            [0x15, 0..=0x7f, 0x19, head, ..] if head < 0xf0 => Some(u16::from(head >> 4)),
            _ => None,
        }
    }

    /// How many groups lie within each other.
    fn depth(part: &Type) -> usize {
        match part.is_group() {
            true => 1 + part.get_fields().iter().map(|part| depth(part)).max().unwrap_or(0),
            false => 0,
        }
    }

    const CONTRADICTION: &str = "its parts contradict each other";

    /// What `read` gives. Of a file whose parts contradict each other the library panics here and there.
    pub(crate) fn guarded<T>(
        broken: impl FnOnce(&str) -> Error,
        read: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| Err(broken(CONTRADICTION)))
    }

    fn unreadable(path: &Path, error: impl std::fmt::Display) -> Error {
        Error::unfit(path, format!("is no Parquet file that can be read ({error}); write it anew"))
    }

    fn cell(field: &Field) -> Cell {
        match field {
            Field::Null => Cell::Nothing,
            Field::Str(text) => Cell::Text(text.clone()),
            Field::Bytes(bytes) => Cell::Bytes(bytes.data().to_vec()),
            Field::Group(group) => {
                let bytes = group.get_column_iter().find(|(name, _)| *name == "bytes");
                match bytes {
                    Some((_, Field::Bytes(bytes))) => Cell::Bytes(bytes.data().to_vec()),
                    _ => Cell::Other("a group without bytes"),
                }
            }
            Field::Bool(_)
            | Field::Byte(_)
            | Field::Short(_)
            | Field::Int(_)
            | Field::Long(_)
            | Field::UByte(_)
            | Field::UShort(_)
            | Field::UInt(_)
            | Field::ULong(_) => Cell::Text(field.to_string()),
            // With its point, as other tables are read.
            Field::Float(value) => Cell::Text(format!("{value:?}")),
            Field::Double(value) => Cell::Text(format!("{value:?}")),
            Field::ListInternal(_) => Cell::Other("a list"),
            Field::MapInternal(_) => Cell::Other("a map"),
            _ => Cell::Other("a date, a time or a decimal"),
        }
    }
}

/// A Parquet file, which this build cannot read.
#[cfg(not(feature = "fetch"))]
pub(crate) struct Parquet {
    never: std::convert::Infallible,
    pub(crate) sum: FileSum,
}

#[cfg(not(feature = "fetch"))]
impl Parquet {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let problem = "is a Parquet file, which this build does not read: build with --features fetch; or make a CSV file \
             of texts: pandas.read_parquet(file).to_csv(\"table.csv\", index=False)";
        Err(crate::error::Error::unfit(path, problem))
    }

    pub(crate) fn columns(&self) -> Vec<String> {
        match self.never {}
    }

    pub(crate) fn rows(
        &self,
        _columns: &[usize],
        _last: usize,
        _each: impl FnMut(usize, Vec<Cell>) -> std::result::Result<(), String>,
    ) -> Result<()> {
        match self.never {}
    }
}

#[cfg(all(test, feature = "fetch"))]
mod tests {
    use std::fs;

    use super::*;
    use crate::convert::{made, png, texts};
    use crate::{Config, Selection, look};

    fn news(count: usize) -> Vec<u8> {
        let rows: Vec<_> = (0..count).map(|i| (format!("the news of {i}"), i as i64 % 3)).collect();
        made::texts(&rows)
    }

    fn pictures(count: u8) -> Vec<u8> {
        let row = |i: u8| (png(8, &[i; 192]), vec![i64::from(i % 2)]);
        made::images(&["label"], &(0..count).map(row).collect::<Vec<_>>())
    }

    #[test]
    fn columns_of_texts_and_of_pictures_are_found_and_read() {
        let dir = tempfile::tempdir().unwrap();
        let cases: [(&str, Vec<u8>, &str, &str); 2] = [
            ("a.parquet", news(30), "table", "a table: 30 texts in 3 classes; 3 for testing"),
            (
                "b.parquet",
                pictures(20),
                "pictures",
                "a Parquet file: 20 images of 8×8 in colour in 2 classes; 2 for testing (image: img; label: label)",
            ),
        ];
        for (name, contents, kind, line) in cases {
            let path = dir.path().join(name);
            fs::write(&path, contents).unwrap();
            let found = look(&path).unwrap();
            assert_eq!(found.config.name(), kind);
            assert!(found.line.starts_with(line), "{}", found.line);
            found.config.validate(&Selection::default()).unwrap();
            let form = found.config.form().unwrap();
            let data = found.config.load(dir.path()).unwrap();
            assert_eq!(form.classes, data.train.classes().len());
            assert_eq!(data.train.len() + data.test.len(), if kind == "table" { 30 } else { 20 });
        }
    }

    #[test]
    fn a_file_of_each_name_is_a_pair_and_shards_are_not_read_in_part() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str| fs::write(dir.path().join(name), pictures(6)).unwrap();
        ["train-0.parquet", "test-0.parquet"].into_iter().for_each(write);
        let found = look(dir.path()).unwrap();
        assert!(found.line.contains("12 images") && found.line.contains("6 for testing"));
        let warnings = found.config.load(dir.path()).unwrap().warnings.join(" ");
        assert!(warnings.contains("the test set is part of the training set"), "{warnings}");
        write("train-1.parquet");
        let error = look(dir.path()).unwrap_err().to_string();
        assert!(error.contains("several files of data; name one"), "{error}");
    }

    #[test]
    fn what_does_not_fit_is_refused_with_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let load = |contents: &[u8], settings: &str| {
            let path = dir.path().join("a.parquet");
            fs::write(&path, contents).unwrap();
            let settings = format!("kind = {settings} = {path:?}");
            let config: Config = toml::from_str(&settings).unwrap();
            config.load(dir.path()).err().unwrap().to_string()
        };
        let images = "'pictures'\nimage = 'img'\nsize = 8\npath";
        let broken =
            made::images(&["label"], &[(png(8, &[1; 192]), vec![0]), (vec![7; 9], vec![1])]);
        let png = || png(8, &[1; 192]);
        let pointed = made::worded(&[(png(), "1"), (png(), "2.0"), (png(), "1")]);
        let cases = [
            (pointed, images, "row 2: the label \"2.0\" is a number with a point"),
            (pictures(4), "'pictures'\npath", "no column \"image\"; its columns are img, label"),
            (
                news(4),
                "'pictures'\nimage = 'text'\npath",
                "row 1: the column \"text\" holds a text or a number",
            ),
            (broken, images, "row 2: is neither a PNG nor a JPEG"),
            (pictures(4), "'table'\ntext = 'img'\nfile", "row 1: a column of texts holds bytes"),
            (news(4), "'table'\nlabel = 'class'\nfile", "no column \"class\""),
            (pictures(4)[..60].to_vec(), images, "no Parquet file that can be read"),
        ];
        for (contents, settings, words) in cases {
            let error = load(&contents, settings);
            assert!(error.contains(words), "{words:?} is not in {error:?}");
        }
    }

    /// Bytes that anyone may have written: an error, or what they say; never a panic.
    #[test]
    fn no_byte_makes_it_panic() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.parquet");
        let good = news(6);
        for place in 0..good.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut contents = good.clone();
                contents[place] = value;
                fs::write(&path, &contents).unwrap();
                let _ =
                    Parquet::open(&path).and_then(|file| file.rows(&[0, 1], 100, |_, _| Ok(())));
                let _ = opened(&path, contents).map(|file| texts("a hub's", &[Box::new(file)]));
            }
        }
    }

    #[test]
    fn cells_that_would_fill_the_memory_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.parquet");
        fs::write(&path, made::texts(&vec![("x".repeat(1000), 1); 30])).unwrap();
        let mut file = Parquet::open(&path).unwrap();
        file.most = 20_000;
        let mut rows = 0;
        let error = file.rows(&[0, 1], 100, |row, _| {
            rows = row;
            Ok(())
        });
        let error = error.unwrap_err().to_string();
        assert!((15..20).contains(&rows), "{rows}");
        assert!(error.contains(&format!("row {}: up to here", rows + 1)), "{error}");
    }

    /// A file of so many groups within each other, with a column in the innermost one.
    fn nested(groups: usize) -> Vec<u8> {
        // A list of structs, whose fields are: repetition, name, number of children.
        let parts = groups + 1;
        let mut footer = vec![0x15, 2, 0x19, 0xfc];
        footer.extend([parts | 0x80, parts >> 7 | 0x80, parts >> 14].map(|byte| byte as u8));
        if parts < 1 << 14 {
            footer.truncate(6);
            footer[5] &= 0x7f;
        }
        footer.extend([0x48, 1, b'a', 0x15, 2, 0]);
        footer.extend([0x35, 0, 0x18, 1, b'a', 0x15, 2, 0].repeat(groups - 1));
        // A type, a repetition, a name; then no rows, and no groups of them.
        footer.extend([0x15, 2, 0x25, 0, 0x18, 1, b'a', 0, 0x16, 0, 0x19, 0x0c, 0]);
        [b"PAR1", footer.as_slice(), &(footer.len() as u32).to_le_bytes(), b"PAR1"].concat()
    }

    #[test]
    fn a_schema_of_any_depth_leaves_the_stack_whole() {
        let open = |groups| opened(Path::new("a.parquet"), nested(groups)).map(drop);
        open(32).unwrap();
        for (groups, words) in [
            (33, "33 groups lie within each other"),
            (4095, "4095 groups lie within each other"),
            (4096, "more than 4096 columns"),
            (200_000, "more than 4096 columns"),
        ] {
            let error = open(groups).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
