//! What is found at a path.

use std::fs;
use std::path::Path;

use gradwire_datasets::{Config, Counts, Selection, look};

use super::{arrays, folders, says, tables};

/// What a path in the folder holds, how it is made, and the kind and the line that are found, or the error's words.
type Case = (&'static str, fn(&Path), &'static str, &'static [&'static str]);

#[test]
fn a_path_tells_what_it_is() {
    let cifar = |d: &Path| {
        let twin = Config::twin_of("cifar10").unwrap();
        let counts = Counts { train: Some(20), test: Some(10), seed: 0 };
        twin.twin().unwrap().write(d, counts).unwrap();
    };
    let cases: &[Case] = &[
        (
            "",
            |d| folders::folder(d, &["a", "b"], 20),
            "pictures",
            &["40 PNG images in 2 class folders", "8×8 in colour; 4 for testing"],
        ),
        (
            "",
            |d| {
                for (i, side) in [70u32, 100].into_iter().enumerate() {
                    fs::create_dir_all(d.join(format!("train/{i}"))).unwrap();
                    fs::create_dir_all(d.join(format!("val/{i}"))).unwrap();
                    let grey = image::GrayImage::from_pixel(side, 80, image::Luma([9]));
                    grey.save(d.join(format!("train/{i}/x.png"))).unwrap();
                    grey.save(d.join(format!("val/{i}/x.jpg"))).unwrap();
                }
            },
            "pictures",
            &["4 PNG and JPEG images in 2 class folders, 64×64 grey once resized", "2 for testing"],
        ),
        (
            "",
            arrays::mnist,
            "arrays",
            &["IDX files: 26 images of 4×3 grey in 2 classes; 6 for testing"],
        ),
        ("train-images-idx3-ubyte", arrays::mnist, "arrays", &["26 images"]),
        (
            "a.npz",
            |d| arrays::medmnist(d, arrays::good_images(), arrays::good_labels()),
            "arrays",
            &["a NumPy file: 26 images of 4×3 grey in 2 classes; 6 for testing"],
        ),
        (
            "a.csv",
            |d| tables::write(d, "a.csv", &tables::named()),
            "table",
            &["20 texts in 2 classes; 2 for testing (text: text; label: label)"],
        ),
        (
            "",
            |d| {
                let rows =
                    tables::rows("", |i| format!("{}\ta text of {i}\tand more {i}", 1 + i % 3));
                tables::write(d, "train.tsv", &rows);
                tables::write(d, "test.tsv", &rows);
            },
            "table",
            &[
                "a table, columns by number: 40 texts in 3 classes; 20 for testing (text: column 2, column 3; label: column 1)",
            ],
        ),
        // A label that occurs once, in the first row: no header.
        (
            "a.csv",
            |d| {
                let rows = tables::rows("", |i| format!("{},a text of {i}", 1 + i % 3));
                tables::write(d, "a.csv", &format!("5,a text of its own\n{rows}"));
            },
            "table",
            &["21 texts in 4 classes", "label: column 1"],
        ),
        // Names of columns that nobody knows.
        (
            "a.csv",
            |d| {
                let rows = tables::rows("sms,verdict\n", |i| format!("a text of {i},v{}", i % 2));
                tables::write(d, "a.csv", &rows);
            },
            "table",
            &["20 texts in 2 classes", "text: column 1; label: column 2"],
        ),
        ("", cifar, "cifar10", &["CIFAR-10: 50,000 + 10,000 photos"]),
        ("cifar-10-batches-bin", cifar, "cifar10", &["CIFAR-10"]),
        ("", |_| (), "", &["holds no data that is known", "class folders", ".npz"]),
        ("nowhere", |_| (), "", &["cannot read"]),
        (
            "a.txt",
            |d| tables::write(d, "a.txt", "To be"),
            "text",
            &["a text to continue: 5 bytes, 5 different characters", "tokens are characters"],
        ),
        (
            "",
            |d| {
                fs::write(d.join("train.txt"), b"caf\xe9").unwrap();
                tables::write(d, "test.txt", "tea");
            },
            "text",
            &["7 bytes, not UTF-8; tokens are bytes"],
        ),
        (
            "signs.txt",
            |d| tables::write(d, "signs.txt", &('\u{4e00}'..'\u{5200}').collect::<String>()),
            "text",
            &["1,024 different characters", "tokens are characters"],
        ),
        (
            "signs.txt",
            |d| tables::write(d, "signs.txt", &('\u{4e00}'..='\u{5200}').collect::<String>()),
            "text",
            &["1,025 different characters", "1,024 tokens are learned"],
        ),
        (
            "a.csv",
            |d| tables::write(d, "a.csv", "a\nb\n"),
            "",
            &["no column of texts", "its columns are a"],
        ),
        ("", |d| tables::write(d, "cifar-10-python.tar.gz", "x"), "", &["version for Python"]),
        (
            "cifar-10-binary.tar.gz",
            |d| tables::write(d, "cifar-10-binary.tar.gz", "x"),
            "",
            &["is packed"],
        ),
        (
            "a.zip",
            |d| tables::write(d, "a.zip", "x"),
            "",
            &["is no file of a known kind", "unpack"],
        ),
        (
            "",
            |d| {
                tables::write(d, "a.csv", &tables::named());
                tables::write(d, "b.csv", &tables::named());
            },
            "",
            &["several files of data; name one: a.csv, b.csv"],
        ),
    ];
    for (path, make, kind, words) in cases {
        let dir = tempfile::tempdir().unwrap();
        make(dir.path());
        let said = match look(&dir.path().join(path)) {
            Ok(found) => {
                assert_eq!(found.config.name(), *kind, "{}", found.line);
                found.config.validate(&Selection::default()).unwrap();
                let form = found.config.form().unwrap();
                // Of a text the settings tell the most tokens that there may be.
                if *kind != "cifar10" && *kind != "text" {
                    let data = found.config.load(dir.path()).unwrap();
                    assert_eq!(data.train.classes().len(), form.classes, "{}", found.line);
                }
                found.line
            }
            Err(error) => {
                assert_eq!(*kind, "", "{error}");
                error.to_string()
            }
        };
        says(&said, words);
    }
}

#[test]
fn a_survey_tells_classes_and_doubles() {
    let dir = tempfile::tempdir().unwrap();
    folders::folder(&dir.path().join("train"), &["a", "b"], 4);
    fs::create_dir_all(dir.path().join("test/a")).unwrap();
    fs::copy(dir.path().join("train/a/00.png"), dir.path().join("test/a/x.png")).unwrap();
    let survey = look(dir.path()).unwrap().config.survey().unwrap().unwrap();
    assert_eq!(survey.classes, [("a".into(), 4, 1), ("b".into(), 4, 0)]);
    assert_eq!((survey.doubles.len(), survey.files.len()), (1, 2));
    let (test, train) = &survey.doubles[0];
    assert!(test.ends_with("test/a/x.png") && train.ends_with("train/a/00.png"), "{test} {train}");
    let told =
        ["images of 8×8 in colour", "1 test samples are also training", "note: there are no"];
    says(&survey.to_string(), &told);
    fs::write(dir.path().join("train/b/02.png"), b"\x89PNG\r\n\x1a\nx").unwrap();
    says(&look(dir.path()).unwrap_err().to_string(), &["train/b/02.png"]);
}
