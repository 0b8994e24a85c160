//! The hub: files listed and downloaded on a thread of their own, so that waiting is bounded.

use std::fs::File;
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use candle_datasets::hub::from_hub;
use hf_hub::progress::{DownloadEvent, ProgressEvent, ProgressHandler};
use hf_hub::{HFClient, HFError};
use parquet::file::reader::{FileReader, SerializedFileReader};

use super::source::{Progress, Source};
use crate::convert::converted;
use crate::error::{Error, Result};
use crate::open::parquet::opened;

/// Where the hub keeps the Parquet form of every data set.
const REVISION: &str = "refs/convert/parquet";

/// The Parquet files of the training and of the test set.
type Splits = (Vec<Box<dyn FileReader>>, Vec<Box<dyn FileReader>>);

enum News {
    Progress(Progress),
    Done(Result<Vec<(String, SerializedFileReader<File>)>>),
}

/// A hub, and how much patience to have with it.
#[derive(Clone)]
pub(super) struct Hub {
    /// Its address and the cache for its files; the usual ones unless tested.
    pub(super) place: Option<(String, PathBuf)>,
    /// How long it may take to say anything at all.
    pub(super) first_answer: Duration,
    /// How long a download may stand still.
    pub(super) stall: Duration,
}

impl Default for Hub {
    fn default() -> Self {
        Self { place: None, first_answer: Duration::from_secs(20), stall: Duration::from_secs(120) }
    }
}

impl Hub {
    /// Downloads what the cache does not have yet. When patience ends, the thread that waits for
    /// the hub is left behind.
    pub(super) fn download(
        &self,
        source: Source,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Splits> {
        progress(Progress::Asking);
        let (send, news) = channel();
        let hub = self.clone();
        std::thread::Builder::new()
            .name("fetch".to_owned())
            .spawn(move || {
                let done = download_all(&hub, source, &send);
                // Nobody listens any more when patience has ended.
                let _ = send.send(News::Done(done));
            })
            .map_err(|error| hub_error(source, error))?;
        let mut last = Progress::Asking;
        let mut since = Instant::now();
        loop {
            let limit = if last == Progress::Asking { self.first_answer } else { self.stall };
            match news.recv_timeout(limit.saturating_sub(since.elapsed())) {
                Ok(News::Progress(now)) => {
                    if now != last {
                        progress(now.clone());
                        (last, since) = (now, Instant::now());
                    }
                }
                Ok(News::Done(files)) => return split(source, files?),
                Err(RecvTimeoutError::Timeout) => {
                    let problem = format!("nothing has come for {} seconds", limit.as_secs());
                    return Err(no_network(source, problem));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(hub_error(source, "the download ended without a result"));
                }
            }
        }
    }
}

fn download_all(
    hub: &Hub,
    source: Source,
    news: &Sender<News>,
) -> Result<Vec<(String, SerializedFileReader<File>)>> {
    let failed = |error| request_error(source, &error);
    let mut client = HFClient::builder().retry_max_attempts(3);
    if let Some((endpoint, cache)) = &hub.place {
        client = client.endpoint(endpoint).cache_dir(cache);
    }
    let client = client.build_sync().map_err(failed)?;
    let (owner, name) = hf_hub::split_id(source.repository());
    let repository = client.dataset(owner, name);
    let info = repository.info().revision(REVISION).send().map_err(failed)?;
    let names: Vec<String> = info
        .siblings
        .unwrap_or_default()
        .into_iter()
        .map(|file| file.rfilename)
        .filter(|name| name.ends_with(".parquet"))
        .collect();
    // The client joins them to the cache's folder.
    if let Some(name) = names.iter().find(|name| !stays_inside(name)) {
        let problem = format!("the name of its file {name:?} leads out of its folder");
        return Err(hub_error(source, problem));
    }
    for name in &names {
        let report = DownloadListener { file: name.clone(), news: news.clone() };
        let download = repository.download_file().filename(name).revision(REVISION);
        let path = download.progress(report).send().map_err(failed)?;
        let contents = std::fs::read(&path).map_err(Error::read(&path))?;
        opened(&path, contents).map_err(|error| converted(source.repository(), error))?;
    }
    // All in the cache now: this opens the files, in the same order.
    let files = from_hub(&client, source.repository().to_owned()).map_err(|error| match error {
        candle_datasets::hub::Error::HubError(error) => request_error(source, &error),
        error => hub_error(source, error),
    })?;
    if files.len() != names.len() {
        return Err(hub_error(source, "the data set was changed meanwhile; try again"));
    }
    Ok(names.into_iter().zip(files).collect())
}

/// Whether a path leads to nothing outside the folder that it is joined to.
fn stays_inside(name: &str) -> bool {
    Path::new(name).components().all(|part| matches!(part, Component::Normal(_)))
}

/// Which files are the training and which the test set, by their names:
/// `plain_text/train/0000.parquet`.
fn split(source: Source, files: Vec<(String, SerializedFileReader<File>)>) -> Result<Splits> {
    let (mut train, mut test) = (Vec::new(), Vec::new());
    for (name, file) in files {
        let file: Box<dyn FileReader> = Box::new(file);
        match split_of(&name) {
            Some("train") => train.push(file),
            Some("test") => test.push(file),
            _ => return Err(hub_error(source, format!("{name} is neither train nor test"))),
        }
    }
    match train.is_empty() || test.is_empty() {
        true => Err(hub_error(source, "there is no Parquet of both a train and a test split")),
        false => Ok((train, test)),
    }
}

fn split_of(name: &str) -> Option<&str> {
    name.split(['/', '-', '.']).find(|part| matches!(*part, "train" | "test"))
}

struct DownloadListener {
    file: String,
    news: Sender<News>,
}

impl ProgressHandler for DownloadListener {
    fn on_progress(&self, event: &ProgressEvent) {
        let (bytes, total) = match event {
            ProgressEvent::Download(DownloadEvent::Start { total_bytes, .. }) => (0, *total_bytes),
            ProgressEvent::Download(DownloadEvent::Progress { files }) => {
                let Some(file) = files.last() else { return };
                (file.bytes_completed, file.total_bytes)
            }
            ProgressEvent::Download(DownloadEvent::AggregateProgress {
                bytes_completed,
                total_bytes,
                ..
            }) => (*bytes_completed, *total_bytes),
            _ => return,
        };
        let progress = Progress::Downloading { file: self.file.clone(), bytes, total };
        // Nobody listens any more after a stall.
        let _ = self.news.send(News::Progress(progress));
    }
}

/// `error` as ours: without an answer there is no network, or none that leads to the hub.
fn request_error(source: Source, error: &HFError) -> Error {
    match error {
        HFError::Request { source: request, .. } => {
            let mut problem = request.to_string();
            let mut cause = std::error::Error::source(request);
            while let Some(error) = cause {
                problem = format!("{problem}: {error}");
                cause = error.source();
            }
            no_network(source, problem)
        }
        error => hub_error(source, error),
    }
}

fn no_network(source: Source, problem: impl std::fmt::Display) -> Error {
    let repository = source.repository();
    failure(source, &format!("cannot reach the Hugging Face hub for {repository}: {problem}"))
}

fn hub_error(source: Source, problem: impl std::fmt::Display) -> Error {
    let repository = source.repository();
    failure(source, &format!("the Hugging Face hub does not give {repository}: {problem}"))
}

fn failure(source: Source, problem: &str) -> Error {
    let (archive, folder) = (source.archive(), source.distribution().place().folder);
    let problem = format!(
        "{problem}; try again later (what has come is kept), or get {archive} on a machine with a network, unpack it \
         here, and name the folder that holds `{folder}/` with `--dir`"
    );
    Error::Hub { problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_are_known_by_name() {
        assert_eq!(split_of("plain_text/train/0000.parquet"), Some("train"));
        assert_eq!(split_of("default/test/0000.parquet"), Some("test"));
        assert_eq!(split_of("cifar100/cifar100-train.parquet"), Some("train"));
        assert_eq!(split_of("trained/validation/0000.parquet"), None);
    }

    fn is_unreachable(endpoint: String) {
        let cache = tempfile::tempdir().unwrap();
        let hub = Hub {
            place: Some((endpoint, cache.path().to_owned())),
            first_answer: Duration::from_secs(1),
            stall: Duration::from_secs(1),
        };
        let start = Instant::now();
        let error = hub.download(Source::from_name("cifar10").unwrap(), &mut |_| {}).err().unwrap();
        assert!(start.elapsed() < Duration::from_secs(10));
        let message = error.to_string();
        assert!(
            message.contains("cannot reach")
                && message.contains("cifar-10-binary.tar.gz")
                && message.contains("--dir"),
            "{message}"
        );
        assert!(matches!(error, Error::Hub { .. }));
    }

    #[test]
    fn without_a_network_it_says_so_and_what_to_do() {
        // A port that takes connections and never answers, and one that takes none.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = silent.local_addr().unwrap();
        is_unreachable(format!("http://{address}"));
        drop(silent);
        is_unreachable(format!("http://{address}"));
    }
}
