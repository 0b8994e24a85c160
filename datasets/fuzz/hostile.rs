//! What becomes of hostile files: an error, or a data set whose batches can be had. Shared by the
//! fuzz targets and by the test that replays their corpora.
#![allow(dead_code, reason = "each fuzz target uses one of these")]

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use gradwire_datasets::{
    AgNews, Arrays, Augment, Augmentation, Batch, Cifar10, Cifar100, Column, Columns, Config, Data,
    Dataset, Labels, Pictures, Reading, Selection, TextTable, look,
};
use tempfile::TempDir;

static SCRATCH: LazyLock<TempDir> =
    LazyLock::new(|| tempfile::tempdir().expect("the fuzzer needs a scratch folder"));

/// Both files of CIFAR-10 hold these bytes.
pub(crate) fn cifar10(bytes: &[u8]) {
    let dir = with("cifar-10-batches-bin", &["data_batch_1.bin", "test_batch.bin"], bytes);
    let one = Selection { train: Some(1), ..Selection::default() };
    read_some(&Config::Cifar10(Cifar10 { dir, partial: true }), one);
}

/// Both files of CIFAR-100 hold these bytes.
pub(crate) fn cifar100(bytes: &[u8]) {
    let dir = with("cifar-100-binary", &["train.bin", "test.bin"], bytes);
    for labels in [Labels::Fine, Labels::Coarse] {
        let dir = dir.clone();
        read(&Config::Cifar100(Cifar100 { dir, labels, partial: true }));
    }
}

/// Both files of AG News hold these bytes.
pub(crate) fn ag_news(bytes: &[u8]) {
    let dir = with("ag_news_csv", &["train.csv", "test.csv"], bytes);
    let small = AgNews { vocabulary: 50, minimum_count: 1, length: 8, ..AgNews::default() };
    read(&Config::AgNews(AgNews { dir, partial: true, ..small }));
}

/// All files of one's own hold these bytes: a picture, an array, an archive, a table.
pub(crate) fn own(bytes: &[u8]) {
    let names = ["a/1.png", "a/2.jpg", "b/1.png", "b/2.jpg", "own.npz", "own.csv"];
    let idx = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"];
    let file = with("own", &[&names[..], &idx].concat(), bytes).join("own");
    let path = |name: &str| file.join(name);
    let two = Columns::One(Column::Number(2));
    let table =
        TextTable { text: two, label: Column::Number(1), minimum_count: 1, ..TextTable::default() };
    let pictures = Pictures { path: file.clone(), size: 8, ..Pictures::default() };
    read(&Config::Pictures(pictures));
    read(&Config::Arrays(Arrays { path: file.clone(), ..Arrays::default() }));
    read(&Config::Arrays(Arrays { path: path("own.npz"), ..Arrays::default() }));
    read(&Config::Table(TextTable { file: path("own.csv"), ..table }));
    for name in names {
        drop(look(&path(name)));
    }
}

/// A folder whose files of these names hold `bytes`.
fn with(folder: &str, files: &[&str], bytes: &[u8]) -> std::path::PathBuf {
    let dir = SCRATCH.path().join(format!("{folder}-{:?}", std::thread::current().id()));
    let inner = dir.join(folder);
    fs::create_dir_all(&inner).expect("the fuzzer's folder can be made");
    for file in files {
        let file = inner.join(file);
        fs::create_dir_all(file.parent().expect("a file is in a folder"))
            .expect("a folder can be made");
        fs::write(file, bytes).expect("the fuzzer's file can be written");
    }
    dir
}

fn read(config: &Config) {
    read_some(config, Selection::default());
}

fn read_some(config: &Config, samples: Selection) {
    let reading = Reading { scratch: Path::new("/nonexistent"), samples, vocabulary: None };
    let Ok(data) = config.load_as(&reading) else { return };
    let Data { train, test, .. } = data;
    let mut batch = Batch::default();
    for set in [&train, &test] {
        let indices: Vec<u32> = (0..set.len().min(40) as u32).collect();
        Dataset::batch(
            &**set,
            &indices,
            Some(&Augment { seed: 1, epoch: 1, how: Augmentation::default() }),
            &mut batch,
        );
        assert_eq!(batch.len(), indices.len());
    }
}
