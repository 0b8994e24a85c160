//! Downloading: from the Hugging Face hub to the official layouts.
//!
//! The hub keeps the data sets as Parquet. They are fetched through [`candle_datasets::hub`] into
//! the hub's own cache, where a later attempt finds what an earlier one has got, and converted to
//! the official files. Counts of records and classes must be the official ones. Where the
//! converted records are byte for byte an official file, they get its name, whatever their order
//! on the hub; where they are not (the order may differ, and AG News comes there without a line
//! between title and description), the [`Report`] says so.

mod hub;
mod source;

use std::fmt;
use std::path::{Path, PathBuf};

use parquet::file::reader::FileReader;

use self::hub::Hub;
use crate::convert::converted;
use crate::distribution::Distribution;
use crate::error::{Error, Result};
use crate::files::{self, Official, sha256};
use crate::verify::{FileState, Report, report};

pub use self::source::{Progress, Source};

/// What [`fetch`] has put in place. Its [`Display`](fmt::Display) is for people.
#[derive(Debug)]
#[non_exhaustive]
pub struct Fetched {
    /// The files, all well-formed.
    pub report: Report,
    /// Whether anything was downloaded; a data set that is already whole is left as it is.
    pub downloaded: bool,
}

impl fmt::Display for Fetched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.downloaded {
            writeln!(f, "already there, nothing downloaded")?;
        }
        write!(f, "{}", self.report)
    }
}

/// Puts the data set `source` into `dir`, in a folder of its official name (or into `dir` itself,
/// when it is that folder already). `progress` is told what happens.
///
/// Files that are already whole are kept; every other file of the data set appears at once, when
/// it is whole. So `fetch` can be stopped at any time and called again.
///
/// # Errors
/// [`Error::Hub`] when the hub cannot be reached (within 20 seconds), answers otherwise than
/// expected or does not give the data set, [`Error::InTheWay`] when `dir` has a file of an official
/// name with other contents, [`Error::Write`] when a file cannot be written.
pub fn fetch(source: Source, dir: &Path, progress: &mut dyn FnMut(Progress)) -> Result<Fetched> {
    fetch_from(&Hub::default(), source, dir, progress)
}

fn fetch_from(
    hub: &Hub,
    source: Source,
    dir: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<Fetched> {
    let known = source.distribution();
    let folder = destination(known, dir);
    if let Some(report) = already_there(known, &folder)? {
        return Ok(Fetched { report, downloaded: false });
    }
    let (train, test) = hub.download(source, progress)?;
    progress(Progress::Converting);
    put(source, &folder, &train, &test)?;
    let report = report(known, folder);
    Ok(Fetched { report, downloaded: true })
}

fn destination(known: &dyn Distribution, dir: &Path) -> PathBuf {
    let names = known.files().into_iter().map(|file| file.name);
    known.place().find(dir, names).unwrap_or_else(|_| dir.join(known.place().folder))
}

/// The report on `folder`, if all files are there with as many records as the official ones; none
/// if some are missing.
fn already_there(known: &dyn Distribution, folder: &Path) -> Result<Option<Report>> {
    let report = report(known, folder.to_owned());
    let mut missing = false;
    for file in &report.files {
        match &file.state {
            FileState::Broken(Error::Missing { .. }) => missing = true,
            _ if file.records() == Some(file.official_records) => {}
            _ => return Err(Error::InTheWay { path: folder.join(file.name) }),
        }
    }
    Ok((!missing).then_some(report))
}

/// Converts both splits, checks them, and writes the official files into `folder`.
fn put(
    source: Source,
    folder: &Path,
    train: &[Box<dyn FileReader>],
    test: &[Box<dyn FileReader>],
) -> Result<()> {
    let files = source.distribution().files();
    let (last, first) = files.split_last().expect("invariant: there is a test file");
    let train = source.convert(train)?;
    check(source, first, &train)?;
    let test = source.convert(test)?;
    check(source, &[*last], &test)?;
    let mut files = assign(first, &train);
    files.push((last, &test));
    let files: Vec<_> =
        files.into_iter().map(|(file, contents)| (folder.join(file.name), contents)).collect();
    files::create(&files)
}

/// Checks that `contents` have as many records as `officials` together, equally many of each class.
fn check(source: Source, officials: &[&Official], contents: &[u8]) -> Result<()> {
    let name = Path::new(source.repository());
    let per_class = source.distribution().per_class(name, contents)?;
    let records: u64 = officials.iter().map(|file| file.records).sum();
    let expected = records / per_class.len() as u64;
    match per_class.iter().position(|&count| count != expected) {
        None => Ok(()),
        Some(class) => {
            let problem = format!(
                "the part for {} has {} records of class {class} instead of {expected}",
                officials[0].name, per_class[class]
            );
            Err(converted(source.repository(), problem))
        }
    }
}

/// Cuts `contents` into the files `officials`, of equally many records: a part that is byte for
/// byte one of them becomes that one; if not all parts are, they are taken in order.
fn assign<'a>(officials: &[&'a Official], contents: &'a [u8]) -> Vec<(&'a Official, &'a [u8])> {
    let parts: Vec<&[u8]> = contents.chunks(contents.len().div_ceil(officials.len())).collect();
    let matched: Option<Vec<_>> = parts
        .iter()
        .map(|&part| {
            let sum = sha256(part);
            officials.iter().find(|file| file.sha256 == sum).map(|&file| (file, part))
        })
        .collect();
    matched.unwrap_or_else(|| officials.iter().copied().zip(parts).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::{self, made};
    use crate::names::COARSE_OF_FINE;
    use std::collections::HashMap;
    use std::fs;
    use std::io::{BufRead, BufReader, Write};
    use std::net::{TcpListener, TcpStream};

    /// A hub with these files, on a port of this machine.
    fn serve(repository: &str, files: HashMap<String, Vec<u8>>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let names: Vec<String> =
            files.keys().map(|name| format!("{{\"rfilename\":{name:?}}}")).collect();
        let info = format!(
            "{{\"id\":{repository:?},\"sha\":\"{}\",\"siblings\":[{{\"rfilename\":\"README.md\"}},{}]}}",
            "0123456789".repeat(4),
            names.join(",")
        );
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                answer(stream.unwrap(), &info, &files);
            }
        });
        format!("http://{address}")
    }

    fn answer(mut stream: TcpStream, info: &str, files: &HashMap<String, Vec<u8>>) {
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let request = lines.next().unwrap().unwrap();
        while lines.next().is_some_and(|line| !line.unwrap().is_empty()) {}
        let path = request.split(' ').nth(1).unwrap();
        let body = match path.split_once("/resolve/refs%2Fconvert%2Fparquet/") {
            Some((_, name)) => files[name].as_slice(),
            None => info.as_bytes(),
        };
        let head = format!(
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\nETag: \"{}\"\r\n\
             X-Repo-Commit: {}\r\n\r\n",
            body.len(),
            sha256(body),
            "0123456789".repeat(4)
        );
        stream.write_all(head.as_bytes()).unwrap();
        if !request.starts_with("HEAD") {
            stream.write_all(body).unwrap();
        }
    }

    fn source(name: &str) -> Source {
        Source::from_name(name).unwrap()
    }

    /// As many news as the official sets have, 0..4 by turns.
    fn news(count: usize) -> Vec<(String, i64)> {
        (0..count).map(|i| (format!("Say \"{i}\", he said"), i as i64 % 4)).collect()
    }

    #[test]
    fn from_the_hub_to_official_files() {
        let dir = tempfile::tempdir().unwrap();
        let files = HashMap::from([
            ("default/train/0000.parquet".to_owned(), made::texts(&news(120_000)[..70_000])),
            ("default/train/0001.parquet".to_owned(), made::texts(&news(120_000)[70_000..])),
            ("default/test/0000.parquet".to_owned(), made::texts(&news(7_600))),
        ]);
        let endpoint = serve("fancyzhx/ag_news", files);
        let hub = Hub { place: Some((endpoint, dir.path().join("cache"))), ..Hub::default() };
        let data = dir.path().join("data");
        let fetch = |hub: &Hub| fetch_from(hub, source("ag-news"), &data, &mut |_| {});
        let mut seen = Vec::new();
        let fetched =
            fetch_from(&hub, source("ag-news"), &data, &mut |progress| seen.push(progress))
                .unwrap();
        assert_eq!(seen[0], Progress::Asking);
        assert_eq!(seen[seen.len() - 1], Progress::Converting);
        assert!(seen.iter().any(|progress| matches!(progress, Progress::Downloading { .. })));
        assert!(fetched.downloaded && fetched.report.is_well_formed());
        let records: Vec<_> = fetched.report.files.iter().map(|file| file.records()).collect();
        assert_eq!(records, [Some(120_000), Some(7_600)]);
        let test = fs::read_to_string(data.join("ag_news_csv/test.csv")).unwrap();
        assert!(
            test.starts_with("\"1\",\"\",\"Say \"\"0\"\", he said\"\n\"2\",\"\","),
            "{}",
            &test[..80]
        );

        // Again: nothing to do. With one file gone: made anew, from the cache.
        let nowhere = Hub { place: None, ..hub.clone() };
        assert!(!fetch(&nowhere).unwrap().downloaded);
        fs::remove_file(data.join("ag_news_csv/test.csv")).unwrap();
        assert!(fetch(&hub).unwrap().downloaded);
        assert_eq!(fs::read_to_string(data.join("ag_news_csv/test.csv")).unwrap(), test);

        // A file of one's own is not written over.
        fs::write(data.join("ag_news_csv/test.csv"), "\"1\",\"mine\",\"own\"\n").unwrap();
        assert!(matches!(fetch(&hub), Err(Error::InTheWay { .. })));
    }

    #[test]
    fn a_file_outside_of_the_cache_is_refused() {
        for name in ["../../../train/0000.parquet", "/tmp/gradwire/train/0000.parquet"] {
            let dir = tempfile::tempdir().unwrap();
            let endpoint = serve("fancyzhx/ag_news", HashMap::from([(name.into(), Vec::new())]));
            let hub = Hub { place: Some((endpoint, dir.path().join("cache"))), ..Hub::default() };
            let error = fetch_from(&hub, source("ag-news"), dir.path(), &mut |_| {}).unwrap_err();
            let message = error.to_string();
            assert!(message.contains(name) && message.contains("leads out of"), "{message}");
        }
    }

    #[test]
    fn another_number_of_records_is_not_the_data_set() {
        let dir = tempfile::tempdir().unwrap();
        let few: Vec<Box<dyn FileReader>> = vec![made::open(&made::texts(&news(8)))];
        let error = put(source("ag-news"), dir.path(), &few, &few).unwrap_err();
        assert!(error.to_string().contains("2 records of class 0 instead of 30000"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn parts_that_are_official_files_get_their_names() {
        let file = |name, contents: &[u8]| {
            let sha256: &'static str = sha256(contents).leak();
            Official { name, records: 1, sha256 }
        };
        let (a, b) = (file("a", b"xx"), file("b", b"yy"));
        let names = |contents: &[u8]| {
            let assigned = assign(&[&a, &b], contents);
            let pairs = assigned.into_iter().map(|(file, part)| (file.name, part.to_vec()));
            pairs.collect::<Vec<_>>()
        };
        assert_eq!(names(b"yyxx"), [("b", b"yy".to_vec()), ("a", b"xx".to_vec())]);
        assert_eq!(names(b"yyzz"), [("a", b"yy".to_vec()), ("b", b"zz".to_vec())]);
    }

    #[test]
    fn images_become_records() {
        let image =
            |seed: u8| -> Vec<u8> { (0..3072).map(|i| (i as u8).wrapping_mul(seed)).collect() };
        let rows: Vec<(Vec<u8>, Vec<i64>)> = (0..3u8)
            .map(|i| {
                (convert::png(32, &image(i)), vec![i64::from(COARSE_OF_FINE[i as usize]), i.into()])
            })
            .collect();
        let split = vec![made::open(&made::images(&["coarse_label", "fine_label"], &rows))];
        let contents = source("cifar100").convert(&split).unwrap();
        assert_eq!(contents.len(), 3 * 3074);
        let record = &contents[3074..2 * 3074];
        assert_eq!(record[..2], [COARSE_OF_FINE[1], 1]);
        // Pixel 5 of the image, channel by channel.
        let planes = [record[2 + 5], record[2 + 1024 + 5], record[2 + 2048 + 5]];
        assert_eq!(planes, image(1)[15..18]);
    }
}
