//! Folders of class folders with pictures.

use std::fs;
use std::path::{Path, PathBuf};

use gradwire_datasets::Shape;

use super::Outcome::{Read, Refused};
use super::{all, load, png, refuse_all, try_all};

/// A folder of `classes` with `count` pictures each, of colours that all differ.
pub(super) fn folder(dir: &Path, classes: &[&str], count: u8) {
    for (number, class) in (0u8..).zip(classes) {
        for i in 0..count {
            let salt = dir.as_os_str().len() as u8;
            png(&dir.join(format!("{class}/{i:02}.png")), 8, [20 * number, i, salt]);
        }
    }
}

fn picture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pictures").join(name)
}

const FOLDER: &str = "kind = 'pictures'\npath = 'DIR'\nsize = 8";

/// A folder of two classes of three pictures, to which something is added.
fn small(dir: &Path) {
    folder(dir, &["a", "b"], 3);
}

/// Training and test folders with these classes, of six pictures and of three.
fn pair(dir: &Path, train: &[&str], test: &str, tested: &[&str]) {
    folder(&dir.join("train"), train, 6);
    folder(&dir.join(test), tested, 3);
}

/// Six pictures for training of each of two classes, and two for testing and for validation in a folder of their own.
fn tiny(dir: &Path) {
    folder(&dir.join("train"), &["a", "b"], 6);
    folder(&dir.join("test"), &["images"], 2);
    folder(&dir.join("val"), &["images"], 2);
}

#[test]
fn folders_of_pictures() {
    try_all(
        FOLDER,
        &[
            ("one folder", |d| folder(d, &["a", "b"], 10), Read(18, 2, &[])),
            ("train and test", |d| pair(d, &["a", "b"], "test", &["a", "b"]), Read(12, 6, &[])),
            (
                "classes called train and car",
                |d| folder(d, &["train", "car"], 10),
                Read(18, 2, &[]),
            ),
            ("nothing", |_| (), Refused(&["data has no samples to train on"])),
            ("no folder", |d| fs::remove_dir(d).unwrap(), Refused(&["cannot read", "data"])),
            ("one class", |d| folder(d, &["a"], 9), Refused(&["one class, a; two are needed"])),
            (
                "a class that only test has",
                |d| pair(d, &["a", "b"], "test", &["a", "c"]),
                Refused(&["test has folders", "training set has not: c;", "its classes are a, b"]),
            ),
            (
                "a class that only training has",
                |d| pair(d, &["a", "b"], "val", &["a"]),
                Read(12, 3, &["no samples to test on for 1 of 2 classes: b"]),
            ),
            (
                "test and val",
                |d| {
                    pair(d, &["a", "b"], "test", &["a", "b"]);
                    folder(&d.join("val"), &["a", "b"], 2);
                },
                Read(12, 6, &["folders that are not tested on: val"]),
            ),
            (
                "Tiny-ImageNet's validation set",
                |d| {
                    tiny(d);
                    let list = "00.png\tb\t0\t0\t8\t8\n01.png\ta\t0\t0\t8\t8\n";
                    fs::write(d.join("val/val_annotations.txt"), list).unwrap();
                },
                Read(12, 2, &["folders that are not tested on: test; nothing tells the classes"]),
            ),
            (
                "Tiny-ImageNet without its list",
                tiny,
                Read(
                    10,
                    2,
                    &["folders that are not tested on: test, val; nothing tells the classes"],
                ),
            ),
            (
                "Tiny-ImageNet with a class that is none",
                |d| {
                    tiny(d);
                    fs::write(d.join("val/val_annotations.txt"), "00.png\ta\n01.png\tc\n").unwrap();
                },
                Refused(&["val_annotations.txt line 2", "a class of the training set", "01.png"]),
            ),
            (
                "Tiny-ImageNet with a path in its list",
                |d| {
                    tiny(d);
                    fs::write(d.join("val/val_annotations.txt"), "../../train/a/00.png\ta\n")
                        .unwrap();
                },
                Refused(&["val_annotations.txt line 1", "a picture's name"]),
            ),
            (
                "an empty class",
                |d| {
                    folder(d, &["a", "b"], 10);
                    fs::create_dir(d.join("c")).unwrap();
                },
                Read(18, 2, &["no samples to train on for 1 of 3 classes: c"]),
            ),
            (
                "a class with one picture",
                |d| {
                    folder(d, &["a", "b"], 10);
                    png(&d.join("c/1.png"), 8, [200; 3]);
                },
                Read(19, 2, &["a single sample", "for 1 of 3 classes: c"]),
            ),
            (
                "test equal to train",
                |d| {
                    folder(&d.join("train"), &["a", "b"], 4);
                    for class in ["a", "b"] {
                        fs::create_dir_all(d.join("test").join(class)).unwrap();
                        for i in 0..4 {
                            let file = format!("{class}/{i:02}.png");
                            fs::copy(d.join("train").join(&file), d.join("test").join(&file))
                                .unwrap();
                        }
                    }
                },
                Read(8, 8, &["8 of 8 test samples", "the test set is part of the training set"]),
            ),
            (
                "an empty file",
                |d| {
                    small(d);
                    fs::write(d.join("b/x.jpg"), b"").unwrap();
                },
                Refused(&["b/x.jpg is empty (0 bytes)", "take it away"]),
            ),
            (
                "a PNG that is cut short",
                |d| {
                    small(d);
                    let whole = fs::read(d.join("b/01.png")).unwrap();
                    fs::write(d.join("b/01.png"), &whole[..whole.len() - 30]).unwrap();
                },
                Refused(&["b/01.png the picture cannot be decoded", "replace it"]),
            ),
            (
                "a JPEG that is cut short",
                |d| {
                    small(d);
                    let whole = fs::read(picture("turned.jpg")).unwrap();
                    fs::write(d.join("a/x.jpg"), &whole[..whole.len() - 10]).unwrap();
                },
                Refused(&["a/x.jpg the JPEG is cut short"]),
            ),
            (
                "an animation",
                |d| {
                    small(d);
                    fs::copy(picture("animated.png"), d.join("a/x.png")).unwrap();
                },
                Refused(&["a/x.png is an animated PNG"]),
            ),
            (
                "a GIF, by its name and by its contents",
                |d| {
                    small(d);
                    fs::write(d.join("a/x.png"), b"GIF89a\x01\0\x01\0").unwrap();
                },
                Refused(&["a/x.png is a picture of the format Gif; convert it"]),
            ),
            (
                "a picture of another format",
                |d| {
                    small(d);
                    fs::write(d.join("a/x.webp"), b"RIFF").unwrap();
                },
                Refused(&["a/x.webp is a picture of the format webp; convert it"]),
            ),
            (
                "what systems leave behind, and a text",
                |d| {
                    folder(d, &["a", "b"], 10);
                    for file in ["a/.DS_Store", "a/Thumbs.db", "b/.hidden.png", "Thumbs.db"] {
                        fs::write(d.join(file), b"x").unwrap();
                    }
                    fs::create_dir_all(d.join(".git/objects")).unwrap();
                    fs::write(d.join("b/notes.txt"), b"x").unwrap();
                },
                Read(18, 2, &["no pictures are left out", "b/notes.txt"]),
            ),
            (
                "pictures in folders of a class folder",
                |d| {
                    folder(d, &["a/old", "b"], 5);
                    folder(&d.join("a"), &["new"], 4);
                },
                Read(12, 2, &[]),
            ),
            #[cfg(unix)]
            (
                "a symbolic link in a circle",
                |d| {
                    small(d);
                    std::os::unix::fs::symlink(d.join("a"), d.join("a/again")).unwrap();
                },
                Refused(&["a/again is a symbolic link in a circle, back to"]),
            ),
        ],
    );
    try_all(
        "kind = 'pictures'\npath = 'DIR'\nsamples = { test_share = 0.5, train = 7, test = 4 }",
        &[
            (
                "a share beside a test set",
                |d| pair(d, &["a", "b"], "test", &["a", "b"]),
                Refused(&["samples.test_share", "samples for testing already"]),
            ),
            ("limits", |d| folder(d, &["a", "b"], 10), Read(7, 4, &[])),
        ],
    );
    refuse_all(
        "pictures",
        &[
            ("size = 2", "dataset.size"),
            ("channels = 2", "dataset.channels"),
            ("samples.test_share = 1.0", "samples.test_share"),
            ("samples.train = 0", "samples.train"),
        ],
    );
}

/// Pictures of every kind show the same colours, upright.
#[test]
fn pictures_of_every_kind_are_read_as_they_look() {
    // Corners of the picture as make.py wrote it: top left, top right, bottom left, bottom right.
    let corners = [[140, 40, 40], [180, 250, 180], [120, 20, 20], [160, 230, 160]];
    let grey = corners.map(|[r, g, b]: [i32; 3]| [(r + g + b) / 3; 3]);
    let turned = [corners[2], corners[0], corners[3], corners[1]];
    for (name, expected) in [
        ("cmyk.jpg", corners),
        ("palette.png", corners),
        ("alpha.png", corners),
        ("sixteen.png", grey),
        ("turned.jpg", turned),
    ] {
        let dir = tempfile::tempdir().unwrap();
        // Black and white, so that what is read can be told from what it is normalised to.
        png(&dir.path().join("train/a/0.png"), 8, [0; 3]);
        png(&dir.path().join("train/b/0.png"), 8, [255; 3]);
        for class in ["a", "b"] {
            fs::create_dir_all(dir.path().join("test").join(class)).unwrap();
        }
        fs::copy(picture(name), dir.path().join("test/a").join(name)).unwrap();
        let settings = format!("{FOLDER}\nresize = 'stretch'");
        let data = load(dir.path(), &settings).unwrap();
        let (images, _) = all(&*data.test);
        let at = |y: usize, x: usize| {
            let pixel = &images[0][(y * 8 + x) * 3..][..3];
            [0, 1, 2].map(|c| ((pixel[c] + 1.0) * 127.5).round() as i32)
        };
        let found = [at(0, 0), at(0, 7), at(7, 0), at(7, 7)];
        for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
            // A JPEG's edges differ a little.
            assert!(found.abs_diff(*expected) <= 12, "{name}: {found} instead of {expected}");
        }
    }
}

#[test]
fn pictures_are_made_to_fit() {
    let dir = tempfile::tempdir().unwrap();
    folder(&dir.path().join("train"), &["a", "b"], 2);
    // Wide: white with black ends, which the square in its middle has not.
    let wide = |x: u32, _: u32| image::Rgb([if (20..40).contains(&x) { 255u8 } else { 0 }; 3]);
    fs::create_dir_all(dir.path().join("test/a")).unwrap();
    image::RgbImage::from_fn(60, 20, wide).save(dir.path().join("test/a/wide.png")).unwrap();
    for (resize, white) in [("crop", 64), ("stretch", 16), ("fit", 8)] {
        let settings = format!("{FOLDER}\nchannels = 1\nresize = '{resize}'");
        let data = load(dir.path(), &settings).unwrap();
        let shape = Shape::Image { height: 8, width: 8, channels: 1 };
        assert_eq!((data.train.shape(), data.test.shape()), (shape, shape));
        let (images, labels) = all(&*data.test);
        assert_eq!((labels, images[0].len()), (vec![0], 64));
        let most = images[0].iter().copied().fold(f32::MIN, f32::max);
        let found = images[0].iter().filter(|&&value| value > most * 0.7).count();
        assert!(found.abs_diff(white) <= white / 2, "{resize}: {found} are white");
    }
}

#[test]
fn what_is_tested_on_follows_from_what_is_seen_alone() {
    let dir = tempfile::tempdir().unwrap();
    folder(dir.path(), &["a", "b"], 10);
    let data = load(dir.path(), FOLDER).unwrap();
    let tested = all(&*data.test).0;
    assert_eq!(data.files.len(), 1);
    for class in ["a", "b"] {
        for i in 0..10 {
            let file = |name: String| dir.path().join(class).join(name);
            fs::rename(file(format!("{i:02}.png")), file(format!("{}.png", 99 - i))).unwrap();
        }
    }
    let renamed = load(dir.path(), FOLDER).unwrap();
    assert_eq!(all(&*renamed.test).0, tested);
    assert_ne!(renamed.files[0].sha256, data.files[0].sha256);
    assert_eq!(renamed.normalisation, data.normalisation);
}
