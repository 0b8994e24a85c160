//! Pictures of one's own: class folders with files, or a Parquet file with a column of them, as the hub gives away sets of
//! images.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use image::DynamicImage;
use rayon::prelude::*;
use walkdir::WalkDir;

use super::arrays::check_bytes;
use super::parquet::{Cell, Parquet};
use super::{
    Part, RawValues, Read, Resize, entries, file_name, in_order, is_hidden, named, numbered,
    picture, pointed,
};
use crate::definition::{
    About, DEFAULT_DIR, Data, DatasetDefinition, Form, Reading, Selection, check_count,
};
use crate::error::{Error, Result};
use crate::files::{FileSum, of_ones_own, sha256};
use crate::images::Size;
use crate::survey::Survey;

/// The most bytes of one picture's file.
pub(crate) const LARGEST_PICTURE: u64 = 1 << 28;

settings! {
    /// A folder of class folders with pictures, or a Parquet file of them, and what they are made into.
    pub struct Pictures {
        /// The folder that holds the class folders, or `train/` and `test/` (also `val/`) with class folders in each; or a
        /// Parquet file, in a build with `--features fetch`.
        pub path: PathBuf = DEFAULT_DIR.into(),
        /// The Parquet file to test on, with the same columns; without it a share of `path` is tested on.
        pub test_file: Option<PathBuf> = None,
        /// The column of pictures in a Parquet file: the bytes of a PNG or JPEG file, or a group that has them as `bytes`.
        pub image: String = "image".into(),
        /// The column of labels in a Parquet file: words or whole numbers, wherever those begin.
        pub label: String = "label".into(),
        /// Rows and columns of every image; pictures of another size are made to fit, by `resize`.
        #[cfg_attr(feature = "schema", schemars(range(min = 4, max = 1024)))]
        pub size: usize = 32,
        /// Values per pixel: 3 for colours, 1 for grey.
        #[cfg_attr(feature = "schema", schemars(extend("enum" = [1, 3])))]
        pub channels: usize = 3,
        /// What becomes of pictures that have another size: `crop`, `fit` or `stretch`.
        pub resize: Resize = Resize::Crop,
    }
}

impl DatasetDefinition for Pictures {
    fn about(&self) -> About {
        let line = "PNG and JPEG files of one's own in class folders, or in a Parquet file";
        About { name: "pictures", line, paper: "" }
    }

    fn form(&self) -> Result<Form> {
        let classes = match self.is_folder() {
            true => class_names(&parts(&self.path)?.0)?,
            false => {
                let file = Parquet::open(&self.path)?;
                let mut labels = BTreeSet::new();
                file.rows(&[self.column(&file, &self.label)?], usize::MAX, |_, mut cells| {
                    labels.insert(label(cells.pop())?);
                    Ok(())
                })?;
                labels
            }
        };
        Ok(Form { shape: self.images().shape(), classes: classes.len() })
    }

    fn validate(&self, _samples: &Selection) -> Result<()> {
        check_count("dataset.size", self.size, 4, 1024)?;
        picture::check_channels(self.channels)
    }

    fn load(&self, reading: &Reading<'_>) -> Result<Data> {
        self.read(&reading.samples)?.into_data(None)
    }

    fn survey(&self) -> Option<Result<Survey>> {
        Some(self.read(&Selection::default()).map(|read| read.survey(&self.path)))
    }
}

impl Pictures {
    /// Whether class folders are meant, or a Parquet file.
    fn is_folder(&self) -> bool {
        !self.path.is_file()
    }

    fn images(&self) -> Size {
        Size { height: self.size, width: self.size, channels: self.channels }
    }

    pub(crate) fn read(&self, samples: &Selection) -> Result<Read> {
        if self.is_folder() { self.read_folders(samples) } else { self.read_parquet(samples) }
    }

    /// The pixels of `count` pictures, decoded by all cores: `file` gives the bytes of one by its number, and `unfit`
    /// says what is wrong with one.
    fn pixels<'a, T: Send>(
        &self,
        count: usize,
        file: impl Fn(usize) -> Result<(T, Cow<'a, [u8]>)> + Sync,
        unfit: impl Fn(usize, String) -> Error + Sync,
    ) -> Result<(RawValues, Vec<T>)> {
        let size = self.images();
        check_bytes((count as u64).saturating_mul(size.bytes() as u64))
            .map_err(|problem| Error::unfit(&self.path, problem))?;
        let mut pixels = vec![0; count * size.bytes()];
        let decode = |(number, out): (usize, &mut [u8])| {
            let (about, bytes) = file(number)?;
            let decoded = picture::decode(&bytes).map_err(|problem| unfit(number, problem))?;
            let decoded = picture::square(decoded, self.size as u32, self.channels, self.resize);
            out.copy_from_slice(&decoded);
            Ok(about)
        };
        let each = pixels.par_chunks_mut(size.bytes()).enumerate().map(decode);
        // Of several errors the first one in the order of the pictures.
        let done = each.collect::<Vec<_>>().into_iter().collect::<Result<_>>()?;
        Ok((RawValues::Images(size, pixels), done))
    }

    fn read_folders(&self, samples: &Selection) -> Result<Read> {
        let (train, test) = parts(&self.path)?;
        let left_out = left_out(&self.path, &train, test.as_deref());
        let classes = in_order(class_names(&train)?);
        let train = ClassFolders::find(&train, &classes)?;
        let test = test.map(|test| ClassFolders::find(&test, &classes)).transpose()?;
        let others = train.others.iter().chain(test.iter().flat_map(|test| &test.others));
        let others: Vec<String> = others.map(|path| path.display().to_string()).collect();
        let (train, sum) = self.decoded(&train)?;
        let test = test.map(|test| self.decoded(&test)).transpose()?;
        let (test, test_sum) = test.unzip();
        let files = [Some(sum), test_sum].into_iter().flatten().collect();
        let read = Read::new(&self.path, classes, [Some(train), test], samples, files)?;
        let others = (!others.is_empty())
            .then(|| format!("files that are no pictures are left out: {}", named(&others)));
        Ok(read.with_warnings(left_out.into_iter().chain(others)))
    }

    /// The pictures in class folders, and one sum of all their files.
    fn decoded(&self, pictures: &ClassFolders) -> Result<(Part, FileSum)> {
        let path = |number: usize| &pictures.files[number].0;
        let file = |number| {
            let path = path(number);
            let bytes = of_ones_own(path, LARGEST_PICTURE)?;
            Ok(((bytes.len() as u64, sha256(&bytes)), Cow::Owned(bytes)))
        };
        let unfit = |number, problem| Error::unfit(path(number), problem);
        let (values, about) = self.pixels(pictures.files.len(), file, unfit)?;
        let (mut bytes, mut sums) = (0, String::new());
        for ((length, sum), (path, _)) in about.into_iter().zip(&pictures.files) {
            bytes += length;
            let inner = path.strip_prefix(&pictures.root).unwrap_or(path);
            sums += &format!("{} {sum}\n", inner.display());
        }
        let labels = pictures.files.iter().map(|(_, label)| *label).collect();
        let name = pictures.root.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let name = if pictures.root == self.path { "pictures".into() } else { name };
        let sum = FileSum { name, bytes, sha256: sha256(sums.as_bytes()) };
        let names = pictures.files.iter().map(|(path, _)| path.display().to_string());
        Ok((Part::new(values, labels).with_names(names), sum))
    }

    fn read_parquet(&self, samples: &Selection) -> Result<Read> {
        let (train, labels, sum) = self.rows(&self.path)?;
        let test = self.test_file.as_ref().map(|file| self.rows(file)).transpose()?;
        let tested = test.as_ref().map_or(&[][..], |(_, labels, _)| labels);
        let (classes, numbers) = numbered(&labels, tested).map_err(|(place, problem)| {
            let path = self.test_file.as_ref().unwrap_or(&self.path);
            Error::unfit(path, format!("row {}: {problem}", place + 1))
        })?;
        let ([train_labels, test_labels], mut files) = (numbers, vec![sum]);
        let test = test.map(|(values, _, sum)| {
            files.push(sum);
            Part::new(values, test_labels)
        });
        let parts = [Some(Part::new(train, train_labels)), test];
        Read::new(&self.path, classes, parts, samples, files)
    }

    /// The pictures of a Parquet file and their labels.
    fn rows(&self, path: &Path) -> Result<(RawValues, Vec<String>, FileSum)> {
        let file = Parquet::open(path)?;
        let (mut pictures, mut labels) = (Vec::new(), Vec::new());
        let places = [self.column(&file, &self.image)?, self.column(&file, &self.label)?];
        file.rows(&places, usize::MAX, |_, mut cells| {
            labels.push(label(cells.pop())?);
            pictures.push(self.bytes(cells.pop())?);
            Ok(())
        })?;
        let unfit = |number, problem| Error::unfit(path, format!("row {}: {problem}", number + 1));
        if let Some((place, problem)) = pointed(&labels) {
            return Err(unfit(place, problem));
        }
        let bytes = |number: usize| Ok(((), Cow::Borrowed(pictures[number].as_slice())));
        let (values, _) = self.pixels(pictures.len(), bytes, unfit)?;
        Ok((values, labels, file.sum))
    }

    /// The first pictures of its Parquet file, as they are.
    pub(crate) fn some(&self, most: usize) -> Result<Vec<DynamicImage>> {
        let file = Parquet::open(&self.path)?;
        let mut some = Vec::new();
        file.rows(&[self.column(&file, &self.image)?], most, |_, mut cells| {
            some.push(picture::decode(&self.bytes(cells.pop())?)?);
            Ok(())
        })?;
        Ok(some)
    }

    /// The place of a column.
    fn column(&self, file: &Parquet, column: &str) -> Result<usize> {
        let columns = file.columns();
        columns.iter().position(|found| found == column).ok_or_else(|| {
            let problem = format!("has no column {column:?}; its columns are {}", named(&columns));
            Error::unfit(&self.path, problem)
        })
    }

    /// A picture's file.
    fn bytes(&self, cell: Option<Cell>) -> std::result::Result<Vec<u8>, String> {
        match cell {
            Some(Cell::Bytes(bytes)) => Ok(bytes),
            other => {
                let kind = other.as_ref().map_or("nothing", Cell::kind);
                Err(format!(
                    "the column {:?} holds {kind}, and a picture's bytes are wanted",
                    self.image
                ))
            }
        }
    }
}

/// What a row says that its picture shows.
fn label(cell: Option<Cell>) -> std::result::Result<String, String> {
    match cell {
        Some(Cell::Text(label)) if !label.trim().is_empty() => Ok(label.trim().to_owned()),
        _ => Err("has no label, which is a word or a whole number".into()),
    }
}

/// What folders of a training set are called, in capitals or not, and those of a test set.
const PARTS: [&[&str]; 2] =
    [&["train", "training"], &["test", "testing", "val", "valid", "validation"]];

/// The folder of the training set's class folders, and that of the test set's where there is one.
pub(crate) fn parts(dir: &Path) -> Result<(PathBuf, Option<PathBuf>)> {
    entries(dir)?;
    let [train, test] = PARTS.map(|names| named_parts(dir, names));
    match train.into_iter().next() {
        Some(train) => Ok((train, test.into_iter().find(|path| is_labelled(path)))),
        None => Ok((dir.to_owned(), None)),
    }
}

/// The folders of these names that have folders; one without is a class of that name.
fn named_parts(dir: &Path, names: &[&str]) -> Vec<PathBuf> {
    let folders = entries(dir).unwrap_or_default().into_iter();
    let named = |path: &Path| names.iter().position(|name| *name == file_name(path));
    let mut paths: Vec<_> = folders.filter_map(|path| Some((named(&path)?, path))).collect();
    paths.retain(|(_, path)| class_names(path).is_ok_and(|classes| !classes.is_empty()));
    paths.sort();
    paths.into_iter().map(|(_, path)| path).collect()
}

/// Whether anything tells the classes of the pictures in a folder for testing: it is not that all lie in one folder
/// called `images`, as those of Tiny-ImageNet do, unless a list is beside that.
fn is_labelled(dir: &Path) -> bool {
    !are_listed(dir) || dir.join(LIST).is_file()
}

/// The list of Tiny-ImageNet's validation set: a line for each picture in `images`, its name, a tab and its class first.
const LIST: &str = "val_annotations.txt";

/// Whether the only folder in `dir` is called `images`.
fn are_listed(dir: &Path) -> bool {
    class_names(dir).is_ok_and(|names| names.iter().eq(["images"]))
}

/// What is to be said of folders for testing that are not tested on.
fn left_out(dir: &Path, train: &Path, test: Option<&Path>) -> Option<String> {
    let mut others = if train == dir { Vec::new() } else { named_parts(dir, PARTS[1]) };
    others.retain(|path| Some(path.as_path()) != test);
    let names: Vec<String> = others.iter().map(|path| file_name(path)).collect();
    let why = if others.iter().any(|path| !is_labelled(path)) {
        "; nothing tells the classes of pictures that all lie in a folder `images`"
    } else {
        ""
    };
    (!names.is_empty()).then(|| format!("folders that are not tested on: {}{why}", named(&names)))
}

/// The names of the folders in `dir`.
pub(crate) fn class_names(dir: &Path) -> Result<BTreeSet<String>> {
    let folders = entries(dir)?.into_iter().filter(|path| path.is_dir());
    folders
        .map(|path| {
            let name = path.file_name().unwrap_or_default().to_str().map(str::to_owned);
            name.ok_or_else(|| Error::unfit(&path, "its name is not UTF-8; rename it"))
        })
        .collect()
}

/// Picture files of class folders.
pub(crate) struct ClassFolders {
    root: PathBuf,
    /// Each with its class, in the order of their paths within the classes.
    pub(crate) files: Vec<(PathBuf, u32)>,
    /// Files that are no pictures.
    others: Vec<PathBuf>,
}

impl ClassFolders {
    /// The pictures in the folders of `root`, which must be some of `classes`.
    pub(crate) fn find(root: &Path, classes: &[String]) -> Result<Self> {
        if are_listed(root) && root.join(LIST).is_file() {
            return Self::listed(root, classes);
        }
        let found = class_names(root)?;
        let own: BTreeSet<String> = classes.iter().cloned().collect();
        let foreign: Vec<&String> = found.difference(&own).collect();
        if !foreign.is_empty() {
            let problem = format!(
                "has folders of classes that the training set has not: {}; its classes are {}. Rename or take \
                 away those folders, or add them to the training set",
                named(&foreign),
                named(classes)
            );
            return Err(Error::unfit(root, problem));
        }
        let mut this = Self { root: root.to_owned(), files: Vec::new(), others: Vec::new() };
        for (label, class) in (0..).zip(classes).filter(|(_, class)| found.contains(*class)) {
            let folder = root.join(class);
            let walk = WalkDir::new(&folder).follow_links(true).sort_by_file_name();
            let seen = |entry: &walkdir::DirEntry| entry.depth() == 0 || !is_hidden(entry.path());
            for entry in walk.into_iter().filter_entry(seen) {
                let entry = entry.map_err(|error| unwalkable(&folder, error))?;
                if entry.file_type().is_file() {
                    this.add(entry.into_path(), label)?;
                }
            }
        }
        Ok(this)
    }

    /// The pictures that [`LIST`] names, in the order of their classes and names.
    fn listed(root: &Path, classes: &[String]) -> Result<Self> {
        let list = root.join(LIST);
        let text = fs::read_to_string(&list).map_err(Error::read(&list))?;
        let mut this = Self { root: root.to_owned(), files: Vec::new(), others: Vec::new() };
        for (number, line) in (1..).zip(text.lines()) {
            let mut fields = line.split('\t');
            let (name, class) = (fields.next().unwrap_or_default(), fields.next());
            let label = class.and_then(|class| classes.iter().position(|own| own == class));
            let inside = Path::new(name).file_name() == Some(name.as_ref());
            let Some(label) = label.filter(|_| inside) else {
                let problem = format!(
                    "line {number}: a picture's name, a tab and a class of the training set are wanted, not {line:?}"
                );
                return Err(Error::unfit(list, problem));
            };
            this.add(root.join("images").join(name), label as u32)?;
        }
        this.files.sort_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
        Ok(this)
    }

    fn add(&mut self, path: PathBuf, label: u32) -> Result<()> {
        let extension = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
        match extension.as_str() {
            "png" | "jpg" | "jpeg" | "jpe" | "jfif" => self.files.push((path, label)),
            "gif" | "webp" | "bmp" | "tif" | "tiff" | "avif" | "heic" | "ppm" | "pgm" => {
                let problem =
                    format!("is a picture of the format {extension}; convert it to PNG or JPEG");
                return Err(Error::unfit(path, problem));
            }
            _ => self.others.push(path),
        }
        Ok(())
    }
}

fn unwalkable(folder: &Path, error: walkdir::Error) -> Error {
    let path = error.path().unwrap_or(folder).to_owned();
    match error.loop_ancestor() {
        Some(ancestor) => {
            let problem = format!(
                "is a symbolic link in a circle, back to {}; take it away",
                ancestor.display()
            );
            Error::unfit(path, problem)
        }
        None => Error::Read { path, cause: error.into() },
    }
}
