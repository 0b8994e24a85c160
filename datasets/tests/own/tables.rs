//! Tables of texts.

use std::fs;
use std::path::Path;

use gradwire_datasets::{AgNews, Config};

use super::Outcome::{self, Read, Refused};
use super::{refuse_all, try_all, try_one};

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
const BOTH: &str = "kind = 'table'\nfile = 'DIR/a.csv'\ntest_file = 'DIR/b.csv'\nminimum_count = 1";

/// Rows of a label, one of so many from 1 on, and a text.
fn numbered(header: &str, labels: usize) -> String {
    let rows: Vec<String> = (0..20).map(|i| format!("{},text {i}", 1 + i % labels)).collect();
    format!("{header}{}\n", rows.join("\n"))
}

#[test]
fn tables_of_texts() {
    let good = "good,a fine film\n";
    let opinions = rows(good, |i| format!("{},text {i}", ["bad", "good"][i % 2]));
    let keys = (0..1200).fold("label,text\n".into(), |all, i| format!("{all}{i},t\n"));
    // What is written, the settings beside the file, what becomes of it.
    let cases: [(String, &str, Outcome); 19] = [
        (named(), "", Read(18, 2, &[])),
        // A mark of UTF-8, and the line ends of Windows.
        (format!("\u{feff}{}", named().replace('\n', "\r\n")), "", Read(18, 2, &[])),
        (numbered("", 2), "text = 2\nlabel = 1", Read(18, 2, &[])),
        // A header that nothing tells of, and the same said to be a sample.
        (
            numbered("class;text\n", 3).replace(',', ";"),
            "text = 2\nlabel = 1",
            Read(17, 3, &["taken for a header", "\"class\"", "dataset.header = false"]),
        ),
        (
            numbered("class,text\n", 3),
            "text = 2\nlabel = 1\nheader = false",
            Read(18, 3, &["a single sample", ": class"]),
        ),
        // A row taken for a header.
        (
            opinions,
            "text = 2\nlabel = 1\nheader = true",
            Read(18, 2, &["\"good\" in the first line is also a label", "dataset.header = false"]),
        ),
        // Several columns of text, tabs, quotes that mean nothing.
        (
            rows("t\tb\tlabel\n", |i| format!("\"un{i}\tclosed\t{}", i % 2)),
            "delimiter = '\t'\ntext = ['t', 'b']\nquotes = false",
            Read(18, 2, &[]),
        ),
        (
            named().replace("text", "review"),
            "",
            Refused(&[
                "line 1",
                "no column \"text\"",
                "columns are id, review, label",
                "dataset.text",
            ]),
        ),
        (named(), "text = 2\nlabel = 4", Refused(&["no column 4", "1 to 3"])),
        (
            rows("text,label\n", |i| format!("t {i},{}.0", i % 2)),
            "",
            Refused(&["a.csv line 2", "\"0.0\" is a number with a point", "astype(int)"]),
        ),
        (keys, "", Refused(&["1200 different labels in 1200 rows", "dataset.label"])),
        (
            named() + "20,other,neutral\n",
            "",
            Read(19, 2, &["a single sample", "for 1 of 3 classes: neutral"]),
        ),
        (named() + "20,other,\n", "", Refused(&["line 22", "the label is empty"])),
        (
            named() + "20,other, and more,good\n",
            "",
            Refused(&["line 22", "4 columns, and the first row has 3", "double quotes"]),
        ),
        (
            named() + "20,\"He said \\\"hi\\\"\",good\n",
            "",
            Refused(&["record 22 (line 22, byte", "more follows", "(not \\\")", "quotes = false"]),
        ),
        (
            named() + "20,\"He said,good\n21,x,bad\n",
            "",
            Refused(&["record 22 (line 22, byte", "a double quote is missing"]),
        ),
        // A vocabulary of one word.
        (
            rows("text,label\n", |i| format!("w{i} the,{}", i % 2)),
            "minimum_count = 3",
            Read(18, 2, &["the vocabulary has 1 word:", "dataset.minimum_count"]),
        ),
        (String::new(), "", Refused(&["a.csv is empty (0 bytes)"])),
        ("text,label\n".into(), "", Refused(&["no samples to train on"])),
    ];
    for (contents, settings, outcome) in &cases {
        let count = if settings.contains("minimum_count") { "" } else { "\nminimum_count = 1" };
        let settings = format!("kind = 'table'\nfile = 'DIR/a.csv'\n{settings}{count}");
        try_one(contents, |d| write(d, "a.csv", contents), &settings, outcome);
    }
    try_one(
        "tabs",
        |d| write(d, "a.tsv", &rows("text\tlabel\n", |i| format!("t, {i}\t{}", i % 2))),
        &NAMED.replace("a.csv", "a.tsv"),
        &Read(18, 2, &[]),
    );
    refuse_all(
        "table",
        &[
            ("vocabulary = 2", "dataset.vocabulary"),
            ("minimum_count = 0", "dataset.minimum_count"),
            ("delimiter = 'é'", "dataset.delimiter"),
            ("text = []", "dataset.text"),
            ("header = false", "dataset.header"),
        ],
    );
}

#[test]
fn a_file_to_train_on_and_one_to_test_on() {
    try_all(
        BOTH,
        &[
            (
                "in another order of columns",
                |d| {
                    write(d, "a.csv", &named());
                    write(d, "b.csv", "label,text\ngood,new\nbad,newer\n");
                },
                Read(20, 2, &[]),
            ),
            (
                "one file twice",
                |d| {
                    write(d, "a.csv", &named());
                    write(d, "b.csv", &named());
                },
                Read(20, 20, &["20 of 20 test samples", "part of the training set"]),
            ),
            (
                "a label that only the test file has",
                |d| {
                    write(d, "a.csv", &named());
                    write(d, "b.csv", "label,text\ngood,new\n\nugly,newer\n");
                },
                Refused(&["b.csv line 4: the label \"ugly\"", "bad, good"]),
            ),
        ],
    );
}

/// A header that nothing tells of is one in both files.
#[test]
fn a_header_that_the_training_file_shows_is_that_of_the_test_file() {
    let settings = format!("{BOTH}\ntext = 2\nlabel = 1");
    for (said, test, outcome) in [
        ("", "class,text\n1,new\n2,newer\n3,newest\n", Read(20, 3, &["taken for a header"])),
        ("", "1,new\n2,newer\n3,newest\n", Read(20, 3, &["taken for a header"])),
        ("\nheader = true", "kind,words\n1,new\n2,newer\n3,newest\n", Read(20, 3, &[])),
    ] {
        let both = |d: &Path| {
            write(d, "a.csv", &numbered("class,text\n", 3));
            write(d, "b.csv", test);
        };
        try_one(test, both, &format!("{settings}{said}"), &outcome);
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
