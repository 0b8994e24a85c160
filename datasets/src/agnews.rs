//! AG News in its official CSV layout (Zhang, Zhao and LeCun, "Character-level convolutional
//! networks for text classification", 2015).
//!
//! `train.csv` and `test.csv` have no header; a record is class (1 to 4), title and description,
//! every field in double quotes, a quote inside a field written twice, UTF-8.

use std::path::{Path, PathBuf};

#[cfg(feature = "fetch")]
use crate::convert;
use crate::definition::{
    About, DEFAULT_DIR, Data, DatasetDefinition, Form, Holds, Reading, Selection,
};
use crate::distribution::Distribution;
#[cfg(feature = "fetch")]
use crate::distribution::Hosted;
use crate::error::Result;
use crate::files::{self, FileSum, Official, Place};
use crate::open::rows;
use crate::text::{Labelled, Words};

settings! {
    /// Where AG News lies, how much of it to use and how its words are numbered.
    pub struct AgNews {
        /// The folder that holds `ag_news_csv/`, or that folder itself.
        pub dir: PathBuf = DEFAULT_DIR.into(),
        /// The largest number of token ids, the two for padding and unknown words included.
        #[cfg_attr(feature = "schema", schemars(range(min = 3, max = 1 << 20)))]
        pub vocabulary: usize = 30_000,
        /// How often a word must occur in the training set to get an id.
        #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
        pub minimum_count: u64 = 2,
        /// Tokens per text: longer texts are cut, shorter ones padded.
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1 << 16)))]
        pub length: usize = 64,
        /// Accept files with fewer records than the official ones: a synthetic twin or a subset.
        pub partial: bool = false,
    }
}

impl DatasetDefinition for AgNews {
    fn about(&self) -> About {
        About {
            name: "ag-news",
            line: "120,000 + 7,600 news in English, 4 topics",
            paper: "Zhang, Zhao and LeCun 2015",
        }
    }

    fn form(&self) -> Result<Form> {
        Ok(Form { shape: self.words().shape(), classes: CLASSES.len() })
    }

    fn holds(&self) -> Holds {
        Holds::Texts
    }

    fn validate(&self, samples: &Selection) -> Result<()> {
        samples.share(true)?;
        self.words().validate()
    }

    fn load(&self, reading: &Reading<'_>) -> Result<Data> {
        let folder = PLACE.find(&self.dir, OFFICIAL.iter().map(|file| file.name))?;
        let mut files = Vec::new();
        let mut read = |official: &Official, limit: Option<usize>| -> Result<Labelled> {
            let path = folder.join(official.name);
            let contents = PLACE.read(&path, LIMIT, &Files.expected(official))?;
            let mut rows = parse(&path, &contents)?;
            let found = rows.len() as u64;
            if found > official.records || (found < official.records && !self.partial) {
                return Err(files::record_count(&path, found, official.records, &contents));
            }
            rows.truncate(limit.unwrap_or(usize::MAX));
            files.push(FileSum::new(&path, &contents));
            Ok(rows.into_iter().map(|row| (row.text, u32::from(row.class))).unzip())
        };
        let [train, test] = &OFFICIAL;
        let sets = [read(train, reading.samples.train)?, read(test, reading.samples.test)?];
        let classes: Vec<String> = CLASSES.iter().map(|&name| name.to_owned()).collect();
        let altered = files::altered(&files, &Files.files(), self.partial);
        let twice = files::twice(&files);
        let unseen = files::unseen(sets[0].1.iter().map(|&label| label as usize), CLASSES);
        let mut data = self.words().into_data(sets, &classes, files, reading.vocabulary)?;
        data.altered = altered;
        data.warnings.splice(0..0, twice.into_iter().chain(unseen));
        Ok(data)
    }

    fn distribution(&self) -> Option<&'static dyn Distribution> {
        Some(&Files)
    }
}

impl AgNews {
    fn words(&self) -> Words {
        let &Self { vocabulary, minimum_count, length, .. } = self;
        Words { vocabulary, minimum_count, length }
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
struct Article {
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
fn parse(path: &Path, contents: &[u8]) -> Result<Vec<Article>> {
    let mut rows = Vec::new();
    rows::each(path, contents, rows::CSV, |found| {
        rows.push(row(found)?);
        Ok(())
    })?;
    if rows.is_empty() {
        return Err(files::empty(path, "a row for each record, of class, title, description,"));
    }
    Ok(rows)
}

/// One record.
fn row(row: &rows::Row<'_>) -> std::result::Result<Article, String> {
    // A row of quoted fields that is cut after a comma seems to end in an empty one.
    if row.raw.starts_with(b"\"") && !row.raw.ends_with(b"\"") {
        return Err(rows::OPEN_QUOTE.into());
    }
    if row.len() != COLUMNS {
        return Err(format!(
            "{} columns, but class, title and description are expected; the file is damaged or of another data set, \
             fetch or unpack it again, or read it as dataset.kind = \"table\"",
            row.len()
        ));
    }
    let class = match row.field(0).as_bytes() {
        [digit @ b'1'..=b'4'] => digit - b'1',
        _ => {
            let found: String = row.field(0).chars().take(40).collect();
            let is_header = row.number == 1 && found.trim().parse::<f64>().is_err();
            let remedy = match found.as_str() {
                "0" => "its labels seem to start at 0: add 1 to each, or read the file as",
                _ if is_header => "this is a header line: delete it, or read the file as",
                _ => "fetch or unpack the file again, or read it as",
            };
            return Err(format!(
                "column 1 says {found:?}, but classes are 1, 2, 3 and 4; {remedy} dataset.kind = \"table\""
            ));
        }
    };
    // Some copies have no titles: their text must not begin with a space.
    let text = match (row.field(1), row.field(2)) {
        ("", text) => text.to_owned(),
        (title, text) => format!("{title} {text}"),
    };
    Ok(Article { class, text })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::{Features, batch_of};
    use crate::error::Error;
    use proptest::prelude::*;
    use std::fs;

    const GOOD: &str = concat!(
        "\"3\",\"Oil, up\",\"A \"\"barrel\"\" costs\\50\"\n",
        "\"1\",\"\",\"No title\"\n",
        "\"4\",\"Caf\u{e9}\",\"\"\n",
    );

    fn read(contents: &[u8]) -> Result<Vec<Article>> {
        parse(Path::new("train.csv"), contents)
    }

    #[test]
    fn quotes_commas_backslashes_and_empty_fields() {
        let row = |class, text: &str| Article { class, text: text.to_owned() };
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
        let fourth: [(&[u8], u64, usize, &str); 12] = [
            (b"\"0\",\"a\",\"b\"\n", 4, 0, "labels seem to start at 0: add 1"),
            (b"\"5\",\"a\",\"b\"\n", 4, 0, "column 1 says \"5\""),
            (b"\"12\",\"a\",\"b\"\n", 4, 0, "column 1 says \"12\""),
            (b"\"\",\"a\",\"b\"\n", 4, 0, "column 1 says \"\""),
            (b"\"Class Index\",\"a\",\"b\"\n", 4, 0, "fetch or unpack the file again"),
            (b"\" 1\",\"a\",\"b\"\n", 4, 0, "column 1 says \" 1\""),
            (b"\"1\",\"a b\"\n\"2\",\"a\",\"b\"\n", 4, 0, "2 columns, but class"),
            (b"\n\n\"1\",\"a\",\"b\",\"c\"", 6, 2, "4 columns, but class"),
            (b"\"1\",\"a\",\"cut sho", 4, 0, "a double quote is missing"),
            (
                b"\"1\",\"He said \\\"hi\\\"\",\"text\"\n",
                4,
                15,
                "a quote closes a field, and more follows",
            ),
            (b"\"1\",\"a\xff\",\"b\"\n", 4, 6, "column 2 is not valid UTF-8"),
            (b"\"1\",\"a\",\"b\xff\"\n", 4, 10, "column 3 is not valid UTF-8"),
        ];
        for (row, line, within, problem) in fourth {
            let message = read(&[GOOD.as_bytes(), row].concat()).unwrap_err().to_string();
            let place =
                format!("train.csv: record 4 (line {line}, byte {}): ", GOOD.len() + within);
            assert!(message.starts_with(&place) && message.contains(problem), "{message}");
        }
        for (first, words) in [
            ("0", "labels seem to start at 0: add 1"),
            ("Class Index", "this is a header line: delete it"),
            ("7", "fetch or unpack"),
        ] {
            let message =
                read(format!("\"{first}\",\"a\",\"b\"\n").as_bytes()).unwrap_err().to_string();
            assert!(message.contains("line 1") && message.contains(words), "{message}");
        }
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

    fn load(config: &AgNews, vocabulary: Option<&str>, train: Option<usize>) -> Result<Data> {
        let samples = Selection { train, ..Selection::default() };
        config.load(&Reading { scratch: Path::new("nowhere"), samples, vocabulary })
    }

    #[test]
    fn both_files_make_a_data_set() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("ag_news_csv");
        files::write(&folder.join("train.csv"), GOOD.as_bytes()).unwrap();
        files::write(&folder.join("test.csv"), b"\"2\",\"Oil barrel\",\"price\"").unwrap();
        let data = load(&config(dir.path()), None, None).unwrap();
        assert_eq!((data.train.len(), data.test.len()), (3, 1));
        assert_eq!(data.train.classes(), ["World", "Sports", "Business", "Sci/Tech"]);
        assert!(
            data.warnings[0].contains("train on for 1 of 4 classes: Sports;"),
            "{:?}",
            data.warnings
        );
        let batch = batch_of(&*data.test, &[0], None);
        assert_eq!(batch.labels, [1]);
        let Features::Tokens { ids, length: 64 } = &batch.features else { panic!() };
        assert!(ids[0] > 1 && ids[1] > 1, "known words");
        assert_eq!(ids[2..4], [crate::UNK, crate::PAD]);

        // With the vocabulary of a run, texts get that run's ids, whatever the training set.
        let config = config(dir.path());
        let again = load(&config, data.vocabulary.as_deref(), Some(1)).unwrap();
        assert_eq!(batch_of(&*again.test, &[0], None), batch);
        assert!(load(&config, Some("{}"), None).is_err());
    }

    #[test]
    fn bad_files_and_settings_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let error = load(&config, None, None).err().unwrap();
        assert!(error.to_string().contains("gradwire data fetch ag-news"), "{error}");
        fs::write(dir.path().join("train.csv"), GOOD).unwrap();
        assert!(matches!(load(&config, None, None), Err(Error::Missing { .. })));
        for nothing in ["", "\n", "\r\n\n"] {
            fs::write(dir.path().join("test.csv"), nothing).unwrap();
            let error = load(&config, None, None).err().unwrap().to_string();
            assert!(error.contains("test.csv is empty (byte 0)"), "{nothing:?}: {error}");
        }
        fs::write(dir.path().join("test.csv"), GOOD).unwrap();
        load(&config, None, None).unwrap();
        let whole = load(&AgNews { partial: false, ..config }, None, None).err().unwrap();
        assert!(whole.to_string().contains("holds 3 records, the official file 120000"), "{whole}");
        for (vocabulary, minimum_count, length) in [(2, 1, 64), (100, 0, 64), (100, 1, 0)] {
            let config = AgNews { vocabulary, minimum_count, length, ..AgNews::default() };
            assert!(matches!(config.validate(&Selection::default()), Err(Error::Setting { .. })));
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
