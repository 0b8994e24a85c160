//! IDX and NumPy files.

use std::fs;
use std::io::{Cursor, Write};
use std::path::Path;

use gradwire_datasets::Shape;

use super::Outcome::{Read, Refused};
use super::{Case, all, load, try_all};

/// An IDX file of bytes.
fn idx(shape: &[u32], values: &[u8]) -> Vec<u8> {
    let mut file = vec![0, 0, 8, shape.len() as u8];
    file.extend(shape.iter().flat_map(|side| side.to_be_bytes()));
    file.extend(values);
    file
}

/// So many images of 4 × 3 pixels that all differ, from that number on.
fn images(from: u8, count: u8) -> Vec<u8> {
    (from..from + count).flat_map(|i| [[i; 6], [255 - i; 6]].concat()).collect()
}

pub(super) fn labels(count: u8) -> Vec<u8> {
    (0..count).map(|i| 5 + i % 2).collect()
}

pub(super) fn mnist(dir: &Path) {
    for (name, from, count) in [("train", 0, 20), ("t10k", 100, 6)] {
        let file = |what: &str| dir.join(format!("{name}-{what}-ubyte"));
        let sides = [count.into(), 4, 3];
        fs::write(file("images-idx3"), idx(&sides, &images(from, count))).unwrap();
        fs::write(file("labels-idx1"), idx(&[count.into()], &labels(count))).unwrap();
    }
}

const IDX: &str = "kind = 'idx'\ndir = 'DIR'";

/// Writes one of the files anew.
fn changed(dir: &Path, name: &str, change: impl Fn(Vec<u8>) -> Vec<u8>) {
    let file = dir.join(name);
    let contents = change(fs::read(&file).unwrap());
    fs::write(file, contents).unwrap();
}

fn gzip(contents: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(contents).unwrap();
    packed.finish().unwrap()
}

#[test]
fn idx_files() {
    const IMAGES: &str = "train-images-idx3-ubyte";
    try_all(&[
        ("four files", mnist, IDX, Read(20, 6, &[])),
        (
            "packed, and one of them unpacked beside it",
            |d| {
                mnist(d);
                for file in fs::read_dir(d).unwrap().map(|file| file.unwrap().path()) {
                    let packed = file.with_file_name(
                        file.file_name().unwrap().to_str().unwrap().to_owned() + ".gz",
                    );
                    fs::write(packed, gzip(&fs::read(&file).unwrap())).unwrap();
                    if !file.ends_with(IMAGES) {
                        fs::remove_file(file).unwrap();
                    }
                }
            },
            IDX,
            Read(20, 6, &[]),
        ),
        (
            "no files for testing",
            |d| {
                mnist(d);
                fs::remove_file(d.join("t10k-images-idx3-ubyte")).unwrap();
                fs::remove_file(d.join("t10k-labels-idx1-ubyte")).unwrap();
            },
            IDX,
            Read(18, 2, &[]),
        ),
        (
            "labels missing",
            |d| {
                mnist(d);
                fs::remove_file(d.join("train-labels-idx1-ubyte")).unwrap();
            },
            IDX,
            Refused(&["data has no IDX file of labels", "train-labels-idx1-ubyte"]),
        ),
        (
            "cut short",
            |d| {
                mnist(d);
                changed(d, IMAGES, |file| file[..200].to_vec());
            },
            IDX,
            Refused(&["train-images-idx3-ubyte has 200 bytes", "it should have 256"]),
        ),
        (
            "too long, packed",
            |d| {
                mnist(d);
                changed(d, IMAGES, |file| gzip(&[file, vec![0; 1 << 20]].concat()));
            },
            IDX,
            Refused(&["more than 256 bytes", "it should have 256"]),
        ),
        (
            "cut short within its header",
            |d| {
                mnist(d);
                changed(d, IMAGES, |file| file[..9].to_vec());
            },
            IDX,
            Refused(&["ends within its header, at byte 9"]),
        ),
        (
            "more than there can be",
            |d| {
                mnist(d);
                changed(d, IMAGES, |_| idx(&[u32::MAX; 4], &[]));
            },
            IDX,
            Refused(&["cannot have the shape"]),
        ),
        (
            "numbers with a point",
            |d| {
                mnist(d);
                changed(d, IMAGES, |file| [&[0, 0, 13], &file[3..]].concat());
            },
            IDX,
            Refused(&["type 13; only bytes (8)"]),
        ),
        (
            "another file",
            |d| {
                mnist(d);
                changed(d, IMAGES, |_| b"<html>not found</html>".to_vec());
            },
            IDX,
            Refused(&["is no IDX file"]),
        ),
        (
            "one label less",
            |d| {
                mnist(d);
                changed(d, "train-labels-idx1-ubyte", |_| idx(&[19], &labels(19)));
            },
            IDX,
            Refused(&["has 20 images and 19 labels for training"]),
        ),
        (
            "a label that only the test set has",
            |d| {
                mnist(d);
                changed(d, "t10k-labels-idx1-ubyte", |_| idx(&[6], &[5, 5, 6, 9, 5, 6]));
            },
            IDX,
            Refused(&["test sample 4: the label \"9\" is not among", "which are 5, 6"]),
        ),
        (
            "two data sets in one folder",
            |d| {
                mnist(d);
                fs::copy(d.join(IMAGES), d.join("letters-train-images-idx3-ubyte")).unwrap();
            },
            IDX,
            Refused(&[
                "several IDX files of images",
                "letters-train-images-idx3-ubyte",
                "of its own",
            ]),
        ),
    ]);
}

#[test]
fn arrays_are_read_in_order() {
    let dir = tempfile::tempdir().unwrap();
    mnist(dir.path());
    let data = load(dir.path(), IDX).unwrap();
    assert_eq!(data.train.shape(), Shape::Image { height: 4, width: 3, channels: 1 });
    assert_eq!(data.train.classes(), ["5", "6"]);
    assert_eq!(data.files.len(), 4);
    let (pixels, labels) = all(&*data.train);
    assert_eq!(labels[..4], [0, 1, 0, 1]);
    // The first half of image i is the brightness i: equal steps.
    let step = pixels[1][0] - pixels[0][0];
    assert!(step > 0.0 && ((pixels[7][5] - pixels[0][0]) / step - 7.0).abs() < 1e-3);
}

/// A NumPy array: type, shape, bytes.
pub(super) fn npy(descr: &str, shape: &str, values: &[u8]) -> Vec<u8> {
    let order = "'fortran_order': False";
    let header = format!("{{'descr': '{descr}', {order}, 'shape': ({shape}), }}\n");
    let length = (header.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\0".as_slice(), &length, header.as_bytes(), values].concat()
}

fn npz(dir: &Path, arrays: &[(&str, Vec<u8>)]) {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, array) in arrays {
        let options = zip::write::SimpleFileOptions::default();
        zip.start_file(format!("{name}.npy"), options).unwrap();
        zip.write_all(array).unwrap();
    }
    fs::write(dir.join("a.npz"), zip.finish().unwrap().into_inner()).unwrap();
}

const NPZ: &str = "kind = 'npz'\nfile = 'DIR/a.npz'";

/// The four arrays of a data set, with the training images and labels as given.
pub(super) fn medmnist(dir: &Path, train_images: Vec<u8>, train_labels: Vec<u8>) {
    let tests = [
        ("test_images", npy("|u1", "6, 4, 3", &images(100, 6))),
        ("test_labels", npy("|u1", "6, 1", &labels(6))),
    ];
    let train = [("train_images", train_images), ("train_labels", train_labels)];
    npz(dir, &[train, tests].concat());
}

pub(super) fn good_images() -> Vec<u8> {
    npy("|u1", "20, 4, 3", &images(0, 20))
}

#[test]
fn numpy_files() {
    let wide =
        |bytes: fn(u8) -> Vec<u8>| labels(20).into_iter().flat_map(bytes).collect::<Vec<_>>();
    let little = npy("<i8", "20,", &wide(|label| i64::from(label).to_le_bytes().to_vec()));
    let big = npy(">i4", "20,", &wide(|label| i32::from(label).to_be_bytes().to_vec()));
    for labels in [little, big] {
        let dir = tempfile::tempdir().unwrap();
        medmnist(dir.path(), good_images(), labels);
        let data = load(dir.path(), NPZ).unwrap();
        assert_eq!(data.train.classes(), ["5", "6"]);
        assert_eq!(all(&*data.train).1[..3], [0, 1, 0]);
    }
    let cases: &[Case] = &[
        (
            "the names of Keras, colours, no test set, negative labels",
            |d| {
                let labels = [255u8, 1].repeat(10);
                let arrays = [
                    ("x_train", npy("|u1", "20, 2, 2, 3", &images(0, 20))),
                    ("y_train", npy("|i1", "20,", &labels)),
                ];
                npz(d, &arrays);
            },
            NPZ,
            Read(18, 2, &[]),
        ),
        (
            "other names",
            |d| npz(d, &[("images", good_images())]),
            NPZ,
            Refused(&["no array train_images or x_train", "its arrays are images"]),
        ),
        (
            "channels first",
            |d| {
                medmnist(
                    d,
                    npy("|u1", "20, 3, 2, 2", &images(0, 20)),
                    npy("|u1", "20,", &labels(20)),
                );
            },
            NPZ,
            Refused(&["train_images: has the shape [20, 3, 2, 2]", "transpose(0, 2, 3, 1)"]),
        ),
        (
            "images with a point",
            |d| medmnist(d, npy("<f4", "20, 4, 3", &[0; 960]), npy("|u1", "20,", &labels(20))),
            NPZ,
            Refused(&["train_images: holds numbers with a point", "astype('uint8')"]),
        ),
        (
            "several labels a sample",
            |d| medmnist(d, good_images(), npy("|u1", "20, 14", &[0; 280])),
            NPZ,
            Refused(&["train_labels: has 14 labels a sample"]),
        ),
        (
            "Python objects",
            |d| medmnist(d, good_images(), npy("|O", "20,", &[0; 280])),
            NPZ,
            Refused(&["train_labels: holds Python objects, which are not read"]),
        ),
        (
            "column by column",
            |d| {
                let file = good_images();
                let text = String::from_utf8_lossy(&file[10..]).into_owned();
                let header = text.lines().next().unwrap().replace("False", "True ");
                let columns = [&file[..10], header.as_bytes(), &file[10 + header.len()..]].concat();
                medmnist(d, columns, npy("|u1", "20,", &labels(20)));
            },
            NPZ,
            Refused(&["numpy.ascontiguousarray"]),
        ),
        (
            "fewer bytes than its shape",
            |d| {
                medmnist(
                    d,
                    npy("|u1", "4000000000, 4, 3", &[1; 240]),
                    npy("|u1", "20,", &labels(20)),
                );
            },
            NPZ,
            Refused(&["does not have the 48000000000 bytes of its shape"]),
        ),
        (
            "more than can be counted",
            |d| {
                let shape = "9999999999999, 1000, 1000, 3";
                medmnist(d, npy("|u1", shape, &[]), npy("|u1", "20,", &labels(20)));
            },
            NPZ,
            Refused(&["cannot have the shape"]),
        ),
        (
            "no archive",
            |d| fs::write(d.join("a.npz"), good_images()).unwrap(),
            NPZ,
            Refused(&["a.npz is no .npz file"]),
        ),
    ];
    try_all(cases);
}
