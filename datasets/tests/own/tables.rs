//! Tables of texts.

use std::fs;
use std::path::Path;

use gradwire_datasets::{AgNews, Config};

use super::Outcome::{Read, Refused};
use super::{load, try_all};

/// A table of 20 rows under this header, `row` of each's number.
pub(super) fn rows(header: &str, row: fn(usize) -> String) -> String {
    let rows: Vec<String> = (0..20).map(row).collect();
    format!("{header}{}\n", rows.join("\n"))
}

pub(super) fn named() -> String {
    rows("id,text,label\n", |i| format!("{i},\"word, no. {i}\",{}", ["bad", "good"][i % 2]))
}

pub(super) fn write(dir: &Path, name: &str, contents: &str) {
    fs::write(dir.join(name), contents).unwrap();
}

const NAMED: &str = "kind = 'table'\nfile = 'DIR/a.csv'\nminimum_count = 1";
const NUMBERED: &str = "kind = 'table'\nfile = 'DIR/a.csv'\ntext = 2\nlabel = 1\nminimum_count = 1";
const BOTH: &str = "kind = 'table'\nfile = 'DIR/a.csv'\ntest_file = 'DIR/b.csv'\nminimum_count = 1";

#[test]
fn tables_of_texts() {
    try_all(&[
        ("named columns", |d| write(d, "a.csv", &named()), NAMED, Read(18, 2, &[])),
        (
            "a mark of UTF-8, and the line ends of Windows",
            |d| write(d, "a.csv", &format!("\u{feff}{}", named().replace('\n', "\r\n"))),
            NAMED,
            Read(18, 2, &[]),
        ),
        (
            "two files",
            |d| {
                write(d, "a.csv", &named());
                write(d, "b.csv", "label,text\ngood,new\nbad,newer\n");
            },
            BOTH,
            Read(20, 2, &[]),
        ),
        (
            "one file twice",
            |d| {
                write(d, "a.csv", &named());
                write(d, "b.csv", &named());
            },
            BOTH,
            Read(20, 20, &["20 of 20 test samples", "part of the training set"]),
        ),
        (
            "numbered columns without a header, labels from 1",
            |d| write(d, "a.csv", &rows("", |i| format!("{},text {i}", 1 + i % 2))),
            NUMBERED,
            Read(18, 2, &[]),
        ),
        (
            "numbered columns, semicolons, and a header that nothing tells of",
            |d| write(d, "a.csv", &rows("class;text\n", |i| format!("{};text {i}", i % 3))),
            NUMBERED,
            Read(17, 3, &["taken for a header", "\"class\"", "dataset.header = false"]),
        ),
        (
            "the same, said to be a sample",
            |d| write(d, "a.csv", &rows("class,text\n", |i| format!("{},text {i}", i % 3))),
            "kind = 'table'\nfile = 'DIR/a.csv'\ntext = 2\nlabel = 1\nheader = false\nminimum_count = 1",
            Read(18, 3, &["a single sample", ": class"]),
        ),
        (
            "a row taken for a header",
            |d| {
                write(
                    d,
                    "a.csv",
                    &rows("good,a fine film\n", |i| format!("{},text {i}", ["bad", "good"][i % 2])),
                );
            },
            "kind = 'table'\nfile = 'DIR/a.csv'\ntext = 2\nlabel = 1\nheader = true\nminimum_count = 1",
            Read(18, 2, &["\"good\" in the first line is also a label", "dataset.header = false"]),
        ),
        (
            "several columns of text, tabs, quotes that mean nothing",
            |d| {
                write(
                    d,
                    "a.tsv",
                    &rows("t\tb\tlabel\n", |i| format!("\"un{i}\tclosed\t{}", i % 2)),
                );
            },
            "kind = 'table'\nfile = 'DIR/a.tsv'\ntext = ['t', 'b']\nquotes = false\nminimum_count = 1",
            Read(18, 2, &[]),
        ),
        (
            "a column that is not there",
            |d| write(d, "a.csv", &named().replace("text", "review")),
            NAMED,
            Refused(&[
                "line 1",
                "no column \"text\"",
                "the columns are id, review, label",
                "dataset.text",
            ]),
        ),
        (
            "a column after the last",
            |d| write(d, "a.csv", &named()),
            "kind = 'table'\nfile = 'DIR/a.csv'\ntext = 2\nlabel = 4",
            Refused(&["no column 4", "1 to 3"]),
        ),
        (
            "labels with a point",
            |d| write(d, "a.csv", &rows("text,label\n", |i| format!("t {i},{}.0", i % 2))),
            NAMED,
            Refused(&["a.csv line 2", "\"0.0\" is a number with a point", "astype(int)"]),
        ),
        (
            "the column of numbers for that of labels",
            |d| {
                write(
                    d,
                    "a.csv",
                    &(0..1200).fold("label,text\n".into(), |all, i| format!("{all}{i},t\n")),
                );
            },
            NAMED,
            Refused(&["1200 different labels in 1200 rows", "dataset.label"]),
        ),
        (
            "a label that occurs once",
            |d| write(d, "a.csv", &(named() + "20,other,neutral\n")),
            NAMED,
            Read(19, 2, &["a single sample", "for 1 of 3 classes: neutral"]),
        ),
        (
            "a label that only the test file has",
            |d| {
                write(d, "a.csv", &named());
                write(d, "b.csv", "label,text\ngood,new\n\nugly,newer\n");
            },
            BOTH,
            Refused(&["b.csv line 4: the label \"ugly\"", "bad, good"]),
        ),
        (
            "no label",
            |d| write(d, "a.csv", &(named() + "20,other,\n")),
            NAMED,
            Refused(&["line 22", "the label is empty"]),
        ),
        (
            "a comma outside of quotes",
            |d| write(d, "a.csv", &(named() + "20,other, and more,good\n")),
            NAMED,
            Refused(&["line 22", "4 columns, and the first row has 3", "double quotes"]),
        ),
        (
            "a quote that is escaped otherwise",
            |d| write(d, "a.csv", &(named() + "20,\"He said \\\"hi\\\"\",good\n")),
            NAMED,
            Refused(&[
                "record 22 (line 22, byte",
                "more follows",
                "(not \\\")",
                "dataset.quotes = false",
            ]),
        ),
        (
            "a quote that is never closed",
            |d| write(d, "a.csv", &(named() + "20,\"He said,good\n21,x,bad\n")),
            NAMED,
            Refused(&["record 22 (line 22, byte", "a double quote is missing"]),
        ),
        (
            "a vocabulary of one word",
            |d| write(d, "a.csv", &rows("text,label\n", |i| format!("w{i} the,{}", i % 2))),
            "kind = 'table'\nfile = 'DIR/a.csv'\nminimum_count = 3",
            Read(18, 2, &["the vocabulary has 1 word:", "dataset.minimum_count"]),
        ),
        ("an empty file", |d| write(d, "a.csv", ""), NAMED, Refused(&["a.csv is empty (0 bytes)"])),
        (
            "a header alone",
            |d| write(d, "a.csv", "text,label\n"),
            NAMED,
            Refused(&["no samples to train on"]),
        ),
    ]);
    for (settings, word) in [
        ("vocabulary = 2", "dataset.vocabulary"),
        ("minimum_count = 0", "dataset.minimum_count"),
        ("delimiter = 'é'", "dataset.delimiter"),
        ("text = []", "dataset.text"),
        ("header = false", "dataset.header"),
    ] {
        let settings = format!("kind = 'table'\n{settings}");
        let error = load(Path::new("nowhere"), &settings).err().unwrap().to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn official_files_that_are_one_file_are_told() {
    let dir = tempfile::tempdir().unwrap();
    for file in ["train.csv", "test.csv"] {
        write(dir.path(), file, "\"1\",\"a\",\"b c\"\n\"2\",\"a\",\"b d\"\n");
    }
    let news = AgNews { dir: dir.path().into(), partial: true, ..AgNews::default() };
    let data = Config::AgNews(news).load(dir.path()).unwrap();
    let warnings = data.warnings.join("\n");
    assert!(warnings.contains("train.csv and test.csv have the same contents"), "{warnings}");
}
