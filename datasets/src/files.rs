//! Reading and writing whole files: bounded, hashed, atomic.

use std::collections::HashSet;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// A file that was read or written, for the record of a run.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct FileSum {
    /// Its name inside its folder.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// The SHA-256 of its contents, in lower-case hexadecimal.
    pub sha256: String,
}

impl FileSum {
    /// Of `contents`, those of the file at `path`.
    pub(crate) fn new(path: &Path, contents: &[u8]) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Self { name, bytes: contents.len() as u64, sha256: sha256(contents) }
    }
}

/// The names of the files that are none of the `official` ones, although no others were allowed.
pub(crate) fn altered(files: &[FileSum], official: &[&Official], partial: bool) -> Vec<String> {
    let is_official = |file: &FileSum| {
        official.iter().any(|one| one.name == file.name && one.sha256 == file.sha256)
    };
    let other = files.iter().filter(|file| !partial && !is_official(file));
    other.map(|file| file.name.clone()).collect()
}

/// What is to be said of files that are there twice, under two names.
pub(crate) fn twice(files: &[FileSum]) -> Option<String> {
    files.iter().enumerate().find_map(|(place, file)| {
        let other = files[..place].iter().find(|other| other.sha256 == file.sha256)?;
        Some(format!(
            "{} and {} have the same contents: where one is trained on and the other tested on, the accuracy says \
             nothing about new samples",
            other.name, file.name
        ))
    })
}

/// What is to be said of classes that have no sample among those trained on, whose labels are these.
pub(crate) fn unseen<S: AsRef<str>>(
    labels: impl IntoIterator<Item = usize>,
    classes: &[S],
) -> Option<String> {
    let seen: HashSet<usize> = labels.into_iter().collect();
    let unseen = classes.iter().enumerate().filter(|(class, _)| !seen.contains(class));
    let names: Vec<&str> = unseen.map(|(_, name)| name.as_ref()).collect();
    (!names.is_empty()).then(|| {
        format!(
            "there are no samples to train on for {} of {} classes: {}; add some, or take the class away",
            names.len(),
            classes.len(),
            named(&names)
        )
    })
}

/// Some names for a message, and how many there are beside.
pub(crate) fn named<S: AsRef<str>>(names: &[S]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<&str> = names.iter().take(SHOWN).map(AsRef::as_ref).collect();
    let more = names.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    shown.join(", ") + &more
}

/// The SHA-256 of `contents`, in lower-case hexadecimal.
pub fn sha256(contents: &[u8]) -> String {
    Sha256::digest(contents).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A file of an official distribution.
#[derive(Debug)]
pub struct Official {
    /// Its name inside the data set's folder.
    pub name: &'static str,
    /// The number of its records.
    pub records: u64,
    /// The SHA-256 of its contents, in lower-case hexadecimal.
    pub sha256: &'static str,
}

/// A data set's place among files, as its errors name it.
pub struct Place {
    /// The name that `gradwire data fetch` knows the data set by.
    pub fetch: &'static str,
    /// The official name of its folder.
    pub folder: &'static str,
}

impl Place {
    /// The data set's folder: `dir`/`folder`, or `dir` itself when that holds one of `names`.
    pub(crate) fn find<'a>(
        &self,
        dir: &Path,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<PathBuf> {
        let inner = dir.join(self.folder);
        if inner.is_dir() {
            return Ok(inner);
        }
        if dir.ends_with(self.folder) && dir.is_dir()
            || names.into_iter().any(|name| dir.join(name).is_file())
        {
            return Ok(dir.to_owned());
        }
        if let Some(error) = self.instead(dir) {
            return Err(error);
        }
        // A folder that may not be entered is not a missing one.
        match fs::read_dir(dir) {
            Err(cause) if cause.kind() != ErrorKind::NotFound => Err(Error::read(dir)(cause)),
            _ => Err(self.missing(inner, format!("the data set's folder `{}`", self.folder))),
        }
    }

    /// What is in `dir` in place of the data set's folder, or is `dir` itself: its archive, or CIFAR for Python.
    fn instead(&self, dir: &Path) -> Option<Error> {
        let own: String = self.folder.split_inclusive(['-', '_']).take(2).collect();
        let inner = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut paths: Vec<PathBuf> = [dir.to_owned()].into_iter().chain(inner).collect();
        paths.sort();
        paths.into_iter().find_map(|path| {
            let name = path.file_name()?.to_str()?;
            let archive = [".tar.gz", ".tgz", ".tar", ".zip"].iter().any(|end| name.ends_with(end));
            let python = name.ends_with("-py") || name.contains("-python");
            if !name.starts_with(&own) || !(archive || python) {
                return None;
            }
            let (what, remedy) = match python {
                true => ("is the version for Python, whose files are pickles", "get the binary version"),
                false => ("is packed", "unpack it (tar -xf)"),
            };
            let (folder, fetch) = (self.folder, self.fetch);
            let problem = format!(
                "{what}: {remedy}, so that there is a folder `{folder}/`, or fetch it with `gradwire data fetch \
                 {fetch}`"
            );
            Some(Error::unfit(path, problem))
        })
    }

    /// The contents of `path`, which may have at most `limit` bytes and should hold `expected`.
    pub(crate) fn read(&self, path: &Path, limit: u64, expected: &str) -> Result<Vec<u8>> {
        let contents = bounded(path, limit, |cause| match cause.kind() {
            ErrorKind::NotFound => self.missing(path.to_owned(), expected.to_owned()),
            _ => Error::read(path)(cause),
        })?;
        if contents.is_empty() { Err(empty(path, expected)) } else { Ok(contents) }
    }

    fn missing(&self, path: PathBuf, expected: String) -> Error {
        Error::Missing { path, expected, fetch: self.fetch, folder: self.folder }
    }
}

/// The contents of `path`, refused where they have more than `limit` bytes; `failed` says what an error means.
pub(crate) fn bounded(
    path: &Path,
    limit: u64,
    failed: impl Fn(std::io::Error) -> Error,
) -> Result<Vec<u8>> {
    let file = fs::File::open(path).map_err(&failed)?;
    let bytes = file.metadata().map_err(&failed)?.len();
    if bytes > limit {
        return Err(too_large(path, bytes, limit));
    }
    let mut contents = Vec::with_capacity(bytes as usize);
    // What is not a plain file may hold more than its size says.
    file.take(limit + 1).read_to_end(&mut contents).map_err(failed)?;
    match contents.len() as u64 {
        bytes if bytes > limit => Err(too_large(path, bytes, limit)),
        _ => Ok(contents),
    }
}

/// The contents of a file of one's own, as [`bounded`]. Anything else is refused: a pipe waits for its writer, and a device
/// has no end.
pub(crate) fn of_ones_own(path: &Path, limit: u64) -> Result<Vec<u8>> {
    match fs::metadata(path).map_err(Error::read(path))?.is_file() {
        true => bounded(path, limit, Error::read(path)),
        false => Err(no_plain_file(path)),
    }
}

/// A pipe, a device or a folder where a file should be.
pub(crate) fn no_plain_file(path: &Path) -> Error {
    Error::unfit(path, "is no plain file")
}

/// A file without a single byte, or record.
pub(crate) fn empty(path: &Path, expected: &str) -> Error {
    let problem = format!("is empty (byte 0): {expected} expected; fetch or unpack it again");
    Error::unfit(path, problem)
}

/// A file too large to be what it should be.
pub(crate) fn too_large(path: &Path, bytes: u64, limit: u64) -> Error {
    let problem = format!(
        "has {bytes} bytes, at most {limit} are possible for this data set (byte {limit} is already too many); it is \
         not the file its name says, fetch or unpack it again"
    );
    Error::unfit(path, problem)
}

/// A file with another number of records than the official one; the difference begins where its contents end.
pub(crate) fn record_count(path: &Path, found: u64, official: u64, contents: &[u8]) -> Error {
    let subset = ", or say that a subset is meant with --set dataset.partial=true";
    let problem = format!(
        "holds {found} records, the official file {official} (the difference begins at byte {}); fetch or unpack it \
         again{}",
        contents.len(),
        if found < official { subset } else { "" }
    );
    Error::unfit(path, problem)
}

/// Puts `contents` at `path`, folder and all: at every moment there is the old file, none, or the
/// whole new one. A file that already has these contents is left alone.
pub(crate) fn write(path: &Path, contents: &[u8]) -> Result<()> {
    if fs::metadata(path).is_ok_and(|found| found.len() == contents.len() as u64)
        && fs::read(path).is_ok_and(|found| found == contents)
    {
        return Ok(());
    }
    let failed = |cause| Error::Write { path: path.to_owned(), cause };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(failed)?;
    // A process on another machine, or in another container, may have this one's number.
    let (temporary, mut file) = loop {
        let name = unused_name(path);
        match fs::File::create_new(&name) {
            Ok(file) => break (name, file),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(error)),
        }
    };
    let mut written = || {
        file.write_all(contents)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    written().map_err(|cause| {
        // The first error is the one to report; what is left of the temporary file is only waste.
        let _ = fs::remove_file(&temporary);
        failed(cause)
    })
}

/// As [`write`], for each of `files`, unless one of them is there with other contents, or cannot be
/// read: then [`Error::InTheWay`] or [`Error::Read`], and nothing is written.
pub(crate) fn create<C: AsRef<[u8]>>(files: &[(PathBuf, C)]) -> Result<()> {
    for (path, contents) in files {
        match fs::read(path) {
            Ok(found) if found == contents.as_ref() => {}
            Ok(_) => return Err(Error::InTheWay { path: path.clone() }),
            Err(cause) if cause.kind() == ErrorKind::NotFound => {}
            Err(cause) => return Err(Error::read(path)(cause)),
        }
    }
    files.iter().try_for_each(|(path, contents)| write(path, contents.as_ref()))
}

/// A name next to `path` that no other thread of this process writes to.
fn unused_name(path: &Path) -> PathBuf {
    use std::sync::atomic::{AtomicU64, Ordering};
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let mut name = path.file_name().unwrap_or_default().to_owned();
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    name.push(format!(".{}-{count}.part", std::process::id()));
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_bytes_than_the_official_ones_are_told_unless_they_are_meant() {
        let file = Official { name: "a.bin", records: 1, sha256: "00" };
        let found = [FileSum::new(Path::new("data/a.bin"), b"other")];
        assert_eq!(altered(&found, &[&file], false), ["a.bin"]);
        assert!(altered(&found, &[&file], true).is_empty());
        let sum = FileSum { sha256: "00".into(), ..found[0].clone() };
        assert!(altered(&[sum], &[&file], false).is_empty());
    }

    const PLACE: Place = Place { fetch: "cifar10", folder: "cifar-10-batches-bin" };

    #[test]
    fn the_folder_or_the_one_around_it() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join(PLACE.folder);
        assert!(matches!(PLACE.find(dir.path(), ["a.bin"]), Err(Error::Missing { .. })));
        fs::create_dir(&inner).unwrap();
        assert_eq!(PLACE.find(dir.path(), ["a.bin"]).unwrap(), inner);
        assert_eq!(PLACE.find(&inner, ["a.bin"]).unwrap(), inner);
        let other = dir.path().join("other");
        for (name, words) in [
            ("cifar-10-binary.tar.gz", "is packed: unpack it"),
            (
                "cifar-10-python.tar.gz",
                "version for Python, whose files are pickles: get the binary",
            ),
            ("cifar-10-batches-py/data_batch_1", "version for Python"),
        ] {
            write(&other.join(name), b"x").unwrap();
            let inside = other.join(name.split('/').next().unwrap());
            for place in [&other, &inside] {
                let message = PLACE.find(place, ["a.bin"]).unwrap_err().to_string();
                assert!(
                    message.contains(words) && message.contains("data fetch cifar10"),
                    "{message}"
                );
            }
            fs::remove_dir_all(&other).unwrap();
        }
        write(&other.join("cifar-100-python.tar.gz"), b"x").unwrap();
        assert!(matches!(PLACE.find(&other, ["a.bin"]), Err(Error::Missing { .. })));
        write(&other.join("a.bin"), b"x").unwrap();
        assert_eq!(PLACE.find(&other, ["a.bin"]).unwrap(), other);
    }

    #[test]
    fn reading_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let refused = |path: &Path, limit| PLACE.read(path, limit, "a").unwrap_err().to_string();
        assert!(refused(&path, 4).contains("is not there: a was looked for"));
        fs::write(&path, b"").unwrap();
        assert!(refused(&path, 4).contains("is empty (byte 0): a expected"));
        fs::write(&path, b"abcd").unwrap();
        assert_eq!(PLACE.read(&path, 4, "a").unwrap(), b"abcd");
        assert!(refused(&path, 3).contains("has 4 bytes, at most 3 are possible"));
        assert!(refused(dir.path(), 1 << 20).contains("cannot read"));
        #[cfg(target_os = "linux")]
        assert!(refused(Path::new("/dev/zero"), 3).contains("has 4 bytes, at most 3"));
        let error = of_ones_own(dir.path(), 1 << 20).unwrap_err().to_string();
        assert!(error.contains("is no plain file"), "{error}");
    }

    #[test]
    fn writing_replaces_whole_files_and_leaves_no_rest() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/er/a");
        write(&path, b"one").unwrap();
        write(&path, b"two").unwrap();
        write(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        let other = path.with_file_name("b");
        create(&[(path.clone(), b"two")]).unwrap();
        let taken = create(&[(other.clone(), b"one"), (path.clone(), b"one")]);
        assert!(matches!(taken, Err(Error::InTheWay { .. })) && !other.exists());
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        assert!(matches!(write(&path.join("below-a-file"), b"x"), Err(Error::Write { .. })));
    }

    /// What cannot be read may be anyone's: here a link to itself, which a rename would replace.
    #[cfg(unix)]
    #[test]
    fn a_file_that_cannot_be_read_is_not_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let [free, taken] = ["free", "taken"].map(|name| dir.path().join(name));
        std::os::unix::fs::symlink(&taken, &taken).unwrap();
        let created = create(&[(free.clone(), b"one"), (taken.clone(), b"one")]);
        assert!(matches!(created, Err(Error::Read { .. })), "{created:?}");
        assert!(!free.exists() && taken.is_symlink());
    }

    #[test]
    fn the_sum_is_sha256() {
        // FIPS 180-2, appendix B.1.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let sum = FileSum::new(Path::new("a"), b"abc");
        assert_eq!((sum.sha256.as_str(), sum.bytes), (abc, 3));
    }
}
