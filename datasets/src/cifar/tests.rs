use super::*;
use crate::dataset::{Features, batch_of, whole};
use proptest::prelude::*;
use std::fs;

/// A set whose image i has label i mod 10 and every byte i.
fn write(dir: &Path, per_file: u8) {
    for (number, file) in CIFAR10.files().into_iter().enumerate() {
        let mut contents = Vec::new();
        for i in 0..per_file {
            let value = number as u8 * per_file + i;
            contents.push(value % 10);
            contents.extend([value; IMAGE]);
        }
        files::write(&dir.join(file.name), &contents).unwrap();
    }
}

fn config(dir: &Path) -> Cifar10 {
    Cifar10 { dir: dir.to_owned(), partial: true }
}

fn load(config: &impl DatasetDefinition) -> Result<Data> {
    selected(config, Selection::default())
}

fn selected(config: &impl DatasetDefinition, samples: Selection) -> Result<Data> {
    config.load(&Reading { scratch: Path::new("nowhere"), samples, vocabulary: None })
}

#[test]
fn files_are_read_in_order() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 4);
    let data = load(&config(dir.path())).unwrap();
    assert_eq!(whole(&*data.train).labels, (0..20).map(|i| i % 10).collect::<Vec<_>>());
    assert_eq!(whole(&*data.test).labels, [0, 1, 2, 3]);
    assert_eq!(data.files.len(), 6);
    assert_eq!((data.files[5].name.as_str(), data.files[5].bytes), ("test_batch.bin", 4 * 3073));
    // Bytes 0..=19, each equally often.
    let normal = data.normalisation.unwrap();
    assert!((normal.mean[2] * 255.0 - 9.5).abs() < 1e-12);
    assert!((normal.deviation[2] * 255.0 - (399.0f64 / 12.0).sqrt()).abs() < 1e-12);
}

#[test]
fn planes_become_pixels() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 1);
    let mut record = vec![3];
    for plane in [200u8, 100, 50] {
        record.extend((0..1024).map(|i| plane + (i == 33) as u8));
    }
    fs::write(dir.path().join("test_batch.bin"), record).unwrap();
    let data = load(&config(dir.path())).unwrap();
    let normal = data.normalisation.unwrap();
    let Features::Images { pixels, .. } = batch_of(&*data.test, &[0], None).features else {
        panic!()
    };
    for (position, pixel) in pixels.chunks_exact(3).enumerate() {
        for (c, plane) in [200.0, 100.0, 50.0].into_iter().enumerate() {
            let byte = plane + f64::from(position == 33);
            let expected = (byte / 255.0 - normal.mean[c]) / normal.deviation[c];
            assert!((f64::from(pixel[c]) - expected).abs() < 1e-4);
        }
    }
}

#[test]
fn limits_take_the_first_images_and_read_no_further() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 4);
    fs::remove_file(dir.path().join("data_batch_3.bin")).unwrap();
    let samples = Selection { train: Some(6), test: Some(2), ..Selection::default() };
    let data = selected(&config(dir.path()), samples).unwrap();
    assert_eq!(whole(&*data.train).labels, [0, 1, 2, 3, 4, 5]);
    assert_eq!(whole(&*data.test).labels, [0, 1]);
    for samples in [
        Selection { train: Some(0), ..Selection::default() },
        Selection { test_share: Some(0.5), ..Selection::default() },
    ] {
        let config = crate::Config::Cifar10(config(dir.path()));
        let error = config.load_as(&Reading { scratch: dir.path(), samples, vocabulary: None });
        assert!(matches!(error, Err(Error::Setting { .. })));
    }
}

#[test]
fn cifar100_has_two_labels() {
    let dir = tempfile::tempdir().unwrap();
    let mut contents = vec![4, 0];
    contents.extend([1; IMAGE]);
    contents.extend([1, 99]);
    contents.extend([2; IMAGE]);
    for file in CIFAR100.files() {
        fs::write(dir.path().join(file.name), &contents).unwrap();
    }
    let fine = Cifar100 { dir: dir.path().into(), partial: true, ..Cifar100::default() };
    let train = load(&fine).unwrap().train;
    assert_eq!((whole(&*train).labels, train.classes().len()), (vec![0, 99], 100));
    let coarse = Cifar100 { labels: Labels::Coarse, ..fine };
    let train = load(&coarse).unwrap().train;
    assert_eq!(whole(&*train).labels, [4, 1]);
    assert_eq!(train.classes()[4], "fruit_and_vegetables");
    contents[3074] = 20;
    fs::write(dir.path().join("test.bin"), &contents).unwrap();
    let error = load(&coarse).err().unwrap().to_string();
    let problem = "record 2 (byte 3074) has the coarse label 20, but labels run from 0 to 19";
    assert!(error.contains(problem), "{error}");
}

proptest! {
    #[test]
    fn any_bytes_are_counted_or_refused(contents: Vec<u8>, records in 0usize..4, label: u8) {
        let path = Path::new("train.bin");
        let short = contents.len() % CIFAR10.record_bytes() != 0;
        prop_assert_eq!(CIFAR10.check(path, &contents).is_err(), short);
        let whole = [label, 0].repeat(records * CIFAR100.record_bytes() / 2);
        let counts = CIFAR100.per_class(path, &whole);
        prop_assert_eq!(counts.is_err(), records > 0 && label > 19);
        prop_assert!(counts.is_err() || counts.unwrap()[0] == records as u64);
    }
}

#[test]
fn a_test_file_that_is_also_trained_on_is_told() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 20);
    fs::copy(dir.path().join("data_batch_1.bin"), dir.path().join("test_batch.bin")).unwrap();
    let warnings = load(&config(dir.path())).unwrap().warnings.join(" ");
    let told = "data_batch_1.bin and test_batch.bin have the same contents";
    assert!(warnings.contains(told), "{warnings}");
}

#[test]
fn every_bad_file_is_told_with_place_and_remedy() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 4);
    let path = dir.path().join("data_batch_2.bin");
    let good = fs::read(&path).unwrap();
    let config = config(dir.path());
    let mut label = good.clone();
    label[2 * 3073] = 10;
    let huge = vec![0; 10_001 * 3073];
    let cases: [(&[u8], &str); 5] = [
        (
            &good[..good.len() - 1],
            "record 4 begins at byte 9219 and is cut short: 3072 of 3073 bytes",
        ),
        (&good[..1], "record 1 begins at byte 0 and is cut short"),
        (b"", "is empty (byte 0): data_batch_2.bin with 10000 records of 3073 bytes (CIFAR-10)"),
        (&label, "record 3 (byte 6146) has the class label 10, but labels run from 0 to 9"),
        (&huge, "has 30733073 bytes, at most 30730000 are possible"),
    ];
    for (contents, problem) in cases {
        fs::write(&path, contents).unwrap();
        let message = load(&config).err().expect("a bad file was accepted").to_string();
        let told = ["data_batch_2.bin", problem, "again"].iter().all(|part| message.contains(part));
        assert!(told, "{message}");
    }
    fs::write(&path, &good).unwrap();

    // Without `partial`, a file must have the official number of records.
    let error = load(&Cifar10 { partial: false, ..config.clone() }).err().unwrap().to_string();
    let problem = "holds 4 records, the official file 10000 (the difference begins at byte 12292)";
    assert!(error.contains(problem) && error.contains("dataset.partial=true"), "{error}");

    fs::remove_file(&path).unwrap();
    let error = load(&config).err().unwrap();
    assert!(matches!(error, Error::Missing { .. }));
    assert!(error.to_string().contains("gradwire data fetch cifar10"), "{error}");
    fs::create_dir(&path).unwrap();
    assert!(matches!(load(&config).err().unwrap(), Error::Read { .. }));
}
