//! IDX and NumPy files.

use std::fs;
use std::io::{Cursor, Write};
use std::path::Path;

use gradwire_datasets::{Arrays, Config, Shape};

use super::Outcome::{Read, Refused};
use super::{all, load, says, try_all};

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

fn labels(count: u8) -> Vec<u8> {
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

const IDX: &str = "kind = 'arrays'\npath = 'DIR'";
const IMAGES: &str = "train-images-idx3-ubyte";
const LABELS: &str = "train-labels-idx1-ubyte";

fn gzip(contents: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(contents).unwrap();
    packed.finish().unwrap()
}

fn remove(dir: &Path, name: &str) {
    fs::remove_file(dir.join(name)).unwrap();
}

#[test]
fn idx_files() {
    try_all(
        IDX,
        &[
            ("four files", mnist, Read(20, 6, &[])),
            (
                "packed, and one of them unpacked beside it",
                |d| {
                    mnist(d);
                    for file in fs::read_dir(d).unwrap().map(|file| file.unwrap().path()) {
                        let name = file.file_name().unwrap().to_str().unwrap().to_owned() + ".gz";
                        fs::write(d.join(name), gzip(&fs::read(&file).unwrap())).unwrap();
                        if !file.ends_with(IMAGES) {
                            fs::remove_file(file).unwrap();
                        }
                    }
                },
                Read(20, 6, &[]),
            ),
            (
                "no files for testing",
                |d| {
                    mnist(d);
                    remove(d, "t10k-images-idx3-ubyte");
                    remove(d, "t10k-labels-idx1-ubyte");
                },
                Read(18, 2, &[]),
            ),
            (
                "test equal to train",
                |d| {
                    mnist(d);
                    for (name, file) in
                        [("images-idx3-ubyte", IMAGES), ("labels-idx1-ubyte", LABELS)]
                    {
                        fs::copy(d.join(file), d.join(format!("t10k-{name}"))).unwrap();
                    }
                },
                Read(20, 20, &["the test set is part of the training set"]),
            ),
            (
                "labels missing",
                |d| {
                    mnist(d);
                    remove(d, LABELS);
                },
                Refused(&["data has no IDX file of labels", LABELS]),
            ),
            (
                "two data sets in one folder",
                |d| {
                    mnist(d);
                    fs::copy(d.join(IMAGES), d.join("letters-train-images-idx3-ubyte")).unwrap();
                },
                Refused(&[
                    "several IDX files of images",
                    "letters-train-images-idx3",
                    "of its own",
                ]),
            ),
        ],
    );
    type Change = fn(Vec<u8>) -> Vec<u8>;
    let changes: [(&str, Change, &[&str]); 10] = [
        (IMAGES, |f| f[..200].to_vec(), &["idx3-ubyte has 200 bytes", "it should have 256"]),
        (
            IMAGES,
            |f| gzip(&[f, vec![0; 1 << 20]].concat()),
            &["more than 256 bytes", "it should have 256"],
        ),
        (IMAGES, |f| f[..9].to_vec(), &["ends within its header, at byte 9"]),
        (IMAGES, |_| idx(&[u32::MAX; 4], &[]), &["cannot have the shape"]),
        // Before anything is unpacked.
        (IMAGES, |_| gzip(&idx(&[9, 2000, 4], &[])), &["has images of 2000 × 4 pixels"]),
        (IMAGES, |_| gzip(&idx(&[u32::MAX, 4, 3], &[])), &["at most 17179869184 are read"]),
        (IMAGES, |f| [&[0, 0, 13], &f[3..]].concat(), &["type 13; only bytes (8)"]),
        (IMAGES, |_| b"<html>not found</html>".to_vec(), &["is no IDX file"]),
        (LABELS, |_| idx(&[19], &labels(19)), &["has 20 images and 19 labels for training"]),
        (
            "t10k-labels-idx1-ubyte",
            |_| idx(&[6], &[5, 5, 6, 9, 5, 6]),
            &["test sample 4: the label \"9\" is not among", "which are 5, 6"],
        ),
    ];
    for (name, change, words) in changes {
        let dir = tempfile::tempdir().unwrap();
        mnist(dir.path());
        let file = dir.path().join(name);
        fs::write(&file, change(fs::read(&file).unwrap())).unwrap();
        says(&load(dir.path(), IDX).err().unwrap().to_string(), words);
    }
}

/// Each label becomes a text of its own, so that a file of a few megabytes would fill the memory.
#[test]
fn labels_are_counted_before_they_are_unpacked() {
    let says_of = |path: &Path, words| {
        let config = Config::Arrays(Arrays { path: path.into(), ..Arrays::default() });
        says(&config.load(path).err().unwrap().to_string(), &[words]);
        says(&config.form().unwrap_err().to_string(), &[words]);
    };
    let dir = tempfile::tempdir().unwrap();
    mnist(dir.path());
    let write = |name: &str, shape| {
        fs::write(dir.path().join(name), gzip(&idx(shape, &[]))).unwrap();
    };
    write(LABELS, &[4_000_000_000]);
    says_of(dir.path(), "has 20 images and 4000000000 labels for training");
    write(IMAGES, &[4_000_000_000, 1, 1]);
    says_of(dir.path(), "has 4000000000 images for training, and at most 268435456 are read");
    medmnist(dir.path(), good_images(), npy("|u1", "4000000000,", &[]));
    says_of(&dir.path().join("a.npz"), "has 20 images and 4000000000 labels for training");
}

/// What is in a folder is told by the files' names, and not by those of the folders around them.
#[test]
fn a_folder_may_be_called_images() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("labels/images");
    fs::create_dir_all(&folder).unwrap();
    mnist(&folder);
    assert_eq!(load(&folder, IDX).unwrap().train.len(), 20);
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
fn npy(descr: &str, shape: &str, values: &[u8]) -> Vec<u8> {
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

const NPZ: &str = "kind = 'arrays'\npath = 'DIR/a.npz'";

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

pub(super) fn good_labels() -> Vec<u8> {
    npy("|u1", "20,", &labels(20))
}

#[test]
fn arrays_are_made_to_fit() {
    let dir = tempfile::tempdir().unwrap();
    mnist(dir.path());
    let as_it_is = all(&*load(dir.path(), IDX).unwrap().train).0;
    let coloured = load(dir.path(), &format!("{IDX}\nchannels = 3")).unwrap();
    assert_eq!(coloured.train.shape(), Shape::Image { height: 4, width: 3, channels: 3 });
    for (grey, colours) in as_it_is.iter().zip(all(&*coloured.train).0) {
        assert!(colours.chunks(3).zip(grey).all(|(three, one)| three == [*one; 3]));
    }
    let square = load(dir.path(), &format!("{IDX}\nsize = 8\nresize = 'stretch'")).unwrap();
    assert_eq!(square.test.shape(), Shape::Image { height: 8, width: 8, channels: 1 });
    // The upper half of an image has one value, the lower half another.
    let first = &all(&*square.train).0[0];
    assert!(
        first[..16].iter().all(|x| *x == first[0]) && first[48..].iter().all(|x| *x == first[63])
    );
    assert!(first[0] < first[63]);
    for settings in ["size = 3", "channels = 2"] {
        let error = load(dir.path(), &format!("{IDX}\n{settings}")).err().unwrap().to_string();
        says(&error, &["dataset.", settings.split(' ').next().unwrap()]);
    }
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
    // Arrays of a training set that are refused: images, labels, words.
    let by_columns = || {
        let file = good_images();
        let text = String::from_utf8_lossy(&file[10..]).into_owned();
        let header = text.lines().next().unwrap().replace("False", "True ");
        [&file[..10], header.as_bytes(), &file[10 + header.len()..]].concat()
    };
    let [few, many] = ["4000000000, 4, 3", "9999999999999, 1000, 1000, 3"];
    let cases: [(Vec<u8>, Vec<u8>, &[&str]); 7] = [
        (
            npy("|u1", "20, 3, 2, 2", &images(0, 20)),
            good_labels(),
            &["train_images: has the shape [20, 3, 2, 2]", "transpose(0, 2, 3, 1)"],
        ),
        (
            npy("<f4", "20, 4, 3", &[0; 960]),
            good_labels(),
            &["train_images: holds numbers with a point", "astype('uint8')"],
        ),
        (good_images(), npy("|u1", "20, 14", &[0; 280]), &["train_labels: has 14 labels a sample"]),
        (
            good_images(),
            npy("|O", "20,", &[0; 280]),
            &["train_labels: holds Python objects, which are not read"],
        ),
        (by_columns(), good_labels(), &["numpy.ascontiguousarray"]),
        (
            npy("|u1", few, &[1; 240]),
            good_labels(),
            &["train_images: has 48000000000 bytes of values, and at most 17179869184 are read"],
        ),
        (npy("|u1", many, &[]), good_labels(), &["cannot have the shape"]),
    ];
    for (images, labels, words) in cases {
        let dir = tempfile::tempdir().unwrap();
        medmnist(dir.path(), images, labels);
        says(&load(dir.path(), NPZ).err().unwrap().to_string(), words);
    }
    try_all(
        NPZ,
        &[
            (
                "the names of Keras, colours, no test set, negative labels",
                |d| {
                    let images = npy("|u1", "20, 2, 2, 3", &images(0, 20));
                    let labels = npy("|i1", "20,", &[255u8, 1].repeat(10));
                    npz(d, &[("x_train", images), ("y_train", labels)]);
                },
                Read(18, 2, &[]),
            ),
            (
                "test equal to train",
                |d| {
                    let labels = || npy("|u1", "6,", &labels(6));
                    let images = || npy("|u1", "6, 4, 3", &images(0, 6));
                    let train = [("x_train", images()), ("y_train", labels())];
                    npz(d, &[train, [("x_test", images()), ("y_test", labels())]].concat());
                },
                Read(6, 6, &["6 of 6 test samples are also in the training set"]),
            ),
            (
                "other names",
                |d| npz(d, &[("images", good_images())]),
                Refused(&["no array train_images or x_train", "its arrays are images"]),
            ),
            (
                "no archive",
                |d| fs::write(d.join("a.npz"), good_images()).unwrap(),
                Refused(&["a.npz is no .npz file"]),
            ),
        ],
    );
}
