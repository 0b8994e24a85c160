//! AG News in its official CSV layout (Zhang, Zhao and LeCun, "Character-level convolutional
//! networks for text classification", 2015).
//!
//! `train.csv` and `test.csv` have no header; a record is class (1 to 4), title and description,
//! every field in double quotes, a quote inside a field written twice, UTF-8.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

#[cfg(feature = "fetch")]
use crate::convert;
use crate::dataset::Shape;
use crate::definition::{
    About, DEFAULT_DIR, Data, Definition, Form, Holds, check_count, check_limits,
};
use crate::distribution::Distribution;
#[cfg(feature = "fetch")]
use crate::distribution::Hosted;
use crate::error::{Error, Result, RowProblem};
use crate::files::{self, FileSum, Official, Place};
use crate::open::rows;
use crate::text::{Texts, Vocabulary};

/// Where AG News lies, how much of it to use and how its words are numbered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct AgNews {
    /// The folder that holds `ag_news_csv/`, or that folder itself.
    pub dir: PathBuf,
    /// The largest number of token ids, the two for padding and unknown words included.
    #[cfg_attr(feature = "schema", schemars(range(min = 3, max = 1 << 20)))]
    pub vocabulary: usize,
    /// How often a word must occur in the training set to get an id.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub minimum_count: u64,
    /// Tokens per text: longer texts are cut, shorter ones padded.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1 << 16)))]
    pub length: usize,
    /// Accept files with fewer records than the official ones: a synthetic twin or a subset.
    pub partial: bool,
    /// Use only the first so many training texts (the vocabulary is then theirs).
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub train_limit: Option<usize>,
    /// Use only the first so many test texts.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub test_limit: Option<usize>,
}

impl Default for AgNews {
    fn default() -> Self {
        Self {
            dir: DEFAULT_DIR.into(),
            vocabulary: 30_000,
            minimum_count: 2,
            length: 64,
            partial: false,
            train_limit: None,
            test_limit: None,
        }
    }
}

impl Definition for AgNews {
    fn about(&self) -> About {
        About {
            name: "ag-news",
            line: "120,000 + 7,600 news in English, 4 topics",
            paper: "Zhang, Zhao and LeCun 2015",
        }
    }

    fn form(&self) -> Result<Form> {
        let shape = Shape::Text { vocabulary: self.vocabulary, length: self.length };
        Ok(Form { shape, classes: CLASSES.len() })
    }

    fn holds(&self) -> Holds {
        Holds::Texts
    }

    fn validate(&self) -> Result<()> {
        check_count("dataset.vocabulary", self.vocabulary, 3, 1 << 20)?;
        check_count("dataset.length", self.length, 1, 1 << 16)?;
        if self.minimum_count == 0 {
            return Err(Error::setting("dataset.minimum_count", &0, "write 1 to keep every word"));
        }
        check_limits(self.train_limit, self.test_limit)
    }

    fn load(&self, _scratch: &Path, vocabulary: Option<&str>) -> Result<Data> {
        let folder = PLACE.find(&self.dir, OFFICIAL.iter().map(|file| file.name))?;
        let mut files = Vec::new();
        let mut read = |official: &Official, limit: Option<usize>| {
            let path = folder.join(official.name);
            let contents = PLACE.read(&path, LIMIT, &Files.expected(official))?;
            let mut rows = parse(&path, &contents)?;
            let found = rows.len() as u64;
            if found > official.records || (found < official.records && !self.partial) {
                let (official, offset) = (official.records, contents.len() as u64);
                return Err(Error::RecordCount { path, found, official, offset });
            }
            rows.truncate(limit.unwrap_or(usize::MAX));
            files.push(FileSum::new(official, &contents));
            Ok(rows)
        };
        let [train, test] = &OFFICIAL;
        let train = read(train, self.train_limit)?;
        let test = read(test, self.test_limit)?;
        let texts = train.iter().map(|row| row.text.as_str());
        let vocabulary = match vocabulary {
            Some(json) => Vocabulary::from_json(json)?,
            None => Vocabulary::train(texts, self.vocabulary, self.minimum_count)?,
        };
        let set = |rows: &[Row]| {
            let texts: Vec<&str> = rows.iter().map(|row| row.text.as_str()).collect();
            let labels = rows.iter().map(|row| row.class.into()).collect();
            let classes = CLASSES.iter().map(|&name| name.to_owned()).collect();
            Texts::new(&texts, labels, classes, &vocabulary, self.length)
        };
        Ok(Data {
            train: Arc::new(set(&train)?),
            test: Arc::new(set(&test)?),
            altered: files::altered(&files, self.partial),
            warnings: files::twice(&files).into_iter().chain(vocabulary.warning()).collect(),
            files,
            vocabulary: Some(vocabulary.to_json()?),
            bytes_per_token: None,
            normalisation: None,
        })
    }

    fn distribution(&self) -> Option<&'static dyn Distribution> {
        Some(&Files)
    }
}

/// The names of the classes 1 to 4, as in `classes.txt`.
pub(crate) const CLASSES: &[&str] = &["World", "Sports", "Business", "Sci/Tech"];

pub(crate) static PLACE: Place = Place { fetch: "ag-news", folder: "ag_news_csv" };

/// The most bytes a file may have; the official training set has 29,470,338.
const LIMIT: u64 = 64 << 20;

/// Fields of a record: class, title, description.
const COLUMNS: usize = 3;

/// The training and the test set.
pub(crate) static OFFICIAL: [Official; 2] = [
    Official {
        name: "train.csv",
        records: 120_000,
        sha256: "76a0a2d2f92b286371fe4d4044640910a04a803fdd2538e0f3f29a5c6f6b672e",
    },
    Official {
        name: "test.csv",
        records: 7_600,
        sha256: "521465c2428ed7f02f8d6db6ffdd4b5447c1c701962353eb2c40d548c3c85699",
    },
];

/// One record.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    /// Index into [`CLASSES`].
    class: u8,
    /// Title and description.
    text: String,
}

/// The two files, for those who know data sets only as files.
pub(crate) struct Files;

impl Distribution for Files {
    fn title(&self) -> &'static str {
        "AG News"
    }

    fn place(&self) -> &Place {
        &PLACE
    }

    fn files(&self) -> Vec<&Official> {
        OFFICIAL.iter().collect()
    }

    fn limit(&self, _file: &Official) -> u64 {
        LIMIT
    }

    fn expected(&self, file: &Official) -> String {
        format!("{} with {} records of class, title, description", file.name, file.records)
    }

    fn per_class(&self, path: &Path, contents: &[u8]) -> Result<Vec<u64>> {
        let mut counts = vec![0; CLASSES.len()];
        for row in parse(path, contents)? {
            counts[usize::from(row.class)] += 1;
        }
        Ok(counts)
    }

    #[cfg(feature = "fetch")]
    fn hosted(&self) -> Option<&Hosted> {
        static HOSTED: Hosted = Hosted {
            repository: "fancyzhx/ag_news",
            archive: "https://github.com/mhjabreel/CharCnn_Keras/tree/master/data/ag_news_csv \
                      (train.csv and test.csv)",
            convert: convert::texts,
        };
        Some(&HOSTED)
    }
}

/// All records of `contents`, checked: three columns, a class of 1 to 4, UTF-8, quotes that close.
fn parse(path: &Path, contents: &[u8]) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    rows::each(path, contents, rows::CSV, |found| {
        rows.push(row(found)?);
        Ok(())
    })?;
    if rows.is_empty() {
        let expected = "a row for each record, of class, title, description,".into();
        return Err(Error::Empty { path: path.to_owned(), expected });
    }
    Ok(rows)
}

/// One record.
fn row(row: &rows::Row<'_>) -> std::result::Result<Row, RowProblem> {
    // A row of quoted fields that is cut after a comma seems to end in an empty one.
    if row.raw.starts_with(b"\"") && !row.raw.ends_with(b"\"") {
        return Err(RowProblem::OpenQuote);
    }
    if row.len() != COLUMNS {
        return Err(RowProblem::Columns { found: row.len() });
    }
    let class = match row.field(0).as_bytes() {
        [digit @ b'1'..=b'4'] => digit - b'1',
        _ => {
            let found = row.field(0).chars().take(40).collect();
            return Err(RowProblem::Class { found, is_first: row.number == 1 });
        }
    };
    // Some copies have no titles: their text must not begin with a space.
    let text = match (row.field(1), row.field(2)) {
        ("", text) => text.to_owned(),
        (title, text) => format!("{title} {text}"),
    };
    Ok(Row { class, text })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::{Features, batch_of};
    use proptest::prelude::*;
    use std::fs;

    const GOOD: &str = concat!(
        "\"3\",\"Oil, up\",\"A \"\"barrel\"\" costs\\50\"\n",
        "\"1\",\"\",\"No title\"\n",
        "\"4\",\"Caf\u{e9}\",\"\"\n",
    );

    fn read(contents: &[u8]) -> Result<Vec<Row>> {
        parse(Path::new("train.csv"), contents)
    }

    /// The place and the problem that `contents` are refused for.
    fn refused(contents: &[u8]) -> (u64, u64, u64, RowProblem) {
        let error = read(contents).unwrap_err();
        let message = error.to_string();
        assert!(message.contains("train.csv") && message.contains("byte"), "{message}");
        match error {
            Error::Row { record, line, offset, problem, .. } => (record, line, offset, problem),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn quotes_commas_backslashes_and_empty_fields() {
        let row = |class, text: &str| Row { class, text: text.to_owned() };
        let expected =
            [row(2, "Oil, up A \"barrel\" costs\\50"), row(0, "No title"), row(3, "Caf\u{e9} ")];
        let (windows, marked) = (GOOD.replace('\n', "\r\n"), format!("\u{feff}{GOOD}"));
        for contents in [GOOD, &windows, &marked] {
            assert_eq!(read(contents.as_bytes()).unwrap(), expected, "{contents:?}");
        }
        assert_eq!(read(b"2,a,b").unwrap(), [row(1, "a b")], "without quotes");
        assert_eq!(read(b"\"2\",\"a\",\"b\nc\"\n").unwrap(), [row(1, "a b\nc")], "two lines");
    }

    #[test]
    fn bad_rows_are_told_with_their_place() {
        let is_refused = |row: &[u8], line: u64, offset: u64, problem: RowProblem| {
            let found = refused(&[GOOD.as_bytes(), row].concat());
            assert_eq!(found, (4, line, GOOD.len() as u64 + offset, problem));
        };
        for class in ["0", "5", "12", "", "Class Index", " 1"] {
            let row = format!("\"{class}\",\"a\",\"b\"\n");
            let problem = RowProblem::Class { found: class.to_owned(), is_first: false };
            is_refused(row.as_bytes(), 4, 0, problem);
        }
        let columns = |found| RowProblem::Columns { found };
        is_refused(b"\"1\",\"a b\"\n\"2\",\"a\",\"b\"\n", 4, 0, columns(2));
        is_refused(b"\n\n\"1\",\"a\",\"b\",\"c\"", 6, 2, columns(4));
        is_refused(b"\"1\",\"a\",\"cut sho", 4, 0, RowProblem::OpenQuote);
        let escaped = b"\"1\",\"He said \\\"hi\\\"\",\"text\"\n";
        is_refused(escaped, 4, 15, RowProblem::AfterQuote { at: 15 });
        for (first, words) in [
            ("0", "labels seem to start at 0: add 1"),
            ("Class Index", "this is a header line: delete it"),
            ("7", "fetch or unpack"),
        ] {
            let message =
                read(format!("\"{first}\",\"a\",\"b\"\n").as_bytes()).unwrap_err().to_string();
            assert!(message.contains("line 1") && message.contains(words), "{message}");
        }
        is_refused(b"\"1\",\"a\xff\",\"b\"\n", 4, 6, RowProblem::Utf8 { column: 2, at: 6 });
    }

    #[test]
    fn a_cut_is_noticed() {
        // Cut at any byte, the file is refused or has fewer rows, and those whole; but for a cut
        // between the two quotes that stand for one, after which the row looks complete.
        let whole = read(GOOD.as_bytes()).unwrap();
        for cut in 1..GOOD.len() - 1 {
            if let Ok(rows) = read(&GOOD.as_bytes()[..cut]) {
                let halves = GOOD[..cut].ends_with(" \"") || GOOD[..cut].ends_with("barrel\"");
                assert!(halves || rows[..] == whole[..rows.len()], "cut at byte {cut}");
                assert!(rows.len() < whole.len(), "cut at byte {cut}");
            }
        }
    }

    fn config(dir: &Path) -> AgNews {
        AgNews { dir: dir.to_owned(), partial: true, minimum_count: 1, ..AgNews::default() }
    }

    fn load(config: &AgNews, vocabulary: Option<&str>) -> Result<Data> {
        config.load(Path::new("nowhere"), vocabulary)
    }

    #[test]
    fn both_files_make_a_data_set() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("ag_news_csv");
        files::write(&folder.join("train.csv"), GOOD.as_bytes()).unwrap();
        files::write(&folder.join("test.csv"), b"\"2\",\"Oil barrel\",\"price\"").unwrap();
        let data = load(&config(dir.path()), None).unwrap();
        assert_eq!((data.train.len(), data.test.len()), (3, 1));
        assert_eq!(data.train.classes(), ["World", "Sports", "Business", "Sci/Tech"]);
        let batch = batch_of(&*data.test, &[0], None);
        assert_eq!(batch.labels, [1]);
        let Features::Tokens { ids, length: 64 } = &batch.features else { panic!() };
        assert!(ids[0] > 1 && ids[1] > 1, "known words");
        assert_eq!(ids[2..4], [crate::UNK, crate::PAD]);

        // With the vocabulary of a run, texts get that run's ids, whatever the training set.
        let limited = AgNews { train_limit: Some(1), ..config(dir.path()) };
        let again = load(&limited, data.vocabulary.as_deref()).unwrap();
        assert_eq!(batch_of(&*again.test, &[0], None), batch);
        assert!(load(&limited, Some("{}")).is_err());
    }

    #[test]
    fn bad_files_and_settings_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let error = load(&config, None).err().unwrap();
        assert!(error.to_string().contains("gradwire data fetch ag-news"), "{error}");
        fs::write(dir.path().join("train.csv"), GOOD).unwrap();
        assert!(matches!(load(&config, None), Err(Error::Missing { .. })));
        for nothing in ["", "\n", "\r\n\n"] {
            fs::write(dir.path().join("test.csv"), nothing).unwrap();
            assert!(matches!(load(&config, None), Err(Error::Empty { .. })), "{nothing:?}");
        }
        fs::write(dir.path().join("test.csv"), GOOD).unwrap();
        load(&config, None).unwrap();
        let whole = load(&AgNews { partial: false, ..config }, None);
        assert!(matches!(whole, Err(Error::RecordCount { found: 3, official: 120_000, .. })));
        for (vocabulary, minimum_count, length) in [(2, 1, 64), (100, 0, 64), (100, 1, 0)] {
            let config = AgNews { vocabulary, minimum_count, length, ..AgNews::default() };
            assert!(matches!(config.validate(), Err(Error::Setting { .. })));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(contents: Vec<u8>) {
            let _ = read(&contents);
        }

        #[test]
        fn written_rows_come_back(
            rows in proptest::collection::vec((1u8..=4, ".*", "\\PC+"), 1..20),
        ) {
            let mut contents = String::new();
            for (class, title, text) in &rows {
                let [title, text] = [title, text].map(|field| field.replace('"', "\"\""));
                contents += &format!("\"{class}\",\"{title}\",\"{text}\"\n");
            }
            let read = read(contents.as_bytes()).unwrap();
            prop_assert_eq!(read.len(), rows.len());
            for (row, (class, title, text)) in read.iter().zip(&rows) {
                prop_assert_eq!(row.class + 1, *class);
                prop_assert!(row.text.starts_with(title.as_str()) && row.text.ends_with(text));
            }
        }
    }
}
